"""Which row groups of a file, and which of their rows, may match a condition by their bounds.

The footer has the bounds of row groups, the page index those of pages. Both are of the file, and
count only where the file's types say the same as the table's.

Spec: none; Parquet's file format: Statistics, Page Index.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

import dagster_delta.arrow_compute as pc
from dagster_delta.nested_arrays import bits_of
from dagster_delta.parquet.legacy_calendar import LegacyCalendar
from dagster_delta.parquet.opened_file import OpenedFile
from dagster_delta.parquet.projection import locate_leaf
from dagster_delta.parquet_format.footer import ChunkBounds, decimal_bound
from dagster_delta.parquet_format.page_excerpt import find_first_rows
from dagster_delta.protocol.features.table_configuration import TableConfiguration
from dagster_delta.protocol.features.text_limits import char_paths
from dagster_delta.protocol.schema import DataType
from dagster_delta.protocol.statistics.bounds import ColumnBounds
from dagster_delta.protocol.values.arrow_columns import (
    boolean_column,
    column_of,
    integer_column,
    string_column,
)
from dagster_delta.protocol.values.arrow_schema import from_arrow_type, to_arrow_type
from dagster_delta.protocol.values.arrow_values import array_of
from dagster_delta.sql.skipping import bounded_columns, possible_outcomes

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from dagster_delta.sql.typed import Typed

_MAX_PAGES = 0.5
"""Where more of the pages may match, all are decoded."""


def matching_row_groups(
    condition: Typed, opened: OpenedFile, configuration: TableConfiguration
) -> list[int]:
    """Indexes of the row groups that may hold a matching row, in order."""
    count = opened.footer.num_row_groups
    # For a file of one row group the log has the same bounds.
    if count < 2:
        return list(range(count))
    bounds = {}
    for path, leaf, file_type, data_type in _bounded_leaves(condition, opened, configuration):
        known = opened.statistics.of(leaf)
        sizes = [
            opened.footer.row_group(group).column(leaf).num_values for group in range(len(known))
        ]
        found = _to_column_bounds(known, sizes, file_type, data_type)
        if found is not None:
            bounds[path] = found
    matches = possible_outcomes(condition, bounds, count).true.to_pylist()
    return [index for index, may in enumerate(matches) if may]


def matching_rows(
    condition: Typed, opened: OpenedFile, group: int, configuration: TableConfiguration
) -> NDArray[np.bool_] | None:
    """For each row of a row group, whether its pages may hold a matching row; None if unknown, or
    if most pages may.
    """
    rows: NDArray[np.bool_] | None = None
    for path, leaf, file_type, data_type in _bounded_leaves(condition, opened, configuration):
        pages = opened.statistics.of_pages(opened.handle, group, leaf)
        if pages is None:
            continue
        known = _to_column_bounds(pages, [None] * len(pages), file_type, data_type)
        if known is None:
            continue
        # Pages of other columns begin at other rows: each column rules out rows of its own.
        may = bits_of(possible_outcomes(condition, {path: known}, len(pages)).true)
        if np.mean(may) > _MAX_PAGES:
            continue
        first_rows = find_first_rows(opened.handle, opened.footer, group, leaf)
        if first_rows is None or len(first_rows) != len(pages) + 1:
            continue
        found = np.repeat(may, np.diff(first_rows))
        rows = found if rows is None else rows & found
    return rows


def _bounded_leaves(
    condition: Typed, opened: OpenedFile, configuration: TableConfiguration
) -> Iterator[tuple[tuple[str, ...], int, pa.DataType, DataType]]:
    """The columns of a condition whose bounds in a file hold for the table's values: path, index
    and Arrow type of the Parquet column, and the table's type.
    """
    schema, mode = configuration.schema, configuration.column_mapping_mode
    partitioned = set(configuration.partition_columns)
    has_legacy_times = LegacyCalendar.of(opened.arrow_schema.metadata) is not None
    padded = char_paths(schema)
    for path in bounded_columns(condition):
        located = locate_leaf(opened.arrow_schema, schema, path, mode)
        # Files may have a column with the name of a partition column: the log counts.
        if located is None or path in padded or schema.field(path[0]).name in partitioned:
            continue
        leaf, file_type = located
        if not (has_legacy_times and pa.types.is_temporal(file_type)):
            yield path, leaf, file_type, schema.fields_along(path)[-1].data_type


def _to_column_bounds(
    known: Sequence[ChunkBounds],
    sizes: Sequence[int | None],
    file_type: pa.DataType,
    data_type: DataType,
) -> ColumnBounds | None:
    """Bounds of one column, one per row group or page; None if the file's cannot be used.

    `sizes`: number of values of each, None if unknown.
    """
    decode = _find_bound_decoder(file_type)
    if decode is None:
        return None
    arrow_type = to_arrow_type(data_type)
    try:
        return ColumnBounds(
            data_type=data_type,
            minimum=pc.cast(decode([chunk.minimum for chunk in known]), arrow_type),
            maximum=pc.cast(decode([chunk.maximum for chunk in known]), arrow_type),
            may_hold_null=boolean_column([chunk.null_count != 0 for chunk in known]),
            may_hold_value=boolean_column(
                [
                    size is None or chunk.null_count != size
                    for chunk, size in zip(known, sizes, strict=True)
                ]
            ),
            # Footer bounds ignore NaN.
            maximum_covers_nan=not pa.types.is_floating(arrow_type),
        )
    except (ValueError, ArithmeticError, pa.ArrowNotImplementedError):
        # A truncated string, or a value outside the table's type: having no bounds is always safe.
        return None


def _find_bound_decoder(file_type: pa.DataType) -> Callable[[list[Any]], pa.Array] | None:
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
            [None if bound is None else decimal_bound(bound, file_type.scale) for bound in raw],
            from_arrow_type(file_type),
        )
    return None
