"""Reports of tasks to the driver: one format for all tasks. Nothing here needs Spark.

An error in the data is reported instead of raised: on an exception Spark would retry the task with
the same rows, and finally keep only the text of the error.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Generic, TypeVar

import msgspec
import pyarrow as pa

import dagster_delta.arrow_compute as pc
from dagster_delta import errors
from dagster_delta.errors import DeltaError, StorageFailure
from dagster_delta.protocol.actions import AddCDCFile, AddFile
from dagster_delta.protocol.features.column_values import IdentityColumn
from dagster_delta.protocol.values.partition_values import decode_path
from dagster_delta.storage.object_store import ObjectStore
from dagster_delta.storage.unreferenced_files import delete_unreferenced

REPORT_SCHEMA = "kind string, payload binary"
"""Rows of a report, as a Spark schema, the payload in MessagePack.

`add` and `cdc`: a file that was written; `detail`: a value of the task's type for other results;
`error`: the type and the facts of a `DeltaError`.
"""
_FACTS = ("message", "table", "version", "file", "column", "examples")

IdentityMarks = Mapping[str, tuple[int, int]]
"""Last value and step, by logical name of each identity column that was numbered."""

_Detail = TypeVar("_Detail", bound=msgspec.Struct)


class WrittenBytes(msgspec.Struct):
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


class Reports(msgspec.Struct, Generic[_Detail], frozen=True):
    """What all tasks of a job reported."""

    files: tuple[AddFile, ...] = ()
    """None of them referenced yet; so the next."""
    change_files: tuple[AddCDCFile, ...] = ()
    details: tuple[_Detail, ...] = ()

    @property
    def written(self) -> tuple[AddFile | AddCDCFile, ...]:
        """Every file that was written."""
        return (*self.files, *self.change_files)

    @property
    def paths(self) -> tuple[str, ...]:
        """Every file that was written, relative to the table root."""
        return tuple(decode_path(file.path) for file in self.written)


def report(
    files: Iterable[AddFile] = (),
    change_files: Iterable[AddCDCFile] = (),
    details: Iterable[msgspec.Struct] = (),
) -> pa.RecordBatch:
    """A `pyarrow.RecordBatch` of `REPORT_SCHEMA` about what a task did."""
    encode = msgspec.msgpack.encode
    return _build_batch(
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
        facts = {name: getattr(error, name) for name in _FACTS}
        return _build_batch([("error", msgspec.msgpack.encode((type(error).__name__, facts)))])


def _build_batch(rows: Sequence[tuple[str, bytes]]) -> pa.RecordBatch:
    return pa.record_batch(
        {
            "kind": pa.array([kind for kind, _ in rows], pa.string()),
            "payload": pa.array([payload for _, payload in rows], pa.binary()),
        }
    )


def settle_reports(
    rows: Iterable[Sequence[Any]],
    detail: type[_Detail],
    store: ObjectStore,
    *,
    discard: Callable[[_Detail], None] = lambda _: None,
) -> Reports[_Detail]:
    """The reports of a job's tasks, if all of them succeeded; else the files of all tasks are
    deleted if the store allows it, `discard` is called with each detail, and the first error is
    raised.
    """
    payloads: dict[str, list[bytes]] = {"add": [], "cdc": [], "detail": [], "error": []}
    for kind, payload in rows:
        payloads[kind].append(bytes(payload))
    decode = msgspec.msgpack.decode
    reports = Reports(
        tuple(decode(payload, type=AddFile) for payload in payloads["add"]),
        tuple(decode(payload, type=AddCDCFile) for payload in payloads["cdc"]),
        tuple(decode(payload, type=detail) for payload in payloads["detail"]),
    )
    if payloads["error"]:
        delete_unreferenced(store, reports.paths)
        for found in reports.details:
            discard(found)
        kind, facts = decode(payloads["error"][0], type=tuple[str, dict[str, Any]])
        error: type[DeltaError] = getattr(errors, kind, DeltaError)
        raise error(**facts | {"examples": tuple(facts["examples"])})
    counted = _written.get()
    if counted is not None:
        counted.size_bytes += sum(file.size_bytes for file in reports.written)
    return reports


def mark_numbers(
    marks: dict[str, tuple[int, int]], identity: IdentityColumn, values: pa.Int64Array
) -> None:
    """Note the last of some values that a query has given to an identity column."""
    if values.null_count:
        # Spec: overflow MUST be detected, and such writes refused. The query makes it null.
        raise identity.overflow()
    if len(values):
        bounds = pc.min_max(values).as_py()
        last = identity.farther(bounds["min"], bounds["max"])
        known, _ = marks.get(identity.column, (last, identity.step))
        marks[identity.column] = (identity.farther(known, last), identity.step)


def joined_marks(marks: Iterable[IdentityMarks]) -> dict[str, int]:
    """The last value that any of the tasks assigned, by identity column."""
    last: dict[str, int] = {}
    for found in marks:
        for name, (value, step) in found.items():
            farther = max if step > 0 else min
            last[name] = farther(last.get(name, value), value)
    return last
