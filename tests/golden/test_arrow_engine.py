"""Every golden table through the embedded engine: the answers, or the named refusal."""

from __future__ import annotations

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
COMPLETE = [name for name in READABLE if not answer(name).get("missing_data_files")]
INCOMPLETE = sorted(set(READABLE) - set(COMPLETE))
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
    for column, asked in (expected.get("column_stats") or {}).items():
        assert column_statistics(table.column(column), asked=asked) == asked, column


@pytest.mark.parametrize("name", [name for name in COMPLETE if answered_by_file(name)])
def test_rows_equal_the_stored_answer(name: str) -> None:
    for label, directory in answered_by_file(name).items():
        version = None if label == "latest" else int(label.removeprefix("v"))
        got = DeltaTable(table_path(name)).snapshot(version=version).scan().to_arrow()
        parts = [pq.read_table(path) for path in sorted(directory.glob("**/*.parquet"))]
        stored = pa.concat_tables(parts, promote_options="permissive")
        assert set(got.column_names) == set(stored.column_names)
        assert rows_of(got) == rows_of(_like(stored, got.schema)), label


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


@pytest.mark.parametrize("name", REFUSED)
def test_a_table_that_cannot_be_read_is_refused_by_name(name: str) -> None:
    kind = answer(name)["expected_error"]["kind"]
    with pytest.raises(REFUSALS[kind]):
        DeltaTable(table_path(name)).snapshot().scan().to_arrow()
