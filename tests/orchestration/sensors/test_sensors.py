"""Sensors on real tables and real instances: what they run, report and refuse."""

# No `from __future__ import annotations`: Dagster looks at the annotation of `config` itself.

import hashlib
import json
import shutil
from collections import Counter
from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import dagster as dg
import deltalake
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dagster_delta import clock
from dagster_delta.errors import (
    ChangeDataNotRecorded,
    DeltaError,
    InvalidArgument,
    SchemaMismatch,
    StorageFailure,
    TableNotFound,
    VersionNotFound,
)
from dagster_delta.orchestration.sensors import sensors
from dagster_delta.orchestration.sensors.observations import observable_delta_asset
from dagster_delta.orchestration.sensors.sensors import delta_change_feed_sensor, delta_table_sensor
from dagster_delta.orchestration.sensors.table_watcher import (
    FROM_VERSION_TAG,
    TABLE_ID_TAG,
    TABLE_URI_TAG,
    TO_VERSION_TAG,
    DeltaCommitRange,
    SensorState,
    TableChanges,
    TableState,
    WaitingChanges,
)
from dagster_delta.protocol.log.paths import commit_path
from dagster_delta.storage import open_store
from dagster_delta.table.delta_table import DeltaTable
from dagster_delta.table.read.watch import LogCursor
from dagster_delta.testing.faulty_store import Fault, FaultyStore
from tests.orchestration.conftest import plain
from tests.sample_tables import of_day
from tests.table.logs import add_file, commit, metadata


@dg.asset
def report(config: DeltaCommitRange) -> str:
    return f"{config.from_version}-{config.to_version}"


@dg.asset
def summary() -> None: ...


def append(uri: str, *ids: int, day: str = "2026-01-01") -> None:
    """A commit by another program, to a table partitioned by day."""
    deltalake.write_deltalake(uri, of_day(*ids, day=day), mode="append", partition_by=["day"])


class Daemon:
    """Ticks a sensor and keeps its cursor, as the Dagster daemon does."""

    def __init__(self, instance: dg.DagsterInstance, sensor: dg.SensorDefinition) -> None:
        self.instance = instance
        self.sensor = sensor
        self.cursor: str | None = None

    def tick(self) -> dg.SensorResult:
        context = dg.build_sensor_context(instance=self.instance, cursor=self.cursor)
        result = self.sensor(context)
        assert isinstance(result, dg.SensorResult)
        self.cursor = result.cursor
        return result

    def requests(self) -> list[dg.RunRequest]:
        return list(self.tick().run_requests or ())

    def run_keys(self) -> list[str | None]:
        return [each.run_key for each in self.requests()]

    def table(self, uri: str) -> dict[str, Any]:
        state: dict[str, Any] = json.loads(self.cursor or "{}")["tables"][uri]
        return state


@pytest.fixture
def uri(tmp_path: Path) -> str:
    location = str(tmp_path / "lake" / "events")
    append(location, 1)
    return location


@pytest.fixture
def daemon(instance: dg.DagsterInstance) -> Callable[..., Daemon]:
    def make(*tables: Any, feed: bool = False, **options: Any) -> Daemon:
        factory = delta_change_feed_sensor if feed else delta_table_sensor
        options.setdefault("target", [summary])
        return Daemon(instance, factory("watch", tables, **options))

    return make


def table_id(uri: str) -> str:
    return DeltaTable(uri).snapshot().metadata.id


def run_key(uri: str, version: int, watch: Daemon | None = None) -> str:
    """The key of a run; of one for commits that are older than a watch, if that is given."""
    commit = hashlib.sha256(open_store(uri).read(commit_path(version))).hexdigest()[:32]
    started = "" if watch is None else f" {watch.table(uri)['started_at_ms']}"
    digest = hashlib.sha256(f"{uri} {commit}{started}".encode()).hexdigest()
    return f"{table_id(uri)}:{version}:{digest[:8]}"


def test_the_first_tick_starts_at_the_latest_version(daemon, uri) -> None:
    watch = daemon(uri)
    first = watch.tick()
    assert not first.run_requests
    assert str(first.skip_reason.skip_message).startswith("Watched from now on: ")
    append(uri, 2)
    append(uri, 3)
    assert watch.run_keys() == [run_key(uri, 2)]
    assert watch.run_keys() == []


def test_the_first_tick_may_start_earlier(daemon, uri) -> None:
    append(uri, 2)
    watch = daemon(uri, start_from="earliest")
    assert watch.run_keys() == [run_key(uri, 1, watch)]
    (request,) = daemon(uri, start_from=1).requests()
    assert (request.tags[FROM_VERSION_TAG], request.tags[TO_VERSION_TAG]) == ("1", "1")


def test_a_run_learns_the_range_of_commits_from_its_config_and_tags(instance, uri) -> None:
    def config(changes: TableChanges) -> dg.RunConfig:
        return dg.RunConfig(ops={"report": changes.commit_range()})

    watch = Daemon(
        instance,
        delta_table_sensor("watch", uri, target=[report], run_config=config, run_tags={"a": "b"}),
    )
    watch.tick()
    append(uri, 2, 3)
    append(uri, 4)
    (request,) = watch.requests()
    result = dg.materialize([report], instance=instance, run_config=request.run_config)
    assert result.output_for_node("report") == "1-2"
    assert request.tags == {
        "a": "b",
        # The only one that the UI shows.
        "delta/commits": "events versions 1 to 2 (WRITE, 3 rows)",
        TABLE_URI_TAG: uri,
        TABLE_ID_TAG: table_id(uri),
        FROM_VERSION_TAG: "1",
        TO_VERSION_TAG: "2",
    }
    hidden = [tag for tag in request.tags if tag.startswith(".dagster/")]
    assert len(hidden) == len(request.tags) - 2


