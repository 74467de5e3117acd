"""Columns of type void, which other writers create from data that are all null."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable as ReferenceTable
from deltalake import write_deltalake

from dagster_delta import DeltaTable
from dagster_delta.errors import InvalidArgument, SchemaMismatch, UnsupportedFeature
from dagster_delta.protocol.log.paths import checksum_path, commit_path
from dagster_delta.storage.memory_store import MemoryStore
from tests.table.logs import edited

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


def _declared(store: MemoryStore, **types: pa.DataType) -> DeltaTable:
    """A table as Spark creates it: what is binary here is void there."""
    DeltaTable.create("", pa.schema({"id": pa.int64(), **types}), store=store)
    path = commit_path(0)
    store.put(path, edited(store.read(path), b"binary", b"void"))
    store.delete([checksum_path(0)])
    return DeltaTable("", store=store)


def test_void_fields_of_structs_are_left_out_of_files() -> None:
    store = MemoryStore()
    struct = pa.struct(
        [
            ("b", pa.binary()),
            ("a", pa.int64()),
            ("s", pa.struct([("n", pa.int64()), ("b", pa.binary())])),
        ]
    )
    table = _declared(store, s=struct, xs=pa.list_(struct), m=pa.map_(pa.string(), struct))
    value = {"b": None, "a": 1, "s": {"n": 2, "b": None}}
    row = {"id": 1, "s": value, "xs": [value, None], "m": [("k", value)]}
    given = pa.Table.from_pylist([row, {"id": 2}], schema=table.snapshot().arrow_schema)
    table.append(given)
    table.append(given.select(["id", "s"]))
    table.update({"s.a": "5"}, "id = 1")
    merge = table.merge(given.slice(1), "t.id = s.id").when_matched_update_all()
    merge.when_not_matched_insert_all().execute()
    table.optimize()
    nothing = {"id": 2, "s": None, "xs": None, "m": None}
    changed = {**row, "s": {**value, "a": 5}}
    found = table.snapshot().scan().to_arrow().to_pylist()
    assert sorted(found, key=str) == sorted(
        [changed, {**changed, "xs": None, "m": None}, nothing, nothing], key=str
    )
    (path,) = table.snapshot().files()["path"].to_pylist()
    stored = pq.read_schema(pa.BufferReader(store.read(path)))
    assert str(stored.field("s").type) == "struct<a: int64, s: struct<n: int64>>"


@pytest.mark.parametrize(
    "data_type",
    [pa.list_(pa.binary()), pa.map_(pa.string(), pa.binary()), pa.struct([("b", pa.binary())])],
)
def test_a_type_of_nothing_but_void_is_not_written(data_type: pa.DataType) -> None:
    store = MemoryStore()
    table = _declared(store, v=pa.struct([("a", pa.int64()), ("x", data_type)]))
    before = len(list(store.list_recursive()))
    with pytest.raises(UnsupportedFeature, match=r"column v\.x is an array, a map or a struct of"):
        table.append(pa.table({"id": [1]}))
    assert len(list(store.list_recursive())) == before
