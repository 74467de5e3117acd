"""Handles and sensors that are held while others append and clean the log up, against a model."""

from __future__ import annotations

import os
import random
import shutil
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa
import pytest

import dagster_delta.clock
from dagster_delta.errors import CommitConflict, VersionNotFound
from dagster_delta.protocol.log.paths import LAST_CHECKPOINT_PATH
from dagster_delta.storage.memory_store import MemoryStore
from dagster_delta.storage.object_store import ObjectStore
from dagster_delta.table.delta_table import DeltaTable
from dagster_delta.table.operations import append, checkpoint, clean_log
from dagster_delta.table.read.watch import read_new_commits, start_cursor
from dagster_delta.testing.faulty_store import FaultyStore, Operation

SCHEMA = pa.schema([("id", pa.int64())])
DAYS_MS = 3 * 24 * 60 * 60 * 1000
HISTORIES = 40


@dataclass
class _History:
    chance: random.Random
    monkeypatch: pytest.MonkeyPatch
    now_ms: int = 20_000 * 24 * 60 * 60 * 1000
    depth: int = 0
    """How many operations are under way, each in a store call of the one before."""
    hints: list[bytes] = field(default_factory=list)
    acknowledged: set[int] = field(default_factory=set)
    refused: set[int] = field(default_factory=set)
    handles: list[DeltaTable] = field(default_factory=list)

    def __post_init__(self) -> None:
        for module in (dagster_delta.clock, append, checkpoint, clean_log):
            self.monkeypatch.setattr(module, "now_ms", lambda: self.now_ms)
        self.store = MemoryStore(clock_ms=lambda: self.now_ms)
        interval = self.chance.choice(["3", "5", "1000"])
        properties = {"delta.checkpointInterval": interval}
        DeltaTable.create("", SCHEMA, store=self.store, properties=properties)
        self.rate = self.chance.choice([0, 0.01, 0.05])
        self.handles += [DeltaTable("", store=self._interrupted()) for _ in range(3)]
        self.cursor = start_cursor(self.store)

    def _interrupted(self) -> ObjectStore:
        def before_call(_operation: Operation, _path: str) -> None:
            if self.depth < 2 and self.chance.random() < self.rate:
                self.others_act()

        return FaultyStore(self.store, before_call=before_call)

    def others_act(self) -> None:
        """What other processes do, also while an operation of a handle is under way."""
        self.depth += 1
        match self.chance.choice(["append", "append", "held", "days", "clean", "clean", "hint"]):
            case "append":
                self.append(DeltaTable("", store=self.store))
            case "held" if self.handles:
                self.append(self.chance.choice(self.handles))
            case "days":
                self.now_ms += DAYS_MS
            case "clean":
                self._clean()
            case _:
                self._change_hint()
        self.depth -= 1

    def _clean(self) -> None:
        self.now_ms += DAYS_MS
        table = DeltaTable("", store=self.store)
        table.checkpoint()
        table.clean_log(retention_hours=24, dry_run=False, enforce_retention=False)

    def _change_hint(self) -> None:
        with suppress(FileNotFoundError):
            self.hints.append(self.store.read(LAST_CHECKPOINT_PATH))
        self.store.delete([LAST_CHECKPOINT_PATH])
        if self.hints and self.chance.random() < 0.5:
            self.store.put(LAST_CHECKPOINT_PATH, self.chance.choice(self.hints))

    def append(self, table: DeltaTable, *, slowly: bool = False) -> None:
        """Append one row; slowly, others act before it is committed."""
        row = len(self.acknowledged) + len(self.refused) + 1000 * self.depth
        while row in self.acknowledged | self.refused:
            row += 1

        def batches() -> Iterator[pa.RecordBatch]:
            yield pa.RecordBatch.from_pydict({"id": [row]}, SCHEMA)
            for _ in range(self.chance.randint(1, 3)):
                self.others_act()

        rows = pa.RecordBatchReader.from_batches(SCHEMA, batches()) if slowly else None
        # Taken until it is known, as nested appends choose other rows.
        self.refused.add(row)
        try:
            table.append(pa.table({"id": [row]}) if rows is None else rows)
        except CommitConflict:
            assert slowly or self.rate
            return
        self.refused.discard(row)
        self.acknowledged.add(row)

    def watch(self) -> bool:
        """Read on with the cursor; False if commits were cleaned up unread."""
        try:
            cursor, commits = read_new_commits(self.store, self.cursor)
        except VersionNotFound:
            return False
        last = self.cursor.version + len(commits)
        versions = [commit.version for commit in commits]
        assert versions == list(range(self.cursor.version + 1, last + 1))
        self.cursor = cursor
        assert cursor.version == self.newest().version()
        return True

    def newest(self) -> DeltaTable:
        """The table as it is opened by a listing."""
        copy = MemoryStore()
        for meta in self.store.list_recursive():
            if meta.path != LAST_CHECKPOINT_PATH:
                copy.put(meta.path, self.store.read(meta.path))
        return DeltaTable("", store=copy)

    def check(self) -> None:
        """Every acknowledged row is there once, and no refused one."""
        rows = self.newest().snapshot().scan().to_arrow()["id"].to_pylist()
        assert sorted(rows) == sorted(self.acknowledged)


@pytest.mark.examples(4)
@pytest.mark.parametrize("seed", range(HISTORIES))
def test_no_row_is_lost_whatever_is_held_while_the_log_is_cleaned_up(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    history = _History(random.Random(seed), monkeypatch)
    watches = True
    for _ in range(20):
        table = history.chance.choice(history.handles)
        match history.chance.choice(["append", "slow", "refresh", "watch", "others", "others"]):
            case "append":
                history.append(table)
            case "slow":
                history.depth += 1
                history.append(table, slowly=True)
                history.depth -= 1
            case "refresh":
                version = table.refresh().version
                assert history.rate or version == history.newest().version()
            case "watch":
                watches = watches and history.watch()
            case _:
                history.others_act()
        history.check()


@pytest.mark.parametrize("versions", [(1, 1), (3, 3), (3, 5)], ids=str)
@pytest.mark.parametrize("has_read", [False, True])
def test_a_handle_held_while_its_table_is_written_anew_goes_on_with_the_new_table(
    tmp_path: Path, versions: tuple[int, int], *, has_read: bool
) -> None:
    def write(first_id: int, count: int, at_ms: int) -> None:
        for number in range(count):
            DeltaTable(tmp_path / "t", must_exist=False).append(
                pa.table({"id": [first_id + number]})
            )
        for file in (tmp_path / "t" / "_delta_log").glob("*.json"):
            os.utime(file, (at_ms / 1000, at_ms / 1000))

    def ids() -> list[int]:
        found = DeltaTable(tmp_path / "t").snapshot().scan().to_arrow()["id"].to_pylist()
        return sorted(found)

    now_ms = int(time.time() * 1000)
    write(100, versions[0], now_ms - 60_000)
    held = [DeltaTable(tmp_path / "t") for _ in range(4)]
    for table in held if has_read else ():
        table.snapshot().scan().to_arrow()
    shutil.rmtree(tmp_path / "t")
    write(1, versions[1], now_ms - 30_000)
    new = list(range(1, 1 + versions[1]))
    assert held[0].refresh().scan().count() == len(new)
    held[1].append(pa.table({"id": [9]}))
    assert ids() == [*new, 9]
    held[2].delete("id = 1")
    assert ids() == [*new[1:], 9]
    held[3].overwrite(pa.table({"id": [7]}))
    assert ids() == [7]
