"""Literals and intervals of Spark SQL as Python values with their Spark types."""

from __future__ import annotations

import calendar
import datetime as dt
import math
import re
import struct
from collections.abc import Sequence
from decimal import Decimal, InvalidOperation

from dagster_delta.protocol.schema import DataType, DecimalType, PrimitiveType
from dagster_delta.protocol.values.moments import fixed_offset_us, read_day, read_local_time
from dagster_delta.sql.time_zone import instant_of
from dagster_delta.sql.tokens import Token, syntax_error
from dagster_delta.sql.typed import Literal
from dagster_delta.sql.types import DATE, INTEGER, LONG, TIMESTAMP_NTZ, decimal_of, fits

_MICROS = {
    "hour": 3_600_000_000,
    "minute": 60_000_000,
    "second": 1_000_000,
    "millisecond": 1_000,
    "microsecond": 1,
}
MICROS_PER_DAY = 24 * _MICROS["hour"]
_DAYS = {"day": 1, "week": 7}
_MONTHS = {"month": 1, "year": 12}
_SINGULAR = (*_MONTHS, *_DAYS, *_MICROS)

INTERVAL_UNITS = frozenset({*_SINGULAR, *(f"{unit}s" for unit in _SINGULAR)})
"""Names of units, in lower case."""


def interval_of(words: Sequence[str]) -> tuple[int, int, int] | None:
    """Months, days and microseconds of an interval; None if its form is not supported.

    Args:
        words: numbers and units in turn: `30`, `DAYS`.
    """
    if not words or len(words) % 2:
        return None
    months = days = micros = 0
    for number, unit in zip(words[::2], words[1::2], strict=True):
        name = unit.casefold().removesuffix("s")
        if not number.removeprefix("-").isdecimal() or unit.casefold() not in INTERVAL_UNITS:
            return None
        count = int(number)
        if name in _MICROS and not count:
            # Even zero hours turn a date into a timestamp.
            return None
        months += count * _MONTHS.get(name, 0)
        days += count * _DAYS.get(name, 0)
        micros += count * _MICROS.get(name, 0)
    # Spark keeps months and days separate: a month has no fixed number of days.
    return None if months and (days or micros) else (months, days, micros)


def moves_local_days(months: int, days: int, micros: int) -> bool:
    """Whether Spark adds the interval to a timestamp on the calendar of the session's time zone, as
    it does with months and days, and with hours that make a day.
    """
    return bool(months or days) or abs(micros) >= MICROS_PER_DAY


def shifted(moment: dt.date, months: int, days: int, micros: int) -> dt.date | None:
    """A date or a time shifted by an interval; None beyond Python's range of years."""
    if months:
        index = moment.year * 12 + moment.month - 1 + months
        year, month = index // 12, index % 12 + 1
        if not dt.MINYEAR <= year <= dt.MAXYEAR:
            return None
        day = min(moment.day, calendar.monthrange(year, month)[1])
        return moment.replace(year=year, month=month, day=day)
    try:
        return moment + dt.timedelta(days=days, microseconds=micros)
    except OverflowError:
        return None


_INTEGER_SUFFIXES = {"Y": PrimitiveType("byte"), "S": PrimitiveType("short"), "L": LONG}
_TOO_MANY_DIGITS = 100
_NUMBER = re.compile(r"(.*?)(BD|[LSYFD])?", re.IGNORECASE)

_WITHOUT_DATE = re.compile(r"[\x00-\x20\x7f]*T?[0-9]{1,2}:")
_EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)

TYPE_NAMES = {
    "tinyint": "byte",
    "byte": "byte",
    "smallint": "short",
    "short": "short",
    "int": "integer",
    "integer": "integer",
    "bigint": "long",
    "long": "long",
    "float": "float",
    "real": "float",
    "double": "double",
    "string": "string",
    "binary": "binary",
    "boolean": "boolean",
    "date": "date",
    "timestamp": "timestamp",
    "timestamp_ltz": "timestamp",
    "timestamp_ntz": "timestamp_ntz",
}
"""Names of the plain types by their names in Spark SQL, in lower case."""


