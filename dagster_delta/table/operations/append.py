"""APPEND: new rows as one commit, which creates the table if there is none.

Spec: Add File and Remove File; Transaction Identifiers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from dagster_delta.clock import now_ms
from dagster_delta.engines.data_input import is_in_memory
from dagster_delta.errors import InvalidArgument, TableAlreadyExists
from dagster_delta.table import operations
from dagster_delta.table.operations.auto_compact import adopt_write
from dagster_delta.table.operations.write_planning import WriteOptions
from dagster_delta.table.operations.write_rows import RowWrite, write_metrics
from dagster_delta.table.read.file_planner import select_rows

if TYPE_CHECKING:
    from dagster_delta.sql.expressions import SqlExpression
    from dagster_delta.table.operations.expectations import Expectation, RowQuarantine
    from dagster_delta.table.operations.write_planning import SchemaMode
    from dagster_delta.table.read.snapshot import Snapshot
    from dagster_delta.table.slices import IfPresent, Slice
    from dagster_delta.table.table_handle import TableHandle
    from dagster_delta.table.transaction.commit_result import AppTransaction, CommitResult
    from dagster_delta.table.transaction.staged_write import AuditOfWrite


def append(
    table: TableHandle,
    /,
    data: object,
    *,
    schema_mode: SchemaMode = "strict",
    partition_by: Sequence[str] | None = None,
    idempotency: tuple[str, int] | None = None,
    commit_info: Mapping[str, object] | None = None,
    engine: str | None = None,
    check: str | None = None,
    properties: Mapping[str, object] | None = None,
    progress: Sequence[AppTransaction] = (),
    description: str | None = None,
    sort_by: Sequence[str] = (),
    cluster_by: Sequence[str] | None = None,
    absent: str | None = None,
    within: Slice | None = None,
    if_present: IfPresent | None = None,
    expectations: Sequence[Expectation] = (),
    quarantine: RowQuarantine | None = None,
    audit: AuditOfWrite | None = None,
) -> CommitResult:
    """Append rows as one commit, creating the table if it does not exist.

    Args:
        data: pyarrow Table, RecordBatchReader or Dataset, pandas or polars frame, Spark
            DataFrame.
        schema_mode: `strict`: the table's columns and no others, and no values that an integer,
            decimal or date column would store without a part, while the other modes cast as
            Spark does: 1.5 to 1. `widen`: columns take the wider types of the data (an integer
            never becomes a decimal or a double) if the table has `delta.enableTypeWidening`;
            `merge`: new columns are added as well, and types are widened if the table has
            that property.
        partition_by: partition columns of a new table; by default the columns of `within` with one
            value in each of its parts.
        idempotency: application id and version; a version that was already committed is not
            written again.
        commit_info: recorded in the commitInfo beside this library's own fields.
        engine: `arrow` or `spark`; chosen by the data by default.
        check: Spark SQL that every row has to satisfy.
        properties: table properties of a new table.
        progress: `txn` actions to record with this commit, each only if the application's
            version in the table is the expected one.
        description: description of a new table; shown by catalogs and tools.
        sort_by: columns that the rows of each file are sorted by, nulls last.
        cluster_by: clustering columns of a new table; see `create`.
        absent: Spark SQL that no row of the table may satisfy before this commit. An append
            without it that commits meanwhile counts as later, unless `delta.isolationLevel` is
            `Serializable`.
        within: the slice of the table that every row has to be in.
        if_present: what a part of `within` gets that has rows: `replace` replaces them, `skip`
            leaves the part as it is and its new rows out, `fail` refuses to write. Without
            `within`, the table is the part, once it exists. By default, rows are added. Other
            appends that commit meanwhile count as later, as for `absent`.
        expectations: conditions that the rows are expected to satisfy, as they are given. They are
            counted while the rows are written; `observed` of the result has the counts.
        quarantine: where rows go that violate an expectation with `quarantine`.
        audit: is called with a `StagedWrite`, the table as it would be and the new rows, before the
            commit: an error that it raises leaves the table as it is. It is called again if others
            change rows meanwhile.

    Raises:
        SchemaMismatch, InvalidCast: the rows do not fit the table.
        ExpectationFailed: rows violate an expectation with `fail`.
        ConstraintViolation: a row breaks NOT NULL, an invariant or a CHECK.
        PartitionMismatch: a row does not satisfy `check`, or is outside of `within`.
        TableAlreadyExists: the table has rows that satisfy `absent`, or are in `within` with
            `if_present="fail"`.
        UnsupportedFeature, ConditionalPutUnsupported: the table cannot be written.
        CommitConflict, CommitStateUnknown: the commit failed, or may have failed.
        InvalidArgument: the arguments contradict each other, or the table that another writer
            has created.
    """
    options = WriteOptions(
        schema_mode=schema_mode,
        partition_by=partition_by,
        idempotency=idempotency,
        commit_info=commit_info,
        engine=engine,
        check=check,
        properties=properties,
        progress=progress,
        description=description,
        sort_by=sort_by,
        cluster_by=cluster_by,
        absent=absent,
        within=within,
        if_present=if_present,
        expectations=expectations,
        quarantine=quarantine,
        audit=audit,
    )
    # Rows in memory can be written again if the version of this handle turns out to be too old.
    is_blind = absent is None and if_present is None and audit is None
    held = table._recent() if is_blind and is_in_memory(data) else None
    snapshot = table._latest() if held is None else held
    write = RowWrite(table.store, data, options, now_ms)
    if if_present == "replace":
        written = operations.overwrite.overwrite_rows(write, snapshot)
    else:
        written = append_rows(write, snapshot, is_held=held is not None)
    return adopt_write(table, written, engine, data)


def append_rows(
    write: RowWrite, snapshot: Snapshot | None, *, is_held: bool = False
) -> CommitResult:
    """Add rows; without a snapshot, the same commit creates the table.

    After any error but CommitStateUnknown nothing was committed, and new data files are deleted if
    the store allows.
    """
    if write.options.schema_mode == "overwrite":
        raise InvalidArgument(
            'an append cannot replace the schema; use schema_mode="merge", or overwrite'
        )

    def append() -> CommitResult:
        if write.transaction.snapshot is not None:
            _check_absence(write, write.transaction.snapshot)
        configuration = write.stage_configuration()
        written = write.write_rows(configuration)
        return write.commit(configuration, {"mode": "Append"}, write_metrics(written))

    return write.run(append, snapshot, is_held=is_held)


def _check_absence(write: RowWrite, snapshot: Snapshot) -> None:
    """Refuse to add rows where there are some, if the append is for none."""
    options, within = write.options, write.within
    if options.absent is not None:
        expression = write.parse_condition(options.absent, snapshot, "the condition of the append")
        what = f"the table has rows for which {options.absent} holds"
        _depend_on_absence(write, snapshot, expression, f"{what}, and this append is for a table")
    if options.if_present is None:
        return
    if within is None:
        raise TableAlreadyExists(
            "the table exists already, and if_present is 'fail': pass 'replace' or 'skip', or "
            "append without if_present to add the rows",
            table=write.store.location.uri,
            version=snapshot.version,
        )
    what = f"{within.name} has rows already, and if_present says that this write is for a slice"
    _depend_on_absence(write, snapshot, within.condition(snapshot.schema), what)


def _depend_on_absence(
    write: RowWrite, snapshot: Snapshot, expression: SqlExpression, what: str
) -> None:
    """Make sure that no row satisfies a condition, and that no concurrent commit adds one."""
    from dagster_delta.table.operations.change_rows import selection

    selected = select_rows(snapshot, expression, write.engine)
    if selected.files.num_rows:
        raise TableAlreadyExists(
            f"{what} without any", table=write.store.location.uri, version=snapshot.version
        )
    selects = selection(write.transaction, write.engine, expression)
    write.transaction.depend_on(selected.reads, selects=selects)
