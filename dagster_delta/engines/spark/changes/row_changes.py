"""DELETE and UPDATE on Spark: executors find the rows as bitmaps, and rewrite them.

Spec: Add File and Remove File; Deletion Vectors; Add CDC File.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from msgspec.structs import replace

from dagster_delta.engines.arrow.change_data_files import change_files_of
from dagster_delta.engines.footers import count_file_rows
from dagster_delta.engines.plans import MatchedRows, ReadPlan, RewriteResult, RowRewrite, WriteSpec
from dagster_delta.engines.spark.changes.change_tasks import WrittenChanges
from dagster_delta.engines.spark.changes.changed_rows import (
    ChangingRows,
    RowChange,
    write_changes,
)
from dagster_delta.engines.spark.changes.copied_rows import CopiedRows, copy_rows
from dagster_delta.engines.spark.read.reader import read_frame
from dagster_delta.engines.spark.read.row_positions import FileIndex, collect_rows
from dagster_delta.engines.spark.session.columns import quote
from dagster_delta.engines.spark.session.errors import spark_failures
from dagster_delta.engines.spark.session.session import functions_of
from dagster_delta.engines.spark.write.writer import write_frame
from dagster_delta.errors import InvalidArgument
from dagster_delta.protocol.actions import AddCDCFile
from dagster_delta.protocol.features.change_data import (
    CHANGE_TYPE_COLUMN,
    change_data_configuration,
)
from dagster_delta.protocol.statistics.statistics import parse_statistics_json
from dagster_delta.protocol.values.partition_values import decode_path
from dagster_delta.storage.unreferenced_files import CreatedFiles

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def find_matches(session: SparkSession, plan: ReadPlan) -> Iterator[MatchedRows]:
    """The live rows that satisfy the plan's predicate, by file; files without any are omitted.

    Raises:
        InvalidArgument: the predicate is invalid in Spark or fails on a value.
        DataFileMissing, CorruptDeletionVector, InvalidTable, StorageFailure: of a file.
    """
    table = plan.store.location.uri
    files = FileIndex.of(plan.files, plan.store, version=plan.version)
    with spark_failures(table=table):
        rows = read_frame(session, replace(plan, columns=()), with_positions=True)
        found = collect_rows(rows)
    for path, bitmap in files.by_path(found, table=table).items():
        yield MatchedRows(path, bitmap)


def rewrite_rows(session: SparkSession, rewrite: RowRewrite) -> RewriteResult:
    """Rewrite rows, on the executors.

    Raises:
        SchemaMismatch, InvalidCast, ConstraintViolation: a new value cannot be stored in its
            column; files already written are deleted if possible.
        InvalidArgument: an assignment is invalid, or the predicate selects other rows every time.
        DataFileMissing, CorruptDeletionVector, InvalidTable, StorageFailure: of a file.
    """
    return _Rewriting(session, rewrite).run()


def record_inserts(
    session: SparkSession, plan: ReadPlan, spec: WriteSpec
) -> tuple[AddCDCFile, ...]:
    """Change data files that record all rows of a plan as inserted.

    Raises:
        DataFileMissing, InvalidTable, StorageFailure: of a file; files already written are deleted
            if possible.
    """
    functions = functions_of(session)
    configuration = change_data_configuration(spec.configuration)
    rows = read_frame(session, plan).withColumn(CHANGE_TYPE_COLUMN, functions.lit("insert"))
    recording = replace(spec, configuration=configuration, constraints=(), is_change_data=True)
    with spark_failures(table=spec.location.uri):
        return change_files_of(write_frame(rows, recording, plan.store))


class _Rewriting:
    def __init__(self, session: SparkSession, rewrite: RowRewrite) -> None:
        self._session, self._rewrite = session, rewrite
        self._store = rewrite.source.store

    def run(self) -> RewriteResult:
        rewrite = self._rewrite
        with CreatedFiles(self._store) as created:
            if not rewrite.assignments:
                copied = copy_rows(self._session, rewrite, (), created)
                return _result(copied, (), copied.num_removed_rows)
            changed = write_changes(self._changing(), self._store)
            created.add_logged(changed.paths)
            self._check_count(changed)
            copied = CopiedRows(changed.files)
            if rewrite.keeps_rest:
                # The rows removed from these files are recorded with their new values.
                rest = replace(rewrite, change_data=None)
                copied = copy_rows(self._session, rest, changed.files, created)
        return _result(copied, changed.change_files, changed.counts[0])

    def _changing(self) -> ChangingRows:
        rewrite = self._rewrite
        functions = functions_of(self._session)
        changed = RowChange(
            "update",
            None,
            {each.column: each.value.sql for each in rewrite.assignments},
            # Constraints are already verified for the rows of these files.
            replace(rewrite.data.values, verified=()),
        )
        return ChangingRows(
            read_frame(self._session, rewrite.source),
            (changed,),
            rewrite.data,
            rewrite.change_data,
            old=lambda name: functions.col(quote(name)),
        )

    def _check_count(self, written: WrittenChanges) -> None:
        """Check that the predicate selected the same rows as before."""
        expected = self._count_matches()
        if written.counts[0] != expected:
            raise InvalidArgument(
                f"the predicate matched {expected} rows when they were counted, but "
                f"{written.counts[0]} when they were changed: avoid nondeterministic functions "
                "such as rand()",
                table=self._store.location.uri,
            )

    def _count_matches(self) -> int:
        files, matches = self._rewrite.source.files, self._rewrite.matches
        paths, vectors = files["path"].to_pylist(), files["deletion_vector"].to_pylist()
        counted = parse_statistics_json(files["stats"], ())["num_records"].to_pylist()
        total = 0
        for path, vector, count in zip(paths, vectors, counted, strict=True):
            if path in matches:
                total += len(matches[path])
                continue
            rows = count_file_rows(self._store, decode_path(path)) if count is None else count
            total += rows - (0 if vector is None else vector["cardinality"])
        return total


def _result(
    copied: CopiedRows, change_files: tuple[AddCDCFile, ...], num_changed_rows: int
) -> RewriteResult:
    return RewriteResult(
        copied.files,
        (*change_files, *copied.change_files),
        num_changed_rows,
        copied.num_copied_rows,
    )
