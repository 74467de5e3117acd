"""Schema and statistics of Parquet files that other programs wrote, from their footers.

Spec: Per-file Statistics; footers of data files are part of the Parquet format.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import msgspec
import pyarrow as pa

from dagster_delta.engines.plans import WriteSpec
from dagster_delta.nested_arrays import inner_fields, with_inner_fields
from dagster_delta.parquet.file_format import FileFormat, encode_rows
from dagster_delta.parquet.legacy_calendar import LegacyCalendar
from dagster_delta.parquet.opened_file import naming_data_file, read_data_footer
from dagster_delta.parquet.statistics import FileStatistics
from dagster_delta.protocol.features.table_configuration import TableConfiguration
from dagster_delta.protocol.schema import StructType
from dagster_delta.protocol.values.arrow_schema import from_arrow_schema
from dagster_delta.storage.object_store import ObjectStore

if TYPE_CHECKING:
    import pyarrow.parquet as pq

    from dagster_delta.parquet_format.footer import ParquetFooter

_LAYOUTS = 8
"""Different layouts of files that are remembered."""
_INSTANT = pa.timestamp("us", "UTC")
_MOMENTS = ("DATE", "TIMESTAMP")


class ForeignFooter(msgspec.Struct, frozen=True):
    """What the footer of one file says."""

    schema: StructType
    """Logical schema of the columns that the file has, all of them nullable."""
    stats: str
    """Statistics as JSON: number of rows, and bounds and null counts where the footer has them."""


class _Layout(msgspec.Struct, frozen=True):
    """What files with the same columns have in common."""

    columns: pq.ParquetSchema
    arrow_schema: pa.Schema
    has_legacy_times: bool
    schema: StructType
    statistics: FileStatistics


class ForeignFooterReader:
    """Reads footers of Parquet files; may be used by several threads.

    `define`: the configuration of a table with a schema, which says which columns are indexed.
    """

    def __init__(
        self, store: ObjectStore, define: Callable[[StructType], TableConfiguration]
    ) -> None:
        self._store, self._define = store, define
        self._layouts: deque[_Layout] = deque(maxlen=_LAYOUTS)

    def read(self, path: str) -> ForeignFooter:
        """The columns and statistics of a file, by its decoded path."""
        with naming_data_file(self._store, path):
            with self._store.open_input(path) as source:
                footer = read_data_footer(source)
            layout = self._find_layout(footer)
            stats = layout.statistics.to_json(footer.metadata, footer.statistics)
        return ForeignFooter(layout.schema, stats)

    def _find_layout(self, footer: ParquetFooter) -> _Layout:
        columns, found = footer.metadata.schema, footer.schema_arrow
        # Readers convert the days and times of such a file, and its bounds are not converted.
        has_legacy_times = LegacyCalendar.of(found.metadata) is not None
        for known in tuple(self._layouts):
            if (
                known.has_legacy_times == has_legacy_times
                and known.columns.equals(columns)
                and known.arrow_schema.equals(found)
            ):
                return known
        physical = iter([columns.column(i).physical_type for i in range(len(columns))])
        schema = from_arrow_schema(pa.schema([_relax_field(field, physical) for field in found]))
        format_ = FileFormat.of(WriteSpec(self._store.location, self._define(schema)))
        _, model = encode_rows(pa.Table.from_batches([], format_.arrow_schema), format_)
        usable = {
            index: place
            for index, place in _find_usable_bounds(columns, model.schema).items()
            if not (has_legacy_times and columns.column(place).logical_type.type in _MOMENTS)
        }
        statistics = FileStatistics.of_foreign(format_.statistics, usable)
        layout = _Layout(columns, found, has_legacy_times, schema, statistics)
        self._layouts.appendleft(layout)
        return layout


def _find_usable_bounds(found: pq.ParquetSchema, model: pq.ParquetSchema) -> dict[int, int]:
    """The Parquet columns whose bounds are stored as the table's writer stores them: index in a
    file of that writer to index in the file, which may also hold partition columns, anywhere.
    """
    places = _index_paths(found)
    return {
        index: places[path]
        for path, index in _index_paths(model).items()
        if path in places
        and _storage_type_of(found.column(places[path])) == _storage_type_of(model.column(index))
    }


def _index_paths(columns: pq.ParquetSchema) -> dict[str, int]:
    """Index by path; without a column `a.b` that has the path of a field `b` of `a`."""
    paths = [columns.column(index).path for index in range(len(columns))]
    counts = Counter(paths)
    return {path: index for index, path in enumerate(paths) if counts[path] == 1}


def _storage_type_of(column: pq.ColumnSchema) -> tuple[object, ...]:
    if column.logical_type.type == "DECIMAL":
        # Each of its physical types is compared as the number that it is.
        return (str(column.logical_type),)
    return column.physical_type, column.length, str(column.logical_type)


def _relax_field(field: pa.Field, physical: Iterator[str]) -> pa.Field:
    """The field, its parts nullable, and INT96 as the instants that Spark writes them for."""
    return pa.field(field.name, _nullable_type(field.type, physical), True)


def _nullable_type(data_type: pa.DataType, physical: Iterator[str]) -> pa.DataType:
    if not pa.types.is_nested(data_type):
        return _INSTANT if next(physical) == "INT96" else data_type
    fields = [_relax_field(field, physical) for field in inner_fields(data_type)]
    return with_inner_fields(data_type, fields)
