"""Change data: the rows that a commit changed, each with its kind of change, written and read.

A reader gets the values that are the same for all rows of a file as columns of partition values:
version and time of the commit and, for files of the table, the kind of change. So both engines read
changes like rows.

Spec: Change Data Files; Add CDC File (Reader Requirements for AddCDCFile); Deletion Vectors.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager

import msgspec
import pyarrow as pa
from msgspec.structs import replace

import dagster_delta.arrow_compute as pc
from dagster_delta.engines.plans import ChangeFileSet, WriteSpec
from dagster_delta.engines.statements.row_tracking import CarriedIds
from dagster_delta.parquet.opened_file import data_files, file_rows
from dagster_delta.parquet.ordered_prefetch import BatchSource
from dagster_delta.parquet.reader import plan_reader, read_ahead
from dagster_delta.parquet.writer import DataFileWriter
from dagster_delta.protocol.actions import AddCDCFile, AddFile
from dagster_delta.protocol.features.change_data import (
    CHANGE_TYPE_COLUMN,
    RowChangeType,
    change_data_configuration,
)
from dagster_delta.protocol.values.arrow_columns import string_column
from dagster_delta.protocol.values.arrow_values import integer_scalar
from dagster_delta.storage.object_store import ObjectStore


class RowWriters(msgspec.Struct, frozen=True):
    """Writes the rows of a statement and, if that is requested, records how they changed."""

    data: DataFileWriter
    changes: DataFileWriter | None
    """None if changes are not recorded."""
    ids: CarriedIds

    @classmethod
    @contextmanager
    def opened(
        cls, data: WriteSpec, change_data: WriteSpec | None, store: ObjectStore
    ) -> Iterator[RowWriters]:
        """The writers; on an error their files are deleted if the store allows it.

        `change_data`: how changes are recorded; None if they are not.
        """
        with ExitStack() as stack:
            rows = stack.enter_context(DataFileWriter(data, store))
            changes = None
            if change_data is not None:
                configuration = change_data_configuration(change_data.configuration)
                spec = replace(change_data, configuration=configuration, is_change_data=True)
                changes = stack.enter_context(DataFileWriter(spec, store))
            yield cls(rows, changes, CarriedIds.of(data.configuration))

    def record(self, rows: pa.RecordBatch, change: RowChangeType) -> None:
        """Record rows, which may carry ids, as changed."""
        if self.changes is not None:
            changes = pa.repeat(string_column([change])[0], rows.num_rows)
            rows = self.ids.of_table(rows)
            self.changes.add(rows.append_column(CHANGE_TYPE_COLUMN, changes))

    def finish(self) -> tuple[tuple[AddFile, ...], tuple[AddCDCFile, ...]]:
        """Write what waits; returns the data files and the change data files."""
        recorded = () if self.changes is None else self.changes.finish().files
        return self.data.finish().files, tuple(
            AddCDCFile(
                path=file.path, partition_values=file.partition_values, size_bytes=file.size_bytes
            )
            for file in recorded
        )


def read_changes(
    store: ObjectStore, sets: Sequence[ChangeFileSet], columns: Sequence[str]
) -> Iterator[pa.RecordBatch]:
    """The changed rows of all sets by ascending version, decoded by several threads."""
    exact = [changes for changes in sets if not changes.is_compared]
    start = 0
    for changes in sets:
        versions = pc.unique(changes.files["commit_version"]) if changes.is_compared else ()
        for version in sorted(number.as_py() for number in versions):
            before = [_of_versions(found, start, version) for found in exact]
            yield from read_ahead(store, _merge_sources(store, before, columns))
            yield from _compare_rows(store, _of_versions(changes, version, version), columns)
            start = version + 1
    rest = [_of_versions(found, start, None) for found in exact] if start else exact
    yield from read_ahead(store, _merge_sources(store, rest, columns))


def _of_versions(changes: ChangeFileSet, first: int, last: int | None) -> ChangeFileSet:
    """The files of some versions, both ends included."""
    versions = changes.files["commit_version"]
    kept = pc.greater_equal(versions, integer_scalar(first))
    if last is not None:
        kept = pc.and_(kept, pc.less_equal(versions, integer_scalar(last)))
    return replace(changes, files=pc.filter(changes.files, kept))


def _compare_rows(
    store: ObjectStore, changes: ChangeFileSet, columns: Sequence[str]
) -> Iterator[pa.RecordBatch]:
    """The rows of one version of a set that is compared."""
    from dagster_delta.engines.arrow.compared_rows import net_changes

    schema = changes.configuration.schema
    found = read_ahead(store, _merge_sources(store, [changes], schema.names))
    compared = [name for name in schema.names if name != CHANGE_TYPE_COLUMN]
    for batch in net_changes(found, schema, compared):
        rows = batch
        if changes.where is not None and changes.filters_kinds:
            rows = pc.filter(batch, changes.where.evaluate_filter(batch))
        yield rows.select(list(columns))


def _merge_sources(
    store: ObjectStore, sets: Sequence[ChangeFileSet], columns: Sequence[str]
) -> Iterator[BatchSource]:
    streams = [_versioned_sources(store, changes, columns) for changes in sets]
    for _, source in heapq.merge(*streams, key=lambda versioned: versioned[0]):
        yield source


def _versioned_sources(
    store: ObjectStore, changes: ChangeFileSet, columns: Sequence[str]
) -> Iterator[tuple[int, BatchSource]]:
    plan = changes.read_plan(store, columns)
    reader = plan_reader(plan, columns, where=plan.where, with_positions=False)
    versions = file_rows(changes.files.select(["commit_version"]))
    for file, row in zip(data_files(changes.files), versions, strict=True):
        for source in reader.sources([file]):
            yield row["commit_version"], source
