"""The newest commit beside earlier ones of its weekday."""

from __future__ import annotations

import datetime as dt
import json
from pathlib import Path

import pyarrow as pa
import pytest

from dagster_delta.orchestration.checks.anomalies import check_anomalies
from dagster_delta.orchestration.checks.table_checks import Finding
from dagster_delta.protocol.log.paths import commit_path
from dagster_delta.table.delta_table import DeltaTable

MONDAY = dt.datetime(2026, 1, 5, 6, tzinfo=dt.UTC)
ALL = {"rows": 3.0, "bytes": 3.0, "age": 3.0}


@pytest.fixture
def table(tmp_path: Path) -> DeltaTable:
    return DeltaTable.create(str(tmp_path), pa.schema([("id", pa.int64())]))


def load(table: DeltaTable, at: dt.datetime, rows: int) -> None:
    """A commit at a time."""
    date_commit(table, at, table.append(pa.table({"id": range(rows)})).version)


def date_commit(table: DeltaTable, at: dt.datetime, version: int) -> None:
    path = Path(table.uri) / commit_path(version)
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    for line in lines:
        if "commitInfo" in line:
            line["commitInfo"]["timestamp"] = int(at.timestamp() * 1000)
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))


def load_days(table: DeltaTable, days: int, rows_of: dict[int, int], usual: int = 1000) -> None:
    """A load a day; by weekday, some have other sizes."""
    for day in range(days):
        at = MONDAY + dt.timedelta(days=day)
        load(table, at, rows_of.get(at.weekday(), usual) + day % 3)


def check(
    table: DeltaTable, now: dt.datetime, limits: dict[str, float] | None = None, count: int = 10
) -> Finding:
    return check_anomalies(table.snapshot(), limits or ALL, count, now)


def test_a_load_like_those_of_its_weekday_passes(table: DeltaTable) -> None:
    load_days(table, 29, {0: 10})
    found = check(table, MONDAY + dt.timedelta(days=28, hours=2))
    assert found.passed, found.description
    assert "4 earlier loads of a Monday" in found.description
    assert found.details["compared_version"] == 29


def test_a_load_that_would_be_usual_on_another_day_is_an_anomaly(table: DeltaTable) -> None:
    load_days(table, 28, {0: 10})
    load(table, MONDAY + dt.timedelta(days=28), 100_000)
    found = check(table, MONDAY + dt.timedelta(days=28, hours=2))
    assert not found.passed
    assert found.facts == {"violations": 2}
    assert "rows of version 29: 100,000; the mean of 4 earlier loads" in found.description
    assert "bytes of version 29" in found.description
    assert "age" not in found.description


def test_a_load_without_rows_is_an_anomaly(table: DeltaTable) -> None:
    load_days(table, 28, {})
    load(table, MONDAY + dt.timedelta(days=28), 0)
    found = check(table, MONDAY + dt.timedelta(days=28, hours=2), {"rows": 3})
    assert not found.passed
    assert "rows of version 29: 0" in found.description


def test_a_load_that_stays_away_is_an_anomaly_of_age(table: DeltaTable) -> None:
    # No load on Saturdays and Sundays: two days without one are usual after a Friday.
    for day in range(33):
        at = MONDAY + dt.timedelta(days=day)
        if at.weekday() < 5:
            load(table, at, 100)
    friday = MONDAY + dt.timedelta(days=32)
    assert friday.weekday() == 4
    assert check(table, friday + dt.timedelta(days=3), {"age": 3}).passed
    late = check(table, friday + dt.timedelta(days=4), {"age": 3})
    assert not late.passed
    assert "4 days; the mean of 4 earlier loads of a Friday is 3 days" in late.description


def test_one_row_more_than_loads_of_equal_size_is_no_anomaly(table: DeltaTable) -> None:
    for week in range(4):
        load(table, MONDAY + dt.timedelta(weeks=week), 100)
    load(table, MONDAY + dt.timedelta(weeks=4), 101)
    now = MONDAY + dt.timedelta(weeks=4, hours=1)
    assert check(table, now, {"rows": 3}).passed
    load(table, MONDAY + dt.timedelta(weeks=5), 130)
    assert not check(table, now + dt.timedelta(weeks=1), {"rows": 3}).passed


def test_too_few_loads_of_the_weekday_pass_with_a_note(table: DeltaTable) -> None:
    assert check(table, MONDAY).description == "Nothing to compare: the log holds no load"
    load_days(table, 20, {})
    load(table, MONDAY + dt.timedelta(days=20), 9)
    found = check(table, MONDAY + dt.timedelta(days=21), {"rows": 3})
    assert found.passed
    assert found.description == (
        "rows not compared: the log has 2 earlier loads of a Sunday, and 3 are needed"
    )


def test_only_so_many_loads_are_compared_and_maintenance_and_corrections_are_none(
    table: DeltaTable,
) -> None:
    for week in range(6):
        load(table, MONDAY + dt.timedelta(weeks=week), 100_000 if week < 2 else 100)
    now = MONDAY + dt.timedelta(weeks=5, hours=1)
    date_commit(table, now, table.delete("id > 99").version)
    table.optimize()
    found = check(table, now + dt.timedelta(hours=1), {"rows": 3}, count=3)
    assert found.passed
    assert found.details["compared_version"] == 6
    assert "the mean of 3 earlier loads of a Monday is 100" in found.description
