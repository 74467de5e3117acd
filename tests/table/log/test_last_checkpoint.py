"""Opening a long local log by the hint to its last checkpoint."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pyarrow as pa
import pytest

from dagster_delta.errors import DeltaError, LogGap
from dagster_delta.protocol.log.paths import commit_path
from dagster_delta.table.delta_table import DeltaTable

ROWS = pa.table({"id": [1, 2]})
CHECKPOINT, LAST = 200, 225


@pytest.fixture(scope="module", params=["classic", "v2"])
def long_table(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A table whose last checkpoint is followed by 25 commits."""
    path = tmp_path_factory.mktemp("long") / "table"
    properties = {"delta.checkpointInterval": "200", "delta.checkpointPolicy": request.param}
    table = DeltaTable(path, must_exist=False)
    for _ in range(LAST + 1):
        table.append(ROWS, properties=properties)
    return path


@pytest.fixture
def table_path(long_table: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(long_table, tmp_path / "table"))


def delete_commits(path: Path, *versions: int) -> None:
    for version in versions:
        (path / commit_path(version)).unlink()


@pytest.mark.parametrize(
    "missing", [(CHECKPOINT + 1,), (LAST - 1,), tuple(range(CHECKPOINT + 2, LAST))]
)
def test_a_missing_commit_is_a_gap_and_is_not_filled(
    table_path: Path, missing: tuple[int, ...]
) -> None:
    delete_commits(table_path, *missing)
    with pytest.raises(LogGap):
        DeltaTable(table_path)
    assert not (table_path / commit_path(missing[0])).exists()


def test_a_long_gap_is_found_by_a_later_run_of_commits(table_path: Path) -> None:
    for version in range(LAST + 1, LAST + 190):
        shutil.copy(table_path / commit_path(LAST), table_path / commit_path(version))
    delete_commits(table_path, *range(CHECKPOINT + 1, CHECKPOINT + 190))
    with pytest.raises(LogGap):
        DeltaTable(table_path)


def test_a_version_past_the_last_one_is_refused(table_path: Path) -> None:
    with pytest.raises(DeltaError, match=f"no version {LAST + 1}"):
        DeltaTable(table_path).snapshot(version=LAST + 1)


def test_a_hint_that_is_wrong_is_not_followed(table_path: Path) -> None:
    hint_path = table_path / "_delta_log" / "_last_checkpoint"
    hint = json.loads(hint_path.read_bytes())
    del hint["checksum"]
    for change in (
        {"version": LAST - 3},
        {"parts": 2},
        {"parts": 10**12},
        {"tags": {"fileName": "../" * 9 + "etc/passwd"}},
        {"tags": {"fileName": 7}, "v2Checkpoint": []},
    ):
        hint_path.write_text(json.dumps(hint | change))
        assert DeltaTable(table_path).version() == LAST
