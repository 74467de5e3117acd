"""Compares the newest commit of a table with earlier ones of the same weekday, by the log alone."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping, Sequence
from statistics import fmean, stdev

import msgspec

from dagster_delta.errors import InvalidArgument
from dagster_delta.orchestration.checks.table_checks import Finding, spell_age
from dagster_delta.orchestration.maintenance.operations import spell_bytes
from dagster_delta.orchestration.metadata_keys import RawMetadataValue, counted
from dagster_delta.table.read.loads import Load, read_loads
from dagster_delta.table.read.snapshot import Snapshot

ANOMALY_MEASURES = ("rows", "bytes", "age")
"""Measures of a commit that may have a limit."""

_LEAST_TRAINING = 3
"""A log keeps 30 days by default: four commits of a weekday if there is one a day."""
_LEAST_DEVIATION = 0.05
"""Of the mean. Loads of equal size have no deviation, and one row more would be beyond any
limit."""


class _Comparison(msgspec.Struct, frozen=True):
    """A measure of a load beside that of earlier ones."""

    measure: str
    distance: float | None
    """Standard deviations above the mean; None if it was not compared."""
    description: str
    is_beyond: bool = False


def check_anomaly_limits(limits: Mapping[str, float], training_commits: int) -> None:
    """Make sure that limits are of `ANOMALY_MEASURES`, and can be exceeded."""
    for name, limit in limits.items():
        if name not in ANOMALY_MEASURES:
            raise InvalidArgument(
                f"anomalies are not known of {name}; there are {', '.join(ANOMALY_MEASURES)}"
            )
        if isinstance(limit, bool) or not isinstance(limit, int | float) or not limit > 0:
            raise InvalidArgument(
                f"the limit of anomalies of {name} is {limit!r}, and takes a number of standard "
                "deviations, such as 3"
            )
    if training_commits < _LEAST_TRAINING:
        raise InvalidArgument(
            f"training_commits is {training_commits}, and must be at least {_LEAST_TRAINING}"
        )


def check_anomalies(
    snapshot: Snapshot, limits: Mapping[str, float], training_commits: int, now: dt.datetime
) -> Finding:
    """Whether the newest load is like earlier ones of the same weekday."""
    newest, earlier = _find_loads(snapshot, training_commits, now)
    if newest is None:
        return Finding(passed=True, description="Nothing to compare: the log holds no load")
    compared = [_compare_measure(name, limit, newest, earlier) for name, limit in limits.items()]
    beyond = [result for result in compared if result.is_beyond]
    details: dict[str, RawMetadataValue] = {"compared_version": newest.version}
    details |= {
        f"{result.measure}_deviations": round(result.distance, 2)
        for result in compared
        if result.distance is not None
    }
    return Finding(
        passed=not beyond,
        description="; ".join(result.description for result in beyond or compared),
        facts={"violations": len(beyond)},
        details=details,
    )


def _compare_measure(name: str, limit: float, newest: Load, earlier: Sequence[Load]) -> _Comparison:
    value, day = _take_measure(newest, name), newest.weekday
    if value is None:
        why = f"version {newest.version} does not record it"
        return _Comparison(name, None, f"{name} not compared: {why}")
    known = [other for load in earlier if (other := _take_measure(load, name)) is not None]
    loads = f"{counted(len(known), 'earlier load')} of a {day}"
    if len(known) < _LEAST_TRAINING:
        why = f"the log has {loads}, and {_LEAST_TRAINING} are needed"
        return _Comparison(name, None, f"{name} not compared: {why}")
    distance = _count_deviations(value, known)
    described = (
        f"{name} of version {newest.version}: {_spell_value(name, value)}; the mean of {loads} is "
        f"{_spell_value(name, fmean(known))}, {abs(distance):.1f} deviations away; the limit is "
        f"{limit:g}"
    )
    # A load that comes early is no anomaly of its age.
    is_beyond = (distance if name == "age" else abs(distance)) > limit
    return _Comparison(name, distance, described, is_beyond)


def _take_measure(load: Load, name: str) -> float | None:
    return {"rows": load.rows, "bytes": load.size_bytes, "age": load.age_seconds}[name]


def _count_deviations(value: float, known: Sequence[float]) -> float:
    mean = fmean(known)
    deviation = max(stdev(known), _LEAST_DEVIATION * abs(mean))
    if deviation:
        return (value - mean) / deviation
    # All are 0.
    return 0.0 if value == mean else 1_000.0


def _find_loads(snapshot: Snapshot, count: int, now: dt.datetime) -> tuple[Load | None, list[Load]]:
    """The newest load, and the latest ones before it of its weekday."""
    newest, earlier = None, list[Load]()
    for load in read_loads(snapshot, now):
        if newest is None:
            newest = load
        elif load.weekday == newest.weekday:
            earlier.append(load)
            if len(earlier) == count:
                break
    return newest, earlier


def _spell_value(measure: str, value: float) -> str:
    if measure == "bytes":
        return spell_bytes(round(value))
    return spell_age(dt.timedelta(seconds=value)) if measure == "age" else f"{value:,.0f}"
