"""Checks of what a table declares and of what is expected of it, on tables that others spoiled."""

# No `from __future__ import annotations`: annotations are looked at as users' modules have them.

import datetime as dt
import json
from pathlib import Path
from typing import Any

import dagster as dg
import pyarrow as pa
import pytest

from dagster_delta.errors import InvalidArgument, StorageFailure
from dagster_delta.orchestration.checks.asset_checks import delta_asset_checks
from dagster_delta.orchestration.checks.table_checks import (
    check_freshness,
    check_unique,
)
from dagster_delta.orchestration.io.io_manager import DeltaIOManager
from dagster_delta.orchestration.sensors.observations import observable_delta_asset
from dagster_delta.protocol.log.paths import commit_path
from dagster_delta.storage.memory_store import MemoryStore
from dagster_delta.table.delta_table import DeltaTable
from dagster_delta.table.operations.validate import rows_since
from dagster_delta.table.read.snapshot import Snapshot
from dagster_delta.testing.faulty_store import Fault, FaultyStore
from tests.orchestration.conftest import QUIET
from tests.table.logs import add_file, encode

EVENTS = dg.AssetSpec("events")


class Checked:
    """A table and the checks of it."""

    def __init__(self, lake, table: DeltaTable) -> None:
        self.lake = lake
        self.table = table

    def evaluate(
        self, *checks: Any, selection: dg.AssetSelection | None = None, **options: Any
    ) -> dict[str, Any]:
        """Check name to its evaluation."""
        selection = selection or dg.AssetSelection.all_asset_checks()
        checks = checks or tuple(delta_asset_checks(EVENTS, **options))
        definitions = dg.Definitions(
            asset_checks=list(checks),
            resources={"io_manager": DeltaIOManager(root_uri=str(self.lake.root))},
            jobs=[dg.define_asset_job("check", selection=selection)],
        )
        result = definitions.resolve_job_def("check").execute_in_process(
            instance=self.lake.instance, run_config=QUIET
        )
        assert result.success
        return {each.check_name: each for each in result.get_asset_check_evaluations()}


def facts(evaluation: Any) -> dict[str, Any]:
    found = {key.removeprefix("delta/"): value.value for key, value in evaluation.metadata.items()}
    return found | found.pop("details")


def rows_shown(evaluation: Any) -> list[dict[str, Any]]:
    """The failing rows in the table of the UI."""
    return [dict(each.data) for each in evaluation.metadata["delta/failing_rows"].records]


SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), pa.field("price", pa.int64())])
DECLARED = {
    "delta.constraints.positive": "price > 0",
    "delta.feature.checkConstraints": "supported",
}


@pytest.fixture
def checked(lake) -> Checked:
    uri = str(lake.root / "public" / "events")
    table = DeltaTable.create(uri, SCHEMA, properties=DECLARED)
    table.append(pa.table({"id": [1, 2], "price": [5, 6]}, schema=SCHEMA))
    return Checked(lake, table)


def spoil(table: DeltaTable, rows: dict[str, Any]) -> None:
    """A commit by a writer that looks at no constraint."""
    import pyarrow.parquet as pq

    version = table.refresh().version + 1
    name = f"foreign-{version}.parquet"
    path = Path(table.uri) / name
    pq.write_table(pa.table(rows), path)
    (Path(table.uri) / commit_path(version)).write_bytes(
        encode(add_file(name, size=path.stat().st_size))
    )


def test_sound_rows_pass(checked):
    found = checked.evaluate()
    assert {name: each.passed for name, each in found.items()} == {"delta_constraints": True}
    assert "2 constraints checked, of all rows" in found["delta_constraints"].description


def test_one_check_says_that_a_table_declares_nothing(lake, events):
    asset = events(pa.table({"id": [1]}))
    result = lake.materialize(asset, *delta_asset_checks(asset))
    (found,) = result.get_asset_check_evaluations()
    assert found.passed
    assert found.description == "Nothing was checked: the table declares nothing about its rows"


