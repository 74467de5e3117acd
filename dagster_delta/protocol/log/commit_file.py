"""One commit file, decoded action by action.

Bulk replay of many commits goes through `log_tail`, which never makes an object per file.

Commits and version checksums contain a CRC-32 of their own contents, as a field that the protocol
allows writers to add and other readers ignore. Without it, a damaged digit in a partition value
reads as another value, and a commit truncated between two lines as a smaller commit.

Spec: Delta Log Entries; Actions.
"""

from __future__ import annotations

import gc
import io
import re
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

import msgspec

from dagster_delta.errors import CorruptLog
from dagster_delta.protocol.actions import (
    AddCDCFile,
    AddFile,
    DomainMetadata,
    Format,
    Metadata,
    Protocol,
    RemoveFile,
    SetTransaction,
    SidecarFile,
)
from dagster_delta.protocol.log.paths import commit_path
from dagster_delta.protocol.wire_values import DECODING_ERRORS, Int64

CHECKSUM_KEY = "contentCrc32"
"""The last key of the first line: of its `commitInfo` in a commit."""

# A quote inside a JSON text is escaped, so that the key cannot be part of one.
_STATED = re.compile(rb',"contentCrc32":(\d{1,10})(?=\}{1,2}$)')
_LONGEST = len(',"contentCrc32":4294967295}}')


def with_checksum(line: bytes, rest: bytes = b"", *, depth: int = 1) -> bytes:
    """The contents of a file, with its checksum added.

    `line` is the first line, a JSON object that is not empty, without a newline; `rest` begins with
    one. The checksum goes into the object at depth 1, into the object that is its last value at
    depth 2.
    """
    end = len(line) - depth
    checksum = zlib.crc32(rest, zlib.crc32(line))
    return b'%b,"%b":%d%b%b' % (line[:end], CHECKSUM_KEY.encode(), checksum, line[end:], rest)


def holds_checksum(data: bytes) -> bool | None:
    """Whether a file matches its checksum; None if it has no checksum."""
    end = data.find(b"\n")
    end = len(data) if end < 0 else end
    stated = _STATED.search(data, max(0, end - _LONGEST), end)
    if stated is None:
        return None
    view = memoryview(data)
    return zlib.crc32(view[stated.end() :], zlib.crc32(view[: stated.start()])) == int(stated[1])


_COMPACTED = ".compacted.json"
EMPTY_SCHEMA = '{"type":"struct","fields":[]}'

_Line = TypeVar("_Line")


class CommitContents(msgspec.Struct, frozen=True, kw_only=True):
    """The actions of one commit, without its provenance."""

    protocol: Protocol | None = None
    """New protocol, if the commit changes it."""
    metadata: Metadata | None = None
    """New metadata, if the commit changes it."""
    txns: tuple[SetTransaction, ...] = ()
    """Application transactions that the commit records, one per application id."""
    domain_metadata: tuple[DomainMetadata, ...] = ()
    """Metadata domains that the commit sets or removes, one action per domain."""
    removes: tuple[RemoveFile, ...] = ()
    """Logical files that leave the table."""
    adds: tuple[AddFile, ...] = ()
    """Logical files that enter the table."""
    cdc: tuple[AddCDCFile, ...] = ()
    """Files of row changes for the change data feed."""

    @property
    def removes_data(self) -> bool:
        """Whether rows leave the table; moves between its files do not count."""
        return any(remove.data_change for remove in self.removes)


class CommitActions(CommitContents, frozen=True):
    """The actions of one commit, in file order within each kind."""

    version: int
    """Version of the table that the commit makes."""
    commit_info: dict[str, Any] | None = None
    """Provenance, as in the file."""


