"""Days and times of files that Spark wrote in the calendar of Spark 2.

That calendar is Julian up to 4 October 1582 and Gregorian after it; its time zones have one offset
before 1900. Delta tables, their statistics and all current writers use the Gregorian calendar for
all days. Spark records in the footer how a file was written, and converts the values when it reads
them.

Spec: none; the footer keys are Spark's own.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import cache, partial
from typing import TYPE_CHECKING

import msgspec
import numpy as np
import pyarrow as pa

import dagster_delta.arrow_compute as pc
from dagster_delta.errors import UnsupportedFeature
from dagster_delta.protocol.schema import DataType, PrimitiveType
from dagster_delta.protocol.values.moments import fixed_offset_us

if TYPE_CHECKING:
    from numpy.typing import NDArray

_VERSION_KEY = b"org.apache.spark.version"
_DATES_KEY = b"org.apache.spark.legacyDateTime"
_INT96_KEY = b"org.apache.spark.legacyINT96"
_ZONE_KEY = b"org.apache.spark.timeZone"

# Versions are compared as text, as in Spark. Spark 3.0 had no key for INT96.
_FIRST_GREGORIAN = b"3.0.0"
_FIRST_GREGORIAN_INT96 = b"3.1.0"

_DAY_US = 86_400_000_000
_FIRST_GREGORIAN_DAY = -141_427
"""15 October 1582."""
_JULIAN_MARCH_OF_YEAR_0 = -719_470
"""1 March of the year 0 in the Julian calendar: years from March end with the leap day."""
_LAST_OFFSET_CHANGE_US = -2_208_988_800_000_000
"""1 January 1900; from then on both calendars have the same offsets."""
_WINTER_AND_SUMMER_US = (1_735_689_600_000_000, 1_751_328_000_000_000)

_TAKEN_FOR_UTC = re.compile(r"Z|(UTC|UT|GMT)?([+-][0-9:]+)?")
"""Zones such as +05:30, in which Java finds no offset; Java, and so Spark, reads them as GMT."""


class LegacyCalendar(msgspec.Struct, frozen=True):
    """The values of one file that are in the legacy calendar."""

    has_dates: bool
    """Whether dates and timestamps other than INT96 are in it."""
    has_int96: bool
    zone: str
    """Time zone of the session that wrote the file."""

    @classmethod
    def of(cls, metadata: Mapping[bytes, bytes] | None) -> LegacyCalendar | None:
        """The legacy calendar of a footer; None for the Gregorian one."""
        version = (metadata or {}).get(_VERSION_KEY)
        if metadata is None or version is None:
            return None
        has_dates = version < _FIRST_GREGORIAN or _DATES_KEY in metadata
        has_int96 = version < _FIRST_GREGORIAN_INT96 or _INT96_KEY in metadata
        if not (has_dates or has_int96):
            return None
        # Spark 2 did not record its zone. The embedded engine is in UTC.
        return cls(has_dates, has_int96, metadata.get(_ZONE_KEY, b"UTC").decode())

    def day_conversion(self, source: pa.DataType) -> Callable[[pa.Array], pa.Array] | None:
        """The conversion of a column of days, None if there is none to do."""
        return _moved_days if self.has_dates and pa.types.is_date32(source) else None

    def time_conversion(
        self, source: pa.DataType, target: DataType
    ) -> Callable[[pa.Array], pa.Array] | None:
        """The conversion of timestamps in microseconds with a zone, None if there is none.

        `source`: Arrow type of the file's column. INT96 has no time zone.
        """
        if target != PrimitiveType("timestamp") or not pa.types.is_timestamp(source):
            return None
        is_legacy = self.has_int96 if source.tz is None else self.has_dates
        return partial(_moved_times, zone=self.zone) if is_legacy else None


def _moved_days(days: pa.Array) -> pa.Array:
    first = pc.min(days).cast(pa.int32()).as_py()
    if first is None or first >= _FIRST_GREGORIAN_DAY:
        return days
    numbers = days.cast(pa.int32())
    shift = _day_shift(_fill_nulls(numbers)).astype(np.int32)
    return pc.add(numbers, pa.array(shift)).cast(days.type)


def _moved_times(times: pa.Array, *, zone: str) -> pa.Array:
    first = pc.min(times).cast(pa.int64()).as_py()
    if first is None or first >= _LAST_OFFSET_CHANGE_US:
        return times
    numbers = times.cast(pa.int64())
    micros = _fill_nulls(numbers)
    is_old = micros < _LAST_OFFSET_CHANGE_US
    old = micros[is_old]
    local = old + _standard_offset_us(zone)
    local += _day_shift(local // _DAY_US) * _DAY_US
    shift = np.zeros(len(micros), dtype=np.int64)
    shift[is_old] = _to_instants(local, zone) - old
    return pc.add(numbers, pa.array(shift)).cast(times.type)


def _fill_nulls(numbers: pa.Array) -> NDArray[np.int64]:
    filled: NDArray[np.int64] = pc.fill_null(numbers, 0).to_numpy(zero_copy_only=False)
    return filled


def _day_shift(days: NDArray[np.int64]) -> NDArray[np.int64]:
    """Number of days by which the same date is later in the Gregorian calendar."""
    # Years start in March, so the leap day, which may have no counterpart, is last.
    years = (4 * (days.astype(np.int64) - _JULIAN_MARCH_OF_YEAR_0) + 3) // 1461
    shift = years // 400 - years // 100 + 2
    return np.where(days < _FIRST_GREGORIAN_DAY, shift, 0)


def _to_instants(local_us: NDArray[np.int64], zone: str) -> NDArray[np.int64]:
    """Local times of a zone, by the offsets that it had, as microseconds since the epoch."""
    fixed = _fixed_offset_us(zone)
    if fixed is not None:
        return local_us - fixed
    local = pa.array(local_us).cast(pa.timestamp("us"))
    instants = pc.assume_timezone(local, zone, ambiguous="earliest", nonexistent="latest")
    found: NDArray[np.int64] = instants.cast(pa.int64()).to_numpy()
    return found


@cache
def _standard_offset_us(zone: str) -> int:
    """The offset of a zone without summer time, which the legacy calendar has for all old times."""
    fixed = _fixed_offset_us(zone)
    if fixed is not None:
        return fixed
    instants = pa.array(_WINTER_AND_SUMMER_US, pa.int64())
    try:
        local = pc.local_timestamp(instants.cast(pa.timestamp("us", tz=zone)))
    except pa.ArrowInvalid as error:
        raise UnsupportedFeature(
            f"the data file has timestamps before 1900 in the calendar of Spark 2 and the time "
            f"zone {zone}, which the embedded engine does not know: use the Spark engine"
        ) from error
    return int(pc.min(pc.subtract(local.cast(pa.int64()), instants)).as_py())


def _fixed_offset_us(zone: str) -> int | None:
    if zone.startswith("GMT"):
        return fixed_offset_us(zone)
    return 0 if _TAKEN_FOR_UTC.fullmatch(zone) else None
