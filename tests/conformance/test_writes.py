"""Appending and overwriting: what is in the table afterwards, and in its files."""

from __future__ import annotations

import datetime as dt
import random
from decimal import Decimal
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dagster_delta import DeltaTable
from dagster_delta.errors import (
    ConstraintViolation,
    InvalidCast,
    PartitionMismatch,
    SchemaMismatch,
)
from tests.conformance.engines import Engine, refusal
from tests.golden.answers import rows_of

STRUCT = pa.struct([("a", pa.int64()), ("l", pa.list_(pa.int32())), ("t", pa.timestamp("us"))])
FIRST, LAST = dt.datetime(1, 1, 1), dt.datetime(9999, 12, 31, 23, 59, 59, 999_999)
EVERY_TYPE = pa.table(
    {
        "id": pa.array([-(2**63), 2**63 - 1, 0, None]),
        "i": pa.array([-(2**31), 2**31 - 1, 0, None], pa.int32()),
        "sh": pa.array([-(2**15), 2**15 - 1, 0, None], pa.int16()),
        "b": pa.array([-128, 127, 0, None], pa.int8()),
        "s": ["", "a'b\\ü✈\u0000", "null", None],
        "f": pa.array([float("nan"), float("inf"), -0.0, None], pa.float32()),
        "d": [float("nan"), float("-inf"), 1 / 7, None],
        "flag": [True, False, True, None],
        "bin": pa.array([b"", b"\x00\xff", b"x", None], pa.binary()),
        "day": [dt.date(1, 1, 1), dt.date(9999, 12, 31), dt.date(1582, 10, 10), None],
        "ts": pa.array([FIRST, LAST, dt.datetime(2020, 3, 29, 2, 30), None], pa.timestamp("us", "UTC")),
        "ntz": pa.array([FIRST, LAST, dt.datetime(2020, 3, 29, 2, 30), None], pa.timestamp("us")),
        "dec9": pa.array([Decimal("-1.50"), Decimal("0.00"), None, None], pa.decimal128(9, 2)),
        "dec38": pa.array([Decimal(10**38 - 1), Decimal(1 - 10**38), None, None], pa.decimal128(38, 0)),
        "st": pa.array([{"a": 1, "l": [1, None], "t": FIRST}, {"a": None, "l": [], "t": None}, None, None], STRUCT),
        "m": pa.array([[("k", {"a": 1})], [], None, None], pa.map_(pa.string(), STRUCT)),
        "l": pa.array([[[1], None], [], None, None], pa.list_(pa.list_(pa.int64()))),
    }
)  # fmt: skip


@pytest.mark.parametrize("mapping", ["none", "name", "id"])
def test_every_type_arrives_unchanged(mapping: str, engine: Engine, table: DeltaTable) -> None:
    result = table.append(engine.rows(EVERY_TYPE), properties={"delta.columnMapping.mode": mapping})
    assert result.metrics["numOutputRows"] == EVERY_TYPE.num_rows
    assert table.snapshot().num_records == EVERY_TYPE.num_rows
    assert engine.counted(table) == rows_of(EVERY_TYPE)
    assert Engine("arrow").counted(table) == rows_of(EVERY_TYPE)


@pytest.mark.parametrize("mapping", ["none", "name"])
def test_partitions_of_any_name_arrive_unchanged(
    mapping: str, engine: Engine, table: DeltaTable
) -> None:
    names = [None, "", "a/b=c%20 ü✈", "x:y?#&", "__HIVE_DEFAULT_PARTITION__x", " pad ", "v7", "v8"]
    days = [dt.date(2020, 1, 1), dt.date(1, 1, 1), None]
    rows = pa.table(
        {
            "id": range(200),
            "p": pa.array([names[n % 8] for n in range(200)], pa.string()),
            "d": pa.array([days[n % 3] for n in range(200)], pa.date32()),
        }
    )
    table.append(
        engine.rows(rows),
        partition_by=["p", "d"],
        properties={"delta.columnMapping.mode": mapping},
    )
    # An empty text is no partition value: the protocol says that it is null.
    expected = rows.set_column(1, "p", pa.array([each or None for each in rows["p"].to_pylist()]))
    assert engine.counted(table) == rows_of(expected)
    assert Engine("arrow").counted(table) == rows_of(expected)
    assert table.snapshot().num_files == 7 * 3
    log = Path(table.uri, "_delta_log", f"{0:020}.json").read_text()
    assert ('"partitionValues":{"p":' in log) == (mapping == "none")
    assert engine.tuples(table, "id", where="p = 'x:y?#&' AND id < 30") == [
        (3,),
        (11,),
        (19,),
        (27,),
    ]


