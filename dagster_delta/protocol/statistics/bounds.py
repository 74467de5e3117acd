"""What the log records about one column in each of many files: bounds and nulls, columnar.

Spec: Per-file Statistics; Partition Value Serialization.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import TypeAlias

import msgspec
import pyarrow as pa

import dagster_delta.arrow_compute as pc
from dagster_delta.protocol.features.table_configuration import TableConfiguration
from dagster_delta.protocol.features.text_limits import char_length, padded_type
from dagster_delta.protocol.schema import DataType, DecimalType, PrimitiveType, StructField
from dagster_delta.protocol.values.arrow_columns import string_column, whole_array
from dagster_delta.protocol.values.arrow_schema import to_arrow_type
from dagster_delta.protocol.values.arrow_values import (
    FALSE,
    TRUE,
    array_of,
    every,
    integer_scalar,
    null_scalar,
    scalar_of,
)
from dagster_delta.protocol.values.partition_values import parse_partition_column

_INTEGERS = ("byte", "short", "integer", "long")
_DECIMAL_DIGITS = {"byte": 3, "short": 5, "integer": 10, "long": 19}
_FLOATS = ("float", "double")
_TIMESTAMPS = ("timestamp", "timestamp_ntz")

_DOUBLE = PrimitiveType("double")

DOUBLE_DIGITS = 15
"""Decimals of so many digits are doubles and back without a difference."""
DOUBLE_ERROR = 2.0**-50
"""More than the relative difference of any decimal from its double, there and back."""
_END_OF_INT64 = 2.0**63

# Writers may truncate timestamps in statistics to milliseconds.
_MILLISECOND = 1_000
_LAST_MICROSECOND = 2**63 - 1 - _MILLISECOND

MINUTE = 60_000_000
"""More microseconds than Spark before 4.0 drops from the text of a timestamp: the seconds of the
offset from UTC."""
END_OF_SECONDS_IN_OFFSETS = 737 * 86_400_000_000
"""1972-01-08, in microseconds since 1970: later offsets of all time zones have no seconds."""

STRING_PREFIX_BYTES = 32
"""Any text may follow a maximum of so many bytes. delta-spark keeps 32 characters, of which
earlier versions counted those beyond U+FFFF twice; the specification only allows the truncation."""
LAST_CHARACTER = "\U0010ffff"
"""What delta-spark appends to a truncated maximum."""
OLD_ENDING = "\\??\ufffd$"
"""Pattern of the end of maximums that earlier versions truncated. They appended U+FFFD, which many
characters exceed; a question mark before it is half a character."""

# More values than this are searched as ranges, so that cost stays flat for long IN lists.
_MAX_IN_RANGES = 64


Possible: TypeAlias = tuple[pa.BooleanArray, pa.BooleanArray]
"""Files in which a value may satisfy a condition, and in which one may not: a truth value each."""


class ColumnBounds(msgspec.Struct, frozen=True):
    """Bounds on one column, one row per file."""

    data_type: DataType
    """Type of `minimum` and `maximum`."""
    minimum: pa.Array
    """pyarrow Array: no value is less. Null if unknown."""
    maximum: pa.Array
    """pyarrow Array: no value is greater. Null if unknown."""
    may_hold_null: pa.BooleanArray
    """pa.BooleanArray, without nulls: false where no row is null."""
    may_hold_value: pa.BooleanArray
    """pa.BooleanArray, without nulls: false where every row is null."""
    maximum_covers_nan: bool = True
    """False if NaN may hide above `maximum`."""

    def below(self, value: object, data_type: DataType, *, or_equal: bool) -> Possible | None:
        """Where values may be less than a value, both as `data_type`.

        None if nothing is known. Raises as `scalar_of` does.
        """
        known = self.widened(data_type)
        if known is None:
            return None
        scalar = scalar_of(value, data_type)
        less, not_less = (pc.less_equal, pc.greater) if or_equal else (pc.less, pc.greater_equal)
        below = _assume_possible(less(known.minimum, scalar))
        if not known.maximum_covers_nan:
            # NaN is the greatest value, and a maximum may ignore it.
            return below, every(True, len(below))
        return below, _assume_possible(not_less(known.maximum, scalar))

    def membership(self, values: Sequence[object], data_type: DataType) -> Possible | None:
        """Where values may be in a list.

        All are compared as `data_type`; None if nothing is known. Raises as `array_of` does.
        """
        known = self.widened(data_type)
        if known is None:
            return None
        listed = array_of(values, data_type)
        if len(listed) > 1:
            listed = pc.unique(listed)
            listed = pc.take(listed, pc.sort_indices(listed))
        inside = every(False, len(known.minimum))
        for first, last in value_ranges(listed):
            touches = _assume_possible(pc.less_equal(known.minimum, last))
            touches = pc.and_(touches, _assume_possible(pc.greater_equal(known.maximum, first)))
            inside = pc.or_(inside, touches)
        if not known.maximum_covers_nan:
            return inside, every(True, len(inside))
        # A comparison takes a fifth of the time of a search.
        is_listed = (
            pc.equal(known.minimum, listed[0])
            if len(listed) == 1
            else pc.is_in(known.minimum, value_set=listed)
        )
        only_listed = pc.and_(pc.equal(known.minimum, known.maximum), is_listed)
        return inside, pc.invert(pc.fill_null(only_listed, FALSE))

    def widened(self, data_type: DataType) -> ColumnBounds | None:
        """The bounds as values of a wider type, or None if the order could change.

        Bounds that cannot be converted become unknown.
        """
        if pa.types.is_null(self.minimum.type):
            return None  # a type without order
        if data_type == self.data_type:
            return self
        if not keeps_order(self.data_type, data_type):
            return None
        target = to_arrow_type(data_type)
        try:
            return ColumnBounds(
                data_type,
                _cast_bounds(self.minimum, target),
                _cast_bounds(self.maximum, target),
                self.may_hold_null,
                self.may_hold_value,
                self.maximum_covers_nan,
            )
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
            return None


def partition_column(
    name: str, configuration: TableConfiguration, partition_values: pa.ChunkedArray | pa.MapArray
) -> pa.Array:
    """The values that all rows of each file have in the partition column of this logical name."""
    field = configuration.schema.field(name)
    key = string_column([configuration.physical_name(name)])[0]
    # Searching the last occurrence is ten times as fast as the first; keys are unique.
    return values_of_partition(pc.map_lookup(partition_values, key, "last"), field)


def values_of_partition(texts: pa.Array | pa.ChunkedArray, field: StructField) -> pa.Array:
    """The values of a partition column from their texts, padded if it is CHAR(n)."""
    values = parse_partition_column(texts, field.data_type, column=field.name)
    length = char_length(padded_type(field))
    return values if length is None else pc.utf8_rpad(values, width=length, padding=" ")


def bounds_of_partition_values(values: pa.Array, data_type: DataType) -> ColumnBounds:
    """Exact bounds of a partition column: every row of a file has the file's value."""
    known = _without_nan(values, data_type)
    return ColumnBounds(data_type, known, known, pc.is_null(values), pc.is_valid(values))


