"""Every real table of others that can be read: each engine gives the rows of its answer."""

from __future__ import annotations

import datetime as dt
import shutil
from collections import Counter
from decimal import Decimal
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pyarrow as pa
import pyarrow.parquet as pq
import pyspark
import pytest

from dagster_delta import DeltaTable
from dagster_delta.errors import DataFileMissing
from dagster_delta.protocol.values.partition_values import decode_path
from dagster_delta.table.read.scan import Scan
from tests.conformance.engines import Engine
from tests.golden.answers import (
    NAMES,
    QUERIES,
    READABLE,
    TEMPLATE,
    answer,
    answered_by_file,
    column_statistics,
    printed,
    query_id,
    row_counts,
    rows_of,
    table_path,
    wanted,
)

COMPLETE = [
    name for name in READABLE if not answer(name).get("missing_data_files") and name != TEMPLATE
]
# Their one file is removed under another spelling of its path, which only delta-spark sees; so do we.
REMOVED_BY_ANOTHER_NAME = [name for name in READABLE if "canonicalized-paths" in name]
INCOMPLETE = sorted(set(READABLE) - set(COMPLETE) - set(REMOVED_BY_ANOTHER_NAME) - {TEMPLATE})
# Columns whose stored answer was written under another reading of the same text.
STORED_IN_ANOTHER_ZONE = {"golden__data-reader-partition-values": "as_timestamp"}
# More rows than this are compared by their number alone where they come from Spark, and in Arrow
# where they do not: a million rows of Python take half a minute.
MAX_COMPARED = 100_000

pytestmark = pytest.mark.usefixtures("golden_tables")


def scan_of(name: str, engine: Engine, version: int | None = None) -> Scan:
    """All columns but those with variants in them, whose values have no form that compares."""
    snapshot = DeltaTable(table_path(name)).snapshot(version=version)
    types = {each.name: str(each.data_type) for each in snapshot.schema}
    if engine.session is not None and pyspark.__version__.startswith("4.0."):
        types = {column: kind for column, kind in types.items() if kind != "variant"}
    columns = [
        column for column, kind in types.items() if kind == "variant" or "variant" not in kind
    ]
    return snapshot.scan(columns if len(columns) < len(snapshot.schema) else None)


@pytest.mark.examples(2, on_spark=True)
@pytest.mark.parametrize("name", COMPLETE)
def test_a_full_scan_gives_the_expected_rows(name: str, engine: Engine) -> None:
    expected = answer(name)
    scan = scan_of(name, engine)
    if engine.session is not None and (expected["row_count"] or 0) > MAX_COMPARED:
        assert engine.count(scan) == expected["row_count"]
        return
    table = engine.read(scan)
    if expected["row_count"] is not None:
        assert table.num_rows == expected["row_count"]
        assert scan.snapshot.num_records in (None, expected["row_count"])
    if expected.get("columns"):
        assert list(scan.snapshot.schema.names) == expected["columns"]
    if expected.get("rows") is not None:
        assert rows_of(table) == row_counts([wanted(row) for row in expected["rows"]])  # type: ignore[misc]
    if files := answered_by_file(name).get(None):
        check_stored(name, table, files)
    elif engine.session is not None and expected.get("rows") is None:
        # No answer says it: the engines say the same.
        assert rows_of(table) == rows_of(Engine("arrow").read(scan))
    for column, answers in (expected.get("column_stats") or {}).items():
        if column not in table.column_names:
            continue
        # A sum of null stands for one that was never established.
        asked = {
            key: wanted(value) for key, value in answers.items() if (key, value) != ("sum", None)
        }
        assert column_statistics(table.column(column), asked=asked) == asked, column


def check_stored(name: str, found: pa.Table, files: list[Path]) -> None:
    stored = pa.concat_tables(map(pq.read_table, files), promote_options="permissive")
    assert set(found.column_names) == set(stored.column_names)
    if (unlike := STORED_IN_ANOTHER_ZONE.get(name)) is not None:
        found, stored = found.drop_columns(unlike), stored.drop_columns(unlike)
    stored = _like(stored, found.schema)
    if len(found) > MAX_COMPARED:
        assert _in_order(found).equals(_in_order(stored))
    else:
        assert rows_of(found) == rows_of(stored)


def _in_order(rows: pa.Table) -> pa.Table:
    return rows.sort_by([(name, "ascending") for name in rows.column_names])


def _like(stored: pa.Table, schema: pa.Schema) -> pa.Table:
    """The stored answer in our types: other writers spell timestamps and strings otherwise."""
    return stored.select(schema.names).cast(schema, safe=False)


@pytest.mark.parametrize(
    "name", [name for name in COMPLETE if set(answered_by_file(name)) - {None}]
)
def test_an_earlier_version_has_the_rows_it_had(name: str, engine: Engine) -> None:
    for version, files in answered_by_file(name).items():
        if version is not None:
            snapshot = DeltaTable(table_path(name)).snapshot(version=version)
            check_stored(name, engine.read(snapshot.scan()), files)


