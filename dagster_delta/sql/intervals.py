"""SQL intervals, and dates and times shifted by them."""

from __future__ import annotations

import calendar
import datetime as dt
from collections.abc import Sequence

__all__ = ["INTERVAL_UNITS", "interval_of", "moves_local_days", "shifted"]

_MICROS = {
    "hour": 3_600_000_000,
    "minute": 60_000_000,
    "second": 1_000_000,
    "millisecond": 1_000,
    "microsecond": 1,
}
_MICROS_PER_DAY = 24 * _MICROS["hour"]
_DAYS = {"day": 1, "week": 7}
_MONTHS = {"month": 1, "year": 12}
_SINGULAR = (*_MONTHS, *_DAYS, *_MICROS)

INTERVAL_UNITS = frozenset({*_SINGULAR, *(f"{each}s" for each in _SINGULAR)})
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
    it does with months and days, and with hours that make a day. Raises nothing.
    """
    return bool(months or days) or abs(micros) >= _MICROS_PER_DAY


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
