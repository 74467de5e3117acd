"""The statistics of a new data file, mostly read from its own footer at almost no cost.

The footer lacks what is collected while rows are written: null count and bounds of float columns
with NaN, bounds of texts of more than 4 kB, and how many arrays and maps are null (the footer
counts elements).

Bounds are spelled as by delta-spark 4.4, except that decimals have no exponent, which deltalake 1.6
cannot parse, and that booleans have bounds, as deltalake writes them: its filters skip a file that
lacks a bound.

Spec: Per-file Statistics.
"""

from __future__ import annotations

import datetime as dt
import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

import msgspec
import pyarrow as pa
from msgspec.structs import replace

import dagster_delta.arrow_compute as pc
from dagster_delta.nested_arrays import count_leaves
from dagster_delta.parquet_format.footer import ChunkBounds, decimal_bound
from dagster_delta.protocol.features.existing_defaults import fields_with_existing_default
from dagster_delta.protocol.features.row_tracking import carried_columns
from dagster_delta.protocol.features.table_configuration import TableConfiguration
from dagster_delta.protocol.schema import (
    ArrayType,
    DataType,
    DecimalType,
    MapType,
    PrimitiveType,
    StructType,
)
from dagster_delta.protocol.statistics.statistics import plant, schema_leaves, statistics_rule
from dagster_delta.protocol.values.arrow_schema import to_arrow_type

if TYPE_CHECKING:
    import pyarrow.parquet as pq

    from dagster_delta.parquet_format.footer import ChunkStatistics

_EPOCH = dt.datetime(1970, 1, 1)  # noqa: DTZ001  zone is added as text
_FLOATS = frozenset({"float", "double"})
_ENCODER = msgspec.json.Encoder()

_STRING = PrimitiveType("string")
_SPECIAL_FLOATS = {"nan": "NaN", "inf": "Infinity", "-inf": "-Infinity"}

_Positions = tuple[int, ...]
_Bounds = tuple[Any, Any]


class _Leaf(msgspec.Struct, frozen=True):
    """One column with statistics, of any type except struct."""

    physical_path: tuple[str, ...]
    positions: tuple[int, ...]
    """Position of the column in a batch: top-level index, then child indexes."""
    parquet_index: int
    """Index of its (first) Parquet column."""
    data_type: DataType

    @property
    def is_nested(self) -> bool:
        return isinstance(self.data_type, ArrayType | MapType)

    @property
    def is_float(self) -> bool:
        return isinstance(self.data_type, PrimitiveType) and self.data_type.name in _FLOATS


class StatisticsLayout(msgspec.Struct, frozen=True):
    """Which columns of a data file get statistics, and their positions."""

    leaves: tuple[_Leaf, ...]
    has_tight_bounds: bool
    """Whether `tightBounds` is recorded, as for tables that may get deletion vectors."""
    string_prefix_length: int
    """Maximum characters of a string bound."""

    @classmethod
    def of(cls, configuration: TableConfiguration, file_schema: StructType) -> StatisticsLayout:
        """The layout for new files of a table."""
        is_indexed = statistics_rule(configuration)
        # The file may have partition columns too, but their values are already in the log.
        left_out = set(configuration.partition_columns)
        carried = carried_columns(configuration)
        if carried is not None:
            # They are not columns of the table, so no filter uses them.
            left_out.update(carried.names)
        # Their null count shows, without reading the file, that the file has them.
        always = {path for path, _ in fields_with_existing_default(configuration.schema)}
        leaves = []
        index = parquet_index = 0
        for found in schema_leaves(file_schema, configuration.column_mapping_mode):
            path = found.logical_path
            if path[0] not in left_out:
                if path in always or is_indexed(index, path):
                    leaf = _Leaf(
                        found.physical_path, found.positions, parquet_index, found.data_type
                    )
                    leaves.append(leaf)
                index += 1
            parquet_index += count_leaves(to_arrow_type(found.data_type))
        return cls(
            tuple(leaves),
            configuration.supports("deletionVectors"),
            configuration.properties.data_skipping_string_prefix_length,
        )


