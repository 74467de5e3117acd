"""The time zone of a statement: that of its Spark session, UTC without one.

In UTC, a timestamp and its local time are the same number. In another zone, the typed tree of a
text converts one into the other wherever Spark does.
"""

from __future__ import annotations

import datetime as dt
import zoneinfo
from contextvars import ContextVar

from msgspec.structs import replace

from dagster_delta.protocol.values.moments import fixed_offset_us
from dagster_delta.sql.typed import Call, Literal, Refusal, Typed
from dagster_delta.sql.types import STRING, TIMESTAMP, TIMESTAMP_NTZ

UTC = "UTC"
"""The name of UTC as the zone of a statement."""
UTC_NAMES = frozenset({UTC, "Z", "GMT", "Etc/UTC", "Etc/GMT", "+00:00", "UTC+00:00", "GMT+00:00"})

ZONE: ContextVar[str] = ContextVar("ZONE", default=UTC)
"""The zone of the text that is being typed."""

TO_LOCAL, TO_INSTANT = "local time", "instant of local time"
"""Calls on a timestamp and a zone, and on a local time, an instant nearby or NULL, and a zone."""


def find_zone(name: str) -> dt.tzinfo:
    """The zone with one of Java's names for it.

    Raises:
        ValueError: Python does not know it.
    """
    if name in UTC_NAMES:
        return dt.UTC
    offset_us = fixed_offset_us(name)
    if offset_us is not None:
        return dt.timezone(dt.timedelta(microseconds=offset_us))
    try:
        return zoneinfo.ZoneInfo(name)
    except (zoneinfo.ZoneInfoNotFoundError, OSError) as error:
        raise ValueError(f"the time zone {name} is not known here") from error


def instant_of(local: dt.datetime, near: dt.datetime | None = None) -> dt.datetime:
    """The instant of a local time in UTC. As in Java, a time that a clock skips is as much later as
    it skips, and of two instants it is the one with the offset of `near`, or else the first.

    Raises:
        ValueError, OverflowError: it is not an instant of Python.
    """
    zone = find_zone(ZONE.get())
    first, second = (local.replace(tzinfo=zone, fold=fold) for fold in (0, 1))
    found, later = first.astimezone(dt.UTC), second.astimezone(dt.UTC)
    is_near = near is not None and near.astimezone(zone).utcoffset() == second.utcoffset()
    return later if is_near and later > found else found


def local_time(instant: Typed) -> Typed:
    """The local time of a timestamp; in UTC the timestamp itself.

    Raises:
        Refusal: only Spark knows it.
    """
    zone = ZONE.get()
    if zone == UTC:
        return instant
    tzinfo = _checked_zone(zone)
    if isinstance(instant, Literal) and isinstance(instant.value, dt.datetime):
        try:
            value = instant.value.astimezone(tzinfo).replace(tzinfo=None)
        except OverflowError as error:
            raise Refusal(f"{instant.value} in the time zone {zone}") from error
        return replace(instant, value=value, data_type=TIMESTAMP_NTZ)
    return Call(TO_LOCAL, (instant, Literal(zone, STRING)), TIMESTAMP_NTZ)


def instant(local: Typed, near: Typed | None = None) -> Typed:
    """The timestamp of a local time in a zone other than UTC; of two, the one with the offset of
    `near`.

    Raises:
        Refusal: only Spark knows it.
    """
    zone = ZONE.get()
    _checked_zone(zone)
    near = Literal(None, TIMESTAMP) if near is None else near
    if isinstance(local, Literal) and isinstance(local.value, dt.datetime):
        known = near.value if isinstance(near, Literal) else None
        try:
            value = instant_of(local.value, known if isinstance(known, dt.datetime) else None)
        except (ValueError, OverflowError) as error:
            raise Refusal(f"{local.value} in the time zone {zone}") from error
        return replace(local, value=value, data_type=TIMESTAMP)
    return Call(TO_INSTANT, (local, near, Literal(zone, STRING)), TIMESTAMP)


def _checked_zone(zone: str) -> dt.tzinfo:
    try:
        return find_zone(zone)
    except ValueError as error:
        raise Refusal(str(error)) from error