def some(*pairs: tuple[int, int]) -> pa.Table:
    ids, parts = zip(*pairs, strict=True)
    return pa.table({"id": pa.array(ids, pa.int64()), "p": pa.array(parts, pa.int64())})


@pytest.fixture
def partitioned(engine: Engine, table: DeltaTable) -> DeltaTable:
    """Ids 0 to 9 in partitions by parity, all columns nullable."""
    created = table.append(engine.rows(some(*((n, n % 2) for n in range(10)))), partition_by=["p"])
    assert created.version == 0
    return table


def ids(engine: Engine, table: DeltaTable) -> list[int]:
    return [each for (each,) in engine.tuples(table, "id")]


def test_an_append_creates_the_table(engine: Engine, partitioned: DeltaTable) -> None:
    assert engine.tuples(partitioned) == [(n, n % 2) for n in range(10)]
    assert partitioned.snapshot().num_records == 10
    assert all(field.nullable for field in partitioned.schema())
    assert partitioned.metadata().partition_columns == ("p",)


def test_columns_are_matched_by_name_and_missing_ones_are_null(
    engine: Engine, table: DeltaTable
) -> None:
    columns = [("a", pa.int64()), ("B", pa.string()), ("c", pa.date32())]
    created = DeltaTable.create(table.uri, pa.schema(columns))
    created.append(engine.rows(pa.table({"b": ["x"], "A": [1]})))
    assert engine.tuples(created) == [(1, "x", None)]


def test_an_append_without_rows_writes_no_file(engine: Engine, table: DeltaTable) -> None:
    result = table.append(engine.rows(some((1, 1)).slice(1)))
    assert result.metrics["numFiles"] == 0
    assert table.schema().names == ("id", "p")
    assert engine.tuples(table) == []


def test_rows_are_written_once_per_application_version(
    engine: Engine, partitioned: DeltaTable
) -> None:
    more = some((10, 0), (11, 1))
    assert not partitioned.append(engine.rows(more), idempotency=("nightly", 1)).skipped
    assert partitioned.append(engine.rows(more), idempotency=("nightly", 1)).skipped
    assert ids(engine, partitioned) == list(range(12))


def test_an_overwrite_leaves_the_new_rows_alone(engine: Engine, partitioned: DeltaTable) -> None:
    result = partitioned.overwrite(engine.rows(some((20, 0))))
    assert engine.tuples(partitioned) == [(20, 0)]
    assert result.metrics["numRemovedFiles"] == 2
    assert len(engine.tuples(partitioned, version=0)) == 10
    assert partitioned.history(1)[0].operation_parameters["mode"] == "Overwrite"


def test_a_predicate_on_partitions_replaces_whole_files(
    engine: Engine, partitioned: DeltaTable
) -> None:
    result = partitioned.overwrite(engine.rows(some((20, 1), (21, 1))), where="p = 1")
    assert sorted(ids(engine, partitioned)) == [0, 2, 4, 6, 8, 20, 21]
    assert "numCopiedRows" not in result.metrics
    assert partitioned.history(1)[0].operation_parameters["predicate"] == "p = 1"


