"""The recipes of docs/migration.md take over tables that deltalake wrote, and lose nothing."""

from __future__ import annotations

import datetime as dt
import re
from enum import StrEnum
from pathlib import Path
from typing import Any

import dagster as dg
import pyarrow as pa
import pytest
from deltalake import DeltaTable as ReferenceTable
from deltalake import write_deltalake

from dagster_delta.errors import InvalidArgument
from dagster_delta.orchestration.io.io_manager import DeltaIOManager
from dagster_delta.orchestration.io.merge_config import MergeConfig, MergeOperationsConfig
from dagster_delta.orchestration.resources import DeltaTableResource, SparkSessionResource
from dagster_delta.orchestration.storage_options import (
    AzureStorageOptions,
    S3StorageOptions,
)
from dagster_delta.table.delta_table import DeltaTable
from tests.orchestration.conftest import QUIET

PAGE = Path(__file__).parents[2] / "docs" / "migration.md"
RECIPE = re.compile(r"### From (?P<package>[\w-]+)\n.*?```python\n(?P<code>.*?)```", re.DOTALL)
DAY = dt.date(2024, 1, 1)


@pytest.fixture
def recipe(tmp_path, monkeypatch):
    """Runs the recipe for a package in a directory of its own: the names that it defines."""
    recipes = {each["package"]: each["code"] for each in RECIPE.finditer(PAGE.read_text())}
    monkeypatch.chdir(tmp_path)

    def run(package: str) -> dict[str, Any]:
        names: dict[str, Any] = {"__name__": "recipe"}
        exec(compile(recipes[package], PAGE.name, "exec", dont_inherit=True), names)
        return names

    return run


def materialize(names: dict[str, Any], *assets: str, **options: Any) -> dg.ExecuteInProcessResult:
    resources = names["defs"].resources
    chosen = [names[each] for each in assets]
    return dg.materialize(chosen, resources=resources, run_config=QUIET, **options)


def reference_rows(path: str) -> list[tuple[Any, ...]]:
    """The rows as deltalake reads them, sorted."""
    table = ReferenceTable(path).to_pyarrow_table()
    columns = (table.column(name).to_pylist() for name in sorted(table.column_names))
    return sorted(zip(*columns, strict=True))


def write_orders() -> None:
    """Three days of orders, at the place and with the partitions that dagster-deltalake gives."""
    rows = {"id": [1, 2, 3], "day": [DAY + dt.timedelta(days=each) for each in range(3)]}
    write_deltalake("lake/raw/orders", pa.table(rows), partition_by=["day"])


def test_a_partition_of_a_table_taken_over_is_replaced_and_the_others_stay(recipe):
    names = recipe("dagster-deltalake")
    write_orders()
    seen = materialize(names, "orders", "order_ids", partition_key="2024-01-02")
    assert reference_rows("lake/raw/orders") == [
        (DAY, 1),
        (dt.date(2024, 1, 2), 100),
        (dt.date(2024, 1, 3), 3),
    ]
    assert ReferenceTable("lake/raw/orders").metadata().partition_columns == ["day"]
    frame = seen.output_for_node("order_ids")
    assert list(frame.columns) == ["id"]


def test_a_range_over_a_table_taken_over_replaces_just_its_days(recipe):
    names = recipe("dagster-deltalake")
    write_orders()
    days = {"start": "2024-01-02", "end": "2024-01-03"}
    tags = {f"dagster/asset_partition_range_{side}": day for side, day in days.items()}
    materialize(names, "orders", tags=tags)
    assert [row[1] for row in reference_rows("lake/raw/orders")] == [1, 100, 101]


def test_rows_are_appended_to_a_table_taken_over(recipe):
    names = recipe("dagster-deltalake")
    write_orders()
    manager = DeltaIOManager(root_uri="lake", mode="append")
    dg.materialize(
        [names["orders"]],
        resources={"io_manager": manager},
        partition_key="2024-01-01",
        run_config=QUIET,
    )
    assert [row[1] for row in reference_rows("lake/raw/orders")] == [1, 100, 2, 3]


def test_the_next_writer_of_a_table_taken_over_may_be_deltalake_again(recipe):
    names = recipe("dagster-deltalake")
    write_orders()
    materialize(names, "orders", partition_key="2024-01-02")
    write_deltalake("lake/raw/orders", pa.table({"id": [9], "day": [DAY]}), mode="append")
    materialize(names, "orders", partition_key="2024-01-03")
    assert [row[1] for row in reference_rows("lake/raw/orders")] == [1, 9, 100, 100]


def test_a_table_taken_over_is_merged_into_by_type_and_by_clauses(recipe):
    names = recipe("dagster-delta")
    write_deltalake("lake/public/planes", pa.table({"tailnum": ["N1", "N2"], "seats": [1, 2]}))
    materialize(names, "planes")
    assert reference_rows("lake/public/planes") == [(1, "N1"), (20, "N2"), (30, "N3")]
    materialize(names, "corrections")
    assert reference_rows("lake/public/planes") == [(25, "N2"), (30, "N3")]


