"""One data file while it is written: row groups are encoded separately, then concatenated."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

import msgspec
import pyarrow as pa

import dagster_delta.arrow_compute as pc
from dagster_delta.errors import UnsupportedFeature
from dagster_delta.nested_arrays import (
    children_of,
    inner_fields,
    rename_nested,
    with_inner_fields,
)
from dagster_delta.parquet.plans import WriteSpec
from dagster_delta.parquet.statistics import (
    FileStatistics,
    StatisticsLayout,
    holds_nan,
)
from dagster_delta.parquet_format.footer_splicing import MAGIC, FileTail, RowGroupBytes, spliced_end
from dagster_delta.parquet_format.reader import (
    decoding_pool,
    release_scratch_memory,
)
from dagster_delta.protocol.features.column_mapping import physical_arrow_schema
from dagster_delta.protocol.features.table_configuration import TableConfiguration
from dagster_delta.protocol.schema import (
    DataType,
    PrimitiveType,
    StructField,
    StructType,
    inner_types,
    with_inner_types,
)
from dagster_delta.protocol.values.arrow_schema import is_marked_variant
from dagster_delta.storage.object_store import ObjectStore

if TYPE_CHECKING:
    import pyarrow.parquet as pq

    from dagster_delta.protocol.statistics.bloom_filters import BloomFilter

_CODECS = {"none": "none", "uncompressed": "none", "lz4_raw": "lz4"}
_EXTENSIONS = {"none": "", "gzip": ".gz"}
_CODEC, _LEVEL = "zstd", 1
_MATERIALIZING_FEATURES = ("icebergCompatV1", "icebergCompatV2", "materializePartitionColumns")
_SAMPLE_ROWS = 64_000
_SAMPLE_BYTES = 64 * 1024 * 1024
_MAX_DISTINCT_SHARE = 0.25
"""Share of distinct values in the sample up to which a dictionary pays."""
_LARGE_FILE_BYTES = 1024 * 1024
_PAGE_ROWS, _PAGE_BYTES = 20_000, 1024 * 1024
"""Largest page that Arrow writes by default."""
_VOID = PrimitiveType("void")
_SPARK_KEYS = {"org.apache.spark.version": "3.1.0"}
"""Spark reads days of a file without this key by the calendar that its session chooses, and days of
files since this version by the Gregorian one, if no other key says that they are not."""


class FileFormat(msgspec.Struct, frozen=True):
    """What all files of one write have in common."""

    columns: tuple[str, ...]
    """Logical names of the columns that the files have."""
    arrow_schema: pa.Schema
    """`pyarrow.Schema` of the files: physical names, field ids, everything nullable."""
    statistics: StatisticsLayout
    codec: str
    bloom_filters: tuple[BloomFilter, ...] = ()
    may_pack: bool = True
    """Whether encodings newer than version 1 of the Parquet format are used."""

    @classmethod
    def of(cls, spec: WriteSpec) -> FileFormat:
        """The format that a table requires."""
        configuration = spec.configuration
        schema = _file_schema(configuration)
        codec = configuration.properties.parquet_compression_codec or _CODEC
        codec = _CODECS.get(codec, codec)
        physical = physical_arrow_schema(schema, configuration.column_mapping_mode)
        return cls(
            columns=schema.names,
            arrow_schema=pa.schema([_relax_field(field) for field in physical]),
            statistics=StatisticsLayout.of(configuration, schema),
            codec=codec,
            bloom_filters=_find_bloom_filters(configuration, schema),
            may_pack=configuration.properties.parquet_format_version != "1.0.0",
        )

    @property
    def extension(self) -> str:
        """Suffix of the file names, with the codec as other writers name it."""
        return _EXTENSIONS.get(self.codec, f".{self.codec}") + ".parquet"

    def file_rows(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The columns of a batch that the files store, in their stored form."""
        columns = [
            rename_nested(batch.column(name), field.type)
            for name, field in zip(self.columns, self.arrow_schema, strict=True)
        ]
        return pa.RecordBatch.from_arrays(columns, schema=self.arrow_schema)


