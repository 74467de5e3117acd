"""Writing rows as Parquet data files under a table root, split by partition, with statistics.

Memory is bounded: rows wait per partition until they fill a row group or the common budget, and
only a limited number of files is open at once.

Spec: Data Files; Add File and Remove File; Partition Values.
"""

from __future__ import annotations

import logging
import secrets
import time
import uuid
from collections import OrderedDict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from dagster_delta.engines.engine import Clock, WriteResult, WriteSpec
from dagster_delta.engines.file_statistics import FileStatistics, StatisticsLayout
from dagster_delta.engines.nested_arrays import rename_nested
from dagster_delta.engines.parquet_encodings import choose_encodings
from dagster_delta.engines.partition_split import PartitionKey, split_by_partition
from dagster_delta.errors import UnsupportedFeature
from dagster_delta.protocol.actions import AddFile
from dagster_delta.protocol.column_mapping import physical_arrow_schema
from dagster_delta.protocol.partition_values import encode_path, partition_directory
from dagster_delta.protocol.schema import DataType, PrimitiveType, StructType, walk_fields
from dagster_delta.protocol.table_configuration import TableConfiguration
from dagster_delta.storage.object_store import ObjectStore

__all__ = ["write_data_files"]

_LOG = logging.getLogger(__name__)

ROW_GROUP_ROWS = 1_000_000
ROW_GROUP_BYTES = 64 * 1024 * 1024
"""Arrow bytes of the rows that make one row group."""
BUFFER_BYTES = 256 * 1024 * 1024
"""Arrow bytes of rows that may wait in all partitions together."""

_CODECS = {"none": "none", "uncompressed": "none", "lz4_raw": "lz4"}
_EXTENSIONS = {"none": "", "gzip": ".gz"}
_LEVELLED_CODECS = frozenset({"zstd", "gzip", "brotli"})
_MATERIALIZING_FEATURES = ("icebergCompatV1", "icebergCompatV2", "materializePartitionColumns")


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


def write_data_files(
    batches: Iterable[pa.RecordBatch],
    schema: pa.Schema,
    spec: WriteSpec,
    store: ObjectStore,
    *,
    clock: Clock = _now_ms,
    new_uuid: Callable[[], uuid.UUID] = uuid.uuid4,
) -> WriteResult:
    """Write the rows and return an add action for each file; no log entry is written.

    Args:
        batches: record batches of `schema`.
        schema: `pyarrow.Schema` of the table's logical schema, partition columns included.
        spec: where and how to write.
        store: store of the table.
        clock: gives the modification time of the files.
        new_uuid: makes the names of the files unique.

    Raises:
        UnsupportedFeature: a column type cannot be written.
        StorageFailure: the store refused or failed. Whatever is raised, files already written by
            this call are deleted as far as the store lets it.
    """
    job = _WriteJob.plan(schema, spec, store, clock, new_uuid)
    try:
        for batch in batches:
            job.add(batch)
        job.finish()
    except BaseException:
        job.abandon()
        raise
    files = tuple(job.written)
    return WriteResult(files, job.num_rows, sum(each.size_bytes for each in files))


@dataclass(frozen=True, slots=True)
class _FileFormat:
    """What all files of one job have in common."""

    spec: WriteSpec
    file_schema: Any
    """pyarrow.Schema: physical names, ids, everything nullable."""
    sort_keys: tuple[tuple[str, str], ...]
    layout: StatisticsLayout
    codec: str

    @classmethod
    def of(cls, spec: WriteSpec, file_schema: StructType) -> _FileFormat:
        configuration = spec.configuration
        asked = configuration.properties.parquet_compression_codec or spec.compression
        physical = physical_arrow_schema(file_schema, configuration.column_mapping_mode)
        return cls(
            spec=spec,
            file_schema=pa.schema([_relax(each) for each in physical]),
            sort_keys=tuple(
                (configuration.physical_name(each), "ascending") for each in spec.sort_by
            ),
            layout=StatisticsLayout.of(configuration, file_schema),
            codec=_CODECS.get(asked, asked),
        )

    @property
    def extension(self) -> str:
        return _EXTENSIONS.get(self.codec, f".{self.codec}") + ".parquet"

    def writer_options(self, rows: pa.Table) -> dict[str, Any]:
        encodings = choose_encodings(rows)
        levelled = self.codec == self.spec.compression and self.codec in _LEVELLED_CODECS
        return {
            "compression": self.codec,
            "compression_level": self.spec.compression_level if levelled else None,
            "use_dictionary": list(encodings.dictionary) or False,
            "column_encoding": dict.fromkeys(encodings.delta_packed, "DELTA_BINARY_PACKED"),
            # Decimals of up to 18 digits as integers: smaller, faster, and what Spark writes.
            "store_decimal_as_integer": True,
            "store_schema": False,
        }