def test_a_table_of_dagster_polars_is_taken_over(recipe):
    names = recipe("dagster-polars")
    rows = {"id": [1, 2], "day": [DAY, dt.date(2024, 1, 2)]}
    write_deltalake("lake/my_dataset/events.delta", pa.table(rows), partition_by=["day"])
    materialize(names, "events", partition_key="2024-01-02")
    assert reference_rows("lake/my_dataset/events.delta") == [(DAY, 1), (dt.date(2024, 1, 2), 100)]


def test_calls_of_deltalake_have_counterparts(recipe):
    write_orders()
    names = recipe("deltalake")
    assert sorted(names["rows"]["id"]) == [2, 3]
    assert len(names["files"]) == 3
    assert names["first"].num_rows == 3
    assert [row[1] for row in reference_rows("lake/raw/orders")] == [7, 20, 3]


def test_odd_names_of_columns_of_deltalake_are_read_and_written(tmp_path):
    rows = pa.table({"a b": [1, 2], "c,d": ["x", "y"], "e=(f)": [1.5, 2.5]})
    write_deltalake(tmp_path / "t", rows, partition_by=["c,d"])
    table = DeltaTable(tmp_path / "t")
    table.append(rows.slice(0, 1))
    table.overwrite(rows.slice(1), where="`c,d` = 'y'")
    table.update({"`a b`": "`a b` + 10"}, "`e=(f)` > 2")
    merge = table.merge(rows.slice(0, 1), "s.`a b` = t.`a b`")
    merge.when_matched_delete().execute()
    assert table.snapshot().scan().to_arrow().to_pylist() == [{"a b": 12, "c,d": "y", "e=(f)": 2.5}]
    assert reference_rows(str(tmp_path / "t")) == [(12, "y", 2.5)]


def test_odd_names_of_columns_take_one_property_in_a_new_table(lake, events):
    error = lake.fail(events(pa.table({"a b": [1]})))
    assert "delta.columnMapping.mode = name (table_properties of the DeltaIOManager" in str(error)
    lake.materialize(
        events(pa.table({"a b": [1]})), table_properties={"delta.columnMapping.mode": "name"}
    )


def test_frames_of_spark_become_tables(recipe, spark):
    names = recipe("dagster-pyspark")
    write_deltalake("lake/public/numbers", pa.table({"id": [7]}))
    materialize(names, "numbers", "large_numbers")
    assert reference_rows("lake/public/numbers") == [(0,), (1,), (2,), (3,), (4,)]
    assert reference_rows("lake/public/large_numbers") == [(3,), (4,)]
    assert names["spark"].session is spark


@pytest.mark.parametrize(
    ("owner", "options", "advice"),
    [
        (DeltaIOManager, {"client_options": {"timeout": "9s"}}, "docs/migration.md"),
        (DeltaIOManager, {"base_dir": "lake"}, "it has branch, branch_pinned"),
        (DeltaIOManager, {"schemas": "raw"}, "did you mean 'schema'"),
        (DeltaIOManager, {"table_config": {}}, "docs/migration.md"),
        (DeltaIOManager, {"overwrite_schema": True}, "docs/migration.md"),
        (DeltaIOManager, {"writer_properties": {}}, "docs/migration.md"),
        (DeltaIOManager, {"commit_properties": {}}, "docs/migration.md"),
        (SparkSessionResource, {"spark_config": {"spark.a": "1"}}, "has no option 'spark_config'"),
        (S3StorageOptions, {"allow_unsafe_rename": True}, "conditional_put"),
        (S3StorageOptions, {"regoin": "eu-west-1"}, "did you mean 'region'"),
        (AzureStorageOptions, {"container_name": "c"}, "did you mean 'account_name'"),
        (MergeConfig, {"on": "t.id = s.id"}, "predicate"),
        (MergeOperationsConfig, {"when_matched": []}, "when_matched_"),
    ],
)
def test_an_option_without_meaning_here_is_refused_with_what_to_do(owner, options, advice):
    required = {"root_uri": "lake"} if owner is DeltaIOManager else {}
    with pytest.raises(InvalidArgument, match=re.escape(advice)):
        owner(**required, **options)


@pytest.mark.parametrize(
    ("options", "advice"),
    [
        ({"mode": "create_or_replace"}, "mode\n.*'append', 'overwrite'"),
        ({"mode": None}, "mode\n.*'append', 'overwrite'"),
        ({"schema_mode": "evolve"}, "schema_mode\n.*'strict', 'widen', 'merge' or 'overwrite'"),
        ({"default_load_type": "pl"}, "default_load_type is one of .*polars, .*not 'pl'"),
    ],
)
def test_a_value_without_meaning_here_is_refused_with_what_to_do(options, advice):
    with pytest.raises(ValueError, match=advice):
        DeltaIOManager(root_uri="lake", **options)


def test_enumerations_of_the_other_projects_are_understood():
    class WriteMode(StrEnum):
        append = "append"

    assert DeltaIOManager(root_uri="lake", mode=WriteMode.append).mode == "append"


def test_an_option_refused_inside_a_resource_names_it_and_quotes_no_value():
    options: Any = {"s3": {"bucket": "hush"}}
    with pytest.raises(ValueError, match="S3StorageOptions has no option 'bucket'") as caught:
        DeltaTableResource(uri="s3://lake/t", storage_options=options)
    assert "hush" not in str(caught.value)
