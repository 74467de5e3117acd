"""Expectations of assets: what the UI shows, and what a repeated run does."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import dagster as dg
import pyarrow as pa
import pytest

from dagster_delta import DeltaIOManager, DeltaTable, Expectation, delta_asset_checks
from dagster_delta.errors import ExpectationFailed, InvalidArgument
from dagster_delta.table.transaction import committer, transaction
from tests.table_rows import stored_rows

ROWS = pa.table({"id": [1, 2, None, 4], "amount": [1.0, -1.0, 5.0, None]})

WARNS = Expectation("positive", "amount > 0")
DROPS = Expectation("has_id", "id IS NOT NULL", "drop")
MOVES = Expectation("known", "amount IS NOT NULL", "quarantine")
FAILS = Expectation("small", "amount < 5 OR amount IS NULL", "fail")


def orders(*expectations: Any, **metadata: Any) -> dg.AssetsDefinition:
    @dg.asset(name="orders", metadata={"expectations": list(expectations), **metadata})
    def define() -> pa.Table:
        return ROWS

    return define


def run(
    asset: dg.AssetsDefinition, root: Path, instance: dg.DagsterInstance, **options: Any
) -> dg.ExecuteInProcessResult:
    assets = [asset, *options.pop("checks", ())]
    resources = {"io_manager": DeltaIOManager(root_uri=str(root))}
    return dg.materialize(assets, resources=resources, instance=instance, **options)


def evaluations(result: dg.ExecuteInProcessResult) -> Mapping[str, dg.AssetCheckEvaluation]:
    return {each.check_name: each for each in result.get_asset_check_evaluations()}


def records(value: dg.MetadataValue[Any]) -> list[Mapping[str, Any]]:
    assert isinstance(value, dg.TableMetadataValue)
    return [record.data for record in value.records]


def test_the_ui_shows_counts_and_failing_rows(tmp_path: Path, instance: dg.DagsterInstance) -> None:
    result = run(orders(WARNS, DROPS, MOVES), tmp_path, instance)
    (event,) = result.get_asset_materialization_events()
    metadata = {name: value.value for name, value in event.materialization.metadata.items()}
    assert metadata["delta/dropped_rows"] == 1
    assert metadata["delta/quarantined_rows"] == 1
    assert metadata["delta/rows_written"] == 2
    shown = records(event.materialization.metadata["delta/expectations"])
    assert [(row["name"], row["passedRecords"], row["failedRecords"]) for row in shown] == [
        ("positive", 2, 2),
        ("has_id", 3, 1),
        ("known", 3, 1),
    ]
    found = evaluations(result)
    assert {name: each.passed for name, each in found.items()} == dict.fromkeys(found, False)
    assert {each.severity for each in found.values()} == {dg.AssetCheckSeverity.WARN}
    failing = found["has_id"].metadata["delta/failing_rows"]
    assert records(failing) == [{"id": None, "amount": 5.0}]
    assert stored_rows(str(tmp_path / "public" / "orders_quarantine"), columns=["reasons"]) == [
        {"reasons": ["positive", "known"]}
    ]


def test_masked_columns_are_hidden_in_failing_rows(
    tmp_path: Path, instance: dg.DagsterInstance
) -> None:
    result = run(orders(DROPS, masked_columns=["amount"]), tmp_path, instance)
    failing = evaluations(result)["has_id"].metadata["delta/failing_rows"]
    assert records(failing) == [{"id": None, "amount": "•••"}]


def test_a_failed_write_leaves_no_table_and_reports_its_check(
    tmp_path: Path, instance: dg.DagsterInstance
) -> None:
    asset = orders(MOVES, FAILS)
    checks = delta_asset_checks(asset, constraints=False)
    result = run(asset, tmp_path, instance, checks=checks, raise_on_error=False)
    assert not result.success
    failure = result.failure_data_for_node("orders")
    assert failure is not None
    assert failure.error is not None
    assert "1 of 4 rows violate 'small'" in str(failure.error.cause)
    key = dg.AssetCheckKey(dg.AssetKey("orders"), "small")
    (latest,) = instance.event_log_storage.get_asset_check_execution_history(key, limit=1)
    assert latest.status.value == "FAILED"
    assert latest.event is not None
    assert latest.event.dagster_event is not None
    found = latest.event.dagster_event.asset_check_evaluation_data
    assert found.severity == dg.AssetCheckSeverity.ERROR
    assert found.metadata["delta/violations"].value == 1
    assert not DeltaTable.is_delta_table(str(tmp_path / "public" / "orders"))
    assert stored_rows(str(tmp_path / "public" / "orders_quarantine")) == []
    left = list((tmp_path / "public").rglob("*.parquet"))
    assert left == []


def test_checks_repeat_the_counts_of_the_log(tmp_path: Path, instance: dg.DagsterInstance) -> None:
    asset = orders(WARNS, mode="append")
    checks = delta_asset_checks(asset)
    run(asset, tmp_path, instance)
    DeltaTable(str(tmp_path / "public" / "orders")).optimize()
    for file in (tmp_path / "public" / "orders").glob("*.parquet"):
        file.unlink()
    result = dg.materialize(
        [asset, *checks],
        selection=dg.AssetSelection.checks(*checks),
        resources={"io_manager": DeltaIOManager(root_uri=str(tmp_path))},
        instance=instance,
    )
    found = evaluations(result)
    assert set(found) == {"positive", "delta_constraints"}
    assert not found["positive"].passed
    assert found["positive"].description == ("2 of 4 rows violate amount > 0: written all the same")


def test_a_run_that_writes_and_checks_has_one_result_of_each_expectation(
    tmp_path: Path, instance: dg.DagsterInstance
) -> None:
    asset = orders(WARNS, DROPS)
    checks = delta_asset_checks(asset, blocking=True)

    @dg.asset(deps=[asset])
    def report() -> None: ...

    result = run(asset, tmp_path, instance, checks=[*checks, report])
    assert result.success
    assert result.asset_materializations_for_node("report")
    names = [found.check_name for found in result.get_asset_check_evaluations()]
    assert sorted(names) == ["delta_constraints", "has_id", "positive"]
    found = evaluations(result)["has_id"]
    assert records(found.metadata["delta/failing_rows"]) == [{"id": None, "amount": 5.0}]
    assert found.metadata["delta/version"].value == 0


class _Killed(BaseException):
    """The process ends here."""


@pytest.mark.parametrize("mode", ["append", "overwrite"])
def test_a_run_that_is_killed_between_the_two_commits_and_repeated_doubles_nothing(
    tmp_path: Path, instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch, mode: str
) -> None:
    commit = committer.commit_with_retry
    kills: list[int] = []

    def killed(store: Any, *args: Any, **options: Any) -> Any:
        if "quarantine" not in store.location.uri and not kills:
            kills.append(1)
            raise _Killed
        return commit(store, *args, **options)

    monkeypatch.setattr(transaction, "commit_with_retry", killed)
    asset = orders(MOVES, mode=mode)
    with pytest.raises(_Killed):
        run(asset, tmp_path, instance)
    aside = str(tmp_path / "public" / "orders_quarantine")
    assert len(stored_rows(aside)) == 1
    (first,) = instance.get_runs()
    tags = {"dagster/parent_run_id": first.run_id, "dagster/is_resume_retry": "true"}
    result = run(asset, tmp_path, instance, tags=tags)
    assert result.success
    assert [row["run_id"] for row in stored_rows(aside)] == [result.run_id]
    assert len(stored_rows(str(tmp_path / "public" / "orders"))) == 3
    # Another run is another load.
    run(asset, tmp_path, instance)
    assert len(stored_rows(aside)) == 2


def test_misspelled_expectations_are_refused(tmp_path: Path, instance: dg.DagsterInstance) -> None:
    for value, message in (
        ({"name": "a"}, "has name, condition"),
        ({"name": "a b", "condition": "id > 0"}, "letters, digits"),
        ({"name": "a", "condition": "id > 0", "on_violation": "ignore"}, "on_violation"),
        ("id > 0", "list of Expectation"),
    ):
        with pytest.raises(InvalidArgument, match=message):
            run(orders(value), tmp_path, instance)
    mapping = {"name": "has_id", "condition": "id IS NOT NULL", "on_violation": "fail"}
    with pytest.raises(ExpectationFailed, match="has_id"):
        run(orders(mapping), tmp_path, instance)
