"""KEEP LATEST: of the rows of each key the latest one stays, as one commit.

Spec: Add File and Remove File; Deletion Vectors; Append-only Tables.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Literal, get_args

import dagster_delta.arrow_compute as pc
from dagster_delta.engines import engine_for
from dagster_delta.engines.plans import ReadPlan
from dagster_delta.errors import ConstraintViolation, InvalidArgument, SchemaMismatch
from dagster_delta.protocol.log.conflict_checker import ReadScope
from dagster_delta.protocol.log.replay import LIVE_FILE_SCHEMA
from dagster_delta.protocol.schema import DecimalType, PrimitiveType, StructType
from dagster_delta.protocol.values.arrow_columns import string_column
from dagster_delta.table.operations.auto_compact import adopt_write
from dagster_delta.table.operations.change_rows import CHANGED_ROWS, change_rows
from dagster_delta.table.read.file_planner import SelectedRows
from dagster_delta.table.transaction.retries import StatementOptions, run_with_retries
from dagster_delta.table.transaction.transaction import CommitResult, Transaction

if TYPE_CHECKING:
    from dagster_delta.table.read.snapshot import Snapshot
    from dagster_delta.table.table_handle import TableHandle
    from dagster_delta.table.transaction.retries import OnConflict

OnTie = Literal["fail", "any"]


def keep_latest(
    table: TableHandle,
    /,
    keys: Sequence[str],
    order_by: Sequence[str],
    *,
    on_tie: OnTie = "fail",
    engine: str | None = None,
    idempotency: tuple[str, int] | None = None,
    commit_info: Mapping[str, object] | None = None,
    on_conflict: OnConflict = "retry",
) -> CommitResult:
    """Keep the latest row of each key and delete the others, as one commit. If each key has one
    row, nothing is committed, and `skipped` is true.

    Keys and order are read of the whole table, and no other column. Rows are deleted as `delete`
    does, with the same change feed.

    Args:
        keys: columns that identify a row; null is a value like others.
        order_by: columns whose greatest values, compared one after the other, are the latest; null
            is less than every value, and NaN greater than every number.
        on_tie: what happens if several rows of a key are the latest: `fail` raises an error with
            examples, and `any` keeps one of them, which one is not defined.
        engine: `arrow` or `spark`; by default Arrow.
        idempotency: as for `delete`.
        commit_info: as for `delete`.
        on_conflict: as for `delete`.

    Raises:
        TableNotFound: the table does not exist.
        SchemaMismatch: a column is not in the schema.
        InvalidArgument: there is no key or no order, or a column is of a type without an order.
        ConstraintViolation: several rows of a key are the latest, and `on_tie` is `fail`.
        UnsupportedFeature, ConditionalPutUnsupported: the table cannot be written, or is
            append-only.
        CommitConflict, CommitStateUnknown: the commit failed, or may have failed.
    """
    if on_tie not in get_args(OnTie):
        raise InvalidArgument(f"on_tie is 'fail' or 'any', not {on_tie!r}")
    options = StatementOptions(
        engine=engine, idempotency=idempotency, commit_info=commit_info, on_conflict=on_conflict
    )

    def keep(snapshot: Snapshot) -> CommitResult:
        return _delete_older(snapshot, keys, order_by, on_tie, options)

    kept = run_with_retries(keep, table.store, table._existing(), options)
    return adopt_write(table, kept, engine)


def _delete_older(
    snapshot: Snapshot,
    keys: Sequence[str],
    order_by: Sequence[str],
    on_tie: OnTie,
    options: StatementOptions,
) -> CommitResult:
    started = time.perf_counter()
    transaction = Transaction(snapshot.store, snapshot)
    transaction.check_may_remove("a keep_latest")
    transaction.stage_applications(options)
    names = [_resolve_columns(columns, snapshot.schema) for columns in (keys, order_by)]
    engine = engine_for(None, options.engine)
    files = snapshot.live_files(LIVE_FILE_SCHEMA.names)
    columns = tuple(dict.fromkeys([*names[0], *names[1]]))
    plan = ReadPlan(snapshot.store, snapshot.version, snapshot.configuration, files, columns, None)
    older = engine.find_older(plan, *names)
    if older.num_ties and on_tie == "fail":
        raise ConstraintViolation(
            f"several rows of one key ({', '.join(keys)}) are the latest by "
            f"{', '.join(order_by)} ({older.num_ties} surplus rows): name more columns in "
            "order_by, or keep one of them by on_tie='any'. Nothing was changed",
            table=snapshot.store.location.uri,
            examples=older.tie_examples,
        )
    metrics: dict[str, int | str] = {"numDeletedRows": 0}
    if not older.rows and options.records_nothing:
        return CommitResult(snapshot.version, metrics, snapshot, skipped=True)
    chosen = pc.filter(files, pc.is_in(files["path"], string_column(list(older.rows))))
    selected = SelectedRows(chosen, older.rows, ReadScope(whole_table=True))
    with transaction.created_files:
        counts = change_rows(transaction, selected, engine)
    metrics = {
        ("numDeletedRows" if name == CHANGED_ROWS else name): n for name, n in counts.items()
    }
    metrics["executionTimeMs"] = round((time.perf_counter() - started) * 1000)
    what = f"not the latest of ({', '.join(keys)}) by ({', '.join(order_by)})"
    return transaction.commit(
        "DELETE", parameters={"predicate": [what]}, metrics=metrics, user_info=options.commit_info
    )


def _resolve_columns(columns: Sequence[str], schema: StructType) -> list[str]:
    """The columns in the spelling of the table."""
    if isinstance(columns, str) or not columns:
        raise InvalidArgument(
            "keep_latest takes columns as lists, at least one key and one to order by, as in "
            f"keep_latest(['id'], order_by=['at']), not {columns!r}"
        )
    found = []
    for name in columns:
        field = schema.get(name)
        if field is None:
            raise SchemaMismatch(
                f"{name!r} is not a column of the table: {', '.join(schema.names)}", column=name
            )
        kind = field.data_type
        if not isinstance(kind, PrimitiveType | DecimalType) or str(kind) == "variant":
            raise InvalidArgument(
                f"keep_latest compares {name!r}, which is of type {kind}: name columns of numbers, "
                "texts, dates or times",
                column=name,
            )
        found.append(field.name)
    return found