def _relax(field_: Any) -> Any:
    """The Arrow field as nullable, at every depth.

    NOT NULL is checked before; Parquet would also count the hidden children of null structs.
    """
    return pa.field(field_.name, _relax_type(field_.type), True, field_.metadata)


def _relax_type(arrow_type: Any) -> Any:
    if pa.types.is_struct(arrow_type):
        return pa.struct([_relax(each) for each in arrow_type])
    if pa.types.is_map(arrow_type):
        key = arrow_type.key_field
        return pa.map_(key.with_type(_relax_type(key.type)), _relax(arrow_type.item_field))
    if pa.types.is_list(arrow_type):
        return pa.list_(_relax(arrow_type.value_field))
    return arrow_type


@dataclass(slots=True)
class _OpenFile:
    """A data file that is being written."""

    path: str
    sink: Any
    writer: Any
    statistics: FileStatistics
    footers: list[Any]

    @classmethod
    def begin(cls, path: str, format_: _FileFormat, store: ObjectStore, rows: Any) -> _OpenFile:
        import pyarrow.parquet as pq

        sink = store.open_output(path)
        footers: list[Any] = []
        writer = pq.ParquetWriter(
            sink,
            format_.file_schema,
            metadata_collector=footers,
            **format_.writer_options(rows),
        )
        return cls(path, sink, writer, FileStatistics(format_.layout), footers)

    def write(self, rows: Any) -> None:
        self.statistics.observe(rows)
        self.writer.write_table(rows, row_group_size=rows.num_rows)

    @property
    def size_bytes(self) -> int:
        return int(self.sink.tell())

    def close(self) -> tuple[int, str]:
        """Size in bytes and statistics of the finished file."""
        self.writer.close()
        size_bytes = self.size_bytes
        self.sink.close()
        return size_bytes, self.statistics.to_json(self.footers[0])

    def discard(self) -> None:
        """Give the file up; where the store publishes on close, nothing appears."""
        self.sink.__exit__(GeneratorExit, GeneratorExit(), None)


@dataclass(slots=True)
class _Partition:
    """The rows of one partition that wait to be written, and its open file."""

    key: PartitionKey
    waiting: list[Any] = field(default_factory=list)
    waiting_rows: int = 0
    waiting_bytes: int = 0
    open_file: _OpenFile | None = None

    def add(self, batch: Any) -> None:
        self.waiting.append(batch)
        self.waiting_rows += batch.num_rows
        self.waiting_bytes += batch.nbytes

    def take(self, schema: Any) -> Any:
        rows = pa.Table.from_batches(self.waiting, schema)
        self.waiting, self.waiting_rows, self.waiting_bytes = [], 0, 0
        return rows