def test_a_condition_on_all_checks_fires_if_the_table_declares_nothing(lake, events):
    upstream = events(pa.table({"id": [1]}))
    passed = dg.AutomationCondition.all_checks_match(dg.AutomationCondition.check_passed())

    @dg.asset(deps=[upstream], automation_condition=dg.AutomationCondition.all_deps_match(passed))
    def report() -> None: ...

    checks = delta_asset_checks(upstream, unique="id")
    defs = dg.Definitions([upstream, report], asset_checks=checks)

    def requested() -> int:
        evaluated = dg.evaluate_automation_conditions(defs, lake.instance)
        return evaluated.get_num_requested(report.key)

    assert requested() == 0
    assert lake.materialize(upstream, *checks).success
    assert requested() == 1


def test_rows_of_foreign_writers_that_break_a_rule_are_shown(checked):
    spoil(checked.table, {"id": [3, None], "price": [-1, None]})
    found = checked.evaluate()
    constraints = found["delta_constraints"]
    assert not constraints.passed
    assert facts(constraints)["violations"] == 3
    assert "1 violation of NOT NULL" in constraints.description
    assert "2 violations of CHECK positive (price > 0)" in constraints.description
    assert {"id": None, "price": None} in rows_shown(constraints)
    assert {"id": 3, "price": -1} in rows_shown(constraints)


def test_new_rows_that_were_compacted_since_are_checked(checked):
    checked.evaluate()
    spoil(checked.table, {"id": [3], "price": [-1]})
    checked.table.refresh()
    assert checked.table.optimize().metrics["numAddedFiles"] == 1
    assert not checked.evaluate()["delta_constraints"].passed


def test_rows_that_were_checked_before_are_not_checked_again_for_being_compacted(checked):
    spoil(checked.table, {"id": [3], "price": [1]})
    checked.table.refresh()
    before = checked.table.version()
    checked.table.optimize()
    new = rows_since(checked.table.snapshot(), before)
    assert not new.batches("true").read_all().num_rows


def test_masked_columns_are_hidden_in_failing_rows(checked):
    spoil(checked.table, {"id": [3, None], "price": [-1, None]})
    found = checked.evaluate(masked_columns=["PRICE"])
    assert {"id": None, "price": None} in rows_shown(found["delta_constraints"])
    assert {"id": 3, "price": "•••"} in rows_shown(found["delta_constraints"])
    # A misspelled name must not show what it is to hide.
    found = checked.evaluate(masked_columns=["prize"])
    shown = found["delta_constraints"].metadata["delta/failing_rows"].value
    assert "masked_columns names prize" in shown


def test_what_the_asset_masks_is_masked_in_its_checks(lake, events):
    asset = events(pa.table({"id": [1, 1]}), metadata={"masked_columns": "id"})
    lake.materialize(asset)
    definitions = dg.Definitions(
        assets=[asset],
        asset_checks=delta_asset_checks(asset, unique="id"),
        resources={"io_manager": lake.manager()},
        jobs=[dg.define_asset_job("check", selection=dg.AssetSelection.all_asset_checks())],
    )
    job = definitions.resolve_job_def("check")
    result = job.execute_in_process(instance=lake.instance, run_config=QUIET)
    (found,) = [each for each in result.get_asset_check_evaluations() if not each.passed]
    assert rows_shown(found) == [{"id": "•••", "rows": 2}]


def test_only_new_rows_are_looked_at_once_a_check_has_passed(checked):
    first = checked.evaluate()["delta_constraints"]
    assert facts(first)["scope"] == "all rows"
    # Without its file, looking at an old row would fail.
    for file in Path(checked.table.uri).glob("part-*.parquet"):
        file.unlink()
    spoil(checked.table, {"id": [3], "price": [3]})
    second = checked.evaluate()["delta_constraints"]
    assert second.passed
    assert facts(second)["scope"] == "rows since version 1"


