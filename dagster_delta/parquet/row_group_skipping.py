"""Row groups of a data file that may have rows for which a filter is true, by the footer.

Spec: none; the footer is part of the Parquet format.
"""

from __future__ import annotations

from collections.abc import Callable
from decimal import Context, Decimal
from typing import Any

import pyarrow as pa

import dagster_delta.arrow_compute as pc
from dagster_delta.parquet.legacy_calendar import LegacyCalendar
from dagster_delta.parquet.projection import locate_leaf
from dagster_delta.protocol.checkpoint.parquet_footer import ChunkStatistics
from dagster_delta.protocol.features.text_limits import char_paths
from dagster_delta.protocol.schema import DataType, StructType
from dagster_delta.protocol.statistics.bounds import ColumnBounds
from dagster_delta.protocol.statistics.predicates import Predicate, may_match, referenced_columns
from dagster_delta.protocol.table_properties import ColumnMappingMode
from dagster_delta.protocol.values.arrow_columns import (
    boolean_column,
    column_of,
    integer_column,
    string_column,
)
from dagster_delta.protocol.values.arrow_schema import from_arrow_type, to_arrow_type
from dagster_delta.protocol.values.arrow_values import array_of

_EXACT = Context(prec=40)


def matching_row_groups(
    predicate: Predicate,
    statistics: ChunkStatistics,
    file_schema: pa.Schema,
    schema: StructType,
    mode: ColumnMappingMode,
) -> list[int]:
    """Indexes of the row groups that may hold a matching row, in order."""
    count = statistics.metadata.num_row_groups
    # For a file of one row group the log has the same bounds.
    if count < 2:
        return list(range(count))
    has_legacy_times = LegacyCalendar.of(file_schema.metadata) is not None
    padded = char_paths(schema)
    bounds = {}
    for path in referenced_columns(predicate):
        located = locate_leaf(file_schema, schema, path, mode)
        if located is None or path in padded:
            continue
        index, file_type = located
        if has_legacy_times and pa.types.is_temporal(file_type):
            continue
        known = _bounds(statistics, index, file_type, schema.fields_along(path)[-1].data_type)
        if known is not None:
            bounds[path] = known
    matches = may_match(predicate, bounds, count).to_pylist()
    return [index for index, may in enumerate(matches) if may]


def _bounds(
    chunks: ChunkStatistics, leaf: int, file_type: pa.DataType, data_type: DataType
) -> ColumnBounds | None:
    """Bounds of one column, one per row group; None if the footer's cannot be used."""
    decode = _decoder(file_type)
    if decode is None:
        return None
    arrow_type = to_arrow_type(data_type)
    known = chunks.of(leaf)
    groups = map(chunks.metadata.row_group, range(len(known)))
    sizes = [group.column(leaf).num_values for group in groups]
    try:
        return ColumnBounds(
            data_type=data_type,
            minimum=pc.cast(decode([chunk.minimum for chunk in known]), arrow_type),
            maximum=pc.cast(decode([chunk.maximum for chunk in known]), arrow_type),
            may_hold_null=boolean_column([chunk.null_count != 0 for chunk in known]),
            may_hold_value=boolean_column(
                [chunk.null_count != size for chunk, size in zip(known, sizes, strict=True)]
            ),
            # Footer bounds ignore NaN.
            maximum_covers_nan=not pa.types.is_floating(arrow_type),
        )
    except (ValueError, ArithmeticError, pa.ArrowNotImplementedError):
        # A truncated string, or a value outside the table's type: having no bounds is always safe.
        return None


def _decoder(file_type: pa.DataType) -> Callable[[list[Any]], pa.Array] | None:
    """The function from raw footer bounds to an Arrow array of the file's type."""
    types = pa.types
    if types.is_signed_integer(file_type):
        return lambda raw: pc.cast(integer_column(raw), file_type)
    # The bounds of half floats are bytes.
    if types.is_floating(file_type) and not types.is_float16(file_type):
        return lambda raw: array_of(raw, from_arrow_type(file_type))
    if types.is_date32(file_type):
        return lambda raw: pc.cast(column_of(raw, pa.int32()), file_type)
    # Nanoseconds would need rounding, in different directions for each bound.
    if types.is_timestamp(file_type) and file_type.unit in ("ms", "us"):
        return lambda raw: pc.cast(integer_column(raw), file_type)
    if types.is_string(file_type):
        return lambda raw: string_column([b if b is None else b.decode() for b in raw])
    if types.is_decimal(file_type):
        return lambda raw: array_of(
            [_decimal(bound, file_type.scale) for bound in raw], from_arrow_type(file_type)
        )
    return None


def _decimal(raw: int | bytes | None, scale: int) -> Decimal | None:
    if raw is None:
        return None
    unscaled = int.from_bytes(raw, "big", signed=True) if isinstance(raw, bytes) else int(raw)
    return Decimal(unscaled).scaleb(-scale, _EXACT)
