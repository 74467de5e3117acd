"""Columns that data need not bring: computed, numbered, defaulted, on the embedded engine."""

from __future__ import annotations

import datetime as dt
import shutil
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from dagster_delta import Column, DeltaTable, Identity
from dagster_delta.errors import (
    ConstraintViolation,
    InvalidArgument,
    MetadataChanged,
    SchemaMismatch,
    UnsupportedExpression,
)
from dagster_delta.storage.memory_store import MemoryStore
from tests.sample_tables import ORDERS, moments, noon
from tests.table_rows import stored_tuples


def create(
    *columns: Column, partition_by: tuple[str, ...] = (), properties: dict[str, str] | None = None
) -> DeltaTable:
    store = MemoryStore()
    return DeltaTable.create(
        store.location.uri, columns, partition_by=partition_by, properties=properties, store=store
    )


def orders(**properties: str) -> DeltaTable:
    table = create(*ORDERS, partition_by=("day",), properties=properties)
    table.append(moments(1, 2))
    return table


def mark(table: DeltaTable, column: str = "id") -> object:
    return table.schema().field(column).metadata.get("delta.identity.highWaterMark")


def test_an_append_fills_every_column_that_the_data_lack() -> None:
    table = orders()
    first, second = dt.date(2024, 1, 1), dt.date(2024, 1, 2)
    assert stored_tuples(table) == [(10, noon(1), first, "new", 3), (20, noon(2), second, "new", 3)]
    assert mark(table) == 20
    table.append(moments(3, state=["paid"], size=[4]))
    assert stored_tuples(table)[-1] == (30, noon(3), dt.date(2024, 1, 3), "paid", 4)
    assert [dict(each) for each in table.snapshot().files()["partition_values"].to_pylist()] == [
        {"day": "2024-01-01"},
        {"day": "2024-01-02"},
        {"day": "2024-01-03"},
    ]


def test_a_generated_column_that_the_data_bring_is_verified() -> None:
    table = orders()
    table.append(moments(3, day=[dt.date(2024, 1, 3)]))
    with pytest.raises(ConstraintViolation, match="GENERATED day") as caught:
        table.append(moments(3, day=[dt.date(2024, 1, 4)]))
    assert "2024, 1, 4" in caught.value.examples[0]
    # <=>: null is right where the expression is null, and wrong where it is not.
    with pytest.raises(ConstraintViolation, match="GENERATED day"):
        table.append(moments(3, day=pa.nulls(1, pa.date32())))
    table.append(pa.table({"at": pa.nulls(1, pa.timestamp("us", "UTC")), "day": pa.nulls(1)}))
    assert len(stored_tuples(table, "state")) == 4
    assert mark(table) == 40


@pytest.mark.parametrize(
    ("data_type", "sql", "value"),
    [
        ("DECIMAL(10,2)", "1.5", "1.50"),
        ("DATE", "DATE '2020-02-29'", "2020-02-29"),
        ("BIGINT", "-1 -- none", "-1"),
        ("STRING", "NULL", "None"),
        ("BINARY", "X'00ff'", r"b'\x00\xff'"),
        ("DOUBLE", "1", "1.0"),
    ],
)
def test_a_default_is_cast_to_its_column(data_type: str, sql: str, value: str) -> None:
    table = create(Column("a", "INT"), Column("c", data_type, default=sql))
    table.append(pa.table({"a": [1, 2]}))
    assert [str(each) for (each,) in stored_tuples(table, "c")] == [value, value]


def test_the_time_of_a_default_is_that_of_the_write() -> None:
    table = create(
        Column("a", "INT"),
        Column("at", "TIMESTAMP", default="current_timestamp()"),
        Column("day", "DATE", default="CURRENT_DATE"),
    )
    before = dt.datetime.now(dt.UTC)
    table.append(pa.table({"a": list(range(200_000))}))
    after = dt.datetime.now(dt.UTC)
    found = table.snapshot().scan().to_arrow()
    (at,) = found["at"].unique().to_pylist()
    assert before <= at <= after
    assert found["day"].unique().to_pylist() in ([before.date()], [after.date()])


