"""Local times of timestamps and back, in the zone of a statement, over Arrow.

Arrow's own conversions end the rules of a zone in 2037, and need a database of zones on Windows.
"""

from __future__ import annotations

import datetime as dt
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from dagster_delta.errors import UnsupportedExpression
from dagster_delta.protocol.values.arrow_columns import whole_array
from dagster_delta.sql.functions.function import Function
from dagster_delta.sql.text_conversion import PythonFunction
from dagster_delta.sql.time_zone import TO_INSTANT, TO_LOCAL, find_zone

if TYPE_CHECKING:
    from numpy.typing import NDArray

ZONE_FUNCTIONS = {
    TO_LOCAL: Function(None, "local_time({all})", may_raise=True),
    TO_INSTANT: Function(None, "instant_of({all})", may_raise=True),
}

_SECOND_US = 1_000_000
_DAY = 86_400
_DECADES = range(1, 999)
"""Those that Python's dates have with the days around them."""


def _local_times(instants: pa.ChunkedArray, zones: pa.ChunkedArray) -> pa.Array:
    found = _micros(instants)
    return _times(found + _offsets(found, zones), instants)


def _instants(local: pa.ChunkedArray, near: pa.ChunkedArray, zones: pa.ChunkedArray) -> pa.Array:
    """The instants in UTC of local times, see `instant_of` of the module `time_zone`."""
    wanted, day = _micros(local), _DAY * _SECOND_US
    # Where a clock is changed, the offsets of a day before and after are those that may fit.
    before, after = _offsets(wanted - day, zones), _offsets(wanted + day, zones)
    nearby = np.where(near.is_valid(), _offsets(_micros(near), zones), before)
    found = wanted - before
    for offsets in (after, before, nearby):
        candidate = wanted - offsets
        fits = candidate + _offsets(candidate, zones) == wanted
        found = np.where(fits, candidate, found)
    return _times(found, local)


def _micros(times: pa.ChunkedArray) -> NDArray[np.int64]:
    found: NDArray[np.int64] = whole_array(times).cast(pa.int64()).fill_null(0).to_numpy()
    return found


def _times(micros: NDArray[np.int64], like: pa.ChunkedArray) -> pa.Array:
    is_null = whole_array(like).is_null().to_numpy(zero_copy_only=False)
    return pa.array(micros, pa.int64(), mask=is_null).view(pa.timestamp("us"))


def _offsets(instants: NDArray[np.int64], zones: pa.ChunkedArray) -> NDArray[np.int64]:
    """Microseconds by which local times are ahead of UTC."""
    found = np.zeros_like(instants)
    decades = (instants.view("M8[us]").astype("M8[Y]").astype(np.int64) + 1970) // 10
    for decade in np.unique(decades).tolist():
        if decade not in _DECADES:
            raise UnsupportedExpression("only Spark converts local times of such a year")
        since, offsets = _changes(zones[0].as_py(), decade)
        inside = decades == decade
        found[inside] = offsets[np.searchsorted(since, instants[inside], side="right") - 1]
    return found


@lru_cache(1000)
def _changes(zone: str, decade: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The offsets of a zone in a decade, and since when each holds, in microseconds."""
    tzinfo, epoch = find_zone(zone), dt.datetime(1970, 1, 1, tzinfo=dt.UTC)

    def offset(second: int) -> int:
        ahead = (epoch + dt.timedelta(seconds=second)).astimezone(tzinfo).utcoffset()
        return 0 if ahead is None else ahead // dt.timedelta(seconds=1)

    start, end = (
        (dt.datetime(10 * number, 1, 1, tzinfo=dt.UTC) - epoch).days * _DAY
        for number in (decade, decade + 1)
    )
    since, offsets = [start], [offset(start)]
    for day in range(start, end, _DAY):
        low, high = day, day + _DAY
        if offset(high) == offsets[-1]:
            continue
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if offset(middle) == offsets[-1] else (low, middle)
        since.append(high)
        offsets.append(offset(high))
    return np.array(since) * _SECOND_US, np.array(offsets) * _SECOND_US


FUNCTIONS_OF_ZONES: tuple[PythonFunction, ...] = (
    ("local_time", _local_times, ["TIMESTAMP", "VARCHAR"], "TIMESTAMP"),
    ("instant_of", _instants, ["TIMESTAMP", "TIMESTAMP", "VARCHAR"], "TIMESTAMP"),
)
"""What the SQL of ZONE_FUNCTIONS calls."""
