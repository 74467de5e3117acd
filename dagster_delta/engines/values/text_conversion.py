"""Text as numbers, booleans, dates and times, in every form that Spark's CAST reads.

Texts in the usual form are converted by Arrow, column by column; any other one is looked at by
itself. Only what hangs on the day of the conversion (a time without a date) has no value here.
"""

from __future__ import annotations

import datetime as dt
import decimal
import re
import zoneinfo
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dagster_delta.protocol.schema import DataType, DecimalType
from dagster_delta.protocol.values.arrow_schema import to_arrow_type

__all__ = ["TextConversion", "text_conversion"]

_JAVA_BLANKS = "".join(map(chr, range(0x21)))
"""What Spark leaves out at either end of a text that becomes a floating or decimal number."""
_BLANKS = _JAVA_BLANKS + "\x7f"
"""What it leaves out at either end of any other."""

_BITS = {"byte": 8, "short": 16, "integer": 32, "long": 64}
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


@dataclass(frozen=True, slots=True)
class _Form:
    """A form of text that Arrow converts as Spark does, or refuses."""

    pattern: str
    """Regular expression of the texts."""
    via: Any
    """`pyarrow.DataType` that Arrow converts them to first."""
    length: int | None = None
    """Characters that count, from the start; None for all."""

    def convert(self, array: Any) -> Any:
        """The values of texts in this form. Raises ArrowInvalid."""
        texts = array if self.length is None else pc.utf8_slice_codeunits(array, 0, self.length)
        return texts.cast(self.via)


@dataclass(frozen=True, slots=True)
class TextConversion:
    """What makes values of one type out of text."""

    forms: tuple[_Form, ...]
    """The usual ones."""
    storage_type: Any
    """`pyarrow.DataType` of what `read` gives."""
    arrow_type: Any
    """`pyarrow.DataType` of the values."""
    read: Callable[[str], object]
    """The value of one text. Raises ValueError where it has none."""
    blanks: str = _BLANKS
    """What is left out at either end before."""

    def convert(self, array: Any) -> Any:
        """The values of a `pyarrow.Array` of text.

        Raises:
            pyarrow.ArrowInvalid: a text has no value.
        """
        values, failed = self._split(array)
        if failed.any():
            raise pa.ArrowInvalid("a text has no value of the type")
        return values

    def passes(self, array: Any) -> Any:
        """Which texts have a value: a boolean `pyarrow.Array`. Raises nothing."""
        return pa.array(~self._split(array)[1])

    def _split(self, array: Any) -> tuple[Any, Any]:
        """The values, and a mask of the texts that have none."""
        values, odd = pa.nulls(len(array), self.arrow_type), array.is_valid()
        for form in self.forms:
            if not odd.true_count:
                break
            usual = pc.match_substring_regex(array, form.pattern).fill_null(False)
            usual = pc.and_(usual, odd)
            texts = pc.if_else(usual, array, pa.scalar(None, array.type))
            try:
                values = pc.if_else(usual, form.convert(texts).cast(self.arrow_type), values)
            except pa.ArrowInvalid:
                continue
            odd = pc.and_not(odd, usual)
        failed = np.zeros(len(array), bool)
        if odd.true_count:
            texts = array.filter(odd).dictionary_encode()
            found = [self._read(each) for each in texts.dictionary.cast(pa.binary()).to_pylist()]
            fresh = pa.array(found, self.storage_type).cast(self.arrow_type).take(texts.indices)
            values = pc.replace_with_mask(values, odd, fresh)
            failed[odd.to_numpy(zero_copy_only=False)] = fresh.is_null().to_numpy(
                zero_copy_only=False
            )
        return values, failed

    def _read(self, text: bytes) -> object:
        try:
            return self.read(text.decode().strip(self.blanks))
        except (ValueError, ArithmeticError):
            return None


def text_conversion(target: DataType) -> TextConversion | None:
    """How text becomes values of an atomic type, or None where it is not known here."""
    found = to_arrow_type(target)
    name = str(target)
    if isinstance(target, DecimalType):
        return _decimals(target)
    if name in _BITS:
        return TextConversion(_one(r"^-?[0-9]+$", found), found, found, _whole_number(_BITS[name]))
    if name in ("float", "double"):
        usual = _one(r"^-?[0-9]+(\.[0-9]+)?$", found)
        return TextConversion(usual, found, found, _floating(found), _JAVA_BLANKS)
    if name == "boolean":
        return TextConversion(_one("^(true|false)$", found), found, found, _boolean)
    if name == "date":
        usual = (
            _Form("^[0-9]{4}-[0-9]{2}-[0-9]{2}$", found),
            _Form("^[0-9]{4}-[0-9]{2}-[0-9]{2}[ T]", found, 10),
        )
        return TextConversion(usual, pa.int32(), found, _day)
    if name in ("timestamp", "timestamp_ntz"):
        return _times(found)
    return None


def _one(pattern: str, via: Any) -> tuple[_Form, ...]:
    return (_Form(pattern, via),)


# Numbers and booleans