def test_an_overwrite_may_drop_what_was_computed() -> None:
    table = orders()
    table.overwrite(pa.table({"id": [1], "x": [2]}), schema_mode="overwrite", partition_by=[])
    assert [dict(each.metadata) for each in table.schema()] == [{}, {}]


def test_new_columns_leave_the_computed_ones_alone() -> None:
    table = orders(**{"delta.enableTypeWidening": "true"})
    table.append(moments(3, size=pa.array([3], pa.int64()), extra=[1]), schema_mode="merge")
    assert str(table.schema().field("size").data_type) == "integer"
    assert stored_tuples(table, "id", "size", "extra")[-1] == (30, 3, 1)


def test_a_table_partitioned_by_an_identity_column_is_refused() -> None:
    columns = (Column("id", "BIGINT", identity=Identity()), Column("v", "INT"))
    with pytest.raises(InvalidArgument, match="identity"):
        create(*columns, partition_by=("id",))


def test_values_for_an_identity_column_are_refused_unless_it_takes_them() -> None:
    with pytest.raises(SchemaMismatch, match="GENERATED ALWAYS"):
        orders().append(moments(1, id=[7]))
    table = create(
        Column("id", "BIGINT", identity=Identity(allow_explicit_insert=True)), Column("a", "INT")
    )
    table.append(pa.table({"id": [7], "a": [0]}))
    assert mark(table) is None
    table.append(pa.table({"a": [1, 2]}))
    assert stored_tuples(table) == [(1, 1), (2, 2), (7, 0)]


def test_a_write_without_rows_gives_out_nothing() -> None:
    table = orders()
    table.append(moments())
    assert mark(table) == 20
    table.append(moments(3))
    assert stored_tuples(table, "id")[-1] == (30,)


def test_a_sequence_that_has_come_to_its_end_is_refused() -> None:
    table = create(Column("id", "BIGINT", identity=Identity(start=2**63 - 3)), Column("a", "INT"))
    table.append(pa.table({"a": [1, 2]}))
    with pytest.raises(InvalidArgument, match="64-bit"):
        table.append(pa.table({"a": [3, 4]}))
    assert mark(table) == 2**63 - 2
    assert len(stored_tuples(table)) == 2


def test_two_that_number_rows_at_once_never_give_out_one_value_twice() -> None:
    table = orders()
    one, other = (DeltaTable("", store=table.store) for _ in range(2))

    def meanwhile() -> Any:
        yield moments(3).to_batches()[0]
        other.append(moments(4))

    schema = moments(3).schema
    with pytest.raises(MetadataChanged, match="identity"):
        one.append(pa.RecordBatchReader.from_batches(schema, meanwhile()))
    assert stored_tuples(other, "id") == [(10,), (20,), (30,)]
    one.append(moments(5))
    assert stored_tuples(one, "id") == [(10,), (20,), (30,), (40,)]


def test_who_numbers_nothing_lands_after_who_does() -> None:
    table = create(
        Column("id", "BIGINT", identity=Identity(allow_explicit_insert=True)), Column("a", "INT")
    )
    other = DeltaTable("", store=table.store)

    def meanwhile() -> Any:
        yield from pa.table({"id": [100], "a": pa.array([0], pa.int32())}).to_batches()
        other.append(pa.table({"a": [1]}))

    schema = pa.schema([("id", pa.int64()), ("a", pa.int32())])
    table.append(pa.RecordBatchReader.from_batches(schema, meanwhile()))
    assert stored_tuples(table) == [(1, 1), (100, 0)]
    assert mark(table) == 1


