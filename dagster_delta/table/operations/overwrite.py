"""OVERWRITE: rows in place of all rows, of those of some partitions, or of those that match a
condition or the new rows.

Spec: Add File and Remove File; Append-only Tables; Partition Value Serialization.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from msgspec.structs import replace

from dagster_delta.clock import now_ms
from dagster_delta.errors import InvalidArgument
from dagster_delta.evolution.merge_schema import diff_schemas
from dagster_delta.protocol.actions import RemoveFile
from dagster_delta.protocol.features.table_configuration import TableConfiguration
from dagster_delta.protocol.log.conflict_checker import ReadScope
from dagster_delta.protocol.schema import StructType
from dagster_delta.table.operations.append import append_rows
from dagster_delta.table.operations.auto_compact import adopt_write
from dagster_delta.table.operations.replaced_files import (
    removal_metrics,
    remove_files,
    remove_partitions,
    stage_inserted_changes,
)
from dagster_delta.table.operations.write_planning import WriteOptions
from dagster_delta.table.operations.write_rows import (
    DYNAMIC,
    RowWrite,
    overwrite_check,
    write_metrics,
)
from dagster_delta.table.read.file_planner import FilePlanner, select_rows
from dagster_delta.table.transaction.commit_result import CHANGE_MEMORY, NOT_FOLLOWED
from dagster_delta.table.transaction.file_actions import REMOVED_COLUMNS, tombstones

if TYPE_CHECKING:
    from dagster_delta.sql.constraint import Constraint
    from dagster_delta.sql.expressions import SqlExpression
    from dagster_delta.table.operations.expectations import Expectation, RowQuarantine
    from dagster_delta.table.operations.write_planning import SchemaMode
    from dagster_delta.table.read.snapshot import Snapshot
    from dagster_delta.table.slices import IfPresent, Slice
    from dagster_delta.table.table_handle import TableHandle
    from dagster_delta.table.transaction.commit_result import AppTransaction
    from dagster_delta.table.transaction.retries import OnConflict
    from dagster_delta.table.transaction.staged_write import AuditOfWrite
    from dagster_delta.table.transaction.transaction import CommitResult


def overwrite(
    table: TableHandle,
    /,
    data: object,
    *,
    where: str | None = None,
    schema_mode: SchemaMode = "strict",
    partition_by: Sequence[str] | None = None,
    idempotency: tuple[str, int] | None = None,
    commit_info: Mapping[str, object] | None = None,
    engine: str | None = None,
    properties: Mapping[str, object] | None = None,
    progress: Sequence[AppTransaction] = (),
    description: str | None = None,
    sort_by: Sequence[str] = (),
    cluster_by: Sequence[str] | None = None,
    on_conflict: OnConflict = "retry",
    within: Slice | None = None,
    if_present: IfPresent = "replace",
    replace_using: Sequence[str] | None = None,
    replace_on: str | None = None,
    expectations: Sequence[Expectation] = (),
    quarantine: RowQuarantine | None = None,
    audit: AuditOfWrite | None = None,
) -> CommitResult:
    """Replace rows as one commit, creating the table if it does not exist.

    Args:
        data: as for `append`.
        where: None replaces every row; Spark SQL replaces the rows that satisfy it, and every
            new row must satisfy it; `dynamic` replaces the partitions of the new rows.
        schema_mode: as for `append`; `overwrite` gives the table the schema of the data, and
            needs `where` to be None; within a slice, the data need the columns of the table.
        partition_by: partition columns of a new table, or of a new schema; otherwise as for
            `append`.
        idempotency: as for `append`.
        commit_info: as for `append`.
        engine: as for `append`.
        properties: table properties of a new table.
        progress: as for `append`.
        description: as for `append`.
        sort_by: as for `append`.
        cluster_by: as for `append`.
        on_conflict: as for `delete`. After a concurrent commit that changed the schema or the
            properties, rows in memory and Spark frames are written again; rows that can be
            read once cannot, which is the conflict.
        within: instead of `where`: the slice of the table whose rows are replaced, and that every
            new row has to be in.
        if_present: as for `append`.
        replace_using: instead of `where`: columns of the table and of the data; the rows are
            replaced that equal a new row in all of them. Null equals nothing, so that rows with a
            null there stay, and new ones are added to them. Without new rows nothing changes.
        replace_on: instead: Spark SQL over the table `t` and the new rows `s`, as in
            `"t.day = s.day AND t.shop <=> s.shop"`; the rows are replaced that satisfy it with at
            least one new row. Every new row is written, whether it replaces one or not.
        expectations: as for `append`.
        quarantine: as for `append`.
        audit: as for `append`.

    Raises:
        PartitionMismatch: a new row does not satisfy `where`, or is outside of `within`.
        TableAlreadyExists: as for `append`.
        SchemaMismatch, InvalidCast, ConstraintViolation, ExpectationFailed, UnsupportedFeature,
        ConditionalPutUnsupported, CommitConflict, CommitStateUnknown, InvalidArgument: as for
            `append`; an append-only table is refused as an UnsupportedFeature.
    """
    options = WriteOptions(
        where=where,
        schema_mode=schema_mode,
        partition_by=partition_by,
        idempotency=idempotency,
        commit_info=commit_info,
        engine=engine,
        properties=properties,
        progress=progress,
        description=description,
        sort_by=sort_by,
        cluster_by=cluster_by,
        on_conflict=on_conflict,
        within=within,
        if_present=if_present,
        replace_using=replace_using,
        replace_on=replace_on,
        expectations=expectations,
        quarantine=quarantine,
        audit=audit,
    )
    if if_present is None:
        raise InvalidArgument("if_present of an overwrite is 'replace', 'skip' or 'fail'")
    if options.replaces_matches:
        from dagster_delta.table.operations.overwrite_matches import overwrite_matches

        replaced = overwrite_matches(table.store, data, options, table._latest())
        return adopt_write(table, replaced, engine, data)
    write = RowWrite(table.store, data, options, now_ms)
    write_rows = overwrite_rows if if_present == "replace" else append_rows
    return adopt_write(table, write_rows(write, table._latest()), engine, data)


def overwrite_rows(write: RowWrite, snapshot: Snapshot | None) -> CommitResult:
    """Replace all rows, those that a predicate matches, or those of the partitions written.

    Errors are those of `append_rows`, and PartitionMismatch: a new row does not satisfy `where`.
    """
    options, where = write.options, write.options.where
    if options.within is not None and options.schema_mode == "overwrite":
        if snapshot is not None:
            _check_same_columns(snapshot.schema, write.data_schema)
        write.options = replace(options, schema_mode="strict")
    if write.options.schema_mode == "overwrite" and where is not None:
        raise InvalidArgument(
            "the schema can only be replaced together with all rows; leave out where, or use "
            'schema_mode="merge"'
        )
    parameters: dict[str, object] = {"mode": "Overwrite"}
    if where == DYNAMIC:
        parameters["isDynamicPartitionOverwrite"] = True
    elif where is not None:
        parameters["predicate"] = where

    def overwrite() -> CommitResult:
        configuration = write.stage_configuration()
        if write.within is not None:
            parameters["predicate"] = write.within.sql(write.slice_schema)
        return write.commit(
            configuration, parameters, _stage_replacement(write, configuration, where)
        )

    return write.run(overwrite, snapshot)


def _check_same_columns(table: StructType, data: StructType) -> None:
    """Refuse to replace the schema by other columns, together with a part of the rows."""
    diff = diff_schemas(table, data)
    if diff.added or diff.missing or diff.retyped:
        raise InvalidArgument(
            'within replaces a part of the rows, and schema_mode="overwrite" would take other '
            "columns from the rest: use schema_mode merge for new columns and wider types, ALTER "
            f"TABLE for the rest:\n{diff}"
        )


def _stage_replacement(
    write: RowWrite, configuration: TableConfiguration, where: str | None
) -> dict[str, int | str]:
    """Write and stage the new rows, and stage the removal of the old ones."""
    snapshot = write.transaction.snapshot
    removes: Sequence[RemoveFile] = ()
    if where == DYNAMIC:
        if not configuration.partition_columns:
            raise InvalidArgument(
                'where="dynamic" replaces partitions, and the table has none; leave it out to '
                "replace all rows",
                table=write.store.location.uri,
            )
        written = write.write_rows(configuration)
        if snapshot is not None:
            removes = remove_partitions(write, snapshot, written.files)
        return write_metrics(written) | removal_metrics(removes)
    check, expression = where, None
    if snapshot is not None and write.within is not None:
        expression = write.within.condition(snapshot.schema)
    elif snapshot is not None and where is not None:
        expression = write.parse_condition(where, snapshot, "the condition of the overwrite")
        check = expression.sql
    checks = [] if check is None else [overwrite_check(check)]
    if snapshot is not None and expression is not None:
        planner = FilePlanner(snapshot)
        predicates = planner.predicates_of(expression)
        named = {path[0] for path in expression.references}
        is_decided = named.issubset(snapshot.configuration.partition_columns)
        if is_decided:
            # Without statistics, which a large table has many of.
            found = planner.candidates(*predicates, columns=REMOVED_COLUMNS)
            is_decided = found.is_decided
        if not is_decided:
            return _replace_rows(write, configuration, snapshot, expression, checks)
        removes = remove_files(write, found.files, planner.may_hold(*predicates))
    elif snapshot is not None:
        removes = tombstones(snapshot.live_files(REMOVED_COLUMNS), write.clock())
        write.transaction.depend_on(ReadScope(whole_table=True))
        write.transaction.stage_removed(removes)
        if snapshot.transaction_version(CHANGE_MEMORY) not in {None, NOT_FOLLOWED}:
            # What is remembered of change events is about the rows that leave.
            write.transaction.record_application(CHANGE_MEMORY, NOT_FOLLOWED)
    return write_metrics(write.write_rows(configuration, checks)) | removal_metrics(removes)


def _replace_rows(
    write: RowWrite,
    configuration: TableConfiguration,
    snapshot: Snapshot,
    expression: SqlExpression,
    checks: Sequence[Constraint],
) -> dict[str, int | str]:
    from dagster_delta.table.operations.change_rows import change_rows

    transaction, engine = write.transaction, write.engine
    selected = select_rows(snapshot, expression, engine)
    written = write.write_rows(configuration, checks)
    if not selected.files.num_rows:
        transaction.depend_on(selected.reads)
        return write_metrics(written) | removal_metrics(())
    counts = change_rows(transaction, selected, engine, where=expression)
    if counts["numAddedChangeFiles"]:
        stage_inserted_changes(write, configuration, written)
    names = ("numRemovedFiles", "numRemovedBytes", "numCopiedRows")
    # Copied rows are named only where there are any.
    return write_metrics(written) | {
        name: counts[name] for name in names if counts[name] or name != "numCopiedRows"
    }
