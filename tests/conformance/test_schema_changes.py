"""Schema changes that an engine carries out, and tables that went through them."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal

import pyarrow as pa
import pytest

from dagster_delta import DeltaTable
from dagster_delta.errors import ColumnChangeFailed
from tests.conformance.engines import Engine
from tests.sample_tables import DEFAULTED, FEED, UNDEFAULTED, VECTORS, texts


def test_a_default_is_written_into_every_row(engine: Engine, table: DeltaTable) -> None:
    table.append(texts(1, 2), properties=VECTORS | FEED)
    table.append(texts(3, 4))
    table.delete("id = 2", engine=engine.name)
    table.alter(
        "ADD COLUMN state STRING NOT NULL DEFAULT 'old'", engine=engine.name, enable_features=True
    )
    table.append(engine.rows(texts(5)))
    assert engine.tuples(table, "id", "state") == [(each, "old") for each in (1, 3, 4, 5)]
    assert engine.tuples(table, version=2) == [(1, "1"), (3, "3"), (4, "4")]
    # That rows get a default is no change of theirs.
    assert engine.changes(table, 2, "id") == [("delete", 2), ("insert", 5)]


def test_columns_are_renamed_moved_dropped_and_widened(engine: Engine, table: DeltaTable) -> None:
    struct = pa.struct([("a", pa.int32()), ("b", pa.int32())])
    rows = pa.table(
        {
            "id": pa.array([1, 2], pa.int32()),
            "s": pa.array([{"a": 1, "b": 2}, None], struct),
            "p": ["x", None],
        }
    )
    table.append(engine.rows(rows), partition_by=["p"], properties=FEED)
    table.alter(
        "RENAME COLUMN s.a TO c, DROP COLUMN s.b, ADD COLUMN s.b STRING FIRST, "
        "ALTER COLUMN id TYPE BIGINT, RENAME COLUMN p TO q, ALTER COLUMN q FIRST",
        enable_features=True,
    )
    later = pa.table(
        {
            "q": ["y"],
            "id": pa.array([2**40]),
            "s": pa.array(
                [{"b": "new", "c": 3}], pa.struct([("b", pa.string()), ("c", pa.int32())])
            ),
        }
    )
    table.append(engine.rows(later))
    assert table.schema().names == ("q", "id", "s")
    assert engine.tuples(table, "id", "q", "s") == [
        (1, "x", {"b": None, "c": 1}),
        (2, None, None),
        (2**40, "y", {"b": "new", "c": 3}),
    ]
    table.update({"s.c": "s.c + 1"}, "q IS NOT NULL", engine=engine.name)
    table.optimize(engine=engine.name)
    assert engine.tuples(table, "s", where="id < 2 OR id > 2") == [
        ({"b": "new", "c": 4},),
        ({"b": None, "c": 2},),
    ]
    assert engine.tuples(table, version=0) == [(1, {"a": 1, "b": 2}, "x"), (2, None, None)]


CHANGES = {
    "DECIMAL(10,2)": [(1, Decimal("1.00")), (2, Decimal("2.00")), (11, Decimal("11.00"))],
    "INT": [(1, 1), (2, 2), (11, 11)],
}


@pytest.mark.parametrize("new_type", CHANGES)
def test_a_column_takes_any_type(new_type: str, engine: Engine, table: DeltaTable) -> None:
    for ids in ((1, 2), (11,)):
        table.append(engine.rows(texts(*ids)), properties=VECTORS)
    table.change_column("v", new_type, engine=engine.name, enable_features=True)
    assert engine.tuples(table, "id", "v") == CHANGES[new_type]
    assert engine.tuples(table, "id", where="v > 2") == [(11,)]
    assert engine.tuples(table, "v", version=1) == [("1",), ("11",), ("2",)]
    table.delete("v = 2", engine=engine.name)
    assert engine.tuples(table, "id") == [(1,), (11,)]


def test_a_value_that_has_no_form_in_the_new_type_stops_the_change(
    engine: Engine, table: DeltaTable
) -> None:
    table.append(engine.rows(texts(1, 2)))
    with pytest.raises(ColumnChangeFailed, match="at least 2 row") as caught:
        table.change_column("v", "DATE", engine=engine.name, enable_features=True)
    assert "cannot be converted" in caught.value.examples[0]
    assert engine.tuples(DeltaTable(table.uri), "v") == [("1",), ("2",)]


def lazy(engine: Engine, table: DeltaTable, **properties: str) -> DeltaTable:
    created = DeltaTable.create(
        table.uri, UNDEFAULTED.schema, partition_by=["p"], properties=properties
    )
    created.append(engine.rows(UNDEFAULTED))
    created.alter("ADD COLUMN c INT DEFAULT 7, ADD COLUMN s.x INT DEFAULT 5", existing_rows="lazy")
    created.append(engine.rows(DEFAULTED))
    return created


def test_no_filter_on_a_lazy_default_skips_a_file_wrongly(
    engine: Engine, table: DeltaTable
) -> None:
    made = lazy(engine, table)
    assert engine.tuples(made, "id", "c") == [(1, 7), (2, 7), (3, 7), (4, 7), (5, None), (6, 9)]
    assert engine.tuples(made, "id", where="c > 7") == [(6,)]
    assert engine.tuples(made, "id", where="c IS NULL OR c + id > 9") == [(3,), (4,), (5,), (6,)]
    assert engine.tuples(made, "id", where="s.x = 5 AND p = 'a'") == [(1,)]


def test_a_lazy_default_is_read_through_all_that_is_done(engine: Engine, table: DeltaTable) -> None:
    mapped = {"delta.columnMapping.mode": "name", "delta.enableTypeWidening": "true"}
    made = lazy(engine, table, **mapped, **VECTORS)
    made.delete("id = 1", engine=engine.name)
    made.update(set={"c": "c * 2"}, where="s.x = 5 AND id = 3", engine=engine.name)
    made.widen_column("c", "BIGINT")
    source = engine.rows(pa.table({"k": pa.array([2, 20], pa.int32()), "v": [70, 80]}))
    merge = made.merge(source, on="t.id = s.k").when_matched_update({"c": "t.c + s.v"})
    merge.when_not_matched_insert({"id": "s.k", "c": "s.v"}).execute()
    before = engine.tuples(made)
    expected = [(2, 77), (3, 14), (4, 7), (5, None), (6, 9), (20, 80)]
    assert engine.tuples(made, "id", "c") == expected
    made.materialize_defaults(engine=engine.name)
    assert engine.tuples(made) == before
    assert made.materialize_defaults().skipped


def test_a_lazy_default_stands_in_the_change_feed(engine: Engine, table: DeltaTable) -> None:
    created = DeltaTable.create(table.uri, UNDEFAULTED.schema, properties=FEED | VECTORS)
    created.append(engine.rows(UNDEFAULTED))
    created.add_column("c", "INT", default="7", existing_rows="lazy")
    start = created.version() + 1
    created.delete("id = 4", engine=engine.name)
    created.update(set={"id": "id + 10"}, where="id = 1", engine=engine.name)
    created.materialize_defaults(engine=engine.name)
    assert engine.changes(created, start, "id", "c") == [
        ("delete", 4, 7),
        ("update_postimage", 11, 7),
        ("update_preimage", 1, 7),
    ]


@pytest.mark.parametrize("partition_by", [[], ["day"]])
def test_a_generated_column_of_a_changed_table_still_prunes(
    partition_by: list[str], engine: Engine, table: DeltaTable
) -> None:
    moments = [dt.datetime(2024, 1, 1 + each, 12, tzinfo=dt.UTC) for each in range(5)]
    rows = pa.table({"at": pa.array(moments, pa.timestamp("us", "UTC")), "day": [m.date() for m in moments]})  # fmt: skip
    table.append(engine.rows(rows), partition_by=partition_by)
    table.alter("RENAME COLUMN day TO d", enable_features=True)
    assert engine.tuples(table, "d", where="d > DATE '2024-01-04'") == [(dt.date(2024, 1, 5),)]