def test_the_cursor_survives_a_restart_of_the_daemon(tmp_path, uri) -> None:
    cursor = None
    keys = []
    for number in range(3):
        # Another process: its own instance on the same home, its own sensor, its own stores.
        with dg.DagsterInstance.local_temp(str(tmp_path)) as instance:
            watch = Daemon(instance, delta_table_sensor("watch", uri, target=[summary]))
            watch.cursor = cursor
            keys.append(watch.run_keys())
            cursor = watch.cursor
        append(uri, number)
    assert keys == [[], [run_key(uri, 1)], [run_key(uri, 2)]]


def test_a_tick_whose_cursor_was_lost_asks_for_the_same_run_again(daemon, uri) -> None:
    watch = daemon(uri)
    watch.tick()
    before = watch.cursor
    append(uri, 2)
    first = watch.run_keys()
    watch.cursor = before
    # Dagster starts one run per run key.
    assert watch.run_keys() == first


def start(instance: dg.DagsterInstance, requests: list[dg.RunRequest]) -> None:
    """Start runs as the daemon does."""
    for request in requests:
        tags = {**request.tags, "dagster/sensor_name": "watch"}
        dg.materialize([summary], instance=instance, tags=tags)


@pytest.mark.parametrize("minimum_rows", [None, 2])
def test_commits_after_a_lost_cursor_do_not_change_the_run_that_was_started(
    daemon, instance, uri, minimum_rows
) -> None:
    watch = daemon(uri, minimum_rows=minimum_rows)
    watch.tick()
    before = watch.cursor
    append(uri, 2)
    append(uri, 3)
    first = watch.requests()
    start(instance, first)
    watch.cursor = before
    append(uri, 4)
    append(uri, 5)
    (again,) = watch.requests()
    assert again.run_key == first[0].run_key
    (later,) = watch.requests()
    assert (later.tags[FROM_VERSION_TAG], later.tags[TO_VERSION_TAG]) == ("3", "4")
    assert not watch.requests()


@pytest.mark.parametrize("lost_ticks", [1, 2])
def test_changes_that_have_waited_keep_their_run_after_a_lost_cursor(
    daemon, instance, uri, monkeypatch, lost_ticks
) -> None:
    now_ms = 1_800_000_000_000
    monkeypatch.setattr(clock, "now_ms", lambda: now_ms)
    watch = daemon(uri, minimum_age_seconds=60.0)
    watch.tick()
    cursors = [watch.cursor]
    append(uri, 2)
    assert not watch.requests()
    cursors.append(watch.cursor)
    now_ms += 60_000
    first = watch.requests()
    start(instance, first)
    watch.cursor = cursors[-lost_ticks]
    append(uri, 3)
    assert watch.run_keys() == [each.run_key for each in first]
    assert not watch.requests()
    now_ms += 60_000
    (later,) = watch.requests()
    assert later.tags[FROM_VERSION_TAG] == "2"


def test_partitions_that_had_no_run_yet_get_it_after_a_lost_cursor(daemon, instance, uri) -> None:
    days = dg.DailyPartitionsDefinition("2026-01-01", end_date="2026-01-10")
    watch = daemon(uri, partitions_def=days, partition_expr="day")
    watch.tick()
    before = watch.cursor
    append(uri, 2, day="2026-01-02")
    append(uri, 3, day="2026-01-03")
    first = watch.requests()
    start(instance, first[:1])
    watch.cursor = before
    append(uri, 4, day="2026-01-02")
    assert [each.run_key for each in watch.requests()] == [each.run_key for each in first]
    (later,) = watch.requests()
    assert later.partition_key == "2026-01-02"


def test_maintenance_is_passed_over_unless_it_is_asked_for(daemon, uri) -> None:
    append(uri, 2)
    watch, optimized = daemon(uri), daemon(uri, operations=["optimize"])
    watch.tick()
    optimized.tick()
    deltalake.DeltaTable(uri).optimize.compact()
    assert watch.run_keys() == []
    assert watch.table(uri)["log"]["version"] == 2
    assert optimized.run_keys() == [run_key(uri, 2)]


def test_only_the_operations_that_were_asked_for_count(daemon, uri) -> None:
    watch = daemon(uri, operations={"DELETE"})
    watch.tick()
    append(uri, 2)
    assert watch.run_keys() == []
    append(uri, 3)
    deltalake.DeltaTable(uri).delete("id = 3")
    (request,) = watch.requests()
    assert request.tags["delta/commits"] == "events version 3 (DELETE, 1 row)"


@pytest.mark.parametrize(
    "rule", [{"day": {"2026-01-02"}}, lambda values: values["day"] == "2026-01-02"]
)
def test_only_the_partitions_that_were_asked_for_count(daemon, uri, rule) -> None:
    watch = daemon(uri, partitions=rule)
    watch.tick()
    append(uri, 2, day="2026-01-01")
    assert watch.run_keys() == []
    append(uri, 3, day="2026-01-02")
    assert watch.run_keys() == [run_key(uri, 2)]


def test_a_filter_by_a_column_that_is_no_partition_fails_the_tick(daemon, uri) -> None:
    watch = daemon(uri, partitions={"id": {"1"}})
    watch.tick()
    append(uri, 2)
    with pytest.raises(InvalidArgument, match="partitioned by day and not by id"):
        watch.tick()