@dataclass(slots=True)
class _WriteJob:
    """One call of `write_data_files`."""

    format: _FileFormat
    store: ObjectStore
    clock: Clock
    new_uuid: Callable[[], uuid.UUID]
    partition_columns: list[tuple[int, DataType]]
    physical_partition_names: tuple[str, ...]
    file_columns: list[int]
    """Positions of the columns that go into the files."""
    written: list[AddFile] = field(default_factory=list)
    num_rows: int = 0
    _paths: list[str] = field(default_factory=list)
    """Every file that was begun, to be deleted after an error."""
    _partitions: dict[PartitionKey, _Partition] = field(default_factory=dict)
    _open: OrderedDict[PartitionKey, _Partition] = field(default_factory=OrderedDict)
    """Partitions with an open file, least recently written first."""
    _waiting_bytes: int = 0

    @classmethod
    def plan(
        cls,
        schema: Any,
        spec: WriteSpec,
        store: ObjectStore,
        clock: Clock,
        new_uuid: Callable[[], uuid.UUID],
    ) -> _WriteJob:
        configuration = spec.configuration
        file_schema = _file_schema(configuration)
        position = {name: index for index, name in enumerate(schema.names)}
        return cls(
            format=_FileFormat.of(spec, file_schema),
            store=store,
            clock=clock,
            new_uuid=new_uuid,
            partition_columns=[
                (position[each.name], each.data_type) for each in configuration.partition_schema
            ],
            physical_partition_names=configuration.physical_partition_columns,
            file_columns=[position[each.name] for each in file_schema],
        )

    def add(self, batch: Any) -> None:
        """Take the rows of a batch, and write what has become enough for a row group."""
        self.num_rows += batch.num_rows
        for key, rows in split_by_partition(batch, self.partition_columns):
            if not rows.num_rows:
                continue
            partition = self._partitions.setdefault(key, _Partition(key))
            before = partition.waiting_bytes
            partition.add(self._to_file_columns(rows))
            self._waiting_bytes += partition.waiting_bytes - before
            if self._is_due(partition):
                self._flush(partition)
        while self._waiting_bytes > BUFFER_BYTES:
            self._flush(max(self._partitions.values(), key=lambda each: each.waiting_bytes))

    def finish(self) -> None:
        """Write what waits and close every file."""
        for partition in list(self._partitions.values()):
            if partition.waiting_rows:
                self._flush(partition)
            if partition.open_file is not None:
                self._close(partition)

    def abandon(self) -> None:
        """Remove what was written, as far as the store lets us: nothing refers to it."""
        try:
            for partition in self._open.values():
                if partition.open_file is not None:
                    partition.open_file.discard()
            self.store.delete(self._paths)
        except Exception:  # noqa: BLE001
            # The error that brought us here matters more; VACUUM finds what is left.
            _LOG.warning(
                "%d unreferenced data files may be left in %s",
                len(self._paths),
                self.store.location.uri,
                exc_info=True,
            )

    def _to_file_columns(self, rows: Any) -> Any:
        schema = self.format.file_schema
        columns = [
            rename_nested(rows.column(index), field_.type)
            for index, field_ in zip(self.file_columns, schema, strict=True)
        ]
        return pa.RecordBatch.from_arrays(columns, schema=schema)

    def _is_due(self, partition: _Partition) -> bool:
        if self.format.sort_keys:
            # A file is sorted as a whole, so its rows wait together.
            return partition.waiting_bytes >= self.format.spec.target_file_size_bytes
        return (
            partition.waiting_rows >= ROW_GROUP_ROWS or partition.waiting_bytes >= ROW_GROUP_BYTES
        )

    def _flush(self, partition: _Partition) -> None:
        self._waiting_bytes -= partition.waiting_bytes
        rows = partition.take(self.format.file_schema)
        if self.format.sort_keys:
            rows = rows.sort_by(list(self.format.sort_keys))
        if partition.open_file is None:
            partition.open_file = self._open_file(partition, rows)
        self._open[partition.key] = partition
        self._open.move_to_end(partition.key)
        for start in range(0, rows.num_rows, ROW_GROUP_ROWS):
            partition.open_file.write(rows.slice(start, ROW_GROUP_ROWS))
        is_full = partition.open_file.size_bytes >= self.format.spec.target_file_size_bytes
        if is_full or self.format.sort_keys:
            self._close(partition)

    def _open_file(self, partition: _Partition, rows: Any) -> _OpenFile:
        while len(self._open) >= max(1, self.format.spec.max_open_partitions):
            self._close(next(iter(self._open.values())))
        path = self._new_path(partition.key)
        self._paths.append(path)
        return _OpenFile.begin(path, self.format, self.store, rows)

    def _new_path(self, key: PartitionKey) -> str:
        name = f"part-{len(self._paths):05d}-{self.new_uuid()}-c000{self.format.extension}"
        configuration = self.format.spec.configuration
        properties = configuration.properties
        # Spec: under column mapping partition directories would show physical names; Spark puts
        # files below random prefixes there.
        if properties.randomize_file_prefixes or configuration.column_mapping_mode != "none":
            return f"{_random_prefix(properties.random_prefix_length)}/{name}"
        if not key:
            return name
        directory = partition_directory(dict(zip(self.physical_partition_names, key, strict=True)))
        return f"{directory}/{name}"

    def _close(self, partition: _Partition) -> None:
        open_file = partition.open_file
        if open_file is None:
            return
        size_bytes, stats = open_file.close()
        partition.open_file = None
        del self._open[partition.key]
        if not partition.waiting:
            del self._partitions[partition.key]
        self.written.append(
            AddFile(
                path=encode_path(open_file.path),
                partition_values=dict(
                    zip(self.physical_partition_names, partition.key, strict=True)
                ),
                size_bytes=size_bytes,
                modification_time_ms=self.clock(),
                data_change=True,
                stats=stats,
                tags=dict(self.format.spec.tags) or None,
            )
        )


def _random_prefix(length: int) -> str:
    alphabet = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"
    return "".join(secrets.choice(alphabet) for _ in range(length))


def _file_schema(configuration: TableConfiguration) -> StructType:
    """Logical schema of the columns that stand in data files."""
    materialized = any(configuration.supports(each) for each in _MATERIALIZING_FEATURES)
    fields = configuration.schema if materialized else configuration.data_schema
    # A void column is never written: it has no values, and Parquet has no type for it.
    kept = StructType(tuple(each for each in fields if each.data_type != PrimitiveType("void")))
    for path, each in walk_fields(kept):
        if each.data_type == PrimitiveType("void"):
            column = ".".join(path)
            raise UnsupportedFeature(
                f"column {column} is of type void inside another type and cannot be written: drop "
                "it or change its type",
                column=column,
            )
    return kept