def bounds_of_statistics(statistics: pa.Table, index: int, data_type: DataType) -> ColumnBounds:
    """Bounds of column `index` of a statistics table.

    Tight and wide bounds are treated alike. A null count is used only if it is zero or the number
    of records, so that wide counts are also read correctly. The table is that of
    `parse_statistics_json`, which has the column at position `index`.
    """
    minimum, maximum = (whole_array(statistics[f"{side}.{index}"]) for side in ("min", "max"))
    if str(data_type) == "string" and pa.types.is_null(minimum.type):
        # Of CHAR(n), see `StatisticsColumn.is_padded`.
        minimum, maximum = pc.cast(minimum, pa.string()), pc.cast(maximum, pa.string())
    null_count = whole_array(statistics[f"null_count.{index}"])
    records = whole_array(statistics["num_records"])
    is_float = str(data_type) in _FLOATS
    return ColumnBounds(
        data_type,
        _lower_bound(_without_nan(minimum, data_type), data_type),
        _upper_bound(_without_nan(maximum, data_type), data_type),
        pc.fill_null(pc.not_equal(null_count, integer_scalar(0)), TRUE),
        pc.fill_null(pc.not_equal(null_count, records), TRUE),
        # Several writers ignore NaN in minimum and maximum.
        maximum_covers_nan=not is_float,
    )


def _without_nan(values: pa.Array, data_type: DataType) -> pa.Array:
    if str(data_type) not in _FLOATS:
        return values
    return pc.if_else(pc.is_nan(values), null_scalar(values.type), values)


def _lower_bound(minimum: pa.Array, data_type: DataType) -> pa.Array:
    """The minimum, lowered if it may be the text of a float, or of a decimal as a double."""
    if isinstance(data_type, DecimalType):
        return _move_bounds(minimum, data_type, pc.subtract)
    match str(data_type):
        case "double":
            return pc.min_element_wise(minimum, _as_float(minimum))
        case "timestamp":
            return _move_if_early(minimum, -MINUTE)
    return minimum


def _move_if_early(times: pa.Array, microseconds: int) -> pa.Array:
    """Timestamps, moved if offsets from UTC had seconds at that time."""
    ticks = times.view(pa.int64())
    is_early = pc.less(ticks, integer_scalar(END_OF_SECONDS_IN_OFFSETS))
    if not pc.any(is_early).as_py():
        return times
    fits = pc.greater(ticks, integer_scalar(-(2**63) + MINUTE))
    moved = pc.add(pc.if_else(fits, ticks, null_scalar(pa.int64())), integer_scalar(microseconds))
    return pc.if_else(is_early, moved, ticks).view(times.type)


