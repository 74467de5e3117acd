"""Overwrites of the rows that match new ones: the answers of delta-spark 4.4, on every engine."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from dagster_delta import DeltaTable, Slice
from dagster_delta.errors import (
    ConstraintViolation,
    InvalidArgument,
    PartitionMismatch,
    SchemaMismatch,
)
from tests.conformance.engines import Engine, refusal

ROWS = [(1, "a", 10), (1, "b", 11), (2, "a", 20), (None, "a", 30), (None, "b", 31)]
SHAPES = {
    "plain": (False, ()),
    "vectors": (True, ()),
    "partitioned": (False, ("day",)),
    "partitioned_vectors": (True, ("day",)),
}

ANSWERS: dict[str, tuple[dict[str, Any], list[Any], list[Any]]] = {
    "two columns": ({"replace_using": ["day", "shop"]}, [(1, "a", 100)], [(1, "a", 10)]),
    "another case": ({"replace_using": ["Day"]}, [(1, "z", 1)], [(1, "a", 10), (1, "b", 11)]),
    "null equals nothing": ({"replace_using": ["day"]}, [(None, "a", 100)], []),
    "no match": ({"replace_using": ["day"]}, [(9, "a", 100)], []),
    "several new rows": (
        {"replace_using": ["day"]},
        [(1, "a", 5), (1, "z", 6)],
        [(1, "a", 10), (1, "b", 11)],
    ),
    "null-safe": (
        {"replace_on": "t.day <=> s.day"},
        [(None, "a", 100)],
        [(None, "a", 30), (None, "b", 31)],
    ),
    "true": ({"replace_on": "true"}, [(1, "a", 1)], ROWS),
    "range": ({"replace_on": "t.v < s.v"}, [(1, "a", 12)], [(1, "a", 10), (1, "b", 11)]),
    "table alone": (
        {"replace_on": "t.v > 15"},
        [(1, "a", 1)],
        [(2, "a", 20), (None, "a", 30), (None, "b", 31)],
    ),
}


def some(*rows: tuple[Any, ...]) -> pa.Table:
    days, shops, values = zip(*rows, strict=True) if rows else ((), (), ())
    return pa.table(
        {
            "day": pa.array(days, pa.int32()),
            "shop": pa.array(shops, pa.string()),
            "v": pa.array(values, pa.int32()),
        }
    )


@pytest.fixture(params=SHAPES)
def shops(request: pytest.FixtureRequest, engine: Engine, table: DeltaTable) -> DeltaTable:
    vectors, partition_by = SHAPES[request.param]
    properties = {
        "delta.enableDeletionVectors": str(vectors).lower(),
        "delta.enableChangeDataFeed": "true",
    }
    table.append(engine.rows(some(*ROWS)), properties=properties, partition_by=partition_by)
    return table


def found(engine: Engine, table: DeltaTable) -> list[Any]:
    return sorted(engine.tuples(table, "day", "shop", "v"), key=str)


@pytest.mark.parametrize("case", ANSWERS)
def test_the_rows_that_match_new_ones_are_replaced(
    engine: Engine, shops: DeltaTable, case: str
) -> None:
    options, new, gone = ANSWERS[case]
    result = shops.overwrite(engine.rows(some(*new)), engine=engine.name, **options)
    left = [row for row in ROWS if row not in gone]
    assert found(engine, shops) == sorted([*left, *new], key=str)
    assert result.version == 1
    assert result.metrics.get("numDeletedRows", len(gone)) == len(gone)
    changes = [(*row, "delete") for row in gone] + [(*row, "insert") for row in new]
    read = engine.changes(shops, 1, "day", "shop", "v")
    assert sorted(read, key=str) == sorted(((kind, *row) for *row, kind in changes), key=str)
    parameters = shops.history(1)[0].operation_parameters
    assert parameters["mode"] == "Overwrite"
    using = options.get("replace_using")
    key, value = (
        ("replaceOnCond", options.get("replace_on"))
        if using is None
        else ("replaceUsingCols", f"({', '.join(using)})")
    )
    assert parameters[key] == value


def test_without_new_rows_nothing_changes(engine: Engine, shops: DeltaTable) -> None:
    for options in ({"replace_using": ["day"]}, {"replace_on": "true"}):
        result = shops.overwrite(engine.rows(some()), engine=engine.name, **options)
        assert result.skipped
    assert shops.version() == 0


def test_new_rows_and_replaced_ones_are_in_the_slice(engine: Engine, shops: DeltaTable) -> None:
    within = Slice.of({"a": {"shop": "a"}})
    new = engine.rows(some((1, "a", 7)))
    shops.overwrite(new, replace_using=["day"], within=within, engine=engine.name)
    assert found(engine, shops) == sorted([(1, "a", 7), *ROWS[1:]], key=str)
    outside = engine.rows(some((1, "b", 7)))
    with pytest.raises(PartitionMismatch):
        shops.overwrite(outside, replace_using=["day"], within=within, engine=engine.name)


def test_columns_may_be_added_and_others_may_be_absent(engine: Engine, shops: DeltaTable) -> None:
    wider = some((1, "a", 7)).append_column("w", pa.array([8], pa.int32()))
    shops.overwrite(
        engine.rows(wider), replace_using=["day"], schema_mode="merge", engine=engine.name
    )
    assert sorted(engine.tuples(shops, "day", "v", "w"), key=str)[0] == (1, 7, 8)
    shops.overwrite(
        engine.rows(some((2, "a", 1)).select(["day"])), replace_using=["day"], engine=engine.name
    )
    assert (2, None, None) in engine.tuples(shops, "day", "v", "w")


@pytest.mark.parametrize(
    ("options", "message", "kind"),
    [
        ({"replace_using": ["w"]}, "'w'", SchemaMismatch),
        ({"replace_using": []}, "no column", InvalidArgument),
        ({"replace_using": "day"}, r"\['day'\]", InvalidArgument),
        ({"replace_using": ["day"], "replace_on": "true"}, "one of them", InvalidArgument),
        ({"replace_using": ["day"], "where": "day = 1"}, "one of them", InvalidArgument),
        ({"replace_using": ["day"], "schema_mode": "overwrite"}, "schema", InvalidArgument),
        ({"replace_on": "day = 1"}, "day", InvalidArgument),
        ({"replace_on": "true", "if_present": "skip"}, "if_present", InvalidArgument),
    ],
)
def test_options_that_contradict_each_other_are_refused(
    engine: Engine, shops: DeltaTable, options: dict[str, Any], message: str, kind: type
) -> None:
    with pytest.raises(kind, match=message):
        shops.overwrite(engine.rows(some((1, "a", 1))), engine=engine.name, **options)
    assert shops.refresh().version == 0


def test_a_new_table_has_all_rows(engine: Engine, table: DeltaTable) -> None:
    new = engine.rows(some((1, "a", 7)))
    table.overwrite(new, replace_using=["day"], partition_by=["day"], engine=engine.name)
    assert found(engine, table) == [(1, "a", 7)]


def test_floats_match_as_in_spark(engine: Engine, table: DeltaTable) -> None:
    def floats(*rows: tuple[float, int]) -> pa.Table:
        return pa.table({"k": [key for key, _ in rows], "v": [value for _, value in rows]})

    table.append(engine.rows(floats((float("nan"), 1), (-0.0, 2))))
    new = engine.rows(floats((float("nan"), 3), (0.0, 4)))
    table.overwrite(new, replace_using=["k"], engine=engine.name)
    assert sorted(value for (value,) in engine.tuples(table, "v")) == [3, 4]


def test_constraints_bind_new_rows(engine: Engine, shops: DeltaTable) -> None:
    shops.add_constraint("small", "v < 1000")
    new = engine.rows(some((1, "a", 5000)))
    refusal(
        ConstraintViolation,
        "small",
        shops,
        lambda: shops.overwrite(new, replace_using=["day"], engine=engine.name),
    )
