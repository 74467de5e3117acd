"""Every golden table through the embedded engine: the answers, or the named refusal."""

from __future__ import annotations

import shutil
from pathlib import Path
from urllib.parse import quote

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dagster_delta import DeltaTable
from dagster_delta.errors import (
    CatalogRequired,
    DataFileMissing,
    DeltaError,
    LogGap,
    MissingMetadata,
    MissingProtocol,
    TableNotFound,
    UnsupportedFeature,
    UnsupportedReaderVersion,
)
from tests.golden.answers import (
    NAMES,
    answer,
    answered_by_file,
    column_statistics,
    row_counts,
    rows_of,
    table_path,
    wanted,
)

REFUSALS: dict[str, type[DeltaError]] = {
    "no_metadata": MissingMetadata,
    "no_protocol": MissingProtocol,
    "not_a_delta_table": TableNotFound,
    "log_gap": LogGap,
    "unsupported_reader_version": UnsupportedReaderVersion,
    "unsupported_feature": UnsupportedFeature,
    "catalog_required": CatalogRequired,
}

READABLE = [name for name in NAMES if answer(name)["expected_error"] is None]
# Its log is a template that has to be told where it lies.
TEMPLATE = "spark__table-with-dv-special-char"
COMPLETE = [
    name for name in READABLE if not answer(name).get("missing_data_files") and name != TEMPLATE
]
# Columns whose stored answer was written under another reading of the same text.
STORED_IN_ANOTHER_ZONE = {"golden__data-reader-partition-values": "as_timestamp"}
# Their one file is removed under another spelling of its path, which only delta-spark sees; so do we.
REMOVED_BY_ANOTHER_NAME = [name for name in READABLE if "canonicalized-paths" in name]
INCOMPLETE = sorted(set(READABLE) - set(COMPLETE) - set(REMOVED_BY_ANOTHER_NAME) - {TEMPLATE})
REFUSED = sorted(set(NAMES) - set(READABLE))
TRAVELLED = [name for name in COMPLETE if answer(name).get("versions")]

pytestmark = pytest.mark.usefixtures("golden_tables")


def test_the_golden_tables_are_all_there() -> None:
    assert len(NAMES) == 179


@pytest.mark.parametrize("name", READABLE)
def test_the_log_gives_version_and_files(name: str) -> None:
    expected = answer(name)
    snapshot = DeltaTable(table_path(name)).snapshot()
    if expected["version"] is not None:
        assert snapshot.version == expected["version"]
    if expected["num_active_files"] is not None:
        assert snapshot.num_files == expected["num_active_files"]
        assert snapshot.files().num_rows == expected["num_active_files"]


@pytest.mark.parametrize("name", COMPLETE)
def test_a_full_scan_gives_the_expected_rows(name: str) -> None:
    expected = answer(name)
    snapshot = DeltaTable(table_path(name)).snapshot()
    table = snapshot.scan().to_arrow()
    if expected["row_count"] is not None:
        assert table.num_rows == expected["row_count"]
        assert snapshot.num_records in (None, expected["row_count"])
        assert snapshot.scan().count() == expected["row_count"]
    if expected.get("columns"):
        assert table.column_names == expected["columns"]
    if expected.get("rows") is not None:
        assert rows_of(table) == row_counts([wanted(row) for row in expected["rows"]])  # type: ignore[misc]
    for column, answers in (expected.get("column_stats") or {}).items():
        # A sum of null stands for one that was never established.
        asked = {
            key: wanted(value) for key, value in answers.items() if (key, value) != ("sum", None)
        }
        assert column_statistics(table.column(column), asked=asked) == asked, column


@pytest.mark.parametrize("name", [name for name in COMPLETE if answered_by_file(name)])
def test_rows_equal_the_stored_answer(name: str) -> None:
    for version, files in answered_by_file(name).items():
        got = DeltaTable(table_path(name)).snapshot(version=version).scan().to_arrow()
        stored = pa.concat_tables(map(pq.read_table, files), promote_options="permissive")
        assert set(got.column_names) == set(stored.column_names)
        if (unlike := STORED_IN_ANOTHER_ZONE.get(name)) is not None:
            got, stored = got.drop_columns(unlike), stored.drop_columns(unlike)
        assert rows_of(got) == rows_of(_like(stored, got.schema)), version


def _like(stored: pa.Table, schema: pa.Schema) -> pa.Table:
    """The stored answer in our types: other writers spell timestamps and strings otherwise."""
    return stored.select(schema.names).cast(schema, safe=False)


@pytest.mark.parametrize("name", TRAVELLED)
def test_time_travel_gives_the_rows_of_each_version(name: str) -> None:
    table = DeltaTable(table_path(name))
    for version, expected in answer(name)["versions"].items():
        snapshot = table.snapshot(version=int(version))
        if expected.get("num_active_files") is not None:
            assert snapshot.num_files == expected["num_active_files"], version
        if expected.get("row_count") is not None:
            assert snapshot.num_records in (None, expected["row_count"]), version
            assert snapshot.scan(columns=[]).to_arrow().num_rows == expected["row_count"], version


@pytest.mark.parametrize("name", INCOMPLETE)
def test_a_scan_names_the_data_file_that_is_missing(name: str) -> None:
    snapshot = DeltaTable(table_path(name)).snapshot()
    with pytest.raises(DataFileMissing) as caught:
        snapshot.scan().to_arrow()
    assert caught.value.file is not None
    assert caught.value.file in str(caught.value)


def test_a_deletion_vector_at_an_absolute_path_is_applied(tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(table_path(TEMPLATE), copy)
    directory = quote(str(next(copy.glob("folder*"))))
    log = copy / "_delta_log" / "00000000000000000000.json"
    log.write_text(log.read_text().replace("{{FOLDER_WITH_SPECIAL_CHAR}}", directory))
    snapshot = DeltaTable(copy).snapshot()
    rows = snapshot.scan().to_arrow()["id"].to_pylist()
    assert len(rows) == snapshot.num_records
    assert set(rows) < set(range(10))


@pytest.mark.parametrize("name", REMOVED_BY_ANOTHER_NAME)
def test_a_remove_that_spells_the_path_otherwise_hides_the_file(name: str) -> None:
    snapshot = DeltaTable(table_path(name)).snapshot()
    assert snapshot.num_files == 0
    assert snapshot.scan().to_arrow().num_rows == 0


@pytest.mark.parametrize("name", REFUSED)
def test_a_table_that_cannot_be_read_is_refused_by_name(name: str) -> None:
    kind = answer(name)["expected_error"]["kind"]
    with pytest.raises(REFUSALS[kind]):
        DeltaTable(table_path(name)).snapshot().scan().to_arrow()