def test_only_changes_of_the_columns_that_were_asked_for_count(daemon, tmp_path) -> None:
    location = str(tmp_path / "wide")
    table = DeltaTable(location, must_exist=False)
    rows_of_three = pa.table({"id": [1, 2], "price": [5, 6], "note": ["a", "b"]})
    table.append(rows_of_three, properties={"delta.enableChangeDataFeed": "true"})
    watch = daemon(location, columns="Price")
    watch.tick()
    table.update({"note": "'c'"})
    assert watch.run_keys() == []
    # Each price is still there once, and belongs to another row.
    table.update({"price": "11 - price"})
    assert watch.run_keys() == [run_key(location, 2)]
    table.update({"note": "'d'", "id": "id + 1"})
    assert watch.run_keys() == []
    table.append(rows_of_three)
    assert watch.run_keys() == [run_key(location, 4)]
    table.delete("id = 1")
    assert watch.run_keys() == [run_key(location, 5)]


def test_a_filter_by_a_column_that_the_table_lacks_fails_the_tick(daemon, tmp_path) -> None:
    location = str(tmp_path / "wide")
    table = DeltaTable(location, must_exist=False)
    table.append(of_day(1), properties={"delta.enableChangeDataFeed": "true"})
    watch = daemon(location, columns=["nothing"])
    watch.tick()
    table.update({"day": "'2026-01-02'"})
    with pytest.raises(SchemaMismatch, match="nothing"):
        watch.tick()


def test_updates_that_are_not_recorded_change_every_column(daemon, uri) -> None:
    watch = daemon(uri, columns="day")
    watch.tick()
    DeltaTable(uri).update({"id": "id + 1"})
    assert len(watch.run_keys()) == 1


def test_a_tick_without_a_run_says_why(daemon, uri) -> None:
    watch = daemon(uri, minimum_rows=3, minimum_age_seconds=3600)

    def reason() -> str:
        return str(watch.tick().skip_reason.skip_message)

    assert reason() == f"Watched from now on: {uri} after version 0"
    assert reason() == f"No new commits: {uri} (version 0)"
    deltalake.DeltaTable(uri).alter.set_table_properties({"delta.appendOnly": "false"})
    ignored = reason()
    assert ignored.startswith(f"No changed rows to run for: {uri} version 1 (")
    append(uri, 2)
    assert reason() == (
        f"Changes wait: {uri}: version 2 with 1 row, until 3 rows or an age of 3,600 seconds, "
        "which is 0 now"
    )


def test_tables_with_news_come_first_and_failures_are_named(daemon, uri, tmp_path) -> None:
    later = str(tmp_path / "later")
    watch = daemon(uri, later, minimum_rows=9)
    watch.tick()
    append(uri, 2)
    reason = str(watch.tick().skip_reason.skip_message)
    assert reason.startswith(f"Changes wait: {uri}: version 1 with 1 row, until 9 rows. ")
    assert reason.endswith(f"Not there yet: {later}")


def test_a_table_that_is_named_with_and_without_a_slash_is_watched_once(daemon, uri) -> None:
    watch = daemon(uri, f"{uri}/", asset_key=lambda _: "events")
    watch.tick()
    append(uri, 2)
    found = watch.tick()
    assert len(found.run_requests) == len(found.asset_events) == 1


def test_the_cursor_is_laid_out_for_people(daemon, uri) -> None:
    watch = daemon(uri)
    watch.tick()
    lines = watch.cursor.splitlines()
    assert [line.strip() for line in lines[:5]] == [
        "{",
        '"tables": {',
        f'"{uri}": {{',
        '"log": {',
        '"version": 0,',
    ]


def test_few_rows_wait_until_there_are_enough(daemon, uri) -> None:
    watch = daemon(uri, minimum_rows=3)
    watch.tick()
    append(uri, 2)
    waiting = watch.tick()
    assert not waiting.run_requests
    assert "Changes wait: " in str(waiting.skip_reason)
    append(uri, 3, 4)
    (request,) = watch.requests()
    assert (request.tags[FROM_VERSION_TAG], request.tags[TO_VERSION_TAG]) == ("1", "2")
    assert watch.run_keys() == []


def test_young_changes_wait_until_they_are_old_enough(daemon, uri) -> None:
    watch = daemon(uri, minimum_age_seconds=3600, minimum_rows=1000)
    watch.tick()
    append(uri, 2)
    assert watch.run_keys() == []
    append(uri, 3)
    assert watch.run_keys() == []
    state = json.loads(watch.cursor)
    state["tables"][uri]["waiting"]["seen_at_ms"] -= 3_600_001
    watch.cursor = json.dumps(state)
    assert watch.run_keys() == [run_key(uri, 2)]


def test_each_changed_day_becomes_a_run_of_its_partition(daemon, uri) -> None:
    days = dg.DailyPartitionsDefinition("2026-01-01", end_date="2026-02-01")
    watch = daemon(uri, partitions_def=days, partition_expr="day")
    watch.tick()
    append(uri, 2, day="2026-01-02")
    append(uri, 3, 4, day="2026-01-03")
    append(uri, 5, day="2026-01-02")
    result = watch.tick()
    keys = {each.partition_key: each.run_key for each in result.run_requests}
    prefix = run_key(uri, 3)
    assert keys == {day: f"{prefix}:{day}" for day in ("2026-01-02", "2026-01-03")}


def test_changed_partitions_of_a_table_without_partition_columns_are_not_skipped(
    daemon, tmp_path
) -> None:
    uri = str(tmp_path / "plain")
    rows = pa.table({"day": ["2026-01-02"]})
    DeltaTable.create(uri, rows.schema)
    days = dg.DailyPartitionsDefinition("2026-01-01")
    watch = daemon(uri, partitions_def=days, partition_expr="day")
    watch.tick()
    DeltaTable(uri).append(rows)
    for _ in range(2):
        with pytest.raises(
            DeltaError, match=r"has no partition columns.*versions 1 to 1.*partition_by"
        ):
            watch.tick()


