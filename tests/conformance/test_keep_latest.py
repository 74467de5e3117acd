"""KEEP LATEST on every engine: which row of a key stays, ties, nulls, the feed."""

from __future__ import annotations

import random
from typing import Any

import pyarrow as pa
import pytest

from dagster_delta import DeltaTable
from dagster_delta.errors import (
    ConstraintViolation,
    InvalidArgument,
    SchemaMismatch,
    UnsupportedFeature,
)
from tests.conformance.engines import Engine, refusal

SHAPES: dict[str, dict[str, str]] = {
    "plain": {},
    "vectors": {"delta.enableDeletionVectors": "true"},
    "mapped": {"delta.columnMapping.mode": "name"},
}
NAN = float("nan")


def some(*rows: tuple[Any, ...]) -> pa.Table:
    ids, ats, values = zip(*rows, strict=True)
    columns = [pa.array(ids, pa.int64()), pa.array(ats, pa.float64()), pa.array(values)]
    return pa.table(columns, ["id", "at", "v"])


@pytest.fixture(params=SHAPES)
def events(request: pytest.FixtureRequest, engine: Engine, table: DeltaTable) -> DeltaTable:
    """Two files; key 1 has three rows, 2 two, 3 one, and null two."""
    properties = {**SHAPES[request.param], "delta.enableChangeDataFeed": "true"}
    first = some((1, 1.0, "a"), (2, None, "b"), (None, 5.0, "c"), (3, None, "d"))
    table.append(engine.rows(first), properties=properties)
    second = some((1, 3.0, "e"), (1, 2.0, "f"), (2, -1.0, "g"), (None, NAN, "h"))
    table.append(engine.rows(second))
    return table


def test_the_latest_row_of_each_key_stays(engine: Engine, events: DeltaTable) -> None:
    result = events.keep_latest(["ID"], ["at"], engine=engine.name)
    assert result.version == 2
    assert result.metrics["numDeletedRows"] == 4
    assert sorted(value for (value,) in engine.tuples(events, "v")) == ["d", "e", "g", "h"]
    assert sorted(engine.changes(events, 2, "v")) == [("delete", value) for value in "abcf"]
    assert events.keep_latest(["id"], ["at"], engine=engine.name).skipped
    assert events.version() == 2


def test_ties_are_refused_with_examples_or_decided(engine: Engine, events: DeltaTable) -> None:
    events.append(engine.rows(some((1, 3.0, "tie"))))
    error = refusal(
        ConstraintViolation,
        r"\(id\) are the latest by at \(1 surplus rows\)",
        events,
        lambda: events.keep_latest(["id"], ["at"], engine=engine.name),
    )
    assert error.examples == ("(1,)",)
    events.keep_latest(["id"], ["at", "v"], engine=engine.name)
    assert (1, "tie") in engine.tuples(events, "id", "v")
    events.append(engine.rows(some((1, 3.0, "tie"))))
    events.keep_latest(["id"], ["at"], on_tie="any", engine=engine.name)
    assert engine.tuples(events, "v", where="id = 1") == [("tie",)]


def test_random_rows_are_those_of_a_model(engine: Engine, table: DeltaTable) -> None:
    chosen = random.Random(7)
    rows: list[tuple[Any, ...]] = []
    for _ in range(4):
        part = [
            (chosen.choice([None, *range(5)]), float(chosen.randrange(20)), f"{len(rows)}-{number}")
            for number in range(30)
        ]
        rows += part
        table.append(engine.rows(some(*part)))
    table.keep_latest(["id"], ["at", "v"], engine=engine.name)
    expected = {row[0]: row for row in sorted(rows, key=lambda row: row[1:])}
    assert sorted(engine.tuples(table, "id", "at", "v"), key=str) == sorted(
        expected.values(), key=str
    )


@pytest.mark.parametrize(
    ("keys", "order_by", "kind"),
    [
        ([], ["at"], InvalidArgument),
        (["id"], [], InvalidArgument),
        ("id", ["at"], InvalidArgument),
        (["nope"], ["at"], SchemaMismatch),
    ],
)
def test_columns_that_are_none_are_refused(
    engine: Engine, events: DeltaTable, keys: Any, order_by: Any, kind: type
) -> None:
    with pytest.raises(kind):
        events.keep_latest(keys, order_by, engine=engine.name)
    assert events.refresh().version == 1


def test_an_append_only_table_keeps_its_rows(engine: Engine, events: DeltaTable) -> None:
    events.set_properties({"delta.appendOnly": "true"})
    with pytest.raises(UnsupportedFeature):
        events.keep_latest(["id"], ["at"], engine=engine.name)
