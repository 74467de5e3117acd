"""Casts values as Spark's ANSI store assignment does: a value that does not fit is an error.

Three details follow Spark: a fraction is dropped when a double is stored as an integer, a double
beyond the range of a float becomes infinite, and a decimal is rounded half up when its scale
shrinks. An exact cast refuses what an integer, a decimal or a date would lose of a number or a
time; a float is always the nearest one. Time zone conversions use UTC, the zone of the embedded
engine's session: a timestamp without a zone is read as UTC. Times finer than a microsecond are
floored to it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow as pa

import dagster_delta.arrow_compute as pc
from dagster_delta.errors import MAX_EXAMPLES
from dagster_delta.protocol.schema import DataType, DecimalType, PrimitiveType
from dagster_delta.protocol.values.arrow_schema import to_arrow_type
from dagster_delta.protocol.values.partition_values import java_number
from dagster_delta.python_values import python_value

Cast = Callable[[pa.Array], pa.Array]
"""Converts a `pyarrow.Array` to one of the target type. Raises `pyarrow.ArrowInvalid`."""

_UTC_MICROSECONDS = pa.timestamp("us", "UTC")
_TEXTS = (pa.string(), pa.large_string(), pa.string_view())
_BYTES = (pa.binary(), pa.large_binary(), pa.binary_view())
_MAX_DIGITS = 38
_WIDE_BYTES = 16


def can_store(source: pa.DataType, target: DataType) -> bool:
    """Whether values of the Arrow type `source` may be stored in an atomic column of `target`."""
    try:
        value_cast(source, target)
    except TypeError:
        return False
    return True


def value_cast(source: pa.DataType, target: DataType, *, is_exact: bool = False) -> Cast:
    """The cast from an (unencoded, atomic) Arrow type to the Arrow form of an atomic Delta type."""
    cast = _find_cast(source, target, is_exact)
    if cast is None:
        raise TypeError(f"{source} cannot be stored as {target}")
    return cast


def failing_values(array: pa.Array, cast: Cast, limit: int = MAX_EXAMPLES) -> list[object]:
    """Up to `limit` values that `cast` refuses."""
    places = failing_places(
        lambda start, stop: cast(array.slice(start, stop - start)),
        (pa.ArrowInvalid, UnicodeDecodeError),
        range(len(array)),
        limit,
    )
    return [python_value(array[place]) for place in places]


def failing_places(
    attempt: Callable[[int, int], object],
    errors: tuple[type[Exception], ...],
    places: range,
    limit: int,
) -> list[int]:
    """Up to `limit` of the places that make `attempt(start, stop)` fail, found by bisection."""
    try:
        attempt(places.start, places.stop)
    except errors:
        if len(places) == 1:
            return list(places)
    else:
        return []
    middle = len(places) // 2
    found = failing_places(attempt, errors, places[:middle], limit)
    if len(found) < limit:
        found += failing_places(attempt, errors, places[middle:], limit - len(found))
    return found


def floor_to_microseconds(array: pa.Array) -> pa.Array:
    """A timestamp array of any unit and zone as UTC microseconds, finer times floored."""
    try:
        return array.cast(_UTC_MICROSECONDS)
    except pa.ArrowInvalid:
        if array.type.unit != "ns":
            raise
        naive = array.cast(pa.timestamp("ns"))
        floored = pc.floor_temporal(naive, unit="microsecond")
        return floored.cast(_UTC_MICROSECONDS)


def _find_cast(source: pa.DataType, target: DataType, is_exact: bool) -> Cast | None:
    types = pa.types
    if not isinstance(target, DecimalType | PrimitiveType):
        return None
    arrow_type = to_arrow_type(target)
    if types.is_null(source):
        return lambda array: pa.nulls(len(array), arrow_type)
    if isinstance(target, DecimalType):
        return _to_decimal(source, arrow_type, is_exact)
    match target.name:
        case "byte" | "short" | "integer" | "long":
            return _to_integer(source, arrow_type, is_exact)
        case "float" | "double":
            return _to_float(source, arrow_type)
        case "date" | "timestamp" | "timestamp_ntz":
            return _to_time(source, arrow_type, is_exact)
        case "string":
            return _to_string(source)
        case "boolean" if types.is_boolean(source):
            return _keep_values
        case "binary" if _is_binary(source):
            return lambda array: array.cast(arrow_type)
    return None


def _keep_values(array: pa.Array) -> pa.Array:
    return array


def _is_binary(source: pa.DataType) -> bool:
    return source in _BYTES or bool(pa.types.is_fixed_size_binary(source))


def holds_bytes(source: pa.DataType) -> bool:
    """Whether the values of an Arrow type are texts or bytes."""
    return source in _TEXTS or _is_binary(source)


# Numbers


def _to_integer(source: pa.DataType, target: pa.DataType, is_exact: bool) -> Cast | None:
    types = pa.types
    if types.is_integer(source):
        return _keep_values if source == target else lambda array: array.cast(target)
    if types.is_floating(source):
        if is_exact:
            return lambda array: array.cast(pa.float64()).cast(target)
        return lambda array: _truncate_floats(array, target)
    if types.is_decimal(source):
        options = pc.CastOptions(target_type=target, allow_decimal_truncate=not is_exact)
        if source.byte_width >= _WIDE_BYTES:
            return lambda array: pc.cast(array, options=options)
        # Arrow refuses every decimal of 32 bits as a long.
        wide = pa.decimal128(source.precision, source.scale)
        return lambda array: pc.cast(array.cast(wide), options=options)
    return None


def _truncate_floats(array: pa.Array, target: pa.DataType) -> pa.Array:
    truncated = pc.trunc(array.cast(pa.float64()))
    bound = 2.0 ** (target.bit_width - 1)
    fits = pc.and_(pc.greater_equal(truncated, -bound), pc.less(truncated, bound))
    if pc.all(fits, min_count=0).as_py() is False:
        raise pa.ArrowInvalid("a number is outside the range of the integer type")
    return truncated.cast(target)


def _to_float(source: pa.DataType, target: pa.DataType) -> Cast | None:
    types = pa.types
    if source == target:
        return _keep_values
    if types.is_integer(source):
        # Spark stores the nearest float; only a value out of range is an error, and every integer
        # is in the range of a float.
        return lambda array: array.cast(target, safe=False)
    if types.is_floating(source):
        return lambda array: array.cast(target)
    if types.is_decimal(source):
        return lambda array: _floats_from_decimals(array, target)
    return None


def _floats_from_decimals(array: pa.Array, target: pa.DataType) -> pa.Array:
    """The nearest floats; Arrow's own cast is sometimes off by a digit."""
    return array.cast(pa.string()).cast(target)