class LenientMetadata(msgspec.Struct, rename="camel"):
    """metaData as some writers produce it: every field may be absent or null."""

    id: str | None = None
    name: str | None = None
    description: str | None = None
    format: Format | None = None
    schema_string: str | None = None
    partition_columns: tuple[str, ...] | None = None
    created_time: Int64 | None = None
    configuration: dict[str, str | None] | None = None

    def strict(self) -> Metadata:
        """The action, with the defaults of the reference implementation filled in."""
        return Metadata(
            id=self.id or "",
            name=self.name,
            description=self.description,
            format=self.format or Format(),
            # A table may be created before it has a schema: its schema is then empty. An empty text
            # is not a schema.
            schema_string=EMPTY_SCHEMA if self.schema_string is None else self.schema_string,
            partition_columns=self.partition_columns or (),
            created_time_ms=self.created_time,
            configuration={
                key: value for key, value in (self.configuration or {}).items() if value is not None
            },
        )


class LenientDomainMetadata(msgspec.Struct):
    """domainMetadata whose configuration is JSON text, or the map of the specification's draft."""

    domain: str
    configuration: str | dict[str, Any] | None = None
    removed: bool = False

    def strict(self) -> DomainMetadata:
        """The action with its configuration as text."""
        configuration = self.configuration
        if not isinstance(configuration, str):
            configuration = msgspec.json.encode(configuration or {}).decode()
        return DomainMetadata(domain=self.domain, configuration=configuration, removed=self.removed)


class TableLine(msgspec.Struct, rename="camel"):
    """A line of a log file, without the actions on data files."""

    protocol: Protocol | None = None
    meta_data: LenientMetadata | None = None
    txn: SetTransaction | None = None
    domain_metadata: LenientDomainMetadata | None = None


class CheckpointLine(TableLine, rename="camel"):
    """A line of a checkpoint, without the actions on data files: only checkpoints have sidecars."""

    sidecar: SidecarFile | None = None


class TableActions(msgspec.Struct):
    """The newest actions that are not about data files, of commits or of a checkpoint."""

    protocol: Protocol | None = None
    metadata: Metadata | None = None
    txns: dict[str, SetTransaction] = msgspec.field(default_factory=dict)
    """By application id."""
    domain_metadata: dict[str, DomainMetadata] = msgspec.field(default_factory=dict)
    """By domain, removals included."""
    sidecars: list[SidecarFile] = msgspec.field(default_factory=list)

    def add(self, line: TableLine) -> None:
        """Add the actions of a line."""
        if line.protocol is not None:
            self.protocol = line.protocol
        if line.meta_data is not None:
            self.metadata = line.meta_data.strict()
        if line.txn is not None:
            self.txns[line.txn.app_id] = line.txn
        if line.domain_metadata is not None:
            domain = line.domain_metadata.strict()
            self.domain_metadata[domain.domain] = domain
        if isinstance(line, CheckpointLine) and line.sidecar is not None:
            self.sidecars.append(line.sidecar)

    def take(self, later: TableActions) -> None:
        """Add the actions of later commits, or of another file of the same checkpoint."""
        self.protocol = later.protocol or self.protocol
        self.metadata = later.metadata or self.metadata
        self.txns |= later.txns
        self.domain_metadata |= later.domain_metadata
        self.sidecars += later.sidecars


class _ActionLine(TableLine, rename="camel"):
    add: AddFile | None = None
    remove: RemoveFile | None = None
    cdc: AddCDCFile | None = None
    commit_info: dict[str, Any] | None = None


_DECODER = msgspec.json.Decoder(_ActionLine)
_NO_ACTION = _ActionLine()
# Bytes decoded at once: decoded lines take many times their size in memory.
_CHUNK_BYTES = 256 * 1024


def decode_commit(data: bytes, *, version: int) -> CommitActions:
    """The actions of the commit file of `version`.

    A file that is truncated or malformed, or repeats an action that may occur only once, is a
    CorruptLog.
    """
    path = commit_path(version)
    with garbage_collection_paused():
        decoded = decode_lines(data, _DECODER, version=version, path=path)
        lines = [line for line in decoded if line != _NO_ACTION]
    refuse_repeated(lines, version=version, path=path)
    return CommitActions(
        version=version,
        commit_info=next((x.commit_info for x in lines if x.commit_info is not None), None),
        protocol=next((x.protocol for x in lines if x.protocol is not None), None),
        metadata=next((x.meta_data.strict() for x in lines if x.meta_data is not None), None),
        txns=tuple(x.txn for x in lines if x.txn is not None),
        domain_metadata=tuple(
            x.domain_metadata.strict() for x in lines if x.domain_metadata is not None
        ),
        adds=tuple(x.add for x in lines if x.add is not None),
        removes=tuple(x.remove for x in lines if x.remove is not None),
        cdc=tuple(x.cdc for x in lines if x.cdc is not None),
    )