@pytest.mark.parametrize("vectors", ["false", "true"])
def test_an_update_computes_generated_columns_anew(vectors: str) -> None:
    table = orders(**{"delta.enableDeletionVectors": vectors, "delta.enableChangeDataFeed": "true"})
    table.update({"at": "TIMESTAMP '2024-03-01 00:00:00Z'"}, "id = 20")
    assert stored_tuples(table, "id", "day", "size") == [
        (10, dt.date(2024, 1, 1), 3),
        (20, dt.date(2024, 3, 1), 3),
    ]
    changes = table.changes(starting_version=table.version()).to_arrow().to_pylist()
    assert {(each["_change_type"], each["day"].month) for each in changes} == {
        ("update_preimage", 1),
        ("update_postimage", 3),
    }
    table.update({"state": "'paid'"})
    assert stored_tuples(table, "state", "size") == [("paid", 4), ("paid", 4)]


def test_an_update_may_set_a_generated_column_to_what_it_is() -> None:
    table = orders()
    table.update({"state": "'paid'", "size": "4"}, "id = 10")
    with pytest.raises(ConstraintViolation, match="GENERATED size"):
        table.update({"size": "5"}, "id = 10")
    with pytest.raises(InvalidArgument, match="identity column"):
        table.update({"id": "id + 1"})
    assert stored_tuples(table, "size") == [(3,), (4,)]


def test_an_update_that_touches_no_base_column_needs_no_expression() -> None:
    table = create(
        Column("a", "STRING"), Column("b", "INT"), Column("c", "STRING", generated_as="soundex(a)")
    )
    with pytest.raises(UnsupportedExpression, match=r"soundex.*use the Spark engine"):
        table.append(pa.table({"a": ["x"]}))
    with pytest.raises(UnsupportedExpression, match="soundex"):
        table.append(pa.table({"a": ["x"], "c": ["X000"]}))
    assert table.version() == 0


def test_a_filter_on_a_base_column_reads_the_partitions_generated_from_it_alone() -> None:
    table = create(*ORDERS, partition_by=("day",))
    table.append(moments(*range(1, 31)))
    where = "at >= TIMESTAMP '2024-01-10 00:00:00Z' AND at < TIMESTAMP '2024-01-12 00:00:00Z'"
    scan = table.snapshot().scan(["at"], where=where)
    days = [dict(each)["day"] for each in scan.files()["partition_values"].to_pylist()]
    # A day on either side, as a writer elsewhere has another date.
    assert (
        {"2024-01-10", "2024-01-11"} <= set(days) <= {f"2024-01-{day:02}" for day in range(9, 13)}
    )
    assert scan.to_arrow()["at"].to_pylist() == [noon(10), noon(11)]
    assert table.delete(where).metrics["numDeletedRows"] == 2


@pytest.mark.parametrize("mode", ["name", "id"])
def test_mapped_columns_are_computed_by_their_logical_names(mode: str) -> None:
    table = create(
        Column("id", "BIGINT", identity=Identity()),
        Column("S", "STRUCT<x: INT>"),
        Column("p", "INT", generated_as="s.X + 1"),
        Column("odd name", "STRING", default="'it''s'"),
        Column("n", "INT", generated_as="length(`odd name`) -- letters"),
        partition_by=("p",),
        properties={"delta.columnMapping.mode": mode},
    )
    table.append(pa.table({"s": [{"x": 1}, None, {"x": None}]}))
    table.update({"s.x": "7"}, "id = 1")
    table.append(pa.table({"s": [{"x": 2}], "n": pa.array([4], pa.int64())}))
    assert stored_tuples(table, "id", "odd name", "n") == [(i, "it's", 4) for i in (1, 2, 3, 4)]
    assert stored_tuples(table, "id", "p") == [(1, 8), (2, None), (3, None), (4, 3)]


def test_the_sequence_of_a_real_table_goes_on(golden_tables: Path, tmp_path: Path) -> None:
    source = golden_tables / "rs__checkpoint-v2-table" / "table"
    table = DeltaTable(shutil.copytree(source, tmp_path / "t"))
    last = mark(table)
    table.append(pa.table({"name": ["one", "two"]}))
    assert last == 44
    assert stored_tuples(table, "id")[-3:] == [(44,), (45,), (46,)]