def test_what_failed_is_looked_at_again(checked):
    checked.evaluate()
    spoil(checked.table, {"id": [3], "price": [-1]})
    assert not checked.evaluate()["delta_constraints"].passed
    spoil(checked.table, {"id": [4], "price": [4]})
    assert not checked.evaluate()["delta_constraints"].passed
    checked.table.refresh()
    checked.table.delete("price < 0")
    assert checked.evaluate()["delta_constraints"].passed


def test_rules_that_changed_are_checked_on_all_rows(checked):
    checked.evaluate()
    checked.table.append(pa.table({"id": [3], "price": [3], "note": ["n"]}), schema_mode="merge")
    assert facts(checked.evaluate()["delta_constraints"])["scope"] == "all rows"


def test_all_rows_may_be_asked_for(checked):
    for _ in range(2):
        found = checked.evaluate(*delta_asset_checks(EVENTS, all_rows=True))
    assert facts(found["delta_constraints"])["scope"] == "all rows"


def test_generated_columns_are_computed_again(lake):
    import deltalake

    field = deltalake.Field(
        "day", "date", metadata={"delta.generationExpression": "CAST(at AS DATE)"}
    )
    uri = str(lake.root / "public" / "events")
    deltalake.DeltaTable.create(uri, deltalake.Schema([deltalake.Field("at", "timestamp"), field]))
    moment = dt.datetime(2026, 1, 2, 3, tzinfo=dt.UTC)
    table = DeltaTable(uri)
    spoil(table, {"at": [moment, moment], "day": [dt.date(2026, 1, 2), dt.date(2026, 1, 3)]})
    found = Checked(lake, table).evaluate()["delta_constraints"]
    assert not found.passed
    assert facts(found)["violations"] == 1
    assert rows_shown(found)[0]["day"] == "2026-01-03"


def test_a_rule_that_only_spark_evaluates_is_a_warning(lake):
    uri = str(lake.root / "public" / "events")
    properties = {
        "delta.constraints.odd": "java_method('java.lang.Math', 'abs', price) > 0",
        "delta.feature.checkConstraints": "supported",
    }
    table = DeltaTable.create(uri, SCHEMA, properties=properties)
    found = Checked(lake, table).evaluate()["delta_constraints"]
    assert not found.passed
    assert found.severity == dg.AssetCheckSeverity.WARN
    assert "Not evaluated" in found.description
    spoil(table, {"id": [None], "price": [1]})
    found = Checked(lake, table).evaluate()["delta_constraints"]
    assert found.severity == dg.AssetCheckSeverity.ERROR
    assert "1 violation of NOT NULL" in found.description
    assert "Not evaluated: CHECK odd" in found.description


def test_limits_in_bytes_are_spelled(checked):
    found = checked.evaluate(health={"average_file_bytes": 100}, constraints=False)["delta_health"]
    assert "; the limit is 100 bytes" in found.description
    assert "KiB" in found.description or " bytes; the limit" in found.description


def test_keys_that_several_rows_hold_are_shown(checked):
    checked.table.append(pa.table({"id": [2, 2, 7], "price": [1, 1, 1]}, schema=SCHEMA))
    found = checked.evaluate(unique="ID", constraints=False)["delta_unique"]
    assert not found.passed
    assert rows_shown(found) == [{"id": 2, "rows": 3}]
    assert (
        checked.evaluate(unique=["id", "price"], constraints=False)["delta_unique"].passed is False
    )
    checked.table.delete("id = 2")
    assert checked.evaluate(unique="id", constraints=False)["delta_unique"].passed


@pytest.mark.parametrize(
    ("bounds", "passed"), [((1, None), True), ((None, 1), False), ((2, 2), True), ((3, 9), False)]
)
def test_the_number_of_rows(checked, bounds, passed):
    found = checked.evaluate(row_count=bounds, constraints=False)["delta_row_count"]
    assert found.passed is passed
    assert facts(found)["rows"] == 2