def test_a_day_lies_in_the_week_of_the_asset(daemon, uri) -> None:
    weeks = dg.WeeklyPartitionsDefinition("2026-01-04", timezone="America/New_York")
    watch = daemon(uri, partitions_def=weeks, partition_expr="day")
    watch.tick()
    append(uri, 2, day="2026-01-10")
    append(uri, 2, day="2026-01-11")
    keys = [each.partition_key for each in watch.requests()]
    assert keys == ["2026-01-04", "2026-01-11"]


def requested(daemon, uri: str, values: pa.Array, partitions: Any) -> list[str | None]:
    """The partition keys of the runs for a table partitioned by these values, first with a cursor
    of an older release.
    """
    rows = pa.table({"p": values, "v": pa.array(range(len(values)))})
    deltalake.write_deltalake(uri, rows.slice(0, 0), partition_by=["p"])
    watch = daemon(uri, partitions_def=partitions, partition_expr="p")
    watch.tick()
    state = json.loads(watch.cursor)
    del state["tables"][uri]["log"]["timestamp_columns"]
    watch.cursor = json.dumps(state)
    deltalake.write_deltalake(uri, rows, mode="append")
    keys = [each.partition_key for each in watch.requests()]
    deltalake.write_deltalake(uri, rows, mode="append")
    assert [each.partition_key for each in watch.requests()] == keys
    return keys


def test_every_hour_of_a_changed_day_gets_its_run(daemon, tmp_path) -> None:
    hours = dg.HourlyPartitionsDefinition("2026-03-01-00:00", timezone="Europe/Berlin")
    days = pa.array([date(2026, 3, 29)])
    keys = requested(daemon, str(tmp_path / "t"), days, hours)
    assert keys == [f"2026-03-29-{hour:02}:00" for hour in range(24) if hour != 2]


def test_a_day_is_in_the_window_that_begins_on_it(daemon, tmp_path) -> None:
    shifts = dg.DailyPartitionsDefinition("2026-03-01", hour_offset=6)
    days = pa.array([date(2026, 3, 5)])
    assert requested(daemon, str(tmp_path / "t"), days, shifts) == ["2026-03-05"]


@pytest.mark.parametrize(
    ("data_type", "key"),
    [(pa.timestamp("us", "UTC"), "2026-03-06"), (pa.timestamp("us"), "2026-03-05")],
)
def test_a_timestamp_without_a_zone_in_the_log_is_in_utc(daemon, tmp_path, data_type, key) -> None:
    """deltalake writes both types the same; only a timestamp_ntz is a wall clock."""
    days = dg.DailyPartitionsDefinition("2026-03-01", timezone="Europe/Berlin")
    late = pa.array([datetime(2026, 3, 5, 23, 30)], data_type)
    assert requested(daemon, str(tmp_path / "t"), late, days) == [key]


def test_a_partition_outside_of_the_asset_gets_no_run_and_a_warning(
    daemon, uri, monkeypatch
) -> None:
    known = dg.StaticPartitionsDefinition(["2026-01-01", "2026-01-02"])
    watch = daemon(uri, partitions_def=known, partition_expr="day")
    watch.tick()
    append(uri, 2, day="1999-01-01")
    append(uri, 2, day="2026-01-02")
    context = dg.build_sensor_context(instance=watch.instance, cursor=watch.cursor)
    warnings: list[str] = []
    monkeypatch.setattr(context.log, "warning", warnings.append)
    result = watch.sensor(context)
    assert [each.partition_key for each in result.run_requests] == ["2026-01-02"]
    (warning,) = warnings
    assert "belong to no partition of the asset" in warning
    assert "1999-01-01" in warning


def test_changes_of_a_day_that_has_not_ended_get_their_run_when_it_has(daemon, tmp_path) -> None:
    uri = str(tmp_path / "lake" / "events")
    now = datetime.now(UTC)
    today, yesterday, far = (
        (now + timedelta(days=days)).date().isoformat() for days in (0, -1, 30)
    )
    append(uri, 1, day=yesterday)
    first_day = "2026-01-01"
    days = dg.DailyPartitionsDefinition(first_day)
    watch = daemon(uri, partitions_def=days, partition_expr="day")
    watch.tick()
    append(uri, 2, day=today)
    skipped = watch.tick()
    assert not skipped.run_requests
    assert f"until the time windows {today} have ended" in skipped.skip_reason.skip_message
    append(uri, 3, day=yesterday)
    append(uri, 4, day=today)
    append(uri, 5, day=far)
    assert [each.partition_key for each in watch.requests()] == [yesterday]
    assert not watch.requests()
    # The definition as it is tomorrow.
    ended = dg.DailyPartitionsDefinition(first_day, end_offset=1)
    tomorrow = daemon(uri, partitions_def=ended, partition_expr="day")
    tomorrow.cursor = watch.cursor
    (request,) = tomorrow.requests()
    assert request.partition_key == today
    assert request.run_key == f"{run_key(uri, 4)}:{today}"
    assert request.tags[FROM_VERSION_TAG] == "1"
    assert request.tags[TO_VERSION_TAG] == "4"
    assert not tomorrow.requests()


def test_a_day_that_waits_is_given_up_where_the_asset_has_other_partitions_now(
    daemon, tmp_path, monkeypatch
) -> None:
    uri = str(tmp_path / "lake" / "events")
    append(uri, 1, day="2026-01-02")
    days = dg.DailyPartitionsDefinition("2026-01-01")
    watch = daemon(uri, partitions_def=days, partition_expr="day")
    watch.tick()
    append(uri, 2, day=f"{datetime.now(UTC):%Y-%m-%d}")
    watch.tick()
    assert "later" in watch.table(uri)
    multi = dg.MultiPartitionsDefinition({"day": days, "c": dg.StaticPartitionsDefinition(["x"])})
    keys = {"partition_keys": lambda values: [f"x|{values['day']}"]}
    changed = daemon(uri, partitions_def=multi, **keys)
    context = dg.build_sensor_context(instance=changed.instance, cursor=watch.cursor)
    warnings: list[str] = []
    monkeypatch.setattr(context.log, "warning", warnings.append)
    result = changed.sensor(context)
    assert not result.run_requests
    assert "they get no run" in warnings[0]
    assert "later" not in json.loads(result.cursor)["tables"][uri]