class ColumnEncodings(msgspec.Struct, frozen=True):
    """The encoding of each Parquet column by its dotted path; columns in neither are plain."""

    dictionary: tuple[str, ...] = ()
    delta_packed: tuple[str, ...] = ()

    @classmethod
    def for_rows(cls, rows: pa.Table) -> ColumnEncodings:
        """The encodings for all files of a write, by a sample of its first rows: choosing anew for
        each row group took 90 µs for 20 rows and 20 ms for 300,000, a seventh of writing them.

        A dictionary saves space only if values repeat; other numbers and times are stored as
        differences. Spark's vectorized reader reads all of them.

        `rows`: a `pyarrow.Table` in the files' schema.
        """
        leaves = [
            leaf
            for name, column in zip(rows.schema.names, rows.columns, strict=True)
            for leaf in leaf_arrays(name, _sample_values(column))
        ]
        count = Counter(path for path, _ in leaves)
        dictionary, delta_packed = [], []
        for path, values in leaves:
            # Arrow takes one encoding for both, if a column `a.b` is beside a struct a with b.
            if count[path] > 1:
                continue
            if _pays_as_dictionary(values):
                dictionary.append(path)
            elif _is_packable(values.type):
                delta_packed.append(path)
        return cls(tuple(dictionary), tuple(delta_packed))


class EncodedRowGroup(msgspec.Struct, frozen=True):
    """Rows encoded for a file, at any position in it."""

    content: RowGroupBytes
    metadata: pq.FileMetaData
    """`pyarrow.parquet.FileMetaData` of a file of these rows alone."""
    statistics: FileStatistics

    @classmethod
    def of_rows(
        cls, rows: pa.Table, format_: FileFormat, encodings: ColumnEncodings
    ) -> EncodedRowGroup:
        """All `rows`, a `pyarrow.Table` of the format's schema, as one row group."""
        statistics = FileStatistics(format_.statistics)
        statistics.observe(rows)
        file, metadata = encode_rows(rows, format_, encodings)
        statistics.observe_long_texts(rows, metadata)
        content = RowGroupBytes.of_file(memoryview(file), has_page_index=_has_pages(rows))
        return cls(content, metadata, statistics)


_PLAIN = ColumnEncodings()


def encode_rows(
    rows: pa.Table, format_: FileFormat, encodings: ColumnEncodings = _PLAIN
) -> tuple[pa.Buffer, pq.FileMetaData]:
    """A file of one row group: all its bytes, and its footer.

    `rows`: a `pyarrow.Table` of all columns of the format's schema, or of some of them.
    """
    # `pyarrow.parquet` wraps the same writer, and loads every file system that Arrow knows first.
    from pyarrow._parquet import ParquetWriter

    sink = pa.BufferOutputStream(decoding_pool())
    writer = ParquetWriter(
        sink,
        rows.schema,
        version="2.6",
        data_page_version="1.0",
        writer_engine_version="V2",
        compression=format_.codec,
        compression_level=_LEVEL if format_.codec == _CODEC else None,
        use_dictionary=_find_dictionary_columns(rows, encodings) or False,
        column_encoding=dict.fromkeys(
            encodings.delta_packed if format_.may_pack else (), "DELTA_BINARY_PACKED"
        ),
        # Decimals of up to 18 digits as integers: smaller, faster, and as Spark does.
        store_decimal_as_integer=True,
        store_schema=False,
        write_statistics=_columns_with_bounds(rows),
        # The index of a single page says no more than the statistics of its column.
        write_page_index=_has_pages(rows),
        write_page_checksum=True,
        bloom_filter_options=_bloom_filter_options(rows, format_) or None,
        memory_pool=decoding_pool(),
    )
    writer.add_key_value_metadata(_SPARK_KEYS)
    if rows.num_rows:
        writer.write_table(rows, row_group_size=rows.num_rows)
    writer.close()
    file = sink.getvalue()
    if file.size >= _LARGE_FILE_BYTES:
        release_scratch_memory()
    return file, writer.metadata


