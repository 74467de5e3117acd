"""The programs of the guides run, and do what their pages say."""

from __future__ import annotations

import datetime as dt
import re
import runpy
import sys
import types
from pathlib import Path
from typing import Any

import dagster as dg
import pyarrow as pa
import pytest
import yaml

from dagster_delta import DeltaTable
from dagster_delta.orchestration.maintenance import jobs
from tests.page_commands import follow

DOCS = Path(__file__).parents[2] / "docs"
QUIET = {"loggers": {"console": {"config": {"log_level": "CRITICAL"}}}}


def program(page: str, monkeypatch: pytest.MonkeyPatch, index: int = 0) -> dict[str, Any]:
    """What the program of a page defines, as a module that Dagster can find."""
    codes = re.findall(r"(?ms)^```python\n(.*?)^```", (DOCS / page).read_text())
    module = types.ModuleType("guide")
    monkeypatch.setitem(sys.modules, "guide", module)
    code = compile(codes[index], page, "exec", dont_inherit=True)
    exec(code, module.__dict__)
    return module.__dict__


def materialize(
    names: dict[str, Any], instance: dg.DagsterInstance, asset: str, **options: Any
) -> bool:
    defs: dg.Definitions = names["defs"]
    result = dg.materialize(
        [each for each in defs.assets or () if isinstance(each, dg.AssetsDefinition)],
        selection=[names[asset]],
        instance=instance,
        resources=defs.resources,
        run_config=QUIET,
        raise_on_error=False,
        **options,
    )
    return result.success


def rows(table: str) -> list[dict[str, Any]]:
    return DeltaTable(table).snapshot().scan().to_arrow().to_pylist()


def test_partitions_are_written_as_the_guide_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    guide = program("partitions.md", monkeypatch)
    days = {
        "dagster/asset_partition_range_start": "2026-03-01",
        "dagster/asset_partition_range_end": "2026-03-04",
    }
    with dg.DagsterInstance.ephemeral() as instance:
        assert materialize(guide, instance, "sales", tags=days)
        assert DeltaTable("lake/public/sales").version() == 0
        assert len(rows("lake/public/sales")) == 4
        assert materialize(guide, instance, "doubled", partition_key="2026-03-02")
        assert rows("lake/public/doubled") == [{"day": dt.date(2026, 3, 2), "amount": 10.0}]
        assert materialize(guide, instance, "monthly", partition_key="2026-03-01")
        assert rows("lake/public/monthly") == [{"month": dt.date(2026, 3, 1), "amount": 20.0}]
        instance.add_dynamic_partitions("shops", ["Delft"])
        assert materialize(guide, instance, "stock", partition_key="Delft")
        key = dg.MultiPartitionKey({"day": "2026-03-01", "region": "eu"})
        assert materialize(guide, instance, "visits", partition_key=key)
        before = rows("lake/public/visits")
        program("partitions.md", monkeypatch, index=1)
        assert DeltaTable("lake/public/visits").metadata().partition_columns == ("day",)
        assert rows("lake/public/visits") == before
        assert not materialize(guide, instance, "visits", partition_key=key)


def test_assets_follow_a_table_as_the_guide_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    guide = program("sensors.md", monkeypatch)
    defs: dg.Definitions = guide["defs"]
    day = dt.date(2026, 3, 1)
    orders = pa.table({"day": [day, day], "customer": [1, 1], "amount": [2.0, 3.0]})
    DeltaTable.create(guide["RAW"], orders.schema, partition_by=["day"]).append(orders)

    with dg.DagsterInstance.ephemeral() as instance:

        def tick(name: str, cursor: str | None) -> dg.SensorExecutionData | Any:
            context = dg.build_sensor_context(instance=instance, definitions=defs, cursor=cursor)
            return defs.resolve_sensor_def(name).evaluate_tick(context)

        first = {name: tick(name, None) for name in ("orders_changed", "orders_of_days")}
        assert not any(each.run_requests for each in first.values())
        later = orders.set_column(0, "day", pa.array([dt.date(2026, 3, 2)] * 2))
        DeltaTable(guide["RAW"]).append(later)
        (request,) = tick("orders_changed", first["orders_changed"].cursor).run_requests
        shown = {name: value for name, value in request.tags.items() if name.startswith("delta/")}
        assert shown == {"delta/commits": "orders version 2 (WRITE, 2 rows)"}
        (request,) = tick("orders_of_days", first["orders_of_days"].cursor).run_requests
        assert request.partition_key == "2026-03-02"
        assert materialize(guide, instance, "report")
        assert rows("lake/public/report") == [{"customer": 1, "amount": 10.0}]
        assert materialize(guide, instance, "daily", partition_key="2026-03-02")
        assert rows("lake/public/daily") == [{"day": dt.date(2026, 3, 2), "amount": 5.0}]
        assert materialize(guide, instance, "orders")


