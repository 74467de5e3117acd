"""MERGE on Spark: planned by the log, carried out by the executors.

Spec: Add File and Remove File; Deletion Vectors; Add CDC File; Per-file Statistics.
"""

from __future__ import annotations

import datetime as dt
import time
from dataclasses import replace

import pyarrow.compute as pc

from dagster_delta.engines.rows.row_tracking import keep_row_ids
from dagster_delta.engines.spark.changes.merge import FrameMerge
from dagster_delta.engines.spark.changes.merge_source import SparkMergeSource
from dagster_delta.engines.spark.engine import SparkEngine, check_reachable
from dagster_delta.engines.statements.merge_clauses import MergeClause, MergeNames, parse_clauses
from dagster_delta.engines.statements.merge_condition import split_condition
from dagster_delta.protocol.values.arrow_columns import string_column
from dagster_delta.table.read.row_selection import SelectedRows, read_plan
from dagster_delta.table.read.snapshot import Snapshot
from dagster_delta.table.write.merge.outcome import MergeOutcome, MergeTimes
from dagster_delta.table.write.merge.schema_change import merged_configuration
from dagster_delta.table.write.merge.scope import MergeScope, matching_predicate
from dagster_delta.table.write.merge.statement import MergeStatement
from dagster_delta.table.write.planning import write_spec
from dagster_delta.table.write.transaction import Transaction

__all__ = ["merge_frames"]


def merge_frames(
    engine: SparkEngine,
    transaction: Transaction,
    snapshot: Snapshot,
    statement: MergeStatement,
    data: object,
    times: MergeTimes,
    directory: str,
) -> MergeOutcome:
    """Find the rows that change, and write what replaces them.

    Args:
        engine: with the session to use.
        transaction: on the snapshot; gets the new schema, where there is one.
        snapshot: the latest one.
        statement: what to do.
        data: the source.
        times: gets the times of the phases.
        directory: where rows of the source may be put down on their way to Spark.

    Raises:
        As `merge_rows` does.
    """
    check_reachable(snapshot.store)
    source = SparkMergeSource.of(engine.session, data, directory)
    configuration = merged_configuration(snapshot.configuration, source.schema, statement)
    names = MergeNames(
        snapshot.schema,
        source.schema,
        statement.target_alias,
        statement.source_alias,
        assigned=configuration.schema,
        embedded=False,
    )
    statement = statement.at_moment(names.scope("matched"), dt.datetime.now(dt.UTC))
    clauses = parse_clauses(statement.clauses, names, configuration, evolves=statement.evolves)
    condition = split_condition(names.condition(statement.on, "matched"))
    if configuration is not snapshot.configuration:
        transaction.stage_configuration(configuration)
    table = snapshot.store.location.uri
    num_rows, keys = source.summarise(condition.keys, table=table)
    times.materialised = time.perf_counter()
    is_utc = engine.session_is_utc
    matching = matching_predicate(condition, keys, session_is_utc=is_utc)
    planner = engine.log_planner
    scope = MergeScope.of(snapshot, matching, clauses, session_is_utc=is_utc, planner=planner)
    spec = write_spec(configuration, snapshot.store.location, constraints=statement.constraints)
    plan = read_plan(snapshot, scope.files, None, configuration)
    records = _records(clauses, transaction)
    change_data = replace(spec, constraints=()) if records else None
    plan, spec = keep_row_ids(plan, spec)
    merged = FrameMerge(
        engine.session,
        plan,
        source,
        num_rows,
        names,
        statement.on,
        clauses,
        spec,
        change_data,
    ).run()
    times.scanned = time.perf_counter()
    inserts = any(each.text.kind == "not_matched" for each in clauses)
    files = scope.files.filter(pc.is_in(scope.files["path"], string_column(list(merged.rows))))
    # A row of the source is not inserted because of rows in files that may stay as they are.
    reads = scope.reads((scope.files if inserts else files)["path"].to_pylist())
    return MergeOutcome(
        clauses,
        num_rows,
        merged.num_inserted_rows,
        merged.num_changed_rows,
        SelectedRows(files, merged.rows, reads),
        merged.files,
        merged.change_files,
        merged.high_water_marks,
        keeps_row_ids=True,
    )


def _records(clauses: tuple[MergeClause, ...], transaction: Transaction) -> bool:
    """Whether changes of rows are recorded: adds and removes say all there is to say of new rows,
    and of rows that leave by deletion vectors.
    """
    configuration = transaction.configuration
    if not configuration.change_data_feed_enabled:
        return False
    return not configuration.deletion_vectors_enabled or any(
        each.text.action == "update" for each in clauses
    )
