"""The state of any log at any version, against a replay one action at a time."""

from __future__ import annotations

import io
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dagster_delta.protocol.log.paths import (
    checkpoint_path,
    multi_part_checkpoint_paths,
    v2_checkpoint_path,
)
from dagster_delta.protocol.log.replay import LIVE_FILE_SCHEMA
from dagster_delta.storage.memory_store import MemoryStore
from dagster_delta.table.read.snapshot import Snapshot, advanced
from tests.table.logs import (
    Action,
    add_file,
    checkpoint_bytes,
    commit,
    compacted_path,
    encode,
    features,
    metadata,
    remove_file,
    vector,
)

pytestmark = pytest.mark.slow

UNIQUE = "00000000-0000-0000-0000-000000000001"

PATHS = st.sampled_from([f"p={n}/f{n}.parquet" for n in range(5)] + ["/abs/f"])
VECTORS = st.sampled_from([None, ("v", None), ("v", 1), ("v", 2), ("w", 1)])

COLUMNS = st.sampled_from(LIVE_FILE_SCHEMA.names)

Key = tuple[str, tuple[str, int | None] | None]


@dataclass
class Model:
    """Replay by the book: a dictionary per kind of action."""

    files: dict[Key, Action] = field(default_factory=dict)
    removed: dict[Key, Action] = field(default_factory=dict)
    applications: dict[str, int] = field(default_factory=dict)

    def replay(self, actions: list[Action]) -> None:
        for action in actions:
            if "add" in action:
                self.removed.pop(_key(action["add"]), None)
                self.files[_key(action["add"])] = action
            elif "remove" in action:
                self.files.pop(_key(action["remove"]), None)
                self.removed[_key(action["remove"])] = action
            elif "txn" in action:
                self.applications[action["txn"]["appId"]] = action["txn"]["version"]

    def actions(self) -> list[Action]:
        state = [
            {"txn": {"appId": name, "version": version}}
            for name, version in self.applications.items()
        ]
        return [*state, *self.files.values(), *self.removed.values()]


def _key(file: dict[str, Any]) -> Key:
    descriptor = file.get("deletionVector")
    if descriptor is None:
        return file["path"], None
    return file["path"], (descriptor["pathOrInlineDv"], descriptor.get("offset"))


@st.composite
def commits(draw: st.DrawFn) -> list[Action]:
    """One valid commit: at most one add and one remove of a path, of different logical files."""
    actions: list[Action] = []
    for path in draw(st.lists(PATHS, unique=True, max_size=4)):
        what = draw(st.sampled_from(["add", "remove", "both"]))
        removed, added = draw(VECTORS), draw(VECTORS)
        if what != "add":
            actions.append(_with_vector(remove_file(path, deletionTimestamp=10), removed))
        if what == "add" or (what == "both" and added != removed):
            size = draw(st.integers(0, 9))
            actions.append(_with_vector(add_file(path, size=size), added))
    if draw(st.booleans()):
        version = draw(st.integers(0, 9))
        actions.append({"txn": {"appId": draw(st.sampled_from("ab")), "version": version}})
    return draw(st.permutations(actions))


def _with_vector(action: Action, descriptor: tuple[str, int | None] | None) -> Action:
    if descriptor is not None:
        (file,) = action.values()
        file["deletionVector"] = vector(descriptor[0], offset=descriptor[1])
    return action


FIRST: list[Action] = [features("deletionVectors"), metadata()]


def _write_checkpoint(store: MemoryStore, version: int, actions: list[Action], kind: str) -> None:
    if kind == "classic":
        store.put(checkpoint_path(version), checkpoint_bytes(actions))
    elif kind == "parts":
        for number, path in enumerate(multi_part_checkpoint_paths(version, 2)):
            store.put(path, checkpoint_bytes(actions[number::2]))
    elif kind == "row groups":
        table = pq.read_table(io.BytesIO(checkpoint_bytes(actions)))
        sink = io.BytesIO()
        pq.write_table(table, sink, row_group_size=2)
        store.put(checkpoint_path(version), sink.getvalue())
    else:
        files = [each for each in actions if {"add", "remove"} & each.keys()]
        others = [each for each in actions if each not in files]
        store.put("_delta_log/_sidecars/s.parquet", checkpoint_bytes(files[1:]))
        sidecar = {"path": "s.parquet", "sizeInBytes": 1, "modificationTime": 1}
        manifest = [*others, {"sidecar": sidecar}, *files[:1]]
        store.put(v2_checkpoint_path(version, UNIQUE, "json"), encode(*manifest))


