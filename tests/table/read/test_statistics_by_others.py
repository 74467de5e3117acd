"""Filters find every row of files whose statistics other writers wrote in their own way."""

from __future__ import annotations

import datetime as dt
import json
import math
from collections.abc import Callable
from decimal import Context, Decimal
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from dagster_delta import DeltaTable

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

COLLECTIONS = pa.table(
    {
        "value": [5, 6, 7],
        "key": ["a", None, None],
        "item": [None, 1, None],
        "m": pa.array([[("a", None), ("b", None)], [("c", 1)], []], pa.map_("string", "int64")),
        "a": [[None, None, None], [1], []],
    }
)
# As deltalake 1.2 writes it: the values of `m` are all counted as nulls of `value`.
OF_COLLECTIONS = {
    "numRecords": 3,
    "minValues": {"value": 5, "key": "a", "item": 1},
    "maxValues": {"value": 7, "key": "a", "item": 1},
    "nullCount": {"value": 3, "key": 0, "item": 3},
}


def with_statistics(path: Path, rows: pa.Table, statistics: dict[str, Any]) -> DeltaTable:
    """A table of one file that has these statistics in the log."""
    table = DeltaTable(str(path), must_exist=False)
    table.append(rows)
    log = path / "_delta_log"
    commit = log / f"{0:020}.json"
    actions = [json.loads(line) for line in commit.read_text().splitlines()]
    for action in actions:
        if "add" in action:
            action["add"]["stats"] = json.dumps(statistics)
    for known in log.iterdir():
        known.unlink()
    commit.write_text("\n".join(map(json.dumps, actions)))
    return DeltaTable(str(path))


def bounds_of(name: str, minimum: object, maximum: object) -> dict[str, Any]:
    return {
        "numRecords": 1,
        "minValues": {name: minimum},
        "maxValues": {name: maximum},
        "nullCount": {name: 0},
    }


@pytest.mark.parametrize(
    ("where", "count"),
    [
        ("value = 6", 1),
        ("value IS NOT NULL", 3),
        ("key IS NULL", 2),
        ("NOT key <=> 'a'", 2),
        ("item > 0", 1),
    ],
)
def test_null_counts_of_collections_are_not_those_of_a_column(
    tmp_path: Path, where: str, count: int
) -> None:
    table = with_statistics(tmp_path, COLLECTIONS, OF_COLLECTIONS)
    assert table.snapshot().scan(where=where).to_arrow().num_rows == count
    table.checkpoint()
    assert DeltaTable(table.uri).snapshot().scan(where=where).to_arrow().num_rows == count


def test_a_delete_keeps_the_rows_that_null_counts_of_a_map_hide(tmp_path: Path) -> None:
    table = with_statistics(tmp_path, COLLECTIONS, OF_COLLECTIONS)
    table.delete("key >= 'a'")
    assert table.snapshot().scan(["value"]).to_arrow()["value"].to_pylist() == [6, 7]


def as_text_of_delta_1(text: str) -> str:
    """A maximum of at least 33 UTF-16 units, as Delta Lake 1.0 and Spark RAPIDS write it."""
    kept = text.encode("utf-16-le")[:64].decode("utf-16-le", "surrogatepass")
    return kept.encode("utf-8", "replace").decode() + "\ufffd"


TEXTS = ["\U0001f600" * 40, "a" + "\U0001f600" * 40, "\u00e9" * 40, "\U0001f600?" * 17]


@pytest.mark.parametrize("text", TEXTS, ids=["even", "odd", "accents", "mixed"])
def test_texts_are_found_that_are_truncated_within_a_character(tmp_path: Path, text: str) -> None:
    least = text[:5]
    statistics = bounds_of("c", least, as_text_of_delta_1(text))
    table = with_statistics(tmp_path, pa.table({"c": [text]}), statistics)
    for where in (f"c = '{text}'", f"c > '{text[:-1]}'", f"startswith(c, '{text[:30]}')"):
        assert table.snapshot().scan(where=where).to_arrow().num_rows == 1, where


# deltalake 1.6 computes bounds of decimals without a fraction as 64-bit integers.
_EXACT = Context(prec=76)
BIG, LOW = Decimal("12345678901234567890"), Decimal("-99999999999999999999")


