"""Deleting and updating rows, by rewriting files and by deletion vectors, with a change feed."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping
from decimal import Decimal

import pyarrow as pa
import pytest

from dagster_delta import DeltaTable
from dagster_delta.errors import UnsupportedFeature
from tests.conformance.engines import Engine, files_of, refusal
from tests.sample_tables import FEED, VECTORS, numbered
from tests.table_rows import Row

both_ways = pytest.mark.parametrize("properties", [{}, VECTORS], ids=["rewrite", "vectors"])


def fill(
    table: DeltaTable, properties: Mapping[str, str], partition_by: tuple[str, ...] = ()
) -> DeltaTable:
    """Ids 0 to 19: a file for each ten of them, and for each partition."""
    for part in (range(10), range(10, 20)):
        table.append(numbered(*part), partition_by=partition_by, properties=properties)
    return table


def ids(engine: Engine, table: DeltaTable) -> list[int]:
    return [each for (each,) in engine.tuples(table, "id")]


@both_ways
def test_delete_removes_the_rows_that_match(
    properties: dict[str, str], engine: Engine, table: DeltaTable
) -> None:
    fill(table, properties | FEED)
    result = table.delete("id % 5 = 3", engine=engine.name)
    assert ids(engine, table) == [each for each in range(20) if each % 5 != 3]
    assert table.snapshot().num_records == 16
    assert result.version == 2
    assert result.metrics["numDeletedRows"] == 4
    assert len(engine.tuples(table, version=1)) == 20
    assert engine.changes(table, 2, "id") == [("delete", each) for each in (3, 8, 13, 18)]


@both_ways
def test_a_second_delete_adds_to_the_first(
    properties: dict[str, str], engine: Engine, table: DeltaTable
) -> None:
    fill(table, properties)
    for each in (3, 4, 13, 4):
        table.delete(f"id = {each}", engine=engine.name)
    assert ids(engine, table) == [each for each in range(20) if each not in (3, 4, 13)]
    # The row that was gone already made no version.
    assert table.version() == 4


def test_a_column_may_have_the_name_of_a_value_of_the_session(
    engine: Engine, table: DeltaTable
) -> None:
    """Spark takes `user` or `current_date` for one where there is no such column alone."""
    rows = {"user": [1, 2, 3, 4], "Current_Date": ["a", "b", "c", "d"]}
    table.append(engine.rows(pa.table(rows)))
    table.update({"user": "user + 10"}, "USER = 1 AND current_date = 'a'", engine=engine.name)
    table.delete("`user` = 2 OR user IN (3)", engine=engine.name)
    source = engine.rows(pa.table({"user": [4, 5], "Current_Date": ["new", "new"]}))
    merge = table.merge(source, "t.user = s.user", engine=engine.name)
    merge.when_matched_update_all().when_not_matched_insert_all().execute()
    assert engine.tuples(table) == [(4, "new"), (5, "new"), (11, "a")]


def test_a_change_without_matches_makes_no_version(engine: Engine, table: DeltaTable) -> None:
    before = files_of(fill(table, VECTORS))
    for where in ("id = 1000", "id % 50 = 49", "v = 'nothing'"):
        result = table.delete(where, engine=engine.name)
        assert result.skipped
        assert result.metrics["numDeletedRows"] == 0
    assert table.update({"v": "'x'"}, "id % 50 = 49", engine=engine.name).skipped
    assert table.version() == 1
    assert files_of(table) == before


@both_ways
def test_a_file_that_loses_all_rows_is_dropped_and_not_written(
    properties: dict[str, str], engine: Engine, table: DeltaTable
) -> None:
    fill(table, properties)
    table.delete("v < 'v15' AND id > 9", engine=engine.name)
    table.delete("v >= 'v15' AND id > 9", engine=engine.name)
    assert ids(engine, table) == list(range(10))
    assert table.snapshot().num_files == 1
    assert table.delete(engine=engine.name).metrics["numDeletedRows"] == 10
    assert table.snapshot().num_files == 0


def test_copy_on_write_writes_only_files_with_matches_again(
    engine: Engine, table: DeltaTable
) -> None:
    fill(table, {})
    first, second = table.snapshot().files()["path"].to_pylist()
    result = table.delete("id = 12", engine=engine.name)
    left = table.snapshot().files()["path"].to_pylist()
    assert first in left
    assert second not in left
    assert result.metrics["numCopiedRows"] == 9
    assert (result.metrics["numAddedFiles"], result.metrics["numRemovedFiles"]) == (1, 1)


@both_ways
def test_rows_for_which_the_predicate_is_null_stay(
    properties: dict[str, str], engine: Engine, table: DeltaTable
) -> None:
    table.append(pa.table({"id": [1, 2, 3], "v": ["a", None, "b"]}), properties=properties)
    table.delete("v <> 'a'", engine=engine.name)
    assert ids(engine, table) == [1, 2]


@both_ways
def test_update_changes_the_rows_that_match(
    properties: dict[str, str], engine: Engine, table: DeltaTable
) -> None:
    fill(table, properties | FEED)
    result = table.update(
        {"V": "concat(v, '!')", "p": "p + 10"}, "id IN (3, 14)", engine=engine.name
    )
    found: list[Row] = [(n, f"v{n}", n % 2) for n in range(20)]
    found[3], found[14] = (3, "v3!", 11), (14, "v14!", 10)
    assert engine.tuples(table) == found
    assert result.metrics["numUpdatedRows"] == 2
    assert table.snapshot().num_records == 20
    assert engine.changes(table, 2, "id", "v") == [
        ("update_postimage", 3, "v3!"),
        ("update_postimage", 14, "v14!"),
        ("update_preimage", 3, "v3"),
        ("update_preimage", 14, "v14"),
    ]


@both_ways
def test_values_are_computed_from_the_row_as_it_was_and_deleted_rows_are_not_seen(
    properties: dict[str, str], engine: Engine, table: DeltaTable
) -> None:
    table.append(numbered(0, 1, 2, 4), properties=properties)
    table.delete("id = 0", engine=engine.name)
    table.update({"id": "CAST(p AS BIGINT)", "p": "CAST(4 / id AS INT)"}, engine=engine.name)
    assert engine.tuples(table, "v", "id", "p") == [("v1", 1, 4), ("v2", 0, 2), ("v4", 0, 1)]


@both_ways
def test_rows_move_to_the_partition_they_now_belong_to(
    properties: dict[str, str], engine: Engine, table: DeltaTable
) -> None:
    fill(table, properties, ("p",))
    table.update({"p": "NULL"}, "id = 4", engine=engine.name)
    table.update({"p": "p + 1"}, "p IS NOT NULL AND id > 15", engine=engine.name)
    assert engine.tuples(table, "id", where="p IS NULL") == [(4,)]
    assert engine.tuples(table, "id", where="p = 2") == [(17,), (19,)]
    assert engine.tuples(table, "id", where="p = 1 AND id > 12") == [(13,), (15,), (16,), (18,)]
    table.delete("p = 1", engine=engine.name)
    assert ids(engine, table) == [0, 2, 4, 6, 8, 10, 12, 14, 17, 19]


@both_ways
@pytest.mark.parametrize("mapping", ["name", "id"])
@pytest.mark.examples(3, on_spark=True)
def test_mapped_columns_change_and_keep_their_feed(
    mapping: str, properties: dict[str, str], engine: Engine, table: DeltaTable
) -> None:
    fill(table, properties | FEED | {"delta.columnMapping.mode": mapping}, ("p",))
    table.alter("RENAME COLUMN v TO `a b`", enable_features=True)
    table.update({"`a b`": "concat(`a b`, '!')"}, "id = 4", engine=engine.name)
    table.delete("`a b` = 'v5'", engine=engine.name)
    assert engine.tuples(table, "a b", where="id BETWEEN 4 AND 6") == [("v4!",), ("v6",)]
    assert engine.changes(table, 3, "id", "a b") == [
        ("delete", 5, "v5"),
        ("update_postimage", 4, "v4!"),
        ("update_preimage", 4, "v4"),
    ]


def test_nested_fields_are_updated(engine: Engine, table: DeltaTable) -> None:
    struct = pa.struct([("a", pa.int32()), ("b", pa.struct([("c", pa.string())]))])
    data = pa.table(
        {
            "id": [1, 2],
            "s": pa.array([{"a": 1, "b": {"c": "x"}}, None], struct),
            "other": pa.array([[1], None], pa.list_(pa.int64())),
            "spare": pa.array([None, [2]], pa.list_(pa.int64())),
        }
    )
    table.append(data)
    table.update({"s.B.c": "'new'", "s.a": "id + 5", "other": "spare"}, engine=engine.name)
    assert engine.tuples(table) == [
        (1, {"a": 6, "b": {"c": "new"}}, None, None),
        (2, {"a": 7, "b": {"c": "new"}}, [2], [2]),
    ]


def test_values_are_cast_to_the_type_of_their_column(engine: Engine, table: DeltaTable) -> None:
    data = pa.table(
        {
            "i": pa.array([1], pa.int32()),
            "t": pa.array([1], pa.int8()),
            "d": [dt.date(2020, 1, 1)],
            "s": ["a"],
            "u": ["b"],
            "n": pa.array([Decimal(1)], pa.decimal128(20, 2)),
        }
    )
    table.append(data)
    values = {"i": "7.9D", "t": "i + 1", "d": "'2021-05-05'", "s": "i", "u": "d", "n": "12.345"}
    table.update(values, engine=engine.name)
    assert engine.tuples(table) == [
        (7, 2, dt.date(2021, 5, 5), "1", "2020-01-01", Decimal("12.35"))
    ]


def test_an_application_changes_rows_once(engine: Engine, table: DeltaTable) -> None:
    fill(table, VECTORS)
    change = engine.name
    assert not table.delete("id = 100", engine=change, idempotency=("job", 1)).skipped
    table.append(pa.table({"id": [100], "v": ["late"], "p": pa.array([0], pa.int32())}))
    assert table.delete("id = 100", engine=change, idempotency=("job", 1)).skipped
    assert not table.update({"v": "'x'"}, "id = 1", engine=change, idempotency=("job", 2)).skipped
    assert table.update({"v": "'y'"}, "id = 1", engine=change, idempotency=("job", 2)).skipped
    assert engine.tuples(table, "v", where="id IN (1, 100)") == [("late",), ("x",)]


def test_files_of_names_that_are_misread_are_changed_as_well(
    engine: Engine, table: DeltaTable
) -> None:
    data = pa.table({"id": range(6), "p": ["a:b", "_x", "plain"] * 2})
    table.append(data, partition_by=["p"], properties=VECTORS)
    table.delete("id = 0", engine=engine.name)
    table.update({"id": "id + 100"}, "id IN (1, 3)", engine=engine.name)
    assert engine.tuples(table, "id", "p") == [
        (2, "plain"),
        (4, "_x"),
        (5, "plain"),
        (101, "_x"),
        (103, "a:b"),
    ]


@both_ways
def test_an_append_only_table_is_refused(
    properties: dict[str, str], engine: Engine, table: DeltaTable
) -> None:
    fill(table, properties | {"delta.appendOnly": "true"})
    for change in (
        lambda: table.delete("id = 1000", engine=engine.name),
        lambda: table.update({"v": "'x'"}, "id = 1000", engine=engine.name),
    ):
        refusal(UnsupportedFeature, "append-only", table, change)


_INFINITY, _NAN = float("inf"), float("nan")
UNUSUAL = pa.table(
    {
        "id": [1, 2, 3, 4, 5],
        "x": [_INFINITY, _NAN, -_INFINITY, 1.0, None],
        "f": pa.array([_NAN, _NAN, _NAN, _NAN, _NAN], pa.float32()),
        "d": pa.array([Decimal(number) for number in ("1E-18", 0, "-1E-18", 7, 8)], pa.decimal128(38, 18)),
        "s": [letter * 5000 for letter in "abcde"],
        "b": [True, True, None, True, True],
    }
)  # fmt: skip
CONDITIONS: dict[str, list[int]] = {
    "x < 2": [3, 4],
    "x > 2": [1, 2],
    "x = double('NaN')": [2],
    "isnan(x)": [2],
    "x >= double('Infinity')": [1, 2],
    "x <= double('-Infinity')": [3],
    "x IN (double('Infinity'), 1)": [1, 4],
    "f > 1": [1, 2, 3, 4, 5],
    "f < 1": [],
    "f <=> double('NaN')": [1, 2, 3, 4, 5],
    "d < 0.000000000000000001": [2, 3],
    "d = 0.000000000000000001": [1],
    "s > 'd'": [4, 5],
    f"s <= '{'b' * 5000}'": [1, 2],
    "b": [1, 2, 4, 5],
    "NOT b": [],
    "b IN (true, false)": [1, 2, 4, 5],
    "b IS NULL": [3],
}


@both_ways
@pytest.mark.parametrize("is_split", [False, True], ids=["one file", "files"])
def test_filters_and_deletes_find_values_with_unusual_bounds(
    properties: dict[str, str], is_split: bool, engine: Engine, table: DeltaTable
) -> None:
    step = 1 if is_split else 5
    for start in range(0, 5, step):
        table.append(engine.rows(UNUSUAL.slice(start, step)), properties=properties)
    for where, expected in CONDITIONS.items():
        assert engine.tuples(table, "id", where=where) == [(each,) for each in expected], where
    table.checkpoint()
    table = DeltaTable(table.uri)
    for where, expected in CONDITIONS.items():
        assert table.snapshot().scan(where=where).count() == len(expected), where
    table.delete("x > 2 OR d < 0", engine=engine.name)
    assert ids(engine, table) == [4, 5]
