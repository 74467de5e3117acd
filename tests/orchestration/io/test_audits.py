"""Audits of assets: nothing is published that fails one."""

from __future__ import annotations

import datetime as dt
import json
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import dagster as dg
import pyarrow as pa
import pytest

from dagster_delta import (
    Audit,
    DeltaIOManager,
    DeltaTable,
    Expectation,
    StagedWrite,
    delta_asset_checks,
    delta_metadata,
)
from dagster_delta.errors import AuditFailed, InvalidArgument
from tests.table_rows import stored_rows

DAYS = dg.StaticPartitionsDefinition(["mon", "tue"])
UNIQUE = Audit("SELECT id FROM {table} GROUP BY id HAVING count(*) > 1", "unique")


def few(staged: StagedWrite) -> bool:
    return (staged.rows.num_records or 0) < 4


def grows(staged: StagedWrite) -> dg.AssetCheckResult:
    before = 0 if staged.before is None else staged.before.num_records or 0
    count = staged.table.num_records or 0
    return dg.AssetCheckResult(
        passed=count > before,
        severity=dg.AssetCheckSeverity.WARN,
        description=f"{before} rows before, {count} after",
        metadata={"count": count},
    )


class Orders:
    """An asset with audits, and the runs of it."""

    def __init__(self, root: Path, instance: dg.DagsterInstance, *audits: Any, **meta: Any) -> None:
        self.instance, self.root, self.given = instance, root, pa.table({"id": [0]})

        @dg.asset(
            name="orders",
            metadata={"mode": "append", "audits": list(audits), **meta},
            partitions_def=DAYS if "partition_expr" in meta else None,
        )
        def orders() -> pa.Table:
            return self.given

        self.asset = orders

    def run(self, *ids: int, **options: Any) -> dg.ExecuteInProcessResult:
        return self.run_rows(pa.table({"id": list(ids)}), **options)

    def run_rows(self, rows: pa.Table, **options: Any) -> dg.ExecuteInProcessResult:
        self.given = rows
        return dg.materialize(
            [self.asset],
            resources={"io_manager": DeltaIOManager(root_uri=str(self.root))},
            instance=self.instance,
            raise_on_error=False,
            **options,
        )

    @property
    def uri(self) -> str:
        return str(self.root / "public" / "orders")

    def latest(self, name: str) -> dg.AssetCheckEvaluation:
        key = dg.AssetCheckKey(dg.AssetKey("orders"), name)
        store = self.instance.event_log_storage
        (latest,) = store.get_asset_check_execution_history(key, limit=1)
        assert latest.event is not None
        assert latest.event.dagster_event is not None
        return latest.event.dagster_event.asset_check_evaluation_data


def evaluations(result: dg.ExecuteInProcessResult) -> Mapping[str, dg.AssetCheckEvaluation]:
    return {each.check_name: each for each in result.get_asset_check_evaluations()}


def test_an_audit_that_passes_is_in_the_ui_and_the_log(
    tmp_path: Path, instance: dg.DagsterInstance
) -> None:
    orders = Orders(tmp_path, instance, few, grows, UNIQUE)
    result = orders.run(1, 2)
    found = evaluations(result)
    assert {name: each.passed for name, each in found.items()} == {
        "few": True,
        "grows": True,
        "unique": True,
    }
    assert found["grows"].metadata["count"].value == 2
    (event,) = result.get_asset_materialization_events()
    shown = event.materialization.metadata["delta/audits"]
    assert isinstance(shown, dg.TableMetadataValue)
    assert [record.data["passed"] for record in shown.records] == [True, True, True]
    (commit,) = DeltaTable(orders.uri).history()
    assert [each["name"] for each in commit.commit_info["audits"]] == ["few", "grows", "unique"]
    assert "unique" in {
        spec.name for check in delta_asset_checks(orders.asset) for spec in check.check_specs
    }


