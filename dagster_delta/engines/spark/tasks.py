"""What runs on Spark's executors: Arrow batches in, reports or rows out. Nothing here needs Spark.

An executor must be able to import this package and pyarrow.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import chain
from typing import TYPE_CHECKING, Any

import msgspec
import pyarrow as pa

from dagster_delta.engines.arrow_engine import ArrowEngine
from dagster_delta.engines.engine import ReadPlan, WriteResult, WriteSpec
from dagster_delta.engines.parquet.writer import write_data_files
from dagster_delta.engines.sql.constraint_violations import refuse_violations
from dagster_delta.engines.store_assignment import assign_batches
from dagster_delta.errors import DeltaError, StorageFailure
from dagster_delta.protocol.actions import AddFile
from dagster_delta.protocol.arrow_schema import to_arrow_schema
from dagster_delta.protocol.log_replay import LIVE_FILE_SCHEMA
from dagster_delta.protocol.table_configuration import TableConfiguration
from dagster_delta.storage import StoreLocation, open_store

if TYPE_CHECKING:
    from dagster_delta.engines.sql.expressions import SqlExpression

__all__ = [
    "FILE_SCHEMA",
    "REPORT_SCHEMA",
    "ReadTask",
    "WriteTask",
    "decode_error",
    "decode_reports",
    "encode_files",
]

FILE_SCHEMA = "file string"
"""What a read task is told, as a Spark schema: one live file as JSON per row."""

REPORT_SCHEMA = "kind string, payload string"
"""What a write task tells the driver, as a Spark schema.

`add`: an AddFile as JSON; `rows`: how many rows its files hold; `error`: a `DeltaError` as JSON.
"""

_TASK_BATCH_ROWS = 65_536
"""Spark's batches are joined to about this many rows before they are cast and split."""


@dataclass(frozen=True, slots=True)
class ReadTask:
    """Reads data files with the Arrow engine."""

    location: StoreLocation
    version: int
    configuration: TableConfiguration
    columns: tuple[str, ...]
    """Logical columns of the rows, in order."""
    where: SqlExpression | None
    """Filter to apply early; Spark applies it to all rows later."""

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """The live rows of the files named by batches of `FILE_SCHEMA`."""
        store = None
        for batch in batches:
            store = store or open_store(self.location.uri, self.location.options)
            plan = ReadPlan(
                store=store,
                version=self.version,
                configuration=self.configuration,
                files=_decode_files(batch.column(0)),
                columns=self.columns,
                where=self.where,
            )
            yield from ArrowEngine().read(plan)


class _FileRow(msgspec.Struct, frozen=True):
    path: str
    size_bytes: int
    partition_values: list[tuple[str, str | None]] | None
    deletion_vector: dict[str, str | int | None] | None


def encode_files(files: Any) -> Any:
    """Live files as a pyarrow.Table of `FILE_SCHEMA`.

    Args:
        files: pyarrow.Table with the columns of `LIVE_FILE_SCHEMA`.
    """
    rows = files.select(_FileRow.__struct_fields__).to_pylist()
    texts = [msgspec.json.encode(each).decode() for each in rows]
    return pa.table({"file": pa.array(texts, pa.string())})


def _decode_files(texts: Any) -> Any:
    rows = [
        msgspec.structs.asdict(msgspec.json.decode(each, type=_FileRow))
        for each in texts.to_pylist()
    ]
    schema = pa.schema([LIVE_FILE_SCHEMA.field(name) for name in _FileRow.__struct_fields__])
    return pa.Table.from_pylist(rows, schema)


