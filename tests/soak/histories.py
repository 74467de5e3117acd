"""Part `histories`: random histories of one table, seen by handles, sensors, feeds and streams.

A history changes a table in random ways, through handles that are held for long, while clean-ups
delete what old versions need, and while the table is deleted and created again, or set back to a
copy of itself. Each reader remembers which commit it has read last: it gets every row after that
commit once, or an error if the log does not hold that commit any more.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import os
import random
import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
import pyarrow as pa

from dagster_delta import DeltaTable
from dagster_delta.errors import DeltaError, LogGap
from dagster_delta.storage import ObjectStore
from dagster_delta.storage.local_store import LocalStore
from dagster_delta.storage.memory_store import MemoryStore
from dagster_delta.streaming.log_stream import LogStream
from dagster_delta.streaming.options import Admission, SourceOptions, StreamOffset
from dagster_delta.table.read.watch import LogCursor, read_new_commits, start_cursor
from tests.soak.part import Round

Rows = dict[int, int]
"""The values of `v` by `id`."""

STEPS = 80
HANDLES = 3
DAY_S = 86_400

WRITES = {
    "append": 20,
    "delete": 6,
    "update": 6,
    "merge": 6,
    "overwrite": 3,
    "replace_where": 4,
    "restore": 4,
    "optimize": 4,
    "checkpoint": 6,
    "vacuum": 4,
    "clean_log": 5,
    "recreate": 2,
    "save": 2,
    "set_back": 2,
}
READS = {"handle": 8, "sensor": 12, "feed": 10, "stream": 12}


@dataclass(frozen=True)
class _Version:
    """What a commit is, and the rows of the table after it."""

    digest: str
    rows: Rows
    live: frozenset[str]
    added: frozenset[str]
    """Files with new rows, if the commit removes no rows."""


@dataclass
class _Log:
    """The table, as the history has made it."""

    store: ObjectStore
    versions: list[_Version] = field(default_factory=list)
    saved: list[tuple[dict[str, bytes], list[_Version]]] = field(default_factory=list)
    number: int = 0
    """How often another log took the place of the one before."""

    @property
    def rows(self) -> Rows:
        return self.versions[-1].rows

    @property
    def latest(self) -> int:
        return len(self.versions) - 1

    def note(self, rows: Rows) -> None:
        """Take in the commits since; the rows are those after the last of them."""
        while data := _content(self.store, len(self.versions)):
            before = self.versions[-1] if self.versions else None
            actions = [json.loads(line) for line in data.splitlines()]
            adds = {action["add"]["path"] for action in actions if "add" in action}
            gone = {action["remove"]["path"] for action in actions if "remove" in action}
            live = (before.live if before else frozenset()) - gone | adds
            digest = hashlib.sha256(data).hexdigest()
            removes = [action for action in actions if "remove" in action]
            is_append = all(
                action.get("remove", {}).get("dataChange") is not True for action in removes
            )
            changed = [action["add"] for action in actions if "add" in action]
            added = frozenset(add["path"] for add in changed if add["dataChange"] and is_append)
            self.versions.append(_Version(digest, rows, live, added))
        if not self.versions or self.versions[-1].rows != rows:
            raise AssertionError("no commit has these rows")

    def holds(self, version: int, digest: str) -> bool:
        """Whether the log goes on from a commit."""
        return version <= self.latest and self.versions[version].digest == digest


def _content(store: ObjectStore, version: int) -> bytes | None:
    try:
        return store.read(f"_delta_log/{version:020}.json")
    except FileNotFoundError:
        return None


@dataclass
class _Reader:
    """A reader that remembers the commit it read last, and the rows it has."""

    version: int = -1
    digest: str = ""
    rows: Rows = field(default_factory=dict)
    files: set[str] = field(default_factory=set)
    cursor: LogCursor | None = None
    stream: LogStream | None = None
    offset: StreamOffset | None = None
    has_read: bool = False
    """Whether the last look of a stream found rows."""


class _History:
    def __init__(self, round_: Round) -> None:
        self.round = round_
        self.chance: random.Random = round_.random
        self.is_local = self.chance.random() < 0.5
        root = round_.scratch / "table"
        self.store: ObjectStore = LocalStore(root) if self.is_local else MemoryStore()
        self.root = root
        self.log = _Log(self.store)
        self.ids = itertools.count()
        self.trail: list[str] = []
        self.create()
        self.handles = [self.open() for _ in range(HANDLES)]
        self.readers = {name: [_Reader(), _Reader()] for name in ("sensor", "feed", "stream")}

    def open(self) -> DeltaTable:
        return DeltaTable(self.store.location.uri, store=self.store)

    def create(self) -> None:
        properties = {
            "delta.enableChangeDataFeed": "true",
            "delta.enableDeletionVectors": str(self.chance.random() < 0.5).lower(),
            "delta.checkpointInterval": self.chance.choice(["3", "7", "100"]),
        }
        table = DeltaTable(self.store.location.uri, store=self.store, must_exist=False)
        rows = self.new_rows()
        table.append(_frame(rows), properties=properties)
        self.log.note(rows)

    def new_rows(self) -> Rows:
        return {
            next(self.ids): self.chance.randrange(100) for _ in range(self.chance.randint(1, 6))
        }

    def fail(self, title: str, detail: str = "") -> None:
        kind = "local" if self.is_local else "memory"
        trail = "; ".join(self.trail[-60:])
        self.round.fault(f"FAILED {title} ({kind})")
        self.round.fail(f"{title} ({kind})", f"{detail}\n{trail}", save=self.round.scratch)

    def step(self) -> bool:
        """Do one step; False if the history cannot be continued."""
        weights = WRITES | READS
        kind = self.chance.choices(list(weights), list(weights.values()))[0]
        self.trail.append(f"{self.log.latest}: {kind}")
        self.round.result.operations += 1
        if kind in READS:
            self.round.fault(kind)
            getattr(self, f"read_{kind}")()
            return True
        self.age()
        return self.write(kind)

    def age(self) -> None:
        """Date each commit and checkpoint back, those of a history an hour apart."""
        if not self.is_local:
            return
        for path in (self.root / "_delta_log").iterdir():
            version = path.name[:20]
            if version.isdigit():
                moment = time.time() // DAY_S * DAY_S - 60 * DAY_S + int(version) * 3600
                moment += self.log.number
                os.utime(path, (moment, moment))

    def write(self, kind: str) -> bool:
        table = self.chance.choice([*self.handles, self.open()])
        self.trail[-1] += f" by a handle at {table.version()}"
        if kind in {"recreate", "save", "set_back"}:
            getattr(self, kind)()
            return True
        before = self.log.latest
        rows = dict(self.log.rows)
        try:
            wanted = self.perform(kind, table, rows)
        except DeltaError as error:
            if _content(self.store, before + 1) is not None:
                self.fail(f"{kind} was refused and committed: {type(error).__name__}", str(error))
                return False
            self.round.fault(f"refused {kind}: {type(error).__name__}")
            # A user opens the table again.
            self.handles = [self.open() for _ in range(HANDLES)]
            return True
        self.round.fault(kind)
        if wanted != rows and _content(self.store, before + 1) is None:
            self.fail(f"{kind} is acknowledged and not in the log", f"after version {before}")
            return False
        self.log.note(wanted)
        if kind not in {"vacuum", "clean_log", "checkpoint"} and table.version() != self.log.latest:
            detail = f"{table.version()} and {self.log.latest}"
            self.fail(f"the handle has another version after {kind}", detail)
        return self.check(self.open(), f"after {kind}") and self.check(table, f"by {kind}")

    def perform(self, kind: str, table: DeltaTable, rows: Rows) -> Rows:
        some = set(self.chance.sample(sorted(rows), min(len(rows), 4)))
        where = f"id IN ({', '.join(map(str, some)) or '-1'})"
        new = self.new_rows()
        match kind:
            case "append":
                table.append(_frame(new))
                return rows | new
            case "delete":
                table.delete(where)
                return {id_: v for id_, v in rows.items() if id_ not in some}
            case "update":
                table.update({"v": "v + 100"}, where=where)
                return {id_: v + 100 * (id_ in some) for id_, v in rows.items()}
            case "merge":
                changed = dict.fromkeys(some, self.chance.randrange(1000)) | new
                merge = table.merge(
                    _frame(changed), "t.id = s.id", source_alias="s", target_alias="t"
                )
                merge.when_matched_update_all().when_not_matched_insert_all().execute()
                return rows | changed
            case "overwrite":
                table.overwrite(_frame(new))
                return new
            case "replace_where":
                there = dict.fromkeys(sorted(some)[:2], 5)
                table.overwrite(_frame(there), where=where)
                return {id_: v for id_, v in rows.items() if id_ not in some} | there
            case "restore":
                version = self.chance.randint(max(0, self.log.latest - 8), self.log.latest)
                table.restore(version)
                return self.log.versions[version].rows
            case "optimize":
                table.optimize(max_deleted_share=0)
            case "checkpoint":
                table.checkpoint()
            case "vacuum":
                table.vacuum(0, dry_run=False, enforce_retention=False)
            case "clean_log":
                table.clean_log(dry_run=False)
        return rows

    def recreate(self) -> None:
        """Delete the table, and make another one that may have as many versions."""
        self.wipe()
        length = self.log.latest + self.chance.randint(-2, 3)
        self.log.versions = []
        self.create()
        self.grow(max(1, min(length, 12)))

    def save(self) -> None:
        files = {meta.path: self.store.read(meta.path) for meta in self.store.list_recursive()}
        self.log.saved.append((files, list(self.log.versions)))

    def set_back(self) -> None:
        """Put an older copy of the table in its place, and go on from it."""
        if not self.log.saved:
            return
        files, versions = self.chance.choice(self.log.saved)
        longer = self.log.latest - len(versions)
        self.wipe()
        for path, content in files.items():
            self.store.put(path, content)
        self.log.versions = list(versions)
        self.grow(self.chance.randint(0, max(1, min(longer + 3, 12))))

    def grow(self, commits: int) -> None:
        table = self.open()
        for _ in range(commits):
            new = self.new_rows()
            table.append(_frame(new))
            self.log.note(self.log.rows | new)

    def wipe(self) -> None:
        self.log.number += 1
        if self.is_local:
            shutil.rmtree(self.root)
            self.root.mkdir()
            return
        self.store.delete([meta.path for meta in self.store.list_recursive()])

    def check(self, table: DeltaTable, where: str) -> bool:
        try:
            rows, version = _rows(table.refresh().scan().to_arrow()), table.version()
        except LogGap:
            # A clean-up took what the handle had not read yet, and it asks to be opened again.
            if table not in self.handles:
                raise
            self.round.fault("handles to open again")
            self.handles[self.handles.index(table)] = self.open()
            return True
        if rows != self.log.rows or version != self.log.latest:
            detail = f"version {version} of {self.log.latest}\n{rows}\n{self.log.rows}"
            self.fail(f"a table differs {where}", detail)
            return False
        self.round.fault("rows", len(rows))
        return True

    def read_handle(self) -> None:
        self.check(self.chance.choice(self.handles), "on refresh")

    def follow(self, name: str, read: Callable[[_Reader], None]) -> None:
        """Let a reader go on; it must fail exactly if its last commit is not in the log."""
        reader = self.chance.choice(self.readers[name])
        is_new = reader.version < 0
        is_held = is_new or name == "feed" or self.log.holds(reader.version, reader.digest)
        try:
            read(reader)
        except DeltaError as error:
            self.round.fault(f"{name} stopped: {type(error).__name__}")
            self.readers[name][self.readers[name].index(reader)] = _Reader()
            return
        if not is_held and name == "stream" and not reader.has_read:
            # A stream compares its last commit with the log when there is one to read after it.
            self.round.fault("streams at rest in another history")
            return
        if not is_held and _content(self.store, reader.version) is None:
            # The log was set back, and a clean-up has deleted the commit that would show it.
            self.round.fault(f"{name}: nothing shows the other history")
            self.readers[name][self.readers[name].index(reader)] = _Reader()
            return
        if not is_held:
            self.fail(f"a {name} goes on in another history", f"it was at {reader.version}")
        if name != "stream":
            reader.version = self.log.latest
        elif reader.offset is None:
            return
        else:
            # Commits without rows leave a stream where it is.
            reader.version = reader.offset.last_read
        reader.digest = self.log.versions[reader.version].digest

    def read_sensor(self) -> None:
        def read(reader: _Reader) -> None:
            if reader.cursor is None:
                reader.cursor = start_cursor(self.store)
                return
            # As the daemon stores it.
            kept = msgspec.json.decode(msgspec.json.encode(reader.cursor), type=LogCursor)
            reader.cursor, found = read_new_commits(self.store, kept)
            versions = [commit.version for commit in found]
            if versions != list(range(reader.version + 1, self.log.latest + 1)):
                self.fail("a sensor missed or repeated commits", f"{reader.version}: {versions}")

        self.follow("sensor", read)

    def read_feed(self) -> None:
        """A table that is kept by the change feed."""

        def read(reader: _Reader) -> None:
            if reader.version >= 0 and not self.log.holds(reader.version, reader.digest):
                # A position is a number here: incremental assets know the commit as well.
                reader.version = -1
            table = self.chance.choice([self.open(), *self.handles])
            table.refresh()
            if reader.version < 0:
                reader.rows = dict(self.log.rows)
            elif reader.version < self.log.latest:
                changes = table.changes(reader.version + 1).to_arrow().to_pylist()
                changes.sort(key=lambda row: row["_commit_version"])
                for _, commit in itertools.groupby(changes, lambda row: row["_commit_version"]):
                    some = list(commit)
                    for row in some:
                        if row["_change_type"] in {"delete", "update_preimage"}:
                            reader.rows.pop(row["id"], None)
                    for row in some:
                        if row["_change_type"] in {"insert", "update_postimage"}:
                            reader.rows[row["id"]] = row["v"]
            if reader.rows != self.log.rows:
                detail = f"from {reader.version}: {reader.rows}\n{self.log.rows}"
                self.fail("the change feed gives other rows", detail)
            reader.version, reader.digest = self.log.latest, self.log.versions[-1].digest
            self.round.fault("rows", len(reader.rows))

        self.follow("feed", read)

    def read_stream(self) -> None:
        """A stream of appends, held or restarted."""

        def read(reader: _Reader) -> None:
            options = SourceOptions(uri=self.store.location.uri, skip_change_commits=True)
            if reader.stream is None or reader.offset is None or self.chance.random() < 0.3:
                reader.stream = LogStream(options, self.open().snapshot())
            stream = reader.stream
            start = reader.offset or stream.initial_offset()
            if reader.version < 0:
                expected = list(self.log.versions[-1].live)
            else:
                after = self.log.versions[reader.version + 1 :]
                # A RESTORE adds files that were removed again, and their rows are new once more.
                expected = [path for version in after for path in version.added]
            found: list[str] = []
            while True:
                stream.latest_version()
                end = stream.advance(start, Admission(max_files=3, max_bytes=None))
                if end == start:
                    break
                for files in stream.files_between(start, end):
                    found += files.files["path"].to_pylist()
                start = end
            if found or reader.offset is not None:
                # Without a first batch a query has no checkpoint.
                reader.offset = start
            reader.has_read = bool(found)
            is_held = reader.version < 0 or self.log.holds(reader.version, reader.digest)
            if sorted(found) != sorted(expected) and (found or is_held):
                detail = f"from {reader.version}: {sorted(found)}, not {sorted(expected)}"
                self.fail("a stream has other files", detail)
            self.round.fault("streamed files", len(found))

        self.follow("stream", read)


def _frame(rows: Rows) -> pa.Table:
    columns = {"id": pa.array(rows, pa.int64()), "v": pa.array(rows.values(), pa.int64())}
    return pa.table(columns)


def _rows(table: pa.Table) -> Rows:
    ids = table["id"].to_pylist()
    if len(set(ids)) != len(ids):
        raise AssertionError(f"rows are doubled: {sorted(ids)}")
    return dict(zip(ids, table["v"].to_pylist(), strict=True))


def play_history_round(round_: Round) -> None:
    """Play one history."""
    Path(round_.scratch / "table").mkdir()
    history = _History(round_)
    for _ in range(20 if round_.short else STEPS):
        if round_.is_over or not history.step():
            return
