"""The commits after a checkpoint, decoded in bulk.

The fields that reconciliation compares are decoded immediately; the other fields of a file stay
JSON text until they are read, because later commits replace most actions of a long log.

Spec: Delta Log Entries; Action Reconciliation.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from typing import NamedTuple, TypeVar

import msgspec
import pyarrow as pa

from dagster_delta.protocol.actions import (
    DeletionVectorDescriptor,
    DomainMetadata,
    Metadata,
    Protocol,
    SetTransaction,
)
from dagster_delta.protocol.log.commit_file import (
    LenientDomainMetadata,
    LenientMetadata,
    decode_lines,
    garbage_collection_paused,
    refuse_repeated,
)
from dagster_delta.protocol.log.replay import (
    DELETION_VECTOR_TYPE,
    LIVE_FILE_SCHEMA,
    TOMBSTONE_SCHEMA,
    file_key,
)
from dagster_delta.protocol.values.arrow_columns import (
    boolean_column,
    integer_column,
    nested_column,
    string_column,
    struct_column,
)
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


class LogTail(msgspec.Struct):
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
    protocol: Protocol | None = None
    """The newest one in these commits."""
    metadata: Metadata | None = None
    """The newest one in these commits."""
    txns: dict[str, SetTransaction] = msgspec.field(default_factory=dict)
    """The newest one per application id."""
    domain_metadata: dict[str, DomainMetadata] = msgspec.field(default_factory=dict)
    """The newest one per domain, removals included."""


class _FileKey(msgspec.Struct, gc=False, rename="camel"):
    path: str
    deletion_vector: DeletionVectorDescriptor | None = None


class _AddKey(_FileKey, gc=False, rename="camel", kw_only=True):
    size: Int64


class _RemoveKey(_FileKey, gc=False, rename="camel", kw_only=True):
    # Validated where tombstones are read: the live files can be read without it.
    deletion_timestamp: object = None


class _KeyLine(msgspec.Struct, gc=False, rename="camel"):
    add: _AddKey | None = None
    remove: _RemoveKey | None = None
    protocol: Protocol | None = None
    meta_data: LenientMetadata | None = None
    txn: SetTransaction | None = None
    domain_metadata: LenientDomainMetadata | None = None


# A batch of strings holds less than 2 GiB, and statistics may take kilobytes a file.
_BATCH_ROWS = 65_536

_NEVER_MS, _ALWAYS_MS = -(2**63), 2**63 - 1

_Action = TypeVar("_Action")

_KEY_DECODER = msgspec.json.Decoder(_KeyLine)
_NO_ACTION = _KeyLine()


def decode_tail(commits: Iterable[RawCommit]) -> LogTail:
    """The commits, decoded to the fields that reconciliation needs."""
    tail = LogTail(tuple(commits))
    with garbage_collection_paused():
        for commit in tail.commits:
            _take_actions(tail, _lines([commit], _KEY_DECODER), commit)
    return tail


def _take_actions(tail: LogTail, lines: Iterable[_KeyLine], commit: RawCommit) -> None:
    others: list[_KeyLine] = []
    first, num_adds, num_removes = len(tail.keys), len(tail.add_paths), tail.num_removes
    newest_removal_ms = _NEVER_MS
    for line in lines:
        if (add := line.add) is not None:
            tail.ordinals.append(len(tail.add_paths))
            tail.keys.append(_key(add))
            tail.add_paths.append(add.path)
            tail.add_sizes.append(add.size)
        elif (remove := line.remove) is not None:
            tail.num_removes += 1
            tail.ordinals.append(-tail.num_removes)
            tail.keys.append(_key(remove))
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
    _take_table_actions(tail, others, commit)


def _key(file: _FileKey) -> str:
    vector = file.deletion_vector
    if vector is None:
        return file_key(file.path)
    return file_key(file.path, vector.storage_type, vector.path_or_inline_dv, vector.offset)


def _take_table_actions(tail: LogTail, lines: Sequence[_KeyLine], commit: RawCommit) -> None:
    protocols, metadata = [], []
    for line in lines:
        if line.protocol is not None:
            protocols.append(line.protocol)
        elif line.meta_data is not None:
            metadata.append(line.meta_data)
        elif line.txn is not None:
            tail.txns[line.txn.app_id] = line.txn
        elif line.domain_metadata is not None:
            domain = line.domain_metadata.strict()
            tail.domain_metadata[domain.domain] = domain
    if protocols or metadata:
        _take_configuration(tail, protocols, metadata, commit)


def _take_configuration(
    tail: LogTail,
    protocols: Sequence[Protocol],
    metadata: Sequence[LenientMetadata],
    commit: RawCommit,
) -> None:
    if not commit.is_compacted:
        refuse_repeated(protocols, "protocol", version=commit.version, path=commit.path)
        refuse_repeated(metadata, "metaData", version=commit.version, path=commit.path)
    if protocols:
        tail.protocol = protocols[-1]
    if metadata:
        tail.metadata = metadata[-1].strict()


class _Add(msgspec.Struct, gc=False, rename="camel"):
    path: str
    partition_values: dict[str, str | None] | None = None
    size: Int64 | None = None
    modification_time: Int64 | None = None
    stats: str | None = None
    tags: dict[str, str | None] | None = None
    deletion_vector: DeletionVectorDescriptor | None = None
    base_row_id: Int64 | None = None
    default_row_commit_version: Int64 | None = None
    clustering_provider: str | None = None


class _Remove(_Add, gc=False, rename="camel"):
    deletion_timestamp: Int64 | None = None
    data_change: bool | None = None
    extended_file_metadata: bool | None = None


class _AddLine(msgspec.Struct, gc=False):
    add: _Add | None = None


class _RemoveLine(msgspec.Struct, gc=False):
    remove: _Remove | None = None


_ADD_DECODER = msgspec.json.Decoder(_AddLine)
_REMOVE_DECODER = msgspec.json.Decoder(_RemoveLine)


def add_columns(tails: Sequence[LogTail], ordinals: Sequence[int]) -> pa.Table:
    """A `pa.Table` of LIVE_FILE_SCHEMA: the adds with these ordinals.

    `tails` are the commits that the ascending ordinals are counted over. Those without any of these
    adds are not decoded again.
    """
    counts = (content.num_adds for tail in tails for content in tail.contents)
    commits, ordinals = _holding(tails, counts, ordinals)
    with garbage_collection_paused():
        chosen = list(_chosen(_every_add(commits), ordinals))
        batches = [
            _batch(files, LIVE_FILE_SCHEMA, partition_values={}) for files in _sliced(chosen)
        ]
    return pa.Table.from_batches(batches, LIVE_FILE_SCHEMA)


def _batch(actions: Sequence[_Add], schema: pa.Schema, **defaults: object) -> pa.RecordBatch:
    """The columns of some actions; `defaults` are values in place of null."""
    arrays = []
    for field in schema:
        name = field.name.removesuffix("_bytes").removesuffix("_ms")
        values = [getattr(action, name) for action in actions]
        if name in defaults:
            values = [defaults[name] if value is None else value for value in values]
        is_vector = field.type == DELETION_VECTOR_TYPE
        arrays.append(
            deletion_vector_column(values) if is_vector else nested_column(values, field.type)
        )
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


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
    counts = (content.num_removes for tail in tails for content in tail.contents)
    commits, ordinals = _holding(tails, counts, ordinals, removed_after_ms)
    with garbage_collection_paused():
        chosen = [
            remove
            for remove in _chosen(_every_remove(commits), ordinals)
            if removed_after_ms is None
            or (
                remove.deletion_timestamp is not None
                and remove.deletion_timestamp > removed_after_ms
            )
        ]
        batches = [_batch(files, TOMBSTONE_SCHEMA, data_change=False) for files in _sliced(chosen)]
    return pa.Table.from_batches(batches, TOMBSTONE_SCHEMA)


def _sliced(actions: Sequence[_Action]) -> Iterator[Sequence[_Action]]:
    return (actions[at : at + _BATCH_ROWS] for at in range(0, len(actions), _BATCH_ROWS))


def _holding(
    tails: Sequence[LogTail],
    counts: Iterable[int],
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
    for (commit, contents), count in zip(every, counts, strict=True):
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


def _every_add(commits: Iterable[RawCommit]) -> Iterator[_Add]:
    return (line.add for line in _lines(commits, _ADD_DECODER) if line.add is not None)


def _every_remove(commits: Iterable[RawCommit]) -> Iterator[_Remove]:
    holding = (commit for commit in commits if b'"remove"' in commit.data)
    return (line.remove for line in _lines(holding, _REMOVE_DECODER) if line.remove is not None)


def _lines(
    commits: Iterable[RawCommit], decoder: msgspec.json.Decoder[_Action]
) -> Iterator[_Action]:
    for commit in commits:
        yield from decode_lines(commit.data, decoder, version=commit.version, path=commit.path)


def _chosen(actions: Iterator[_Action], ordinals: Sequence[int]) -> Iterator[_Action]:
    wanted = iter(ordinals)
    following = next(wanted, None)
    for ordinal, action in enumerate(actions):
        if ordinal == following:
            yield action
            following = next(wanted, None)


def deletion_vector_column(
    vectors: Sequence[DeletionVectorDescriptor | None],
) -> pa.StructArray:
    """A `pa.StructArray` of DELETION_VECTOR_TYPE."""
    if all(vector is None for vector in vectors):
        return pa.nulls(len(vectors), DELETION_VECTOR_TYPE)
    children = [
        string_column([None if v is None else v.storage_type for v in vectors]),
        string_column([None if v is None else v.path_or_inline_dv for v in vectors]),
        integer_column([None if v is None else v.offset for v in vectors], pa.int32()),
        integer_column([None if v is None else v.size_in_bytes for v in vectors], pa.int32()),
        integer_column([None if v is None else v.cardinality for v in vectors]),
    ]
    absent = boolean_column([vector is None for vector in vectors])
    return struct_column(children, DELETION_VECTOR_TYPE, absent)