class _InfoLine(msgspec.Struct, rename="camel"):
    commit_info: dict[str, Any] | None = None


_INFO_DECODER = msgspec.json.Decoder(_InfoLine)


def decode_commit_info(data: bytes, *, version: int, path: str) -> dict[str, Any]:
    """The provenance of a commit, empty if it has none; nothing else is decoded."""
    lines = decode_lines(data, _INFO_DECODER, version=version, path=path)
    found = [line.commit_info for line in lines if line.commit_info is not None]
    return found[0] if found else {}


def in_commit_timestamp(info: Mapping[str, Any]) -> int | None:
    """The commit's own timestamp by its commitInfo, in milliseconds since the epoch."""
    value = info.get("inCommitTimestamp")
    return value if type(value) is int else None


def refuse_repeated(lines: Sequence[TableLine], *, version: int, path: str) -> None:
    """Raises CorruptLog if a commit repeats an action that may occur only once."""
    # Spec: a delta file MUST NOT hold more than one metaData, or more than one protocol.
    for attribute, action in (("protocol", "protocol"), ("meta_data", "metaData")):
        count = sum(getattr(line, attribute) is not None for line in lines)
        if count > 1:
            raise CorruptLog(
                f"The commit holds {count} {action} actions and may hold one; "
                "restore the table to an older version",
                version=version,
                file=path,
            )


def decode_lines(
    data: bytes, decoder: msgspec.json.Decoder[_Line], *, version: int, path: str
) -> Iterator[_Line]:
    """Every line of a file of JSON lines, decoded in chunks; blank lines are skipped.

    The checksum is verified after the last line. The CorruptLog of a damaged line names it.
    """
    is_empty = True
    for chunk in _split_chunks(data):
        try:
            lines = decoder.decode_lines(chunk)
        except DECODING_ERRORS as error:
            number, reason = _first_bad_line(data, decoder, error)
            raise CorruptLog(
                f"Line {number} of the log file is malformed ({reason}): the file is cut or "
                "damaged; restore it from a copy, or open an older version",
                version=version,
                file=path,
            ) from error
        is_empty = is_empty and not lines
        yield from lines
    if is_empty:
        # Writers never make empty commits: a power failure leaves such a file, and reading it as a
        # version would hide the actions of that commit.
        raise CorruptLog(
            "The log file is empty, so what it did is lost: restore it from a copy, or open an "
            "older version",
            version=version,
            file=path,
        )
    # A compacted file begins with a commitInfo whose checksum covers only its own commit.
    if not path.endswith(_COMPACTED) and holds_checksum(data) is False:
        raise CorruptLog(
            "The log file does not have the checksum that it carries: bytes of it were lost or "
            "have changed since it was written; restore it from a copy, or open an older version. "
            f"If somebody has edited it on purpose, {CHECKSUM_KEY} has to go from its commitInfo",
            version=version,
            file=path,
        )


def _split_chunks(data: bytes) -> Iterator[bytes | memoryview]:
    """The file in parts, each ending at the end of a line."""
    if len(data) <= _CHUNK_BYTES:
        yield data
        return
    view, start = memoryview(data), 0
    while start < len(data):
        end = data.find(b"\n", start + _CHUNK_BYTES) + 1 or len(data)
        yield view[start:end]
        start = end


def _first_bad_line(
    data: bytes, decoder: msgspec.json.Decoder[_Line], error: Exception
) -> tuple[int, str]:
    number = 0
    for number, line in enumerate(io.BytesIO(data), start=1):
        if line.isspace():
            continue
        try:
            decoder.decode(line)
        except DECODING_ERRORS as found:
            return number, str(found)
    return number, str(error)


@contextmanager
def garbage_collection_paused() -> Iterator[None]:
    """Pause garbage collection: decoding makes many objects and no cycles."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