def test_an_audit_that_fails_leaves_the_table_and_shows_why(
    tmp_path: Path, instance: dg.DagsterInstance
) -> None:
    orders = Orders(tmp_path, instance, grows, UNIQUE)
    assert orders.run(1, 2).success
    files = sorted(Path(orders.uri).glob("*.parquet"))
    result = orders.run(2, 3)
    assert not result.success
    failure = result.failure_data_for_node("orders")
    assert failure is not None
    assert failure.error is not None
    assert "1 audit failed, so that nothing was committed: unique" in str(failure.error.cause)
    assert DeltaTable(orders.uri).version() == 0
    assert sorted(Path(orders.uri).glob("*.parquet")) == files
    assert result.get_asset_materialization_events() == []
    latest = orders.latest("unique")
    assert not latest.passed
    assert latest.metadata["delta/violations"].value == 1
    rows = latest.metadata["delta/failing_rows"]
    assert isinstance(rows, dg.TableMetadataValue)
    assert [record.data for record in rows.records] == [{"id": 2}]
    assert orders.latest("grows").passed


def test_audits_and_expectations_are_metadata_that_dagster_keeps(
    tmp_path: Path, instance: dg.DagsterInstance
) -> None:
    positive = Expectation("positive", "id > 0", on_violation="drop")
    with warnings.catch_warnings():
        warnings.simplefilter("error", DeprecationWarning)
        given = delta_metadata(expectations=[positive], audits=[UNIQUE, few])
        orders = Orders(tmp_path, instance, **given)
        checks = delta_asset_checks(orders.asset)
        dg.Definitions(assets=[orders.asset], asset_checks=checks)
    assert json.loads(json.dumps(given)) == {
        "expectations": [{"name": "positive", "condition": "id > 0", "on_violation": "drop"}],
        "audits": [
            {"name": "unique", "severity": "ERROR", "check": UNIQUE.check},
            {"name": "few", "severity": "ERROR", "function": "few"},
        ],
    }
    done = orders.run(1, 0)
    assert set(evaluations(done)) == {"positive", "unique", "few"}
    assert stored_rows(DeltaTable(orders.uri)) == [{"id": 1}]
    assert not orders.run(1).success
    assert not orders.run(2, 3, 4, 5).success
    assert stored_rows(DeltaTable(orders.uri)) == [{"id": 1}]


def test_function_of_copied_metadata_is_refused_as_a_query(
    tmp_path: Path, instance: dg.DagsterInstance
) -> None:
    copied = json.loads(json.dumps(delta_metadata(audits=[few])))
    done = Orders(tmp_path, instance, **copied).run(1)
    assert not done.success
    assert "an audit has check" in str(done.failure_data_for_node("orders"))


def test_a_warning_is_committed(tmp_path: Path, instance: dg.DagsterInstance) -> None:
    orders = Orders(tmp_path, instance, grows, mode="overwrite")
    assert orders.run(1, 2).success
    result = orders.run(1)
    assert result.success
    assert not evaluations(result)["grows"].passed
    assert len(stored_rows(orders.uri)) == 1