class FileStatistics:
    """The statistics of one file, from its batches and its footer."""

    def __init__(self, layout: StatisticsLayout) -> None:
        self._layout = layout
        self._observed = [leaf for leaf in layout.leaves if leaf.is_nested or leaf.is_float]
        self._null_counts = {leaf.positions: 0 for leaf in self._observed}
        # Bounds of the row groups without any in their footer, by column; None if unknown.
        self._collected: dict[_Positions, _Bounds | None] = {}

    def observe(self, rows: pa.Table) -> None:
        """Collect statistics of rows that are written to the file."""
        for leaf in self._observed:
            values = _column_at(rows, leaf.positions)
            self._null_counts[leaf.positions] += values.null_count
            if holds_nan(values):
                lowest = pc.min(values.filter(pc.equal(values, values))).as_py()
                # Spark orders NaN after all numbers. Below `Infinity`, with which the filters of
                # deltalake 1.6 lose no numbers, Spark, DuckDB, daft and Sail find no NaN.
                self._collect_bounds(
                    leaf.positions, (math.nan if lowest is None else lowest, math.nan)
                )

    def observe_long_texts(self, rows: pa.Table, footer: pq.FileMetaData) -> None:
        """Collect the bounds that the footer of these rows lacks because texts are long."""
        length = self._layout.string_prefix_length + 1
        for leaf in self._layout.leaves:
            if leaf.data_type != _STRING or not rows.num_rows:
                continue
            (known,) = _own_bounds([footer.row_group(0).column(leaf.parquet_index)])
            if known.minimum is None and known.null_count != rows.num_rows:
                values = _column_at(rows, leaf.positions)
                starts = pc.min_max(pc.utf8_slice_codeunits(values, 0, length))
                lowest, highest = (bound.as_py().encode() for bound in starts.values())
                self._collect_bounds(leaf.positions, (lowest, highest))

    def take(self, other: FileStatistics) -> None:
        """Add the statistics collected from more rows of the same file."""
        for positions, count in other._null_counts.items():
            self._null_counts[positions] += count
        for positions, bounds in other._collected.items():
            self._collect_bounds(positions, bounds)

    def _collect_bounds(self, positions: _Positions, bounds: _Bounds | None) -> None:
        known = self._collected.get(positions, bounds)
        self._collected[positions] = known and bounds and _merge_bounds([known, bounds])

    @classmethod
    def of_foreign(cls, layout: StatisticsLayout, usable: Mapping[int, int]) -> FileStatistics:
        """The statistics of a file of another writer, whose rows nobody has seen.

        A column of floats may hold NaN, and how many arrays and maps are null is unknown.

        `usable`: the Parquet columns whose bounds are stored as here: index in such a file to index
        in the file.
        """
        leaves = [leaf for leaf in layout.leaves if not leaf.is_nested]
        bounded = tuple(
            replace(leaf, parquet_index=usable[leaf.parquet_index])
            for leaf in leaves
            if leaf.parquet_index in usable
        )
        statistics = cls(replace(layout, leaves=bounded, has_tight_bounds=False))
        statistics._null_counts.clear()
        statistics._collected = {leaf.positions: None for leaf in bounded if leaf.is_float}
        return statistics

    def to_json(self, footer: pq.FileMetaData, known: ChunkStatistics | None = None) -> str:
        """The `stats` of the finished file.

        `known`: the statistics of the footer, if another writer wrote it.
        """
        minimums: dict[str, object] = {}
        maximums: dict[str, object] = {}
        null_counts: dict[str, object] = {}
        groups = [footer.row_group(index) for index in range(footer.num_row_groups)]
        for leaf in self._layout.leaves:
            chunks = [group.column(leaf.parquet_index) for group in groups]
            found = _own_bounds(chunks) if known is None else known.of(leaf.parquet_index)
            _plant_value(null_counts, leaf.physical_path, self._null_count(leaf, found))
            if not leaf.is_nested:
                valued = [
                    bounds
                    for bounds, chunk in zip(found, chunks, strict=True)
                    if chunk.num_values != bounds.null_count
                ]
                lowest, highest = self._find_bounds(leaf, valued)
                _plant_value(minimums, leaf.physical_path, lowest)
                _plant_value(maximums, leaf.physical_path, highest)
        stats: dict[str, object] = {
            "numRecords": footer.num_rows,
            "minValues": minimums,
            "maxValues": maximums,
            "nullCount": null_counts,
        }
        if self._layout.has_tight_bounds:
            stats["tightBounds"] = True
        return _ENCODER.encode(stats).decode()

    def _null_count(self, leaf: _Leaf, found: list[ChunkBounds]) -> int | None:
        if leaf.positions in self._null_counts:
            return self._null_counts[leaf.positions]
        counts = [bounds.null_count for bounds in found]
        return None if None in counts else sum(cast("list[int]", counts))

    def _find_bounds(self, leaf: _Leaf, valued: list[ChunkBounds]) -> tuple[object, object]:
        """Minimum and maximum over the row groups that have values."""
        kind, length = leaf.data_type, self._layout.string_prefix_length
        collected = self._collected.get(leaf.positions)
        found = [
            collected
            if bounds.minimum is None
            else (_to_comparable(kind, bounds.minimum), _to_comparable(kind, bounds.maximum))
            for bounds in valued
        ]
        known = [bounds for bounds in found if bounds is not None]
        if not known or len(known) < len(found):
            return None, None
        minimum, maximum = _merge_bounds(known)
        lowest = _json_bound(minimum, kind, length, is_upper=False)
        if collected is None and leaf.positions in self._collected:
            # NaN may be among the values.
            return lowest, None
        return lowest, _json_bound(maximum, kind, length, is_upper=True)


