"""Writes that keep to a slice of a table: what they touch, refuse, skip and replace."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from dagster_delta import Column, DeltaTable, Range, Slice
from dagster_delta.errors import (
    InvalidArgument,
    PartitionMismatch,
    SchemaMismatch,
    TableAlreadyExists,
)
from tests.conformance.engines import Engine, refusal

UTC = dt.UTC
RED_AND_BLUE = Slice.of({"red": {"p": "red"}, "blue": {"p": "blue"}})
MAPPINGS = ["none", "name", "id"]
ODD = [
    "it's",
    "' OR 1 = 1 --",
    "\\",
    "a/b",
    "a=b",
    "100%",
    "__HIVE_DEFAULT_PARTITION__",
    "ünï✓",
    " ",
]


def some(*pairs: tuple[int, str | None]) -> pa.Table:
    return pa.table(
        {
            "id": pa.array([number for number, _ in pairs], pa.int64()),
            "p": pa.array([value for _, value in pairs], pa.string()),
        }
    )


@pytest.fixture(params=["partitioned", "plain"])
def colors(request: pytest.FixtureRequest, engine: Engine, table: DeltaTable) -> DeltaTable:
    """A red row, two green ones, and one without a color."""
    rows = some((1, "red"), (2, "green"), (3, "green"), (4, None))
    partition_by = ["p"] if request.param == "partitioned" else None
    table.append(engine.rows(rows), partition_by=partition_by)
    return table


def pairs(engine: Engine, table: DeltaTable) -> list[Any]:
    return sorted(engine.tuples(table, "id", "p"), key=str)


# ---- touching the rows of the slice alone


def test_an_overwrite_replaces_the_rows_of_the_slice_alone(
    engine: Engine, colors: DeltaTable
) -> None:
    colors.overwrite(engine.rows(some((9, "blue"))), within=RED_AND_BLUE)
    assert pairs(engine, colors) == [(2, "green"), (3, "green"), (4, None), (9, "blue")]
    parameters = colors.history(1)[0].operation_parameters
    assert parameters["predicate"] == "`p` IN ('red', 'blue')"


def test_an_append_adds_rows_to_the_slice(engine: Engine, colors: DeltaTable) -> None:
    colors.append(engine.rows(some((9, "red"))), within=RED_AND_BLUE)
    assert (9, "red") in pairs(engine, colors)
    assert (1, "red") in pairs(engine, colors)


@pytest.mark.parametrize("statement", ["append", "overwrite", "merge"])
@pytest.mark.parametrize("stray", ["green", None])
def test_a_row_outside_is_refused_by_the_name_of_the_slice(
    statement: str, stray: str | None, engine: Engine, colors: DeltaTable
) -> None:
    rows = engine.rows(some((50, "red"), (51, stray)))

    def write() -> None:
        if statement == "merge":
            merge = colors.merge(rows, "t.id = s.id", within=RED_AND_BLUE)
            merge.when_not_matched_insert_all().execute()
        else:
            getattr(colors, statement)(rows, within=RED_AND_BLUE)

    error = refusal(PartitionMismatch, "outside of the slice red, blue", colors, write)
    assert any("51" in example for example in error.examples)


def test_a_slice_without_new_rows_is_emptied(engine: Engine, colors: DeltaTable) -> None:
    colors.overwrite(engine.rows(some()), within=RED_AND_BLUE)
    assert pairs(engine, colors) == [(2, "green"), (3, "green"), (4, None)]


def test_the_rows_of_a_null_are_a_part_of_a_slice(engine: Engine, colors: DeltaTable) -> None:
    within = Slice.of({"none": {"p": None}, "red": {"p": "red"}})
    colors.overwrite(engine.rows(some((7, None), (8, "red"))), within=within)
    assert pairs(engine, colors) == [(2, "green"), (3, "green"), (7, None), (8, "red")]


def test_slices_may_overlap(engine: Engine, colors: DeltaTable) -> None:
    one = Slice.of({"a": {"p": ["red", "green"]}})
    other = Slice.of({"b": {"p": ["green", "blue"]}})
    colors.overwrite(engine.rows(some((10, "green"))), within=one)
    colors.overwrite(engine.rows(some((11, "green"), (12, "blue"))), within=other)
    assert pairs(engine, colors) == [(11, "green"), (12, "blue"), (4, None)]


@pytest.mark.parametrize("mapping", MAPPINGS)
def test_values_with_special_characters_are_parts(
    mapping: str, engine: Engine, table: DeltaTable
) -> None:
    whole = Slice.of({value: {"p": value} for value in ODD})
    properties = {"delta.columnMapping.mode": mapping}
    first = some(*enumerate(ODD))
    table.append(engine.rows(first), within=whole, properties=properties)
    assert table.metadata().partition_columns == ("p",)
    for number, value in enumerate(ODD):
        within = whole.narrowed([value])
        table.overwrite(engine.rows(some((100 + number, value))), within=within)
    expected = [(100 + number, value) for number, value in enumerate(ODD)]
    assert pairs(engine, table) == sorted(expected, key=str)


def test_a_window_of_time_is_replaced_up_to_its_end(engine: Engine, table: DeltaTable) -> None:
    hours = [dt.datetime(2026, 1, 1, hour, tzinfo=UTC) for hour in range(4)]

    def rows(ids: list[int], at: list[dt.datetime]) -> Any:
        types = pa.timestamp("us", "UTC")
        return engine.rows(pa.table({"id": pa.array(ids, pa.int64()), "at": pa.array(at, types)}))

    within = Slice.of(
        {"1": {"at": Range(hours[1], hours[2])}, "2": {"at": Range(hours[2], hours[3])}}
    )
    table.append(rows([0, 1, 2, 3], hours))
    table.overwrite(rows([7], [hours[2]]), within=within)
    assert sorted(engine.tuples(table, "id")) == [(0,), (3,), (7,)]
    refusal(
        PartitionMismatch,
        "`at` >= TIMESTAMP '2026-01-01 01:00:00Z'",
        table,
        lambda: table.append(rows([8], [hours[3]]), within=within),
    )


@pytest.mark.parametrize(
    ("kind", "values"),
    [
        (pa.int32(), [1, 2]),
        (pa.date32(), [dt.date(2026, 1, 1), dt.date(2026, 1, 2)]),
        (pa.bool_(), [True, False]),
        (pa.decimal128(9, 2), [Decimal("1.50"), Decimal("2.00")]),
        (pa.timestamp("us"), [dt.datetime(2026, 1, 1), dt.datetime(2026, 1, 2)]),
        (pa.binary(), [b"ab", b"cd"]),
    ],
)
def test_a_part_has_a_value_of_any_type(
    kind: pa.DataType, values: list[Any], engine: Engine, table: DeltaTable
) -> None:
    within = Slice.of({"first": {"p": values[0]}, "second": {"p": values[1]}})

    def rows(ids: list[int], given: list[Any]) -> Any:
        return engine.rows(pa.table({"id": pa.array(ids, pa.int64()), "p": pa.array(given, kind)}))

    table.append(rows([1, 2], values), within=within)
    table.overwrite(rows([3], values[:1]), within=within.narrowed(["first"]))
    assert sorted(engine.tuples(table, "id")) == [(2,), (3,)]


def test_a_slice_may_have_several_columns(engine: Engine, table: DeltaTable) -> None:
    def rows(*found: tuple[int, str, int]) -> Any:
        columns = list(zip(*found, strict=True)) or [(), (), ()]
        types = (pa.int64(), pa.string(), pa.int64())
        arrays = [pa.array(column, kind) for column, kind in zip(columns, types, strict=True)]
        return engine.rows(pa.table(arrays, names=["id", "p", "n"]))

    cells = {f"{p}|{n}": {"p": p, "n": n} for p, n in (("a", 1), ("a", 2), ("b", 2))}
    within = Slice.of(cells)
    table.append(rows((1, "a", 1), (2, "a", 2), (3, "b", 1), (4, "b", 2)))
    table.overwrite(rows((9, "b", 2)), within=within)
    assert sorted(engine.tuples(table, "id")) == [(3,), (9,)]


def test_a_partition_column_may_be_generated(engine: Engine, table: DeltaTable) -> None:
    columns = [
        Column("id", "bigint"),
        Column("at", "timestamp"),
        Column("day", "date", generated_as="CAST(at AS DATE)"),
    ]
    created = DeltaTable.create(table.uri, columns, partition_by=["day"])
    noon = [dt.datetime(2026, 1, day, 12, tzinfo=UTC) for day in (1, 2)]

    def rows(ids: list[int], at: list[dt.datetime]) -> Any:
        types = pa.timestamp("us", "UTC")
        return engine.rows(pa.table({"id": pa.array(ids, pa.int64()), "at": pa.array(at, types)}))

    days = Slice.of({str(day): {"day": dt.date(2026, 1, day)} for day in (1, 2)})
    created.append(rows([1, 2], noon), within=days)
    created.overwrite(rows([3], noon[:1]), within=days.narrowed(["1"]))
    skipped = created.append(rows([4, 5], noon), within=days, if_present="skip")
    assert skipped.kept_parts == ("1", "2")
    assert sorted(engine.tuples(created, "id")) == [(2,), (3,)]
    created.delete("day = DATE '2026-01-02'")
    created.append(rows([6, 7], noon), within=days, if_present="skip")
    assert sorted(engine.tuples(created, "id")) == [(3,), (7,)]


# ---- if_present


def test_skip_writes_the_parts_without_rows(engine: Engine, colors: DeltaTable) -> None:
    rows = engine.rows(some((10, "red"), (11, "blue")))
    result = colors.append(rows, within=RED_AND_BLUE, if_present="skip")
    assert (result.kept_parts, result.skipped) == (("red",), False)
    assert pairs(engine, colors) == sorted(
        [(1, "red"), (2, "green"), (3, "green"), (4, None), (11, "blue")], key=str
    )


def test_skip_commits_nothing_where_all_parts_have_rows(engine: Engine, colors: DeltaTable) -> None:
    rows = engine.rows(some((10, "red")))
    result = colors.append(rows, within=RED_AND_BLUE.narrowed(["red"]), if_present="skip")
    assert (result.skipped, result.version, result.kept_parts) == (True, 0, ("red",))


def test_a_row_outside_is_refused_beside_parts_that_are_skipped(
    engine: Engine, colors: DeltaTable
) -> None:
    rows = engine.rows(some((10, "red"), (11, "blue"), (12, "green")))
    refusal(
        PartitionMismatch,
        "outside of the slice",
        colors,
        lambda: colors.append(rows, within=RED_AND_BLUE, if_present="skip"),
    )


@pytest.mark.parametrize("statement", ["append", "overwrite"])
def test_fail_refuses_to_write_a_slice_with_rows(
    statement: str, engine: Engine, colors: DeltaTable
) -> None:
    write = getattr(colors, statement)
    rows = engine.rows(some((10, "red")))
    refusal(
        TableAlreadyExists,
        "the slice red, blue has rows already",
        colors,
        lambda: write(rows, within=RED_AND_BLUE, if_present="fail"),
    )
    write(
        engine.rows(some((11, "blue"))), within=RED_AND_BLUE.narrowed(["blue"]), if_present="fail"
    )
    assert (11, "blue") in pairs(engine, colors)


@pytest.mark.parametrize("statement", ["append", "overwrite"])
def test_replace_replaces_the_slice(statement: str, engine: Engine, colors: DeltaTable) -> None:
    rows = engine.rows(some((10, "blue")))
    getattr(colors, statement)(rows, within=RED_AND_BLUE, if_present="replace")
    assert pairs(engine, colors) == [(10, "blue"), (2, "green"), (3, "green"), (4, None)]


def test_without_a_slice_the_table_is_the_part(engine: Engine, table: DeltaTable) -> None:
    rows = engine.rows(some((1, "red")))
    assert not table.append(rows, if_present="skip").skipped
    assert table.append(rows, if_present="skip").skipped
    refusal(
        TableAlreadyExists, "exists already", table, lambda: table.append(rows, if_present="fail")
    )
    table.append(engine.rows(some((2, "blue"))), if_present="replace")
    assert pairs(engine, table) == [(2, "blue")]


# ---- schemas


def test_a_new_table_is_partitioned_by_the_columns_of_the_slice(
    engine: Engine, table: DeltaTable
) -> None:
    table.overwrite(engine.rows(some((1, "red"))), within=RED_AND_BLUE)
    assert table.metadata().partition_columns == ("p",)


def test_overwriting_the_schema_within_a_slice_needs_the_same_columns(
    engine: Engine, colors: DeltaTable
) -> None:
    within = RED_AND_BLUE
    colors.overwrite(engine.rows(some((5, "red"))), within=within, schema_mode="overwrite")
    other = engine.rows(pa.table({"p": ["red"], "more": [1]}))
    error = refusal(
        InvalidArgument,
        "schema_mode merge",
        colors,
        lambda: colors.overwrite(other, within=within, schema_mode="overwrite"),
    )
    assert "+ more: long" in str(error)
    colors.overwrite(other, within=within, schema_mode="merge")
    assert engine.tuples(colors, "more", where="p = 'red'") == [(1,)]


def test_the_columns_of_a_slice_have_to_be_in_the_table(engine: Engine, colors: DeltaTable) -> None:
    within = Slice.of({"x": {"q": 1}})
    rows = engine.rows(some((1, "red")))
    refusal(
        SchemaMismatch, "must be one of id, p", colors, lambda: colors.append(rows, within=within)
    )


# ---- merges


def test_a_merge_matches_and_changes_the_rows_of_the_slice_alone(
    engine: Engine, colors: DeltaTable
) -> None:
    source = engine.rows(some((1, "red"), (2, "red"), (9, "blue")))
    merge = colors.merge(source, "t.id = s.id", within=RED_AND_BLUE)
    merge = merge.when_matched_update({"p": "'blue'"}).when_not_matched_insert_all()
    merge.execute()
    assert pairs(engine, colors) == sorted(
        [(1, "blue"), (2, "green"), (2, "red"), (3, "green"), (4, None), (9, "blue")], key=str
    )


def test_a_merge_deletes_unmatched_rows_of_the_slice_alone(
    engine: Engine, colors: DeltaTable
) -> None:
    source = engine.rows(some((9, "red")))
    merge = colors.merge(source, "t.id = s.id", within=RED_AND_BLUE)
    merge.when_not_matched_insert_all().when_not_matched_by_source_delete().execute()
    assert pairs(engine, colors) == [(2, "green"), (3, "green"), (4, None), (9, "red")]


@pytest.mark.parametrize("allowed", [True, False])
def test_a_merge_may_widen_types_and_add_no_column(
    allowed: bool, engine: Engine, table: DeltaTable
) -> None:
    first = pa.table({"id": pa.array([1], pa.int32()), "n": pa.array([1], pa.int32())})
    properties = {"delta.enableTypeWidening": str(allowed).lower()}
    table.append(engine.rows(first), properties=properties)
    wider = pa.table({"id": pa.array([1, 2], pa.int32()), "n": [2**40, 5], "more": [1, 2]})

    def merge() -> None:
        builder = table.merge(engine.rows(wider), "t.id = s.id", schema_mode="widen")
        builder.when_matched_update_all().when_not_matched_insert_all().execute()

    if not allowed:
        with pytest.raises(Exception, match=r"delta\.enableTypeWidening = true"):
            merge()
        return
    merge()
    assert table.schema().names == ("id", "n")
    assert sorted(engine.tuples(table, "id", "n")) == [(1, 2**40), (2, 5)]
