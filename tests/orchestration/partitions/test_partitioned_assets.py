"""Exactly the partitions of a run are written and read, whatever they look like."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, date, datetime, timedelta
from typing import Any

import dagster as dg
import pandas as pd
import pyarrow as pa
import pytest

from dagster_delta import DeltaIOManager
from dagster_delta.errors import (
    InvalidArgument,
    PartitionMismatch,
    TableAlreadyExists,
)
from dagster_delta.table.delta_table import DeltaTable
from tests.orchestration.conftest import QUIET, table_of
from tests.orchestration.partitions import backfilled_lake

COLORS = dg.StaticPartitionsDefinition(["red", "green", "blue", "amber"])
DAYS = dg.DailyPartitionsDefinition("2013-01-01", end_date="2013-02-01")
HOURS = dg.HourlyPartitionsDefinition("2013-01-01-00:00", end_date="2013-01-03-00:00")


def every(definition: dg.PartitionsDefinition) -> tuple[str, str]:
    keys = definition.get_partition_keys()
    return keys[0], keys[-1]


def asset_of(events, definition, rows_of_key, *, expr: Any = "p", **options: Any):
    """An asset that produces `rows_of_key(key)` for every key of its run."""

    def produce(context) -> pa.Table:
        return table_of([row for key in context.partition_keys for row in rows_of_key(key)])

    metadata = {"partition_expr": expr, **options.pop("metadata", {})}
    return events(produce, partitions_def=definition, metadata=metadata, **options)


def colored(generation: int):
    return lambda key: [{"p": key, "generation": generation}]


# ---- the three ways to lose rows in silence


def test_a_static_range_leaves_a_partition_outside_of_it_alone(lake, events):
    """The keys of green..blue sort around `amber` and `red`, which a bounding range would wipe."""
    lake.materialize(asset_of(events, COLORS, colored(1)), range_of=every(COLORS))
    lake.materialize(asset_of(events, COLORS, colored(2)), range_of=("green", "blue"))
    assert {row["p"]: row["generation"] for row in lake.rows()} == {
        "red": 1,
        "green": 2,
        "blue": 2,
        "amber": 1,
    }


@pytest.mark.parametrize("unit", ["s", "ms", "us", "ns"])
def test_a_range_of_hours_in_a_naive_timestamp_keeps_every_hour(lake, events, unit):
    def rows(key: str):
        hour = datetime.strptime(key, HOURS.fmt)
        return [{"p": hour + timedelta(minutes=minutes), "key": key} for minutes in (0, 59)]

    def produce(context):
        schema = pa.schema({"p": pa.timestamp(unit), "key": pa.string()})
        return table_of([row for key in context.partition_keys for row in rows(key)], schema)

    asset = events(produce, partitions_def=HOURS, metadata={"partition_expr": "p"})
    lake.materialize(asset, range_of=every(HOURS))
    assert lake.column("key") == sorted(HOURS.get_partition_keys() * 2)
    lake.materialize(asset, partition="2013-01-01-07:00")
    assert lake.column("key") == sorted(HOURS.get_partition_keys() * 2)


def test_a_range_of_days_in_a_string_column_keeps_every_day(lake, events):
    asset = asset_of(events, DAYS, lambda key: [{"p": key}])
    lake.materialize(asset, range_of=every(DAYS))
    lake.materialize(asset, range_of=("2013-01-10", "2013-01-12"))
    assert lake.column("p") == list(DAYS.get_partition_keys())


# ---- time windows in columns of every type


def utc(key: str) -> datetime:
    return datetime.fromisoformat(key).replace(tzinfo=UTC)


def naive(key: str) -> datetime:
    return datetime.fromisoformat(key)


@pytest.mark.parametrize(
    "value",
    [utc, naive, date.fromisoformat, str, lambda key: int(key.replace("-", ""))],
    ids=["timestamp", "timestamp_ntz", "date", "string", "integer"],
)
def test_a_day_is_replaced_and_its_neighbours_stay_in_a_column_of(lake, events, value):
    def generation(number):
        return asset_of(events, DAYS, lambda key: [{"p": value(key), "g": number, "key": key}])

    lake.materialize(generation(1), range_of=("2013-01-01", "2013-01-05"))
    lake.materialize(generation(2), partition="2013-01-03")
    lake.materialize(generation(3), range_of=("2013-01-05", "2013-01-06"))
    assert {row["key"]: row["g"] for row in lake.rows()} == {
        "2013-01-01": 1,
        "2013-01-02": 1,
        "2013-01-03": 2,
        "2013-01-04": 1,
        "2013-01-05": 3,
        "2013-01-06": 3,
    }
    assert len(lake.rows()) == 6


@pytest.mark.parametrize(
    ("definition", "key"),
    [
        (dg.HourlyPartitionsDefinition("2013-01-01-00:00"), "2013-01-01-05:00"),
        (dg.DailyPartitionsDefinition("2013-01-01", timezone="Asia/Tokyo"), "2013-01-02"),
        (dg.WeeklyPartitionsDefinition("2013-01-06"), "2013-01-13"),
        (dg.MonthlyPartitionsDefinition("2013/01", fmt="%Y/%m"), "2013/02"),
        (
            dg.TimeWindowPartitionsDefinition(
                start="2013-01-01", fmt="%Y-%m-%d", cron_schedule="0 0 1 */3 *"
            ),
            "2013-04-01",
        ),
    ],
    ids=["hourly", "daily in Tokyo", "weekly", "monthly of another format", "quarterly"],
)
def test_any_window_takes_its_first_and_last_instant_and_no_other(lake, events, definition, key):
    window = definition.time_window_for_partition_key(key)
    inside = [window.start, window.end - timedelta(microseconds=1)]
    outside = [window.start - timedelta(microseconds=1), window.end]

    def producing(instants):
        schema = pa.schema({"p": pa.timestamp("us", "UTC")})
        return events(
            lambda _: table_of([{"p": each} for each in instants], schema),
            partitions_def=definition,
            metadata={"partition_expr": "p"},
        )

    lake.materialize(producing(inside), partition=key)
    assert lake.column("p") == [each.astimezone(UTC) for each in inside]
    for each in outside:
        assert isinstance(lake.fail(producing([each]), partition=key), PartitionMismatch)
    assert len(lake.rows()) == 2


# ---- nothing there yet


def test_an_asset_that_depends_on_its_own_past_begins_with_none(lake):
    yesterday = dg.TimeWindowPartitionMapping(start_offset=-1, end_offset=-1)

    @dg.asset(
        partitions_def=DAYS,
        metadata={"partition_expr": "p"},
        ins={"events": dg.AssetIn(partition_mapping=yesterday)},
    )
    def events(context, events: pa.Table | None) -> pa.Table:
        before = 0 if events is None else sum(events["n"].to_pylist())
        return table_of([{"p": date.fromisoformat(context.partition_key), "n": before + 1}])

    for key in ("2013-01-01", "2013-01-02", "2013-01-03"):
        lake.materialize(events, partition=key)
    assert lake.column("n") == [1, 2, 3]
    lake.materialize(events, partition="2013-01-01")
    assert lake.column("n") == [1, 2, 3]


def test_a_day_without_data_is_a_partition_without_rows(lake, events):
    def produce(context):
        if context.partition_key == "2013-01-02":
            return pd.DataFrame()
        return table_of([{"p": date.fromisoformat(context.partition_key)}])

    asset = events(produce, partitions_def=DAYS, metadata={"partition_expr": "p"})
    assert "the data have none" in str(lake.fail(asset, partition="2013-01-02"))
    lake.materialize(asset, partition="2013-01-01")
    lake.materialize(asset, partition="2013-01-02")
    assert lake.column("p") == [date(2013, 1, 1)]


# ---- rows outside


def test_a_row_outside_of_the_partition_is_an_error_that_shows_it(lake, events):
    lake.materialize(asset_of(events, COLORS, colored(1)), range_of=every(COLORS))
    stray = asset_of(
        events, COLORS, lambda key: [{"p": key, "generation": 2}, {"p": "mauve", "generation": 2}]
    )
    error = lake.fail(stray, partition="red")
    assert isinstance(error, PartitionMismatch)
    assert "mauve" in str(error)
    assert "outside of the partition red of the run of events" in str(error)
    assert {row["generation"] for row in lake.rows()} == {1}


def test_replacing_the_schema_of_one_partition_is_refused_where_it_differs(lake, events):
    options = {"metadata": {"schema_mode": "overwrite"}}
    lake.materialize(asset_of(events, COLORS, colored(1), **options), range_of=every(COLORS))
    lake.materialize(asset_of(events, COLORS, colored(2), **options), partition="red")
    assert {row["generation"] for row in lake.rows() if row["p"] == "red"} == {2}
    other = asset_of(events, COLORS, lambda key: [{"p": key, "other": 3}], **options)
    error = lake.fail(other, partition="red")
    assert isinstance(error, InvalidArgument)
    assert "schema_mode merge" in str(error)
    assert "+ other: long" in str(error)
    assert lake.table().version() == 1


def test_a_null_is_outside_of_every_partition(lake, events):
    stray = asset_of(
        events, COLORS, lambda key: [{"p": None, "generation": 2}, {"p": key, "generation": 2}]
    )
    assert isinstance(lake.fail(stray, partition="red"), PartitionMismatch)


def test_an_append_is_checked_against_its_partition_too(lake, events):
    stray = asset_of(events, COLORS, lambda _: [{"p": "green", "generation": 2}])
    assert isinstance(lake.fail(stray, partition="red", mode="append"), PartitionMismatch)


def test_an_empty_result_empties_its_partition_and_no_other(lake, events):
    lake.materialize(asset_of(events, COLORS, colored(1)), range_of=every(COLORS))
    schema = pa.schema({"p": pa.string(), "generation": pa.int64()})
    empty = events(
        lambda _: schema.empty_table(), partitions_def=COLORS, metadata={"partition_expr": "p"}
    )
    lake.materialize(empty, partition="red")
    assert lake.column("p") == ["amber", "blue", "green"]


# ---- modes


def test_mode_error_is_about_the_partition(lake, events):
    asset = asset_of(events, COLORS, colored(1))
    lake.materialize(asset, partition="red", mode="error")
    lake.materialize(asset, partition="blue", mode="error")
    assert isinstance(lake.fail(asset, partition="red", mode="error"), TableAlreadyExists)
    assert lake.column("p") == ["blue", "red"]


def test_mode_ignore_is_about_the_partition(lake, events):
    lake.materialize(asset_of(events, COLORS, colored(1)), partition="red", mode="ignore")
    second = asset_of(events, COLORS, colored(2))
    lake.materialize(second, partition="red", mode="ignore")
    lake.materialize(second, partition="blue", mode="ignore")
    assert {row["p"]: row["generation"] for row in lake.rows()} == {"red": 1, "blue": 2}


@pytest.mark.parametrize("frames", [False, True], ids=["one frame", "a frame per key"])
def test_mode_ignore_writes_the_partitions_of_a_range_that_have_no_rows(lake, events, frames):
    lake.materialize(asset_of(events, COLORS, colored(1)), partition="green", mode="ignore")

    def produce(context):
        tables = {key: table_of(colored(2)(key)) for key in context.partition_keys}
        return tables if frames else pa.concat_tables(tables.values())

    second = events(produce, partitions_def=COLORS, metadata={"partition_expr": "p"})
    for _ in range(2):
        lake.materialize(second, range_of=every(COLORS), mode="ignore")
        assert {row["p"]: row["generation"] for row in lake.rows()} == {
            "red": 2,
            "green": 1,
            "blue": 2,
            "amber": 2,
        }
    assert lake.table().snapshot().version == 1


def test_mode_ignore_still_refuses_rows_of_other_partitions(lake, events):
    lake.materialize(asset_of(events, COLORS, colored(1)), partition="green", mode="ignore")
    astray = asset_of(events, COLORS, lambda _: [{"p": "amber", "generation": 2}])
    error = lake.fail(astray, range_of=("green", "blue"), mode="ignore")
    assert isinstance(error, PartitionMismatch)


@pytest.mark.parametrize("mode", ["error", "ignore"])
@pytest.mark.parametrize(
    ("is_partitioned", "exists"), [(True, True), (True, False), (False, False)]
)
def test_another_run_that_writes_the_same_first_is_not_doubled(
    lake, events, monkeypatch, mode, is_partitioned, exists
):
    options: dict[str, Any] = {}
    if is_partitioned:
        options = {"partitions_def": COLORS, "metadata": {"partition_expr": "p"}}
    key = "red" if is_partitioned else None
    if exists:
        lake.materialize(asset_of(events, COLORS, colored(0)), partition="blue")
    append, others = DeltaTable.append, [2]

    def append_after_another(table, *arguments, **named):
        if others:
            lake.materialize(asset(others.pop()), partition=key, mode=mode)
        return append(table, *arguments, **named)

    def asset(generation: int) -> Any:
        return events(lambda _: table_of([{"p": "red", "generation": generation}]), **options)

    monkeypatch.setattr(DeltaTable, "append", append_after_another)
    if mode == "error":
        error = lake.fail(asset(1), partition=key, mode=mode)
        assert isinstance(error, TableAlreadyExists)
    else:
        lake.materialize(asset(1), partition=key, mode=mode)
    assert [row["generation"] for row in lake.rows() if row["p"] == "red"] == [2]


def test_a_range_of_which_another_run_writes_a_part_first_writes_the_rest_under_mode_ignore(
    lake, events, monkeypatch
):
    """It was skipped whole, and succeeded: `blue` was never written."""
    append, others = DeltaTable.append, ["green"]

    def append_after_another(table, *arguments, **named):
        if others:
            other = asset_of(events, COLORS, colored(2))
            lake.materialize(other, partition=others.pop(), mode="ignore")
        return append(table, *arguments, **named)

    asset = asset_of(events, COLORS, colored(1))
    lake.materialize(asset, partition="red")
    monkeypatch.setattr(DeltaTable, "append", append_after_another)
    lake.materialize(asset, range_of=("green", "blue"), mode="ignore")
    assert {row["p"]: row["generation"] for row in lake.rows()} == {"red": 1, "green": 2, "blue": 1}


# ---- keys that are one value of their column


@pytest.mark.parametrize(
    ("keys", "value"),
    [(["1", "01", "2"], int), (["true", "True", "2"], lambda key: key.lower() == "true")],
    ids=["integer", "boolean"],
)
def test_keys_that_are_one_value_do_not_replace_the_rows_of_each_other(lake, events, keys, value):
    definition = dg.StaticPartitionsDefinition(keys)
    asset = asset_of(events, definition, lambda key: [{"p": value(key), "key": key}])
    first, second, other = keys
    for key in (first, second):
        error = lake.fail(asset, partition=key)
        assert isinstance(error, InvalidArgument)
        assert "are the same value" in str(error)
    if value is int:
        lake.materialize(asset, partition=other)
        assert lake.column("key") == [other]


@pytest.mark.parametrize("mode", ["error", "ignore"])
def test_keys_that_are_one_value_are_refused_before_their_rows_are_looked_for(lake, events, mode):
    def rows(key: str) -> list[dict[str, int]]:
        return [{"p": int(key)}]

    lake.materialize(asset_of(events, dg.StaticPartitionsDefinition(["1"]), rows), partition="1")
    asset = asset_of(events, dg.StaticPartitionsDefinition(["1", "01"]), rows)
    error = lake.fail(asset, partition="01", mode=mode)
    assert isinstance(error, InvalidArgument)
    assert "are the same value" in str(error)


def test_dynamic_keys_that_are_one_value_are_refused(lake, events):
    definition = dg.DynamicPartitionsDefinition(name="numbers")
    asset = asset_of(events, definition, lambda key: [{"p": int(key), "key": key}])
    lake.instance.add_dynamic_partitions("numbers", ["7", "8"])
    lake.materialize(asset, partition="7")
    lake.instance.add_dynamic_partitions("numbers", ["007"])
    assert isinstance(lake.fail(asset, partition="007"), InvalidArgument)
    lake.materialize(asset, partition="8")
    assert lake.column("key") == ["7", "8"]


def test_keys_that_differ_as_text_are_partitions_of_a_string_column(lake, events):
    definition = dg.StaticPartitionsDefinition(["1", "01"])
    asset = asset_of(events, definition, colored(1))
    lake.materialize(asset, range_of=every(definition))
    lake.materialize(asset_of(events, definition, colored(2)), partition="01")
    assert {row["p"]: row["generation"] for row in lake.rows()} == {"1": 1, "01": 2}


# ---- dynamic and multi-partitions


def test_dynamic_partitions(lake, events):
    definition = dg.DynamicPartitionsDefinition(name="customers")
    lake.instance.add_dynamic_partitions(
        "customers", ["it's", "back\\slash", 'quo"te', "ünï", "a/b"]
    )
    for generation in (1, 2):
        for key in lake.instance.get_dynamic_partitions("customers"):
            lake.materialize(asset_of(events, definition, colored(generation)), partition=key)
    assert lake.column("p") == sorted(lake.instance.get_dynamic_partitions("customers"))
    assert set(lake.column("generation")) == {2}


GRID = dg.MultiPartitionsDefinition({"color": COLORS, "day": DAYS})
GRID_EXPR = {"color": "c", "day": "d"}


def cells(generation: int):
    def rows(key: str):
        color, day = key.split("|")
        return [{"c": color, "d": date.fromisoformat(day), "g": generation}]

    return rows


def test_one_cell_of_a_multi_partition_is_replaced_alone(lake, events):
    lake.materialize(
        asset_of(events, GRID, cells(1), expr=GRID_EXPR),
        range_of=("red|2013-01-01", "blue|2013-01-03"),
    )
    before = len(lake.rows())
    assert before == 9
    lake.materialize(asset_of(events, GRID, cells(2), expr=GRID_EXPR), partition="green|2013-01-02")
    replaced = [row for row in lake.rows() if row["g"] == 2]
    assert replaced == [{"c": "green", "d": date(2013, 1, 2), "g": 2}]
    assert len(lake.rows()) == before


def test_any_rectangle_of_a_multi_partition_is_replaced(lake, events):
    lake.materialize(
        asset_of(events, GRID, cells(1), expr=GRID_EXPR),
        range_of=("red|2013-01-01", "amber|2013-01-04"),
    )
    lake.materialize(
        asset_of(events, GRID, cells(2), expr=GRID_EXPR),
        range_of=("green|2013-01-02", "blue|2013-01-03"),
    )
    replaced = {(row["c"], row["d"].day) for row in lake.rows() if row["g"] == 2}
    assert replaced == {(c, d) for c in ("green", "blue") for d in (2, 3)}
    assert len(lake.rows()) == 16


def test_a_cell_outside_of_a_multi_partition_is_an_error(lake, events):
    stray = asset_of(
        events, GRID, lambda _: [{"c": "red", "d": date(2013, 1, 2), "g": 1}], expr=GRID_EXPR
    )
    assert isinstance(lake.fail(stray, partition="red|2013-01-01"), PartitionMismatch)


def test_two_static_dimensions(lake, events):
    sizes = dg.StaticPartitionsDefinition(["s", "m"])
    grid = dg.MultiPartitionsDefinition({"color": COLORS, "size": sizes})
    expr = {"color": "c", "size": "s"}

    def produce(generation):
        def rows(key):
            color, size = key.split("|")
            return [{"c": color, "s": size, "g": generation}]

        return asset_of(events, grid, rows, expr=expr)

    lake.materialize(produce(1), range_of=("red|s", "amber|m"))
    lake.materialize(produce(2), partition="green|m")
    assert len(lake.rows()) == 8
    assert [row for row in lake.rows() if row["g"] == 2] == [{"c": "green", "s": "m", "g": 2}]


# ---- partition_expr


def test_a_partitioned_asset_without_partition_expr_is_told_what_to_set(lake, events):
    asset = events(table_of([{"p": "red"}]), partitions_def=COLORS)
    error = lake.fail(asset, partition="red")
    assert isinstance(error, InvalidArgument)
    assert "partition_expr" in str(error)


def test_a_missing_dimension_is_an_error(lake, events):
    asset = asset_of(events, GRID, cells(1), expr={"color": "c"})
    error = lake.fail(asset, partition="red|2013-01-01")
    assert isinstance(error, InvalidArgument)
    assert "map each of the dimensions color, day" in str(error)


# ---- physical partitioning


@pytest.mark.parametrize(
    ("definition", "key", "value", "expected"),
    [
        (COLORS, "red", str, ("p",)),
        (DAYS, "2013-01-01", date.fromisoformat, ("p",)),
        (DAYS, "2013-01-01", str, ("p",)),
        (DAYS, "2013-01-01", utc, ()),
        (dg.MonthlyPartitionsDefinition("2013-01-01"), "2013-01-01", date.fromisoformat, ()),
    ],
    ids=["static", "day as date", "day as string", "day as timestamp", "month as dates"],
)
def test_a_new_table_is_partitioned_where_a_key_is_one_value(
    lake, events, definition, key, value, expected
):
    asset = asset_of(events, definition, lambda key: [{"p": value(key), "x": 1}])
    lake.materialize(asset, partition=key)
    assert lake.table().snapshot().configuration.partition_columns == expected


def test_partition_by_decides_otherwise(lake, events):
    asset = asset_of(events, COLORS, colored(1), metadata={"partition_by": []})
    lake.materialize(asset, range_of=every(COLORS))
    lake.materialize(
        asset_of(events, COLORS, colored(2), metadata={"partition_by": []}), partition="red"
    )
    assert lake.table().snapshot().configuration.partition_columns == ()
    assert {row["p"]: row["generation"] for row in lake.rows()}["red"] == 2
    assert len(lake.rows()) == 4


# ---- inputs


def reading(events_key: str, **options: Any):
    seen: list[pa.Table] = []

    @dg.asset(**options)
    def reader(events: pa.Table) -> None:
        seen.append(events)

    return reader, seen


def values(tables: Sequence[pa.Table], column: str = "p") -> list[Any]:
    return sorted(tables[0][column].to_pylist())


def test_a_partitioned_input_is_just_its_partition(lake, events):
    asset = asset_of(events, DAYS, lambda key: [{"p": utc(key)}])
    lake.materialize(asset, range_of=("2013-01-01", "2013-01-05"))
    reader, seen = reading("events", partitions_def=DAYS)
    lake.materialize(asset, reader, partition="2013-01-03")
    assert values(seen) == [utc("2013-01-03")]


def test_a_range_of_an_input_is_its_partitions(lake, events):
    asset = asset_of(events, COLORS, colored(1))
    lake.materialize(asset, range_of=every(COLORS))
    reader, seen = reading("events", partitions_def=COLORS)
    lake.materialize(asset, reader, range_of=("green", "blue"))
    assert values(seen) == ["blue", "green"]


def test_an_unpartitioned_asset_reads_every_partition(lake, events):
    asset = asset_of(events, COLORS, colored(1))
    lake.materialize(asset, range_of=every(COLORS))
    reader, seen = reading("events")
    lake.materialize(asset.to_source_asset(), reader)
    assert values(seen) == ["amber", "blue", "green", "red"]


def test_a_mapped_input_is_the_partitions_of_the_mapping(lake, events):
    asset = asset_of(events, DAYS, lambda key: [{"p": date.fromisoformat(key), "x": 1}])
    lake.materialize(asset, range_of=("2013-01-01", "2013-01-05"))
    window = dg.TimeWindowPartitionMapping(start_offset=-1, end_offset=0)
    seen = []

    @dg.asset(partitions_def=DAYS, ins={"events": dg.AssetIn(partition_mapping=window)})
    def reader(events: pa.Table) -> None:
        seen.append(events)

    lake.materialize(asset.to_source_asset(), reader, partition="2013-01-03")
    assert values(seen) == [date(2013, 1, 2), date(2013, 1, 3)]


WEEKDAYS = dg.TimeWindowPartitionsDefinition(
    "2026-03-02",
    "%Y-%m-%d",
    end="2026-03-28",
    cron_schedule="0 0 * * *",
    exclusions=["0 0 * * 6", "0 0 * * 0"],
)
WEEKS = dg.WeeklyPartitionsDefinition("2026-03-01", end_date="2026-03-29")
WEEK = [date(2026, 3, day) for day in range(9, 14)]


@pytest.mark.parametrize(
    ("partitions_def", "mapping", "key", "loaded"),
    [
        (WEEKS, None, "2026-03-08", WEEK),
        (
            WEEKS,
            dg.TimeWindowPartitionMapping(start_offset=-1),
            "2026-03-15",
            [*WEEK, *(day + timedelta(days=7) for day in WEEK)],
        ),
        (
            dg.HourlyPartitionsDefinition("2026-03-05-00:00", end_date="2026-03-12-00:00"),
            None,
            "2026-03-07-05:00",
            [],
        ),
        (
            WEEKDAYS,
            dg.TimeWindowPartitionMapping(start_offset=-1, end_offset=-1),
            "2026-03-09",
            [date(2026, 3, 6)],
        ),
    ],
    ids=["week", "two weeks", "hour of an excluded day", "weekday before"],
)
def test_an_input_has_only_the_partitions_that_its_windows_overlap(
    lake, events, partitions_def, mapping, key, loaded
):
    asset = asset_of(events, WEEKDAYS, lambda key: [{"p": date.fromisoformat(key)}])
    lake.materialize(asset, range_of=every(WEEKDAYS))
    reader, seen = reading(
        "events",
        partitions_def=partitions_def,
        ins={"events": dg.AssetIn(partition_mapping=mapping)},
    )
    lake.materialize(asset.to_source_asset(), reader, partition=key)
    assert values(seen) == loaded


@pytest.mark.parametrize("of_both", [True, False], ids=["two dimensions", "one dimension"])
def test_a_dimension_of_an_input_has_only_the_partitions_of_its_window(lake, events, of_both):
    regions = dg.StaticPartitionsDefinition(["eu", "us"])
    asset = asset_of(
        events,
        dg.MultiPartitionsDefinition({"day": WEEKDAYS, "region": regions}),
        lambda key: [{"p": date.fromisoformat(key.split("|")[0]), "r": key.split("|")[1]}],
        expr={"day": "p", "region": "r"},
    )
    lake.materialize(asset, range_of=("2026-03-02|eu", "2026-03-27|us"))
    options: dict[str, Any] = {"partitions_def": WEEKS}
    if of_both:
        mapping = dg.MultiPartitionMapping(
            {
                "day": dg.DimensionPartitionMapping("week", dg.TimeWindowPartitionMapping()),
                "region": dg.DimensionPartitionMapping("region", dg.IdentityPartitionMapping()),
            }
        )
        options = {
            "partitions_def": dg.MultiPartitionsDefinition({"week": WEEKS, "region": regions}),
            "ins": {"events": dg.AssetIn(partition_mapping=mapping)},
        }
    reader, seen = reading("events", **options)
    key = "eu|2026-03-08" if of_both else "2026-03-08"
    lake.materialize(asset.to_source_asset(), reader, partition=key)
    assert sorted(set(values(seen))) == WEEK
    assert set(seen[0]["r"].to_pylist()) == ({"eu"} if of_both else {"eu", "us"})


@pytest.mark.exhaustive
def test_a_backfill_in_many_processes_loses_and_doubles_nothing(stored_lake, monkeypatch):
    """Its first run makes the tables; then the others merge into them at the same time."""
    monkeypatch.setenv("LAKE_ROOT", str(stored_lake.root))
    job = dg.reconstructable(backfilled_lake.make_job)

    def run(day: str) -> bool:
        with dg.execute_job(
            job,
            instance=stored_lake.instance,
            run_config=QUIET,
            tags={"dagster/partition": day, "dagster/backfill": "all"},
        ) as result:
            return result.success

    first, *others = backfilled_lake.DAYS.get_partition_keys()
    assert run(first)
    with ThreadPoolExecutor(len(others)) as pool:
        assert all(pool.map(run, others))
    assert stored_lake.column("id", "copied") == [10, 11, 20, 21, 30, 31]
    assert run(first)
    assert stored_lake.column("id", "source") == [10, 11, 20, 21, 30, 31]
    assert stored_lake.column("id", "copied") == [10, 11, 20, 21, 30, 31]


@pytest.mark.parametrize("enable_column_change", [False, True])
@pytest.mark.parametrize("mode", ["overwrite", "append"])
def test_all_runs_of_a_parallel_first_backfill_succeed(
    tmp_path, events, mode, enable_column_change
):
    def produce(context) -> pa.Table:
        everyone_has_rows.wait()
        return table_of([{"p": context.partition_key, **extra}])

    keys = COLORS.get_partition_keys()
    everyone_has_rows, extra = threading.Barrier(len(keys)), dict[str, int]()
    made = events(
        produce,
        partitions_def=COLORS,
        metadata={"partition_expr": "p", "mode": mode, "schema_mode": "merge"},
    )
    manager = DeltaIOManager(root_uri=str(tmp_path), enable_column_change=enable_column_change)

    def run(key: str) -> bool:
        with dg.DagsterInstance.ephemeral() as instance:
            resources = {"io_manager": manager}
            return dg.materialize(
                [made], partition_key=key, resources=resources, instance=instance
            ).success

    # The first backfill creates the table, the second one adds a column.
    for column in ("first", "second"):
        extra[column] = 1
        with ThreadPoolExecutor(len(keys)) as pool:
            assert all(pool.map(run, keys))


def test_a_run_without_a_partition_replaces_no_partition(lake, events):
    def produce(context) -> pa.Table:
        keys = context.partition_keys if context.has_partition_key else ["red"]
        return table_of([{"p": key} for key in keys])

    def made(mode: str):
        metadata = {"partition_expr": "p", "mode": mode}
        return events(produce, partitions_def=COLORS, metadata=metadata)

    lake.materialize(made("overwrite"), partition="blue")
    error = lake.fail(made("overwrite"))
    assert isinstance(error, InvalidArgument)
    assert "is partitioned and the run has no partition" in str(error)
    assert lake.column("p") == ["blue"]
    lake.materialize(made("append"))
    assert lake.column("p") == ["blue", "red"]
