"""DELETE and UPDATE on Spark: rows found as bitmaps on the executors, and written anew there.

Spec: Add File and Remove File; Deletion Vectors; Add CDC File.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

from pyroaring import BitMap64

from dagster_delta.engines.engine import (
    MatchedRows,
    ReadPlan,
    RewriteResult,
    RowRewrite,
    WriteSpec,
)
from dagster_delta.engines.parquet.source import count_file_rows
from dagster_delta.engines.row_changes.change_data_files import (
    CHANGE_TYPE_COLUMN,
    change_data_configuration,
    change_files_of,
)
from dagster_delta.engines.spark.change_tasks import WrittenChanges
from dagster_delta.engines.spark.changed_rows import ChangingRows, RowChange, write_changes
from dagster_delta.engines.spark.columns import quote
from dagster_delta.engines.spark.errors import spark_failures
from dagster_delta.engines.spark.reader import read_frame
from dagster_delta.engines.spark.row_positions import FileIndex, collect_rows, with_file_marks
from dagster_delta.engines.spark.session import functions_of
from dagster_delta.engines.spark.writer import delete_files, write_frame
from dagster_delta.errors import InvalidArgument
from dagster_delta.protocol.actions import AddCDCFile
from dagster_delta.protocol.partition_values import decode_path
from dagster_delta.protocol.statistics import parse_statistics_json

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

__all__ = ["find_matches", "record_inserts", "rewrite_rows"]

_MATCHES = "__delta_matches"


def find_matches(session: SparkSession, plan: ReadPlan) -> Iterator[MatchedRows]:
    """The live rows that satisfy the plan's predicate, file by file; files without are left out.

    Raises:
        InvalidArgument: the predicate fails on a value, or makes no sense to Spark.
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
    """Write rows anew, on the executors.

    Raises:
        SchemaMismatch, InvalidCast, ConstraintViolation: a new value is no value of its column;
            files already written are deleted where that is possible.
        InvalidArgument: of an assignment; or the predicate selects other rows every time.
        DataFileMissing, CorruptDeletionVector, InvalidTable, StorageFailure: of a file.
    """
    return _Rewriting(session, rewrite).run()


def record_inserts(
    session: SparkSession, plan: ReadPlan, spec: WriteSpec
) -> tuple[AddCDCFile, ...]:
    """Change data files that say of all rows of a plan that they were inserted.

    Raises:
        DataFileMissing, InvalidTable, StorageFailure: of a file; files already written are deleted
            where that is possible.
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
        self._functions = functions_of(session)
        self._store = rewrite.source.store

    def run(self) -> RewriteResult:
        rewrite = self._rewrite
        if not rewrite.assignments and rewrite.change_data is None:
            return self._copy_rest()
        written = write_changes(self._changing(), self._store)
        if not rewrite.keeps_rest:
            self._check_count(written)
        return RewriteResult(
            written.files, written.change_files, written.counts[0], written.counts[1]
        )

    def _copy_rest(self) -> RewriteResult:
        """Nothing is recorded of the rows that leave, so only the others are looked at."""
        rows = self._marked().where(~self._functions.col(_MATCHES)).drop(_MATCHES)
        names = self._rewrite.source.configuration.schema.names
        with spark_failures(table=self._store.location.uri):
            copied = write_frame(rows.select(*map(quote, names)), self._rewrite.data, self._store)
        return RewriteResult(copied.files, (), 0, copied.num_rows)

    def _changing(self) -> ChangingRows:
        rewrite = self._rewrite
        frame = self._marked() if rewrite.keeps_rest else self._matching()
        values = {each.column: each.value.sql for each in rewrite.assignments}
        changed = RowChange(
            "update" if rewrite.assignments else "delete",
            self._functions.col(_MATCHES) if rewrite.keeps_rest else None,
            values,
            # The constraints of the files say already what is verified.
            replace(rewrite.data.values, verified=()),
        )
        return ChangingRows(
            frame,
            (changed, RowChange("copy")) if rewrite.keeps_rest else (changed,),
            rewrite.data,
            rewrite.change_data,
            old=self._column,
            rebalances=not rewrite.keeps_rest,
        )

    def _column(self, name: str) -> Column:
        found: Column = self._functions.col(quote(name))
        return found

    def _matching(self) -> DataFrame:
        """The matching rows: Spark skips more by the predicate than by where rows stand."""
        source = self._rewrite.source
        if source.where is not None or not self._rewrite.matches:
            return read_frame(self._session, source)
        return self._marked().where(self._functions.col(_MATCHES))

    def _marked(self) -> DataFrame:
        """All live rows, with a mark on those that match."""
        source = replace(self._rewrite.source, where=None)
        rows = read_frame(self._session, source, with_positions=True)
        files = FileIndex.of(source.files, source.store, version=source.version)
        return with_file_marks(rows, files.by_key(self._matches()), _MATCHES)

    def _matches(self) -> dict[str, BitMap64]:
        """Indexes of the matching rows of every file."""
        files, store = self._rewrite.source.files, self._store
        known = dict(self._rewrite.matches)
        counts = parse_statistics_json(files["stats"], ())["num_records"].to_pylist()
        for path, count in zip(files["path"].to_pylist(), counts, strict=True):
            if path not in known:
                # Every live row matches. Deleted ones are not read, so it does not matter that
                # they are among these.
                rows = count if count is not None else count_file_rows(store, decode_path(path))
                known[path] = BitMap64(range(rows))
        return known

    def _check_count(self, written: WrittenChanges) -> None:
        expected = self._count_matches()
        if written.counts[0] == expected:
            return
        delete_files(written.paths, self._store)
        raise InvalidArgument(
            f"the predicate was true of {expected} rows when they were looked for, and of "
            f"{written.counts[0]} when they were changed: write it without functions that answer "
            "otherwise every time, such as rand()",
            table=self._store.location.uri,
        )

    def _count_matches(self) -> int:
        files, matches = self._rewrite.source.files, self._rewrite.matches
        everything = self._matches()
        count = 0
        for path, vector in zip(
            files["path"].to_pylist(), files["deletion_vector"].to_pylist(), strict=True
        ):
            count += len(everything[path])
            if path not in matches and vector is not None:
                count -= vector["cardinality"]
        return count
