"""Parquet files of a checkpoint, read column by column.

Only requested columns are decoded, in batches, so that a checkpoint of a million files costs the
memory of the columns in use. Writers omit different columns and spell types differently: missing
values read as null.

Spec: Checkpoints; Checkpoint Schema.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import accumulate
from typing import TYPE_CHECKING

import msgspec
import pyarrow as pa

import dagster_delta.arrow_compute as pc
from dagster_delta.cached_property import cached_property
from dagster_delta.protocol.actions import (
    DomainMetadata,
    Metadata,
    Protocol,
    SetTransaction,
    SidecarFile,
)
from dagster_delta.protocol.checkpoint.columns import (
    conform,
    corruption_named,
    has_column,
    plain_value,
)
from dagster_delta.protocol.checkpoint.kept_bytes import (
    KeptBytes,
    rows_at_once,
)
from dagster_delta.protocol.checkpoint.parquet_footer import ParquetFooter, read_footer
from dagster_delta.protocol.checkpoint.parquet_reader import (
    FETCHED_BYTES,
    column_ranges,
    open_parquet_reader,
    row_group_runs,
)
from dagster_delta.protocol.log.commit_file import LenientDomainMetadata, LenientMetadata
from dagster_delta.protocol.log.replay import TOMBSTONE_SCHEMA
from dagster_delta.protocol.values.arrow_columns import chunks_where

if TYPE_CHECKING:
    import pyarrow.parquet as pq

ADD_SOURCES: Mapping[str, str] = {
    "path": "path",
    "partition_values": "partitionValues",
    "size_bytes": "size",
    "modification_time_ms": "modificationTime",
    "stats": "stats",
    "deletion_vector": "deletionVector",
    "base_row_id": "baseRowId",
    "default_row_commit_version": "defaultRowCommitVersion",
    "tags": "tags",
    "clustering_provider": "clusteringProvider",
}
"""Position of each column of LIVE_FILE_SCHEMA in the `add` struct."""

REMOVE_SOURCES: Mapping[str, str] = {
    "path": "path",
    "deletion_timestamp_ms": "deletionTimestamp",
    "data_change": "dataChange",
    "extended_file_metadata": "extendedFileMetadata",
    "partition_values": "partitionValues",
    "size_bytes": "size",
    "stats": "stats",
    "tags": "tags",
    "deletion_vector": "deletionVector",
    "base_row_id": "baseRowId",
    "default_row_commit_version": "defaultRowCommitVersion",
}
"""Position of each column of TOMBSTONE_SCHEMA in the `remove` struct."""

# The column whose presence makes a row an action of that kind.
_MARKERS = {
    "protocol": "minReaderVersion",
    "metaData": "id",
    "txn": "appId",
    "domainMetadata": "domain",
    "sidecar": "path",
}

_NO_REMOVES = pa.Table.from_batches([], TOMBSTONE_SCHEMA)

_BATCH_ROWS = 65_536
# From this many rows on, several columns are decoded by several threads.
_MANY_ROWS = 262_144
# Actions that are not about files have many columns, nearly all of them null.
_TABLE_ACTION_BATCH_ROWS = 16_384
_READ_BUFFER_BYTES = 1024 * 1024


class TableActions(msgspec.Struct):
    """The actions of a checkpoint that are not about files."""

    protocol: Protocol | None = None
    metadata: Metadata | None = None
    txns: dict[str, SetTransaction] = msgspec.field(default_factory=dict)
    domain_metadata: dict[str, DomainMetadata] = msgspec.field(default_factory=dict)
    sidecars: list[SidecarFile] = msgspec.field(default_factory=list)

    def take(self, other: TableActions) -> None:
        """Add the actions of another file of the same checkpoint."""
        self.protocol = other.protocol or self.protocol
        self.metadata = other.metadata or self.metadata
        self.txns |= other.txns
        self.domain_metadata |= other.domain_metadata
        self.sidecars += other.sidecars


class CheckpointPart:
    """One Parquet file of a checkpoint: the classic file, a part, a V2 manifest or a sidecar.

    If it is remote, a read costs a round trip, so that columns are fetched whole, `fetched_bytes`
    at a time; otherwise they are streamed, because a checkpoint often has one row group as large as
    the table. `open_ranges` opens it with some ranges (offset, length) in memory. `max_bytes` gives
    the memory limit for the columns of one read by the size of the file; None for no limit.
    """

    def __init__(
        self,
        open_input: Callable[[], pa.NativeFile],
        path: str,
        *,
        is_remote: bool = False,
        open_ranges: Callable[[Sequence[tuple[int, int]], int], pa.NativeFile] | None = None,
        max_bytes: Callable[[int], int] | None = None,
        fetched_bytes: int = FETCHED_BYTES,
    ) -> None:
        self._open_input = open_input
        self.path = path
        self._is_remote = is_remote
        self._open_ranges = open_ranges
        self._max_bytes = max_bytes
        self._fetched_bytes = fetched_bytes

    @cached_property
    def _footer(self) -> tuple[int, ParquetFooter]:
        with corruption_named(self.path), self._open_input() as source:
            return source.size(), read_footer(source)

    @property
    def _metadata(self) -> pq.FileMetaData:
        return self._footer[1].metadata

    def kept_bytes(self) -> KeptBytes:
        """Counts what one read of the file keeps."""
        size_bytes, _ = self._footer
        limit = None if self._max_bytes is None else self._max_bytes(size_bytes)
        return KeptBytes(limit, self.path, size_bytes=size_bytes, num_rows=self.num_rows)

    @cached_property
    def schema(self) -> pa.Schema:
        """The `pa.Schema` of the file."""
        with corruption_named(self.path):
            return self._metadata.schema.to_arrow_schema()

    @cached_property
    def _leaf_indices(self) -> Mapping[str, int]:
        schema = self._metadata.schema
        with corruption_named(self.path):
            return {schema.column(index).path: index for index in range(len(schema))}

    def check_footer(self) -> None:
        """Read the footer. Raises CorruptLog if it is damaged."""
        _ = self.schema, self.num_adds

    def check_pages(self) -> None:
        """Decode every page of the file and verify its checksum. Raises CorruptLog."""
        for _ in self.batches(sorted({path.split(".")[0] for path in self._leaf_indices})):
            pass

    @property
    def num_rows(self) -> int:
        """Rows of the file, of all kinds of actions."""
        return int(self._metadata.num_rows)

    @property
    def num_row_groups(self) -> int:
        """Row groups of the file."""
        return int(self._metadata.num_row_groups)

    def has(self, *path: str) -> bool:
        """Whether the file has a column at this path of names."""
        return has_column(self.schema, path)

    def read_table_actions(self) -> TableActions:
        """Protocol, metadata, transactions, domains and sidecars."""
        found = TableActions()
        with corruption_named(self.path):
            for kind, action in self._table_actions():
                _take_table_action(found, kind, action)
        return found

    def _table_actions(self) -> Iterator[tuple[str, object]]:
        # The number of rows of each kind according to the footer; None if it does not record it.
        expected = {kind: self.num_values(kind, marker) for kind, marker in _MARKERS.items()}
        wanted = {kind for kind, count in expected.items() if count != 0}
        if not wanted:
            return
        kept = self.kept_bytes()
        for batch in self.batches(sorted(wanted), _TABLE_ACTION_BATCH_ROWS):
            markers = {
                kind: pc.is_valid(pc.struct_field(batch.column(kind), _MARKERS[kind]))
                for kind in wanted
            }
            for kind, present in markers.items():
                column = pc.filter(batch.column(kind), present)
                kept.add([column])
                for action in column.to_pylist():
                    yield kind, plain_value(action, column.type)
                remaining = expected[kind]
                if remaining is not None:
                    expected[kind] = remaining - len(column)
            # They are few among a million rows, often at the beginning.
            if all(remaining == 0 for remaining in expected.values()):
                return

    @property
    def num_adds(self) -> int:
        """Number of adds, or of rows if the footer does not record it."""
        known = self.num_values("add", "path")
        return self.num_rows if known is None else known

    def num_values(self, *path: str) -> int | None:
        """Number of rows with a value at the path of a leaf column; None if the footer does not
        record it.
        """
        if not self.has(*path):
            return 0
        index, total = self._leaf_indices.get(".".join(path)), 0
        if index is None:
            # A column that other writers write as a single value is nested here.
            return None
        with corruption_named(self.path):
            _, footer = self._footer
            for group, known in enumerate(footer.statistics.of(index)):
                if known.null_count is None:
                    return None
                total += self._metadata.row_group(group).num_rows - known.null_count
        return total

    def add_rows(self) -> tuple[pa.BooleanArray, list[pa.Array]]:
        """Which rows are adds, and their paths.

        A `pa.BooleanArray` over all rows, and the chunks of a string column over the adds.
        """
        if not self.has("add", "path"):
            return pc.fill_null(pa.nulls(self.num_rows, pa.bool_()), False), []
        masks, paths, kept = [], [], self.kept_bytes()
        with corruption_named(self.path):
            for batch in self.batches(["add.path"]):
                path = conform(pc.struct_field(batch.column("add"), "path"), pa.string())
                present = pc.is_valid(path)
                masks.append(present)
                found = chunks_where(path, present)
                kept.add(found)
                paths += found
        return pa.chunked_array(masks, pa.bool_()).combine_chunks(), paths

    def may_have_values(self, source: str) -> bool:
        """Whether any add may have a value there, according to the schema and the footer."""
        # A deletion vector is a struct, of which the footer counts the parts alone.
        part = ("storageType",) if self.has("add", source, "storageType") else ()
        return self.num_values("add", source, *part) != 0

    def read_removes(self) -> pa.Table:
        """A `pa.Table` of TOMBSTONE_SCHEMA: every remove."""
        kept, tables = self.kept_bytes(), [_NO_REMOVES]
        for table in self.remove_batches():
            kept.add([table])
            tables.append(table)
        return pa.concat_tables(tables)

    def remove_batches(self) -> Iterator[pa.Table]:
        """Every remove, in `pa.Table`s of TOMBSTONE_SCHEMA that are decoded one at a time."""
        if not self.has("remove", "path") or self.num_values("remove", "path") == 0:
            return
        sources = [source for source in REMOVE_SOURCES.values() if self.has("remove", source)]
        with corruption_named(self.path):
            for batch in self.batches([f"remove.{source}" for source in sources]):
                structs = batch.column("remove")
                present = pc.is_valid(pc.struct_field(structs, "path"))
                if present.true_count:
                    yield _removes(structs, present, sources)

    def batches(
        self, columns: Sequence[str], rows: int = _BATCH_ROWS, share: tuple[int, int] = (0, 1)
    ) -> Iterator[pa.RecordBatch]:
        """All rows as `pa.RecordBatch`es, decoded one at a time.

        Columns are paths of names, joined by dots; all existing columns at and below them are read.
        `share` is (i, n) for the row groups i, i + n, ... of the file.
        """
        if self.num_rows == 0:
            return
        leaves = self._leaves_of(columns)
        rows = rows_at_once(rows, self._footer[0])
        runs = row_group_runs(
            self._metadata, leaves, is_fetched=self._is_remote, max_bytes=self._fetched_bytes
        )
        number, count = share
        runs = [[group for group in run if group % count == number] for run in runs]
        runs = [run for run in runs if run]
        # For little work, a thread costs more than it saves.
        is_large = len(leaves) > 1 and self.num_rows >= _MANY_ROWS
        expected = sum(self._metadata.row_group(group).num_rows for run in runs for group in run)
        missing = expected
        with corruption_named(self.path):
            for run, source in self._sources(runs, leaves):
                reader = open_parquet_reader(
                    source,
                    metadata=self._metadata,
                    buffer_size=_READ_BUFFER_BYTES,
                    page_checksum_verification=True,
                    pre_buffer=self._is_remote,
                )
                for batch in reader.iter_batches(rows, run, leaves, use_threads=is_large):
                    missing -= batch.num_rows
                    yield batch
            # Arrow skips pages of an unknown kind, also if damage made them so.
            if missing:
                raise pa.ArrowInvalid(f"{missing} of {expected} rows are missing")

    def _sources(
        self, runs: list[list[int]], leaves: list[int]
    ) -> Iterator[tuple[list[int], pa.NativeFile]]:
        """Runs of row groups, and the file: with what is read of them in memory, if possible."""
        if self._open_ranges is None or not leaves:
            with self._open_input() as source:
                yield from ((run, source) for run in runs)
            return
        for run in runs:
            ranges = [
                part for group in run for part in column_ranges(self._metadata, group, leaves)
            ]
            with self._open_ranges(ranges, self._footer[0]) as source:
                yield run, source

    def _leaves_of(self, columns: Sequence[str]) -> list[int]:
        """Indexes of the Parquet columns at and below some paths."""
        wanted = set(columns)
        return [
            index
            for path, index in self._leaf_indices.items()
            if not wanted.isdisjoint(accumulate(path.split("."), "{}.{}".format))
        ]


def _removes(structs: pa.StructArray, present: pa.BooleanArray, sources: Sequence[str]) -> pa.Table:
    columns = []
    for wanted in TOMBSTONE_SCHEMA:
        if REMOVE_SOURCES[wanted.name] not in sources:
            columns.append(pa.nulls(present.true_count, wanted.type))
            continue
        values = pc.filter(pc.struct_field(structs, REMOVE_SOURCES[wanted.name]), present)
        columns.append(conform(values, wanted.type))
    return pa.Table.from_arrays(columns, schema=TOMBSTONE_SCHEMA)


def _take_table_action(found: TableActions, kind: str, action: object) -> None:
    match kind:
        case "protocol":
            found.protocol = msgspec.convert(action, Protocol)
        case "metaData":
            found.metadata = msgspec.convert(action, LenientMetadata).strict()
        case "txn":
            txn = msgspec.convert(action, SetTransaction)
            found.txns[txn.app_id] = txn
        case "domainMetadata":
            domain = msgspec.convert(action, LenientDomainMetadata).strict()
            found.domain_metadata[domain.domain] = domain
        case _:
            found.sidecars.append(msgspec.convert(action, SidecarFile))
