"""Opening a local log by the names of its files, judged by a listing of its directory."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import nullcontext, suppress
from functools import partial
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    rule,
    run_state_machine_as_test,
)

from dagster_delta.errors import DeltaError, LogGap, VersionNotFound
from dagster_delta.protocol.checkpoint.last_checkpoint import LastCheckpoint, encode_last_checkpoint
from dagster_delta.protocol.log.paths import (
    LAST_CHECKPOINT_PATH,
    LOG_DIRECTORY,
    checksum_path,
    commit_path,
)
from dagster_delta.protocol.log.segment import LogSegment
from dagster_delta.storage import local_store
from dagster_delta.storage.local_store import LocalStore
from dagster_delta.storage.object_store import ObjectMeta
from dagster_delta.table.delta_table import DeltaTable
from dagster_delta.table.log import reader
from dagster_delta.table.log.reader import find_segment, list_settled_log, read_last_checkpoint
from dagster_delta.table.log_upkeep.checkpoint_files import write_checkpoint
from dagster_delta.table.read.snapshot import Snapshot
from tests.table.logs import compacted_path

ROWS = pa.table({"id": [1, 2]})
CHECKPOINT, LAST = 20, 32
TICK_SECONDS = 0.03
"""Longer than the times of files are rounded."""


class WatchedStore(LocalStore):
    """A local store that says what it is asked, and lets others act in between."""

    def __init__(
        self, path: Path, act: Callable[[], None] = lambda: None, *, at_call: int = 0
    ) -> None:
        super().__init__(path)
        self._act, self._at_call = act, at_call
        self.listings = 0
        self.calls = 0

    def _note_call(self) -> None:
        self.calls += 1
        if self.calls == self._at_call:
            self._act()

    def read(self, path: str) -> bytes:
        self._note_call()
        return super().read(path)

    def head(self, path: str) -> ObjectMeta | None:
        self._note_call()
        return super().head(path)

    def is_last_change(self, directory: str, paths: Iterable[str], *, long_after: str) -> bool:
        self._note_call()
        return super().is_last_change(directory, paths, long_after=long_after)

    def list_from(self, directory: str, start: str = "") -> Iterator[ObjectMeta]:
        self._note_call()
        self.listings += 1
        return super().list_from(directory, start)


@pytest.fixture(autouse=True)
def _short_logs_are_long(monkeypatch: pytest.MonkeyPatch) -> None:
    """A log of ten commits counts as long, and copies of it end sooner."""
    monkeypatch.setattr(reader, "_LONG_LOG", 10)
    monkeypatch.setattr(local_store, "_LONG_NS", int(TICK_SECONDS * 1e9))


@pytest.fixture(scope="module", params=["classic", "v2", "parts"])
def long_table(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A table whose last checkpoint is followed by twelve commits."""
    path = tmp_path_factory.mktemp("long") / "table"
    policy = "v2" if request.param == "v2" else "classic"
    table = DeltaTable(path, must_exist=False)
    properties = {"delta.checkpointInterval": "1000", "delta.checkpointPolicy": policy}
    for version in range(LAST + 1):
        table.append(ROWS, properties=properties)
        if version == CHECKPOINT:
            parts = 3 if request.param == "parts" else 1
            snapshot = table.snapshot()
            write_checkpoint(snapshot, now_ms=0, max_actions_per_file=(CHECKPOINT + 3) // parts)
    return path


@pytest.fixture
def table_path(long_table: Path, tmp_path: Path) -> Path:
    """A copy that has one commit more: what changed its log last is that."""
    return copy_and_append(long_table, tmp_path / "table")


def copy_and_append(table: Path, path: Path) -> Path:
    shutil.copytree(table, path)
    time.sleep(2 * TICK_SECONDS)
    DeltaTable(path).append(ROWS)
    return path


def version_and_listings(path: Path, version: int | None = None) -> tuple[int, int]:
    store = WatchedStore(path)
    return find_segment(store, version).version, store.listings


def list_segment(path: Path, version: int | None = None) -> LogSegment:
    return list_settled_log(LocalStore(path)).segment(version, table=str(path))


def paths_of(segment: LogSegment) -> tuple[object, ...]:
    checkpoint = segment.checkpoint
    return (
        segment.version,
        None if checkpoint is None else [file.path for file in checkpoint.files],
        [(commit.start, commit.file.path) for commit in segment.replay],
        None if segment.commit is None else segment.commit.path,
        None if segment.checksum is None else segment.checksum.path,
    )


def delete_commits(path: Path, *versions: int) -> None:
    time.sleep(TICK_SECONDS)
    for version in versions:
        (path / commit_path(version)).unlink()


def write_hint(path: Path, version: int) -> None:
    LocalStore(path).put(LAST_CHECKPOINT_PATH, encode_last_checkpoint(LastCheckpoint(version)))


# Without a listing


def test_a_log_is_opened_and_extended_without_a_listing(
    table_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(directory: str) -> list[str]:
        raise AssertionError(f"{directory} was listed")

    monkeypatch.setattr(os, "listdir", refuse)
    monkeypatch.setattr(os, "scandir", refuse)
    for version in (LAST + 2, LAST + 3):
        assert DeltaTable(table_path).append(ROWS).version == version
    assert DeltaTable(table_path).snapshot().num_records == 2 * (LAST + 4)
    DeltaTable(table_path).checkpoint()
    assert DeltaTable(table_path).version() == LAST + 3


@pytest.mark.parametrize("version", [CHECKPOINT, CHECKPOINT + 7, LAST, LAST + 1, None])
def test_a_version_has_the_files_that_a_listing_gives_it(
    table_path: Path, version: int | None
) -> None:
    store = WatchedStore(table_path)
    assert paths_of(find_segment(store, version)) == paths_of(list_segment(table_path, version))
    assert store.listings == 0


def test_commits_of_deltalake_are_found_without_a_listing(table_path: Path) -> None:
    deltalake = pytest.importorskip("deltalake")
    if DeltaTable(table_path).protocol().min_reader_version > 1:
        pytest.skip("deltalake does not append to tables with V2 checkpoints")
    deltalake.write_deltalake(str(table_path), ROWS, mode="append")
    assert version_and_listings(table_path) == (LAST + 2, 0)


# What a look-up does not show is listed


def test_a_copied_log_is_listed_until_the_next_commit(long_table: Path, tmp_path: Path) -> None:
    path = Path(shutil.copytree(long_table, tmp_path / "copy"))
    assert version_and_listings(path) == (LAST, 1)
    time.sleep(2 * TICK_SECONDS)
    DeltaTable(path).append(ROWS)
    assert version_and_listings(path) == (LAST + 1, 0)


def test_a_log_without_a_hint_is_listed(table_path: Path) -> None:
    (table_path / LAST_CHECKPOINT_PATH).unlink()
    assert version_and_listings(table_path) == (LAST + 1, 1)


def test_a_log_whose_checkpoint_is_gone_is_listed(table_path: Path) -> None:
    for file in (table_path / LOG_DIRECTORY).glob("*.checkpoint.*"):
        file.unlink()
    segment = find_segment(WatchedStore(table_path))
    assert paths_of(segment) == paths_of(list_segment(table_path))
    assert segment.checkpoint is None


def test_an_empty_checkpoint_is_not_used(table_path: Path) -> None:
    for file in (table_path / LOG_DIRECTORY).glob("*.checkpoint.*"):
        file.write_bytes(b"")
    assert find_segment(WatchedStore(table_path)).checkpoint is None


def test_a_hint_to_an_older_checkpoint_gives_the_same_version(table_path: Path) -> None:
    old = (table_path / LAST_CHECKPOINT_PATH).read_bytes()
    DeltaTable(table_path).checkpoint()
    (table_path / LAST_CHECKPOINT_PATH).write_bytes(old)
    DeltaTable(table_path).append(ROWS)
    assert version_and_listings(table_path) == (LAST + 2, 0)
    assert DeltaTable(table_path).snapshot().num_records == 2 * (LAST + 3)


def test_compacted_commits_need_no_look_up(table_path: Path) -> None:
    compacted = table_path / compacted_path(CHECKPOINT + 1, LAST)
    commits = [(table_path / commit_path(n)).read_bytes() for n in range(CHECKPOINT + 1, LAST + 1)]
    compacted.write_bytes(b"".join(commits))
    DeltaTable(table_path).append(ROWS)
    (table_path / checksum_path(LAST + 2)).unlink()
    DeltaTable(table_path).append(ROWS)
    assert DeltaTable(table_path).snapshot().num_records == 2 * (LAST + 4)


def test_a_missing_checksum_needs_no_listing(table_path: Path) -> None:
    store = LocalStore(table_path)
    commit = (table_path / commit_path(LAST + 1)).read_bytes()
    store.put_if_absent(commit_path(LAST + 2), commit)
    assert version_and_listings(table_path) == (LAST + 2, 0)


@pytest.mark.parametrize("num_missing", [1, 2, 9])
def test_a_gap_is_found_and_not_filled(table_path: Path, num_missing: int) -> None:
    missing = range(LAST + 1 - num_missing, LAST + 1)
    delete_commits(table_path, *missing)
    with pytest.raises(LogGap):
        DeltaTable(table_path)
    assert not (table_path / commit_path(missing[0])).exists()


def test_a_gap_behind_a_young_commit_is_found(table_path: Path) -> None:
    store = LocalStore(table_path)
    for further in range(2, 9):
        path = commit_path(LAST + 1 + further)
        store.put_if_absent(path, b"{}")
        arrived_ns = (table_path / commit_path(LAST + 1)).stat().st_ctime_ns
        os.utime(table_path / LOG_DIRECTORY, ns=(0, arrived_ns))
        with pytest.raises(LogGap):
            find_segment(store)
        (table_path / path).unlink()


def test_a_copied_gap_is_found(long_table: Path, tmp_path: Path) -> None:
    """As the golden table that goes on with a checkpoint at version 9999."""
    path = tmp_path / "copy"
    shutil.copytree(long_table, path)
    for file in sorted((path / LOG_DIRECTORY).glob(f"*{LAST}.*")):
        shutil.copy(file, file.with_name(file.name.replace(f"{LAST:020d}", f"{9_999:020d}")))
    (path / commit_path(LAST)).unlink()
    shutil.copytree(path, tmp_path / "copied")
    with pytest.raises(LogGap):
        find_segment(LocalStore(tmp_path / "copied"))


def test_a_long_gap_behind_an_old_hint_is_found(table_path: Path) -> None:
    store = LocalStore(table_path)
    for version in range(LAST + 2, LAST + 1_600):
        store.put_if_absent(commit_path(version), b"{}")
    delete_commits(table_path, *range(LAST + 2, LAST + 1_560))
    with pytest.raises(LogGap):
        find_segment(store)


def test_a_version_past_the_last_one_is_refused(table_path: Path) -> None:
    with pytest.raises(VersionNotFound, match=f"no version {LAST + 2}"):
        find_segment(WatchedStore(table_path), LAST + 2)


def test_versions_before_the_hint_are_listed(table_path: Path) -> None:
    assert version_and_listings(table_path, CHECKPOINT - 2) == (CHECKPOINT - 2, 1)


# While others commit and clean up


def _append(path: Path) -> None:
    DeltaTable(path).append(ROWS)


def _checkpoint_and_clean(path: Path) -> None:
    """As a writer whose versions expire at once, which deletes the oldest files first."""
    DeltaTable(path).append(ROWS)
    table = DeltaTable(path)
    table.checkpoint()
    _delete_before(path, table.version())


def _clean_from_the_middle(path: Path) -> None:
    """As a program that deletes several files at once, and has not finished."""
    table = DeltaTable(path)
    table.append(ROWS)
    table.checkpoint()
    for version in range(CHECKPOINT + 3, table.version()):
        (path / commit_path(version)).unlink(missing_ok=True)


def _delete_before(path: Path, cut: int) -> None:
    for file in sorted((path / LOG_DIRECTORY).iterdir()):
        if file.name[:1].isdigit() and int(file.name[:20]) < cut:
            file.unlink()


@pytest.mark.parametrize("long_table", ["classic"], indirect=True)
@pytest.mark.parametrize("act", [_append, _checkpoint_and_clean, _clean_from_the_middle])
def test_a_log_that_changes_during_the_look_up_is_one_that_was_there(
    long_table: Path, tmp_path: Path, act: Callable[[Path], None]
) -> None:
    call = 0
    while True:
        call += 1
        path = copy_and_append(long_table, tmp_path / f"table-{call}")
        store = WatchedStore(path, partial(act, path), at_call=call)
        snapshot = Snapshot.load(store)
        if store.calls < call:
            break
        newest = DeltaTable(path).snapshot()
        assert snapshot.version in {LAST + 1, newest.version}
        # A version that has expired since it was opened cannot be read.
        with suppress(VersionNotFound, LogGap) if snapshot.version <= LAST + 1 else nullcontext():
            assert snapshot.num_records == 2 * (snapshot.version + 1)
        assert newest.num_records == 2 * (newest.version + 1)
        assert DeltaTable(path).append(ROWS).version == newest.version + 1
        shutil.rmtree(path)
    assert call > 15


class LogsThatChange(RuleBasedStateMachine):
    """What opening a log finds is what a listing of it finds, whoever has written and deleted."""

    base: Path
    """Where the tables are."""
    look_ups: list[object]
    """What was found without a listing."""

    @initialize()
    def create(self) -> None:
        self.path = self.base / f"table-{time.time_ns()}"
        DeltaTable(self.path, must_exist=False).append(ROWS)
        self.commit = (self.path / commit_path(0)).read_bytes()
        self.store = LocalStore(self.path)
        self.newest = 0
        self.append(4, True)
        self.write_checkpoint(False, 1)
        self.wait()
        self.append(2, True)

    def teardown(self) -> None:
        shutil.rmtree(self.path)

    @rule(number=st.integers(1, 6), with_checksum=st.booleans())
    def append(self, number: int, with_checksum: bool) -> None:
        for _ in range(number):
            self.newest += 1
            self.store.put_if_absent(commit_path(self.newest), self.commit)
        if with_checksum:
            self.store.put(checksum_path(self.newest), b"{}")

    @rule(leaves_hint=st.booleans(), back=st.integers(0, 4))
    def write_checkpoint(self, leaves_hint: bool, back: int) -> None:
        version = max(0, self.newest - back)
        self.store.put(f"{LOG_DIRECTORY}/{version:020d}.checkpoint.parquet", b"PAR1")
        if not leaves_hint:
            write_hint(self.path, version)

    @rule(fraction=st.floats(0, 1), pause=st.booleans())
    def clean_up(self, fraction: float, pause: bool) -> None:
        """It may be stopped, or leave an old hint."""
        cut = max(list_settled_log(self.store).checkpoints, default=0)
        hint = read_last_checkpoint(self.store)
        if pause or hint is None or hint.version < cut:
            time.sleep(TICK_SECONDS)
        names = sorted(n for n in os.listdir(self.path / LOG_DIRECTORY) if n[:1].isdigit())
        expired = [name for name in names if int(name[:20]) < cut]
        for name in expired[: round(len(expired) * fraction)]:
            (self.path / LOG_DIRECTORY / name).unlink()

    @rule(data=st.data())
    def damage(self, data: st.DataObject) -> None:
        names = sorted(os.listdir(self.path / LOG_DIRECTORY))
        lost = data.draw(st.lists(st.sampled_from(names), max_size=3)) if names else []
        time.sleep(TICK_SECONDS)
        for name in set(lost):
            (self.path / LOG_DIRECTORY / name).unlink()

    @rule()
    def wait(self) -> None:
        time.sleep(2 * TICK_SECONDS)

    @rule()
    def copy(self) -> None:
        copied = self.path.with_name(f"{self.path.name}-copied")
        shutil.copytree(self.path, copied)
        shutil.rmtree(self.path)
        copied.rename(self.path)

    @rule(version=st.integers(0, 40))
    def set_the_hint(self, version: int) -> None:
        write_hint(self.path, version)

    @invariant()
    def a_listing_finds_the_same(self) -> None:
        if not hasattr(self, "store"):
            return
        for version in (None, self.newest - 1):
            store = WatchedStore(self.path)
            found = _found(store, version, find_segment)
            assert found == _found(LocalStore(self.path), version, _by_listing)
            if version is None and not store.listings:
                self.look_ups.append(found)


def _by_listing(store: LocalStore, version: int | None) -> LogSegment:
    return list_settled_log(store).segment(version, table="t")


def _found(
    store: LocalStore, version: int | None, find: Callable[[LocalStore, int | None], LogSegment]
) -> object:
    """The version and its own files, which do not depend on the checkpoint that it is read from."""
    try:
        segment = find(store, version)
    except DeltaError as error:
        return type(error)
    number, _, _, *own = paths_of(segment)
    return number, own


def test_a_log_has_the_version_that_a_listing_finds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reader, "_LONG_LOG", 3)
    look_ups: list[object] = []
    machine = type("Machine", (LogsThatChange,), {"base": tmp_path, "look_ups": look_ups})
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=40,
            stateful_step_count=10,
            deadline=None,
            suppress_health_check=list(HealthCheck),
        ),
    )
    assert len(look_ups) > 20
