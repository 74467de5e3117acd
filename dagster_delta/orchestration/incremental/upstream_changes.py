"""The rows of an upstream table that an incremental asset has not seen yet, and the net result of
such changes: for every key, its last row or its deletion.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from functools import reduce
from itertools import chain
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

import dagster_delta.arrow_compute as pc
from dagster_delta.engines import rows_on_disk
from dagster_delta.errors import ConstraintViolation, InvalidArgument
from dagster_delta.protocol.schema import fold_name
from dagster_delta.python_values import python_rows
from dagster_delta.table.read.change_data_feed import (
    CHANGE_COLUMNS,
    CHANGE_TYPE_COLUMN,
    COMMIT_TIMESTAMP_COLUMN,
    COMMIT_VERSION_COLUMN,
    MAX_COMPARED_BYTES,
    ChangeDataFeed,
    feed_schema,
)
from dagster_delta.table.read.scan import RowFrames, Scan
from dagster_delta.table.read.snapshot import Snapshot

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from pyspark.sql import Column, DataFrame, SparkSession

ACTION_COLUMN = "_change_type"
"""Instead of the columns of the feed: `UPSERT` or `DELETE`."""

UPSERT = "upsert"
DELETE = "delete"

_CAME = ("insert", "update_postimage")
_LEFT = ("delete", "update_preimage")
_MAX_EXAMPLES = 5
_RANK, _LAST, _COUNT, _POSITION = "__rank", "__last_rank", "__rows", "__position"


class UpstreamChanges(RowFrames):
    """The input of an incremental asset: the row changes since the last run, or every row.

    After the columns of the upstream table come `_change_type` (`insert`, `delete`,
    `update_preimage`, `update_postimage`), `_commit_version` and `_commit_timestamp`. In a full
    refresh every row of the table is an `insert` of its latest version.

    Args:
        snapshot: the upstream table at the last version that is read.
        ranges: the first version whose changes are read, and for which rows: Spark SQL, or None
            for every row; empty for a full refresh.
        where: the rows of a full refresh: Spark SQL, or None for every row.
        columns: of the upstream table; None for all.
        refresh_reason: why every row is read; None if only changes are.
        max_bytes: as for `DeltaTable.changes`.
    """

    def __init__(
        self,
        snapshot: Snapshot,
        ranges: Sequence[tuple[int, str | None]],
        *,
        where: str | None = None,
        columns: Sequence[str] | None = None,
        refresh_reason: str | None = None,
        max_bytes: int | None = MAX_COMPARED_BYTES,
    ) -> None:
        self.snapshot = snapshot
        self.refresh_reason = refresh_reason
        self.columns = snapshot.schema.names if columns is None else tuple(columns)
        """Columns of the upstream table that are read."""
        self._where = where
        self._feeds = tuple(
            ChangeDataFeed(
                snapshot, start, [*self.columns, *CHANGE_COLUMNS], rows, max_bytes=max_bytes
            )
            for start, rows in ranges
        )

    @property
    def is_full_refresh(self) -> bool:
        """Whether these are all rows of the table instead of its changes."""
        return self.refresh_reason is not None

    @property
    def compared_bytes(self) -> int:
        """Bytes of the upstream data files whose rows are compared to find the changes, as the
        change data feed was off.

        Raises:
            As `is_empty` does.
        """
        return sum(feed.compared_bytes for feed in self._feeds)

    @property
    def from_version(self) -> int | None:
        """The first version whose changes are read; None in a full refresh."""
        return min((feed.starting_version for feed in self._feeds), default=None)

    @property
    def to_version(self) -> int:
        """The last version that is read."""
        return self.snapshot.version

    @property
    def is_empty(self) -> bool:
        """Whether the log shows that no row has changed. Always false in a full refresh.

        Raises:
            VersionNotFound, LogGap, ChangeDataNotRecorded, SchemaMismatch: the changes can no
                longer be read.
        """
        # Check every range, since each may find unreadable changes.
        empty = [feed.is_empty for feed in self._feeds]
        return not self.is_full_refresh and all(empty)

    def snapshot_before(self) -> Snapshot | None:
        """The upstream table at the last version that was read before, if its schema or properties
        have changed since; otherwise None.

        Raises:
            VersionNotFound, LogGap: the log does not reach back to it.
            InvalidTable, UnsupportedFeature, StorageFailure: of the log.
        """
        starts = [feed.starting_version for feed in self._feeds if feed.changes_metadata]
        if not starts or min(starts) == 0:
            return None
        return Snapshot.load(self.snapshot.store, version=min(starts) - 1)

    def to_batches(self) -> pa.RecordBatchReader:
        """The rows as a `pa.RecordBatchReader`.

        Raises:
            DataFileMissing, InvalidTable, UnsupportedExpression, StorageFailure: as
                `ChangeDataFeed.to_batches` does.
        """
        schema = feed_schema(self.snapshot, self.columns)
        changes = chain.from_iterable(feed.to_batches() for feed in self._feeds)
        batches = self._every_row(schema) if self.is_full_refresh else changes
        return pa.RecordBatchReader.from_batches(schema, batches)

    def to_spark(self, spark: SparkSession | None = None) -> DataFrame:
        """The rows as a lazy Spark DataFrame. Raises as `ChangeDataFeed.to_spark` does."""
        if not self.is_full_refresh:
            frames = [feed.to_spark(spark) for feed in self._feeds]
            return reduce(lambda left, right: left.union(right), frames)
        from pyspark.sql import functions

        frame = self._make_scan().to_spark(spark)
        at = functions.timestamp_millis(functions.lit(self.snapshot.timestamp_ms))
        return (
            frame.withColumn(CHANGE_TYPE_COLUMN, functions.lit("insert"))
            .withColumn(COMMIT_VERSION_COLUMN, functions.lit(self.to_version).cast("long"))
            .withColumn(COMMIT_TIMESTAMP_COLUMN, at)
        )

    def _make_scan(self) -> Scan:
        return Scan(self.snapshot, self.columns, self._where)

    def _every_row(self, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        version = pa.scalar(self.to_version, pa.int64())
        at = pa.scalar(self.snapshot.timestamp_ms * 1000, schema.field(-1).type)
        for batch in self._make_scan().to_batches():
            constants = [
                pa.repeat(value, batch.num_rows)
                for value in (pa.scalar("insert", pa.string()), version, at)
            ]
            yield pa.RecordBatch.from_arrays([*batch.columns, *constants], schema=schema)


def net_changes(
    changes: object, keys: Sequence[str], *, asset: str, deletes: bool = True
) -> pa.RecordBatchReader:
    """One row per key: its last row, with its action in `ACTION_COLUMN`. Without `deletes`, only
    the rows that exist, and without that column.

    A row that was deleted and inserted again in one version exists; a row that was only deleted is
    deleted. Rows wait on disk until all keys are known, which are held in memory.

    `changes`: anything that an append takes, except a Spark frame.
    """
    with ExitStack() as stack:
        source = stack.enter_context(rows_on_disk(changes))
        given = source.arrow_schema
        keys = _check_columns(given.names, keys, asset=asset)
        found = [pa.Table.from_batches([batch]) for _, batch in source.batches()]
        tables = [given.empty_table(), *found]
        ranks = np.concatenate([_rank_changes(table, asset) for table in tables])
        ranked = pa.concat_tables([key_columns(table, keys, asset=asset) for table in tables])
        taken = last_positions(ranks, ranked, keys, asset)
        resources = stack.pop_all()
    if not deletes:
        taken = taken[ranks[taken] % 2 == 1]
    names = [name for name in given.names if name not in CHANGE_COLUMNS]
    action = [pa.field(ACTION_COLUMN, pa.string())] if deletes else []
    schema = pa.schema([*map(given.field, names), *action])

    def batches() -> Iterator[pa.RecordBatch]:
        with resources:
            for part in source.parts(taken, names) if len(taken) else ():
                columns = source.take(taken[part], names).columns
                if deletes:
                    actions = np.where(ranks[taken[part]] % 2 == 1, UPSERT, DELETE)
                    columns.append(pa.array(actions.tolist(), pa.string()))
                yield pa.RecordBatch.from_arrays(columns, schema=schema)

    return pa.RecordBatchReader.from_batches(schema, batches())


def last_events(changes: object, keys: Sequence[str], *, asset: str) -> pa.RecordBatchReader:
    """One row per key and version, with the columns of the feed: of a row that was deleted and
    inserted again in one version, the one that exists. Rows wait on disk as for `net_changes`.
    """
    with ExitStack() as stack:
        source = stack.enter_context(rows_on_disk(changes))
        given = source.arrow_schema
        keys = (*_check_columns(given.names, keys, asset=asset), COMMIT_VERSION_COLUMN)
        found = [pa.Table.from_batches([batch]) for _, batch in source.batches()]
        tables = [given.empty_table(), *found]
        ranks = np.concatenate([_rank_changes(table, asset) for table in tables])
        ranked = pa.concat_tables([key_columns(table, keys, asset=asset) for table in tables])
        taken = last_positions(ranks, ranked, keys, asset)
        resources = stack.pop_all()

    def batches() -> Iterator[pa.RecordBatch]:
        with resources:
            for part in source.parts(taken, given.names) if len(taken) else ():
                yield source.take(taken[part], given.names)

    return pa.RecordBatchReader.from_batches(given, batches())


def last_events_of_frame(changes: DataFrame, keys: Sequence[str], *, asset: str) -> DataFrame:
    """As `last_events`, for a Spark DataFrame and lazily; fails as `net_changes_of_frame` does."""
    from pyspark.sql import functions

    keys = (*_check_columns(changes.columns, keys, asset=asset), COMMIT_VERSION_COLUMN)
    last, ambiguous = _last_of_frame(changes, keys, asset)
    checked = functions.when(functions.col(_COUNT) > 1, ambiguous)
    of_event = checked.otherwise(functions.col(CHANGE_TYPE_COLUMN))
    return last.withColumn(CHANGE_TYPE_COLUMN, of_event).drop(_RANK, _COUNT)


def remaining_events(changes: object) -> pa.RecordBatchReader:
    """Events that an upstream table has as its rows: all but `update_preimage`, the former text of
    an event that was corrected there.
    """
    with ExitStack() as stack:
        source = stack.enter_context(rows_on_disk(changes))
        given = source.arrow_schema
        resources = stack.pop_all()

    def batches() -> Iterator[pa.RecordBatch]:
        with resources:
            for _, batch in source.batches():
                if CHANGE_TYPE_COLUMN not in given.names:
                    yield batch
                    continue
                types = pc.cast(batch.column(CHANGE_TYPE_COLUMN), pa.string())
                former = pc.equal(types, pa.scalar("update_preimage"))
                yield pc.filter(batch, pc.invert(pc.fill_null(former, False)))

    return pa.RecordBatchReader.from_batches(given, batches())


def remaining_events_of_frame(changes: DataFrame) -> DataFrame:
    """As `remaining_events`, for a Spark DataFrame and lazily."""
    if CHANGE_TYPE_COLUMN not in changes.columns:
        return changes
    return changes.where(f"NOT coalesce({CHANGE_TYPE_COLUMN} = 'update_preimage', false)")


def last_positions(
    ranks: NDArray[np.int64], ranked: pa.Table, keys: Sequence[str], asset: str
) -> NDArray[np.int64]:
    """The positions of the last row of each key, in ascending order."""
    ranked = ranked.append_column(_RANK, pa.array(ranks))
    ranked = ranked.append_column(_POSITION, pa.array(np.arange(len(ranks))))
    aggregates = [(_POSITION, "max"), ([], "count_all")]
    states = ranked.group_by([*keys, _RANK]).aggregate(aggregates).sort_by(_RANK)
    states = states.append_column(_LAST, pa.array(np.arange(states.num_rows)))
    last = states.take(states.group_by(list(keys)).aggregate([(_LAST, "max")])[f"{_LAST}_max"])
    is_there = pc.equal(pc.bit_wise_and(last[_RANK], 1), 1)
    several = last.filter(pc.and_(is_there, pc.greater(last["count_all"], 1)))
    if several.num_rows:
        examples = python_rows(several.select(list(keys)).slice(0, _MAX_EXAMPLES))
        raise ConstraintViolation(
            f"{asset} returned several rows with the same key ({', '.join(keys)}) for one version, "
            f"which is ambiguous ({several.num_rows} keys): leave one row per key",
            examples=tuple(map(repr, examples)),
        )
    return np.sort(last[f"{_POSITION}_max"].to_numpy())


def key_columns(rows: pa.Table, keys: Sequence[str], *, asset: str) -> pa.Table:
    """The keys of rows in types of a table, with one form of values that are equal in it: 0.0 for
    -0.0, and one NaN.
    """
    columns = {}
    for key in keys:
        column = rows[key]
        if pa.types.is_nested(column.type):
            raise InvalidArgument(
                f"{asset} cannot identify rows by {key}, which is of type {column.type}: name "
                "columns of numbers, texts, dates or times as keys",
                column=key,
            )
        if pa.types.is_floating(column.type):
            nan, zero = (pa.scalar(value, column.type) for value in (math.nan, 0.0))
            column = pc.if_else(pc.is_nan(column), nan, pc.add(column, zero))
        columns[key] = column
    return pa.table(columns)


def net_changes_of_frame(
    changes: DataFrame, keys: Sequence[str], *, asset: str, deletes: bool = True
) -> DataFrame:
    """As `net_changes`, for a Spark DataFrame and lazily; two rows of one version with the same key
    make the query fail.
    """
    from pyspark.sql import functions

    last, ambiguous = _last_of_frame(
        changes, _check_columns(changes.columns, keys, asset=asset), asset
    )
    is_there = functions.col(_RANK) % 2 == 1
    action = (
        functions.when(functions.col(_COUNT) > 1, ambiguous)
        .when(is_there, functions.lit(UPSERT))
        .otherwise(functions.lit(DELETE))
    )
    dropped = {*CHANGE_COLUMNS} - {ACTION_COLUMN}
    net = last.withColumn(ACTION_COLUMN, action).drop(_RANK, _COUNT, *dropped)
    if deletes:
        return net
    return net.filter(functions.col(ACTION_COLUMN) == UPSERT).drop(ACTION_COLUMN)


def _last_of_frame(changes: DataFrame, keys: Sequence[str], asset: str) -> tuple[DataFrame, Column]:
    """The last row of each key, with `_RANK`, odd if the row exists, and `_COUNT`, how many
    such rows there are, if it exists; and the error to raise where these are several.
    """
    from pyspark.sql import Window, functions

    came = functions.col(CHANGE_TYPE_COLUMN).isin(*_CAME)
    rank = functions.col(COMMIT_VERSION_COLUMN) * 2 + came.cast("long")
    of_key = Window.partitionBy(*keys)
    ranked = changes.withColumn(_RANK, rank).withColumn(_LAST, functions.max(_RANK).over(of_key))
    last = ranked.filter(functions.col(_RANK) == functions.col(_LAST))
    is_there = functions.col(_RANK) % 2 == 1
    counted = last.withColumn(_COUNT, functions.sum(is_there.cast("int")).over(of_key)).withColumn(
        _POSITION, functions.row_number().over(of_key.orderBy(_RANK))
    )
    message = f"{asset} returned several rows with the same key ({', '.join(keys)}) for one version"
    ambiguous = functions.raise_error(functions.lit(message)).cast("string")
    return counted.filter(functions.col(_POSITION) == 1).drop(_LAST, _POSITION), ambiguous


def _check_columns(names: Sequence[str], keys: Sequence[str], *, asset: str) -> tuple[str, ...]:
    """The keys in the spelling of the rows."""
    missing = [name for name in (CHANGE_TYPE_COLUMN, COMMIT_VERSION_COLUMN) if name not in names]
    if missing:
        raise InvalidArgument(
            f"the rows that {asset} returned lack {', '.join(missing)}, so that nothing says which "
            "of them are gone: keep the columns _change_type and _commit_version of the changes; "
            'or, where every returned row is to be there, declare returns="rows"'
        )
    return keys_of_rows(names, keys, rows=f"the rows that {asset} returned")


def keys_of_rows(names: Sequence[str], keys: Sequence[str], *, rows: str) -> tuple[str, ...]:
    """The keys as rows with columns of these names spell them; `rows` names the rows."""
    by_name = {fold_name(name): name for name in names}
    if missing := [key for key in keys if fold_name(key) not in by_name]:
        raise InvalidArgument(
            f"{rows} lack the key {missing[0]}; they have {', '.join(names)}", column=missing[0]
        )
    return tuple(by_name[fold_name(key)] for key in keys)


def _rank_changes(changes: pa.Table, asset: str) -> NDArray[np.int64]:
    """A numpy array that orders changes in time; odd if the row exists afterwards."""
    types = changes[CHANGE_TYPE_COLUMN].cast(pa.string())
    came = pc.is_in(types, value_set=pa.array(_CAME))
    known = pc.or_(came, pc.is_in(types, value_set=pa.array(_LEFT)))
    versions = changes[COMMIT_VERSION_COLUMN].cast(pa.int64())
    if not pc.all(known, min_count=0).as_py() or versions.null_count:
        raise InvalidArgument(
            f"the rows that {asset} returned do not all say what they are: _change_type is one of "
            f"{', '.join((*_CAME, *_LEFT))}, and _commit_version a number"
        )
    ranks: NDArray[np.int64] = versions.to_numpy() * 2 + came.to_numpy().astype(np.int64)
    return ranks
