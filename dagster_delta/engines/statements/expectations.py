"""Expectations of rows, counted in the pass that writes them: which rows are written, and which go
to the table beside.

Each process that writes rows has an observer; the sums of their reports are those of the write.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from functools import reduce
from types import TracebackType
from typing import Any, Self

import msgspec
import numpy as np
import pyarrow as pa

import dagster_delta.arrow_compute as pc
from dagster_delta.engines.data_input import to_reader
from dagster_delta.engines.plans import ObservedRows, RowRules, SetAside
from dagster_delta.errors import MAX_EXAMPLES, ExpectationFailed
from dagster_delta.parquet.store_assignment import assign_rows
from dagster_delta.parquet.writer import DataFileWriter
from dagster_delta.protocol.schema import StructType
from dagster_delta.protocol.values.arrow_columns import column_of, string_column
from dagster_delta.protocol.values.arrow_schema import from_arrow_schema
from dagster_delta.protocol.values.arrow_values import FALSE
from dagster_delta.protocol.values.partition_values import decode_path
from dagster_delta.python_values import python_rows
from dagster_delta.sql.expectation import Expectation
from dagster_delta.sql.expressions import parse_expression
from dagster_delta.sql.filters import parse_filter
from dagster_delta.storage import open_store
from dagster_delta.storage.unreferenced_files import delete_unreferenced

_ROWS_AT_ONCE = 10_000


class RowObserver(AbstractContextManager["RowObserver"]):
    """Counts violations batch by batch. A context manager: left by an error, it deletes the files
    that it has written if the store allows it.
    """

    def __init__(self, rules: RowRules) -> None:
        self._expectations = rules.expectations
        self._set_aside = rules.set_aside
        self._writer: DataFileWriter | None = None
        self._rows = self._dropped = self._moved = 0
        self._violations: dict[str, int] = {}
        self._examples: dict[str, tuple[str, ...]] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._writer is not None:
            self._writer.__exit__(kind, error, trace)

    def rows_to_write(
        self, results: Sequence[pa.Array], rows: pa.RecordBatch
    ) -> pa.BooleanArray | None:
        """Which rows of a batch are written to their table: a `pa.BooleanArray`, or None for all.

        Args:
            results: for each expectation, whether it holds: boolean arrays, with nulls.
            rows: as they are shown and set aside.
        """
        self._rows += rows.num_rows
        broken = {}
        for expectation, result in zip(self._expectations, results, strict=True):
            holds = pc.fill_null(result, FALSE)
            if not pc.all(holds, min_count=0).as_py():
                broken[expectation] = pc.invert(holds)
        if not broken:
            return None
        for expectation, mask in broken.items():
            name, places = expectation.name, pc.indices_nonzero(mask)
            self._violations[name] = self._violations.get(name, 0) + len(places)
            known = self._examples.get(name, ())
            more = places.slice(0, MAX_EXAMPLES - len(known))
            self._examples[name] = (*known, *map(spell_row, python_rows(rows.take(more))))
        moved = _any_of(broken, "quarantine")
        if moved is not None:
            self._set_rows_aside(rows, moved, broken)
            self._moved += int(pc.sum(moved).as_py())
        dropped = _any_of(broken, "drop")
        if dropped is not None:
            alone = dropped if moved is None else pc.and_not(dropped, moved)
            self._dropped += int(pc.sum(alone).as_py())
        left_out = [mask for mask in (moved, dropped) if mask is not None]
        return pc.invert(reduce(pc.or_, left_out)) if left_out else None

    @property
    def has_failed(self) -> bool:
        """Whether a violation fails the write, so that more rows are counted and not written."""
        return any(
            expectation.on_violation == "fail" and expectation.name in self._violations
            for expectation in self._expectations
        )

    def finish(self) -> ObservedRows:
        """The report on all rows."""
        files = () if self._writer is None else self._writer.finish().files
        return ObservedRows(
            self._rows, self._violations, self._examples, self._dropped, self._moved, files
        )

    def _set_rows_aside(
        self,
        rows: pa.RecordBatch,
        moved: pa.BooleanArray,
        broken: dict[Expectation, pa.BooleanArray],
    ) -> None:
        aside = self._set_aside
        assert aside is not None  # noqa: S101  who plans such an expectation says where rows go
        if self._writer is None:
            location = aside.spec.location
            self._writer = DataFileWriter(
                aside.spec, open_store(location.uri, location.options)
            ).__enter__()
        places = pc.indices_nonzero(moved)
        for start in range(0, len(places), _ROWS_AT_ONCE):
            some = places.slice(start, _ROWS_AT_ONCE)
            masks = {
                expectation.name: np.asarray(mask.take(some).to_numpy(zero_copy_only=False))
                for expectation, mask in broken.items()
            }
            reasons = [
                [name for name, mask in masks.items() if mask[index]] for index in range(len(some))
            ]
            texts = [spell_row(row) for row in python_rows(rows.take(some))]
            self._writer.add(_rows_beside(aside, texts, reasons))


def _any_of(
    broken: dict[Expectation, pa.BooleanArray], on_violation: str
) -> pa.BooleanArray | None:
    masks = [mask for known, mask in broken.items() if known.on_violation == on_violation]
    return reduce(pc.or_, masks) if masks else None


def _rows_beside(
    aside: SetAside, texts: Sequence[str], reasons: Sequence[Sequence[str]]
) -> pa.RecordBatch:
    columns = {
        "row": string_column(texts),
        "reasons": column_of(reasons, pa.list_(pa.string())),
        **{name: pa.array([value] * len(texts)) for name, value in aside.constants.items()},
    }
    batch = pa.RecordBatch.from_pydict(columns)
    return assign_rows(batch, aside.spec.configuration.schema, table=aside.spec.location.uri)


def spell_row(row: dict[str, Any]) -> str:
    """A row as JSON text: times in UTC, bytes in base64, what JSON has no value for as text."""
    return msgspec.json.encode(_with_text(row), enc_hook=str).decode()


def _with_text(value: object) -> object:
    """The value as JSON has it: floats that it cannot spell, and keys, are texts."""
    match value:
        case float() if value != value or value in (float("inf"), float("-inf")):
            return str(value)
        case dt.datetime(tzinfo=dt.tzinfo()):
            return value.astimezone(dt.UTC)
        case dict():
            return {str(name): _with_text(item) for name, item in value.items()}
        case list() | tuple():
            return [_with_text(item) for item in value]
    return value


class ObservedReader(AbstractContextManager["ObservedReader"]):
    """The rows of a reader that are written, while the rules count them, on the embedded engine. A
    context manager, as `RowObserver` is.

    Args:
        data: rows, in any form that `to_reader` takes.
        rules: what is expected of them.
        leaves_out: Spark SQL; rows for which it is true are not counted.
        zone: time zone of the statement.
        table: URI of the table, for errors.

    Raises:
        UnsupportedExpression: the embedded engine cannot evaluate a condition as Spark does.
        InvalidArgument, SchemaMismatch: of a condition.
    """

    def __init__(
        self, data: object, rules: RowRules, *, leaves_out: str | None, zone: str, table: str
    ) -> None:
        self._reader, self._observer, self._table = to_reader(data), RowObserver(rules), table
        self._schema = nullable_columns(from_arrow_schema(self._reader.schema))
        moment = dt.datetime.now(dt.UTC)
        self._conditions = [
            parse_filter(expectation.condition, self._schema, moment, zone)
            for expectation in rules.expectations
        ]
        for condition in self._conditions:
            condition.check_embeddable()
        self._left_out = None
        if leaves_out is not None:
            self._left_out = parse_expression(leaves_out, self._schema, zone)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._observer.__exit__(kind, error, trace)

    @property
    def rows(self) -> pa.RecordBatchReader:
        """The rows to write, as a `pa.RecordBatchReader`; to be read once."""
        return pa.RecordBatchReader.from_batches(self._reader.schema, self._kept_batches())

    def finish(self) -> ObservedRows:
        """The report, once all rows are read."""
        return self._observer.finish()

    def _kept_batches(self) -> Iterator[pa.RecordBatch]:
        for given in self._reader:
            # Conditions see the types of a table; the rows themselves are cast when written.
            batch, typed = given, assign_rows(given, self._schema, table=self._table)
            if self._left_out is not None:
                inside = pc.fill_null(self._left_out.evaluate_filter(typed), FALSE)
                batch, typed = (rows.filter(pc.invert(inside)) for rows in (batch, typed))
            results = [condition.evaluate_filter(typed) for condition in self._conditions]
            kept = self._observer.rows_to_write(results, typed)
            if not self._observer.has_failed:
                yield batch if kept is None else batch.filter(kept)


def nullable_columns(schema: StructType) -> StructType:
    """The schema, whose columns may all be null."""
    return StructType(tuple(msgspec.structs.replace(field, nullable=True) for field in schema))


def refuse_failures(
    expectations: Sequence[Expectation], observed: ObservedRows, *, table: str
) -> None:
    """Raise ExpectationFailed if rows violate an expectation that fails the write."""
    failed = [
        expectation
        for expectation in expectations
        if expectation.on_violation == "fail" and expectation.name in observed.violations
    ]
    if not failed:
        return
    problems = "; ".join(
        f"{observed.violations[known.name]} of {observed.num_rows} rows violate {known.name!r} "
        f"({known.condition})"
        for known in failed
    )
    error = ExpectationFailed(
        f"{problems}, whose violation fails the write: nothing was written. Correct the rows, or "
        "give the expectation another on_violation",
        table=table,
        examples=observed.examples[failed[0].name],
    )
    error.violations, error.num_rows = dict(observed.violations), observed.num_rows
    error.rows_by_name = dict(observed.examples)
    raise error


def delete_rows_aside(rules: RowRules | None, observed: ObservedRows | None) -> None:
    """Delete files of the table beside that no commit refers to, if the store allows it."""
    if observed is None or not observed.files or rules is None or rules.set_aside is None:
        return
    location = rules.set_aside.spec.location
    paths = [decode_path(file.path) for file in observed.files]
    delete_unreferenced(open_store(location.uri, location.options), paths)
