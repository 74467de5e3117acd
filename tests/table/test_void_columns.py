"""Columns of type void, which other writers create from data that are all null."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable as ReferenceTable
from deltalake import write_deltalake

from dagster_delta import DeltaTable
from dagster_delta.errors import InvalidArgument, SchemaMismatch

NULLS = pa.table({"id": [1], "p": ["a"], "v": pa.nulls(1)})
VALUES = pa.table({"id": [2], "p": ["b"], "v": ["x"]})


def _table(tmp_path: Path, rows: Any = NULLS, **options: Any) -> DeltaTable:
    write_deltalake(tmp_path / "t", rows, **options)
    return DeltaTable(tmp_path / "t")


def _rows(table: DeltaTable) -> list[Any]:
    return sorted(table.snapshot().scan().to_arrow()["v"].to_pylist(), key=str)


@pytest.mark.parametrize("mode", ["merge", "widen"])
@pytest.mark.parametrize("partition_by", [None, ["p"]])
@pytest.mark.parametrize("value", ["x", 1.5, [1], {"f": 1}])
def test_a_void_column_takes_the_type_of_the_first_values(
    tmp_path: Path, mode: Any, partition_by: Any, value: object
) -> None:
    table = _table(tmp_path, partition_by=partition_by)
    table.append(NULLS)
    table.append(VALUES.set_column(2, "v", pa.array([value])), schema_mode=mode)
    table.append(NULLS)
    assert _rows(table) == sorted([None, None, None, value], key=str)
    reference = ReferenceTable(tmp_path / "t").to_pyarrow_table()
    assert sorted(reference["v"].to_pylist(), key=str) == _rows(table)
    assert str(table.schema().field("v").data_type) != "void"


def test_a_merge_that_may_change_the_schema_gives_a_void_column_its_type(tmp_path: Path) -> None:
    table = _table(tmp_path)
    merge = table.merge(VALUES, "s.id = t.id", schema_mode="merge")
    merge.when_not_matched_insert_all().execute()
    assert _rows(table) == [None, "x"]


def test_other_columns_are_added_beside_a_void_one(tmp_path: Path) -> None:
    table = _table(tmp_path)
    table.append(NULLS.append_column("w", pa.array([1])), schema_mode="merge")
    assert str(table.schema()) == "struct<id:long,p:string,v:void,w:long>"


def test_values_for_a_void_column_name_the_mode_that_takes_them(tmp_path: Path) -> None:
    with pytest.raises(SchemaMismatch, match=r'column v .*schema_mode="merge"'):
        _table(tmp_path).append(VALUES)


def test_rows_that_no_data_file_could_hold_are_refused(tmp_path: Path) -> None:
    rows = NULLS.drop_columns(["id"])
    table = _table(tmp_path, rows, partition_by=["p"])
    with pytest.raises(InvalidArgument, match=r"column v is of type void, like every column"):
        table.append(rows)
    assert table.refresh().num_records == 1
    table.append(VALUES.drop_columns(["id"]), schema_mode="merge")
    assert _rows(table) == [None, "x"]


def test_a_new_column_of_nulls_alone_says_what_to_do(tmp_path: Path) -> None:
    table = DeltaTable(tmp_path / "t", must_exist=False)
    with pytest.raises(InvalidArgument, match=r"column v is new, contains only nulls.*cast it"):
        table.append(NULLS)


@pytest.mark.parametrize("statement", ["ALTER COLUMN v TYPE STRING", "MODIFY v STRING"])
def test_a_void_column_is_given_a_type_without_a_feature(tmp_path: Path, statement: str) -> None:
    table = _table(tmp_path)
    before = table.protocol()
    table.alter(statement)
    assert table.protocol() == before
    assert table.schema().field("v").metadata == {}
    table.append(VALUES)
    assert _rows(table) == [None, "x"]
    assert ReferenceTable(tmp_path / "t").to_pyarrow_table().num_rows == 2


def test_a_void_column_is_given_a_nested_type(tmp_path: Path) -> None:
    table = _table(tmp_path)
    table.alter("ALTER COLUMN v TYPE STRUCT<a: INT, b: ARRAY<STRING>>")
    assert str(table.schema().field("v").data_type) == "struct<a:integer,b:array<string>>"
    assert _rows(table) == [None]
