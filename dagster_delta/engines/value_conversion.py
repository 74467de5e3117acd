"""Converting values to any type, keeping what fails apart from what succeeds.

Store assignment where it knows the pair of types, the casts of the SQL engine otherwise: both give
what Spark's ANSI CAST gives, or fail. A value that fails becomes null and is counted.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dagster_delta.engines.nested_arrays import (
    list_elements,
    map_entries,
    rebuild_list,
    rebuild_map,
    rebuild_struct,
)
from dagster_delta.engines.sql.ansi_cast import value_cast
from dagster_delta.errors import InvalidArgument, UnsupportedExpression
from dagster_delta.protocol.arrow_schema import to_arrow_type
from dagster_delta.protocol.schema import (
    ArrayType,
    DataType,
    DecimalType,
    MapType,
    PrimitiveType,
    StructField,
    StructType,
)

__all__ = ["Converted", "ValueConversion", "convert_at", "value_conversion"]

MAX_EXAMPLES = 5
_EXAMPLE_LENGTH = 200

_Kernel = Callable[[Any], Any]
"""From an array of the old type to one of the new. Raises ArrowInvalid or InvalidArgument where a
value fails."""

_STRING = PrimitiveType("string")
_FAILURES = (pa.ArrowInvalid, InvalidArgument, UnicodeDecodeError)


@dataclass(slots=True)
class Converted:
    """Values of the new type, and what became of those that have no counterpart in it."""

    values: Any
    """`pyarrow.Array` of the new type; null where a value failed."""
    num_failed: int = 0
    examples: list[str] = field(default_factory=list)
    """The first few values that failed, as text."""


@dataclass(frozen=True, slots=True)
class ValueConversion:
    """What makes new values out of old ones, or out of whole rows as structs."""

    kernel: _Kernel
    arrow_type: Any
    """`pyarrow.DataType` of the new values."""
    passes: Callable[[Any], Any] | None = None
    """A quick mask of the values that are likely to succeed; None where there is no such test."""

    def convert(self, array: Any) -> Converted:
        """The values of a `pyarrow.Array`, converted. Raises nothing over a value."""
        try:
            return Converted(self.kernel(array))
        except _FAILURES:
            return self._convert_with_failures(array)

    def _convert_with_failures(self, array: Any) -> Converted:
        failed = np.zeros(len(array), dtype=bool)
        candidates = array
        if self.passes is not None:
            likely = self.passes(array).fill_null(True)
            failed |= ~np.asarray(likely.to_numpy(zero_copy_only=False), dtype=bool)
            candidates = _without(array, failed)
        pieces = list(self._pieces(candidates, 0, failed))
        values = pa.concat_arrays(pieces) if len(pieces) > 1 else pieces[0]
        positions = np.flatnonzero(failed)
        examples = [_as_text(array[int(each)]) for each in positions[:MAX_EXAMPLES]]
        return Converted(values, len(positions), examples)

    def _pieces(self, array: Any, start: int, failed: Any) -> list[Any]:
        """The converted array in pieces, found by halving around the values that fail."""
        try:
            return [self.kernel(array)]
        except _FAILURES:
            if len(array) == 1:
                failed[start] = True
                return [pa.nulls(1, self.arrow_type)]
        middle = len(array) // 2
        return [
            *self._pieces(array.slice(0, middle), start, failed),
            *self._pieces(array.slice(middle), start + middle, failed),
        ]


def value_conversion(source: DataType, target: DataType) -> ValueConversion:
    """How values of one atomic type become values of another.

    Raises:
        UnsupportedExpression: no kernel is known to convert as Spark does.
    """
    arrow_source = to_arrow_type(source)
    try:
        kernel = value_cast(arrow_source, target)
    except TypeError:
        kernel = _sql_cast(source, target)
    return ValueConversion(kernel, to_arrow_type(target), _likely(source, target))


def convert_at(
    array: Any,
    old: DataType,
    new: DataType,
    steps: tuple[str, ...],
    conversion: ValueConversion,
) -> Converted:
    """The array with the values at a path below it converted.

    Args:
        array: `pyarrow.Array` of `old`.
        old: type of the column.
        new: type of the column after the change: other names below it, the same order.
        steps: path below the column; empty for the column itself.
        conversion: of the values at its end.
    """
    if not steps:
        return conversion.convert(array)
    match old, new:
        case ArrayType(), ArrayType():
            elements = list_elements(array)
            inner = convert_at(elements, old.element_type, new.element_type, steps[1:], conversion)
            inner.values = rebuild_list(array, inner.values, to_arrow_type(new))
        case MapType(), MapType():
            keys, values = map_entries(array)
            inner = convert_at(values, old.value_type, new.value_type, steps[1:], conversion)
            inner.values = rebuild_map(array, keys, inner.values, to_arrow_type(new))
        case StructType(), StructType():
            inner = _convert_field(array, old, new, steps, conversion)
        case _:
            raise TypeError(f"{steps[0]} is no part of {old}")
    return inner


def _convert_field(
    array: Any,
    old: StructType,
    new: StructType,
    steps: tuple[str, ...],
    conversion: ValueConversion,
) -> Converted:
    position = _position(old.fields, steps[0])
    children = array.flatten()
    inner = convert_at(
        children[position],
        old.fields[position].data_type,
        new.fields[position].data_type,
        steps[1:],
        conversion,
    )
    children[position] = inner.values
    inner.values = rebuild_struct(array, children, to_arrow_type(new))
    return inner


def _position(fields: tuple[StructField, ...], name: str) -> int:
    names = [each.name for each in fields]
    if name in names:
        return names.index(name)
    return [each.casefold() for each in names].index(name.casefold())


def _sql_cast(source: DataType, target: DataType) -> _Kernel:
    from dagster_delta.engines.sql.expressions import parse_expression
    from dagster_delta.engines.sql.types import sql_type_name

    if source == _STRING and isinstance(target, DecimalType):
        return _text_to_decimal(target)
    if source == _STRING and str(target) in _TEXT_KERNELS:
        return _TEXT_KERNELS[str(target)]
    if (str(source), str(target)) in _EPOCH_KERNELS:
        return _EPOCH_KERNELS[str(source), str(target)]
    schema = StructType((StructField("value", source),))
    expression = parse_expression(f"CAST(`value` AS {sql_type_name(target)})", schema)
    try:
        expression.check_embeddable()
    except UnsupportedExpression as error:
        raise UnsupportedExpression(
            f"{sql_type_name(source)} cannot be converted to {sql_type_name(target)} here exactly "
            "as Spark converts it; say how in `cast`, as a Spark SQL expression, or go by way of "
            "a string column"
        ) from error
    arrow_type = to_arrow_type(target)

    def convert(array: Any) -> Any:
        values = expression.evaluate(pa.record_batch([array], names=["value"]))
        combined = values.combine_chunks() if values.num_chunks != 1 else values.chunk(0)
        return combined.cast(arrow_type) if combined.type != arrow_type else combined

    return convert


# Text


_NUMBER = r"^\s*[+-]?(\d+(\.\d*)?|\.\d+)([eE][+-]?\d{1,3})?\s*$"
_FLOATING = _NUMBER + r"|(?i)^\s*([+-]?(inf|infinity)|nan)\s*$"
_WHOLE_NUMBER = r"^ *[+-]?\d+ *$"
_DATE = r"^ *\d{4}-\d{1,2}-\d{1,2} *$"
_TIMESTAMP = r"^ *\d{4}-\d{2}-\d{2}([ T]\d{2}:\d{2}:\d{2}(\.\d{1,6})?)? *$"
_BOOLEAN = r"(?i)^ *(t|true|y|yes|1|f|false|n|no|0) *$"

_TEXT_FORMS = {
    "byte": _WHOLE_NUMBER,
    "short": _WHOLE_NUMBER,
    "integer": _WHOLE_NUMBER,
    "long": _WHOLE_NUMBER,
    "float": _FLOATING,
    "double": _FLOATING,
    "date": _DATE,
    "timestamp": _TIMESTAMP,
    "timestamp_ntz": _TIMESTAMP,
    "boolean": _BOOLEAN,
}


def _likely(source: DataType, target: DataType) -> Callable[[Any], Any] | None:
    """A test that rejects most of what fails, so that few halvings are needed for the rest."""
    if source == _STRING:
        form = _NUMBER if isinstance(target, DecimalType) else _TEXT_FORMS.get(str(target))
        return None if form is None else lambda array: pc.match_substring_regex(array, form)
    bits = {"byte": 7, "short": 15, "integer": 31, "long": 63}.get(str(target))
    if bits is None or isinstance(source, DecimalType):
        return None
    if str(source) in ("short", "integer", "long"):
        low, high = -(2**bits), 2**bits - 1
        if str(source) == "long" or bits < 63:
            return lambda array: _within(array, low, high)
    if str(source) in ("float", "double"):
        bound = 2.0**bits
        return lambda array: _within(pc.trunc(array.cast(pa.float64())), -bound, bound)
    return None


def _within(array: Any, low: float, high: float) -> Any:
    return pc.and_(
        pc.greater_equal(array.cast(pa.float64(), safe=False), float(low)),
        pc.less_equal(array.cast(pa.float64(), safe=False), float(high)),
    )


def _text_to_floats(arrow_type: Any) -> _Kernel:
    def convert(array: Any) -> Any:
        likely = pc.match_substring_regex(array, _FLOATING)
        if not pc.all(likely, min_count=0).as_py():
            raise pa.ArrowInvalid("a text is no number")
        return pc.utf8_lower(pc.utf8_trim_whitespace(array)).cast(arrow_type)

    return convert


def _text_to_decimal(target: DecimalType) -> _Kernel:
    import decimal

    arrow_type = pa.decimal128(target.precision, target.scale)
    unit = decimal.Decimal(1).scaleb(-target.scale)
    context = decimal.Context(prec=400, rounding=decimal.ROUND_HALF_UP)

    def convert_one(text: str | None) -> decimal.Decimal | None:
        if text is None:
            return None
        try:
            return context.create_decimal(text.strip()).quantize(unit, context=context)
        except decimal.InvalidOperation as error:
            raise pa.ArrowInvalid(f"{text} is beyond every decimal") from error

    def convert(array: Any) -> Any:
        likely = pc.match_substring_regex(array, _NUMBER)
        if not pc.all(likely, min_count=0).as_py():
            raise pa.ArrowInvalid("a text is no plain number")
        return pa.array([convert_one(each) for each in array.to_pylist()], arrow_type)

    return convert


_TEXT_KERNELS: dict[str, _Kernel] = {
    "float": _text_to_floats(pa.float32()),
    "double": _text_to_floats(pa.float64()),
}


# Times as seconds since the epoch


def _seconds_of(array: Any) -> Any:
    return pc.floor_temporal(array, unit="second").cast(pa.timestamp("s", "UTC")).cast(pa.int64())


def _time_of(array: Any) -> Any:
    return pc.multiply_checked(array.cast(pa.int64()), 1_000_000).cast(pa.timestamp("us", "UTC"))


_EPOCH_KERNELS: dict[tuple[str, str], _Kernel] = {
    ("timestamp", "long"): _seconds_of,
    **{(name, "timestamp"): _time_of for name in ("byte", "short", "integer", "long")},
}


def _without(array: Any, failed: Any) -> Any:
    return pc.if_else(pa.array(~failed), array, pa.scalar(None, array.type))


def _as_text(scalar: Any) -> str:
    try:
        return repr(scalar.as_py())[:_EXAMPLE_LENGTH]
    except (ValueError, OverflowError, UnicodeDecodeError):
        return f"{scalar.value} in {scalar.type}"
