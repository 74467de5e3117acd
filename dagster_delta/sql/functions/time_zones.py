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
from dagster_delta.sql.text_columns import PythonFunction
from dagster_delta.sql.time_zone import TO_INSTANT, TO_LOCAL, find_zone

if TYPE_CHECKING:
    from numpy.typing import NDArray

ZONE_FUNCTIONS = {
    TO_LOCAL: Function(None, "local_time({all})", may_raise=True),
    TO_INSTANT: Function(None, "instant_of({all})", may_raise=True),
}

_SECOND_US = 1_000_000
_DAY = 86_400
_EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)


def _local_times(instants: pa.ChunkedArray, zones: pa.ChunkedArray) -> pa.Array:
    found = _to_micros(instants)
    return _to_local_times(found + _find_offsets(found, zones), instants)


def _find_instants(
    local: pa.ChunkedArray, near: pa.ChunkedArray, zones: pa.ChunkedArray
) -> pa.Array:
    """The instants in UTC of local times, see `instant_of` of the module `time_zone`."""
    wanted, day = _to_micros(local), _DAY * _SECOND_US
    # Where a clock is changed, the offsets of a day before and after are those that may fit.
    before, after = _find_offsets(wanted - day, zones), _find_offsets(wanted + day, zones)
    nearby = np.where(near.is_valid(), _find_offsets(_to_micros(near), zones), before)
    found = wanted - before
    for offsets in (after, before, nearby):
        candidate = wanted - offsets
        fits = candidate + _find_offsets(candidate, zones) == wanted
        found = np.where(fits, candidate, found)
    return _to_local_times(found, local)


def _to_micros(times: pa.ChunkedArray) -> NDArray[np.int64]:
    found: NDArray[np.int64] = whole_array(times).cast(pa.int64()).fill_null(0).to_numpy()
    return found


def _to_local_times(micros: NDArray[np.int64], like: pa.ChunkedArray) -> pa.Array:
    is_null = whole_array(like).is_null().to_numpy(zero_copy_only=False)
    return pa.array(micros, pa.int64(), mask=is_null).view(pa.timestamp("us"))


def _find_offsets(instants: NDArray[np.int64], zones: pa.ChunkedArray) -> NDArray[np.int64]:
    """Microseconds by which local times are ahead of UTC."""
    if not len(instants):
        return instants
    zone, seconds = zones[0].as_py(), instants // _SECOND_US

    def offsets_at(moments: NDArray[np.int64]) -> NDArray[np.int64]:
        known, rows = np.unique(moments, return_inverse=True)
        return np.array([_offset_us(zone, moment) for moment in known.tolist()], np.int64)[rows]

    days = seconds // _DAY * _DAY
    found = offsets_at(days)
    is_changing = found != offsets_at(days + _DAY)
    found[is_changing] = offsets_at(seconds[is_changing])
    return found


@lru_cache(100_000)
def _offset_us(zone: str, second: int) -> int:
    try:
        ahead = (_EPOCH + dt.timedelta(seconds=second)).astimezone(find_zone(zone)).utcoffset()
    except OverflowError:
        raise UnsupportedExpression("only Spark converts local times of such a year") from None
    return 0 if ahead is None else ahead // dt.timedelta(microseconds=1)


FUNCTIONS_OF_ZONES: tuple[PythonFunction, ...] = (
    ("local_time", _local_times, ["TIMESTAMP", "VARCHAR"], "TIMESTAMP"),
    ("instant_of", _find_instants, ["TIMESTAMP", "TIMESTAMP", "VARCHAR"], "TIMESTAMP"),
)
"""What the SQL of ZONE_FUNCTIONS calls."""