def test_maintenance_does_not_make_a_table_fresh(checked):
    snapshot = checked.table.refresh()
    changed = dt.datetime.fromtimestamp(snapshot.timestamp_ms / 1000, dt.UTC)
    later = changed + dt.timedelta(hours=2)
    fresh = check_freshness(snapshot, dt.timedelta(hours=3), later)
    assert fresh.passed
    assert "2 hours ago; the limit is 3 hours" in fresh.description
    assert not check_freshness(snapshot, dt.timedelta(hours=1), later).passed
    checked.table.append(pa.table({"id": [], "price": []}, schema=SCHEMA))
    again = check_freshness(checked.table.refresh(), dt.timedelta(hours=1), later)
    assert again.facts["age_seconds"] == pytest.approx(7200, abs=1)
    assert checked.evaluate(freshness=dt.timedelta(days=1))["delta_freshness"].passed


def test_compaction_does_not_make_a_table_fresh_whose_changes_were_cleaned_up(checked):
    table = checked.table
    table.append(pa.table({"id": [3], "price": [7]}, schema=SCHEMA))
    table.alter("ALTER TABLE t SET TBLPROPERTIES ('a' = 'b')")
    altered_ms = 1_000_000_000_000
    record_time(table, altered_ms)
    assert table.optimize().metrics["numAddedFiles"] == 1
    table.checkpoint()
    for version in range(table.version() - 1):
        (Path(table.uri) / commit_path(version)).unlink()
    altered = dt.datetime.fromtimestamp(altered_ms / 1000, dt.UTC)
    found = check_freshness(
        Snapshot.load(table.snapshot().store), dt.timedelta(hours=1), altered + dt.timedelta(days=9)
    )
    assert not found.passed
    assert "2001-09-09 01:46:40 UTC, 9 days ago" in found.description


def test_a_commit_from_a_time_that_no_calendar_has_is_not_fresh(checked):
    record_time(checked.table, 1_700_000_000_000_000)
    found = checked.evaluate(freshness=dt.timedelta(days=1), constraints=False)["delta_freshness"]
    assert not found.passed
    assert "1700000000000000 ms since the epoch, which is not a time" in found.description


def test_a_commit_by_a_clock_that_is_ahead_is_as_old_as_the_check(checked):
    ahead = dt.datetime.now(dt.UTC) - dt.timedelta(hours=1)
    found = check_freshness(checked.table.refresh(), dt.timedelta(hours=1), ahead)
    assert found.passed
    assert "0 seconds ago" in found.description


def record_time(table: DeltaTable, time_ms: int) -> None:
    """Change the time that the latest commit records."""
    path = Path(table.uri) / commit_path(table.refresh().version)
    actions = [json.loads(line) for line in path.read_text().splitlines()]
    for action in actions:
        if (info := action.get("commitInfo")) is not None:
            info["timestamp"] = time_ms
            info.pop("contentCrc32", None)
    path.write_text("\n".join(map(json.dumps, actions)))


@pytest.mark.parametrize(
    ("declared", "allow_more", "message"),
    [
        (SCHEMA, False, None),
        (pa.schema([("ID", pa.int64())]), True, None),
        (pa.schema([("id", pa.int64())]), False, "+ price: long was not declared"),
        (
            pa.schema([("id", pa.int32()), ("price", pa.int64())]),
            False,
            "~ id: declared as integer",
        ),
        (SCHEMA.append(pa.field("note", pa.string())), False, "- note: declared as string"),
    ],
)
def test_drift_from_the_declared_schema(checked, declared, allow_more, message):
    options = {"schema": declared, "allow_more_columns": allow_more, "constraints": False}
    found = checked.evaluate(**options)["delta_schema"]
    assert found.passed is (message is None)
    assert (message or "") in found.description


