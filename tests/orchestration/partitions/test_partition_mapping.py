"""Changed partitions of a table become exactly the partition keys that its writer means by them."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta

import dagster as dg
import pyarrow as pa
import pytest

from dagster_delta.errors import InvalidArgument
from dagster_delta.orchestration.partitions.mapping import PartitionMapping
from dagster_delta.orchestration.partitions.partitions import partition_selector
from dagster_delta.orchestration.partitions.predicates import partition_slice
from dagster_delta.protocol.schema import PrimitiveType, StructField, StructType
from dagster_delta.sql.filters import parse_filter

DAYS_OF_DATES = StructType((StructField("day", PrimitiveType("date")),))


def keys_of(definition: dg.PartitionsDefinition, text: str) -> list[str]:
    return PartitionMapping(definition, "day", None).map([{"day": text}]).keys


@pytest.mark.parametrize(
    "definition",
    [
        dg.DailyPartitionsDefinition("2024-03-01", end_date="2024-05-01"),
        dg.DailyPartitionsDefinition("2024-03-01", end_date="2024-05-01", hour_offset=6),
        dg.DailyPartitionsDefinition(
            "2024-03-01", end_date="2024-05-01", timezone="America/New_York", minute_offset=30
        ),
        dg.DailyPartitionsDefinition("2024-03-01", end_date="2024-05-01", timezone="Africa/Cairo"),
        dg.WeeklyPartitionsDefinition("2024-03-01", end_date="2024-05-01", hour_offset=6),
        dg.MonthlyPartitionsDefinition("2024-03-01", end_date="2024-05-01", hour_offset=6),
    ],
    ids=["day", "day at 6", "day of New York", "day of Cairo", "week at 6", "month at 6"],
)
def test_a_date_belongs_to_the_key_whose_write_replaces_it(definition) -> None:
    days = [date(2024, 3, 1) + timedelta(days=number) for number in range(61)]
    rows = pa.record_batch({"day": days})
    replaced_by: dict[date, list[str]] = {day: [] for day in days}
    for key in definition.get_partition_keys():
        select = partition_selector(definition, "day", asset="events")
        predicate = partition_slice(select, [key], asset="events").sql(DAYS_OF_DATES)
        condition = parse_filter(predicate, DAYS_OF_DATES, datetime.now(UTC), "UTC")
        for day in rows.filter(condition.evaluate_filter(rows))["day"].to_pylist():
            replaced_by[day].append(key)
    assert {day: keys_of(definition, day.isoformat()) for day in days} == replaced_by


def test_a_partition_value_that_is_a_key_belongs_to_it() -> None:
    days = dg.DailyPartitionsDefinition("01.01.2024", fmt="%d.%m.%Y", hour_offset=6)
    assert keys_of(days, "05.03.2024") == ["05.03.2024"]
    months = dg.TimeWindowPartitionsDefinition("202401", "%Y%m", cron_schedule="0 0 1 * *")
    assert keys_of(months, "202403") == ["202403"]


def test_the_digits_of_an_integer_column_belong_to_their_key() -> None:
    """As the predicates of partitions write them."""
    months = dg.MonthlyPartitionsDefinition("2024-01", fmt="%Y-%m", hour_offset=6)
    assert keys_of(months, "202403") == ["2024-03"]
    hours = dg.HourlyPartitionsDefinition("2024-01-01-00:00")
    assert keys_of(hours, "202401010500") == ["2024-01-01-05:00"]
    with pytest.raises(InvalidArgument, match="not a date or time"):
        keys_of(months, "2024031")


def test_a_date_belongs_to_each_hour_of_its_day() -> None:
    hours = dg.HourlyPartitionsDefinition("2024-03-01-00:00", timezone="Europe/Berlin")
    assert len(keys_of(hours, "2024-03-30")) == 24
    # The clock skips an hour.
    assert len(keys_of(hours, "2024-03-31")) == 23
    assert keys_of(hours, "2024-03-31 12:30:00") == ["2024-03-31-12:00"]


def test_a_date_belongs_to_each_hour_of_a_day_whose_clock_skips_half_an_hour() -> None:
    hours = dg.TimeWindowPartitionsDefinition(
        "2024010100", "%Y%m%d%H", cron_schedule="0 * * * *", timezone="Australia/Lord_Howe"
    )
    assert keys_of(hours, "2024-10-06") == [f"20241006{h:02}" for h in range(24) if h != 2]


WEEKDAYS = dg.TimeWindowPartitionsDefinition(
    "2026-03-02",
    "%Y-%m-%d",
    end="2026-03-28",
    cron_schedule="0 0 * * *",
    exclusions=["0 0 * * 6", "0 0 * * 0"],
)


@pytest.mark.parametrize(
    ("text", "is_instant"),
    [
        ("2026-03-07", False),
        ("2026-03-07 12:00:00", False),
        ("2026-03-07T12:00:00", False),
        ("2026-03-07T12:00:00.000000Z", True),
        ("2026-03-08 23:59:59.999999", True),
        ("20260307", False),
    ],
)
def test_a_moment_of_an_excluded_window_belongs_to_no_key(text, is_instant) -> None:
    mapping = PartitionMapping(WEEKDAYS, "day", None)
    mapped = mapping.map([{"day": text}], timestamp_columns=("day",) if is_instant else ())
    assert (mapped.keys, mapped.later, mapped.unmapped) == ([], [], [{"day": text}])


def test_a_moment_next_to_an_excluded_window_belongs_to_its_own_key() -> None:
    assert keys_of(WEEKDAYS, "2026-03-06 23:59:59.999999") == ["2026-03-06"]
    assert keys_of(WEEKDAYS, "2026-03-09 00:00:00") == ["2026-03-09"]


def test_a_date_belongs_to_the_hours_that_are_not_excluded() -> None:
    hours = dg.TimeWindowPartitionsDefinition(
        "2026-03-02-00:00",
        "%Y-%m-%d-%H:%M",
        end="2026-03-28-00:00",
        cron_schedule="0 * * * *",
        exclusions=["0 0 * * *", "0 12 * * *", "0 * * * 6"],
    )
    expected = [f"2026-03-06-{hour:02}:00" for hour in range(24) if hour not in (0, 12)]
    assert keys_of(hours, "2026-03-06") == expected
    assert keys_of(hours, "2026-03-07") == []


def test_a_key_that_is_another_date_too_is_refused() -> None:
    days = dg.DailyPartitionsDefinition("2024-01-01", fmt="%Y-%d-%m")
    with pytest.raises(InvalidArgument, match="as a date it belongs to 2024-05-03"):
        keys_of(days, "2024-03-05")
    assert keys_of(days, "2024-31-03") == ["2024-31-03"]


@pytest.mark.parametrize(
    "text",
    ["0001-01-01", "0202-03-04", "1000-01-01", "1001-01-01", "9999-12-31", "9999-12-31 23:59:59"],
)
def test_a_date_at_an_end_of_the_calendar_belongs_to_no_key(text) -> None:
    for definition in (
        dg.DailyPartitionsDefinition("2024-01-01"),
        dg.WeeklyPartitionsDefinition("2024-01-01", timezone="America/New_York"),
    ):
        mapped = PartitionMapping(definition, "day", None).map([{"day": text}])
        assert (mapped.keys, mapped.unmapped) == ([], [{"day": text}])


def test_a_day_within_a_month_that_has_not_ended_is_no_key_of_it() -> None:
    months = dg.MonthlyPartitionsDefinition("2026-01-01")
    this_month = f"{datetime.now(UTC):%Y-%m}"
    mapping = PartitionMapping(months, None, lambda values: [str(values["day"])])
    within = mapping.map([{"day": f"{this_month}-15"}])
    assert (within.later, within.unmapped) == ([], [{"day": f"{this_month}-15"}])
    assert mapping.map([{"day": f"{this_month}-01"}]).later == [f"{this_month}-01"]