def test_a_report_says_that_it_leaves_out_a_day_that_has_not_ended(
    daemon, tmp_path, monkeypatch
) -> None:
    uri = str(tmp_path / "lake" / "events")
    append(uri, 1, day="2026-01-02")
    days = dg.DailyPartitionsDefinition("2026-01-01")
    watch = daemon(uri, target=None, asset_key="e", partitions_def=days, partition_expr="day")
    watch.tick()
    append(uri, 2, day=f"{datetime.now(UTC):%Y-%m-%d}")
    context = dg.build_sensor_context(instance=watch.instance, cursor=watch.cursor)
    warnings: list[str] = []
    monkeypatch.setattr(context.log, "warning", warnings.append)
    assert not watch.sensor(context).asset_events
    assert "no event reports what changed" in warnings[0]


def test_new_dynamic_partitions_are_requested_with_their_runs(daemon, instance, uri) -> None:
    days = dg.DynamicPartitionsDefinition(name="days")
    instance.add_dynamic_partitions("days", ["2026-01-01"])
    watch = daemon(uri, partitions_def=days, partition_expr="day")
    watch.tick()
    append(uri, 2, day="2026-01-01")
    append(uri, 3, day="2026-01-02")
    result = watch.tick()
    assert sorted(each.partition_key for each in result.run_requests) == [
        "2026-01-01",
        "2026-01-02",
    ]
    (request,) = result.dynamic_partitions_requests
    assert (request.partitions_def_name, request.partition_keys) == ("days", ["2026-01-02"])


def test_multi_partitions_take_a_column_per_dimension(daemon, tmp_path) -> None:
    uri = str(tmp_path / "multi")
    multi = dg.MultiPartitionsDefinition(
        {
            "date": dg.DailyPartitionsDefinition("2026-01-01", end_date="2026-02-01"),
            "carrier": dg.DynamicPartitionsDefinition(name="carriers"),
        }
    )
    watch = daemon(uri, partitions_def=multi, partition_expr={"date": "day", "carrier": "c"})
    watch.tick()
    data = pa.table({"id": [1], "day": ["2026-01-02"], "c": ["UA"]})
    deltalake.write_deltalake(uri, data, partition_by=["day", "c"])
    result = watch.tick()
    (request,) = result.run_requests
    assert request.partition_key == "UA|2026-01-02"
    (added,) = result.dynamic_partitions_requests
    assert (added.partitions_def_name, added.partition_keys) == ("carriers", ["UA"])


def test_a_function_may_name_the_partition_keys(daemon, uri) -> None:
    months = dg.StaticPartitionsDefinition(["2026-01", "2026-02"])
    watch = daemon(uri, partitions_def=months, partition_keys=lambda values: [values["day"][:7]])
    watch.tick()
    append(uri, 2, day="2026-02-02")
    assert watch.run_keys() == [f"{run_key(uri, 1)}:2026-02"]


def test_a_flood_of_partitions_is_spread_over_ticks(daemon, uri) -> None:
    days = [f"2026-01-{day:02}" for day in range(1, 8)]
    watch = daemon(
        uri,
        partitions_def=dg.StaticPartitionsDefinition(days),
        partition_expr="day",
        max_runs_per_tick=3,
    )
    watch.tick()
    data = pa.table({"id": list(range(7)), "day": days})
    deltalake.write_deltalake(uri, data, mode="append", partition_by=["day"])
    ticks = [watch.run_keys() for _ in range(2)]
    # What comes meanwhile keeps its own range of versions.
    append(uri, 9, day=days[0])
    ticks += [watch.run_keys() for _ in range(3)]
    assert [len(each) for each in ticks] == [3, 3, 1, 1, 0]
    sent = [key for tick in ticks[:3] for key in tick]
    assert sent == [f"{run_key(uri, 1)}:{day}" for day in days]
    assert ticks[3] == [f"{run_key(uri, 2)}:{days[0]}"]


def test_a_flood_of_commits_is_read_in_parts_and_makes_one_run_each(daemon, uri) -> None:
    watch = daemon(uri, max_commits_per_tick=4)
    watch.tick()
    for number in range(9):
        append(uri, number)
    keys = [watch.run_keys() for _ in range(4)]
    assert keys == [[run_key(uri, 4)], [run_key(uri, 8)], [run_key(uri, 9)], []]


def test_commits_to_an_external_table_are_reported_on_its_asset(instance, uri) -> None:
    sensor = delta_table_sensor("watch", uri, asset_key=["raw", "events"])
    watch = Daemon(instance, sensor)
    watch.tick()
    append(uri, 2, 3)
    append(uri, 4)
    events = watch.tick().asset_events
    assert [type(each) for each in events] == [dg.AssetMaterialization] * 2
    first = events[0]
    assert isinstance(first, dg.AssetMaterialization)
    assert first.asset_key == dg.AssetKey(["raw", "events"])
    told = plain(first.metadata)
    assert (told["delta/version"], told["delta/operation"], told["delta/rows"]) == (1, "WRITE", 2)
    assert "delta-rs" in told["delta/committer"]
    assert first.tags == {"dagster/data_version": f"{table_id(uri)}:1"}


