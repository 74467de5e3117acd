"""VACUUM: what goes, what stays whatever happens, and what the log says about it."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from dagster_delta.errors import (
    InvalidArgument,
    MetadataChanged,
    StorageFailure,
    UnsupportedFeature,
)
from dagster_delta.protocol.log.paths import commit_path
from dagster_delta.storage.memory_store import MemoryStore
from dagster_delta.table.delta_table import DeltaTable
from dagster_delta.table.operations.unreferenced_files import EmptiedDirectories, is_vacuumed
from dagster_delta.table.operations.vacuum import VacuumOptions, VacuumResult, vacuum_table
from dagster_delta.table.read.snapshot import Snapshot
from dagster_delta.testing.faulty_store import Fault, FaultyStore, SimulatedCrash
from tests.sample_tables import VECTORS, numbered_with_nulls
from tests.table.handles import data_files
from tests.table.logs import actions, edited
from tests.table.operations.test_optimize import content, make

HOUR = 60 * 60 * 1000
DAY = 24 * HOUR


def paths(result: VacuumResult) -> set[str]:
    return set(result.files["path"].to_pylist())


def old(table: DeltaTable, days: float = 30) -> None:
    """Make every data file look as if it had been there for long."""
    store = table.store
    assert isinstance(store, MemoryStore)
    found = store._objects.by_path
    for path, (data, modified_ms) in list(found.items()):
        if "_delta_log" not in path:
            found[path] = data, modified_ms - int(days * DAY)


def later(days: float) -> Any:
    return lambda: time.time_ns() // 1_000_000 + int(days * DAY)


def vacuum(table: DeltaTable, days: float = 0, **options: Any) -> VacuumResult:
    """What VACUUM does when it runs that many days from now."""
    snapshot = Snapshot.load(table.store)
    return vacuum_table(table.store, snapshot, VacuumOptions(**options), clock=later(days))


def test_a_dry_run_finds_what_nothing_refers_to_and_changes_nothing() -> None:
    table = make(3)
    before = data_files(table)
    table.optimize()
    result = vacuum(table, days=8)
    assert result.dry_run
    assert paths(result) == before
    assert result.num_files == 3
    assert result.size_bytes == sum(
        each.size_bytes for each in table.store.list_recursive() if each.path in before
    )
    assert data_files(table) > before
    assert Snapshot.load(table.store).version == 3


def test_unreferenced_files_go_and_the_rows_stay() -> None:
    table = make(3)
    rows_before = content(table)
    table.optimize()
    result = vacuum(table, days=8, dry_run=False)
    assert result.num_files == 3
    assert content(DeltaTable("", store=table.store)) == rows_before
    assert len(data_files(table)) == 1
    assert result.snapshot.version == table.refresh().version == 5


def test_start_and_end_stand_in_the_log_as_other_engines_write_them() -> None:
    table = make(3)
    table.optimize()
    vacuum(table, days=8, dry_run=False, retention_hours=24 * 7)
    (start,) = actions(table, 4)["commitInfo"]
    assert start["operation"] == "VACUUM START"
    assert start["operationParameters"] == {
        "retentionCheckEnabled": "true",
        "specifiedRetentionMillis": str(7 * DAY),
        "defaultRetentionMillis": str(7 * DAY),
    }
    assert start["operationMetrics"]["numFilesToDelete"] == "3"
    (end,) = actions(table, 5)["commitInfo"]
    assert end["operation"] == "VACUUM END"
    assert end["operationParameters"] == {"status": "COMPLETED"}
    assert end["operationMetrics"] == {"numDeletedFiles": "3", "numVacuumedDirectories": "0"}
    assert set(actions(table, 4)) == set(actions(table, 5)) == {"commitInfo"}


def test_nothing_is_recorded_where_there_is_nothing_to_delete() -> None:
    table = make(2)
    assert vacuum(table, days=8, dry_run=False).num_files == 0
    assert table.refresh().version == 1


def test_files_of_older_versions_stay_as_long_as_they_are_retained() -> None:
    table = make(3)
    old(table)
    table.optimize()
    assert vacuum(table, days=6).num_files == 0
    assert vacuum(table, days=6, retention_hours=24 * 5, enforce_retention=False).num_files == 3


def test_a_longer_retention_keeps_what_checkpoints_have_forgotten() -> None:
    table = make(3, {"delta.deletedFileRetentionDuration": "interval 1 hour"})
    old(table)
    table.optimize()
    for each in range(12):
        table.append(numbered_with_nulls(each))
    assert vacuum(table, days=2).num_files == 3
    assert vacuum(table, days=2, retention_hours=24 * 3).num_files == 0


def test_a_short_vacuum_leaves_the_tombstones_to_the_next_checkpoint() -> None:
    table = make(3)
    table.optimize()
    snapshot = Snapshot.load(table.store)
    options = VacuumOptions(retention_hours=0, enforce_retention=False)
    vacuum_table(table.store, snapshot, options, clock=later(1))
    assert snapshot.update().tombstones().num_rows == 3


def test_young_files_stay_for_whoever_is_about_to_commit_them() -> None:
    table = make(1)
    table.store.put("part-uncommitted.parquet", b"somebody is writing this")
    assert vacuum(table, days=6).num_files == 0
    assert paths(vacuum(table, days=8)) == {"part-uncommitted.parquet"}


def test_deletion_vectors_in_use_stay_and_others_go() -> None:
    table = DeltaTable("", store=MemoryStore(), must_exist=False)
    table.append(numbered_with_nulls(*range(20_000)), properties=VECTORS)
    table.delete("id % 7 = 3")
    (first,) = (each for each in data_files(table) if each.endswith(".bin"))
    table.delete("id % 7 = 4")
    rows_before = content(table)
    assert paths(vacuum(table, days=8, dry_run=False)) == {first}
    assert content(DeltaTable("", store=table.store)) == rows_before


def test_a_retention_below_the_one_of_the_table_is_refused() -> None:
    table = make(1)
    with pytest.raises(InvalidArgument, match="enforce_retention=False"):
        table.vacuum(retention_hours=24)
    with pytest.raises(InvalidArgument, match="from 0 on"):
        table.vacuum(retention_hours=-1, enforce_retention=False)


def test_hidden_names_stay_but_for_change_data_and_partitions() -> None:
    table = DeltaTable("", store=MemoryStore(), must_exist=False)
    rows = pa.table({name: [1] for name in ("_p", "q", ".r", "id")})
    table.append(rows, partition_by=["_p", "q", ".r"])
    is_ours = is_vacuumed(Snapshot.load(table.store).configuration)
    taken = [
        "a.parquet",
        "q=1/a.parquet",
        "_p=1/a.parquet",
        "q=_1/_p=.x/a.parquet",
        ".r=1/a.parquet",
        "_change_data/cdc-1.parquet",
        "_change_data/q=1/cdc-1.parquet",
        "ab/deletion_vector_x.bin",
        ".0123456789abcdef.tmp",
        "q=1/.0123456789abcdef.tmp",
    ]
    left = [
        "_delta_log/00000000000000000000.json",
        "_delta_log/.0123456789abcdef.tmp",
        "_delta_log/q=1/x.parquet",
        "_delta_log/_sidecars/x.parquet",
        "_spark_metadata/0",
        "_SUCCESS",
        ".part-1.parquet.crc",
        "q=1/.hidden/a.parquet",
        "_q=1/a.parquet",
        "q=1/_temporary/0/a.parquet",
        "q=1/_change_data/a.parquet",
        "_pp=1/a.parquet",
        ".0123456789abcdeX.tmp",
    ]
    assert [each for each in taken if not is_ours(each)] == []
    assert [each for each in left if is_ours(each)] == []


def test_the_metadata_of_another_format_over_the_same_files_stay() -> None:
    properties = {"delta.universalFormat.enabledFormats": "iceberg"}
    for given in (properties, None):
        is_ours = is_vacuumed(Snapshot.load(make(1, given).store).configuration)
        assert is_ours("metadata.parquet")
        assert is_ours("metadata/a.parquet") is (given is None)
    table = make(1, properties)
    table.store.put("metadata/v1.metadata.json", b"{}")
    found = table.unreferenced_files()
    assert found.files["is_vacuumed"].to_pylist() == [False]
    assert vacuum(table, days=8).num_files == 0


def readd(table: DeltaTable, old_path: str, new_path: str) -> None:
    """Spell the path of a file of version 0 in another way."""
    commit = table.store.read(commit_path(0))
    table.store.put(commit_path(0), edited(commit, old_path.encode(), new_path.encode()))
    table.store.delete(["_delta_log/00000000000000000000.crc"])


@pytest.mark.parametrize(
    "spell",
    [
        lambda root, name: f"file://{root}/{name}",
        lambda root, name: f"file:{root}/{name}",
        lambda root, name: f"{root}/{name}",
        lambda _, name: f"./{name}",
        lambda _, name: name.replace("p", "%70", 1),
        # Another mount, or another name of the bucket, of the same storage.
        lambda _, name: f"s3://alias-of-this/{name}",
    ],
)
def test_a_file_stays_however_the_log_spells_its_path(tmp_path: Path, spell: Any) -> None:
    table = DeltaTable(tmp_path, must_exist=False)
    table.append(numbered_with_nulls(1, 2))
    path = actions(table)["add"][0]["path"]
    readd(table, path, spell(str(tmp_path), path))
    assert vacuum(DeltaTable(tmp_path), days=8).num_files == 0


def test_encoded_partition_directories_are_told_apart(tmp_path: Path) -> None:
    table = DeltaTable(tmp_path, must_exist=False)
    values = ["a b", "a%20b", "ü/ö", "100%", ""]
    data = pa.table({"id": [1, 2, 3, 4, 5], "p": values})
    table.append(data, partition_by=["p"])
    rows_before = content(table)
    (tmp_path / "p=a b" / "garbage.parquet").write_bytes(b"x")
    (tmp_path / "p=a b" / "gar%20bage.parquet").write_bytes(b"x")
    result = vacuum(table, days=8, dry_run=False)
    assert {each.rpartition("/")[2] for each in paths(result)} == {
        "garbage.parquet",
        "gar%20bage.parquet",
    }
    assert content(DeltaTable(tmp_path)) == rows_before


def test_nothing_outside_of_the_root_is_touched(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    for name in ("precious.parquet", "linked.parquet"):
        (outside / name).write_bytes(b"precious")
    root = tmp_path / "table"
    table = DeltaTable(root, must_exist=False)
    table.append(numbered_with_nulls(1))
    (root / "directory").symlink_to(outside)
    (root / "link.parquet").symlink_to(outside / "linked.parquet")
    (root / "dangling.parquet").symlink_to(outside / "nothing")
    result = vacuum(table, days=8, dry_run=False)
    assert paths(result) == {"link.parquet"}
    assert sorted(each.name for each in outside.iterdir()) == [
        "linked.parquet",
        "precious.parquet",
    ]
    assert (root / "directory" / "precious.parquet").exists()


@pytest.mark.parametrize("root", ["", "memory://outer-table"])
def test_the_files_of_a_table_below_the_root_stay(tmp_path: Path, root: str) -> None:
    root = root or str(tmp_path)
    rows = pa.table({"id": [1]})
    outer, inner = (
        DeltaTable(each, must_exist=False, storage_options={}) for each in (root, f"{root}/A/inner")
    )
    outer.append(rows)
    inner.append(rows)
    for path in ("A/inner/0.parquet", "A/inner/z/1.parquet", "A/left.parquet"):
        outer.store.put(path, b"x")
    stored = len(list(inner.store.list_recursive()))
    unreferenced = outer.unreferenced_files().files
    assert unreferenced["path"].to_pylist() == ["A/left.parquet"]
    assert paths(vacuum(outer, days=30)) == {"A/left.parquet"}
    assert len(list(inner.store.list_recursive())) == stored


def test_hadoop_checksums_go_with_their_files(tmp_path: Path) -> None:
    table = DeltaTable(tmp_path, must_exist=False)
    table.append(numbered_with_nulls(1))
    for name in ("gone.parquet", ".gone.parquet.crc", ".other.crc"):
        (tmp_path / name).write_bytes(b"x")
    vacuum(table, days=8, dry_run=False)
    assert {each.name for each in tmp_path.iterdir() if each.name.startswith(".")} == {".other.crc"}


def test_modification_times_are_what_counts(tmp_path: Path) -> None:
    table = DeltaTable(tmp_path, must_exist=False)
    table.append(numbered_with_nulls(1))
    for name, age_days in (("young.parquet", 6.9), ("old.parquet", 7.1)):
        (tmp_path / name).write_bytes(b"x")
        then = time.time() - age_days * 24 * 3600
        os.utime(tmp_path / name, (then, then))
    assert paths(table.vacuum()) == {"old.parquet"}
    assert paths(table.vacuum(dry_run=False)) == {"old.parquet"}
    assert table.version() == 2


class Rival:
    def __init__(self, operation: str, act: Any) -> None:
        self._operation, self._act, self._acted = operation, act, False

    def __call__(self, operation: str, path: str) -> None:
        if operation == self._operation and not self._acted:
            self._acted = True
            self._act(path)


def test_a_file_that_a_restore_brings_back_meanwhile_stays() -> None:
    table = make(3)
    rows_before = content(table)
    table.optimize()
    rival = Rival("put_if_absent", lambda _: DeltaTable("", store=table.store).restore(2))
    faulty = FaultyStore(table.store, before_call=rival)
    options = VacuumOptions(dry_run=False)
    result = vacuum_table(faulty, Snapshot.load(faulty), options, clock=later(8))
    # The compacted file has left the table, and is younger than the retention.
    assert result.num_files == 0
    assert content(DeltaTable("", store=table.store)) == rows_before
    assert len(data_files(table)) == 4


def test_a_change_of_the_properties_meanwhile_stops_it_before_a_file_is_gone() -> None:
    table = make(3)
    table.optimize()
    before = data_files(table)

    def change(_: str) -> None:
        other = DeltaTable("", store=table.store)
        other.set_properties({"delta.deletedFileRetentionDuration": "interval 30 days"})

    faulty = FaultyStore(table.store, before_call=Rival("put_if_absent", change))
    options = VacuumOptions(dry_run=False)
    with pytest.raises(MetadataChanged):
        vacuum_table(faulty, Snapshot.load(faulty), options, clock=later(8))
    assert data_files(table) >= before


@pytest.mark.parametrize("kind", ["crash_before", "crash_after"])
def test_a_crash_in_the_middle_leaves_the_table_whole(kind: Any) -> None:
    table = make(3)
    rows_before = content(table)
    table.optimize()
    faulty = FaultyStore(table.store, [Fault(kind, "delete")])
    with pytest.raises(SimulatedCrash):
        vacuum_table(faulty, Snapshot.load(faulty), VacuumOptions(dry_run=False), clock=later(8))
    assert content(DeltaTable("", store=table.store)) == rows_before
    vacuum(table, days=8, dry_run=False)
    assert len(data_files(table)) == 1


def test_a_failure_to_delete_is_recorded_and_raised() -> None:
    table = make(3)
    table.optimize()
    faulty = FaultyStore(table.store, [Fault("refuse", "delete")])
    with pytest.raises(StorageFailure):
        vacuum_table(faulty, Snapshot.load(faulty), VacuumOptions(dry_run=False), clock=later(8))
    (end,) = actions(table, 5)["commitInfo"]
    assert end["operationParameters"] == {"status": "FAILED"}
    assert end["operationMetrics"]["numDeletedFiles"] == "0"


def test_a_table_that_is_not_understood_is_left_alone() -> None:
    store = MemoryStore()
    make(1, store=store)
    protocol = (
        b'{"protocol":{"minReaderVersion":3,"minWriterVersion":7,"readerFeatures":[],'
        b'"writerFeatures":["filesNobodyKnows"]}}\n'
    )
    store.put(commit_path(1), protocol)
    store.put("part-old.parquet", b"x")
    for dry_run in (True, False):
        with pytest.raises(UnsupportedFeature, match="filesNobodyKnows"):
            vacuum(DeltaTable("", store=store), days=8, dry_run=dry_run)
    assert store.head("part-old.parquet") is not None


def test_directories_that_become_empty_go_unless_somebody_was_there_of_late(
    tmp_path: Path,
) -> None:
    table = DeltaTable(tmp_path, must_exist=False)
    table.append(pa.table({"p": ["a", "b"], "q": [1, 1], "id": [1, 2]}), partition_by=["p", "q"])
    table.append(pa.table({"p": ["c"], "q": [1], "id": [3]}))
    table.delete("p <> 'b'")
    long_ago = time.time() - 30 * 24 * 60 * 60
    for each in tmp_path.rglob("p=*"):
        for below in (*each.rglob("*"), each):
            os.utime(below, (long_ago, long_ago))
    os.utime(tmp_path / "p=c" / "q=1")
    # Today's tombstones protect files for a week.
    result = vacuum(table, days=8, dry_run=False)
    assert result.num_files == 2
    assert not list(tmp_path.rglob("p=a*"))
    assert (tmp_path / "p=b" / "q=1").is_dir()
    assert not (tmp_path / "p=c" / "q=1").exists()
    table.refresh()
    info = table.history(1)[0].commit_info
    assert info["operationMetrics"]["numVacuumedDirectories"] == "4"


def test_a_directory_that_changed_of_late_stays(tmp_path: Path) -> None:
    table = DeltaTable(tmp_path, must_exist=False)
    table.append(pa.table({"p": ["a"], "id": [1]}), partition_by=["p"])
    table.delete("id = 1")
    before = int((time.time() - 60) * 1000)
    later_on = int((time.time() + 60) * 1000)
    directories = EmptiedDirectories(table.store, ["p=a/x.parquet"], before_ms=before)
    for each in (tmp_path / "p=a").iterdir():
        each.unlink()
    assert directories.remove() == 0
    assert (tmp_path / "p=a").is_dir()
    directories = EmptiedDirectories(table.store, ["p=a/x.parquet"], before_ms=later_on)
    assert directories.remove() == 1
    assert not (tmp_path / "p=a").exists()


LAST_VACUUM = "_delta_log/_last_vacuum_info"


def test_a_lite_vacuum_deletes_what_commits_removed_without_a_listing() -> None:
    table = make(3)
    before = data_files(table)
    rows = content(table)
    table.optimize()
    table.store.put("left-by-somebody.parquet", b"x")
    store = FaultyStore(table.store)
    snapshot = Snapshot.load(store)
    options = VacuumOptions(dry_run=False, lite=True)
    result = vacuum_table(store, snapshot, options, clock=later(8))
    assert paths(result) == before
    assert "list_recursive" not in store.calls
    assert not data_files(table) & before
    assert "left-by-somebody.parquet" in data_files(table)
    assert content(table) == rows
    assert table.store.read(LAST_VACUUM) == (b'{"latestCommitVersionOutsideOfRetentionWindow":3}\n')


def test_a_lite_vacuum_finds_vectors_and_change_data_too() -> None:
    table = DeltaTable("", store=MemoryStore(), must_exist=False)
    properties = {**VECTORS, "delta.enableChangeDataFeed": "true"}
    table.append(numbered_with_nulls(*range(20_000)), properties=properties)
    table.delete("id % 7 = 3")
    table.update({"v": "'new'"}, where="id = 1")
    table.optimize(max_deleted_share=0)
    live = set(table.snapshot().live_files()["path"].to_pylist())
    result = vacuum(table, days=8, lite=True, dry_run=False)
    assert {each.rpartition(".")[2] for each in paths(result)} == {"bin", "parquet"}
    assert any(each.startswith("_change_data/") for each in paths(result))
    assert data_files(table) == live


def test_the_next_lite_vacuum_goes_on_where_the_last_one_ended() -> None:
    table = make(2)
    table.optimize()
    vacuum(table, days=8, lite=True, dry_run=False)
    second = data_files(table)
    table.refresh()
    table.update({"v": "'new'"}, where="id = 1")
    table.checkpoint()
    table.store.delete([commit_path(0), commit_path(1)])
    found = vacuum(table, days=8, lite=True)
    assert paths(found) == second
    assert found.num_listed_files == 1


def test_a_lite_vacuum_that_lacks_a_commit_says_to_run_a_full_one() -> None:
    table = make(2)
    table.optimize()
    table.checkpoint()
    before = data_files(table)
    table.store.delete([commit_path(0)])
    with pytest.raises(InvalidArgument, match="commit 0 is not there any more: run a full VACUUM"):
        vacuum(table, days=8, lite=True)
    assert data_files(table) == before
    vacuum(table, days=8, dry_run=False)
    assert vacuum(table, days=8, lite=True).num_files == 0


def test_a_lite_vacuum_keeps_what_is_retained_and_finds_it_later() -> None:
    table = make(2)
    table.optimize()
    assert vacuum(table, days=6, lite=True, dry_run=False).num_files == 0
    assert vacuum(table, days=8, lite=True, dry_run=False).num_files == 2


def test_a_lite_vacuum_keeps_files_that_a_restore_brought_back() -> None:
    table = make(2)
    rows = content(table)
    table.optimize()
    table.restore(1)
    result = vacuum(table, days=8, lite=True, dry_run=False)
    assert result.num_files == 1
    assert content(table) == rows


@pytest.mark.parametrize("lite", [False, True])
def test_versions_to_keep_stay_readable(lite: bool) -> None:
    table = make(3)
    rows = content(table)
    table.optimize()
    table.delete("true")
    result = vacuum(table, days=8, lite=lite, dry_run=False, keep_versions=[2])
    assert result.num_files == 1
    at_2 = DeltaTable("memory://", store=table.store, version=2)
    assert content(at_2) == rows
    # The kept files are found once nobody keeps them.
    again = vacuum(table, days=9, lite=lite, dry_run=False)
    assert again.num_files == (4 if lite else 3)
    assert not data_files(table)


def test_files_that_no_version_refers_to_are_reported() -> None:
    table = make(2)
    table.optimize()
    old(table, days=3)
    table.store.put("killed-writer.parquet", b"123")
    table.store.put("_temporary/0/x.parquet", b"1")
    old(table, days=40)
    table.store.put("new.parquet", b"12")
    found = table.unreferenced_files()
    assert found.files.select(["path", "size_bytes", "is_vacuumed"]).to_pylist() == [
        {"path": "_temporary/0/x.parquet", "size_bytes": 1, "is_vacuumed": False},
        {"path": "killed-writer.parquet", "size_bytes": 3, "is_vacuumed": True},
        {"path": "new.parquet", "size_bytes": 2, "is_vacuumed": True},
    ]
