"""Columns that data need not bring, computed, numbered or defaulted, and what rows must satisfy."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable
from functools import partial
from typing import Any

import pyarrow as pa
import pytest

from dagster_delta import Column, DeltaTable, Identity
from dagster_delta.errors import ConstraintViolation, PartitionMismatch, SchemaMismatch
from tests.conformance.engines import Engine, refusal
from tests.sample_tables import ORDERS, moments, noon


def day(number: int) -> dt.date:
    return dt.date(2024, 1, number)


def orders(engine: Engine, table: DeltaTable, **properties: str) -> DeltaTable:
    created = DeltaTable.create(table.uri, ORDERS, partition_by=("day",), properties=properties)
    created.append(engine.rows(moments(1, 2)))
    return created


def numbers(engine: Engine, table: DeltaTable) -> list[int]:
    """The numbers given out so far, which are of the sequence, different, and below its mark."""
    found = [each for (each,) in engine.tuples(table, "id")]
    assert len(set(found)) == len(found)
    assert all(each >= 10 and each % 10 == 0 for each in found)
    assert max(found) <= table.schema().field("id").metadata["delta.identity.highWaterMark"]
    return found


def test_an_append_fills_every_column_that_the_data_lack(engine: Engine, table: DeltaTable) -> None:
    created = orders(engine, table)
    created.append(engine.rows(moments(3, state=["paid"], size=pa.array([4], pa.int32()))))
    assert engine.tuples(created, "at", "day", "state", "size") == [
        (noon(1), day(1), "new", 3),
        (noon(2), day(2), "new", 3),
        (noon(3), day(3), "paid", 4),
    ]
    assert len(numbers(engine, created)) == 3
    files = created.snapshot().files()["partition_values"].to_pylist()
    assert sorted(dict(each)["day"] for each in files) == ["2024-01-01", "2024-01-02", "2024-01-03"]


def test_a_generated_column_that_the_data_bring_is_verified(
    engine: Engine, table: DeltaTable
) -> None:
    created = orders(engine, table)
    created.append(engine.rows(moments(3, day=[day(3)])))
    for wrong in (pa.array([day(4)]), pa.nulls(1, pa.date32())):
        rows = engine.rows(moments(3, day=wrong))
        refusal(ConstraintViolation, "GENERATED day", created, partial(created.append, rows))
    assert len(numbers(engine, created)) == 3


def test_constraints_see_what_was_computed(engine: Engine, table: DeltaTable) -> None:
    created = orders(engine, table, **{"delta.constraints.few": "day < DATE '2024-01-04'"})
    created.append(engine.rows(moments(3)))
    error = refusal(
        ConstraintViolation, "few", created, lambda: created.append(engine.rows(moments(4)))
    )
    assert "2024, 1, 4" in error.examples[0]


def test_a_null_that_is_given_is_no_reason_for_a_default(engine: Engine, table: DeltaTable) -> None:
    columns = (Column("a", "INT"), Column("b", "STRING", default="'x'"))
    created = DeltaTable.create(table.uri, columns)
    one, two = (pa.array([each], pa.int32()) for each in (1, 2))
    created.append(engine.rows(pa.table({"a": one, "b": pa.nulls(1, pa.string())})))
    created.append(engine.rows(pa.table({"a": two})))
    assert engine.tuples(created) == [(1, None), (2, "x")]


OVERWRITES: dict[str, Callable[[DeltaTable, Any], object]] = {
    "everything": lambda table, data: table.overwrite(data),
    "partitions": lambda table, data: table.overwrite(data, where="dynamic"),
    "partition_predicate": lambda table, data: table.overwrite(
        data, where="day = DATE '2024-01-02'"
    ),
    "row_predicate": lambda table, data: table.overwrite(data, where="id >= 20 OR state = 'paid'"),
}


@pytest.mark.parametrize("name", OVERWRITES)
def test_every_overwrite_fills_columns_and_goes_on_numbering(
    name: str, engine: Engine, table: DeltaTable
) -> None:
    created = DeltaTable.create(table.uri, ORDERS, partition_by=("day",))
    created.append(moments(1, 2))
    OVERWRITES[name](created, engine.rows(moments(2)))
    found = engine.tuples(created, "at", "day", "state", "size")
    assert found[-1] == (noon(2), day(2), "new", 3)
    assert len(found) == (1 if name == "everything" else 2)
    assert max(numbers(engine, created)) >= 30
    assert 20 not in numbers(engine, created)


def test_the_predicate_of_an_overwrite_binds_computed_columns(
    engine: Engine, table: DeltaTable
) -> None:
    created = orders(engine, table)
    rows = engine.rows(moments(3))
    refusal(
        PartitionMismatch,
        "2024-01-02",
        created,
        lambda: created.overwrite(rows, where="day = DATE '2024-01-02'"),
    )


def test_values_for_an_identity_column_are_refused_unless_it_takes_them(
    engine: Engine, table: DeltaTable
) -> None:
    created = orders(engine, table)
    refusal(
        SchemaMismatch, "GENERATED ALWAYS", created, lambda: created.append(engine.rows(moments(1, id=[7])))
    )  # fmt: skip
    columns = (Column("id", "BIGINT", identity=Identity(allow_explicit_insert=True)), Column("a", "INT"))  # fmt: skip
    other = DeltaTable.create(f"{table.uri}-taking", columns)
    other.append(engine.rows(pa.table({"id": [-7], "a": pa.array([0], pa.int32())})))
    other.append(engine.rows(pa.table({"a": pa.array([1, 2], pa.int32())})))
    found = engine.tuples(other)
    assert found[0] == (-7, 0)
    assert sorted(a for _, a in found) == [0, 1, 2]
    assert len({n for n, _ in found}) == 3


@pytest.mark.parametrize("vectors", ["false", "true"])
@pytest.mark.examples(2, on_spark=True)
def test_updates_and_merges_compute_generated_columns_anew_and_number_new_rows(
    vectors: str, engine: Engine, table: DeltaTable
) -> None:
    created = orders(engine, table, **{"delta.enableDeletionVectors": vectors})
    created.update(
        {"at": "TIMESTAMP '2024-03-01 00:00:00Z'"}, "day = DATE '2024-01-02'", engine=engine.name
    )
    source = engine.rows(moments(1, 5, new=["sent", "paid"]))
    merge = created.merge(source, "t.at = s.at").when_matched_update({"state": "s.new"})
    merge.when_not_matched_insert({"at": "s.at"}).execute()
    assert engine.tuples(created, "day", "state", "size") == [
        (day(1), "sent", 4),
        (day(5), "new", 3),
        (dt.date(2024, 3, 1), "new", 3),
    ]
    assert len(numbers(engine, created)) == 3
    for change in (
        lambda: created.update({"size": "1"}, "size = 4", engine=engine.name),
        lambda: created.merge(source, "t.at = s.at").when_matched_update({"size": "9"}).execute(),
    ):
        refusal(ConstraintViolation, "GENERATED size", created, change)


def test_constraints_of_patterns_and_dates_are_checked_by_both_engines(
    engine: Engine, table: DeltaTable
) -> None:
    table.append(pa.table({"code": ["AB12"], "day": [dt.date(2024, 1, 31)]}))
    table.alter(
        "ADD CONSTRAINT code CHECK (code RLIKE '^[A-Z]{2}[0-9]+$' OR code ILIKE 'none%'), "
        "ADD CONSTRAINT days CHECK (add_months(day, 1) > DATE '2024-01-01' AND day <= "
        "least(last_day(day), DATE '2030-01-01') AND unix_timestamp(day) > 0)"
    )
    table.append(engine.rows(pa.table({"code": ["NONE"], "day": [dt.date(2024, 2, 29)]})))
    for code, day in (("ab12", dt.date(2024, 2, 29)), ("AB12", dt.date(2023, 11, 30))):
        with pytest.raises(ConstraintViolation):
            table.append(engine.rows(pa.table({"code": [code], "day": [day]})))
    assert engine.tuples(table, "code") == [("AB12",), ("NONE",)]