def test_a_schema_change_is_planned_made_and_undone_as_the_runbook_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    types = [
        str(DeltaTable("lake/public/orders").schema().fields[1].data_type)
        for _ in follow(DOCS / "schema-changes.md", tmp_path, monkeypatch)
    ]
    assert types == ["string", "string", "decimal(10,2)", "string"]


_STATEMENTS = [
    (statement, "lazy" if "lazy" in asked else "rewrite", cost, needed)
    for asked, cost, needed in re.findall(
        r"(?m)^\| .+? \| (.*[`y]) \| (.*?) \| (.*?) ?\|$", (DOCS / "schema-changes.md").read_text()
    )
    for statement in re.findall(r"`([A-Z]{3}.*?)`", asked)
]


@pytest.mark.parametrize(("statement", "existing_rows", "cost", "needed"), _STATEMENTS)
def test_a_statement_costs_what_the_runbook_says(
    tmp_path: Path, statement: str, existing_rows: Any, cost: str, needed: str
) -> None:
    rows = pa.table({"id": pa.array([1], pa.int32()), "price": ["1.5"]})
    table = DeltaTable.create(str(tmp_path / "orders"), rows.schema)
    table.append(rows)
    plan = table.alter(statement, dry_run=True, existing_rows=existing_rows).plan
    costs = {
        "log only": (False, False, False),
        "rows are checked first": (False, True, False),
        "files are rewritten, in one commit": (True, False, False),
        "files are rewritten in batches, online": (True, False, True),
    }
    assert (plan.rewrites_data, plan.validates_rows, bool(plan.stages)) == costs[cost]
    features = {
        "columnMapping": "column mapping",
        "typeWidening": "type widening",
        "dagsterDelta.existingDefaults": "this library, until `kind: MATERIALIZE_DEFAULTS`",
    }
    assert [features[name] for name in plan.new_features if name in features] == [needed][
        : bool(needed)
    ]