@pytest.mark.parametrize("vectors", ["true", "false"])
def test_a_predicate_on_rows_keeps_the_others_and_stands_in_the_feed(
    vectors: str, engine: Engine, table: DeltaTable
) -> None:
    properties = {"delta.enableChangeDataFeed": "true", "delta.enableDeletionVectors": vectors}
    table.append(engine.rows(some(*((n, 0) for n in range(10)))), properties=properties)
    table.overwrite(engine.rows(some((3, 7), (4, 7))), where="id BETWEEN 3 AND 4")
    assert ids(engine, table) == list(range(10))
    assert engine.tuples(table, "id", where="p = 7") == [(3,), (4,)]
    assert engine.changes(table, 1, "id", "p") == [
        ("delete", 3, 0),
        ("delete", 4, 0),
        ("insert", 3, 7),
        ("insert", 4, 7),
    ]


def test_dynamic_replaces_the_partitions_that_have_new_rows(
    engine: Engine, partitioned: DeltaTable
) -> None:
    partitioned.overwrite(engine.rows(some((30, 0), (31, 5))), where="dynamic")
    assert sorted(ids(engine, partitioned)) == [1, 3, 5, 7, 9, 30, 31]


def test_rows_outside_the_predicate_are_refused(engine: Engine, partitioned: DeltaTable) -> None:
    error = refusal(
        PartitionMismatch,
        "p = 1",
        partitioned,
        lambda: partitioned.overwrite(engine.rows(some((50, 1), (51, 0))), where="p = 1"),
    )
    assert any("51" in each for each in error.examples)


def test_an_empty_partition_value_which_becomes_null_is_no_value_to_replace_by(
    engine: Engine, table: DeltaTable
) -> None:
    schema = pa.schema([("id", pa.int64()), ("p", pa.string())])
    created = DeltaTable.create(table.uri, schema, partition_by=["p"])
    rows = engine.rows(pa.table({"id": [1], "p": [""]}))
    refusal(
        ConstraintViolation,
        "empty string becomes null",
        created,
        lambda: created.overwrite(rows, where="p = ''"),
    )
    created.append(rows)
    assert engine.tuples(created, where="p IS NULL") == [(1, None)]


def test_a_table_may_be_overwritten_with_what_is_read_from_it(
    engine: Engine, partitioned: DeltaTable
) -> None:
    partitioned.overwrite(engine.lazily(partitioned), where="p = 0 OR p = 1")
    assert ids(engine, partitioned) == list(range(10))
    partitioned.overwrite(engine.lazily(partitioned))
    assert ids(engine, partitioned) == list(range(10))


def test_new_columns_merge_into_the_table(engine: Engine, partitioned: DeltaTable) -> None:
    wider = some((10, 0), (11, 1)).append_column("added", pa.array(["x", "y"]))
    refusal(
        SchemaMismatch, 'schema_mode="merge"', partitioned, lambda: partitioned.append(engine.rows(wider))
    )  # fmt: skip
    partitioned.append(engine.rows(wider), schema_mode="merge")
    assert engine.tuples(partitioned, "id", "added", where="id > 8") == [
        (9, None),
        (10, "x"),
        (11, "y"),
    ]


def test_an_overwrite_replaces_the_schema(engine: Engine, partitioned: DeltaTable) -> None:
    other = pa.table({"p": [1.5, None], "s": ["x", None]})
    partitioned.overwrite(engine.rows(other), schema_mode="overwrite", partition_by=[])
    assert [str(each.data_type) for each in partitioned.schema()] == ["double", "string"]
    assert engine.counted(partitioned) == rows_of(other)
    assert len(engine.tuples(partitioned, version=0)) == 10


def test_wider_values_widen_a_column_that_may(engine: Engine, table: DeltaTable) -> None:
    small = pa.table({"id": pa.array([1, 2], pa.int32())})
    table.append(engine.rows(small), properties={"delta.enableTypeWidening": "true"})
    table.append(engine.rows(pa.table({"id": [2**40]})), schema_mode="merge")
    assert str(table.schema().field("id").data_type) == "long"
    assert ids(engine, table) == [1, 2, 2**40]


