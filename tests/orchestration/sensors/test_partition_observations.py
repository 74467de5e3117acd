"""Partitions of external tables have data versions of their own, from the log alone."""

from __future__ import annotations

import datetime as dt
import json
import shutil
from pathlib import Path
from typing import Any

import dagster as dg
import pyarrow as pa
import pytest

from dagster_delta import DeltaIOManager
from dagster_delta.errors import InvalidArgument
from dagster_delta.orchestration.sensors.observations import observable_delta_asset
from dagster_delta.table.delta_table import DeltaTable
from tests.orchestration.conftest import QUIET

KEY = dg.AssetKey("t")
LETTERS = dg.StaticPartitionsDefinition(["a", "b", "c"])


def append(uri: str, *parts: str) -> None:
    rows = pa.table({"p": list(parts), "n": list(range(len(parts)))})
    DeltaTable(uri, must_exist=False).append(rows, partition_by=["p"])


@pytest.fixture
def uri(tmp_path: Path) -> str:
    location = str(tmp_path / "t")
    append(location, "a")
    append(location, "b")
    return location


def asset_of(uri: str, partitions_def: Any = LETTERS, **options: Any) -> dg.AssetsDefinition:
    options = {"partition_expr": "p", **options}
    return observable_delta_asset(KEY, uri, partitions_def=partitions_def, **options)


def observe(
    asset: dg.AssetsDefinition, instance: dg.DagsterInstance, partition: str | None = None
) -> dict[str | None, int]:
    """The versions that a run observed, by partition; None for the table."""
    job = dg.Definitions(
        [asset], jobs=[dg.define_asset_job("observe", selection=[KEY])]
    ).resolve_job_def("observe")
    result = job.execute_in_process(instance=instance, partition_key=partition, run_config=QUIET)
    found = [
        event.asset_observation_data.asset_observation
        for event in result.get_asset_observation_events()
    ]
    return {seen.partition: int(str(seen.data_version).split(":")[1]) for seen in found}


def test_a_run_without_a_partition_observes_those_that_changed(uri, instance) -> None:
    asset = asset_of(uri)
    assert observe(asset, instance) == {"a": 0, "b": 1, None: 1}
    assert observe(asset, instance) == {None: 1}
    append(uri, "b", "c")
    assert observe(asset, instance) == {"b": 2, "c": 2, None: 2}


def test_a_run_for_a_partition_observes_its_last_change(uri, instance) -> None:
    asset = asset_of(uri)
    assert observe(asset, instance, "a") == {"a": 0}
    append(uri, "b")
    assert observe(asset, instance, "a") == {"a": 0}
    assert observe(asset, instance, "b") == {"b": 2}
    append(uri, "a")
    assert observe(asset, instance) == {"a": 3, None: 3}
    assert observe(asset, instance, "a") == {"a": 3}


def test_maintenance_changes_no_partition_and_each_statement_only_its_own(uri, instance) -> None:
    asset, table = asset_of(uri), DeltaTable(uri)
    append(uri, "a", "b", "c")
    observe(asset, instance)
    table.optimize()
    table.alter("ALTER TABLE t SET TBLPROPERTIES ('delta.appendOnly' = 'false')")
    assert set(observe(asset, instance)) == {None}
    table.delete("p = 'a' AND n = 0")
    version = table.snapshot().version
    assert observe(asset, instance) == {"a": version, None: version}
    table.delete("p = 'c'")
    assert observe(asset, instance) == {"c": version + 1, None: version + 1}
    table.update({"n": "7"}, where="p = 'b'")
    assert observe(asset, instance) == {"b": version + 2, None: version + 2}
    table.overwrite(pa.table({"p": ["b"], "n": [1]}), where="p = 'b'")
    assert observe(asset, instance) == {"b": version + 3, None: version + 3}


def test_a_change_of_one_partition_starts_only_that_partition_downstream(uri, instance) -> None:
    asset = asset_of(uri)

    @dg.asset(
        partitions_def=LETTERS, deps=[asset], automation_condition=dg.AutomationCondition.eager()
    )
    def down() -> None: ...

    defs = dg.Definitions([asset, down])

    def requested(cursor: Any) -> tuple[Any, list[str]]:
        found = dg.evaluate_automation_conditions(defs, instance, cursor=cursor)
        return found.cursor, sorted(map(str, found.get_requested_partitions(down.key)))

    append(uri, "c")
    cursor, _ = requested(None)
    observe(asset, instance)
    cursor, _ = requested(cursor)
    for key in LETTERS.get_partition_keys():
        dg.materialize([down], instance=instance, partition_key=key, run_config=QUIET)
    cursor, _ = requested(cursor)
    DeltaTable(uri).optimize()
    observe(asset, instance)
    cursor, found = requested(cursor)
    assert found == []
    append(uri, "b")
    observe(asset, instance)
    cursor, found = requested(cursor)
    assert found == ["b"]
    dg.materialize([down], instance=instance, partition_key="b", run_config=QUIET)
    cursor, _ = requested(cursor)
    DeltaTable(uri).delete("p = 'c'")
    for key in LETTERS.get_partition_keys():
        observe(asset, instance, key)
    cursor, found = requested(cursor)
    assert found == ["c"]


