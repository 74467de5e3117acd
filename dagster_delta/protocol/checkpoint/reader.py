"""Parquet files of a checkpoint, read column by column.

Only requested columns are decoded, in batches, so that a checkpoint of a million files costs the
memory of the columns in use. Writers omit different columns and spell types differently: missing
values read as null.

Spec: Checkpoints; Checkpoint Schema.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import accumulate
from typing import TYPE_CHECKING, Any

import msgspec
import pyarrow as pa

import dagster_delta.arrow_compute as pc
from dagster_delta.cached_property import cached_property
from dagster_delta.errors import CorruptLog, MemoryExhausted, UnsupportedFeature
from dagster_delta.memory_limits import CHECKPOINT_BYTES_VARIABLE
from dagster_delta.parquet_format.footer import ParquetFooter, read_footer
from dagster_delta.parquet_format.reader import (
    FETCHED_BYTES,
    column_ranges,
    open_parquet_reader,
    storage_failure,
)
from dagster_delta.protocol.log.commit_file import CheckpointLine, TableActions
from dagster_delta.protocol.log.replay import DELETION_VECTOR_SOURCES
from dagster_delta.protocol.values.arrow_columns import chunks_where, struct_column
from dagster_delta.protocol.wire_values import DECODING_ERRORS
from dagster_delta.split_by_size import split_by_size

if TYPE_CHECKING:
    import pyarrow.parquet as pq

_MAY_BE_NULL = ("offset",)

_CORRUPTION = (pa.ArrowException, OSError, *DECODING_ERRORS)

# The column whose presence makes a row an action of that kind.
_MARKERS = {
    "protocol": "minReaderVersion",
    "metaData": "id",
    "txn": "appId",
    "domainMetadata": "domain",
    "sidecar": "path",
}

_BATCH_ROWS = 65_536
# From this many rows on, several columns are decoded by several threads.
_MANY_ROWS = 262_144
# Actions that are not about files have many columns, nearly all of them null.
_TABLE_ACTION_BATCH_ROWS = 16_384
_READ_BUFFER_BYTES = 1024 * 1024
# A file of 16 MiB or more is decoded in batches of the usual size. The batches of a smaller file
# would hold so many of its rows that the limit is noticed too late.
_FILE_BYTES_PER_ROW = 256
_FEWEST_ROWS = 1024


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
    def _size_and_footer(self) -> tuple[int, ParquetFooter]:
        with corruption_named(self.path), self._open_input() as source:
            return source.size(), read_footer(source)

    @property
    def _parquet_metadata(self) -> pq.FileMetaData:
        return self._size_and_footer[1].metadata

    def kept_bytes(self) -> KeptBytes:
        """Counts what one read of the file keeps."""
        size_bytes, _ = self._size_and_footer
        limit = None if self._max_bytes is None else self._max_bytes(size_bytes)
        return KeptBytes(limit, self.path, size_bytes=size_bytes, num_rows=self.num_rows)

    @cached_property
    def schema(self) -> pa.Schema:
        """The `pa.Schema` of the file."""
        with corruption_named(self.path):
            return self._parquet_metadata.schema.to_arrow_schema()

    @cached_property
    def _leaf_indices(self) -> Mapping[str, int]:
        schema = self._parquet_metadata.schema
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
        return int(self._parquet_metadata.num_rows)

    def has(self, *path: str) -> bool:
        """Whether the file has a column at this path of names."""
        return has_column(self.schema, path)

    def read_table_actions(self) -> TableActions:
        """Protocol, metadata, transactions, domains and sidecars."""
        found = TableActions()
        with corruption_named(self.path):
            for kind, action in self._table_actions():
                found.add(msgspec.convert({kind: action}, CheckpointLine))
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
                try:
                    actions = column.to_pylist(maps_as_pydicts="lossy")
                except TypeError as error:
                    raise pa.ArrowInvalid("the keys of a map are nested") from error
                for action in actions:
                    yield kind, _without_nulls(action)
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
            _, footer = self._size_and_footer
            for group, known in enumerate(footer.statistics.of(index)):
                if known.null_count is None:
                    return None
                total += self._parquet_metadata.row_group(group).num_rows - known.null_count
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

    def kept_table(self, schema: pa.Schema, batches: Iterable[pa.Table]) -> pa.Table:
        """What one read of the file keeps, as one `pa.Table`."""
        kept, found = self.kept_bytes(), [pa.Table.from_batches([], schema)]
        for table in batches:
            kept.add([table])
            found.append(table)
        return pa.concat_tables(found)

    def batches(self, columns: Sequence[str], rows: int = _BATCH_ROWS) -> Iterator[pa.RecordBatch]:
        """All rows as `pa.RecordBatch`es, decoded one at a time.

        Columns are paths of names, joined by dots; all existing columns at and below them are read.
        """
        if self.num_rows == 0:
            return
        leaves = self._leaves_of(columns)
        rows = min(rows, max(_FEWEST_ROWS, self._size_and_footer[0] // _FILE_BYTES_PER_ROW))

        def fetched_bytes(group: int) -> int:
            columns = self._parquet_metadata.row_group(group)
            some = leaves if self._is_remote else ()
            return sum(columns.column(leaf).total_compressed_size for leaf in some)

        groups = range(int(self._parquet_metadata.num_row_groups))
        # A run is fetched before it is decoded: a large file is never in memory as a whole.
        runs = list(split_by_size(groups, fetched_bytes, self._fetched_bytes))
        # For little work, a thread costs more than it saves.
        is_large = len(leaves) > 1 and self.num_rows >= _MANY_ROWS
        expected = sum(
            self._parquet_metadata.row_group(group).num_rows for run in runs for group in run
        )
        missing = expected
        with corruption_named(self.path):
            for run, source in self._open_runs(runs, leaves):
                reader = open_parquet_reader(
                    source,
                    metadata=self._parquet_metadata,
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

    def _open_runs(
        self, runs: list[list[int]], leaves: list[int]
    ) -> Iterator[tuple[list[int], pa.NativeFile]]:
        """Runs of row groups, and the file: with what is read of them in memory, if possible."""
        if self._open_ranges is None or not leaves:
            with self._open_input() as source:
                yield from ((run, source) for run in runs)
            return
        for run in runs:
            ranges = [
                part
                for group in run
                for part in column_ranges(self._parquet_metadata, group, leaves)
            ]
            with self._open_ranges(ranges, self._size_and_footer[0]) as source:
                yield run, source

    def _leaves_of(self, columns: Sequence[str]) -> list[int]:
        """Indexes of the Parquet columns at and below some paths."""
        wanted = set(columns)
        return [
            index
            for path, index in self._leaf_indices.items()
            if not wanted.isdisjoint(accumulate(path.split("."), "{}.{}".format))
        ]


class KeptBytes:
    """Adds up the arrays that one read of a file, or of several, keeps: a few bytes of Parquet can
    list millions of files, or repeat one long path millions of times.

    Beyond the limit, in bytes, it raises UnsupportedFeature.
    """

    def __init__(self, limit: int | None, path: str, *, size_bytes: int, num_rows: int) -> None:
        self.limit = limit
        self.path = path
        self.size_bytes = size_bytes
        self.num_rows = num_rows
        self._kept = 0

    @classmethod
    def of_all(cls, parts: Sequence[KeptBytes]) -> KeptBytes:
        """What is kept of several files together, named after the first one."""
        limits = [part.limit for part in parts if part.limit is not None]
        return cls(
            sum(limits) if limits else None,
            parts[0].path if parts else "",
            size_bytes=sum(part.size_bytes for part in parts),
            num_rows=sum(part.num_rows for part in parts),
        )

    def add(self, arrays: Sequence[pa.Table | pa.Array]) -> None:
        """Count `pa.Array`s or `pa.Table`s."""
        if self.limit is None:
            return
        self._kept += sum(array.nbytes for array in arrays)
        if self._kept > self.limit:
            raise UnsupportedFeature(
                f"The {self.num_rows} rows of the checkpoint take more than {self.limit} bytes "
                f"of memory, and the file has {self.size_bytes} bytes: it is damaged or hostile, "
                f"or {CHECKPOINT_BYTES_VARIABLE} has to be set to a larger number of bytes",
                file=self.path,
            )


@contextmanager
def corruption_named(path: str) -> Iterator[None]:
    """In this block, errors of Parquet and of typed decoding become CorruptLog, and storage errors
    during a read by Arrow become StorageFailure.
    """
    try:
        yield
    except (MemoryExhausted, pa.ArrowCancelled):
        raise
    except MemoryError as error:
        raise MemoryExhausted.of_file(error, file=path) from error
    except _CORRUPTION as error:
        failure = storage_failure(error, file=path)
        if failure is not None:
            raise failure from error
        is_gone = isinstance(error, FileNotFoundError)
        reason = "it was removed meanwhile" if is_gone else "the file is cut or damaged"
        raise CorruptLog(
            f"The checkpoint cannot be read ({error}): {reason}; restore it from a copy, or open "
            "an older version",
            file=path,
        ) from error


def has_column(data_type: pa.Schema | pa.DataType, path: Sequence[str]) -> bool:
    """Whether a `pa.Schema` or a `pa.StructType` has a column at a path of names."""
    for name in path:
        if not isinstance(data_type, pa.Schema) and not pa.types.is_struct(data_type):
            return False
        if data_type.get_field_index(name) < 0:
            return False
        data_type = data_type.field(name).type
    return True


def conform(values: pa.Array, data_type: pa.DataType) -> pa.Array:
    """The column as `data_type`, for any type that writers of checkpoints use.

    ArrowInvalid or ArrowNotImplementedError: the values are of another type.
    """
    if values.type == data_type and not pa.types.is_struct(data_type):
        return values
    if values.null_count == len(values):
        return pa.nulls(len(values), data_type)
    if pa.types.is_dictionary(values.type):
        return conform(values.dictionary_decode(), data_type)
    if pa.types.is_struct(data_type):
        return _conform_deletion_vector(values, data_type)
    return pc.cast(values, data_type)


def required(values: pa.Array | pa.ChunkedArray, name: str) -> pa.Array | pa.ChunkedArray:
    """The column itself, if it has no null."""
    if values.null_count:
        raise pa.ArrowInvalid(f"{values.null_count} of {len(values)} values of {name} are missing")
    return values


def _conform_deletion_vector(values: pa.StructArray, data_type: pa.DataType) -> pa.StructArray:
    stored = zip(DELETION_VECTOR_SOURCES.values(), (item.type for item in data_type), strict=True)
    children = pc.cast(values, pa.struct(stored)).flatten()
    # Some writers write a struct of nulls for a missing vector.
    present = pc.is_valid(children[0])
    for item, child in zip(data_type, children, strict=True):
        found = pc.filter(child, present)
        if item.name not in _MAY_BE_NULL:
            required(found, DELETION_VECTOR_SOURCES[item.name])
        if pa.types.is_integer(item.type) and (pc.min(found).as_py() or 0) < 0:
            raise pa.ArrowInvalid(
                f"{DELETION_VECTOR_SOURCES[item.name]} of a deletion vector is negative"
            )
    return struct_column(children, data_type, pc.invert(present))


def _without_nulls(value: Any) -> Any:  # noqa: ANN401
    if not isinstance(value, dict):
        return value
    return {name: _without_nulls(item) for name, item in value.items() if item is not None}