class BeyondPython(ValueError):
    """A valid value that Python's types cannot hold, or may convert differently."""


def type_from_words(name: str, parameters: Sequence[str]) -> DataType | None:
    """The type with this SQL name; None if it is not a plain type."""
    name = name.lower()
    if name in ("decimal", "dec", "numeric"):
        if not all(parameter.isdecimal() for parameter in parameters) or len(parameters) > 2:
            return None
        precision, scale = [*map(int, parameters), *(10, 0)[len(parameters) :]]
        return DecimalType(precision, scale) if 0 < precision <= 38 >= precision >= scale else None
    if parameters or name not in TYPE_NAMES:
        return None
    return PrimitiveType(TYPE_NAMES[name])


def number_literal(sql: str, token: Token, *, negative: bool) -> Literal:
    """The constant of a number literal.

    Raises:
        InvalidArgument: the number does not fit the type of its suffix.
    """
    match = _NUMBER.fullmatch(token.text)
    digits, suffix = (match[1], (match[2] or "").upper()) if match else (token.text, "")
    text = f"-{digits}" if negative else digits
    # Python does not parse integers of thousands of digits; no type here holds a hundred.
    is_whole = digits.isdecimal() and len(digits) < _TOO_MANY_DIGITS
    if suffix in _INTEGER_SUFFIXES:
        integral = _INTEGER_SUFFIXES[suffix]
        if not is_whole or not fits(int(text), integral):
            syntax_error(sql, token.position, f"{text}{suffix} does not fit the type {integral}")
        return Literal(int(text), integral)
    if suffix in ("D", "F") or (not suffix and "e" in digits.lower()):
        value = float(text)
        if math.isinf(value):
            syntax_error(sql, token.position, f"{text} does not fit a double")
        if suffix == "F":
            return Literal(to_float(value), PrimitiveType("float"))
        return Literal(value, PrimitiveType("double"))
    if is_whole and not suffix:
        for integral in (INTEGER, LONG):
            if fits(int(text), integral):
                return Literal(int(text), integral)
    try:
        decimal = Decimal(text)
    except InvalidOperation:
        syntax_error(sql, token.position, f"{text} does not fit a decimal")
    data_type = decimal_of(decimal)
    if data_type is None:
        syntax_error(sql, token.position, f"{decimal} has more than 38 digits")
    return Literal(decimal, data_type)


def to_float(value: float) -> float:
    """The nearest single-precision value, as a Python float; beyond its range, infinity."""
    try:
        narrowed: float = struct.unpack("f", struct.pack("f", value))[0]
    except OverflowError:
        return math.copysign(math.inf, value)
    return narrowed


def parse_moment(text: str, data_type: DataType) -> dt.date:
    """The date, or the time with or without a zone, that Spark reads from a text. Digits beyond
    microseconds are dropped.

    Raises:
        BeyondPython: Spark may read it, but it is outside the years 1 to 9999, has no date, names a
            zone other than an offset, or names one for a type without.
        ValueError: it is not of the type.
    """
    try:
        if data_type == DATE:
            return _EPOCH.date() + dt.timedelta(days=read_day(text))
        if _WITHOUT_DATE.match(text):
            raise BeyondPython(text)
        micros, zone = read_local_time(text)
        # Rules of regions change, and Spark has its own.
        offset = 0 if zone is None else fixed_offset_us(zone)
        if offset is None or (zone is not None and data_type == TIMESTAMP_NTZ):
            raise BeyondPython(text)
        moment = _EPOCH + dt.timedelta(microseconds=micros - offset)
        if zone is not None:
            return moment
        local = moment.replace(tzinfo=None)
        return local if data_type == TIMESTAMP_NTZ else instant_of(local)
    except OverflowError:
        raise BeyondPython(text) from None