def test_partitions_of_a_table_whose_log_was_cleaned_up_are_observed_once(uri, instance) -> None:
    for _ in range(3):
        append(uri, "b")
    DeltaTable(uri).checkpoint()
    for version in range(4):
        (Path(uri) / "_delta_log" / f"{version:020}.json").unlink()
    asset = asset_of(uri)
    # The last change of `a` is older than the log: the newest version that it may have stands for it.
    assert observe(asset, instance) == {"a": 3, "b": 4, None: 4}
    append(uri, "b")
    assert observe(asset, instance) == {"b": 5, None: 5}


def test_a_clean_up_of_commits_that_were_not_observed_changes_every_partition(
    uri, instance
) -> None:
    asset = asset_of(uri)
    observe(asset, instance)
    DeltaTable(uri).delete("p = 'a'")
    append(uri, "c")
    DeltaTable(uri).checkpoint()
    for version in range(3):
        (Path(uri) / "_delta_log" / f"{version:020}.json").unlink()
    assert observe(asset, instance) == {"a": 2, "b": 2, "c": 3, None: 3}


def test_another_table_in_the_place_changes_every_partition(uri, instance) -> None:
    asset = asset_of(uri)
    observe(asset, instance)
    shutil.rmtree(uri)
    append(uri, "a")
    append(uri, "c")
    assert observe(asset, instance) == {"a": 0, "b": 0, "c": 1, None: 1}


def test_removed_files_without_partition_values_change_every_partition(uri, instance) -> None:
    asset = asset_of(uri)
    observe(asset, instance)
    DeltaTable(uri).delete("p = 'a'")
    log = Path(uri) / "_delta_log" / f"{2:020}.json"
    # As writers do that leave out extendedFileMetadata.
    actions = [json.loads(line) for line in log.read_text().splitlines()]
    (removed,) = [action["remove"] for action in actions if "remove" in action]
    assert removed.pop("partitionValues") == {"p": "a"}
    removed.pop("extendedFileMetadata")
    for action in actions:
        action.get("commitInfo", {}).pop("contentCrc32", None)
    log.write_text("\n".join(map(json.dumps, actions)))
    assert observe(asset, instance) == {"a": 2, "b": 2, None: 2}


def test_months_of_a_table_of_days_are_observed(tmp_path, instance) -> None:
    uri = str(tmp_path / "t")
    days = [dt.date(2026, 3, 31), dt.date(2026, 4, 1)]
    table = DeltaTable(uri, must_exist=False)
    table.append(pa.table({"day": days, "n": [1, 2]}), partition_by=["day"])
    table.append(pa.table({"day": days[1:], "n": [3]}))
    months = dg.MonthlyPartitionsDefinition("2026-03-01", end_date="2026-05-01")
    asset = asset_of(uri, months, partition_expr="day")
    assert observe(asset, instance) == {"2026-03-01": 0, "2026-04-01": 1, None: 1}


def test_new_dynamic_partitions_and_dimensions_are_observed(tmp_path, instance) -> None:
    uri = str(tmp_path / "t")
    rows = pa.table({"p": ["a", "b"], "shop": ["x", "y"], "n": [1, 2]})
    DeltaTable(uri, must_exist=False).append(rows, partition_by=["p", "shop"])
    shops = dg.DynamicPartitionsDefinition(name="shops")
    both = dg.MultiPartitionsDefinition({"letter": LETTERS, "shop": shops})
    asset = asset_of(uri, both, partition_expr={"letter": "p", "shop": "shop"})
    assert observe(asset, instance) == {"a|x": 0, "b|y": 0, None: 0}
    assert sorted(instance.get_dynamic_partitions("shops")) == ["x", "y"]


def test_an_input_has_the_rows_of_its_partition(tmp_path, instance) -> None:
    append(str(tmp_path / "public" / "t"), "a", "b")
    asset = asset_of(str(tmp_path / "public" / "t"))
    seen = []

    @dg.asset(partitions_def=LETTERS)
    def down(t: pa.Table) -> None:
        seen.extend(t["p"].to_pylist())

    dg.materialize(
        [asset, down],
        selection=[down],
        partition_key="b",
        resources={"io_manager": DeltaIOManager(root_uri=str(tmp_path))},
        instance=instance,
        run_config=QUIET,
    )
    assert seen == ["b"]


def test_a_table_without_the_partition_column_is_refused(uri, instance) -> None:
    with pytest.raises(InvalidArgument, match="partitioned by p and not by n, so its commits"):
        observe(asset_of(uri, partition_expr="n"), instance)


def test_a_run_for_a_range_is_refused(uri, instance) -> None:
    tags = {
        "dagster/asset_partition_range_start": "a",
        "dagster/asset_partition_range_end": "b",
    }
    job = dg.Definitions([asset_of(uri)]).resolve_implicit_global_asset_job_def()
    with pytest.raises(InvalidArgument, match="one run observes one partition"):
        job.execute_in_process(instance=instance, tags=tags, run_config=QUIET)


@pytest.mark.parametrize(
    ("partitions_def", "partition_expr"),
    [(LETTERS, None), (None, "p"), (LETTERS, {"a": "p", "b": "q"})],
)
def test_partitions_without_their_columns_are_refused(partitions_def, partition_expr) -> None:
    with pytest.raises(InvalidArgument, match=r"partition_expr|partitions_def"):
        observable_delta_asset(
            "t", "lake/t", partitions_def=partitions_def, partition_expr=partition_expr
        )