def _find_bloom_filters(
    configuration: TableConfiguration, schema: StructType
) -> tuple[BloomFilter, ...]:
    if not any(key.startswith("parquet.bloom.") for key in configuration.metadata.configuration):
        return ()
    # Imported late: few tables have filters.
    from dagster_delta.protocol.statistics.bloom_filters import bloom_filters

    return tuple(bloom_filters(configuration, schema))


def _bloom_filter_options(rows: pa.Table, format_: FileFormat) -> dict[str, dict[str, float]]:
    """The columns that get Bloom filters, as Arrow takes them."""
    return {
        ".".join(found.path): {
            "ndv": max(1, min(rows.num_rows, found.num_values or rows.num_rows)),
            "fpp": found.false_positive_rate,
        }
        for found in format_.bloom_filters
        if found.path[0] in rows.schema.names and not _are_consecutive(rows[found.path[0]])
    }


def _are_consecutive(values: pa.ChunkedArray) -> bool:
    """Whether nearly every number between the bounds is there, so that they exclude as much as a
    filter would.
    """
    if not pa.types.is_integer(values.type) or len(values) == values.null_count:
        return False
    bounds = pc.min_max(values).as_py()
    return bool(bounds["max"] - bounds["min"] < 2 * len(values))


def _has_pages(rows: pa.Table) -> bool:
    """Whether a column of the row group may have several pages."""
    return rows.num_rows > _PAGE_ROWS or any(column.nbytes > _PAGE_BYTES for column in rows.columns)