def test_thresholds_of_health(checked):
    for each in range(3, 6):
        checked.table.append(pa.table({"id": [each], "price": [1]}, schema=SCHEMA))
    most = {"small_file_share": 0.5, "num_files": 100}
    found = checked.evaluate(health=most, constraints=False)["delta_health"]
    assert not found.passed
    assert "small_file_share is 1; the limit is 0.5" in found.description
    assert facts(found)["num_files"] == 4
    assert checked.evaluate(health={"num_files": 4}, constraints=False)["delta_health"].passed


def test_damaged_files_of_the_log_fail_a_check_of_health(checked):
    most = {"damaged_log_files": 0}
    assert checked.evaluate(health=most, constraints=False)["delta_health"].passed
    checked.table.checkpoint()
    (checkpoint,) = Path(checked.table.uri).rglob("*.checkpoint.parquet")
    checkpoint.write_bytes(checkpoint.read_bytes()[:-100])
    found = checked.evaluate(health=most, constraints=False)["delta_health"]
    assert "damaged_log_files is 1; the limit is 0" in found.description


def test_blocking_checks_keep_what_follows_from_running(lake, events):
    upstream = events(pa.table({"id": [1, 1]}))
    ran = []

    @dg.asset(deps=[upstream])
    def report():
        ran.append(1)

    def run(blocking: Any) -> bool:
        checks = delta_asset_checks(upstream, unique="id", blocking=blocking)
        definitions = dg.Definitions(
            [upstream, report],
            asset_checks=checks,
            resources={"io_manager": DeltaIOManager(root_uri=str(lake.root))},
            jobs=[dg.define_asset_job("all", selection=dg.AssetSelection.all())],
        )
        job = definitions.resolve_job_def("all")
        return job.execute_in_process(
            instance=lake.instance, run_config=QUIET, raise_on_error=False
        ).success

    assert not run(["delta_unique"])
    assert not ran
    assert run(["delta_constraints"])
    assert ran


def test_a_partitioned_asset_is_checked_in_the_run_of_a_partition(lake, events):
    upstream = events(
        pa.table({"id": [1], "day": ["mon"]}),
        partitions_def=dg.StaticPartitionsDefinition(["mon", "tue"]),
        metadata={"partition_expr": "day", "table_name": "elsewhere"},
    )
    checks = delta_asset_checks(upstream, row_count=(1, 1))
    result = lake.materialize(upstream, *checks, partition="mon")
    found = {each.check_name: each.passed for each in result.get_asset_check_evaluations()}
    assert found["delta_row_count"]


@pytest.mark.parametrize("kind", ["asset", "spec"])
def test_the_io_manager_of_the_asset_says_where_its_table_is(lake, events, kind):
    asset = events(pa.table({"id": [1, 1]}), io_manager_key="lake")
    spec = dg.AssetSpec("events").with_io_manager_key("lake")
    manager = {"lake": lake.manager()}
    assert dg.materialize([asset], resources=manager, instance=lake.instance).success
    checks = delta_asset_checks({"asset": asset, "spec": spec}[kind], unique="id")
    result = dg.materialize([asset, *checks], resources=manager, instance=lake.instance)
    found = {each.check_name: each.passed for each in result.get_asset_check_evaluations()}
    assert found["delta_unique"] is False


def test_the_location_in_the_metadata_of_an_asset_is_that_of_its_table(checked):
    asset = observable_delta_asset(["raw", "flights"], checked.table.uri)
    checks = delta_asset_checks(asset, row_count=(1, 2), constraints=False)
    assert checked.evaluate(*checks)["delta_row_count"].passed


@pytest.mark.parametrize("key", [["raw", "flights"], ("raw", "flights"), "raw/flights"])
def test_a_table_that_no_io_manager_stores_is_checked_by_its_location(checked, key):
    checks = delta_asset_checks(key, table=checked.table.uri, row_count=(1, 2), constraints=False)
    assert checked.evaluate(*checks)["delta_row_count"].passed


