"""Dates and times as text, in every form that Spark's CAST reads, and as Spark writes them.

They are numbers here: Python has the years 1 to 9999 alone, and Spark those from -290308 to 294247.
"""

from __future__ import annotations

import datetime as dt
import re
import zoneinfo

BLANKS = "".join(map(chr, range(0x21))) + "\x7f"
"""Characters that Spark trims from a text that becomes a date or a time."""

_DAY_US = 86_400_000_000
_CYCLE_US = 146_097 * _DAY_US
_FIRST_US, _LAST_US = -719_162 * _DAY_US, 2_932_896 * _DAY_US
"""The first and last day of Python."""

_DATE = re.compile(r"([+-]?[0-9]{4,7})(?:-([0-9]{1,2})(?:-([0-9]{1,2})(?:[ T].*)?)?)?", re.DOTALL)
_TIME = re.compile(
    r"([+-]?[0-9]{4,6})(?:-([0-9]{1,2})(?:-([0-9]{1,2})(?:[ T]([0-9]{1,2})"
    r"(?::([0-9]{1,2})(?::([0-9]{1,2})(?:\.([0-9]*))?([^0-9.].*)?)?)?)?)?)?",
    re.DOTALL,
)
_OFFSET = re.compile(r"(?:UTC|GMT|UT)?([+-])([0-9]{1,2})(?::?([0-9]{1,2}))?")
_MAX_OFFSET_MINUTES = 18 * 60


def read_day(text: str) -> int:
    """Days since the epoch; text after a whole date is ignored.

    Raises:
        ValueError: it is not a date.
    """
    found = _DATE.fullmatch(text.strip(BLANKS))
    if found is None:
        raise ValueError(text)
    year, month, day = found.groups()
    days = _count_days(int(year), int(month or 1), int(day or 1))
    if not -(2**31) <= days < 2**31:
        raise ValueError(text)
    return days


def _count_days(year: int, month: int, day: int) -> int:
    """Days since the epoch of a day of any year, in the proleptic Gregorian calendar."""
    # The calendar repeats every 400 years (146,097 days); Python has the years 1 to 9999.
    cycles, rest = divmod(year - 2000, 400)
    return dt.date(2000 + rest, month, day).toordinal() - 719_163 + cycles * 146_097


def read_moment(text: str, *, is_instant: bool, default_zone: str = "UTC") -> int:
    """Microseconds since the epoch; finer digits and the zone of a local time are dropped.

    `default_zone`: of an instant whose text names none.

    Raises:
        ValueError: it is not a timestamp.
    """
    micros, zone = read_local_time(text)
    if is_instant:
        micros -= _offset_us(zone or default_zone, micros)
    elif zone is not None:
        _offset_us(zone, micros)
    if not -(2**63) <= micros < 2**63:
        raise ValueError(text)
    return micros


def read_local_time(text: str) -> tuple[int, str | None]:
    """Microseconds from the epoch to the local time of a text, and the zone that it names.

    Raises:
        ValueError: it is not a timestamp.
    """
    found = _TIME.fullmatch(text.strip(BLANKS))
    if found is None:
        raise ValueError(text)
    year, month, day, hour, minute, second, fraction, zone = found.groups()
    clock = dt.time(int(hour or 0), int(minute or 0), int(second or 0))
    seconds = (clock.hour * 60 + clock.minute) * 60 + clock.second
    days = _count_days(int(year), int(month or 1), int(day or 1))
    micros = days * _DAY_US + seconds * 1_000_000 + int((fraction or "").ljust(6, "0")[:6])
    return micros, None if zone is None else zone.strip(BLANKS)


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
        # The calendar repeats every 400 years, and so do the rules of a zone.
        start = min(max(_FIRST_US, local_us), _LAST_US - _CYCLE_US)
        near_us = start + (local_us - start) % _CYCLE_US
        local = dt.datetime(1970, 1, 1, tzinfo=region) + dt.timedelta(microseconds=near_us)
        ahead = local.utcoffset()
    except (zoneinfo.ZoneInfoNotFoundError, OSError, OverflowError) as error:
        raise ValueError(zone) from error
    return 0 if ahead is None else ahead // dt.timedelta(microseconds=1)


def spell_day(days: int) -> str:
    """A day as Spark writes it: `2024-01-02`, and `+10000-01-01` and `-0001-01-01` for years that
    Python lacks.
    """
    cycles, rest = divmod(days + 719_162, 146_097)
    day = dt.date.fromordinal(rest + 1)
    year = day.year + 400 * cycles
    sign = "-" if year < 0 else "+" if year > 9999 else ""
    return f"{sign}{abs(year):04}-{day.month:02}-{day.day:02}"


def spell_moment(micros: int, between: str = " ") -> str:
    """A time as Spark writes it, with six digits of its second and `between` after its day."""
    days, rest = divmod(micros, _DAY_US)
    clock = dt.datetime(1970, 1, 1, tzinfo=dt.UTC) + dt.timedelta(microseconds=rest)
    return f"{spell_day(days)}{between}{clock.time().isoformat('microseconds')}"