def test_rejected_rows_are_kept_once_and_expire(
    tmp_path: Path, instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    keeps = Audit(few, on_failure="keep", keep_for=dt.timedelta(days=2))
    orders = Orders(tmp_path, instance, keeps)
    first = orders.run(1, 2, 3, 4)
    assert not first.success
    assert not DeltaTable.is_delta_table(orders.uri)
    rejected = f"{orders.uri}_rejected"
    columns = ["id", "_audits", "_run_id"]
    assert stored_rows(rejected, columns=columns) == [
        {"id": number, "_audits": ["few"], "_run_id": first.run_id} for number in (1, 2, 3, 4)
    ]
    tags = {"dagster/parent_run_id": first.run_id, "dagster/is_resume_retry": "true"}
    assert not orders.run(1, 2, 3, 4, tags=tags).success
    assert len(stored_rows(rejected)) == 4
    assert not orders.run(5, 6, 7, 8).success
    assert len(stored_rows(rejected)) == 8
    now = dt.datetime.now(dt.UTC) + dt.timedelta(days=3)
    monkeypatch.setattr(
        "dagster_delta.orchestration.io.audits.clock.now_ms", lambda: int(now.timestamp() * 1000)
    )
    assert orders.run(1).success
    assert stored_rows(rejected) == []


def test_no_row_is_kept_in_a_table_of_another_purpose(
    tmp_path: Path, instance: dg.DagsterInstance
) -> None:
    orders = Orders(tmp_path, instance, Audit(few, on_failure="keep"))
    long_ago = dt.datetime(2020, 1, 1, tzinfo=dt.UTC)
    mine = DeltaTable(f"{orders.uri}_rejected", must_exist=False)
    mine.append(pa.table({"id": [7], "_rejected_at": [long_ago]}))
    for rows in ([1, 2], [1, 2, 3, 4]):
        result = orders.run(*rows)
        failure = result.failure_data_for_node("orders")
        assert failure is not None
        assert failure.error is not None
        assert "has another purpose" in str(failure.error.cause or failure.error)
    assert not DeltaTable.is_delta_table(orders.uri)
    assert mine.version() == 0
    assert stored_rows(mine.uri, columns=["id"]) == [{"id": 7}]


def test_partitions_of_a_run_are_published_together(
    tmp_path: Path, instance: dg.DagsterInstance
) -> None:
    orders = Orders(tmp_path, instance, UNIQUE, mode="overwrite", partition_expr="day")
    tags = {
        "dagster/asset_partition_range_start": "mon",
        "dagster/asset_partition_range_end": "tue",
    }
    both = pa.table({"id": [1, 2], "day": ["mon", "tue"]})
    assert orders.run_rows(both, tags=tags).success
    repeated = pa.table({"id": [3, 4, 4], "day": ["mon", "tue", "tue"]})
    assert not orders.run_rows(repeated, tags=tags).success
    assert stored_rows(orders.uri, columns=["id"]) == [{"id": 1}, {"id": 2}]


def test_nothing_is_set_aside_if_an_audit_fails(
    tmp_path: Path, instance: dg.DagsterInstance
) -> None:
    rules = [Expectation("small", "id < 9", "quarantine")]
    orders = Orders(tmp_path, instance, few, expectations=rules)
    assert not orders.run(1, 2, 3, 4, 10).success
    assert stored_rows(f"{orders.uri}_quarantine") == []
    assert orders.run(1, 2, 3, 10).success
    assert len(stored_rows(f"{orders.uri}_quarantine")) == 1


def test_misspelled_audits_are_refused(tmp_path: Path, instance: dg.DagsterInstance) -> None:
    def odd(_: StagedWrite) -> str:
        return "fine"

    for audits, message in (
        ([few, few], "two audits"),
        ([Audit("SELECT 1 FROM {row}", "a")], "in braces"),
        ([odd], "returned str"),
        ([{"check": "SELECT 1"}], "name of an audit"),
        ([{"check": "SELECT 1", "nmae": "a"}], "an audit has check"),
    ):
        failed = Orders(tmp_path, instance, *audits).run(1).failure_data_for_node("orders")
        assert failed is not None
        assert failed.error is not None
        assert message in str(failed.error), message
    with pytest.raises(InvalidArgument, match="on_failure"):
        Audit(few, on_failure="hide")  # type: ignore[arg-type]
    assert issubclass(AuditFailed, Exception)


@pytest.mark.spark
def test_a_query_of_spark_judges_what_spark_has_written(
    tmp_path: Path, instance: dg.DagsterInstance, spark: Any
) -> None:
    in_spark = Audit(
        "SELECT id FROM {table} GROUP BY id HAVING count(*) > 1", "unique", engine="spark"
    )

    @dg.asset(name="orders", metadata={"mode": "append", "audits": [in_spark, few]})
    def orders() -> Any:
        return spark.range(3)

    def run() -> dg.ExecuteInProcessResult:
        resources = {"io_manager": DeltaIOManager(root_uri=str(tmp_path))}
        return dg.materialize(
            [orders], resources=resources, instance=instance, raise_on_error=False
        )

    assert run().success
    assert not run().success
    assert len(stored_rows(str(tmp_path / "public" / "orders"))) == 3