def test_external_materializations_make_eager_assets_run(instance, uri) -> None:
    @dg.asset(deps=[dg.AssetKey("events")], automation_condition=dg.AutomationCondition.eager())
    def downstream() -> None: ...

    defs = dg.Definitions(assets=[dg.AssetSpec("events"), downstream])
    watch = Daemon(instance, delta_table_sensor("watch", uri, asset_key="events"))
    watch.tick()
    evaluated = dg.evaluate_automation_conditions(defs, instance)
    append(uri, 2)
    for event in watch.tick().asset_events:
        instance.report_runless_asset_event(event)
    evaluated = dg.evaluate_automation_conditions(defs, instance, cursor=evaluated.cursor)
    assert evaluated.total_requested == 1
    deltalake.DeltaTable(uri).optimize.compact()
    assert watch.tick().asset_events == []


def test_observations_may_be_reported_instead_per_partition(daemon, uri) -> None:
    days = dg.DailyPartitionsDefinition("2026-01-01", end_date="2026-02-01")
    watch = daemon(
        uri,
        target=None,
        asset_key="events",
        asset_event="observation",
        partitions_def=days,
        partition_expr="day",
    )
    watch.tick()
    append(uri, 2, day="2026-01-05")
    (event,) = watch.tick().asset_events
    assert isinstance(event, dg.AssetObservation)
    assert event.partition == "2026-01-05"


def test_row_changes_come_with_their_change_data_files(instance, tmp_path) -> None:
    uri = str(tmp_path / "feed")
    feed = {"delta.enableChangeDataFeed": "true"}
    deltalake.write_deltalake(uri, of_day(1, 2), configuration=feed)
    seen: list[TableChanges] = []

    def config(changes: TableChanges) -> dict[str, Any]:
        seen.append(changes)
        return {}

    sensor = delta_change_feed_sensor(
        "watch", uri, target=[summary], asset_key="feed", run_config=config
    )
    watch = Daemon(instance, sensor)
    watch.tick()
    deltalake.DeltaTable(uri).update(updates={"id": "id + 1"}, predicate="id = 1")
    deltalake.DeltaTable(uri).optimize.compact()
    result = watch.tick()
    (event,) = result.asset_events
    (file,) = plain(event.metadata)["delta/change_files"]
    assert file.startswith("_change_data/")
    assert (Path(uri) / file).exists()
    assert [each.change_files for each in seen] == [(file,)]
    assert [each.run_key for each in result.run_requests or ()] == [run_key(uri, 1)]


def test_changes_that_were_not_recorded_fail_the_change_feed_sensor(daemon, uri) -> None:
    watch = daemon(uri, feed=True)
    watch.tick()
    append(uri, 2)
    with pytest.raises(ChangeDataNotRecorded, match=r"delta.enableChangeDataFeed.*to null"):
        watch.tick()


def test_a_table_that_appears_later_is_new_from_its_first_commit(daemon, tmp_path) -> None:
    uri = str(tmp_path / "later")
    watch = daemon(uri)
    assert "Not there yet: " in str(watch.tick().skip_reason)
    append(uri, 1)
    append(uri, 2)
    assert watch.run_keys() == [run_key(uri, 1)]


def test_all_tables_below_a_root_are_watched_new_ones_from_their_first_commit(
    daemon, tmp_path
) -> None:
    for name in ("raw/a", "raw/b"):
        append(str(tmp_path / name), 1)
    watch = daemon(root=str(tmp_path), discover_every_seconds=0)
    assert watch.run_keys() == []
    append(str(tmp_path / "raw/b"), 2)
    append(str(tmp_path / "c"), 1)
    tagged = {each.tags[TABLE_URI_TAG] for each in watch.requests()}
    assert tagged == {str(tmp_path / "raw/b"), str(tmp_path / "c")}


def test_the_root_is_not_looked_through_in_every_tick(daemon, tmp_path, monkeypatch) -> None:
    append(str(tmp_path / "a"), 1)
    looked: list[str] = []

    def find(root: str, options: Any, *, op_outputs: set[str]) -> list[str]:
        looked.append(root)
        return [str(tmp_path / "a")]

    monkeypatch.setattr(sensors, "find_lasting_tables", find)
    watch = daemon(root=str(tmp_path))
    for _ in range(3):
        watch.tick()
    assert looked == [str(tmp_path)]


def test_another_table_in_the_place_fails_every_tick_until_the_cursor_is_reset(daemon, uri) -> None:
    watch = daemon(uri)
    watch.tick()
    shutil.rmtree(uri)
    append(uri, 1)
    append(uri, 2)
    for _ in range(2):
        with pytest.raises(VersionNotFound, match=r"Another table.*sensor watch.*to null"):
            watch.tick()
    state = json.loads(watch.cursor)
    state["tables"][uri] = None
    watch.cursor = json.dumps(state)
    assert watch.run_keys() == []
    append(uri, 3)
    assert watch.run_keys() == [run_key(uri, 2)]


def test_a_copy_of_a_table_gets_runs_of_its_own(daemon, uri, tmp_path) -> None:
    copied = str(tmp_path / "lake" / "copied")
    append(uri, 2)
    shutil.copytree(uri, copied)
    watch = daemon(uri, copied, start_from="earliest")
    keys = watch.run_keys()
    assert sorted(keys) == sorted([run_key(uri, 1, watch), run_key(copied, 1, watch)])
    assert len(set(keys)) == 2


