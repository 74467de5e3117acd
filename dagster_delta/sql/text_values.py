"""Text as a number, a boolean, a date or a time, in every form that Spark's CAST reads.

Only text that depends on the day of the conversion (a time without a date) has no value here.
"""

from __future__ import annotations

import decimal
import re
from collections.abc import Callable
from functools import partial

import pyarrow as pa

from dagster_delta.protocol.schema import DataType, DecimalType, PrimitiveType
from dagster_delta.protocol.values.moments import BLANKS, read_day, read_moment
from dagster_delta.sql.types import fits

TextReader = Callable[[str], object]
"""The value of one text. Raises ValueError or ArithmeticError if it has none."""

_JAVA_BLANKS = "".join(map(chr, range(0x21)))
"""Characters that Spark trims from a text that becomes a floating or decimal number."""

_WHOLE = re.compile(r"[+-]?[0-9]+")
_NUMBER = re.compile(r"([+-]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?)[dDfF]?")
_HEXADECIMAL = re.compile(
    r"([+-]?)0[xX](?=\.?[0-9a-fA-F])([0-9a-fA-F]*)\.?([0-9a-fA-F]*)[pP]([+-]?[0-9]+)[dDfF]?"
)
_MAX_BINARY_EXPONENT = 1100
"""Numbers with more bits before the point, or more zeros after it, are infinite or zero."""
_NOT_FINITE = {
    "nan": "nan",
    **dict.fromkeys(("inf", "+inf", "infinity", "+infinity"), "inf"),
    **dict.fromkeys(("-inf", "-infinity"), "-inf"),
}
_TRUE, _FALSE = {"t", "true", "y", "yes", "1"}, {"f", "false", "n", "no", "0"}


def read_text(text: str, target: DataType) -> object:
    """The number or boolean value of a text; None if it has none."""
    read = text_reader(target)
    try:
        return None if read is None else read(text)
    except (ValueError, ArithmeticError):
        return None


def text_reader(target: DataType) -> TextReader | None:
    """The function that reads a text as a value of an atomic type; None if the type is unsupported.

    It gives dates as days since the epoch and times as microseconds since the epoch.
    """
    if isinstance(target, DecimalType):
        return _strip_blanks(_make_decimal_reader(target), _JAVA_BLANKS)
    if not isinstance(target, PrimitiveType):
        return None
    match target.name:
        case "byte" | "short" | "integer" | "long":
            return _strip_blanks(partial(_whole_number, target=target))
        case "float" | "double":
            return _strip_blanks(_make_float_reader(target), _JAVA_BLANKS)
        case "boolean":
            return _strip_blanks(_read_boolean)
        case "date":
            return read_day
        case "timestamp":
            return partial(read_moment, is_instant=True)
        case "timestamp_ntz":
            return partial(read_moment, is_instant=False)
    return None


def _strip_blanks(read: TextReader, blanks: str = BLANKS) -> TextReader:
    return lambda text: read(text.strip(blanks))


# Numbers and booleans


def _whole_number(text: str, *, target: DataType) -> int:
    if not _WHOLE.fullmatch(text) or not fits(int(text), target):
        raise ValueError(text)
    return int(text)


def _make_float_reader(target: PrimitiveType) -> Callable[[str], object]:
    arrow_type = pa.float32() if target.name == "float" else pa.float64()

    def read(text: str) -> object:
        special = "nan" if text in ("+NaN", "-NaN") else _NOT_FINITE.get(text.lower())
        if special is not None:
            return float(special)
        found = _NUMBER.fullmatch(text)
        digits = _decimal_digits(text) if found is None else found[1]
        # Arrow rounds to either width once; going through double would round a float twice.
        return pa.scalar(digits.removeprefix("+")).cast(arrow_type).as_py()

    return read


def _decimal_digits(text: str) -> str:
    """The decimal digits of a Java hexadecimal number with a power of two."""
    found = _HEXADECIMAL.fullmatch(text)
    if found is None:
        raise ValueError(text)
    sign, whole, fraction, power = found.groups()
    digits = int(whole + fraction, 16)
    exponent = int(power) - 4 * len(fraction)
    size = digits.bit_length() + exponent
    if not digits or size < -_MAX_BINARY_EXPONENT:
        return f"{sign}0"
    if size > _MAX_BINARY_EXPONENT:
        return f"{sign}inf"
    return (
        f"{sign}{digits << exponent}"
        if exponent >= 0
        else f"{sign}{digits * 5**-exponent}e{exponent}"
    )


def _read_boolean(text: str) -> bool:
    if text.lower() not in _TRUE | _FALSE:
        raise ValueError(text)
    return text.lower() in _TRUE


def _make_decimal_reader(target: DecimalType) -> Callable[[str], decimal.Decimal]:
    unit = decimal.Decimal(1).scaleb(-target.scale)
    context = decimal.Context(prec=400, rounding=decimal.ROUND_HALF_UP)
    bound = decimal.Decimal(10) ** (target.precision - target.scale)

    def read(text: str) -> decimal.Decimal:
        found = _NUMBER.fullmatch(text)
        if found is None or found[1] != text:
            raise ValueError(text)
        rounded = context.create_decimal(text).quantize(unit, context=context)
        if rounded.copy_abs() >= bound:
            raise ValueError(text)
        # A decimal has no negative zero.
        return rounded or rounded.copy_abs()

    return read