@dataclass(frozen=True, slots=True)
class WriteTask:
    """Writes the rows of one Spark partition as data files, and reports them.

    A data error is reported instead of raised: Spark would run the task again, to meet the same
    rows, and in the end keep only the text of the error.
    """

    spec: WriteSpec
    columns: tuple[str, ...]
    """Names of the DataFrame's columns. Behind them stands one boolean column per constraint."""

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Reports of `REPORT_SCHEMA`, once all rows are written.

        Raises:
            StorageFailure: the store refused or failed; the task may be run again.
        """
        # Most partitions of a small shuffle are empty, and need no store.
        first = next(batches, None)
        if first is None:
            return
        location = self.spec.location
        try:
            store = open_store(location.uri, location.options)
            checked = _CheckedRows(self, chain([first], batches))
            schema = to_arrow_schema(self.spec.configuration.schema)
            result = write_data_files(checked.conforming(), schema, self.spec, store)
        except StorageFailure:
            raise
        except DeltaError as error:
            yield _reports([("error", _encode_error(error))])
        else:
            yield _reports(_result_reports(result))


@dataclass(slots=True)
class _CheckedRows:
    """Rows on their way from Spark into the files."""

    task: WriteTask
    batches: Iterator[Any]
    checks: list[Any] = field(default_factory=list)
    """Results of the constraints for the rows of the batch that is being cast."""

    def conforming(self) -> Iterator[Any]:
        """Record batches of the table's schema in which every row satisfies every constraint."""
        spec = self.task.spec
        sources = _joined(self.batches)
        first = next(sources)
        reader = pa.RecordBatchReader.from_batches(
            self._rows(first).schema, map(self._take, chain([first], sources))
        )
        schema = spec.configuration.schema
        for batch in assign_batches(reader, schema, table=spec.location.uri):
            # Values are cast first, so that one that does not fit is called just that, although
            # its constraints were evaluated on a null.
            results = [each.slice(0, batch.num_rows) for each in self.checks]
            self.checks = [each.slice(batch.num_rows) for each in self.checks]
            refuse_violations(spec.constraints, results, batch, table=spec.location.uri)
            yield batch

    def _take(self, batch: Any) -> Any:
        self.checks = batch.columns[len(self.task.columns) :]
        return self._rows(batch)

    def _rows(self, batch: Any) -> Any:
        names = self.task.columns
        fields = [
            pa.field(name, each.type, each.nullable, each.metadata)
            for name, each in zip(names, batch.schema, strict=False)
        ]
        return pa.RecordBatch.from_arrays(batch.columns[: len(names)], schema=pa.schema(fields))


def _joined(batches: Iterator[Any]) -> Iterator[Any]:
    """The same rows in batches that are worth the overhead of a kernel call."""
    waiting: list[Any] = []
    rows = 0
    for batch in batches:
        waiting.append(batch)
        rows += batch.num_rows
        if rows >= _TASK_BATCH_ROWS:
            yield _concatenated(waiting)
            waiting, rows = [], 0
    if waiting:
        yield _concatenated(waiting)


def _concatenated(batches: list[Any]) -> Any:
    if len(batches) == 1:
        return batches[0]
    table = pa.Table.from_batches(batches)
    columns = [
        pa.concat_arrays(each.chunks) if each.num_chunks else pa.nulls(0, each.type)
        for each in table.columns
    ]
    return pa.RecordBatch.from_arrays(columns, schema=table.schema)


def _reports(rows: list[tuple[str, str]]) -> Any:
    return pa.record_batch(
        {
            "kind": pa.array([kind for kind, _ in rows], pa.string()),
            "payload": pa.array([payload for _, payload in rows], pa.string()),
        }
    )


def _result_reports(result: WriteResult) -> list[tuple[str, str]]:
    adds = [("add", msgspec.json.encode(each).decode()) for each in result.files]
    return [*adds, ("rows", str(result.num_rows))]


def decode_reports(reports: list[tuple[str, str]]) -> tuple[WriteResult, DeltaError | None]:
    """All files that the tasks wrote, and the first error that any of them met."""
    files = tuple(
        msgspec.json.decode(payload, type=AddFile) for kind, payload in reports if kind == "add"
    )
    num_rows = sum(int(payload) for kind, payload in reports if kind == "rows")
    error = next((decode_error(payload) for kind, payload in reports if kind == "error"), None)
    return WriteResult(files, num_rows, sum(each.size_bytes for each in files)), error


class _ErrorReport(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    kind: str
    message: str
    table: str | None = None
    version: int | None = None
    file: str | None = None
    column: str | None = None
    examples: tuple[str, ...] = ()


def _encode_error(error: DeltaError) -> str:
    report = _ErrorReport(
        kind=type(error).__name__,
        message=error.message,
        table=error.table,
        version=error.version,
        file=error.file,
        column=error.column,
        examples=error.examples,
    )
    return msgspec.json.encode(report).decode()


def decode_error(payload: str) -> DeltaError:
    """The error that a task reported, as if it had been raised here."""
    from dagster_delta import errors

    report = msgspec.json.decode(payload, type=_ErrorReport)
    kind = getattr(errors, report.kind, DeltaError)
    error: DeltaError = kind(
        report.message,
        table=report.table,
        version=report.version,
        file=report.file,
        column=report.column,
        examples=report.examples,
    )
    return error
