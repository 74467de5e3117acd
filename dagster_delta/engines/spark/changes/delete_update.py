"""DELETE and UPDATE on Spark: executors find the rows as bitmaps, and rewrite them.

Small files that a statement has written are read again and united with the unchanged rows of
changed files, so that it leaves files of the target size.

Spec: Add File and Remove File; Deletion Vectors; Add CDC File; Change Data Files.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from functools import partial
from operator import itemgetter
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from msgspec.structs import replace
from pyroaring import BitMap64
from pyspark.sql import Window

from dagster_delta.cached_property import cached_property
from dagster_delta.engines.footers import count_live_rows
from dagster_delta.engines.plans import (
    MatchedRows,
    OlderRows,
    ReadPlan,
    RewriteResult,
    RowRewrite,
)
from dagster_delta.engines.spark.read.file_keys import FILE_KEY, ROW_INDEX
from dagster_delta.engines.spark.read.position_bitmaps import FileIndex, collect_rows
from dagster_delta.engines.spark.read.reader import read_frame
from dagster_delta.engines.spark.session.errors import spark_failures
from dagster_delta.engines.spark.session.session import functions_of
from dagster_delta.engines.spark.write.change_query import (
    ChangingRows,
    RowChange,
    write_changes,
)
from dagster_delta.engines.spark.write.compaction import rewrite_in_tasks
from dagster_delta.engines.spark.write.tasks import (
    COPIED_FILE_SCHEMA,
    ChangeDetail,
    WrittenChanges,
    changes_of,
    copy_files,
)
from dagster_delta.errors import MAX_EXAMPLES, InvalidArgument
from dagster_delta.protocol.actions import AddFile
from dagster_delta.protocol.log.replay import ROW_ID_COLUMNS
from dagster_delta.protocol.statistics.statistics import parse_statistics_json
from dagster_delta.protocol.values.arrow_columns import string_column
from dagster_delta.protocol.values.partition_values import decode_path
from dagster_delta.split_by_size import split_by_size
from dagster_delta.sql.typed import Refused, quote, walk
from dagster_delta.storage.unreferenced_files import CreatedFiles

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_SMALL_SHARE = 0.75
_PLACE, _TURN = "__delta_place", "__delta_turn"
_CopiedFile = dict[str, Any]
"""A row of `COPIED_FILE_SCHEMA`, without the columns that are null."""
_COPIED_COLUMNS = [
    "path",
    "size_bytes",
    "partition_values",
    "deletion_vector",
    *ROW_ID_COLUMNS,
]
_Partition = tuple[tuple[str, str | None], ...]


def copy_rows(
    session: SparkSession, rewrite: RowRewrite, written: Sequence[AddFile], created: CreatedFiles
) -> RewriteResult:
    """Write the rows that stay, and unite them with the small files that were written before.

    No expression is evaluated, so tasks read the files directly.

    `written`: files of the same statement; the small ones are replaced and deleted.
    `created`: gets the new files, and has the written ones.
    """
    target_bytes = rewrite.data.target_file_size_bytes
    staying = list(_list_copied_files(rewrite))
    small = _small_files(written, staying, target_bytes)
    groups = list(_pack_files([*staying, *map(_as_source, small)], target_bytes))
    if not groups:
        return RewriteResult(tuple(written), (), 0, 0)
    tables = [pa.Table.from_pylist(group, COPIED_FILE_SCHEMA) for group in groups]
    copy = partial(copy_files, rewrite.data, rewrite.change_data, rewrite.recorded_as)
    copied = changes_of(rewrite_in_tasks(session, rewrite.source, tables, copy, ChangeDetail))
    created.add(copied.paths)
    united = CreatedFiles(rewrite.source.store)
    united.add(decode_path(file.path) for file in small)
    united.delete()
    paths = {file.path for file in small}
    return RewriteResult(
        (*(file for file in written if file.path not in paths), *copied.files),
        copied.change_files,
        copied.counts[0],
        copied.counts[1] - _num_rows(small),
    )


def _list_copied_files(rewrite: RowRewrite) -> Iterator[_CopiedFile]:
    for row in rewrite.source.files.select(_COPIED_COLUMNS).to_pylist():
        matches = rewrite.matches.get(row["path"])
        # All rows of a file without an entry leave; they are read only to be recorded.
        if matches is not None or rewrite.change_data is not None:
            yield {**row, "matches": None if matches is None else matches.serialize()}


def _as_source(file: AddFile) -> _CopiedFile:
    # Rows without an id of their own get one when the new file is committed.
    return {
        "path": file.path,
        "size_bytes": file.size_bytes,
        "partition_values": list(file.partition_values.items()),
        "matches": BitMap64().serialize(),
    }


def _small_files(
    written: Sequence[AddFile], staying: Sequence[_CopiedFile], target_bytes: int
) -> list[AddFile]:
    """The small files of partitions in which there is another file to write."""
    small = [file for file in written if file.size_bytes < _SMALL_SHARE * target_bytes]
    others = {_partition_of(file["partition_values"]) for file in staying}
    keys = [_partition_of(list(file.partition_values.items())) for file in small]
    counts = Counter(keys)
    return [file for file, key in zip(small, keys, strict=True) if key in others or counts[key] > 1]


def _pack_files(files: Sequence[_CopiedFile], target_bytes: int) -> Iterator[list[_CopiedFile]]:
    """Groups of files of one partition, each of about the target size."""
    by_partition: dict[_Partition, list[_CopiedFile]] = {}
    for file in files:
        by_partition.setdefault(_partition_of(file["partition_values"]), []).append(file)
    for some in by_partition.values():
        yield from split_by_size(some, itemgetter("size_bytes"), target_bytes)


def _partition_of(values: Sequence[tuple[str, str | None]] | None) -> _Partition:
    return tuple(sorted((name, text) for name, text in values or ()))


def _num_rows(files: Sequence[AddFile]) -> int:
    counts = parse_statistics_json(string_column([file.stats for file in files]), ())
    return sum(counts["num_records"].to_pylist())


def find_matches(session: SparkSession, plan: ReadPlan) -> Iterator[MatchedRows]:
    """The live rows that satisfy the plan's predicate, by file; files without any are omitted."""
    table = plan.store.location.uri
    files = FileIndex.of(plan.files, plan.store, version=plan.version)
    with spark_failures(table=table):
        rows = read_frame(session, replace(plan, columns=()), with_positions=True)
        found = collect_rows(rows)
    for path, bitmap in files.by_path(found, table=table).items():
        yield MatchedRows(path, bitmap)


