"""Writes checkpoints: in one file, or for a large table in several.

A large checkpoint is written in batches, so its memory is bounded by a few batches. It becomes
visible only when it is complete: a checkpoint in parts is valid when every part exists, and
sidecars are valid when a manifest names them.

Spec: Checkpoints; Last Checkpoint File; V2 Spec checkpoints; Sidecar Files.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from msgspec.structs import replace

from dagster_delta.protocol.actions import SidecarFile
from dagster_delta.protocol.checkpoint.last_checkpoint import LastCheckpoint, encode_last_checkpoint
from dagster_delta.protocol.checkpoint.writer import (
    ActionFile,
    CheckpointState,
    add_clustered,
    encode_actions_file,
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
from dagster_delta.storage.scratch import scratch_directory
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
    store, configuration, version = snapshot.store, snapshot.configuration, snapshot.version
    bound = snapshot.max_file_actions
    num_files = max(1, -(-bound // max_actions_per_file))
    knows_v2 = configuration.supports("v2Checkpoint")
    # The feature forbids checkpoints in several parts.
    in_sidecars = knows_v2 and num_files > 1
    as_v2 = in_sidecars or (knows_v2 and configuration.properties.checkpoint_policy == "v2")
    paths = [checkpoint_path(version)]
    if as_v2:
        paths = [v2_checkpoint_path(version, str(uuid.uuid4()), "parquet")]
    elif num_files > 1:
        paths = [*multi_part_checkpoint_paths(version, num_files)]
    is_held = bound <= min(max_held_actions, max_actions_per_file)
    files = _CheckpointFiles(snapshot, now_ms, is_held=is_held)
    if in_sidecars:
        stored = files.store_sidecars(num_files, paths[0])
    else:
        stored, _ = files.store(paths, other_actions(files.empty, as_v2=as_v2))
    if as_v2:
        stored = stored.naming(paths[0])
    known = read_last_checkpoint(store)
    if known is None or known.version <= version:
        store.put(LAST_CHECKPOINT_PATH, encode_last_checkpoint(stored))


class _CheckpointFiles:
    """Writes the files of one checkpoint.

    Unless `is_held`, they are on the local disk first: a part without its end must never be in the
    log under its name.
    """

    def __init__(self, snapshot: Snapshot, now_ms: int, *, is_held: bool) -> None:
        self._snapshot, self._now_ms, self._is_held = snapshot, now_ms, is_held
        self._columns = statistics_columns(snapshot.configuration)
        self.empty = CheckpointState(
            version=snapshot.version,
            configuration=snapshot.configuration,
            live_files=_NO_FILES,
            statistics=parse_statistics_json(_NO_FILES["stats"], self._columns),
            tombstones=_NO_TOMBSTONES,
            transactions=snapshot.transactions(now_ms=now_ms),
            domain_metadata=tuple(snapshot.domain_metadata().values()),
        )

    def store(
        self, paths: Sequence[str], others: pa.Table | None
    ) -> tuple[LastCheckpoint, list[int]]:
        """Store the file actions in files with these paths, after all other actions if they are
        given; returns the hint, and the sizes of the files. A sidecar without any is not stored,
        and its size is 0.
        """
        no_files = file_actions(self.empty)
        first = no_files if others is None else stack_actions([others, no_files])
        sizes, num_adds = list[int](), 0
        with nullcontext() if self._is_held else scratch_directory("checkpoint-") as directory:
            sinks: list[Any] = [
                pa.BufferOutputStream() if directory is None else f"{directory}/{number}"
                for number in range(len(paths))
            ]
            files = [
                ActionFile(sink, no_files if number else first) for number, sink in enumerate(sinks)
            ]
            for actions, about, adds in self._file_actions():
                num_adds += adds
                add_clustered(files, actions, about)
            for file, sink, path in zip(files, sinks, paths, strict=True):
                file.close()
                if others is None and not file.num_actions:
                    sizes.append(0)
                    continue
                is_local = isinstance(sink, str)
                data = Path(sink).read_bytes() if is_local else sink.getvalue().to_pybytes()
                # Every attempt at one version has the same contents: replacing a file is harmless.
                self._snapshot.store.put(path, data)
                sizes.append(len(data))
        stored = LastCheckpoint(
            version=self._snapshot.version,
            size=sum(file.num_actions for file in files),
            parts=len(paths) if len(paths) > 1 else None,
            size_bytes=sum(sizes),
            num_add_files=num_adds,
        )
        return stored, sizes

    def store_sidecars(self, num_files: int, manifest_path: str) -> LastCheckpoint:
        """Store a V2 checkpoint whose file actions are in sidecars."""
        store = self._snapshot.store
        names = [f"{uuid.uuid4()}.parquet" for _ in range(num_files)]
        with CreatedFiles(store) as created:
            paths = [sidecar_path(name) for name in names]
            created.add(paths)
            stored, sizes = self.store(paths, None)
        sidecars = [
            SidecarFile(path=name, size_in_bytes=size, modification_time_ms=self._now_ms, tags={})
            for name, size in zip(names, sizes, strict=True)
            if size
        ]
        others = other_actions(self.empty, as_v2=True, sidecars=sidecars)
        manifest = encode_actions_file(stack_actions([others, file_actions(self.empty)]))
        store.put(manifest_path, manifest)
        return replace(
            stored,
            size=(stored.size or 0) + others.num_rows,
            parts=None,
            size_bytes=sum(sizes) + len(manifest),
        )

    def _file_actions(self) -> Iterator[tuple[pa.Table, pa.ChunkedArray, int]]:
        """Tables of actions, the paths that their rows are about, and the number of adds."""
        snapshot, columns = self._snapshot, self._columns
        if self._is_held:
            files, removes = snapshot.live_files(), iter([snapshot.tombstones(now_ms=self._now_ms)])
            batches = iter([(files, snapshot.statistics(columns))])
        else:
            removes = snapshot.tombstone_batches(now_ms=self._now_ms)
            found = snapshot.file_batches(LIVE_FILE_SCHEMA.names, columns)
            batches = ((batch.files, batch.statistics(columns)) for batch in found)
        for files, statistics in batches:
            state = replace(self.empty, live_files=files, statistics=statistics)
            yield file_actions(state), files["path"], files.num_rows
        # A checkpoint outlives the commits that could contradict it.
        snapshot.check_totals()
        for removed in removes:
            state = replace(self.empty, tombstones=removed)
            yield file_actions(state), removed["path"], 0