def _check(snapshot: Snapshot, model: Model) -> None:
    rows = snapshot.live_files(["path", "deletion_vector", "size_bytes"]).to_pylist()
    found = {(row["path"], _vector_key(row["deletion_vector"])): row["size_bytes"] for row in rows}
    assert len(found) == len(rows)
    assert found == {key: action["add"]["size"] for key, action in model.files.items()}
    assert snapshot.num_files == len(rows)
    removed = {
        (row["path"], _vector_key(row["deletion_vector"]))
        for row in snapshot.tombstones(now_ms=0).to_pylist()
    }
    assert removed == set(model.removed)
    applications = {each.app_id: each.version for each in snapshot.transactions()}
    assert applications == model.applications
    every = snapshot.live_files()
    every.validate(full=True)
    assert isinstance(every, pa.Table)
    _check_batches(snapshot, every)


def _check_batches(snapshot: Snapshot, every: pa.Table) -> None:
    batches = list(snapshot.file_batches(every.column_names, ()))
    assert [row for each in batches for row in each.files.to_pylist()] == every.to_pylist()
    statistics = [row for each in batches for row in each.statistics(()).to_pylist()]
    assert statistics == snapshot.statistics(()).to_pylist()
    removed = [row for each in snapshot.tombstone_batches(now_ms=0) for row in each.to_pylist()]
    assert removed == snapshot.tombstones(now_ms=0).to_pylist()


def _vector_key(descriptor: dict[str, Any] | None) -> tuple[str, int | None] | None:
    return None if descriptor is None else (descriptor["path_or_inline_dv"], descriptor["offset"])


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_every_way_to_a_version_leads_to_the_state_of_the_replay(data: st.DataObject) -> None:
    history = [FIRST, *data.draw(st.lists(commits(), min_size=1, max_size=8))]
    store, model = MemoryStore(), Model()
    last = len(history) - 1
    at = data.draw(st.none() | st.integers(0, last))
    kind = data.draw(st.sampled_from(["classic", "parts", "row groups", "v2"]))
    look_after = data.draw(st.sets(st.integers(0, last)))
    compacted = data.draw(st.none() | st.tuples(st.integers(0, last), st.integers(0, last)))
    advancing: Snapshot | None = None
    for version, actions in enumerate(history):
        commit(store, version, *actions)
        model.replay(actions)
        if version == at:
            _write_checkpoint(store, version, [*FIRST, *model.actions()], kind)
        advancing = (
            Snapshot.load(store)
            if advancing is None
            else advanced(advancing.store, advancing, [(version, encode(*actions))])
        )
        if version in look_after:
            # What has been looked at is carried forward, whatever it was.
            advancing.live_files(data.draw(st.lists(COLUMNS, unique=True)))
            if data.draw(st.booleans()):
                _check(advancing, model)
    if compacted is not None and compacted[0] < compacted[1]:
        _write_compacted(store, history, *compacted)
    assert advancing is not None
    _check(advancing, model)
    _check(Snapshot.load(store), model)
    older = data.draw(st.integers(0, last))
    past = Model()
    for actions in history[: older + 1]:
        past.replay(actions)
    _check(Snapshot.load(store, version=older), past)


def _write_compacted(store: MemoryStore, history: list[list[Action]], start: int, end: int) -> None:
    part = Model()
    for actions in history[start : end + 1]:
        part.replay(actions)
    first = FIRST if start == 0 else []
    store.put(compacted_path(start, end), encode(*first, *part.actions()))
