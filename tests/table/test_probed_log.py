"""Opening a long local log by the names of its newest commits."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pyarrow as pa
import pytest

from dagster_delta.errors import DeltaError, LogGap
from dagster_delta.protocol.log.paths import commit_path, multi_part_checkpoint_paths
from dagster_delta.storage.local_store import LocalStore
from dagster_delta.table.delta_table import DeltaTable
from dagster_delta.table.log.probing import probed_log
from dagster_delta.table.log.reader import list_settled_log, read_last_checkpoint
from dagster_delta.table.log_upkeep.checkpoint_files import write_checkpoint

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


def test_a_long_log_is_opened_and_extended_without_a_listing(
    table_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(directory: str) -> list[str]:
        raise AssertionError(f"{directory} was listed")

    monkeypatch.setattr(os, "listdir", refuse)
    for version in (LAST + 1, LAST + 2):
        assert DeltaTable(table_path).append(ROWS).version == version
    snapshot = DeltaTable(table_path).snapshot()
    assert snapshot.num_records == 2 * (LAST + 3)
    assert snapshot.checksum is not None


@pytest.mark.parametrize("version", [CHECKPOINT, CHECKPOINT + 7, LAST, None])
def test_the_version_has_the_files_that_a_listing_gives_it(
    table_path: Path, version: int | None
) -> None:
    store = LocalStore(table_path)
    hint = read_last_checkpoint(store)
    assert hint is not None
    assert hint.version == CHECKPOINT
    probed = probed_log(store, hint, version)
    assert probed is not None
    found = probed.segment(table="t")
    listed = list_settled_log(store, end=version).segment(version, table="t")
    assert found.version == listed.version
    assert [each.file.path for each in found.replay] == [each.file.path for each in listed.replay]
    assert found.checkpoint is not None
    assert listed.checkpoint is not None
    assert [each.path for each in found.checkpoint.files] == [
        each.path for each in listed.checkpoint.files
    ]
    assert found.checksum is not None


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


@pytest.mark.parametrize("long_table", ["classic"], indirect=True)
def test_a_checkpoint_in_parts_is_found(table_path: Path) -> None:
    table = DeltaTable(table_path)
    write_checkpoint(table.snapshot(), now_ms=0, max_actions_per_file=100)
    store = LocalStore(table_path)
    hint = read_last_checkpoint(store)
    assert hint is not None
    assert hint.parts == 3
    probed = probed_log(store, hint, None)
    assert probed is not None
    found = probed.segment(table="t").checkpoint
    assert found is not None
    paths = [each.path for each in found.files]
    assert paths == [*multi_part_checkpoint_paths(LAST, 3)]


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