def beyond_64_bits(path: Path, *, has_parsed: bool) -> DeltaTable:
    rows = pa.table({"id": [1, 2], "key": pa.array([BIG, LOW], pa.decimal128(38, 0))})
    write_deltalake(path, rows)
    table = DeltaTable(str(path))
    (stats,) = table.snapshot().live_files(["stats"])["stats"].to_pylist()
    assert json.loads(stats)["maxValues"]["key"] == 2**63 - 1
    if has_parsed:
        table.checkpoint()
    return DeltaTable(str(path))


@pytest.mark.parametrize("has_parsed", [False, True], ids=["text", "parsed"])
def test_decimals_are_found_whose_bounds_stop_at_the_ends_of_64_bits(
    tmp_path: Path, has_parsed: bool
) -> None:
    table = beyond_64_bits(tmp_path, has_parsed=has_parsed)
    for where, ids in {
        f"key = {BIG}": [1],
        f"key > {BIG - 1}": [1],
        f"key IN (0, {BIG})": [1],
        f"key <= {LOW}": [2],
        f"key < {LOW + 1}": [2],
    }.items():
        scan = table.snapshot().scan(where=where)
        assert (scan.to_arrow()["id"].to_pylist(), scan.count()) == (ids, len(ids)), where
    source = pa.table({"id": [9], "key": pa.array([BIG], pa.decimal128(38, 0))})
    merge = table.merge(source, on="t.key = s.key").when_matched_update_all()
    merge.when_not_matched_insert_all().execute()
    table.update({"id": "3"}, where=f"key <= {LOW}")
    assert sorted(table.snapshot().scan().to_arrow()["id"].to_pylist()) == [3, 9]
    table.delete(f"key = {BIG}")
    assert table.snapshot().scan().to_arrow()["id"].to_pylist() == [3]


def test_filters_find_every_value_of_the_widest_columns_of_deltalake(tmp_path: Path) -> None:
    days = [
        dt.datetime(1, 1, 1),
        dt.datetime(1500, 1, 1, 0, 0, 0, 1),
        dt.datetime(9999, 12, 31, 23, 59, 59, 999999),
    ]
    digits = [0, 1, 10**15 + 1, 2**63 - 1, 2**63, 2**63 + 1, 10**37 + 1, 10**38 - 1]
    numbers = [*digits, *(-number for number in digits)]
    found: list[tuple[pa.Array, Callable[[Any], str]]] = [
        (pa.array(days, pa.timestamp("us")), lambda value: f"TIMESTAMP_NTZ '{value}'"),
        (pa.array([day.date() for day in days]), lambda value: f"DATE '{value}'"),
        (pa.array([2**63 - 1, -(2**63), 2**53 + 1]), lambda value: f"cast('{value}' AS BIGINT)"),
        (pa.array([math.inf, -math.inf, 0.1, -0.0, 5e-324]), lambda value: f"double('{value}')"),
        (pa.array(["\U0010ffff" * 40, "z" * 63 + "é", "\U0001f600" * 33]), lambda value: f"'{value}'"),
    ]  # fmt: skip
    for scale in (0, 1, 18, 38):
        scaled = [Decimal(number).scaleb(-scale, _EXACT) for number in numbers]
        column = pa.array(scaled, pa.decimal128(38, scale))
        literal = f"AS DECIMAL(38, {scale}))"
        found.append((column, partial("cast('{:f}' {end}".format, end=literal)))
    table = tmp_path / "table"
    for values, literal_of in found:
        write_deltalake(table, pa.table({"v": values}), mode="overwrite", schema_mode="overwrite")
        for value in values.to_pylist():
            for operator in ("=", "<=", ">="):
                where = f"v {operator} {literal_of(value)}"
                assert DeltaTable(str(table)).snapshot().scan(where=where).num_files == 1, where


# Python's json writes such numbers, and JSON does not have them: xdlake 0.0.10 logs them.
NOT_JSON = {
    "numRecords": 3,
    "minValues": {"id": 1, "x": -math.inf},
    "maxValues": {"id": 3, "x": math.inf},
    "nullCount": {"id": 0, "x": 0},
}
IDS = pa.table({"id": [1, 2, 3], "x": [math.inf, 1.0, -math.inf]})
STATEMENTS: dict[str, tuple[Callable[[DeltaTable], object], list[int]]] = {
    "delete": (lambda table: table.delete("id = 2"), [1, 3]),
    "update": (lambda table: table.update({"id": "9"}, where="x > 5"), [2, 3, 9]),
    "merge": (
        lambda table: table.merge(IDS, on="t.id = s.id").when_matched_delete("t.x < 5").execute(),
        [1],
    ),
    "optimize": (lambda table: table.optimize(), [1, 2, 3]),
    "checkpoint": (lambda table: table.checkpoint(), [1, 2, 3]),
    "overwrite": (lambda table: table.overwrite(IDS.slice(0, 1), where="id = 1"), [1, 2, 3]),
}