def test_versions_of_a_log_that_was_set_back_get_runs_again(daemon, uri, tmp_path) -> None:
    watch = daemon(uri)
    watch.tick()
    backup = tmp_path / "backup"
    shutil.copytree(uri, backup)
    append(uri, 2)
    before = watch.run_keys()
    shutil.rmtree(uri)
    shutil.copytree(backup, uri)
    with pytest.raises(VersionNotFound, match="was set back"):
        watch.tick()
    watch.cursor = json.dumps({"tables": {uri: None}})
    watch.tick()
    append(uri, 3)
    after = watch.run_keys()
    # Dagster starts no run for a key that had one.
    assert [key.rpartition(":")[0] for key in after] == [key.rpartition(":")[0] for key in before]
    assert after != before


def test_a_table_that_is_gone_fails_the_tick(daemon, uri) -> None:
    watch = daemon(uri)
    watch.tick()
    shutil.rmtree(uri)
    with pytest.raises(TableNotFound, match=r"gone.*remove it to forget it"):
        watch.tick()


def test_a_restored_table_is_a_change(daemon, uri) -> None:
    append(uri, 2)
    watch = daemon(uri)
    watch.tick()
    deltalake.DeltaTable(uri).restore(0)
    (request,) = watch.requests()
    assert "(RESTORE" in request.tags["delta/commits"]


def test_a_cleaned_log_fails_the_tick(daemon, uri) -> None:
    watch = daemon(uri)
    watch.tick()
    for number in range(3):
        append(uri, number)
    deltalake.DeltaTable(uri).create_checkpoint()
    for version in range(3):
        (Path(uri) / commit_path(version)).unlink()
    with pytest.raises(VersionNotFound, match=r"cleaned up before they were read.*to null"):
        watch.tick()


@pytest.fixture
def stores(monkeypatch) -> dict[str, FaultyStore]:
    """The stores that sensors open, by location; put one here to make it fail."""
    opened: dict[str, FaultyStore] = {}

    def open_faulty(uri: str, options: Any = None) -> FaultyStore:
        return opened.setdefault(uri, FaultyStore(open_store(uri, options)))

    monkeypatch.setattr(sensors, "open_store", open_faulty)
    return opened


def unreachable(uri: str) -> FaultyStore:
    faults = [
        Fault("refuse", operation, occurrence=number)
        for operation in ("read", "list_from")
        for number in range(1, 50)
    ]
    return FaultyStore(open_store(uri), faults)


def test_a_table_out_of_reach_fails_the_tick(daemon, uri, stores) -> None:
    watch = daemon(uri)
    watch.tick()
    stores[uri] = unreachable(uri)
    watch.sensor = daemon(uri).sensor
    append(uri, 2)
    with pytest.raises(StorageFailure):
        watch.tick()
    stores[uri] = FaultyStore(open_store(uri))
    watch.sensor = daemon(uri).sensor
    assert watch.run_keys() == [run_key(uri, 1)]


class UnnamedErrors(FaultyStore):
    """A store that does not say what the errors of its system mean."""

    def list_from(self, *_: Any) -> Any:
        raise TimeoutError("the mount does not answer")


@pytest.mark.parametrize("failing", [unreachable, lambda uri: UnnamedErrors(open_store(uri))])
def test_the_other_tables_go_on_without_one_that_is_out_of_reach(
    daemon, tmp_path, stores, monkeypatch, failing
) -> None:
    good, bad = str(tmp_path / "good"), str(tmp_path / "bad")
    append(good, 1)
    append(bad, 1)
    stores[bad] = failing(bad)
    watch = daemon(good, bad)
    first = watch.tick()
    assert "Failed: " in str(first.skip_reason)
    append(good, 2)
    context = dg.build_sensor_context(instance=watch.instance, cursor=watch.cursor)
    errors: list[str] = []
    monkeypatch.setattr(context.log, "error", errors.append)
    result = watch.sensor(context)
    watch.cursor = result.cursor
    assert [each.run_key for each in result.run_requests] == [run_key(good, 1)]
    assert len(errors) == 1
    assert bad in errors[0]
    # Nothing else to deliver: the tick fails for all to see.
    with pytest.raises(StorageFailure, match=bad):
        watch.tick()


def test_several_failures_are_told_in_one_error(daemon, tmp_path, stores) -> None:
    uris = [str(tmp_path / name) for name in "abc"]
    for uri in uris:
        append(uri, 1)
    watch = daemon(*uris)
    watch.tick()
    watch.sensor = daemon(*uris).sensor
    stores[uris[0]], stores[uris[1]] = unreachable(uris[0]), unreachable(uris[1])
    with pytest.raises(DeltaError, match=r"2 of 3 tables") as caught:
        watch.tick()
    assert uris[0] in str(caught.value)
    assert uris[1] in str(caught.value)


def test_500_idle_tables_cost_a_listing_each(daemon, stores) -> None:
    uris = [f"memory://watched-500/{number}" for number in range(500)]
    for uri in uris:
        protocol = {"protocol": {"minReaderVersion": 1, "minWriterVersion": 2}}
        commit(open_store(uri), 0, protocol, metadata(), add_file("a"))
    watch = daemon(*uris)
    watch.tick()
    for store in stores.values():
        store.calls.clear()
    assert watch.run_keys() == []
    total: Counter[str] = Counter()
    for store in stores.values():
        total += store.calls
    assert dict(total) == {"list_from": 500}
    commit(open_store(uris[7]), 1, add_file("b"))
    assert watch.run_keys() == [run_key(uris[7], 1)]


PARTITIONS = st.lists(st.dictionaries(st.text(), st.none() | st.text(), max_size=2), max_size=3)