def _move_bounds(
    bounds: pa.Array, data_type: DecimalType, move: Callable[..., pa.Array]
) -> pa.Array:
    """Decimal bounds moved outwards by what a double may differ from them; null if that is not a
    value of the type. Some writers, such as deltalake, compute bounds as doubles.

    Bounds at the ends of int64 are null too: deltalake 1.6 computes those of decimals without a
    fraction as 64-bit integers, which stop there.
    """
    if data_type.precision <= DOUBLE_DIGITS:
        return bounds
    numbers = pc.cast(bounds, pa.float64())
    is_end = pc.equal(pc.abs(numbers), scalar_of(_END_OF_INT64, _DOUBLE))
    numbers = pc.if_else(is_end, null_scalar(pa.float64()), numbers)
    moved = move(numbers, pc.multiply(pc.abs(numbers), scalar_of(DOUBLE_ERROR, _DOUBLE)))
    most = scalar_of(10.0 ** (data_type.precision - data_type.scale) * (1 - DOUBLE_ERROR), _DOUBLE)
    fitting = pc.if_else(pc.less(pc.abs(moved), most), moved, null_scalar(pa.float64()))
    return pc.cast(fitting, bounds.type, safe=False)


def _as_float(values: pa.Array) -> pa.Array:
    """Doubles rounded to floats; null if not a float.

    The statistics of a file from before the column was widened contain floats: there, 3.4 means the
    double 3.4000000953674316.
    """
    rounded = pc.cast(pc.cast(values, pa.float32(), safe=False), pa.float64())
    return pc.if_else(pc.is_finite(rounded), rounded, null_scalar(pa.float64()))


def _upper_bound(maximum: pa.Array, data_type: DataType) -> pa.Array:
    """The maximum, raised if a writer may have truncated it."""
    name = str(data_type)
    if isinstance(data_type, DecimalType):
        return _move_bounds(maximum, data_type, pc.add)
    if name in _TIMESTAMPS:
        if name == "timestamp":
            maximum = _move_if_early(maximum, MINUTE)
        ticks = maximum.view(pa.int64())
        known = pc.less(ticks, integer_scalar(_LAST_MICROSECOND))
        below = pc.if_else(known, ticks, null_scalar(pa.int64()))
        raised = pc.add(below, integer_scalar(_MILLISECOND))
        return raised.view(maximum.type)
    if name == "double":
        return pc.max_element_wise(maximum, _as_float(maximum))
    if name == "string":
        length = pc.cast(pc.binary_length(maximum), pa.int64())
        may_be_cut = pc.greater_equal(length, integer_scalar(STRING_PREFIX_BYTES))
        if pc.any(may_be_cut).as_py():
            last, nothing = string_column([LAST_CHARACTER, ""])
            kept = pc.replace_substring_regex(maximum, pattern=OLD_ENDING, replacement="")
            longer = pc.binary_join_element_wise(kept, last, nothing)
            return pc.if_else(may_be_cut, longer, maximum)
    return maximum


def value_ranges(values: pa.Array) -> Iterator[tuple[pa.Scalar, pa.Scalar]]:
    """First and last of each run of sorted values; the number of runs is bounded."""
    size = max(1, math.ceil(len(values) / _MAX_IN_RANGES))
    for start in range(0, len(values), size):
        yield values[start], values[min(start + size, len(values)) - 1]


def next_prefix(prefix: str) -> str | None:
    """The smallest string greater than every string that begins with `prefix`; None if there is
    none.
    """
    for end in range(len(prefix), 0, -1):
        following = ord(prefix[end - 1]) + 1
        if 0xD800 <= following <= 0xDFFF:
            following = 0xE000  # surrogates are not characters, and UTF-8 order skips them
        if following <= 0x10FFFF:
            return prefix[: end - 1] + chr(following)
    return None


def _assume_possible(comparison: pa.BooleanArray) -> pa.BooleanArray:
    """A comparison with an unknown bound is possible."""
    return pc.fill_null(comparison, TRUE)


def keeps_order(source: DataType, target: DataType) -> bool:
    """Whether the cast between two different types is exact enough to keep values in order."""
    before, after = str(source), str(target)
    if isinstance(target, DecimalType):
        if before in _INTEGERS:
            return target.precision - target.scale >= _DECIMAL_DIGITS[before]
        return (
            isinstance(source, DecimalType)
            and target.scale >= source.scale
            and target.precision - target.scale >= source.precision - source.scale
        )
    if before in _INTEGERS:
        wider = _INTEGERS[_INTEGERS.index(before) :]
        return after in wider or after == "double"
    if before == "float":
        return after == "double"
    if before == "date":
        return after in _TIMESTAMPS
    # The embedded session's time zone is UTC, where both kinds of timestamp agree.
    return before in _TIMESTAMPS and (after in _TIMESTAMPS or after == "date")


def _cast_bounds(values: pa.Array, target: pa.DataType) -> pa.Array:
    if pa.types.is_timestamp(values.type) and pa.types.is_timestamp(target):
        return values.view(pa.int64()).view(target)
    # Unsafe if rounding is intended: long to double, timestamp to date.
    loses = pa.types.is_floating(target) or pa.types.is_date(target)
    return pc.cast(values, target, safe=not loses)