def _to_decimal(source: pa.DataType, target: pa.DataType, is_exact: bool) -> Cast | None:
    types = pa.types
    if source == target:
        return _keep_values
    if types.is_integer(source):
        digits = pa.decimal128(20, 0)
        rescale = _rescale_decimals(digits, target)
        return lambda array: rescale(array.cast(digits))
    if types.is_decimal(source):
        if target.scale >= source.scale:
            return _rescale_decimals(source, target)
        return lambda array: _round_decimals(array, target, is_exact)
    if types.is_floating(source):
        return lambda array: _decimals_from_floats(array, target, is_exact)
    return None


def _rescale_decimals(source: pa.DataType, target: pa.DataType) -> Cast:
    """The cast of decimals to no smaller scale."""
    if source.precision - source.scale + target.scale <= _MAX_DIGITS:
        return lambda array: array.cast(target)
    # Beyond 38 digits, Arrow's own cast can give a wrong number instead of an error.
    narrow, wide = pa.decimal128(_MAX_DIGITS, source.scale), pa.decimal256(76, target.scale)
    return lambda array: array.cast(narrow).cast(wide).cast(target)


def _round_decimals(array: pa.Array, target: pa.DataType, is_exact: bool) -> pa.Array:
    # Rounding may need one more digit than the source type has.
    wide = array.cast(pa.decimal256(76, array.type.scale))
    if is_exact:
        return wide.cast(target)
    rounded = pc.round(wide, target.scale, round_mode="half_towards_infinity")
    return rounded.cast(target)


