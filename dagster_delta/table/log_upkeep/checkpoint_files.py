"""Writes checkpoints: in one file, or for a large table in several.

A large checkpoint is written in batches, so its memory is bounded by a few batches. It becomes
visible only when it is complete: a checkpoint in parts is valid when every part exists, and
sidecars are valid when a manifest names them.

Spec: Checkpoints; Last Checkpoint File; V2 Spec checkpoints; Sidecar Files.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
from msgspec.structs import replace

from dagster_delta.protocol.actions import SidecarFile
from dagster_delta.protocol.checkpoint.last_checkpoint import LastCheckpoint, encode_last_checkpoint
from dagster_delta.protocol.checkpoint.writer import (
    ActionFile,
    CheckpointState,
    add_clustered,
    encode_actions_file,
    encode_checkpoint,
    file_actions,
    other_actions,
    stack_actions,
)
from dagster_delta.protocol.log.paths import (
    LAST_CHECKPOINT_PATH,
    checkpoint_path,
    multi_part_checkpoint_paths,
    sidecar_path,
    v2_checkpoint_path,
)
from dagster_delta.protocol.log.replay import LIVE_FILE_SCHEMA, TOMBSTONE_SCHEMA
from dagster_delta.protocol.statistics.statistics import parse_statistics_json, statistics_columns
from dagster_delta.storage.scratch_directory import scratch_directory
from dagster_delta.storage.unreferenced_files import CreatedFiles
from dagster_delta.table.log.reader import read_last_checkpoint

if TYPE_CHECKING:
    from dagster_delta.table.read.snapshot import Snapshot

MAX_ACTIONS_PER_FILE = 1_000_000
"""Number of file actions above which a checkpoint is split into several files."""
MAX_HELD_ACTIONS = 250_000
"""Number of file actions up to which a checkpoint is built in memory, from data that a handle may
hold anyway."""

_NO_FILES = pa.Table.from_batches([], LIVE_FILE_SCHEMA)
_NO_TOMBSTONES = pa.Table.from_batches([], TOMBSTONE_SCHEMA)


def write_checkpoint(
    snapshot: Snapshot,
    *,
    now_ms: int,
    max_actions_per_file: int = MAX_ACTIONS_PER_FILE,
    max_held_actions: int = MAX_HELD_ACTIONS,
) -> None:
    """Store a checkpoint of a version, and point `_last_checkpoint` to it.

    The retention of tombstones is counted back from `now_ms`, milliseconds since the epoch. Above
    `max_actions_per_file` file actions it is split: a classic checkpoint into parts, one of a table
    with the feature v2Checkpoint into sidecars. Above `max_held_actions` it is written in batches.
    """
    configuration, version = snapshot.configuration, snapshot.version
    knows_v2 = configuration.supports("v2Checkpoint")
    as_v2 = knows_v2 and configuration.properties.checkpoint_policy == "v2"
    bound = snapshot.max_file_actions
    path = checkpoint_path(version)
    if as_v2:
        path = v2_checkpoint_path(version, str(uuid.uuid4()), "parquet")
    if bound <= min(max_held_actions, max_actions_per_file):
        stored = _store_whole(snapshot, now_ms, path, as_v2=as_v2)
    elif bound <= max_actions_per_file:
        stored = _store_parts(snapshot, now_ms, (path,), as_v2=as_v2)
    elif knows_v2:
        # The feature forbids checkpoints in several parts.
        stored = _store_sidecars(snapshot, now_ms, max_actions_per_file)
    else:
        paths = multi_part_checkpoint_paths(version, -(-bound // max_actions_per_file))
        stored = _store_parts(snapshot, now_ms, paths, as_v2=False)
    known = read_last_checkpoint(snapshot.store)
    if known is None or known <= version:
        snapshot.store.put(LAST_CHECKPOINT_PATH, encode_last_checkpoint(stored))


def _store_whole(snapshot: Snapshot, now_ms: int, path: str, *, as_v2: bool) -> LastCheckpoint:
    live_files = snapshot.live_files()
    # A checkpoint outlives the commits that could contradict it.
    snapshot.check_totals()
    state = replace(
        _without_files(snapshot, now_ms),
        live_files=live_files,
        statistics=snapshot.statistics(statistics_columns(snapshot.configuration)),
        tombstones=snapshot.tombstones(now_ms=now_ms),
    )
    encoded = encode_checkpoint(state, as_v2=as_v2)
    # Every attempt at one version has the same contents, so replacing a file is harmless.
    snapshot.store.put(path, encoded.data)
    return LastCheckpoint(
        version=snapshot.version,
        size=encoded.num_actions,
        size_bytes=len(encoded.data),
        num_add_files=encoded.num_add_files,
    )


def _without_files(snapshot: Snapshot, now_ms: int) -> CheckpointState:
    columns = statistics_columns(snapshot.configuration)
    return CheckpointState(
        version=snapshot.version,
        configuration=snapshot.configuration,
        live_files=_NO_FILES,
        statistics=parse_statistics_json(_NO_FILES["stats"], columns),
        tombstones=_NO_TOMBSTONES,
        transactions=snapshot.transactions(now_ms=now_ms),
        domain_metadata=tuple(snapshot.domain_metadata().values()),
    )


def _file_actions(
    snapshot: Snapshot, empty: CheckpointState, now_ms: int
) -> Iterator[tuple[pa.Table, pa.ChunkedArray, int]]:
    """Tables of actions, the paths that their rows are about, and the number of adds."""
    columns = statistics_columns(snapshot.configuration)
    for batch in snapshot.file_batches(LIVE_FILE_SCHEMA.names, columns):
        adds = replace(empty, live_files=batch.files, statistics=batch.statistics(columns))
        yield file_actions(adds), batch.files["path"], batch.files.num_rows
    # A checkpoint outlives the commits that could contradict it.
    snapshot.check_totals()
    for removed in snapshot.tombstone_batches(now_ms=now_ms):
        yield file_actions(replace(empty, tombstones=removed)), removed["path"], 0


class _ActionFiles:
    """Files of a checkpoint on the local disk first: a part without its end must never be in the
    log under its name.
    """

    def __init__(self, directory: str) -> None:
        self._directory = directory
        self.opened: list[ActionFile] = []

    def _path(self, number: int) -> Path:
        return Path(self._directory, str(number))

    def open(self, first: pa.Table) -> None:
        """Begin another file, with a first table of actions."""
        self.opened.append(ActionFile(str(self._path(len(self.opened))), first))

    def add_in_turn(self, actions: pa.Table, first: pa.Table, max_actions: int) -> None:
        """Add file actions; begin another file if one file would have too many."""
        last = self.opened[-1] if self.opened else None
        if last is None or last.num_actions + actions.num_rows > max_actions:
            if last is not None:
                last.close()
            self.open(first)
        self.opened[-1].add(actions)

    def contents(self) -> Iterator[bytes]:
        """Finish the files, and read them one after another."""
        for file in self.opened:
            file.close()
        return (self._path(number).read_bytes() for number in range(len(self.opened)))

    @property
    def num_actions(self) -> int:
        """Rows of all files."""
        return sum(file.num_actions for file in self.opened)


def _store_parts(
    snapshot: Snapshot, now_ms: int, paths: Sequence[str], *, as_v2: bool
) -> LastCheckpoint:
    empty = _without_files(snapshot, now_ms)
    no_files = file_actions(empty)
    first = stack_actions([other_actions(empty, as_v2=as_v2), no_files])
    size_bytes = num_adds = 0
    with scratch_directory("checkpoint-") as directory:
        files = _ActionFiles(directory)
        for number in range(len(paths)):
            files.open(no_files if number else first)
        for rows, about, adds in _file_actions(snapshot, empty, now_ms):
            num_adds += adds
            add_clustered(files.opened, rows, about)
        for path, data in zip(paths, files.contents(), strict=True):
            size_bytes += len(data)
            # Every attempt at one version has the same contents: replacing a file is harmless.
            snapshot.store.put(path, data)
    return LastCheckpoint(
        version=snapshot.version,
        size=files.num_actions,
        parts=len(paths) if len(paths) > 1 else None,
        size_bytes=size_bytes,
        num_add_files=num_adds,
    )


def _store_sidecars(snapshot: Snapshot, now_ms: int, max_actions_per_file: int) -> LastCheckpoint:
    """A V2 checkpoint whose file actions are in sidecars."""
    store, empty = snapshot.store, _without_files(snapshot, now_ms)
    no_files, num_adds = file_actions(empty), 0
    sidecars: list[SidecarFile] = []
    with scratch_directory("checkpoint-") as directory, CreatedFiles(store) as created:
        files = _ActionFiles(directory)
        for rows, _, adds in _file_actions(snapshot, empty, now_ms):
            num_adds += adds
            for start in range(0, rows.num_rows, max_actions_per_file):
                some = rows.slice(start, max_actions_per_file)
                files.add_in_turn(some, no_files, max_actions_per_file)
        for data in files.contents():
            name = f"{uuid.uuid4()}.parquet"
            created.add([sidecar_path(name)])
            store.put(sidecar_path(name), data)
            sidecars.append(
                SidecarFile(
                    path=name, size_in_bytes=len(data), modification_time_ms=now_ms, tags={}
                )
            )
    others = other_actions(empty, as_v2=True, sidecars=sidecars)
    manifest = encode_actions_file(stack_actions([others, no_files]))
    path = v2_checkpoint_path(snapshot.version, str(uuid.uuid4()), "parquet")
    store.put(path, manifest)
    return LastCheckpoint(
        version=snapshot.version,
        size=others.num_rows + files.num_actions,
        size_bytes=len(manifest) + sum(sidecar.size_in_bytes for sidecar in sidecars),
        num_add_files=num_adds,
    )
