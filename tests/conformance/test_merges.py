"""Merging: which clause gets which row, and what is written for it."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping
from decimal import Decimal

import pyarrow as pa
import pytest

from dagster_delta import DeltaTable
from dagster_delta.errors import (
    ConstraintViolation,
    InvalidArgument,
    InvalidCast,
    SchemaMismatch,
    UnsupportedFeature,
)
from dagster_delta.evolution.table_definition import TableDefinition
from dagster_delta.protocol.schema import PrimitiveType, StructField
from dagster_delta.protocol.values.arrow_schema import from_arrow_schema
from tests.conformance.engines import Engine, refusal
from tests.sample_tables import FEED, SHAPES, Row, data, numbered

every_shape = pytest.mark.parametrize("shape", SHAPES)
# The first and the last shape: on Spark, a merge takes a second.
first_and_last = pytest.mark.examples(3, on_spark=True)
both_ways = pytest.mark.parametrize("shape", ["rewrite", "vectors"])


def fill(
    table: DeltaTable,
    shape: str = "rewrite",
    *parts: pa.Table,
    properties: Mapping[str, str] | None = None,
) -> DeltaTable:
    """A commit per part, by default of ten rows and of ten more."""
    own, partition_by = SHAPES[shape]
    for part in parts or (numbered(*range(10)), numbered(*range(10, 20))):
        table.append(part, partition_by=partition_by, properties=own | dict(properties or {}))
    return table


def texts(engine: Engine, table: DeltaTable) -> dict[int, str | None]:
    return dict(engine.tuples(table, "id", "v"))


@every_shape
@first_and_last
def test_an_upsert_updates_what_is_there_and_inserts_the_rest(
    shape: str, engine: Engine, table: DeltaTable
) -> None:
    fill(table, shape)
    source = engine.rows(data((3, "a", 1), (14, "b", 4), (30, "c", None)))
    merge = table.merge(source, "t.id = s.id").when_matched_update_all()
    result = merge.when_not_matched_insert_all().execute()
    expected: list[Row] = [(each, f"v{each}", each % 2) for each in range(20)]
    expected[3], expected[14] = (3, "a", 1), (14, "b", 4)
    assert engine.tuples(table) == [*expected, (30, "c", None)]
    assert engine.tuples(table, "id", where="p = 4 OR p IS NULL") == [(14,), (30,)]
    assert table.snapshot().num_records == 21
    assert result.version == table.version() == 2
    metrics = ("numTargetRowsUpdated", "numTargetRowsInserted", "numSourceRows")
    assert [result.metrics[each] for each in metrics] == [2, 1, 3]


@every_shape
@first_and_last
def test_every_row_gets_the_first_clause_whose_condition_holds(
    shape: str, engine: Engine, table: DeltaTable
) -> None:
    fill(table, shape)
    source = data(*((each, f"s{each}", each % 2) for each in (1, 2, 3, 4, 21, 22, 23)))
    result = (
        table.merge(engine.rows(source), "t.id = s.id")
        .when_matched_delete("s.id = 1")
        .when_matched_update({"v": "'first'"}, "t.id < 3")
        .when_matched_update({"v": "concat(t.v, s.v)"}, "s.id = 3 OR s.id = 1")
        .when_not_matched_insert({"id": "s.id", "v": "'low'", "p": "s.p"}, "s.id = 21")
        .when_not_matched_insert({"id": "id"}, "id < 23")
        .when_not_matched_by_source_update({"v": "concat(v, '!')"}, "t.id = 18")
        .when_not_matched_by_source_delete("id > 16")
        .when_not_matched_by_source_update({"t.v": "upper(t.v)"}, "id = 15")
        .execute()
    )
    expected: dict[int, str | None] = {each: f"v{each}" for each in range(17) if each != 1}
    expected |= {2: "first", 3: "v3s3", 21: "low", 22: None, 18: "v18!", 15: "V15"}
    assert texts(engine, table) == expected
    counts = {name: count for name, count in result.metrics.items() if "Rows" in name}
    assert counts["numTargetRowsMatchedDeleted"] == 1
    assert counts["numTargetRowsMatchedUpdated"] == 2
    assert counts["numTargetRowsNotMatchedBySourceDeleted"] == 2
    assert counts["numTargetRowsNotMatchedBySourceUpdated"] == 2
    assert counts["numTargetRowsInserted"] == 2
    assert counts["numTargetRowsDeleted"] == 3
    assert counts["numTargetRowsUpdated"] == 4


@both_ways
def test_the_feed_gets_every_change(shape: str, engine: Engine, table: DeltaTable) -> None:
    fill(table, shape, properties=FEED)
    (
        table.merge(engine.rows(data((3, "a", 1), (4, "b", 0), (30, "c", 0))), "t.id = s.id")
        .when_matched_delete("s.id = 4")
        .when_matched_update_all()
        .when_not_matched_insert_all()
        .when_not_matched_by_source_update({"v": "'z'"}, "t.id = 11")
        .when_not_matched_by_source_delete("t.id = 12")
        .execute()
    )
    assert engine.changes(table, 2, "id", "v") == [
        ("delete", 4, "v4"),
        ("delete", 12, "v12"),
        ("insert", 30, "c"),
        ("update_postimage", 3, "a"),
        ("update_postimage", 11, "z"),
        ("update_preimage", 3, "v3"),
        ("update_preimage", 11, "v11"),
    ]


@both_ways
def test_null_keys_match_nothing_but_by_a_null_safe_comparison(
    shape: str, engine: Engine, table: DeltaTable
) -> None:
    fill(table, shape, data((None, "null", 0), (1, "one", 0)))
    source = engine.rows(data((None, "other", 0)))
    assert table.merge(source, "t.id = s.id").when_matched_delete().execute().skipped
    table.merge(source, "t.id = s.id").when_not_matched_insert_all().execute()
    assert len(engine.tuples(table)) == 3
    table.merge(source, "t.id <=> s.id").when_matched_update({"v": "s.v"}).execute()
    assert engine.tuples(table, "v") == [("one",), ("other",), ("other",)]


def test_several_source_rows_for_one_row_are_refused_with_their_keys(
    engine: Engine, table: DeltaTable
) -> None:
    fill(table, "vectors")
    source = engine.rows(data((3, "a", 1), (3, "b", 1), (4, "c", 0)))
    error = refusal(
        ConstraintViolation,
        "several rows of the source",
        table,
        lambda: table.merge(source, "t.id = s.id").when_matched_update_all().execute(),
    )
    assert error.examples == ("{'id': 3}",)
    # They may delete it, and those that no clause wants are not ambiguous.
    table.merge(source, "t.id = s.id").when_matched_update_all("s.v = 'b'").execute()
    assert texts(engine, table)[3] == "b"
    result = table.merge(source, "t.id = s.id").when_matched_delete().execute()
    assert result.metrics["numTargetRowsDeleted"] == 2


def test_deleted_rows_match_nothing(engine: Engine, table: DeltaTable) -> None:
    fill(table, "vectors")
    table.delete("id = 3", engine=engine.name)
    source = engine.rows(data((3, "again", 1)))
    merge = table.merge(source, "t.id = s.id").when_matched_delete().when_not_matched_insert_all()
    merge.execute()
    assert texts(engine, table)[3] == "again"
    table.merge(source, "t.id = s.id").when_not_matched_by_source_delete().execute()
    assert texts(engine, table) == {3: "again"}


def test_a_merge_that_changes_nothing_makes_no_version(engine: Engine, table: DeltaTable) -> None:
    fill(table, "vectors")
    for source in (data(), data((500, "x", 0)), data((3, "x", 0))):
        merge = table.merge(engine.rows(source), "t.id = s.id")
        assert merge.when_matched_delete("t.v = 'nothing'").execute().skipped
    assert table.version() == 1


def test_a_condition_without_keys_pairs_all_rows(engine: Engine, table: DeltaTable) -> None:
    fill(table)
    source = engine.rows(data((8, "x", 0)))
    merge = table.merge(source, "t.id > s.id + 4 AND t.p = s.p")
    merge.when_matched_update({"v": "concat(s.v, cast(t.id as string))"}).execute()
    changed = {key for key, value in texts(engine, table).items() if (value or "")[0] == "x"}
    assert changed == {14, 16, 18}


def test_keys_of_several_columns_and_of_other_types(engine: Engine, table: DeltaTable) -> None:
    fill(table)
    source = data((3, "v3", 1), (4, "no", 0), (5, "v5", 0))
    merge = table.merge(engine.rows(source), "t.id = s.id AND s.v = t.v AND t.p = s.p")
    merge.when_matched_delete().when_not_matched_insert({"id": "s.id + 100", "v": "'new'"})
    merge.execute()
    found = texts(engine, table)
    assert 3 not in found
    assert {4, 5, 104, 105} <= set(found)
    keyed = pa.table({"k": ["7", "08", None], "w": ["a", "b", "c"]})
    merge = table.merge(engine.rows(keyed), "t.id = s.k").when_matched_update({"v": "w"})
    merge.execute()
    assert [texts(engine, table)[each] for each in (7, 8)] == ["a", "b"]


def test_nested_columns_and_other_aliases(engine: Engine, table: DeltaTable) -> None:
    kind = pa.struct([("a", pa.int64()), ("b", pa.string())])

    def nested(ids: list[int], structs: list[object], lists: list[object]) -> pa.Table:
        return pa.table(
            {"id": ids, "s": pa.array(structs, kind), "xs": pa.array(lists, pa.list_(pa.int64()))}
        )

    table.append(
        nested([1, 2, 3], [{"a": 1, "b": "x"}, None, {"a": 3, "b": "z"}], [[1], None, [2, None]])
    )
    source = nested([2, 3, 4], [{"a": 20, "b": "new"}, {"a": 3, "b": "y"}, None], [[9], [8], [7]])
    (
        table.merge(engine.rows(source), "old.id = New.id", source_alias="new", target_alias="old")
        .when_matched_update({"s.b": "new.s.b", "xs": "new.xs"}, "old.s.a = new.s.a")
        .when_matched_update_all("old.s IS NULL")
        .when_not_matched_insert_all()
        .execute()
    )
    assert engine.tuples(table) == [
        (1, {"a": 1, "b": "x"}, [1]),
        (2, {"a": 20, "b": "new"}, [9]),
        (3, {"a": 3, "b": "y"}, [8]),
        (4, None, [7]),
    ]


def test_a_value_is_computed_only_where_its_clause_applies(
    engine: Engine, table: DeltaTable
) -> None:
    fill(table, "vectors")
    merge = table.merge(engine.rows(pa.table({"id": [0, 1, 90]})), "t.id = s.id")
    merge.when_matched_update({"p": "100 / t.id"}, "t.id > 0")
    merge.when_not_matched_insert({"id": "s.id"}).execute()
    assert engine.tuples(table, "id", "p", where="id < 2 OR id = 90") == [
        (0, 0),
        (1, 100),
        (90, None),
    ]


def test_new_columns_of_the_source_merge_into_the_table(engine: Engine, table: DeltaTable) -> None:
    fill(table, "vectors", properties=FEED)
    source = numbered(19, 20).append_column("w", pa.array([1, 2]))
    refusal(
        SchemaMismatch,
        "no column w",
        table,
        lambda: (
            table.merge(engine.rows(source), "t.id = s.id")
            .when_matched_update({"w": "s.w"})
            .execute()
        ),
    )
    merge = table.merge(engine.rows(source), "t.id = s.id", schema_mode="merge")
    merge.when_matched_update_all().when_not_matched_insert_all().execute()
    assert engine.tuples(table, "id", "w", where="id > 17") == [(18, None), (19, 1), (20, 2)]
    assert engine.changes(table, 2, "id", "w") == [
        ("insert", 20, 2),
        ("update_postimage", 19, 1),
        ("update_preimage", 19, None),
    ]


def test_an_append_only_table_takes_inserts_alone(engine: Engine, table: DeltaTable) -> None:
    fill(table, properties={"delta.appendOnly": "true"})
    source = engine.rows(data((3, "a", 1), (30, "b", 0)))
    refusal(
        UnsupportedFeature,
        "append-only",
        table,
        lambda: table.merge(source, "t.id = s.id").when_matched_delete().execute(),
    )
    table.merge(source, "t.id = s.id").when_not_matched_insert_all().execute()
    assert texts(engine, table)[30] == "b"


DAY = dt.date(2026, 1, 1)
TYPED = pa.schema(
    [("id", pa.int64()), ("qty", pa.int64()), ("day", pa.date32()), ("price", pa.decimal128(5, 2))]
)


@pytest.mark.parametrize("clauses", ["all", "named"])
def test_a_strict_merge_refuses_what_would_lose_a_part_as_an_append_does(
    clauses: str, engine: Engine, table: DeltaTable
) -> None:
    row = {"id": 1.0, "qty": 2.0, "day": dt.datetime(2026, 1, 2), "price": 1.25}
    table.append(pa.table({"id": [1], "qty": [1], "day": [DAY], "price": [None]}, TYPED))

    def merge(**changed: object) -> None:
        source = engine.rows(pa.Table.from_pylist([{**row, **changed}]))
        merge = table.merge(source, "t.id = s.id")
        if clauses == "all":
            merge.when_matched_update_all().when_not_matched_insert_all().execute()
            return
        values = {name: f"s.{name}" for name in TYPED.names}
        merge.when_matched_update(values).when_not_matched_insert(values).execute()

    lossy: tuple[dict[str, object], ...]
    lossy = ({"id": 2.7}, {"qty": 2.9}, {"day": dt.datetime(2026, 11, 1, 23)}, {"price": 1.239})
    for changed in lossy:
        with pytest.raises(InvalidCast):
            merge(**changed)
    for name, text in (("day", "2026-11-01"), ("qty", "7")):
        with pytest.raises(SchemaMismatch, match=f"column {name} of type"):
            merge(**{name: text})
    assert table.refresh().version == 0
    merge()
    merge(id=2.0, qty=None)
    price = Decimal("1.25")
    assert engine.tuples(table) == [
        (1, 2, dt.date(2026, 1, 2), price),
        (2, None, dt.date(2026, 1, 2), price),
    ]


def test_computed_values_of_a_merge_are_stored_as_spark_stores_them(
    engine: Engine, table: DeltaTable
) -> None:
    table.append(pa.table({"id": [1], "qty": [1]}))
    source = engine.rows(pa.table({"id": [1], "qty": [2.9]}))
    table.merge(source, "t.id = s.id").when_matched_update({"qty": "s.qty * 1"}).execute()
    assert engine.tuples(table) == [(1, 2)]


@pytest.mark.parametrize("is_new", [True, False], ids=["new table", "new key"])
def test_a_merge_with_unique_keys_refuses_several_new_rows_of_one_key(
    is_new: bool, engine: Engine, table: DeltaTable
) -> None:
    if not is_new:
        table.append(pa.table({"id": [7], "v": ["seven"]}))

    def merge(on: str, *ids: int | None) -> None:
        rows = pa.table({"id": pa.array(ids, pa.int64()), "v": [str(i) for i in range(len(ids))]})
        creates = TableDefinition(from_arrow_schema(rows.schema))
        merge = table.merge(engine.rows(rows), on, creates=creates)
        merge.with_unique_keys().when_matched_update_all().when_not_matched_insert_all().execute()

    for on, ids in (("t.id = s.id", (1, 2, 1)), ("t.id <=> s.id", (None, 2, None))):
        with pytest.raises(ConstraintViolation, match="the same key, and the table none") as caught:
            merge(on, *ids)
        assert caught.value.examples == (repr((ids[0],)),)
    # A null equals nothing.
    merge("t.id = s.id", 1, 2, None, None)
    assert len(engine.tuples(table)) == 4 + (not is_new)


@pytest.mark.parametrize("on", ["t.code = s.code", "s.key <=> t.code", "t.code IN (s.code)"])
def test_a_merge_pads_texts_of_its_source_that_are_compared_with_a_char_column(
    on: str, engine: Engine, table: DeltaTable
) -> None:
    text = PrimitiveType("string")
    code = StructField("code", text, metadata={"__CHAR_VARCHAR_TYPE_STRING": "char(5)"})
    fields = [code, StructField("k", PrimitiveType("long")), StructField("note", text)]
    created = DeltaTable.create(table.uri, fields)
    for k in (1, 2):
        rows = {"code": ["ab", "cd   ", "abcde"], "k": [k] * 3, "note": ["x"] * 3}
        source = engine.rows(pa.table({**rows, "key": rows["code"]}))
        merge = created.merge(source, on).when_matched_update_all("s.code <> 'cd' OR s.k > 1")
        merge.when_not_matched_insert_all().execute()
    expected = [("ab   ", 2, "x"), ("abcde", 2, "x"), ("cd   ", 2, "x")]
    assert engine.tuples(created) == expected
    source = engine.rows(pa.table({"code": ["ab"]}))
    with pytest.raises(InvalidArgument, match=r"rtrim\(s.code\)"):
        created.merge(source, "t.code = s.code").when_matched_update({"note": "s.code"}).execute()
    merge = created.merge(source, "t.code = s.code")
    merge.when_matched_update({"note": "rtrim(s.code)"}).execute()
    assert ("ab   ", "ab") in engine.tuples(created, "code", "note")


@pytest.mark.parametrize(
    ("condition", "value"),
    [
        (None, "concat(s.code, '-x')"),
        (None, "CASE WHEN s.code = t.note THEN 'same' END"),
        ("length(s.code) = 2", "'new'"),
        ("s.code LIKE 'a_'", "'new'"),
        ("t.note = s.code", "'new'"),
    ],
)
def test_a_merge_computes_nothing_with_the_padding_of_a_text_that_it_compares(
    condition: str | None, value: str, engine: Engine, table: DeltaTable
) -> None:
    text = PrimitiveType("string")
    code = StructField("code", text, metadata={"__CHAR_VARCHAR_TYPE_STRING": "char(5)"})
    created = DeltaTable.create(table.uri, [code, StructField("note", text)])
    created.append(pa.table({"code": ["ab"], "note": ["ab"]}))
    source = pa.table({"code": ["ab"]})

    def update(value: str, condition: str | None) -> None:
        merge = created.merge(engine.rows(source), "t.code = s.code AND s.code IS NOT NULL")
        merge.when_matched_update({"note": value}, condition).execute()

    with pytest.raises(InvalidArgument, match=r"rtrim\(s.code\)"):
        update(value, condition)
    trimmed = condition and condition.replace("s.code", "rtrim(s.code)")
    update(value.replace("s.code", "rtrim(s.code)"), trimmed)
    assert engine.tuples(created, "note") in ([("ab-x",)], [("same",)], [("new",)])
