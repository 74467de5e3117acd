"""What the logs of real tables say: versions, live files, time travel, and what must be refused."""

from __future__ import annotations

import os

import pytest

from dagster_delta.errors import (
    CatalogRequired,
    DeltaError,
    LogGap,
    MissingMetadata,
    MissingProtocol,
    TableNotFound,
    UnsupportedFeature,
    UnsupportedReaderVersion,
)
from dagster_delta.storage import open_store
from dagster_delta.table.read.snapshot import Snapshot
from tests.conftest import GOLDEN_TABLES
from tests.golden.answers import NAMES, answer

ERRORS: dict[str, type[DeltaError]] = {
    "no_metadata": MissingMetadata,
    "no_protocol": MissingProtocol,
    "not_a_delta_table": TableNotFound,
    "log_gap": LogGap,
    "unsupported_reader_version": UnsupportedReaderVersion,
    "unsupported_feature": UnsupportedFeature,
    "catalog_required": CatalogRequired,
}

if not NAMES:
    pytest.skip(
        f"no golden tables at {GOLDEN_TABLES}: set GOLDEN_TABLES to their directory",
        allow_module_level=True,
    )


def _open(name: str, version: int | None = None) -> Snapshot:
    return Snapshot.load(open_store(str(GOLDEN_TABLES / name / "table")), version=version)


ANSWERS = {name: answer(name) for name in NAMES}
REFUSED = [name for name in NAMES if ANSWERS[name]["expected_error"]]
READABLE = [name for name in NAMES if not ANSWERS[name]["expected_error"]]
TRAVELS = [
    (name, int(version)) for name in READABLE for version in ANSWERS[name].get("versions") or {}
]


@pytest.mark.parametrize("name", REFUSED)
def test_broken_or_unknown_tables_are_refused_by_name(name: str) -> None:
    with pytest.raises(ERRORS[ANSWERS[name]["expected_error"]["kind"]]) as raised:
        _open(name)
    assert raised.value.table == os.path.abspath(GOLDEN_TABLES / name / "table")


@pytest.mark.parametrize("name", READABLE)
def test_latest_version_has_the_expected_live_files(name: str) -> None:
    answer = ANSWERS[name]
    snapshot = _open(name)
    assert snapshot.version == answer["version"]
    files = snapshot.live_files()
    assert snapshot.num_files == files.num_rows == snapshot.files().num_rows
    assert len(set(files["path"].to_pylist())) == files.num_rows
    if answer["num_active_files"] is not None:
        assert snapshot.num_files == answer["num_active_files"]
    if answer["row_count"] is not None and snapshot.num_records is not None:
        assert snapshot.num_records == answer["row_count"]


@pytest.mark.parametrize(("name", "version"), TRAVELS)
def test_time_travel_finds_the_files_of_the_version(name: str, version: int) -> None:
    answer = ANSWERS[name]["versions"][str(version)]
    snapshot = _open(name, version)
    assert snapshot.version == version
    assert snapshot.num_files == answer["num_active_files"]
    if answer.get("row_count") is not None and snapshot.num_records is not None:
        assert snapshot.num_records == answer["row_count"]


@pytest.mark.parametrize("name", [name for name in NAMES if "canonicalized-paths" in name])
def test_spellings_of_one_absolute_path_are_one_file(name: str) -> None:
    # As the reference implementation counts: it adds `/p` and removes `file:///p`.
    assert _open(name).num_files == 0