def test_the_page_of_the_night_goes_from_a_red_check_to_right_tables(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def checks_of_asset(_: object, key: dg.AssetKey) -> tuple[Any, set[dg.AssetCheckKey]]:
        defs = runpy.run_path(str(tmp_path / "defs.py"))["defs"]
        repository = defs.get_repository_def()
        found = repository.asset_checks_defs_by_key
        return repository, {each for each in found if each.asset_key == key}

    # A job that runs in this process does not know its code location.
    monkeypatch.setattr(jobs, "_checks_of_asset", checks_of_asset)
    versions = [
        DeltaTable("lake/public/orders").version()
        for _ in follow(DOCS / "night.md", tmp_path, monkeypatch)
    ]
    assert versions == [0, 1, 1, 1, 2, 3, 3, 3, 3]


def run_all(defs: dg.Definitions, instance: dg.DagsterInstance) -> dg.ExecuteInProcessResult:
    job = defs.resolve_implicit_global_asset_job_def()
    return job.execute_in_process(instance=instance, run_config=QUIET, raise_on_error=False)


def test_rules_quarantine_and_checks_do_what_the_page_of_quality_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert len(list(follow(DOCS / "quality.md", tmp_path, monkeypatch))) == 3
    orders = DeltaTable("lake/public/orders")
    assert orders.metadata().configuration["delta.constraints.positive"] == "amount > 0"
    defs = runpy.run_path("defs.py")["defs"]
    with dg.DagsterInstance.ephemeral() as instance:
        Path("landing/tuesday.csv").write_text("id,amount\n4,-1\n")
        result = run_all(defs, instance)
        assert not result.success
        assert "ConstraintViolation" in str(result.failure_data_for_node("orders"))
        assert len(rows("lake/public/orders")) == 2

        Path("landing/tuesday.csv").write_text("id,amount\n1,5\n")
        before = rows("lake/public/report")
        result = run_all(defs, instance)
        assert not result.success
        failed = [each for each in result.get_asset_check_evaluations() if not each.passed]
        assert [each.check_name for each in failed] == ["delta_unique"]
        assert len(rows("lake/public/orders")) == 3
        assert rows("lake/public/report") == before


def test_the_page_of_change_events_prints_their_history(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert list(follow(DOCS / "change-events.md", tmp_path, monkeypatch))


def test_the_page_of_expectations_counts_drops_and_sets_rows_aside(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert len(list(follow(DOCS / "expectations.md", tmp_path, monkeypatch))) == 3
    assert len(rows("lake/public/orders_quarantine")) == 1


def test_the_page_of_audits_publishes_nothing_that_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps = list(follow(DOCS / "audits.md", tmp_path, monkeypatch))
    assert len(steps) == 2
    assert len(rows("lake/public/orders")) == 2
    Path("day.csv").write_text("id,amount\n3,7\n3,8\n")
    defs = runpy.run_path("defs.py")["defs"]
    with dg.DagsterInstance.ephemeral() as instance:
        result = run_all(defs, instance)
    assert not result.success
    assert "unique_ids" in str(result.failure_data_for_node("orders"))
    assert len(rows("lake/public/orders")) == 2
    assert len(rows("lake/public/orders_rejected")) == 2


def test_the_page_of_history_reads_follows_and_restores_versions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert len(list(follow(DOCS / "history.md", tmp_path, monkeypatch))) == 1


def test_the_environments_of_the_page_have_their_own_roots_and_are_checked_without_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("ENVIRONMENT", raising=False)
    assert len(list(follow(DOCS / "environments.md", tmp_path, monkeypatch))) == 1
    assert len(rows("lake/public/large_orders")) == 1
    monkeypatch.delitem(sys.modules, "defs", raising=False)
    test = runpy.run_path("test_orders.py")["test_large_orders_leave_the_small_ones_out"]
    test(tmp_path / "other")
    monkeypatch.delitem(sys.modules, "defs")

    monkeypatch.setenv("ENVIRONMENT", "production")
    monkeypatch.delenv("LAKE_ROOT", raising=False)
    defs = runpy.run_path("defs.py")["defs"]
    with (
        dg.DagsterInstance.ephemeral() as instance,
        pytest.raises(dg.DagsterInvalidConfigError, match="LAKE_ROOT"),
    ):
        run_all(defs, instance)


def test_the_sensors_of_the_page_of_alerts_send_red_checks_and_failed_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert list(follow(DOCS / "alerts.md", tmp_path, monkeypatch)) == []
    names = runpy.run_path("defs.py")
    with dg.DagsterInstance.ephemeral() as instance:
        done = run_all(names["defs"], instance)
        assert done.success
        context = dg.build_run_status_sensor_context(
            sensor_name="red_checks",
            dagster_event=done.get_run_success_event(),
            dagster_instance=instance,
            dagster_run=done.dagster_run,
        )
        names["red_checks"](context)
        (sent,) = Path("sent.txt").read_text().splitlines()
        assert sent.startswith("orders: delta_unique: ")

        DeltaTable("lake/public/orders").overwrite(
            pa.table({"other": ["a"]}), schema_mode="overwrite"
        )
        done = run_all(names["defs"], instance)
        assert not done.success
        context = dg.build_run_status_sensor_context(
            sensor_name="failed_runs",
            dagster_event=done.get_run_failure_event(),
            dagster_instance=instance,
            dagster_run=done.dagster_run,
        )
        names["failed_runs"](context.for_run_failure())
        assert " failed: " in Path("sent.txt").read_text().splitlines()[-1]


def test_a_branch_is_published_as_the_guide_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("BRANCH", "")
    guide = program("branches.md", monkeypatch)

    def run(**config: Any) -> None:
        job = guide["defs"].resolve_job_def("delta_branch")
        assert job.execute_in_process(instance=instance, run_config=config).success

    with dg.DagsterInstance.ephemeral() as instance:
        assert materialize(guide, instance, "orders")
        assert materialize(guide, instance, "large_orders")
        monkeypatch.setenv("BRANCH", "cheaper-orders")
        page = (DOCS / "branches.md").read_text()
        assert "Change `large_orders` to `> 80`" in page
        (code,) = re.findall(r"(?ms)^## The program\n\n```python\n(.*?)^```", page)
        exec(compile(code.replace("> 100", "> 80"), "x", "exec", dont_inherit=True), guide)
        assert materialize(guide, instance, "large_orders")
        assert [row["id"] for row in rows("lake/public/large_orders")] == [2]
        own = "lake/_branches/cheaper-orders/public"
        assert [row["id"] for row in rows(f"{own}/large_orders")] == [2, 3]
        assert not Path(own, "orders").exists()
        run(action="diff", branch="cheaper-orders")
        (config,) = re.findall(r"(?ms)^    ```yaml\n(.*?)^    ```", page)
        run(**yaml.safe_load(config))
        assert [row["id"] for row in rows("lake/public/large_orders")] == [2, 3]
        program("branches.md", monkeypatch, index=2)
        assert not Path("lake/_branches/cheaper-orders").exists()


def test_workflow_publishes_and_drops_a_branch_as_the_guide_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (workflow,) = re.findall(
        r"(?ms)^```yaml\n(# .github.*?)^```", (DOCS / "branches.md").read_text()
    )
    steps = [step.get("run", "") for step in yaml.safe_load(workflow)["jobs"]["branch"]["steps"]]
    configs = [echo[1] for step in steps if (echo := re.search("echo '(.*)' > ", step))]
    monkeypatch.setenv("BRANCH", "feature/x")
    guide, found = program("branches.md", monkeypatch), []
    with dg.DagsterInstance.ephemeral() as instance:
        assert materialize(guide, instance, "orders")
        job = guide["defs"].resolve_job_def("delta_branch")
        for config in configs:
            given = yaml.safe_load(config)
            assert job.execute_in_process(instance=instance, run_config=given).success
            branches = [entry.name for entry in Path("lake/_branches").iterdir()]
            found.append((len(rows("lake/public/orders")), bool(branches)))
    assert found == [(3, True), (3, False)]


def test_old_rows_are_deleted_as_the_guide_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    page = (DOCS / "maintenance.md").read_text()
    number = re.findall(r"(?ms)^```python\n(.*?)^```", page)
    (index,) = [at for at, code in enumerate(number) if '"retention": {"column"' in code]
    guide = program("maintenance.md", monkeypatch, index)
    (asked,) = re.findall(r'(?s)```yaml title="retention.yaml"\n(.*?)```', page)
    upkeep = guide["defs"].resolve_job_def("upkeep")
    with dg.DagsterInstance.ephemeral() as instance:
        for _ in range(2):
            assert materialize(guide, instance, "clicks")
        old = pa.table({"day": [dt.date(2001, 1, 1)], "clicks": [1]})
        DeltaTable("lake/public/clicks").append(old)
        shops = ["Delft", "Lund", "Oslo"]
        instance.add_dynamic_partitions("shops", shops)
        for shop in shops:
            assert materialize(guide, instance, "stock", partition_key=shop)
        instance.delete_dynamic_partition("shops", "Lund")
        assert upkeep.execute_in_process(instance=instance).success
        assert len(rows("lake/public/clicks")) == len(rows("lake/public/stock")) == 3
        config = yaml.safe_load(asked)
        assert upkeep.execute_in_process(instance=instance, run_config=config).success
    assert [row["clicks"] for row in rows("lake/public/clicks")] == [7, 7]
    assert sorted(row["shop"] for row in rows("lake/public/stock")) == ["Delft", "Oslo"]


def test_matching_rows_are_replaced_and_the_latest_kept_as_the_guide_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    codes = re.findall(r"(?ms)^```python\n(.*?)^```", (DOCS / "python.md").read_text())
    (index,) = [
        at
        for at, code in enumerate(codes)
        if code.startswith("import pyarrow") and "keep_latest" in code
    ]
    guide = program("python.md", monkeypatch, index)
    left = [(row["day"], row["shop"], row["amount"]) for row in rows("lake/public/sales")]
    assert sorted(left) == [(1, "a", 50), (2, "c", 70), (3, "b", 8)]
    changes = guide["feed"].to_arrow().select(["_change_type", "day", "shop"]).to_pylist()
    assert [tuple(change.values()) for change in changes] == [
        ("insert", 3, "b"),
        ("delete", 1, "b"),
    ]