@given(
    st.dictionaries(
        st.text(),
        st.none()
        | st.builds(
            TableState,
            log=st.builds(
                LogCursor,
                version=st.integers(-1, 2**62),
                table_id=st.none() | st.text(),
                partition_columns=st.none() | st.dictionaries(st.text(), st.text(), max_size=3),
                timestamp_columns=st.none() | st.lists(st.text(), max_size=2).map(tuple),
            ),
            waiting=st.none()
            | st.builds(
                WaitingChanges,
                table_id=st.text(),
                from_version=st.integers(0, 2**62),
                to_version=st.integers(0, 2**62),
                seen_at_ms=st.integers(0, 2**62),
                rows=st.none() | st.integers(0, 2**62),
                operations=st.lists(st.text(), max_size=3).map(tuple),
                partitions=PARTITIONS.map(tuple),
                unsent_keys=st.none() | st.lists(st.text(), max_size=3).map(tuple),
            ),
        ),
        max_size=3,
    ),
    st.none() | st.integers(0, 2**62),
)
def test_the_cursor_gives_back_what_it_was_given(tables, discovered_at_ms) -> None:
    state = SensorState(tables=tables, discovered_at_ms=discovered_at_ms)
    assert SensorState.from_cursor(state.to_cursor()) == state


def test_a_damaged_cursor_says_how_to_mend_it(daemon, uri) -> None:
    watch = daemon(uri)
    watch.cursor = '{"tables": {"x": {"log": {}}}}'
    with pytest.raises(InvalidArgument, match="reset it, or set it to"):
        watch.tick()


def test_the_environment_gives_the_storage_options(daemon, uri, monkeypatch) -> None:
    monkeypatch.setenv("LAKE_TOKEN", "from-the-environment")
    seen: list[Any] = []

    def spy(location: str, options: Any = None) -> Any:
        store = open_store(location, options)
        seen.append(store.location.options["token"])
        return store

    monkeypatch.setattr(sensors, "open_store", spy)
    daemon(uri, storage_options={"token": dg.EnvVar("LAKE_TOKEN")}).tick()
    assert seen == ["from-the-environment"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"tables": ()}, "either tables or a root"),
        ({"root": "/lake"}, "either tables or a root"),
        ({"target": None}, "nothing to do"),
        ({"tables": ("a", "b"), "asset_key": "x"}, "a function from the location"),
        ({"partition_expr": "day"}, "no partitions_def"),
        ({"partitions_def": dg.StaticPartitionsDefinition(["a"])}, "either partition_expr"),
        ({"max_runs_per_tick": 0}, "max_runs_per_tick"),
        ({"minimum_row": 1}, "no option 'minimum_row'"),
        ({"tables": "t", "asset_key": "a", "asset_event": "materialisation"}, "asset_event of"),
    ],
)
def test_options_that_make_no_sense_are_refused_at_once(options, message) -> None:
    arguments = {"tables": "/lake/t", "target": [summary], **options}
    with pytest.raises(InvalidArgument, match=message):
        delta_table_sensor("watch", **arguments)


def test_a_tick_says_that_commits_changed_no_partition_of_the_target(daemon, uri) -> None:
    days = dg.StaticPartitionsDefinition(["2026-01-01"])
    watch = daemon(uri, partitions_def=days, partition_expr="day")
    watch.tick()
    append(uri, 2, day="2030-01-01")
    reason = watch.tick().skip_reason
    assert reason.skip_message == f"No partition to run for: 1 commit of {uri}, up to version 1"


@pytest.mark.parametrize("reset", ["cursor", "table", "version"])
def test_commits_get_their_runs_again_after_the_cursor_was_reset(
    daemon, instance, uri, reset
) -> None:
    append(uri, 2)
    watch = daemon(uri, start_from="earliest")
    first = watch.requests()
    start(instance, first)
    assert watch.run_keys() == []
    cursors = {
        "cursor": None,
        "table": json.dumps({"tables": {uri: None}}),
        "version": json.dumps({"tables": {uri: {"log": {"version": 0}}}}),
    }
    watch.cursor = cursors[reset]
    (again,) = watch.requests()
    assert again.tags[TO_VERSION_TAG] == "1"
    assert again.run_key != first[0].run_key
    append(uri, 3)
    before = watch.cursor
    keys = watch.run_keys()
    watch.cursor = before
    # The same again if only the cursor of this tick was lost.
    assert watch.run_keys() == keys == [run_key(uri, 2, watch)]


def test_a_location_without_a_table_fails_after_its_time(daemon, tmp_path, monkeypatch) -> None:
    now = [clock.now_ms()]
    monkeypatch.setattr(clock, "now_ms", lambda: now[0])
    later = str(tmp_path / "later")
    watch, day = daemon(later, start_from="earliest"), 86_400_000
    assert "Not there yet" in str(watch.tick().skip_reason)
    now[0] += day - 1
    assert "Not there yet" in str(watch.tick().skip_reason)
    now[0] += 1
    for _ in range(2):
        with pytest.raises(TableNotFound, match=r"no table here since .* check the location"):
            watch.tick()
    append(later, 1)
    assert len(watch.run_keys()) == 1
    with pytest.raises(TableNotFound, match="fail_missing_after_seconds, now 0"):
        daemon(str(tmp_path / "typo"), fail_missing_after_seconds=0).tick()


def test_a_sensor_takes_the_observable_asset_of_its_table(daemon, uri) -> None:
    events = observable_delta_asset(["raw", "events"], uri)
    watch = daemon(events, asset_key=events)
    watch.tick()
    append(uri, 2)
    result = watch.tick()
    assert [request.run_key for request in result.run_requests or ()] == [run_key(uri, 1)]
    assert [event.asset_key for event in result.asset_events] == [events.key]
    # One spec of the asset is as good.
    assert daemon(*events.specs).tick().cursor == daemon(uri).tick().cursor


def test_an_asset_without_a_location_is_refused() -> None:
    with pytest.raises(InvalidArgument, match="does not know the location of summary"):
        delta_table_sensor("watch", summary, target=[summary])
