"""A frame without rows, or with a column without values, has no types that could disagree."""

from __future__ import annotations

import datetime as dt
from pathlib import Path
from typing import Any

import dagster as dg
import pandas as pd
import pyarrow as pa
import pytest

from dagster_delta import DeltaIOManager, DeltaTable
from dagster_delta.errors import InvalidArgument

DAYS = dg.DailyPartitionsDefinition("2024-01-01")
TYPED = pa.table(
    {
        "day": [dt.date(2024, 1, 1)],
        "title": ["a"],
        "n": pa.array([1], pa.int32()),
        "s": [{"x": 1}],
    }
)
NO_ROWS = pd.DataFrame({name: [] for name in TYPED.column_names})
NO_VALUES = pd.DataFrame(
    {"day": [None], "title": [float("nan")], "n": [float("nan")], "s": [float("nan")]}
)


@pytest.mark.parametrize("schema_mode", ["strict", "merge"])
@pytest.mark.parametrize("frame", [NO_ROWS, NO_VALUES], ids=["no rows", "no values"])
def test_append_gives_columns_without_values_the_types_of_the_table(
    tmp_path: Path, frame: pd.DataFrame, schema_mode: Any
) -> None:
    table = DeltaTable(str(tmp_path / "t"), must_exist=False)
    table.append(TYPED)
    table.append(frame, schema_mode=schema_mode)
    rows = table.snapshot().scan().to_arrow()
    assert rows.schema.equals(table.snapshot().arrow_schema)
    assert [str(field.data_type) for field in table.schema()] == [
        "date", "string", "integer", "struct<x:long>",
    ]  # fmt: skip
    assert rows.num_rows == 1 + len(frame)
    assert rows.filter(pa.compute.is_null(rows["title"])).num_rows == len(frame)


@pytest.mark.parametrize("frame", [NO_ROWS, NO_VALUES], ids=["no rows", "no values"])
def test_merge_gives_columns_without_values_the_types_of_the_table(
    tmp_path: Path, frame: pd.DataFrame
) -> None:
    table = DeltaTable(str(tmp_path / "t"), must_exist=False)
    table.append(TYPED)
    merge = table.merge(frame, "t.n = s.n").when_matched_update_all().when_not_matched_insert_all()
    merge.execute()
    assert table.snapshot().scan().to_arrow().num_rows == 1 + len(frame)


def test_a_new_column_without_values_keeps_the_type_of_its_frame(tmp_path: Path) -> None:
    table = DeltaTable(str(tmp_path / "t"), must_exist=False)
    frame = pd.DataFrame({"a": [1], "x": [float("nan")]})
    table.append(frame[["a"]])
    table.append(frame, schema_mode="merge")
    assert str(table.schema()) == "struct<a:long,x:double>"
    table.overwrite(frame.rename(columns={"x": "y"}), schema_mode="overwrite")
    table.overwrite(frame, schema_mode="overwrite")
    assert str(table.schema()) == "struct<a:long,x:double>"
    frame["z"] = float("nan")
    table.merge(frame, "t.a = s.a", schema_mode="merge").when_matched_update_all().execute()
    assert str(table.schema()) == "struct<a:long,x:double,z:double>"
    assert table.snapshot().scan().to_arrow().to_pylist() == [{"a": 1, "x": None, "z": None}]


def test_table_is_not_created_from_types_that_pandas_made_up(tmp_path: Path) -> None:
    table = DeltaTable(str(tmp_path / "t"), must_exist=False)
    for frame in (NO_ROWS, pd.DataFrame({"a": [None], "b": [1]})):
        with pytest.raises(InvalidArgument, match="return None until there are rows"):
            table.append(frame)
        with pytest.raises(InvalidArgument, match="return None until there are rows"):
            table.overwrite(frame)
    assert not DeltaTable.is_delta_table(table.uri)
    typed = pd.DataFrame({"a": pd.array([], "Int64"), "b": pd.array([], "string")})
    table.append(typed)
    assert [str(field.data_type) for field in table.schema()] == ["long", "string"]


@pytest.mark.parametrize("mode", ["append", "overwrite", "merge"])
@pytest.mark.parametrize("partitioned", [False, True])
def test_asset_without_rows_on_its_first_day_says_to_return_none(
    tmp_path: Path, mode: str, partitioned: bool
) -> None:
    records: list[dict[str, Any]] = []
    metadata: dict[str, Any] = {"mode": mode, "merge_predicate": "t.title = s.title"}
    options: dict[str, Any] = {"metadata": metadata}
    if mode != "merge":
        del metadata["merge_predicate"]
    if partitioned:
        options["partitions_def"] = DAYS
        metadata["partition_expr"] = "day"

    @dg.asset(**options)
    def news() -> pd.DataFrame | None:
        return pd.DataFrame({name: [row[name] for row in records] for name in ("day", "title")})

    def run(day: str) -> dg.ExecuteInProcessResult:
        return dg.materialize(
            [news],
            resources={"io_manager": DeltaIOManager(root_uri=str(tmp_path))},
            partition_key=day if partitioned else None,
            instance=dg.DagsterInstance.ephemeral(),
        )

    with pytest.raises(InvalidArgument, match="return None until there are rows"):
        run("2024-01-01")
    records.append({"day": dt.date(2024, 1, 2), "title": "hello"})
    assert run("2024-01-02").success
    records.clear()
    assert run("2024-01-03").success
    rows = DeltaTable(str(tmp_path / "public" / "news")).snapshot().scan().to_arrow()
    assert rows.num_rows == (0 if mode == "overwrite" and not partitioned else 1)
