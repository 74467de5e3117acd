"""The rows of an upstream table that an incremental asset has not seen yet."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import reduce
from itertools import chain
from typing import TYPE_CHECKING

import pyarrow as pa

from dagster_delta.protocol.features.change_data import (
    CHANGE_TYPE_COLUMN,
    COMMIT_TIMESTAMP_COLUMN,
    COMMIT_VERSION_COLUMN,
    feed_configuration,
)
from dagster_delta.protocol.values.arrow_schema import to_arrow_schema
from dagster_delta.table.read.change_data_feed import ChangeDataFeed
from dagster_delta.table.read.scan import RowFrames, Scan
from dagster_delta.table.read.snapshot import Snapshot

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

CHANGE_COLUMNS = (CHANGE_TYPE_COLUMN, COMMIT_VERSION_COLUMN, COMMIT_TIMESTAMP_COLUMN)
"""Columns that follow those of the upstream table."""


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
    """

    def __init__(
        self,
        snapshot: Snapshot,
        ranges: Sequence[tuple[int, str | None]],
        *,
        where: str | None = None,
        columns: Sequence[str] | None = None,
        refresh_reason: str | None = None,
    ) -> None:
        self.snapshot = snapshot
        """The upstream table at the last version that is read."""
        self.refresh_reason = refresh_reason
        """Why every row is read; None if only changes are."""
        self.columns = snapshot.schema.names if columns is None else tuple(columns)
        """Columns of the upstream table that are read."""
        self._where = where
        self._feeds = tuple(
            ChangeDataFeed(
                snapshot, start, [*self.columns, *CHANGE_COLUMNS], rows, appends_suffice=True
            )
            for start, rows in ranges
        )

    def __repr__(self) -> str:
        what = "every row" if self.is_full_refresh else f"changes from {self.from_version}"
        return f"UpstreamChanges({self.snapshot!r}, {what})"

    @property
    def is_full_refresh(self) -> bool:
        """Whether these are all rows of the table instead of its changes."""
        return self.refresh_reason is not None

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
        configuration = feed_configuration(self.snapshot.configuration, has_change_type=True)
        schema = to_arrow_schema(configuration.schema)
        schema = pa.schema([schema.field(name) for name in (*self.columns, *CHANGE_COLUMNS)])
        changes = chain.from_iterable(feed.to_batches() for feed in self._feeds)
        batches = self._every_row(schema) if self.is_full_refresh else changes
        return pa.RecordBatchReader.from_batches(schema, batches)

    def to_spark(self, spark: SparkSession | None = None) -> DataFrame:
        """The rows as a lazy Spark DataFrame. Raises as `ChangeDataFeed.to_spark` does."""
        if not self.is_full_refresh:
            frames = [feed.to_spark(spark) for feed in self._feeds]
            return reduce(lambda left, right: left.union(right), frames)
        from pyspark.sql import functions

        frame = self._scan().to_spark(spark)
        at = functions.timestamp_millis(functions.lit(self.snapshot.timestamp_ms))
        return (
            frame.withColumn(CHANGE_TYPE_COLUMN, functions.lit("insert"))
            .withColumn(COMMIT_VERSION_COLUMN, functions.lit(self.to_version).cast("long"))
            .withColumn(COMMIT_TIMESTAMP_COLUMN, at)
        )

    def _scan(self) -> Scan:
        return Scan(self.snapshot, self.columns, self._where)

    def _every_row(self, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        version = pa.scalar(self.to_version, pa.int64())
        at = pa.scalar(self.snapshot.timestamp_ms * 1000, schema.field(-1).type)
        for batch in self._scan().to_batches():
            constants = [
                pa.repeat(value, batch.num_rows)
                for value in (pa.scalar("insert", pa.string()), version, at)
            ]
            yield pa.RecordBatch.from_arrays([*batch.columns, *constants], schema=schema)