def _whole_number(bits: int) -> Callable[[str], int]:
    bound = 1 << (bits - 1)

    def read(text: str) -> int:
        if not _WHOLE.fullmatch(text) or not -bound <= int(text) < bound:
            raise ValueError(text)
        return int(text)

    return read


def _floating(arrow_type: Any) -> Callable[[str], object]:
    def read(text: str) -> object:
        special = "nan" if text in ("+NaN", "-NaN") else _NOT_FINITE.get(text.lower())
        if special is not None:
            return float(special)
        found = _NUMBER.fullmatch(text)
        digits = _decimal_digits(text) if found is None else found[1]
        # Arrow rounds to either width once; a way through double would round a float twice.
        return pa.scalar(digits.removeprefix("+")).cast(arrow_type).as_py()

    return read


def _decimal_digits(text: str) -> str:
    """A number with hexadecimal digits and a power of two, as Java writes one, in decimal ones."""
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


def _decimals(target: DecimalType) -> TextConversion:
    whole, scale = target.precision - target.scale, target.scale
    fraction = rf"(\.[0-9]{{1,{scale}}})?" if scale else ""
    usual = rf"^-?[0-9]{{1,{whole}}}{fraction}$" if whole else rf"^-?0{fraction}$"
    arrow_type = to_arrow_type(target)
    unit = decimal.Decimal(1).scaleb(-scale)
    context = decimal.Context(prec=400, rounding=decimal.ROUND_HALF_UP)
    bound = decimal.Decimal(10) ** whole

    def read(text: str) -> decimal.Decimal:
        found = _NUMBER.fullmatch(text)
        if found is None or found[1] != text:
            raise ValueError(text)
        rounded = context.create_decimal(text).quantize(unit, context=context)
        if abs(rounded) >= bound:
            raise ValueError(text)
        return rounded

    return TextConversion(_one(usual, arrow_type), arrow_type, arrow_type, read, _JAVA_BLANKS)


# Dates and times


def _day(text: str) -> int:
    """Days since the epoch; what follows a whole date is not looked at."""
    found = _DATE.fullmatch(text)
    if found is None:
        raise ValueError(text)
    year, month, day = found.groups()
    days = _days(int(year), int(month or 1), int(day or 1))
    if not -(2**31) <= days < 2**31:
        raise ValueError(text)
    return days


def _days(year: int, month: int, day: int) -> int:
    """Days since the epoch of a day of any year, as the present calendar would have it."""
    # The calendar comes again every 400 years of 146,097 days; Python knows the years 1 to 9999.
    cycles, rest = divmod(year - 2000, 400)
    return dt.date(2000 + rest, month, day).toordinal() - 719_163 + cycles * 146_097


def _times(arrow_type: Any) -> TextConversion:
    day = "^[0-9]{4}-[0-9]{2}-[0-9]{2}"
    time = r"[ T]([01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](\.[0-9]{1,6})?"
    # Without a zone a text is the local time of UTC.
    usual = _one(f"{day}({time})?$", pa.timestamp("us"))
    is_instant = arrow_type.tz is not None
    if is_instant:
        usual += _one(f"{day}{time}(Z|[+-](0[0-9]|1[0-7]):[0-5][0-9])$", arrow_type)

    def read(text: str) -> int:
        return _moment(text, is_instant)

    return TextConversion(usual, pa.int64(), arrow_type, read)


def _moment(text: str, is_instant: bool) -> int:
    """Microseconds since the epoch; finer ones are cut off, as is the zone of a local time."""
    found = _TIME.fullmatch(text)
    if found is None:
        raise ValueError(text)
    year, month, day, hour, minute, second, fraction, zone = found.groups()
    clock = dt.time(int(hour or 0), int(minute or 0), int(second or 0))
    seconds = (clock.hour * 60 + clock.minute) * 60 + clock.second
    days = _days(int(year), int(month or 1), int(day or 1))
    micros = days * _DAY_US + seconds * 1_000_000 + int((fraction or "").ljust(6, "0")[:6])
    if zone is not None:
        offset = _offset_us(zone.strip(_BLANKS), micros)
        micros -= offset if is_instant else 0
    if not -(2**63) <= micros < 2**63:
        raise ValueError(text)
    return micros


def _offset_us(zone: str, local_us: int) -> int:
    """How far a zone is ahead of UTC at a local time."""
    if zone in ("Z", "UTC", "GMT", "UT"):
        return 0
    found = _OFFSET.fullmatch(zone)
    if found is not None:
        minutes = int(found[2]) * 60 + int(found[3] or 0)
        if minutes > _MAX_OFFSET_MINUTES or int(found[3] or 0) > 59:
            raise ValueError(zone)
        return (-minutes if found[1] == "-" else minutes) * 60_000_000
    try:
        region = zoneinfo.ZoneInfo(zone)
        local = dt.datetime(1970, 1, 1, tzinfo=region) + dt.timedelta(microseconds=local_us)
        ahead = local.utcoffset()
    except (zoneinfo.ZoneInfoNotFoundError, OSError, OverflowError) as error:
        raise ValueError(zone) from error
    return 0 if ahead is None else ahead // dt.timedelta(microseconds=1)
