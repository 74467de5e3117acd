"""What CONVERT needs to know of a Parquet file of another writer: its columns and statistics.

Spec: Per-file Statistics; footers of data files are part of the Parquet format.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import TYPE_CHECKING

import pyarrow as pa

from dagster_delta.engines.parquet.read.legacy_calendar import LegacyCalendar
from dagster_delta.engines.parquet.read.source import naming_data_file, read_data_footer
from dagster_delta.engines.parquet.write.file import FileFormat, encode_rows
from dagster_delta.engines.parquet.write.file_statistics import FileStatistics
from dagster_delta.engines.plans import WriteSpec
from dagster_delta.protocol.features.table_configuration import TableConfiguration
from dagster_delta.protocol.schema import StructType
from dagster_delta.protocol.values.arrow_schema import from_arrow_schema
from dagster_delta.storage.object_store import ObjectStore

if TYPE_CHECKING:
    import pyarrow.parquet as pq

__all__ = ["ConvertedFile", "FooterReader"]

_INSTANT = pa.timestamp("us", "UTC")


@dataclass(frozen=True, slots=True)
class ConvertedFile:
    """The footer of one file."""

    schema: StructType
    """Logical schema of the columns that the file has, all of them nullable."""
    stats: str
    """Statistics as JSON: number of rows, and bounds and null counts where the footer has them."""


class FooterReader:
    """Reads footers of Parquet files; may be used by several threads.

    Args:
        store: store of the files.
        define: the configuration of a table with a schema, which says which columns are indexed.
    """

    def __init__(
        self, store: ObjectStore, define: Callable[[StructType], TableConfiguration]
    ) -> None:
        self._store, self._define = store, define
        self._format = lru_cache(maxsize=64)(self._format_of)

    def read(self, path: str) -> ConvertedFile:
        """The columns and statistics of a file.

        Args:
            path: decoded.

        Raises:
            SchemaMismatch: no Delta type holds the values of a column.
            InvalidArgument, UnsupportedFeature: the name or type of a column is invalid in a table.
            DataFileMissing, InvalidTable, StorageFailure: of the file.
        """
        with naming_data_file(self._store, path), self._store.open_input(path) as source:
            footer = read_data_footer(source)
        metadata, found = footer.metadata, footer.schema_arrow
        physical = iter(
            [metadata.schema.column(i).physical_type for i in range(metadata.num_columns)]
        )
        schema = from_arrow_schema(pa.schema([_nullable(field, physical) for field in found]))
        format_, model = self._format(schema)
        usable = _usable(metadata, model)
        if LegacyCalendar.of(found.metadata) is not None:
            # Readers convert the days and times of such a file, and its bounds are not converted.
            usable -= frozenset(filter(partial(_is_moment, metadata), usable))
        statistics = FileStatistics.of_foreign(format_.statistics, usable)
        return ConvertedFile(schema, statistics.to_json(metadata))

    def _format_of(self, schema: StructType) -> tuple[FileFormat, pq.FileMetaData]:
        configuration = self._define(schema)
        # Every column is in the file, whether or not the table keeps it there.
        format_ = FileFormat.of(WriteSpec(self._store.location, configuration))
        return format_, encode_rows(format_.arrow_schema.empty_table(), format_).metadata


def _usable(found: pq.FileMetaData, model: pq.FileMetaData) -> frozenset[int]:
    """The Parquet columns whose bounds are stored as the table's writer stores them."""
    if found.num_columns != model.num_columns:
        return frozenset()
    return frozenset(
        index
        for index in range(found.num_columns)
        if _storage(found, index) == _storage(model, index)
    )


def _is_moment(metadata: pq.FileMetaData, index: int) -> bool:
    return metadata.schema.column(index).logical_type.type in ("DATE", "TIMESTAMP")


def _storage(metadata: pq.FileMetaData, index: int) -> tuple[object, ...]:
    column = metadata.schema.column(index)
    if column.logical_type.type == "DECIMAL":
        # Each of its physical types is compared as the number that it is.
        return (str(column.logical_type),)
    return column.physical_type, column.length, str(column.logical_type)


def _nullable(field: pa.Field, physical: Iterator[str]) -> pa.Field:
    """The field, its parts nullable, and INT96 as the instants that Spark writes them for."""
    return pa.field(field.name, _nullable_type(field.type, physical), True)


def _nullable_type(data_type: pa.DataType, physical: Iterator[str]) -> pa.DataType:
    if pa.types.is_struct(data_type):
        return pa.struct(
            [_nullable(data_type.field(i), physical) for i in range(data_type.num_fields)]
        )
    if pa.types.is_map(data_type):
        key = _nullable_type(data_type.key_type, physical)
        return pa.map_(key, _nullable(data_type.item_field, physical))
    if pa.types.is_list(data_type) or pa.types.is_large_list(data_type):
        return pa.list_(_nullable(data_type.value_field, physical))
    return _INSTANT if next(physical) == "INT96" else data_type
