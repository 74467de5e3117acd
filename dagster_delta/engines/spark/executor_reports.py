"""Reports of tasks to the driver: one format for all tasks. Nothing here needs Spark.

An error in the data is reported instead of raised: on an exception Spark would retry the task with
the same rows, and finally keep only the text of the error.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import msgspec
import pyarrow as pa

from dagster_delta import errors
from dagster_delta.errors import DeltaError, StorageFailure
from dagster_delta.protocol.actions import AddCDCFile, AddFile
from dagster_delta.protocol.values.partition_values import decode_path
from dagster_delta.storage.object_store import ObjectStore
from dagster_delta.storage.unreferenced_files import delete_unreferenced

REPORT_SCHEMA = "kind string, payload binary"
"""Rows of a report, as a Spark schema, the payload in MessagePack.

`add` and `cdc`: a file that was written; `detail`: a value of the task's type for other results;
`error`: a `DeltaError`.
"""

IdentityMarks = Mapping[str, tuple[int, int]]
"""Last value and step, by logical name of each identity column that was numbered."""

_Detail = TypeVar("_Detail", bound=msgspec.Struct)


@dataclass(slots=True)
class WrittenBytes:
    """What the tasks of some jobs have written."""

    size_bytes: int = 0
    """Of data files and change data files, referenced by a commit or not."""


_written: ContextVar[WrittenBytes | None] = ContextVar("written_bytes", default=None)


@contextmanager
def counting_written_bytes() -> Iterator[WrittenBytes]:
    """Count the bytes of the files that are reported to this thread while the block runs."""
    counted = WrittenBytes()
    token = _written.set(counted)
    try:
        yield counted
    finally:
        _written.reset(token)


@dataclass(frozen=True, slots=True)
class Reports(Generic[_Detail]):
    """What all tasks of a job reported."""

    files: tuple[AddFile, ...]
    """None of them referenced yet; so the next."""
    change_files: tuple[AddCDCFile, ...]
    details: tuple[_Detail, ...]
    error: DeltaError | None
    """The first error of any task."""

    @property
    def paths(self) -> tuple[str, ...]:
        """Every file that was written, relative to the table root."""
        data, changes = self.files, self.change_files
        return tuple(
            map(decode_path, (*(file.path for file in data), *(change.path for change in changes)))
        )


def report(
    files: Iterable[AddFile] = (),
    change_files: Iterable[AddCDCFile] = (),
    details: Iterable[msgspec.Struct] = (),
) -> pa.RecordBatch:
    """A `pyarrow.RecordBatch` of `REPORT_SCHEMA` about what a task did."""
    encode = msgspec.msgpack.encode
    return _batch(
        [
            *(("add", encode(file)) for file in files),
            *(("cdc", encode(file)) for file in change_files),
            *(("detail", encode(detail)) for detail in details),
        ]
    )


def reported(work: Callable[[], pa.RecordBatch]) -> pa.RecordBatch:
    """The report of the work, or a report of its error if a retry cannot succeed. After a
    StorageFailure, which is raised, Spark may run the task again.
    """
    try:
        return work()
    except StorageFailure:
        raise
    except DeltaError as error:
        return _batch([("error", _encode_error(error))])


def _batch(rows: Sequence[tuple[str, bytes]]) -> pa.RecordBatch:
    return pa.record_batch(
        {
            "kind": pa.array([kind for kind, _ in rows], pa.string()),
            "payload": pa.array([payload for _, payload in rows], pa.binary()),
        }
    )


def settle_reports(
    rows: Iterable[Sequence[Any]], detail: type[_Detail], store: ObjectStore
) -> Reports[_Detail]:
    """The reports of a job's tasks, if all of them succeeded; else the files of all tasks are
    deleted if the store allows it, and the first error is raised.
    """
    reports = decode_reports(rows, detail)
    if reports.error is not None:
        delete_unreferenced(store, reports.paths)
        raise reports.error
    counted = _written.get()
    if counted is not None:
        counted.size_bytes += sum(file.size_bytes for file in reports.files)
        counted.size_bytes += sum(file.size_bytes for file in reports.change_files)
    return reports


def decode_reports(rows: Iterable[Sequence[Any]], detail: type[_Detail]) -> Reports[_Detail]:
    """The reports of a job's tasks, whether they succeeded or not."""
    payloads: dict[str, list[bytes]] = {"add": [], "cdc": [], "detail": [], "error": []}
    for kind, payload in rows:
        payloads[kind].append(bytes(payload))
    decode = msgspec.msgpack.decode
    return Reports(
        tuple(decode(payload, type=AddFile) for payload in payloads["add"]),
        tuple(decode(payload, type=AddCDCFile) for payload in payloads["cdc"]),
        tuple(decode(payload, type=detail) for payload in payloads["detail"]),
        _decode_error(payloads["error"][0]) if payloads["error"] else None,
    )


def joined_marks(marks: Iterable[IdentityMarks]) -> dict[str, int]:
    """The last value that any of the tasks assigned, by identity column."""
    last: dict[str, int] = {}
    for found in marks:
        for name, (value, step) in found.items():
            farther = max if step > 0 else min
            last[name] = farther(last.get(name, value), value)
    return last


class _ErrorReport(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    kind: str
    message: str
    table: str | None = None
    version: int | None = None
    file: str | None = None
    column: str | None = None
    examples: tuple[str, ...] = ()


_FACTS = _ErrorReport.__struct_fields__[1:]


def _encode_error(error: DeltaError) -> bytes:
    facts = {name: getattr(error, name) for name in _FACTS}
    return msgspec.msgpack.encode(_ErrorReport(kind=type(error).__name__, **facts))


def _decode_error(payload: bytes) -> DeltaError:
    found = msgspec.msgpack.decode(payload, type=_ErrorReport)
    kind = getattr(errors, found.kind, DeltaError)
    facts = {name: getattr(found, name) for name in _FACTS[1:]}
    error: DeltaError = kind(found.message, **facts)
    return error