@pytest.mark.examples(8, on_spark=True)
@pytest.mark.parametrize("name", [name for name in COMPLETE if answer(name).get("versions")])
def test_time_travel_gives_the_rows_of_each_version(name: str, engine: Engine) -> None:
    table = DeltaTable(table_path(name))
    versions = answer(name)["versions"]
    counted = set(versions)
    if engine.session is not None:
        # The files of a version do not depend on the engine: Spark reads those of four versions.
        counted = set(list(versions)[:: max(1, len(versions) // 3)])
    for version, expected in versions.items():
        snapshot = table.snapshot(version=int(version))
        if expected.get("num_active_files") is not None:
            assert snapshot.num_files == expected["num_active_files"], version
        if expected.get("row_count") is not None:
            assert snapshot.num_records in (None, expected["row_count"]), version
            if version in counted:
                assert engine.count(snapshot.scan(columns=[])) == expected["row_count"], version


@pytest.mark.examples(8, on_spark=True)
@pytest.mark.parametrize("name", COMPLETE)
def test_a_filter_finds_its_rows_and_a_projection_their_columns(name: str, engine: Engine) -> None:
    """The filter is on the first column of a type that has a literal, the columns are turned."""
    if (answer(name)["row_count"] or 0) > MAX_COMPARED:
        pytest.skip("too many rows to compare")
    scan = scan_of(name, engine)
    rows = Engine("arrow").read(scan)
    chosen = next(
        (
            (column, literal)
            for column in rows.column_names
            if str(scan.schema.field(column).data_type) != "variant"
            for value in reversed(rows[column].to_pylist())
            if (literal := _literal(value)) is not None
        ),
        None,
    )
    if chosen is None:
        pytest.skip("no value that has a literal")
    column, literal = chosen
    columns = rows.column_names[::-1]
    found = engine.read(scan.snapshot.scan(columns, f"`{column}` <=> {literal}"))
    matches = [each == literal for each in map(_literal, rows[column].to_pylist())]
    assert any(matches)
    assert found.column_names == columns
    assert rows_of(found) == rows_of(rows.filter(pa.array(matches)).select(columns))


def _literal(value: object) -> str | None:
    """A value in SQL, or None where it has no literal that is equal to itself alone."""
    match value:
        case bool():
            return str(value).lower()
        case int():
            return f"CAST('{value}' AS BIGINT)"
        case str() if value.isascii() and "'" not in value and "\\" not in value:
            return f"'{value}'"
        case Decimal():
            return f"{value:f}BD"
        case dt.date() if not isinstance(value, dt.datetime):
            return f"DATE '{value.isoformat()}'"
        case _:
            return None


@pytest.mark.parametrize("name", INCOMPLETE)
def test_a_scan_names_the_data_file_that_is_missing(name: str, engine: Engine) -> None:
    snapshot = DeltaTable(table_path(name)).snapshot()
    # Spark may come upon it only when rows are asked for: the error is its own then.
    kind = DataFileMissing if engine.session is None else Exception
    with pytest.raises(kind) as caught:
        engine.read(snapshot.scan())
    paths = snapshot.files()["path"].to_pylist()
    assert any(decode_path(each).rpartition("/")[2] in str(caught.value) for each in paths)


def test_a_deletion_vector_at_an_absolute_path_is_applied(engine: Engine, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(table_path(TEMPLATE), copy)
    directory = quote(str(next(copy.glob("folder*"))))
    log = copy / "_delta_log" / "00000000000000000000.json"
    log.write_text(log.read_text().replace("{{FOLDER_WITH_SPECIAL_CHAR}}", directory))
    snapshot = DeltaTable(copy).snapshot()
    rows = engine.read(snapshot.scan())["id"].to_pylist()
    assert len(rows) == snapshot.num_records
    assert set(rows) < set(range(10))


@pytest.mark.parametrize("name", REMOVED_BY_ANOTHER_NAME)
def test_a_remove_that_spells_the_path_otherwise_hides_the_file(name: str, engine: Engine) -> None:
    snapshot = DeltaTable(table_path(name)).snapshot()
    assert snapshot.num_files == 0
    assert engine.read(snapshot.scan()).num_rows == 0


@pytest.mark.parametrize("query", QUERIES, ids=query_id)
def test_the_feed_of_a_table_is_the_expected_one(
    query: tuple[str, dict[str, Any]], engine: Engine
) -> None:
    name, asked = query
    rows = engine.read(DeltaTable(table_path(name)).changes(asked["start"], asked["end"]))
    versions = rows["_commit_version"].to_pylist()
    assert Counter(zip(versions, rows["_change_type"].to_pylist(), strict=True)) == {
        (each["version"], each["change_type"]): each["rows"] for each in asked["counts"]
    }
    assert engine.session is not None or versions == sorted(versions)
    assert rows["_commit_timestamp"].null_count == 0
    if expected := asked.get("rows_as_printed"):
        compared = rows.select(list(expected[0])).to_pylist()
        spelled = [{key: printed(each) for key, each in row.items()} for row in compared]
        assert row_counts(spelled) == row_counts(expected)  # type: ignore[arg-type]


def test_the_answers_are_all_there() -> None:
    assert (len(NAMES), len(QUERIES)) == (179, 17)
    assert len(COMPLETE) == 149