def _decimals_from_floats(array: pa.Array, target: pa.DataType, is_exact: bool) -> pa.Array:
    """Round the shortest decimal text of each double, as Spark does, not its binary value."""
    # Imported late: few columns need it.
    from dagster_delta.sql.text_columns import text_conversion

    conversion = text_conversion(DecimalType(target.precision, target.scale))
    assert conversion is not None  # noqa: S101  of every decimal
    values = array.cast(pa.float64())
    stored = conversion.convert(values.cast(pa.string()))
    if is_exact:
        # The text of a float of 32 bits is longer as a double.
        read = _floats_from_decimals(stored, pa.float64()).cast(array.type)
        _refuse_loss(read.cast(pa.float64()), values)
    return stored


def _refuse_loss(stored: pa.Array, given: pa.Array) -> None:
    if pc.all(pc.equal(stored, given), min_count=0).as_py() is False:
        raise pa.ArrowInvalid("a value would lose a part")


# Dates and times


def _to_time(source: pa.DataType, target: pa.DataType, is_exact: bool) -> Cast | None:
    types = pa.types
    if source == target:
        return _keep_values
    if types.is_date(source):
        days: Cast = _days_from_milliseconds if types.is_date64(source) else _keep_values
        return lambda array: days(array).cast(target)
    if types.is_timestamp(source):
        if types.is_date32(target):
            return lambda array: _dates_from_timestamps(array, is_exact)
        return lambda array: floor_to_microseconds(array).cast(target)
    return None


def _dates_from_timestamps(array: pa.Array, is_exact: bool) -> pa.Array:
    local = array.cast(pa.timestamp(array.type.unit))
    dates = local.cast(pa.date32())
    if is_exact:
        _refuse_loss(dates.cast(local.type), local)
    return dates


def _days_from_milliseconds(array: pa.Array) -> pa.Array:
    return array.cast(pa.int64()).cast(pa.timestamp("ms")).cast(pa.date32())


# Text


def _to_string(source: pa.DataType) -> Cast | None:
    types = pa.types
    if types.is_string(source):
        return _keep_values
    if holds_bytes(source) or types.is_integer(source) or types.is_boolean(source):
        return lambda array: array.cast(pa.string())
    if types.is_date32(source):
        return _text_from_dates
    if types.is_date64(source):
        return lambda array: _text_from_dates(_days_from_milliseconds(array))
    if types.is_decimal(source):
        return _format_each(lambda value: format(value, "f"))
    if types.is_floating(source):
        return _text_from_floats
    if types.is_timestamp(source):
        return _text_from_timestamps
    return None


def _format_each(format_value: Callable[[Any], str]) -> Cast:
    def cast(array: pa.Array) -> pa.Array:
        values = array.to_pylist()
        return pa.array([None if v is None else format_value(v) for v in values], pa.string())

    return cast


def _text_from_floats(array: pa.Array) -> pa.Array:
    # The shortest digits that convert back to the same float depend on its width.
    digits = array.cast(pa.float32() if array.type.bit_width == 16 else array.type)
    texts = digits.cast(pa.string()).to_pylist()
    return pa.array([None if text is None else java_number(text) for text in texts], pa.string())


def _text_from_dates(array: pa.Array) -> pa.Array:
    """Dates or times as Arrow writes them, the years beyond 9999 with a sign."""
    texts = array.cast(pa.string())
    # Arrow has a note instead of an error for years with more than 15 bits.
    if pc.any(pc.starts_with(texts, pattern="<"), min_count=0).as_py():
        raise pa.ArrowInvalid("only Spark writes years of this length as text")
    return pc.replace_substring_regex(texts, r"^([0-9]{5})", r"+\1")


def _text_from_timestamps(array: pa.Array) -> pa.Array:
    texts = _text_from_dates(floor_to_microseconds(array).cast(pa.timestamp("us")))
    texts = pc.replace_substring_regex(texts, r"\.0+$", "")
    return pc.replace_substring_regex(texts, r"(\.\d*[1-9])0+$", r"\1")