def _sample_values(column: pa.ChunkedArray) -> pa.Array:
    sample = column.slice(0, _SAMPLE_ROWS)
    if sample.num_chunks == 1:
        return sample.chunk(0)
    if sample.nbytes > _SAMPLE_BYTES:
        # They are copied, and texts in one array must stay below 2 GiB.
        sample = sample.slice(0, max(1, len(sample) * _SAMPLE_BYTES // sample.nbytes))
    return sample.combine_chunks(decoding_pool())


def leaf_arrays(path: str, array: pa.Array) -> Iterator[tuple[str, pa.Array]]:
    """Parquet columns under their paths. Spec of the paths: Parquet's nested types."""
    if not pa.types.is_nested(array.type):
        yield path, array
        return
    for field, child in zip(inner_fields(array.type), children_of(array), strict=True):
        name = field.name
        if pa.types.is_list(array.type):
            name = "list.element"
        elif pa.types.is_map(array.type):
            name = f"key_value.{name}"
        yield from leaf_arrays(f"{path}.{name}", child)


def _pays_as_dictionary(values: pa.Array) -> bool:
    if pa.types.is_boolean(values.type):
        return False
    count = len(values) - values.null_count
    if not count:
        return not _is_packable(values.type)
    distinct = pc.call_function("count_distinct", [values], memory_pool=decoding_pool())
    return bool(distinct.as_py() <= max(1, count * _MAX_DISTINCT_SHARE))


def _is_packable(arrow_type: pa.DataType) -> bool:
    types = pa.types
    return bool(
        types.is_integer(arrow_type)
        or types.is_timestamp(arrow_type)
        or types.is_date32(arrow_type)
    )


def _find_dictionary_columns(rows: pa.Table, encodings: ColumnEncodings) -> list[str]:
    """The Parquet columns that are stored as dictionaries: none with -0.0. Spark 4.2 compares the
    entries of a dictionary by their bits, and skipped -0.0 for `= 0.0`.
    """
    found = frozenset(encodings.dictionary)
    signed = {
        path
        for name, column in zip(rows.schema.names, rows.columns, strict=True)
        for chunk in column.chunks
        for path, values in leaf_arrays(name, chunk)
        if path in found and _holds_minus_zero(values)
    }
    return [path for path in encodings.dictionary if path not in signed]


def _holds_minus_zero(values: pa.Array) -> bool:
    bits = {pa.float32(): pa.int32(), pa.float64(): pa.int64()}.get(values.type)
    # Its bits are those of the lowest integer.
    return bits is not None and pc.min(values.view(bits)).as_py() == -(1 << bits.bit_width - 1)


def _columns_with_bounds(rows: pa.Table) -> bool | list[str]:
    """The Parquet columns without NaN; True if those are all.

    Arrow leaves NaN out of bounds, and Spark, in whose order NaN is the greatest, would skip it.
    """
    has_nan: dict[str, bool] = {}
    for name, column in zip(rows.schema.names, rows.columns, strict=True):
        for chunk in column.chunks:
            for path, values in leaf_arrays(name, chunk):
                has_nan[path] = has_nan.get(path, False) or holds_nan(values)
    return not any(has_nan.values()) or [path for path, found in has_nan.items() if not found]


class FileInWriting:
    """A data file to which row groups are added until it is closed.

    `path`: path of the file, relative to the table root, decoded.
    """

    def __init__(self, path: str, format_: FileFormat, store: ObjectStore) -> None:
        self.path = path
        self._statistics = FileStatistics(format_.statistics)
        self._metadata: pq.FileMetaData = None
        self._tails: list[tuple[FileTail, int]] = []
        self._file = store.open_output(path)
        self.size_bytes = self._file.write(MAGIC)
        """Length of the file so far."""

    def append(self, group: EncodedRowGroup) -> None:
        """Add a row group."""
        if self._metadata is None:
            self._metadata = group.metadata
        else:
            self._metadata.append_row_groups(group.metadata)
        self._statistics.take(group.statistics)
        self._tails.append((group.content.tail, self.size_bytes - len(MAGIC)))
        self.size_bytes += self._file.write(group.content.pages)

    def close(self) -> tuple[int, str]:
        """Finish the file, which has a row group.

        Returns:
            Its size in bytes, and its statistics as JSON text.
        """
        self.size_bytes += self._file.write(spliced_end(self._tails, self.size_bytes))
        self._file.close()
        return self.size_bytes, self._statistics.to_json(self._metadata)

    def discard(self) -> None:
        """Give the file up, unless it was closed."""
        self._file.discard()


def _file_schema(configuration: TableConfiguration) -> StructType:
    """Logical schema of the columns that data files store."""
    materialized = any(map(configuration.supports, _MATERIALIZING_FEATURES))
    fields = configuration.schema if materialized else configuration.data_schema
    return StructType(tuple(_without_void(fields, ())))


def _without_void(fields: Iterable[StructField], path: tuple[str, ...]) -> Iterator[StructField]:
    """The fields without void ones, at any depth. Spec: Void Type. They are never written, as they
    have no values.
    """
    for field in fields:
        if field.data_type != _VOID:
            stored = _stored_type(field.data_type, (*path, field.name))
            yield StructField(field.name, stored, field.nullable, field.metadata)


def _stored_type(data_type: DataType, path: tuple[str, ...]) -> DataType:
    if isinstance(data_type, StructType):
        fields = tuple(_without_void(data_type, path))
        if fields or not data_type.fields:
            return StructType(fields)
    elif data_type != _VOID:
        inner = inner_types(data_type)
        if not inner:
            return data_type
        return with_inner_types(data_type, [_stored_type(part, path) for part in inner])
    column = ".".join(path)
    raise UnsupportedFeature(
        f"column {column} is an array, a map or a struct of nothing but type void and cannot be "
        "written: drop it or change its type",
        column=column,
    )


def _relax_field(field: pa.Field) -> pa.Field:
    """The Arrow field as nullable, at every depth.

    NOT NULL is checked before; the Parquet writer would also check the hidden children of null
    structs. Both parts of a variant remain required, as readers expect.
    """
    return pa.field(field.name, _relax_type(field.type), True, field.metadata)


def _relax_type(arrow_type: pa.DataType) -> pa.DataType:
    if is_marked_variant(arrow_type):
        return pa.struct([part.with_nullable(False) for part in arrow_type])
    if not pa.types.is_nested(arrow_type):
        return arrow_type
    return with_inner_fields(
        arrow_type, [_relax_field(field) for field in inner_fields(arrow_type)]
    )
