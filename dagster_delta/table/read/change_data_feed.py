"""Row-level changes between two versions of a table.

Spec: Change Data Files; Add CDC File.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pyarrow as pa

import dagster_delta.arrow_compute as pc
from dagster_delta.cached_property import cached_property
from dagster_delta.engines import embedded_engine, spark_engine
from dagster_delta.errors import DataFileMissing, InvalidArgument, VersionNotFound
from dagster_delta.protocol.features.change_data import CHANGE_TYPE_COLUMN as CHANGE_TYPE_COLUMN
from dagster_delta.protocol.features.change_data import (
    COMMIT_TIMESTAMP_COLUMN as COMMIT_TIMESTAMP_COLUMN,
)
from dagster_delta.protocol.features.change_data import (
    COMMIT_VERSION_COLUMN as COMMIT_VERSION_COLUMN,
)
from dagster_delta.protocol.features.change_data import feed_configuration
from dagster_delta.protocol.schema import StructType
from dagster_delta.protocol.values.arrow_schema import to_arrow_schema
from dagster_delta.protocol.values.partition_values import decode_path
from dagster_delta.storage.object_store import ObjectStore
from dagster_delta.table.log.commit_range import first_version_since, parse_timestamp, version_at
from dagster_delta.table.log.commit_summary import CommitSummary
from dagster_delta.table.read.change_feed_plan import ChangedFiles, plan_changes
from dagster_delta.table.read.scan import RowFrames, resolve_columns, resolve_filter
from dagster_delta.table.read.snapshot import Snapshot

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from dagster_delta.sql.expressions import SqlExpression


Timestamp = dt.datetime | str | int

MAX_COMPARED_BYTES = 1024**3
"""Bytes of data files that are compared at most by default, where the feed was off."""

CHANGE_COLUMNS = (CHANGE_TYPE_COLUMN, COMMIT_VERSION_COLUMN, COMMIT_TIMESTAMP_COLUMN)
"""Columns that follow those of the table."""


def feed_schema(end: Snapshot, columns: Sequence[str]) -> pa.Schema:
    """The `pa.Schema` of a feed with some columns of the table, and those of the feed.

    Raises:
        InvalidTable: the table has a column with the name of a column of the feed.
    """
    configuration = feed_configuration(end.configuration, has_change_type=True)
    schema = to_arrow_schema(configuration.schema)
    return pa.schema([schema.field(name) for name in (*columns, *CHANGE_COLUMNS)])


class ChangeDataFeed(RowFrames):
    """The rows inserted, deleted or updated in a range of versions, one row per changed row and
    commit.

    After the columns of the table follow `_change_type` (`insert`, `delete`, `update_preimage`,
    `update_postimage`), `_commit_version` and `_commit_timestamp`. Rows are read with the schema of
    the last version: columns that were added inside the range are null in older rows. Commits that
    only rearranged rows, such as OPTIMIZE, do not appear. Immutable; the log is read once, when
    rows are first needed.

    Where the feed was off, an updated row is a `delete` and an `insert`, and an update that
    leaves a row as it was is no change.

    Args:
        end: the last version of the range.
        starting_version: the first one; the next after `end` makes a feed without rows.
        columns: names of the columns to read, in order, including those of the feed to read; all by
            default.
        where: Spark SQL over the columns of the feed; only rows that satisfy it are read.
        max_bytes: the most bytes of data files that are compared, see `DeltaTable.changes`.

    Raises:
        SchemaMismatch: a column, or a name in the filter, is not in the schema.
        InvalidArgument: a column is named twice, or the filter is not a boolean expression.
        InvalidTable: the table has a column with the name of a column of the feed.
    """

    def __init__(
        self,
        end: Snapshot,
        starting_version: int,
        columns: Sequence[str] | None = None,
        where: str | SqlExpression | None = None,
        *,
        max_bytes: int | None = MAX_COMPARED_BYTES,
    ) -> None:
        self._max_bytes = max_bytes
        self.snapshot = end
        """The table as of the last version, with whose schema the rows are read."""
        self.starting_version = starting_version
        """First version whose changes are read."""
        self._configuration = feed_configuration(end.configuration, has_change_type=True)
        self.columns = resolve_columns(self._configuration.schema, columns)
        self.where = resolve_filter(self._configuration.schema, where)

    def __repr__(self) -> str:
        return (
            f"ChangeDataFeed({self.snapshot.store.location.uri!r}, "
            f"versions {self.starting_version} to {self.ending_version})"
        )

    @property
    def ending_version(self) -> int:
        """Last version whose changes are read; the next feed starts after it."""
        return self.snapshot.version

    @property
    def schema(self) -> StructType:
        """The logical schema of the rows."""
        schema = self._configuration.schema
        return StructType(tuple(schema.field(name) for name in self.columns))

    @property
    def is_empty(self) -> bool:
        """Whether the log alone shows that there are no changes: the versions only rearranged rows,
        or changed none of the requested ones.

        Raises:
            As `to_batches` does of the log.
        """
        files = self._find_matching_files(self.where)
        return not any(changes.files.num_rows for changes in files.sets)

    @property
    def compared_bytes(self) -> int:
        """Bytes of the data files whose rows are compared to find changes, as the feed was off; 0
        if what was removed and added suffices.

        Raises:
            As `to_batches` does of the log.
        """
        files = self._files if self.where is None else self._files.matching(self.where)
        return files.compared_bytes

    @property
    def changes_metadata(self) -> bool:
        """Whether a version of the range has changed the schema or properties of the table.

        Raises:
            As `to_batches` does of the log.
        """
        return self._files.changes_metadata

    def to_batches(self) -> pa.RecordBatchReader:
        """The rows as a `pa.RecordBatchReader`, by ascending version; files are read while it is
        consumed.

        Raises:
            VersionNotFound: the log no longer reaches back to the start of the range.
            LogGap: a commit inside the range is missing.
            ChangeDataNotRecorded: the change data feed was off, and files of more than `max_bytes`
                would have to be compared.
            SchemaMismatch: rows of the range cannot be read with the schema at its end.
            DataFileMissing: a file with changes is missing, for example deleted by VACUUM.
            UnsupportedExpression: only Spark can evaluate the filter; use `to_spark`.
            UnsupportedFeature, CorruptDeletionVector, InvalidTable, StorageFailure: for log or
            file.
            InvalidArgument: the filter fails on a value, as it would in Spark's ANSI mode.
        """
        if self.where is not None:
            self.where.check_embeddable()
        files = self._find_matching_files(self.where)
        batches = embedded_engine().read_changes(self.snapshot.store, files.sets, self.columns)
        return pa.RecordBatchReader.from_batches(
            to_arrow_schema(self.schema), self._name_versions_in_errors(batches)
        )

    def to_spark(self, spark: SparkSession | None = None) -> DataFrame:
        """The rows as a lazy Spark DataFrame, in no particular order.

        Args:
            spark: the session, classic or Connect; the active one by default.

        Raises:
            As `to_batches` does of the log, and of files that are missing.
        """
        engine, where = spark_engine(spark), self.where
        if where is not None:
            where = where.in_zone(engine.time_zone)
        with self._naming_versions():
            files = self._find_matching_files(where)
            return engine.read_changes(self.snapshot.store, files.sets, self.columns)

    def _find_matching_files(self, where: SqlExpression | None) -> ChangedFiles:
        files = self._files if where is None else self._files.matching(where)
        files.check_compared(self._max_bytes, table=self.snapshot.store.location.uri)
        return files

    @cached_property
    def _files(self) -> ChangedFiles:
        return plan_changes(self.snapshot.store, self.starting_version, self.snapshot)

    def _name_versions_in_errors(
        self, batches: Iterable[pa.RecordBatch]
    ) -> Iterator[pa.RecordBatch]:
        with self._naming_versions():
            yield from batches

    @contextmanager
    def _naming_versions(self) -> Iterator[None]:
        """Errors about missing files name the version whose changes they hold."""
        try:
            yield
        except DataFileMissing as error:
            version = self._version_of(error.file)
            which = "of the range" if version is None else f"of version {version}"
            raise DataFileMissing(
                f"a file with changes {which} is not there any more, as VACUUM removes such files "
                "in time: read the changes of later versions, or take the whole table",
                table=self.snapshot.store.location.uri,
                version=version,
                file=error.file,
            ) from error

    def _version_of(self, path: str | None) -> int | None:
        for changes in self._files.sets:
            for row in changes.files.select(["path", "commit_version"]).to_pylist():
                if decode_path(row["path"]) == path:
                    return int(row["commit_version"])
        return None


def find_range(
    store: ObjectStore,
    known: Snapshot,
    *,
    starting_version: int | None = None,
    ending_version: int | None = None,
    starting_timestamp: Timestamp | None = None,
    ending_timestamp: Timestamp | None = None,
) -> tuple[int, Snapshot]:
    """The first version of a range of changes, and the table as of the last one.

    `known` is the last one by default, unless the start is after it; a timestamp stands for the
    oldest version since, or the newest one until then. Raises as `DeltaTable.changes` does.
    """
    table = store.location.uri
    _check_bounds(starting_version, starting_timestamp, ending_version, ending_timestamp)
    start, last = starting_version, ending_version
    if starting_timestamp is not None:
        start = first_version_since(store, starting_timestamp)
    if ending_timestamp is not None:
        last = version_at(store, ending_timestamp)
    assert start is not None  # noqa: S101  one of the two was given
    is_between = None not in (starting_timestamp, ending_timestamp) and last == start - 1
    if last is not None and last < start and not is_between:
        raise InvalidArgument(
            f"the changes end with version {last}, before they start with version {start}; swap "
            "the two, or ask for a single version by naming it twice",
            table=table,
        )
    latest = known if max(start, last or 0) <= known.version else known.update()
    if start > latest.version and not is_between:
        raise VersionNotFound(
            f"There are no changes from version {start} on: the latest version is "
            f"{latest.version}; wait for the next commit",
            table=table,
            version=start,
        )
    if last is None or last >= latest.version:
        return start, latest
    return start, Snapshot.load(store, version=last)


def _check_bounds(
    starting_version: int | None,
    starting_timestamp: Timestamp | None,
    ending_version: int | None,
    ending_timestamp: Timestamp | None,
) -> None:
    if (starting_version is None) == (starting_timestamp is None):
        raise InvalidArgument(
            "changes start with a version or at a timestamp: pass starting_version or "
            "starting_timestamp, and not both"
        )
    if ending_version is not None and ending_timestamp is not None:
        raise InvalidArgument(
            "changes end with a version or at a timestamp: pass ending_version or "
            "ending_timestamp, not both"
        )
    for version in (starting_version, ending_version):
        if version is not None and version < 0:
            raise InvalidArgument(f"a version must be ≥ 0, not {version}")
    if (
        starting_timestamp is not None
        and ending_timestamp is not None
        and parse_timestamp(starting_timestamp) > parse_timestamp(ending_timestamp)
    ):
        raise InvalidArgument(
            f"the changes end at {ending_timestamp}, before they start at {starting_timestamp}"
        )


_MAX_ROWS = 1_000_000
"""Maximum number of row changes to compare; a commit with more counts as changing every column."""

_COUNT = "__count"


def changes_columns(store: ObjectStore, commit: CommitSummary, columns: Sequence[str]) -> bool:
    """False if a commit only updated rows, and these columns are unchanged in all of them.

    Inserted or deleted rows change every column; so do updates that the change data feed does not
    record. The log does not pair the rows before and after an update: columns count as unchanged if
    the rows can be paired so that none of them differs.
    """
    if not commit.change_files:
        return True
    snapshot = Snapshot.load(store, version=commit.version)
    wanted = resolve_columns(snapshot.schema, columns)
    feed = ChangeDataFeed(snapshot, commit.version, [*snapshot.schema.names, CHANGE_TYPE_COLUMN])
    try:
        rows = _read_some(feed)
    except DataFileMissing:
        return True
    if rows is None:
        return True
    types = rows[CHANGE_TYPE_COLUMN]
    if not pc.all(pc.match_substring(types, "update_"), min_count=0).as_py():
        return True
    signs = pc.if_else(pc.equal(types, "update_postimage"), 1, -1)
    rows = rows.append_column(_COUNT, signs.cast(pa.int64()))
    same = [name for name in snapshot.schema.names if _is_balanced(rows, [name])]
    return not (set(wanted) <= set(same) and _is_balanced(rows, same))


def _read_some(feed: ChangeDataFeed) -> pa.Table | None:
    """The rows as a `pa.Table`, or None if there are too many."""
    batches, count = [], 0
    reader = feed.to_batches()
    for batch in reader:
        count += batch.num_rows
        if count > _MAX_ROWS:
            return None
        batches.append(batch)
    return pa.Table.from_batches(batches, reader.schema)


def _is_balanced(rows: pa.Table, names: Sequence[str]) -> bool:
    """Whether each combination of values in these columns occurs equally often before and after."""
    if any(pa.types.is_nested(rows.schema.field(name).type) for name in names):
        # Values of nested types cannot be grouped.
        return False
    counted = rows.group_by(list(names)).aggregate([(_COUNT, "sum")])
    balance = counted[f"{_COUNT}_sum"]
    return bool(pc.all(pc.equal(balance, 0), min_count=0).as_py())
