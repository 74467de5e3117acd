"""The commits after a checkpoint, decoded in bulk.

The fields that reconciliation compares are decoded immediately; the other fields of a file stay
JSON text until they are read, because later commits replace most actions of a long log.

Spec: Delta Log Entries; Action Reconciliation.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, islice
from typing import Any, Literal, NamedTuple, TypeVar

import msgspec
import pyarrow as pa

from dagster_delta.protocol.actions import AddFile, DeletionVectorDescriptor, RemoveFile
from dagster_delta.protocol.log.commit_file import (
    TableActions,
    TableLine,
    decode_lines,
    garbage_collection_paused,
    refuse_repeated,
)
from dagster_delta.protocol.log.replay import LIVE_FILE_SCHEMA, TOMBSTONE_SCHEMA, file_key
from dagster_delta.protocol.values.arrow_columns import column_of
from dagster_delta.protocol.wire_values import Int64


class RawCommit(NamedTuple):
    """The bytes of a commit, or of several compacted into one file."""

    version: int
    """The (last) version it holds."""
    path: str
    """Relative to the table root, for errors."""
    data: bytes
    is_compacted: bool = False
    """Whether it holds several commits. Some writers of such files list the actions of a key newest
    first instead of keeping only the newest."""


class FileActionCounts(NamedTuple):
    """How many file actions a commit holds."""

    num_adds: int
    num_removes: int
    newest_removal_ms: int
    """Time of its newest remove in milliseconds since the epoch. Large if one may be unreadable,
    small if no remove has a time."""


class LogTail(TableActions, kw_only=True):
    """A run of commits, oldest first. Immutable after decoding."""

    commits: tuple[RawCommit, ...]
    contents: list[FileActionCounts] = msgspec.field(default_factory=list)
    """Of every commit."""
    keys: list[str] = msgspec.field(default_factory=list)
    """Key of every file action, in order. See `file_key`."""
    ordinals: list[int] = msgspec.field(default_factory=list)
    """Of the same actions: n for the n-th add, -1 - n for the n-th remove."""
    add_paths: list[str] = msgspec.field(default_factory=list)
    """Path of every add, as spelled in the log."""
    add_sizes: list[int] = msgspec.field(default_factory=list)
    """Size in bytes of every add."""
    num_removes: int = 0


class _FileKey(msgspec.Struct, gc=False, rename="camel"):
    path: str
    deletion_vector: DeletionVectorDescriptor | None = None


class _AddKey(_FileKey, gc=False, rename="camel", kw_only=True):
    size: Int64


class _RemoveKey(_FileKey, gc=False, rename="camel", kw_only=True):
    # Validated where tombstones are read: the live files can be read without it.
    deletion_timestamp: object = None


class _KeyLine(TableLine, gc=False, rename="camel"):
    add: _AddKey | None = None
    remove: _RemoveKey | None = None


# A batch of strings holds less than 2 GiB, and statistics may take kilobytes a file.
_BATCH_ROWS = 65_536

_NEVER_MS, _ALWAYS_MS = -(2**63), 2**63 - 1

_Action = TypeVar("_Action")

_KEY_DECODER = msgspec.json.Decoder(_KeyLine)
_NO_ACTION = _KeyLine()


def decode_tail(commits: Iterable[RawCommit]) -> LogTail:
    """The commits, decoded to the fields that reconciliation needs."""
    tail = LogTail(commits=tuple(commits))
    with garbage_collection_paused():
        for commit in tail.commits:
            _take_actions(tail, _decode_commits([commit], _KEY_DECODER), commit)
    return tail


def repeated_removals(tails: Iterable[LogTail]) -> tuple[int, ...]:
    """Versions of the commits that remove files which an earlier one of these commits has removed.

    Such a commit did not see the earlier one, so the rows that it wrote instead may be in the table
    twice: OPTIMIZE of deltalake 1.6.6 commits in this way after another OPTIMIZE.
    """
    removed: set[str] = set()
    found: list[int] = []
    for tail in tails:
        actions = zip(tail.keys, tail.ordinals, strict=True)
        for commit, counts in zip(tail.commits, tail.contents, strict=True):
            own = list(islice(actions, counts.num_adds + counts.num_removes))
            removes = {key for key, ordinal in own if ordinal < 0}
            if not (commit.is_compacted or removed.isdisjoint(removes)):
                found.append(commit.version)
            removed |= removes
            removed.difference_update(key for key, ordinal in own if ordinal >= 0)
    return tuple(found)


def _take_actions(tail: LogTail, lines: Iterable[_KeyLine], commit: RawCommit) -> None:
    others: list[_KeyLine] = []
    first, num_adds, num_removes = len(tail.keys), len(tail.add_paths), tail.num_removes
    newest_removal_ms = _NEVER_MS
    for line in lines:
        if (add := line.add) is not None:
            tail.ordinals.append(len(tail.add_paths))
            tail.keys.append(_key_of(add))
            tail.add_paths.append(add.path)
            tail.add_sizes.append(add.size)
        elif (remove := line.remove) is not None:
            tail.num_removes += 1
            tail.ordinals.append(-tail.num_removes)
            tail.keys.append(_key_of(remove))
            removed_ms = remove.deletion_timestamp
            if type(removed_ms) is int:
                if removed_ms > newest_removal_ms:
                    newest_removal_ms = removed_ms
            elif removed_ms is not None:
                newest_removal_ms = _ALWAYS_MS
        elif line != _NO_ACTION:
            others.append(line)
    tail.contents.append(
        FileActionCounts(
            len(tail.add_paths) - num_adds, tail.num_removes - num_removes, newest_removal_ms
        )
    )
    if commit.is_compacted:
        tail.keys[first:] = reversed(tail.keys[first:])
        tail.ordinals[first:] = reversed(tail.ordinals[first:])
        others.reverse()
    else:
        refuse_repeated(others, version=commit.version, path=commit.path)
    for line in others:
        tail.add(line)


def _key_of(file: _FileKey) -> str:
    vector = file.deletion_vector
    if vector is None:
        return file_key(file.path)
    return file_key(file.path, vector.storage_type, vector.path_or_inline_dv, vector.offset)


class ReconciledTail(msgspec.Struct, frozen=True):
    """The outcome of the commits after a checkpoint, in ordinals counted over all of them."""

    keys: tuple[str, ...]
    """Every key in the commits; they replace older actions of these keys."""
    live_adds: Sequence[int]
    """Ordinals of the adds that are live, ascending."""
    live_removes: Sequence[int]
    """Ordinals of the removes that are still in force, ascending."""


def reconcile_tail(tails: Sequence[LogTail]) -> ReconciledTail:
    """The newest action per key of several runs of commits, oldest first."""
    latest: dict[str, int] = {}
    adds = removes = 0
    for tail in tails:
        ordinals: Iterable[int] = tail.ordinals
        if adds or removes:
            ordinals = [
                ordinal + adds if ordinal >= 0 else ordinal - removes for ordinal in ordinals
            ]
        latest.update(zip(tail.keys, ordinals, strict=True))
        adds += len(tail.add_paths)
        removes += tail.num_removes
    if not removes and len(latest) == adds:
        return ReconciledTail(tuple(latest), range(adds), ())
    # A key keeps the position of its first action in the dict, so the last ordinals must be sorted.
    standing = sorted(latest.values())
    first_add = next((at for at, ordinal in enumerate(standing) if ordinal >= 0), len(standing))
    return ReconciledTail(
        keys=tuple(latest),
        live_adds=tuple(standing[first_add:]),
        live_removes=tuple(-1 - ordinal for ordinal in reversed(standing[:first_add])),
    )


def _make_lenient(action: type[msgspec.Struct], schema: pa.Schema) -> type[msgspec.Struct]:
    """The fields of an action that are columns, all of which except the path may be absent or
    null.
    """
    fields: list[Any] = [("path", str)]
    for field in msgspec.structs.fields(action):
        if field.name != "path" and field.name in schema.names:
            default = msgspec.field(name=field.encode_name, default=None)
            fields.append((field.name, field.type | None, default))
    return msgspec.defstruct("_Lenient", fields, gc=False)


_ADD_LINE = msgspec.defstruct(
    "_AddLine", [("add", _make_lenient(AddFile, LIVE_FILE_SCHEMA) | None, None)], gc=False
)
_REMOVE_LINE = msgspec.defstruct(
    "_RemoveLine", [("remove", _make_lenient(RemoveFile, TOMBSTONE_SCHEMA) | None, None)], gc=False
)
_ADD_DECODER: msgspec.json.Decoder[Any] = msgspec.json.Decoder(_ADD_LINE)
_REMOVE_DECODER: msgspec.json.Decoder[Any] = msgspec.json.Decoder(_REMOVE_LINE)


def add_columns(tails: Sequence[LogTail], ordinals: Sequence[int]) -> pa.Table:
    """A `pa.Table` of LIVE_FILE_SCHEMA: the adds with these ordinals.

    `tails` are the commits that the ascending ordinals are counted over. Those without any of these
    adds are not decoded again.
    """
    commits, ordinals = _find_holding_commits(tails, "num_adds", ordinals)
    with garbage_collection_paused():
        chosen = list(_choose_actions(_every_add(commits), ordinals))
        return _build_columns(chosen, LIVE_FILE_SCHEMA, partition_values={})


def _build_columns(actions: Sequence[Any], schema: pa.Schema, **defaults: object) -> pa.Table:
    """The columns of some actions; `defaults` are values in place of null."""
    batches = []
    for start in range(0, len(actions), _BATCH_ROWS):
        some, arrays = actions[start : start + _BATCH_ROWS], []
        for name, data_type in zip(schema.names, schema.types, strict=True):
            values = [getattr(action, name) for action in some]
            if name in defaults:
                values = [defaults[name] if value is None else value for value in values]
            arrays.append(column_of(values, data_type))
        batches.append(pa.RecordBatch.from_arrays(arrays, schema=schema))
    return pa.Table.from_batches(batches, schema)


def check_file_actions(commits: Sequence[RawCommit]) -> None:
    """Decode every add and remove as readers do, to validate them; the results are discarded."""
    with garbage_collection_paused():
        for action in chain(_every_add(commits), _every_remove(commits)):
            del action


def remove_columns(
    tails: Sequence[LogTail], ordinals: Sequence[int], *, removed_after_ms: int | None = None
) -> pa.Table:
    """A `pa.Table` of TOMBSTONE_SCHEMA: the removes with these ordinals, counted from 0.

    Removes at `removed_after_ms`, in milliseconds since the epoch, or before, and those without a
    time are left out; None for all.
    """
    commits, ordinals = _find_holding_commits(tails, "num_removes", ordinals, removed_after_ms)
    with garbage_collection_paused():
        chosen = [
            remove
            for remove in _choose_actions(_every_remove(commits), ordinals)
            if removed_after_ms is None
            or (
                remove.deletion_timestamp_ms is not None
                and remove.deletion_timestamp_ms > removed_after_ms
            )
        ]
        return _build_columns(chosen, TOMBSTONE_SCHEMA, data_change=False)


def _find_holding_commits(
    tails: Sequence[LogTail],
    counted_by: Literal["num_adds", "num_removes"],
    ordinals: Sequence[int],
    removed_after_ms: int | None = None,
) -> tuple[list[RawCommit], list[int]]:
    """The commits that hold some of the actions, and the ordinals counted over these commits."""
    every = (
        (commit, of)
        for tail in tails
        for commit, of in zip(tail.commits, tail.contents, strict=True)
    )
    commits: list[RawCommit] = []
    counted: list[int] = []
    begin = last = num_left_out = 0
    for commit, contents in every:
        count = getattr(contents, counted_by)
        last += count
        end = bisect_left(ordinals, last, begin)
        if end > begin and (
            removed_after_ms is None or contents.newest_removal_ms > removed_after_ms
        ):
            commits.append(commit)
            counted += [ordinal - num_left_out for ordinal in ordinals[begin:end]]
        else:
            num_left_out += count
        begin = end
    return commits, counted


def _every_add(commits: Iterable[RawCommit]) -> Iterator[Any]:
    return (line.add for line in _decode_commits(commits, _ADD_DECODER) if line.add is not None)


def _every_remove(commits: Iterable[RawCommit]) -> Iterator[Any]:
    holding = (commit for commit in commits if b'"remove"' in commit.data)
    return (
        line.remove for line in _decode_commits(holding, _REMOVE_DECODER) if line.remove is not None
    )


def _decode_commits(
    commits: Iterable[RawCommit], decoder: msgspec.json.Decoder[_Action]
) -> Iterator[_Action]:
    for commit in commits:
        yield from decode_lines(commit.data, decoder, version=commit.version, path=commit.path)


def _choose_actions(actions: Iterator[_Action], ordinals: Sequence[int]) -> Iterator[_Action]:
    wanted = iter(ordinals)
    following = next(wanted, None)
    for ordinal, action in enumerate(actions):
        if ordinal == following:
            yield action
            following = next(wanted, None)