@pytest.mark.parametrize(
    ("asset", "options", "message"),
    [
        ("events", {}, "pass the asset itself"),
        (EVENTS, {"constraints": False}, "enable at least one"),
        (EVENTS, {"health": {"speed": 1}}, "no speed"),
        (EVENTS, {"row_count": 5}, "minimum and the maximum"),
        (EVENTS, {"freshness": 3600}, "takes a time"),
        (EVENTS, {"row_count": (None, None)}, "minimum and the maximum"),
        (EVENTS, {"row_count": (10, 5)}, "minimum and the maximum"),
        (EVENTS, {"unique": []}, "unique names no column"),
        (EVENTS, {"blocking": ["delta_unique"]}, "no check delta_unique"),
        (EVENTS, {"anomalies": {"speed": 3}}, "not known of speed"),
        (EVENTS, {"anomalies": {"rows": 0}}, "number of standard deviations"),
        (EVENTS, {"anomalies": {"rows": 3}, "training_commits": 2}, "at least 3"),
        (EVENTS, {"cron": "hourly"}, "invalid cron schedule 'hourly'"),
        (EVENTS, {"cron": "0 * * * *", "cron_timezone": "Mars"}, "timezone Mars"),
        (EVENTS, {"partitioned": True}, "cannot be partitioned"),
    ],
)
def test_arguments_that_make_no_sense_are_refused_at_once(asset, options, message):
    with pytest.raises(InvalidArgument, match=message):
        delta_asset_checks(asset, **options)


def test_an_outage_while_a_unique_check_reads_is_a_storage_failure() -> None:
    store = MemoryStore()
    DeltaTable("", store=store, must_exist=False).append(pa.table({"id": [1, 2]}))
    snapshot = Snapshot.load(FaultyStore(store, [Fault("refuse", "read_range")]))
    with pytest.raises(StorageFailure):
        check_unique(snapshot, ["id"])


@pytest.mark.parametrize("values", [["a", "a", "b"], [100, 100, 300]])
def test_keys_in_a_column_called_rows_are_counted(lake, values) -> None:
    table = DeltaTable(str(lake.root / "public" / "events"), must_exist=False)
    table.append(pa.table({"Rows": values}))
    found = Checked(lake, table).evaluate(unique="Rows", constraints=False)["delta_unique"]
    assert "in more than one row: 1 key (Rows), 2 rows in all" in found.description
    assert rows_shown(found) == [{"Rows": values[0], "rows_": 2}]


def test_repeated_keys_after_the_year_9999_are_found(lake) -> None:
    table = DeltaTable(str(lake.root / "public" / "events"), must_exist=False)
    table.append(pa.table({"day": pa.array([4_000_000, 4_000_000], pa.date32())}))
    found = Checked(lake, table).evaluate(unique="day", constraints=False)["delta_unique"]
    shown = "4000000 in date32[day] (outside the years 1 to 9999)"
    assert rows_shown(found) == [{"day": shown, "rows": 2}]


@pytest.mark.parametrize("path", [["raw", "flights.v1"], ["a b"], ["ü"], ["a-b", "c"]])
def test_keys_may_hold_what_names_of_dagster_do_not(tmp_path: Path, path: list[str]) -> None:
    table = DeltaTable(str(tmp_path), must_exist=False)
    table.append(pa.table({"id": [1, 1]}))
    checks = delta_asset_checks(dg.AssetKey(path), table=table.uri, unique="id", constraints=False)
    definitions = dg.Definitions(assets=[dg.AssetSpec(path)], asset_checks=checks)
    (found,) = (
        definitions.resolve_implicit_global_asset_job_def()
        .execute_in_process(raise_on_error=False)
        .get_asset_check_evaluations()
    )
    assert (found.asset_key, found.passed) == (dg.AssetKey(path), False)


def test_keys_that_differ_in_their_slashes_have_checks_of_their_own(tmp_path: Path) -> None:
    paths = [["a_b", "c"], ["a", "b_c"], ["a", "b-c"]]
    checks = [
        check
        for path in paths
        for check in delta_asset_checks(dg.AssetKey(path), table=str(tmp_path))
    ]
    assets = [dg.AssetSpec(path) for path in paths]
    dg.Definitions.validate_loadable(dg.Definitions(assets=assets, asset_checks=checks))


