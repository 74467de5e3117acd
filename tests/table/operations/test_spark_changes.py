"""DELETE, UPDATE and MERGE on Spark where they differ from the embedded engine: how it is chosen,
what it refuses, and what it does about files and expressions of its own."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from dagster_delta import Column, DeltaTable, Identity
from dagster_delta.errors import (
    ConstraintViolation,
    InvalidArgument,
    InvalidCast,
    SchemaMismatch,
)
from dagster_delta.storage.memory_store import MemoryStore
from dagster_delta.testing.faulty_store import FaultyStore
from tests.sample_tables import VECTORS

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROWS = pa.table(
    {"id": range(20), "v": [f"v{n}" for n in range(20)], "p": [n % 2 for n in range(20)]}
)
pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("spark")]


@pytest.fixture
def table(tmp_path: Path) -> DeltaTable:
    made = DeltaTable(str(tmp_path / "t"), must_exist=False)
    made.append(ROWS, properties=VECTORS)
    return made


def values(table: DeltaTable, *columns: str) -> list[tuple[object, ...]]:
    found = table.snapshot().scan(columns=list(columns)).to_arrow().to_pylist()
    return sorted((tuple(row.values()) for row in found), key=repr)


def texts(table: DeltaTable) -> dict[int, str]:
    found = table.snapshot().scan(columns=["id", "v"]).to_arrow().to_pylist()
    return {row["id"]: row["v"] for row in found}


def files(table: DeltaTable) -> set[Path]:
    return {each for each in Path(table.uri).rglob("*.parquet") if "_delta_log" not in each.parts}


def test_what_only_spark_evaluates_runs_there_by_itself(table: DeltaTable) -> None:
    table.update({"v": "regexp_replace(v, 'v1', 'w')"}, "id = 12")
    table.delete("array_contains(array(3, 4), id)")
    source = pa.table({"id": [5, 30]})
    merge = table.merge(source, "t.id = s.id").when_matched_delete("size(array(t.v)) = 1")
    merge.when_not_matched_insert({"id": "s.id", "v": "reverse(cast(s.id AS STRING))"}).execute()
    found = texts(table)
    assert found[12] == "w2"
    assert found[30] == "03"
    assert {3, 4, 5}.isdisjoint(found)


def test_a_table_in_memory_is_out_of_reach() -> None:
    table = DeltaTable("", store=MemoryStore(), must_exist=False)
    table.append(ROWS)
    with pytest.raises(InvalidArgument, match="memory of this process"):
        table.delete("id = 1", engine="spark")
    with pytest.raises(InvalidArgument, match="memory of this process"):
        table.merge(ROWS, "t.id = s.id", engine="spark").when_matched_delete().execute()
    with pytest.raises(InvalidArgument, match="not 'flink'"):
        table.delete("id = 1", engine="flink")


def test_values_that_are_none_of_their_column_leave_nothing_behind(tmp_path: Path) -> None:
    table = DeltaTable.create(
        str(tmp_path / "t"),
        pa.schema([pa.field("id", pa.int32(), nullable=False), pa.field("v", pa.int32())]),
        properties={**VECTORS, "delta.constraints.small": "v < 100"},
    )
    table.append(pa.table({"id": [1, 2, 3], "v": [1, 2, 3]}), engine="arrow")
    before, version = files(table), table.version()
    source = pa.table({"id": [1, 9], "w": ["7", "many"]})

    def merge(value: str) -> Callable[[], object]:
        builder = table.merge(source, "t.id = s.id", engine="spark")
        return builder.when_not_matched_insert({"id": "s.id", "v": value}).execute

    for kind, change in (
        (InvalidCast, lambda: table.update({"v": "'many'"}, "id = 1", engine="spark")),
        (ConstraintViolation, lambda: table.update({"v": "v + 98"}, "id < 3", engine="spark")),
        (ConstraintViolation, lambda: table.update({"id": "NULL"}, "id = 1", engine="spark")),
        (InvalidArgument, lambda: table.update({"v": "1 / (v - 1)"}, "id = 1", engine="spark")),
        (SchemaMismatch, lambda: table.update({"v": "array(v)"}, engine="spark")),
        (InvalidArgument, merge("CAST(s.w AS INT)")),
        (SchemaMismatch, merge("s.w")),
        (ConstraintViolation, merge("1000")),
    ):
        with pytest.raises(kind):
            change()
    assert files(table) == before
    assert table.version() == version
    cast = table.merge(source, "t.id = s.id", engine="spark")
    cast.when_matched_update({"v": "CAST(s.w AS INT)"}).execute()
    assert (1, 7) in values(table, "id", "v")


def test_a_condition_that_answers_otherwise_every_time_is_refused(table: DeltaTable) -> None:
    big = pa.table({"id": range(5000), "v": ["x"] * 5000, "p": [0] * 5000})
    table.append(big)
    before = files(table)
    with pytest.raises(InvalidArgument, match="rand"):
        table.update({"v": "'y'"}, "rand() < 0.5", engine="spark")
    assert files(table) == before


@pytest.mark.classic
def test_an_update_by_a_udf_that_chooses_other_rows_the_second_time_is_refused(
    tmp_path: Path, spark: SparkSession
) -> None:
    from pyspark.sql import functions
    from pyspark.sql.types import BooleanType

    seen = str(tmp_path / "seen")

    def lower_half_first(number: int) -> bool:
        chosen = number >= 10 if Path(seen).exists() else number < 10
        if number == 19:
            Path(seen).touch()
        return chosen

    table = DeltaTable(str(tmp_path / "t"), must_exist=False)
    table.append(ROWS, properties=VECTORS)
    spark.udf.register("half", functions.udf(lower_half_first, BooleanType()).asNondeterministic())
    # As many rows are changed as were found, so that only their indexes show it.
    with pytest.raises(InvalidArgument, match="matched other rows"):
        table.update({"v": "'new'"}, "half(id)")
    assert texts(table) == {number: f"v{number}" for number in range(20)}


def test_a_name_of_both_sides_means_the_one_that_a_clause_sees(table: DeltaTable) -> None:
    source = pa.table({"id": [1, 50], "v": ["a", "b"], "p": [5, 6]})
    merge = table.merge(source, "t.id = s.id", engine="spark")
    merge.when_matched_update({"v": "s.v"}).when_not_matched_insert_all("v = 'b'")
    merge.when_not_matched_by_source_update({"v": "concat(v, id)"}, "p = 1 AND `id` > 15").execute()
    found = texts(table)
    assert (found[1], found[50], found[17], found[16]) == ("a", "b", "v1717", "v16")


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("transform(array(s.n), t -> t + 1)", [4]),
        ("transform(array(s.n), id -> id + t.n)", [4]),
        ("CAST(array(named_struct('t', s.n)) AS ARRAY<STRUCT<t: BIGINT>>).t", [3]),
        ("CAST(array(only) AS ARRAY<BIGINT>)", [7]),
        ("array((SELECT 1L))", [1]),
    ],
)
def test_variables_and_fields_in_expressions_of_a_merge_are_not_columns(
    tmp_path: Path, value: str, expected: list[int]
) -> None:
    target = DeltaTable.create(
        tmp_path / "t",
        [Column("id", "BIGINT"), Column("n", "BIGINT"), Column("a", "ARRAY<BIGINT>")],
    )
    target.append(pa.table({"id": [1, 2], "n": [1, 1]}))
    source = pa.table({"id": [1, 3], "n": [3, 3], "only": [7, 7]})
    merge = target.merge(source, "t.id = s.id", engine="spark").when_matched_update({"a": value})
    merge.when_not_matched_insert({"id": "id", "a": "transform(array(n), n -> n + id)"})
    merge.when_not_matched_by_source_update({"a": "transform(array(n), s -> s + id)"}).execute()
    assert values(target, "id", "a") == [(1, expected), (2, [3]), (3, [6])]


@pytest.mark.parametrize("by_source", [True, False])
def test_columns_of_a_merge_may_have_the_names_of_its_aliases(
    tmp_path: Path, by_source: bool
) -> None:
    point = pa.struct({"n": pa.int64()})
    rows = {"id": [1, 2], "n": [10, 20], "t": [5, 6], "s": pa.array([{"n": 7}, {"n": 8}], point)}
    target = DeltaTable(tmp_path / "t", must_exist=False)
    target.append(pa.table(rows))
    source = pa.table({"id": [1, 3], "n": [30, 40], "s": [50, 60], "only": [1, 1]})
    merge = target.merge(source, "t.id = s.id AND t.s.n = 7 AND s.s > t.t", engine="spark")
    merge.when_matched_update({"n": "s.n + t.s.n + s.s + only", "`t`": "t.t + t.n"})
    if by_source:
        merge.when_not_matched_by_source_update({"n": "n + t.t + t.s.n"}, condition="id = 2")
    merge.execute()
    changed = (2, 20 + 6 + 8, 6) if by_source else (2, 20, 6)
    assert values(target, "id", "n", "t") == [(1, 30 + 7 + 50 + 1, 15), changed]


def test_a_name_of_both_sides_of_a_merge_is_refused_inside_a_lambda(table: DeltaTable) -> None:
    merge = table.merge(ROWS, "t.id = s.id", engine="spark")
    with pytest.raises(InvalidArgument, match=r"write t\.p or s\.p"):
        merge.when_matched_update({"p": "transform(array(1L), x -> x + p)[0]"}).execute()


def test_a_merge_reads_only_files_that_may_match(tmp_path: Path, spark: SparkSession) -> None:
    table = DeltaTable(str(tmp_path / "t"), must_exist=False)
    for start in (0, 100, 200):
        day = dt.date(2024, 1, 1 + start // 100)
        part = pa.table({"id": range(start, start + 100), "day": [day] * 100})
        table.append(part, partition_by=["day"], properties=VECTORS)
    for gone in ("2024-01-01", "2024-01-03"):
        for each in Path(table.uri, f"day={gone}").iterdir():
            each.unlink()
    keyed = spark.range(150, 153).selectExpr("cast(id AS INT) AS id")
    result = table.merge(keyed, "t.id = s.id").when_matched_delete().execute()
    assert result.metrics["numTargetRowsDeleted"] == 3
    dated = spark.sql("SELECT DATE '2024-01-02' AS day, 160L AS id")
    merge = table.merge(dated, "t.day = s.day AND t.id <=> s.id").when_matched_delete()
    assert merge.execute().metrics["numTargetRowsDeleted"] == 1


def test_a_merge_numbers_the_rows_it_inserts_on_spark(tmp_path: Path) -> None:
    columns = [Column("key", "BIGINT", identity=Identity(start=10, step=-5)), Column("v", "STRING")]
    table = DeltaTable.create(str(tmp_path / "t"), columns)
    for name in ("ab", "cd"):
        source = pa.table({"v": list(name)})
        merge = table.merge(source, "t.v = s.v", engine="spark")
        merge.when_not_matched_insert({"v": "s.v"}).execute()
    numbers = {row["v"]: row["key"] for row in table.snapshot().scan().to_arrow().to_pylist()}
    assert len(set(numbers.values())) == 4
    assert all(each <= 10 and each % 5 == 0 for each in numbers.values())
    assert max(numbers["c"], numbers["d"]) < min(numbers["a"], numbers["b"])


@pytest.mark.parametrize("mine", ["delete", "update", "merge", "overwrite"])
def test_changes_of_different_rows_of_one_file_are_both_committed(
    table: DeltaTable, mine: str
) -> None:
    waiting = [5, 6]

    def rival(operation: str, path: str) -> None:
        if operation == "put_if_absent" and path.endswith(".json") and waiting:
            row = waiting.pop()
            DeltaTable(table.uri).update({"v": "'theirs'"}, f"id IN ({row}, {row - 2})")

    before = texts(table)
    racing = DeltaTable(table.uri, store=FaultyStore(table.store, before_call=rival))
    match mine:
        case "delete":
            racing.delete("id = 7", engine="spark", on_conflict="fail")
        case "update":
            racing.update({"v": "'mine'"}, "id = 7", engine="spark", on_conflict="fail")
        case "merge":
            source = pa.table({"id": [7], "v": ["mine"], "p": [1]})
            merge = racing.merge(source, "t.id = s.id", engine="spark", on_conflict="fail")
            merge.when_matched_update_all().when_not_matched_insert_all().execute()
        case "overwrite":
            new = pa.table({"id": [7], "v": ["mine"], "p": [1]})
            racing.overwrite(new, where="id = 7", engine="spark", on_conflict="fail")
    assert racing.version() == 3
    theirs = dict.fromkeys((3, 4, 5, 6), "theirs")
    expected = {**before, **theirs, 7: "mine"}
    if mine == "delete":
        del expected[7]
    assert texts(DeltaTable(table.uri)) == expected
