"""Symlink manifests: written on request, or kept by every commit of a table with the property."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from dagster_delta.errors import UnsupportedFeature
from dagster_delta.storage import open_store
from dagster_delta.table.delta_table import DeltaTable
from dagster_delta.testing.faulty_store import FaultyStore
from tests.sample_tables import VECTORS, numbered

KEPT = {"delta.compatibility.symlinkFormatManifest.enabled": "true"}


def make(path: Path, properties: dict[str, str], partition_by: tuple[str, ...] = ()) -> DeltaTable:
    table = DeltaTable(str(path), must_exist=False)
    table.append(numbered(1, 2, 3, 4), properties=properties, partition_by=partition_by)
    return table


def listed(table: DeltaTable) -> dict[str, list[str]]:
    """Names of the data files by the directory of the manifest."""
    root = Path(table.uri) / "_symlink_format_manifest"
    return {
        str(path.parent.relative_to(root)): [
            line.removeprefix(f"file:{table.uri}/") for line in path.read_text().splitlines()
        ]
        for path in root.rglob("manifest")
    }


def live(table: DeltaTable) -> list[str]:
    return sorted(table.snapshot().files()["path"].to_pylist())


def test_they_are_written_on_request(tmp_path: Path) -> None:
    table = make(tmp_path, {})
    assert listed(table) == {}
    assert table.generate_symlink_manifests() == ("_symlink_format_manifest/manifest",)
    assert listed(table) == {".": live(table)}
    table.delete()
    assert len(listed(table)["."]) == 1
    table.generate_symlink_manifests()
    assert listed(table) == {".": []}


def test_each_commit_keeps_those_of_the_partitions_that_it_changes(tmp_path: Path) -> None:
    table = make(tmp_path, KEPT, ("p",))
    assert sorted(listed(table)) == ["p=0", "p=1"]
    other = Path(table.uri) / "_symlink_format_manifest" / "p=0" / "manifest"
    before = other.stat().st_mtime_ns
    table.append(numbered(5))
    assert other.stat().st_mtime_ns == before
    assert sorted(path for paths in listed(table).values() for path in paths) == live(table)
    table.delete("p = 1")
    assert sorted(listed(table)) == ["p=0"]
    table.set_properties({"a": "b"})
    table.vacuum(0, enforce_retention=False, dry_run=False)
    assert sorted(path for paths in listed(table).values() for path in paths) == live(table)


def test_setting_the_property_writes_all_of_them(tmp_path: Path) -> None:
    table = make(tmp_path, {}, ("p",))
    table.set_properties(KEPT)
    assert sorted(listed(table)) == ["p=0", "p=1"]


@pytest.mark.parametrize("partition_by", [(), ("p",)])
def test_a_late_writer_keeps_the_files_of_a_newer_version(
    tmp_path: Path, partition_by: tuple[str, ...]
) -> None:
    table = make(tmp_path, KEPT, partition_by)
    waiting = [lambda: DeltaTable(table.uri).append(numbered(7))]

    def rival(operation: str, path: str) -> None:
        if operation == "put" and path.endswith("manifest") and waiting:
            waiting.pop()()

    late = DeltaTable(table.uri, store=FaultyStore(open_store(table.uri), before_call=rival))
    assert late.append(numbered(5)).version == 1
    assert table.refresh().version == 2
    assert sorted(path for paths in listed(table).values() for path in paths) == live(table)


def test_commits_without_files_leave_the_manifest_as_it_is(tmp_path: Path) -> None:
    table = make(tmp_path, KEPT)
    table.overwrite(numbered(5))
    table.vacuum(0, dry_run=False, enforce_retention=False)
    assert table.history(limit=1)[0].operation == "VACUUM END"
    assert listed(table) == {".": live(table)}


def test_what_concurrent_commits_change_is_written_again_and_nothing_else(tmp_path: Path) -> None:
    table = make(tmp_path, {}, ("p",))
    puts: list[str] = []

    def rival(operation: str, path: str) -> None:
        if operation == "put" and path.endswith("manifest"):
            puts.append(path)
            if len(puts) == 2:
                DeltaTable(table.uri).append(numbered(5))

    late = DeltaTable(table.uri, store=FaultyStore(open_store(table.uri), before_call=rival))
    assert sorted(late.generate_symlink_manifests()) == sorted(puts[:2])
    assert [path.split("/")[1] for path in puts[2:]] == ["p=1"]
    table.refresh()
    assert sorted(path for paths in listed(table).values() for path in paths) == live(table)


def test_writers_that_never_pause_do_not_keep_it_from_ending(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    table = make(tmp_path, {})

    def rival(operation: str, path: str) -> None:
        if operation == "put" and path.endswith("manifest"):
            DeltaTable(table.uri).append(numbered(5))

    late = DeltaTable(table.uri, store=FaultyStore(open_store(table.uri), before_call=rival))
    with caplog.at_level(logging.WARNING):
        assert late.generate_symlink_manifests() == ("_symlink_format_manifest/manifest",)
    assert "may lack changes of the latest commits up to version 10" in caplog.text


def test_readers_of_manifests_are_not_shown_deleted_rows(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    table = make(tmp_path, VECTORS | KEPT)
    with caplog.at_level(logging.WARNING):
        table.delete("id = 1")
    assert "symlink manifests was not stored" in caplog.text
    with pytest.raises(UnsupportedFeature, match="show deleted rows"):
        table.generate_symlink_manifests()
    table.reorg(purge=["deletion_vectors"])
    assert listed(table) == {".": live(table)}


def test_tables_with_column_mapping_have_none(tmp_path: Path) -> None:
    table = make(tmp_path, {"delta.columnMapping.mode": "name"})
    with pytest.raises(UnsupportedFeature, match="column mapping"):
        table.generate_symlink_manifests()
