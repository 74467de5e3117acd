"""Text as a number, a boolean, a date or a time, in every form that Spark's CAST reads.

Only text that depends on the day of the conversion (a time without a date) has no value here.
"""

from __future__ import annotations

import datetime as dt
import decimal
import re
import zoneinfo
from collections.abc import Callable
from functools import partial

import pyarrow as pa

from dagster_delta.protocol.schema import DataType, DecimalType, PrimitiveType
from dagster_delta.sql.types import fits

TextReader = Callable[[str], object]
"""The value of one text. Raises ValueError or ArithmeticError if it has none."""

_JAVA_BLANKS = "".join(map(chr, range(0x21)))
"""Characters that Spark trims from a text that becomes a floating or decimal number."""
_BLANKS = _JAVA_BLANKS + "\x7f"
"""Characters that Spark trims from any other text."""

_DAY_US = 86_400_000_000

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
_DATE = re.compile(r"([+-]?[0-9]{4,7})(?:-([0-9]{1,2})(?:-([0-9]{1,2})(?:[ T].*)?)?)?", re.DOTALL)
_TIME = re.compile(
    r"([+-]?[0-9]{4,6})(?:-([0-9]{1,2})(?:-([0-9]{1,2})(?:[ T]([0-9]{1,2})"
    r"(?::([0-9]{1,2})(?::([0-9]{1,2})(?:\.([0-9]*))?([^0-9.].*)?)?)?)?)?)?",
    re.DOTALL,
)
_OFFSET = re.compile(r"(?:UTC|GMT|UT)?([+-])([0-9]{1,2})(?::?([0-9]{1,2}))?")
_MAX_OFFSET_MINUTES = 18 * 60


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
        return _stripped(_decimal(target), _JAVA_BLANKS)
    if not isinstance(target, PrimitiveType):
        return None
    match target.name:
        case "byte" | "short" | "integer" | "long":
            return _stripped(partial(_whole_number, target=target))
        case "float" | "double":
            return _stripped(_floating(target), _JAVA_BLANKS)
        case "boolean":
            return _stripped(_boolean)
        case "date":
            return read_day
        case "timestamp":
            return partial(_moment, is_instant=True)
        case "timestamp_ntz":
            return partial(_moment, is_instant=False)
    return None


def _stripped(read: TextReader, blanks: str = _BLANKS) -> TextReader:
    return lambda text: read(text.strip(blanks))


# Numbers and booleans


def _whole_number(text: str, *, target: DataType) -> int:
    if not _WHOLE.fullmatch(text) or not fits(int(text), target):
        raise ValueError(text)
    return int(text)


def _floating(target: PrimitiveType) -> Callable[[str], object]:
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


def _boolean(text: str) -> bool:
    if text.lower() not in _TRUE | _FALSE:
        raise ValueError(text)
    return text.lower() in _TRUE


def _decimal(target: DecimalType) -> Callable[[str], decimal.Decimal]:
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


# Dates and times


def read_day(text: str) -> int:
    """Days since the epoch; text after a whole date is ignored.

    Raises:
        ValueError: it is not a date.
    """
    found = _DATE.fullmatch(text.strip(_BLANKS))
    if found is None:
        raise ValueError(text)
    year, month, day = found.groups()
    days = _days(int(year), int(month or 1), int(day or 1))
    if not -(2**31) <= days < 2**31:
        raise ValueError(text)
    return days


def _days(year: int, month: int, day: int) -> int:
    """Days since the epoch of a day of any year, in the proleptic Gregorian calendar."""
    # The calendar repeats every 400 years (146,097 days); Python has the years 1 to 9999.
    cycles, rest = divmod(year - 2000, 400)
    return dt.date(2000 + rest, month, day).toordinal() - 719_163 + cycles * 146_097


def _moment(text: str, *, is_instant: bool) -> int:
    """Microseconds since the epoch; finer digits and the zone of a local time are dropped."""
    micros, zone = read_local_time(text)
    if zone is not None:
        offset = _offset_us(zone, micros)
        micros -= offset if is_instant else 0
    if not -(2**63) <= micros < 2**63:
        raise ValueError(text)
    return micros


def read_local_time(text: str) -> tuple[int, str | None]:
    """Microseconds from the epoch to the local time of a text, and the zone that it names.

    Raises:
        ValueError: it is not a timestamp.
    """
    found = _TIME.fullmatch(text.strip(_BLANKS))
    if found is None:
        raise ValueError(text)
    year, month, day, hour, minute, second, fraction, zone = found.groups()
    clock = dt.time(int(hour or 0), int(minute or 0), int(second or 0))
    seconds = (clock.hour * 60 + clock.minute) * 60 + clock.second
    days = _days(int(year), int(month or 1), int(day or 1))
    micros = days * _DAY_US + seconds * 1_000_000 + int((fraction or "").ljust(6, "0")[:6])
    return micros, None if zone is None else zone.strip(_BLANKS)


def fixed_offset_us(zone: str) -> int | None:
    """Microseconds by which a zone is ahead of UTC; None if it is the name of a region.

    Raises:
        ValueError: the offset is too large.
    """
    if zone in ("Z", "UTC", "GMT", "UT"):
        return 0
    found = _OFFSET.fullmatch(zone)
    if found is None:
        return None
    minutes = int(found[2]) * 60 + int(found[3] or 0)
    if minutes > _MAX_OFFSET_MINUTES or int(found[3] or 0) > 59:
        raise ValueError(zone)
    return (-minutes if found[1] == "-" else minutes) * 60_000_000


def _offset_us(zone: str, local_us: int) -> int:
    """Offset of a zone from UTC at a local time, in microseconds."""
    fixed = fixed_offset_us(zone)
    if fixed is not None:
        return fixed
    try:
        region = zoneinfo.ZoneInfo(zone)
        local = dt.datetime(1970, 1, 1, tzinfo=region) + dt.timedelta(microseconds=local_us)
        ahead = local.utcoffset()
    except (zoneinfo.ZoneInfoNotFoundError, OSError, OverflowError) as error:
        raise ValueError(zone) from error
    return 0 if ahead is None else ahead // dt.timedelta(microseconds=1)
