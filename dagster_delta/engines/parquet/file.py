"""One data file while it is being written."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from dagster_delta.engines.engine import WriteSpec
from dagster_delta.engines.parquet.encodings import ColumnEncodings
from dagster_delta.engines.parquet.file_statistics import FileStatistics, StatisticsLayout
from dagster_delta.errors import StorageFailure, UnsupportedFeature
from dagster_delta.protocol.column_mapping import physical_arrow_schema
from dagster_delta.protocol.schema import PrimitiveType, StructType, walk_fields
from dagster_delta.protocol.table_configuration import TableConfiguration
from dagster_delta.storage.object_store import ObjectStore

__all__ = ["FileFormat", "FileInWriting"]

_CODECS = {"none": "none", "uncompressed": "none", "lz4_raw": "lz4"}
_EXTENSIONS = {"none": "", "gzip": ".gz"}
_LEVELLED_CODECS = frozenset({"zstd", "gzip", "brotli"})
_MATERIALIZING_FEATURES = ("icebergCompatV1", "icebergCompatV2", "materializePartitionColumns")
_VOID = PrimitiveType("void")


@dataclass(frozen=True, slots=True)
class FileFormat:
    """What all files of one write have in common."""

    columns: tuple[str, ...]
    """Logical names of the columns that stand in the files."""
    arrow_schema: Any
    """`pyarrow.Schema` of the files: physical names, field ids, everything nullable."""
    statistics: StatisticsLayout
    codec: str
    compression_level: int | None

    @classmethod
    def of(cls, spec: WriteSpec) -> FileFormat:
        """The format that a table asks for.

        Raises:
            UnsupportedFeature: a column type cannot be written.
        """
        configuration = spec.configuration
        schema = _file_schema(configuration)
        asked = configuration.properties.parquet_compression_codec or spec.compression
        codec = _CODECS.get(asked, asked)
        is_levelled = asked == spec.compression and codec in _LEVELLED_CODECS
        physical = physical_arrow_schema(schema, configuration.column_mapping_mode)
        return cls(
            columns=schema.names,
            arrow_schema=pa.schema([_relax(each) for each in physical]),
            statistics=StatisticsLayout.of(configuration, schema),
            codec=codec,
            compression_level=spec.compression_level if is_levelled else None,
        )

    @property
    def extension(self) -> str:
        """End of the file names, with the codec as other writers spell it."""
        return _EXTENSIONS.get(self.codec, f".{self.codec}") + ".parquet"


class FileInWriting:
    """A data file that takes row groups until it is closed.

    Args:
        path: relative to the table root, decoded.
        format_: of the file.
        store: where it goes.
        encodings: of its columns.
    """

    def __init__(
        self, path: str, format_: FileFormat, store: ObjectStore, encodings: ColumnEncodings
    ) -> None:
        import pyarrow.parquet as pq

        self.path = path
        self._table = store.location.uri
        self._statistics = FileStatistics(format_.statistics)
        self._footers: list[Any] = []
        with self._naming():
            self._sink = store.open_output(path)
        try:
            self._writer = pq.ParquetWriter(
                self._sink,
                format_.arrow_schema,
                compression=format_.codec,
                compression_level=format_.compression_level,
                use_dictionary=list(encodings.dictionary) or False,
                column_encoding=dict.fromkeys(encodings.delta_packed, "DELTA_BINARY_PACKED"),
                # Decimals of up to 18 digits as integers: smaller, faster, and what Spark writes.
                store_decimal_as_integer=True,
                store_schema=False,
                metadata_collector=self._footers,
            )
        except BaseException:
            self.discard()
            raise

    def write_row_group(self, rows: pa.Table) -> None:
        """Add a row group of all `rows`, a `pyarrow.Table` of the file's schema.

        Raises:
            StorageFailure: the store refused or failed.
        """
        self._statistics.observe(rows)
        with self._naming():
            self._writer.write_table(rows, row_group_size=rows.num_rows)

    @property
    def size_bytes(self) -> int:
        """Bytes written so far."""
        return int(self._sink.tell())

    def close(self) -> tuple[int, str]:
        """Finish the file.

        Returns:
            Its size in bytes, and its statistics as JSON text.

        Raises:
            StorageFailure: the store refused or failed.
        """
        with self._naming():
            self._writer.close()
            size_bytes = self.size_bytes
            self._sink.close()
        return size_bytes, self._statistics.to_json(self._footers[0])

    def discard(self) -> None:
        """Give the file up; where the store publishes a file when it is closed, none appears."""
        # An open Parquet writer would write to the closed sink when it is collected.
        with suppress(AttributeError, OSError, pa.ArrowException):
            self._writer.close()
        self._sink.__exit__(GeneratorExit, GeneratorExit(), None)

    @contextmanager
    def _naming(self) -> Iterator[None]:
        """What the system or a file system of Arrow's reports, as an error that names the file."""
        try:
            yield
        except OSError as error:
            raise StorageFailure(
                f"a data file could not be written: {error}; check permissions, space and "
                "connection",
                table=self._table,
                file=self.path,
            ) from error


def _file_schema(configuration: TableConfiguration) -> StructType:
    """Logical schema of the columns that stand in data files."""
    materialized = any(configuration.supports(each) for each in _MATERIALIZING_FEATURES)
    fields = configuration.schema if materialized else configuration.data_schema
    # A void column is never written: it has no values, and Parquet has no type for it.
    kept = StructType(tuple(each for each in fields if each.data_type != _VOID))
    for path, each in walk_fields(kept):
        if each.data_type == _VOID:
            column = ".".join(path)
            raise UnsupportedFeature(
                f"column {column} is of type void inside another type and cannot be written: drop "
                "it or change its type",
                column=column,
            )
    return kept


def _relax(field: Any) -> Any:
    """The Arrow field as nullable, at every depth.

    NOT NULL is checked before; the Parquet writer would also count the hidden children of null
    structs.
    """
    return pa.field(field.name, _relax_type(field.type), True, field.metadata)


def _relax_type(arrow_type: Any) -> Any:
    if pa.types.is_struct(arrow_type):
        return pa.struct([_relax(each) for each in arrow_type])
    if pa.types.is_map(arrow_type):
        key = arrow_type.key_field
        return pa.map_(key.with_type(_relax_type(key.type)), _relax(arrow_type.item_field))
    if pa.types.is_list(arrow_type):
        return pa.list_(_relax(arrow_type.value_field))
    return arrow_type