DAYS = dg.StaticPartitionsDefinition(["mon", "tue"])
PREVIEW = pytest.mark.filterwarnings("ignore::dagster.PreviewWarning")


@PREVIEW
def test_a_partitioned_check_has_a_result_for_each_partition_of_its_rows(lake, events):
    rows = {"mon": [1, 1], "tue": [1, 2, 3]}

    @dg.asset(partitions_def=DAYS, metadata={"partition_expr": "day"})
    def sales(context) -> pa.Table:
        day = context.partition_key
        return pa.table({"id": rows[day], "day": [day] * len(rows[day])})

    checks = delta_asset_checks(
        sales,
        unique="id",
        row_count=(3, None),
        freshness=dt.timedelta(days=1),
        partitioned=True,
    )
    found = {}
    for day in ("tue", "mon", "tue"):
        result = lake.materialize(sales, *checks, partition=day)
        found[day] = {
            evaluation.check_name: (evaluation.partition, evaluation.passed)
            for evaluation in result.get_asset_check_evaluations()
        }
    assert found == {
        day: {
            "delta_constraints": (day, True),
            "delta_unique": (day, day == "tue"),
            "delta_row_count": (day, day == "tue"),
            "delta_freshness": (None, True),
        }
        for day in ("mon", "tue")
    }


@PREVIEW
def test_declared_rules_of_a_partitioned_check_are_those_of_its_rows(lake):
    sales = dg.AssetSpec("sales", partitions_def=DAYS, metadata={"partition_expr": "day"})
    table = DeltaTable.create(
        str(lake.root / "public" / "sales"),
        pa.schema([("price", pa.int64()), ("day", pa.string())]),
        properties=DECLARED,
    )
    spoil(table, {"price": [5, -1], "day": ["mon", "tue"]})
    checks = delta_asset_checks(sales, partitioned=True)
    selection = dg.AssetSelection.checks(*checks)
    defs = dg.Definitions(
        assets=[sales],
        asset_checks=checks,
        resources={"io_manager": lake.manager()},
        jobs=[dg.define_asset_job("check", selection=selection, partitions_def=DAYS)],
    )
    passed = {}
    for day in ("mon", "tue"):
        result = defs.resolve_job_def("check").execute_in_process(
            instance=lake.instance, tags={"dagster/partition": day}, run_config=QUIET
        )
        (found,) = result.get_asset_check_evaluations()
        passed[found.partition] = (found.passed, facts(found)["violations"])
    assert passed == {"mon": (True, 0), "tue": (False, 1)}


@PREVIEW
def test_partitioned_checks_need_one_that_is_about_rows():
    sales = dg.AssetSpec("sales", partitions_def=DAYS, metadata={"partition_expr": "day"})
    with pytest.raises(InvalidArgument, match="none that is partitioned"):
        delta_asset_checks(
            sales, constraints=False, freshness=dt.timedelta(days=1), partitioned=True
        )


def test_checks_with_a_cron_run_by_the_clock_though_the_asset_has_no_new_rows(lake, events):
    upstream = events(pa.table({"id": [1]}))
    checks = delta_asset_checks(upstream, unique="id", constraints=False, cron="0 * * * *")
    defs = dg.Definitions([upstream], asset_checks=checks)
    assert lake.materialize(upstream).success
    requested, cursor = [], None
    for minutes in (5, 30, 61, 62, 121):
        evaluated = dg.evaluate_automation_conditions(
            defs,
            lake.instance,
            cursor=cursor,
            evaluation_time=dt.datetime(2026, 1, 5, tzinfo=dt.UTC) + dt.timedelta(minutes=minutes),
        )
        cursor = evaluated.cursor
        requested.append(evaluated.total_requested)
    assert requested == [0, 0, 1, 0, 1]