@pytest.mark.parametrize("statement", STATEMENTS)
@pytest.mark.parametrize("has_vectors", [False, True], ids=["files", "vectors"])
def test_every_statement_passes_over_statistics_that_are_not_json(
    tmp_path: Path, has_vectors: bool, statement: str
) -> None:
    table = with_statistics(tmp_path, IDS, NOT_JSON)
    table.set_properties({"delta.enableDeletionVectors": str(has_vectors).lower()})
    run, expected = STATEMENTS[statement]
    run(table)
    table = DeltaTable(table.uri)
    assert sorted(table.snapshot().scan().to_arrow()["id"].to_pylist()) == expected
    assert table.snapshot().scan(where="id > 0 AND x <= double('Infinity')").count() == len(
        expected
    )


# The offsets from UTC have seconds, here in Monrovia and in Calcutta, and Spark 3 drops them.
EARLY = [
    ("1960-06-01 12:00:30.123456", "1960-06-01T11:16:00.123-00:44"),
    ("1800-06-01 12:00:30.123456", "1800-06-01T17:53:58.123+05:53"),
]


@pytest.mark.parametrize(("moment", "bound"), EARLY)
def test_times_are_found_whose_bounds_lack_the_seconds_of_the_offset(
    tmp_path: Path, moment: str, bound: str
) -> None:
    value = pa.array([dt.datetime.fromisoformat(moment)], pa.timestamp("us", "UTC"))
    table = with_statistics(tmp_path, pa.table({"c": value}), bounds_of("c", bound, bound))
    for operator in ("=", "<=", ">="):
        where = f"c {operator} TIMESTAMP '{moment}Z'"
        assert table.snapshot().scan(where=where).to_arrow().num_rows == 1, where


def on_spark(table: DeltaTable, where: str, spark: SparkSession) -> pa.Table:
    return DeltaTable(table.uri).snapshot().scan(where=where).to_spark(spark).toArrow()


@pytest.mark.parametrize("has_parsed", [True, False], ids=["parsed", "json"])
def test_spark_finds_the_same_rows(tmp_path: Path, spark: SparkSession, has_parsed: bool) -> None:
    properties = {"delta.checkpoint.writeStatsAsStruct": str(has_parsed).lower()}

    def checkpointed(name: str, rows: pa.Table, statistics: dict[str, Any]) -> DeltaTable:
        table = with_statistics(tmp_path / name, rows, statistics)
        table.set_properties(properties)
        table.checkpoint()
        return table

    table = checkpointed("collections", COLLECTIONS, OF_COLLECTIONS)
    assert on_spark(table, "key IS NULL AND value > 6", spark)["value"].to_pylist() == [7]
    for text in TEXTS:
        statistics = bounds_of("c", text[:5], as_text_of_delta_1(text))
        table = checkpointed(str(TEXTS.index(text)), pa.table({"c": [text]}), statistics)
        assert on_spark(table, f"c = '{text}'", spark).num_rows == 1
    for moment, bound in EARLY:
        value = pa.array([dt.datetime.fromisoformat(moment)], pa.timestamp("us", "UTC"))
        statistics = bounds_of("c", bound, bound)
        table = checkpointed(moment[:4], pa.table({"c": value}), statistics)
        assert on_spark(table, f"c = TIMESTAMP '{moment}Z'", spark).num_rows == 1


def test_the_null_count_of_a_map_does_not_say_that_a_file_has_a_column(
    tmp_path: Path, spark: SparkSession
) -> None:
    statistics = {"numRecords": 3, "nullCount": {"value": 1}}
    table = with_statistics(tmp_path, COLLECTIONS.select(["m"]), statistics)
    table.add_column("value", "INT", default="7", existing_rows="lazy")
    for where in (None, "value = 7"):
        scan = table.snapshot().scan(["value"], where=where)
        assert scan.to_arrow()["value"].to_pylist() == [7] * 3
        assert scan.to_spark(spark).toArrow()["value"].to_pylist() == [7] * 3
    assert table.snapshot().scan(where="value IS NULL").to_arrow().num_rows == 0