def find_older(
    session: SparkSession, plan: ReadPlan, keys: Sequence[str], order_by: Sequence[str]
) -> OlderRows:
    """All live rows but the latest one of each key. Raises as `Engine.find_older` says."""
    functions, table = functions_of(session), plan.store.location.uri
    files = FileIndex.of(plan.files, plan.store, version=plan.version)
    if not plan.files.num_rows:
        return OlderRows({}, 0)
    columns = [functions.col(quote(name)) for name in keys]
    order = [functions.col(quote(name)).desc_nulls_last() for name in order_by]
    of_key = Window.partitionBy(*columns)
    place = functions.rank().over(of_key.orderBy(*order))
    last = [functions.col(name).desc() for name in (FILE_KEY, ROW_INDEX)]
    turn = functions.row_number().over(of_key.orderBy(*order, *last))
    with spark_failures(table=table):
        rows = read_frame(session, plan, with_positions=True)
        older = rows.withColumns({_PLACE: place, _TURN: turn}).where(f"{_TURN} > 1")
        ties = older.where(f"{_PLACE} = 1").select(*columns)
        num_ties = ties.count()
        examples = ties.limit(MAX_EXAMPLES).collect() if num_ties else []
        found = collect_rows(older.select(FILE_KEY, ROW_INDEX))
    by_path = files.by_path(found, table=table) if found else {}
    return OlderRows(by_path, num_ties, tuple(str(tuple(row)) for row in examples))


def rewrite_rows(session: SparkSession, rewrite: RowRewrite) -> RewriteResult:
    """Rewrite rows, on the executors."""
    return _Rewriting(session, rewrite).run()


class _Rewriting:
    def __init__(self, session: SparkSession, rewrite: RowRewrite) -> None:
        self._session, self._rewrite = session, rewrite
        self._store = rewrite.source.store

    def run(self) -> RewriteResult:
        rewrite = self._rewrite
        with CreatedFiles(self._store) as created:
            if not rewrite.assignments:
                return copy_rows(self._session, rewrite, (), created)
            changed = write_changes(self._build_changing_rows(), self._store)
            created.add(changed.paths)
            self._check_rows(changed)
            copied = RewriteResult(changed.files, (), 0, 0)
            if rewrite.keeps_rest:
                # The rows removed from these files are recorded with their new values.
                rest = replace(rewrite, change_data=None)
                copied = copy_rows(self._session, rest, changed.files, created)
        return replace(
            copied, change_files=changed.change_files, num_changed_rows=changed.counts[0]
        )

    def _build_changing_rows(self) -> ChangingRows:
        rewrite = self._rewrite
        functions = functions_of(self._session)
        changed = RowChange(
            "update",
            None,
            rewrite.assignments,
            # Constraints are already verified for the rows of these files.
            replace(rewrite.data.values, verified=()),
        )
        return ChangingRows(
            read_frame(self._session, rewrite.source, with_positions=self._checks_positions),
            (changed,),
            rewrite.data,
            rewrite.change_data,
            old=lambda name: functions.col(quote(name)),
            with_positions=self._checks_positions,
        )

    @cached_property
    def _checks_positions(self) -> bool:
        """Whether the predicate has a function that may be nondeterministic, as a user's own may
        be: it can select as many rows as before, but other ones.
        """
        where = self._rewrite.source.where
        return where is not None and any(isinstance(part, Refused) for part in walk(where.typed))

    def _check_rows(self, written: WrittenChanges) -> None:
        """Check that the predicate selected the same rows as before."""
        expected = self._count_matches()
        if written.counts[0] != expected:
            raise InvalidArgument(
                f"the predicate matched {expected} rows when they were counted, but "
                f"{written.counts[0]} when they were changed: avoid nondeterministic functions "
                "such as rand()",
                table=self._store.location.uri,
            )
        if not self._checks_positions:
            return
        source, table = self._rewrite.source, self._store.location.uri
        index = FileIndex.of(source.files, source.store, version=source.version)
        found = index.by_path(written.rows, table=table)
        # Where every live row of a file matches, the total above shows that all were changed.
        if any(found.get(path) != rows for path, rows in self._rewrite.matches.items()):
            raise InvalidArgument(
                "the predicate matched other rows when they were changed than when they were "
                "counted: avoid nondeterministic functions such as rand()",
                table=table,
            )

    def _count_matches(self) -> int:
        files, matches = self._rewrite.source.files, self._rewrite.matches
        is_whole = pa.array([path not in matches for path in files["path"].to_pylist()], pa.bool_())
        whole = count_live_rows(self._store, files.filter(is_whole))
        return sum(whole) + sum(map(len, matches.values()))