def test_a_real_table_computed_from_the_clock_is_for_spark(
    golden_tables: Path, tmp_path: Path
) -> None:
    source = golden_tables / "dat__generated_columns" / "table"
    table = DeltaTable(shutil.copytree(source, tmp_path / "t"))
    with pytest.raises(UnsupportedExpression, match=r"now.*use the Spark engine"):
        table.append(pa.table({"letter": ["z"]}))
    assert table.delete("letter = 'b'").metrics["numDeletedRows"] == 1


@pytest.mark.parametrize("vectors", ["false", "true"])
def test_a_merge_fills_the_rows_it_inserts_and_follows_up_on_those_it_updates(
    vectors: str,
) -> None:
    table = orders(**{"delta.enableDeletionVectors": vectors})
    source = moments(2, 5, 6, state=["paid", "sent", "lost"])
    (
        table.merge(source, "t.at = s.at")
        .when_matched_update_all()
        .when_not_matched_insert({"at": "s.at"}, condition="s.state = 'lost'")
        .when_not_matched_insert_all()
        .execute()
    )
    found = stored_tuples(table)
    assert found[:2] == [
        (10, noon(1), dt.date(2024, 1, 1), "new", 3),
        (20, noon(2), dt.date(2024, 1, 2), "paid", 4),
    ]
    assert sorted(each[1:] for each in found[2:]) == [
        (noon(5), dt.date(2024, 1, 5), "sent", 4),
        (noon(6), dt.date(2024, 1, 6), "new", 3),
    ]
    assert [each[0] for each in found[2:]] == [30, 40]
    assert mark(table) == 40


def test_a_merge_verifies_what_it_is_given() -> None:
    table = orders()
    wrong = moments(5, day=[dt.date(2024, 1, 6)], state=["x"])
    with pytest.raises(ConstraintViolation, match="GENERATED day"):
        table.merge(wrong, "t.at = s.at").when_not_matched_insert_all().execute()
    numbered = moments(2, id=[7], state=["x"])
    with pytest.raises(InvalidArgument, match="identity column"):
        table.merge(numbered, "t.at = s.at").when_matched_update_all().execute()
    with pytest.raises(SchemaMismatch, match="GENERATED ALWAYS"):
        table.merge(numbered, "t.at = s.at").when_not_matched_insert_all().execute()
    assert stored_tuples(table, "id") == [(10,), (20,)]


def test_default_is_a_keyword_where_it_stands_alone() -> None:
    table = DeltaTable.create(
        "",
        [
            Column("id", "BIGINT", identity=Identity()),
            Column("at", "TIMESTAMP", default="current_timestamp()"),
            Column("day", "DATE", generated_as="CAST(at AS DATE)"),
            Column("s", "STRUCT<a: INT>"),
            Column("default", "STRING"),
        ],
        store=MemoryStore(),
    )
    long_ago = dt.datetime(2020, 1, 1, tzinfo=dt.UTC)
    table.append(pa.table({"at": [long_ago], "default": ["x"]}))
    before = dt.datetime.now(dt.UTC)
    table.update({"at": "DEFAULT", "day": "DEFAULT", "default": "concat(`default`, 'y')"})
    (row,) = table.snapshot().scan().to_arrow().to_pylist()
    assert row["at"] >= before
    assert row["day"] == row["at"].date()
    assert row["default"] == "xy"
    with pytest.raises(InvalidArgument, match="whole columns"):
        table.update({"s.a": "DEFAULT"})
    with pytest.raises(InvalidArgument, match="identity"):
        table.update({"id": "DEFAULT"})
    source = pa.table({"k": pa.array([9], pa.int64())})
    merge = table.merge(source, "t.id = s.k")
    values = {"id": "DEFAULT", "at": "DEFAULT", "day": "DEFAULT", "default": "'z'"}
    merge.when_not_matched_insert(values).execute()
    new = table.snapshot().scan(where="`default` = 'z'").to_arrow().to_pylist()[0]
    assert new["at"] >= row["at"]
    assert new["day"] == new["at"].date()
    assert new["id"] is not None