def _merge_bounds(bounds: Sequence[_Bounds]) -> _Bounds:
    """The bounds of values that have several bounds; NaN is the greatest."""
    lowest, highest = zip(*bounds, strict=True)
    return min(lowest, key=_sort_key_of), max(highest, key=_sort_key_of)


def _sort_key_of(value: Any) -> tuple[bool, Any]:  # noqa: ANN401
    return bool(value != value), value


def holds_nan(values: pa.Array | pa.ChunkedArray) -> bool:
    """Whether a value is NaN."""
    if not pa.types.is_floating(values.type):
        return False
    is_nan = pc.call_function("is_nan", [values])
    return bool(pc.call_function("any", [is_nan]).as_py())


def _own_bounds(chunks: list[pq.ColumnChunkMetaData]) -> list[ChunkBounds]:
    """The statistics of column chunks that were written here."""
    found = [chunk.statistics for chunk in chunks]
    return [
        ChunkBounds()
        if statistics is None
        else ChunkBounds(
            statistics.min_raw if statistics.has_min_max else None,
            statistics.max_raw if statistics.has_min_max else None,
            statistics.null_count if statistics.has_null_count else None,
        )
        for statistics in found
    ]


def _column_at(rows: pa.Table, positions: tuple[int, ...]) -> pa.ChunkedArray:
    column = rows.column(positions[0])
    # struct_field makes a child null if its parent is, which is how Spark counts.
    return pc.struct_field(column, list(positions[1:])) if len(positions) > 1 else column


def _plant_value(tree: dict[str, object], path: tuple[str, ...], value: object) -> None:
    if value is not None:
        plant(tree, path, value)


def _to_comparable(data_type: DataType, raw: Any) -> Any:  # noqa: ANN401
    """A raw bound in a form that sorts as its value does; raw bytes of a decimal do not."""
    return decimal_bound(raw, data_type.scale) if isinstance(data_type, DecimalType) else raw


def _json_bound(raw: Any, data_type: DataType, prefix_length: int, *, is_upper: bool) -> object:  # noqa: ANN401
    """The JSON value of a bound as of `_comparable`; None if it, or its type, has none."""
    match data_type:
        case DecimalType():
            return msgspec.Raw(format(raw, "f").encode())
        case PrimitiveType("string"):
            text = raw.decode()
            return truncate_upper_bound(text, prefix_length) if is_upper else text[:prefix_length]
        case PrimitiveType("byte" | "short" | "integer" | "long" | "boolean"):
            return raw
        case PrimitiveType("float" | "double"):
            return raw if math.isfinite(raw) else _SPECIAL_FLOATS[str(raw)]
        case PrimitiveType("date"):
            ordinal = _EPOCH.toordinal() + raw
            in_range = 1 <= ordinal <= dt.date.max.toordinal()
            return dt.date.fromordinal(ordinal).isoformat() if in_range else None
        case PrimitiveType("timestamp" | "timestamp_ntz" as name):
            # Spec: timestamps are truncated down to milliseconds; readers adjust for it in a
            # maximum.
            try:
                moment = _EPOCH + dt.timedelta(milliseconds=raw // 1000)
            except OverflowError:
                return None
            zone = "Z" if name == "timestamp" else ""
            return f"{moment.isoformat(timespec='milliseconds')}{zone}"
    return None


def truncate_upper_bound(text: str, prefix_length: int) -> str | None:
    """A short string that sorts at or after `text` by code points; None if none is short.

    A truncated string gets one more character, greater than the first one removed.
    """
    if len(text) <= prefix_length:
        return text
    prefix, following = text[:prefix_length], text[prefix_length]
    for greater in ("\x7f", "\U0010ffff"):
        if following < greater:
            return prefix + greater
    return None
