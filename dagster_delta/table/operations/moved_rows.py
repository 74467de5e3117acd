"""Rows that move to other files and keep their identity.

Spec: Add File and Remove File (dataChange).
"""

from __future__ import annotations

import msgspec
import pyarrow as pa

import dagster_delta.arrow_compute as pc
from dagster_delta.engines import embedded_engine
from dagster_delta.engines.plans import WriteResult
from dagster_delta.engines.statements.row_tracking import keep_row_ids
from dagster_delta.errors import InvalidTable
from dagster_delta.protocol.features.table_configuration import TableConfiguration
from dagster_delta.protocol.statistics.statistics import parse_statistics_json
from dagster_delta.protocol.values.arrow_values import integer_scalar
from dagster_delta.table.operations.write_planning import write_spec
from dagster_delta.table.read.row_selection import read_plan
from dagster_delta.table.read.snapshot import Snapshot
from dagster_delta.table.transaction.file_actions import tombstones
from dagster_delta.table.transaction.transaction import Transaction


def stage_moved_rows(
    transaction: Transaction, files: pa.Table, configuration: TableConfiguration
) -> WriteResult:
    """Stage that the rows of some files are in new files, written under another configuration.

    Rows keep their ids. On an error, new files are deleted as far as the store allows. The
    transaction is on the snapshot of the files; columns of the new configuration have the names of
    the old one.
    """
    snapshot = transaction.snapshot
    assert snapshot is not None  # noqa: S101  the files are of one
    # The rows are in the table, so they have passed its constraints.
    spec = write_spec(configuration, snapshot.store.location, check_rows=False)
    plan, spec = keep_row_ids(read_plan(snapshot, files, None), spec)
    engine = embedded_engine()
    written = engine.write(engine.read(plan), spec, store=snapshot.store)
    transaction.stage_written(
        msgspec.structs.replace(file, data_change=False) for file in written.files
    )
    transaction.declare_row_ids_kept()
    with transaction.created_files:
        check_no_row_lost(snapshot, files, written)
    transaction.stage_removed(tombstones(files, transaction.clock(), data_change=False))
    return written


def check_no_row_lost(snapshot: Snapshot, files: pa.Table, written: WriteResult) -> None:
    """Compare the rows that were written with the rows in the log, before the old files are
    removed.
    """
    counts = parse_statistics_json(files["stats"], ())["num_records"]
    deleted = pc.fill_null(
        pc.struct_field(files["deletion_vector"], "cardinality"), integer_scalar(0)
    )
    expected = pc.sum(pc.subtract(counts, deleted), skip_nulls=False).as_py()
    if expected is not None and expected != written.num_rows:
        raise InvalidTable(
            f"the log counts {expected} rows in {files.num_rows} files, which hold "
            f"{written.num_rows}: statistics or a deletion vector are wrong. Nothing was changed; "
            "find the file with a full scan, and write it again from its source",
            table=snapshot.store.location.uri,
            version=snapshot.version,
        )