LOSSY = [
    ("n", pa.int64(), pa.array([1.0, 2.5]), [1, 2]),
    ("n", pa.int64(), pa.array([Decimal("1.0"), Decimal("2.5")]), [1, 2]),
    ("n", pa.decimal128(5, 1), pa.array([1.5, 2.25]), [Decimal("1.5"), Decimal("2.3")]),
    ("n", pa.decimal128(5, 1), pa.array([Decimal("1.50"), Decimal("2.25")]), [Decimal("1.5"), Decimal("2.3")]),
    (
        "n",
        pa.date32(),
        pa.array([dt.datetime(2020, 1, 1), dt.datetime(2020, 1, 2, 12)], pa.timestamp("us")),
        [dt.date(2020, 1, 1), dt.date(2020, 1, 2)],
    ),
    (
        "n",
        pa.date32(),
        pa.array([dt.datetime(2020, 1, 1), dt.datetime(2020, 1, 2, 12)], pa.timestamp("us", "UTC")),
        [dt.date(2020, 1, 1), dt.date(2020, 1, 2)],
    ),
    ("l", pa.list_(pa.struct([("x", pa.int32())])), pa.array([[{"x": 1.0}], [{"x": 2.5}]]), [[{"x": 1}], [{"x": 2}]]),
]  # fmt: skip


@pytest.mark.parametrize(
    ("name", "column_type", "values", "stored"),
    LOSSY,
    ids=[f"{t}-{v.type}" for _, t, v, _ in LOSSY],
)
def test_a_value_that_loses_a_part_needs_another_schema_mode_than_strict(
    name: str,
    column_type: pa.DataType,
    values: pa.Array,
    stored: list[Any],
    engine: Engine,
    table: DeltaTable,
) -> None:
    table.append(pa.table({name: pa.array([], column_type)}))
    rows = engine.rows(pa.table({name: values}))
    for write in (table.append, table.overwrite):
        error = refusal(
            InvalidCast,
            'lose a part .* schema_mode="merge"',
            table,
            partial(write, rows),
        )
        assert len(error.examples) == 1
    table.append(engine.rows(pa.table({name: values[:1]})))
    table.append(rows, schema_mode="merge")
    assert engine.counted(table) == rows_of(
        pa.table({name: pa.array([stored[0], *stored], column_type)})
    )


COUNT = 500


@pytest.mark.parametrize("partition_by", [None, ["p"]], ids=["plain", "partitioned"])
def test_the_rows_of_every_file_are_sorted(
    partition_by: list[str] | None, engine: Engine, table: DeltaTable
) -> None:
    numbers = list(range(COUNT))
    random.Random(7).shuffle(numbers)
    strings = [None if n % 50 == 0 else f"s{n % 9}" for n in numbers]
    rows: Any = engine.rows(pa.table({"n": numbers, "s": strings, "p": [n % 3 for n in numbers]}))
    if engine.session is not None:
        rows = rows.repartition(3)
    table.append(rows, partition_by=partition_by, sort_by=["S", "n"])
    table.overwrite(engine.lazily(table), sort_by=["s", "n"])
    files = [
        pq.read_table(Path(table.uri, each)).to_pylist()
        for each in table.snapshot().files()["path"].to_pylist()
    ]
    assert sum(map(len, files)) == COUNT
    for each in files:
        keys = [(row["s"] is None, row["s"] or "", row["n"]) for row in each]
        assert keys == sorted(keys)


@pytest.mark.parametrize("mode", ["append", "overwrite"])
def test_a_named_error_of_the_data_is_the_same_everywhere(
    mode: str, engine: Engine, partitioned: DeltaTable
) -> None:
    """One row of many is wrong; the message says which column and shows the value."""
    write = partitioned.append if mode == "append" else partitioned.overwrite
    wrong = pa.table({"id": ["7", "many", "9"], "p": [0, 0, 0]})
    error = refusal(SchemaMismatch, "id", partitioned, lambda: write(engine.rows(wrong)))
    assert error.column == "id"
