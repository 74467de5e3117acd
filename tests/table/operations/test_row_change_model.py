"""Any sequence of appends, overwrites, deletes and updates, against a dictionary of rows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dagster_delta.storage.memory_store import MemoryStore
from dagster_delta.table.delta_table import DeltaTable
from tests.golden.answers import rows_of

pytestmark = pytest.mark.slow

SCHEMA = pa.schema([("k", pa.int64()), ("v", pa.string()), ("p", pa.int32())])

Row = dict[str, Any]
Test = Callable[[Row], bool | None]
"""What a predicate says about a row, None where SQL says null."""

NUMBERS = st.one_of(st.none(), st.integers(0, 12))
ROWS = st.lists(
    st.fixed_dictionaries(
        {
            "k": NUMBERS,
            "v": st.one_of(st.none(), st.sampled_from(["", "a", "b", "ab", "ü"])),
            "p": st.one_of(st.none(), st.integers(0, 2)),
        }
    ),
    max_size=12,
)


def _compare(column: str, operator: str, value: int | str) -> tuple[str, Test]:
    def test(row: Row) -> bool | None:
        found = row[column]
        if found is None:
            return None
        return bool({"=": found == value, "<": found < value, ">=": found >= value}[operator])

    shown = f"'{value}'" if isinstance(value, str) else str(value)
    return f"{column} {operator} {shown}", test


def _remainder(divisor: int, rest: int) -> tuple[str, Test]:
    def test(row: Row) -> bool | None:
        return None if row["k"] is None else row["k"] % divisor == rest

    return f"k % {divisor} = {rest}", test


def _is_null(column: str) -> tuple[str, Test]:
    return f"{column} IS NULL", lambda row: row[column] is None


def _and(left: tuple[str, Test], right: tuple[str, Test]) -> tuple[str, Test]:
    def test(row: Row) -> bool | None:
        both = left[1](row), right[1](row)
        return False if False in both else None if None in both else True

    return f"({left[0]} AND {right[0]})", test


def _or(left: tuple[str, Test], right: tuple[str, Test]) -> tuple[str, Test]:
    def test(row: Row) -> bool | None:
        both = left[1](row), right[1](row)
        return True if True in both else None if None in both else False

    return f"({left[0]} OR {right[0]})", test


def _not(child: tuple[str, Test]) -> tuple[str, Test]:
    def test(row: Row) -> bool | None:
        found = child[1](row)
        return None if found is None else not found

    return f"NOT ({child[0]})", test


OPERATORS = st.sampled_from(["=", "<", ">="])
PREDICATES = st.recursive(
    st.one_of(
        st.builds(_compare, st.just("k"), OPERATORS, st.integers(0, 12)),
        st.builds(_compare, st.just("v"), OPERATORS, st.sampled_from(["", "a", "b"])),
        st.builds(_compare, st.just("p"), OPERATORS, st.integers(0, 2)),
        st.builds(_remainder, st.integers(2, 5), st.integers(0, 2)),
        st.builds(_is_null, st.sampled_from(SCHEMA.names)),
    ),
    lambda inner: st.one_of(
        st.builds(_and, inner, inner), st.builds(_or, inner, inner), st.builds(_not, inner)
    ),
    max_leaves=4,
)

Change = Callable[[Row], Any]
ASSIGNMENTS: dict[str, list[tuple[str, Change]]] = {
    "k": [
        ("k + 1", lambda row: None if row["k"] is None else row["k"] + 1),
        ("CAST(p AS BIGINT)", lambda row: row["p"]),
        ("3", lambda _: 3),
    ],
    "v": [
        ("concat(v, 'x')", lambda row: None if row["v"] is None else row["v"] + "x"),
        ("NULL", lambda _: None),
        ("coalesce(v, 'none')", lambda row: "none" if row["v"] is None else row["v"]),
    ],
    "p": [
        ("p + 1", lambda row: None if row["p"] is None else row["p"] + 1),
        ("NULL", lambda _: None),
        ("k", lambda row: row["k"]),
    ],
}
UPDATES = st.dictionaries(st.sampled_from(SCHEMA.names), st.integers(0, 2), min_size=1)

STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("append"), ROWS),
        st.tuples(st.just("overwrite"), ROWS),
        st.tuples(st.just("delete"), st.one_of(st.none(), PREDICATES)),
        st.tuples(st.just("delete"), PREDICATES),
        st.tuples(st.just("update"), st.tuples(UPDATES, st.one_of(st.none(), PREDICATES))),
    ),
    min_size=2,
    max_size=9,
)


def apply_to_model(model: list[Row], name: str, argument: Any) -> list[Row]:
    match name:
        case "append":
            return [*model, *argument]
        case "overwrite":
            return list(argument)
        case "delete":
            return [each for each in model if argument and argument[1](each) is not True]
    chosen, predicate = argument
    changes = {column: ASSIGNMENTS[column][choice][1] for column, choice in chosen.items()}
    return [
        {**each, **{column: change(each) for column, change in changes.items()}}
        if predicate is None or predicate[1](each) is True
        else each
        for each in model
    ]


def apply_to_table(table: DeltaTable, name: str, argument: Any) -> None:
    match name:
        case "append":
            table.append(pa.Table.from_pylist(argument, schema=SCHEMA))
        case "overwrite":
            table.overwrite(pa.Table.from_pylist(argument, schema=SCHEMA))
        case "delete":
            table.delete(argument and argument[0])
        case "update":
            chosen, predicate = argument
            values = {column: ASSIGNMENTS[column][choice][0] for column, choice in chosen.items()}
            table.update(values, predicate and predicate[0])


@pytest.mark.examples(3)
@pytest.mark.parametrize("partition_by", [(), ("p",)], ids=["plain", "partitioned"])
@pytest.mark.parametrize("mode", ["none", "name"])
@pytest.mark.parametrize("vectors", ["false", "true"])
@settings(max_examples=25)
@given(steps=STEPS)
def test_the_table_holds_the_rows_of_the_model(
    vectors: str, mode: str, partition_by: tuple[str, ...], steps: Any
) -> None:
    table = DeltaTable.create(
        "",
        SCHEMA,
        partition_by=partition_by,
        properties={
            "delta.enableDeletionVectors": vectors,
            "delta.columnMapping.mode": mode,
            "delta.enableChangeDataFeed": vectors,
            "delta.checkpointInterval": "3",
        },
        store=MemoryStore(),
    )
    model: list[Row] = []
    for name, argument in steps:
        apply_to_table(table, name, argument)
        model = apply_to_model(model, name, argument)
        snapshot = DeltaTable("", store=table.store).snapshot()
        expected = rows_of(pa.Table.from_pylist(model, schema=SCHEMA))
        assert rows_of(snapshot.scan().to_arrow()) == expected
        assert snapshot.num_records == len(model)
        assert snapshot.scan(where="p = 1").count() == sum(row["p"] == 1 for row in model)
