"""MERGE on Spark: one join that writes the changed rows and reports their positions, and one job
for the new rows.

The join returns the table's rows that match and, if a clause needs them, those without a match. It
reports the matched rows of the source as a bitmap, so rows to insert are found without an outer
join over the table. A query as source is evaluated once: a second run could give other rows.

Spec: Add File and Remove File; Change Data Files.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from types import ModuleType
from typing import TYPE_CHECKING, cast

import msgspec
import pyarrow as pa
from msgspec.structs import replace
from pyspark.sql import Window

from dagster_delta.cached_property import cached_property
from dagster_delta.engines.plans import RewriteResult, WriteSpec
from dagster_delta.engines.spark.changes.delete_update import copy_rows
from dagster_delta.engines.spark.read.file_keys import FILE_KEY, ROW_INDEX
from dagster_delta.engines.spark.read.position_bitmaps import (
    FileIndex,
    collect_numbers,
    without_numbers,
)
from dagster_delta.engines.spark.read.reader import read_frame
from dagster_delta.engines.spark.session.active_session import is_spark_frame
from dagster_delta.engines.spark.session.errors import spark_failures
from dagster_delta.engines.spark.session.schema import (
    declared_column,
    from_spark_schema,
    padded_column,
    sql_column,
    to_spark_schema,
    to_spark_type,
)
from dagster_delta.engines.spark.session.session import (
    frame_of,
    functions_of,
    is_apache_spark,
    with_nullable_parts,
)
from dagster_delta.engines.spark.write.change_query import ChangingRows, RowChange, write_changes
from dagster_delta.engines.spark.write.tasks import WrittenChanges
from dagster_delta.engines.statements.merge_clauses import SOURCE, TARGET, MergeClause
from dagster_delta.engines.statements.merge_plan import (
    JoinKey,
    MergeCondition,
    MergedRows,
    MergePlan,
    SourceSummary,
    ambiguous_matches,
    key_condition,
    repeated_keys,
    with_lengths,
)
from dagster_delta.engines.statements.row_tracking import keep_row_ids, remaining_rows
from dagster_delta.engines.statements.source_buffer import SourceRows
from dagster_delta.errors import MAX_EXAMPLES
from dagster_delta.protocol.actions import AddFile
from dagster_delta.protocol.schema import DataType, PrimitiveType, StructType
from dagster_delta.protocol.values.arrow_schema import to_arrow_schema, to_arrow_type
from dagster_delta.sql.typed import FALSE, UNKNOWN, Cast, Typed, quote, quote_path
from dagster_delta.sql.typed import Column as ColumnOf
from dagster_delta.storage.unreferenced_files import CreatedFiles

if TYPE_CHECKING:
    from pyroaring import BitMap64
    from pyspark.sql import Column, DataFrame, SparkSession


ROW_NUMBER = "__delta_source_row"
"""Column of the frame: a unique number of the row, in no order."""

OLD_ROW = "__delta_old_row"
"""Column of a frame with positions: the row of the table as it is."""

_MAX_LISTED_ROWS = 20_000
_SIDES = ("min", "max")
_UNBOUNDED = (PrimitiveType("binary"), PrimitiveType("variant"), PrimitiveType("void"))


class LocatedRows(msgspec.Struct, frozen=True):
    """What is known of a source that has the positions of its rows in the table."""

    summary: SourceSummary
    num_old_rows: int
    """Rows of the source that replace or delete a row."""


class SparkMergeSource(msgspec.Struct, frozen=True):
    """The rows of a source as a DataFrame."""

    frame: DataFrame
    """With `ROW_NUMBER` after its columns."""
    schema: StructType
    """Logical schema, without the number."""
    table: str
    """URI of the table, for errors."""
    located: LocatedRows | None = None
    """Given if the frame has `OLD_ROW` and the position of the row of the table that each row
    replaces or deletes, so that nothing is left to join. `ROW_NUMBER` is null if there is none."""

    @classmethod
    def of(
        cls, session: SparkSession, data: object, directory: str, *, table: str
    ) -> SparkMergeSource:
        """The source made from a value.

        `data`: a DataFrame, a source, `SourceRows`, or what they can be made of.
        """
        if isinstance(data, SparkMergeSource):
            return data
        if is_spark_frame(data):
            frame = cast("DataFrame", data)
            if is_apache_spark(frame.sparkSession):
                return cls._of_frame(frame, table)
            # Other servers do not cache rows between queries, so this process does.
            session, data = frame.sparkSession, with_nullable_parts(frame).toArrow()
        rows = data if isinstance(data, SourceRows) else SourceRows(data, directory)
        schema = to_arrow_schema(rows.schema)
        found = pa.Table.from_batches([batch for _, batch in rows.batches()], schema)
        numbers = pa.array(range(rows.num_rows), pa.int64())
        spark_schema = to_spark_schema(rows.schema).add(ROW_NUMBER, "long")
        named = found.append_column(ROW_NUMBER, numbers)
        return cls(frame_of(session, named, spark_schema), rows.schema, table)

    @classmethod
    def _of_frame(cls, frame: DataFrame, table: str) -> SparkMergeSource:
        schema = from_spark_schema(frame.schema)
        functions = functions_of(frame)
        numbered = frame.withColumn(ROW_NUMBER, functions.monotonically_increasing_id())
        return cls(numbered.localCheckpoint(), schema, table)

    def rows(self) -> DataFrame:
        """The rows, which were computed once."""
        return self.frame.drop(ROW_NUMBER)

    def padded(self, lengths: Mapping[str, int]) -> SparkMergeSource:
        """The source with some columns as CHAR(n), by the length of each."""
        schema, functions = with_lengths(self.schema, lengths), functions_of(self.frame)
        frame = self.frame
        for name in lengths:
            field = schema.field(name)
            padded = padded_column(functions.col(quote(name)), field, functions)
            frame = frame.withColumn(name, declared_column(padded, field))
        return replace(self, frame=frame, schema=schema)

    def summarise(self, condition: MergeCondition) -> SourceSummary:
        """The summary of the keys. Raises as `MergeSource` says.

        One job lists the keys of a small source, a second one finds the bounds of others.
        """
        if self.located is not None:
            return self.located.summary
        keys = condition.keys
        known = {index: self.key_column(key.source) for index, key in enumerate(keys)}
        columns = {index: column for index, column in known.items() if column is not None}
        named = [column.alias(f"key_{index}") for index, column in columns.items()]
        with spark_failures(table=self.table):
            found = self.frame.select(ROW_NUMBER, *named).limit(_MAX_LISTED_ROWS + 1).toArrow()
            is_listed = found.num_rows <= _MAX_LISTED_ROWS
            if not is_listed:
                found = self._collect_bounds(columns)
        count = found.num_rows if is_listed else int(found["rows"][0].as_py())
        conditions = tuple(_find_key_conditions(keys, columns, found, is_listed=is_listed))
        asked = conditions if count else (FALSE,)
        return SourceSummary(count, asked, time.perf_counter())

    def _collect_bounds(self, keys: Mapping[int, Column]) -> pa.Table:
        functions = functions_of(self.frame)
        sums: list[Column] = [functions.count(functions.lit(1)).alias("rows")]
        for index, column in keys.items():
            sums += [
                functions.min(column).alias(f"min_{index}"),
                functions.max(column).alias(f"max_{index}"),
                functions.count(column).alias(f"count_{index}"),
            ]
        found: pa.Table = self.frame.agg(*sums).toArrow()
        return found

    def key_column(self, typed: Typed) -> Column | None:
        """The source's expression of a key, if it is a column with bounds."""
        functions = functions_of(self.frame)
        match typed:
            case ColumnOf(path, data_type) if path[0] == SOURCE and _has_bounds(data_type):
                return functions.col(quote_path(path[1:]))
            case Cast(child, data_type) if _has_bounds(data_type):
                inner = self.key_column(child)
                return None if inner is None else inner.try_cast(to_spark_type(data_type))
        return None


def _has_bounds(data_type: DataType) -> bool:
    return not hasattr(data_type, "fields") and data_type not in _UNBOUNDED


def _find_key_conditions(
    keys: Sequence[JoinKey], columns: dict[int, Column], found: pa.Table, *, is_listed: bool
) -> Iterator[Typed]:
    for index, key in enumerate(keys):
        if index not in columns:
            yield UNKNOWN
            continue
        data_type = to_arrow_type(key.data_type)
        if is_listed:
            yield key_condition(key, found[f"key_{index}"].cast(data_type))
            continue
        values = [found[f"{side}_{index}"].combine_chunks().cast(data_type) for side in _SIDES]
        if found[f"count_{index}"][0].as_py() < found["rows"][0].as_py():
            values.append(pa.nulls(1, data_type))
        yield key_condition(key, pa.chunked_array(values), are_bounds=True)


_TURN = "__delta_turn"


def merge_frames(session: SparkSession, plan: MergePlan) -> MergedRows:
    """Carry out a MERGE. Raises as `Engine.merge` says."""
    target, data = keep_row_ids(plan.target, plan.data)
    source = cast("SparkMergeSource", plan.source)
    return _FrameMerge(
        session, msgspec.structs.replace(plan, target=target, data=data), source
    ).run()


class _FrameMerge(msgspec.Struct, frozen=True, dict=True):
    """One MERGE, planned."""

    session: SparkSession
    plan: MergePlan
    """What it reads and writes keeps the ids of rows."""
    source: SparkMergeSource

    def run(self) -> MergedRows:
        """Write the updated rows and the new rows."""
        with CreatedFiles(self.plan.target.store) as created:
            if self.source.located is not None:
                changed, inserted = self._write_located(self.source.located)
            else:
                changed = self._change_rows(created)
                inserted = self._insert_rows(changed)
            created.add([*changed.paths, *inserted.paths])
            table = self.plan.target.store.location.uri
            rows = self._files.by_path(changed.rows, table=table) if changed.rows else {}
            copied = self._copy_rest(rows, (*changed.files, *inserted.files), created)
        counts = {index: count for index, count in self._count_changes(changed).items() if count}
        # A match in a file that is not rewritten also prevents the insert of a source row.
        used = self.plan.target.files["path"].to_pylist() if self._inserting else rows
        return MergedRows(
            files=copied.files,
            change_files=(*changed.change_files, *inserted.change_files),
            num_inserted_rows=sum(inserted.counts.values()),
            num_changed_rows=counts,
            num_copied_rows=copied.num_copied_rows,
            rows=rows,
            used_paths=frozenset(used),
            scanned=time.perf_counter(),
            high_water_marks=inserted.high_water_marks,
        )

    def _change_rows(self, created: CreatedFiles) -> WrittenChanges:
        if not self.plan.target.files.num_rows:
            return WrittenChanges()
        with spark_failures(table=self.plan.target.store.location.uri):
            if not self._changing:
                return WrittenChanges(matched=collect_numbers(self._join_source(), ROW_NUMBER))
            frame, changes = self._join_source(), self._list_changes()
            if self.plan.unchanged and self._has_repeated_keys():
                # Of several matches of a row, some may keep its values.
                examples = list(self._ambiguous_rows())
                if examples:
                    table = self.plan.target.store.location.uri
                    raise ambiguous_matches(len(examples), examples, table=table)
        if self.plan.deletes_every_match and self._change_data is not None:
            frame, changes = self._without_doubles(frame, changes)
        written = write_changes(
            ChangingRows(
                frame,
                changes,
                self.plan.data,
                self._change_data,
                old=lambda name: self._column_of(TARGET, name),
                with_positions=True,
                source_number=ROW_NUMBER if self._inserting else None,
            ),
            self.plan.target.store,
        )
        created.add(written.paths)
        changed = sum(map(len, written.rows.values()))
        if sum(written.counts.values()) > changed and not self.plan.deletes_every_match:
            surplus = sum(written.counts.values()) - changed
            table = self.plan.target.store.location.uri
            raise ambiguous_matches(surplus, self._ambiguous_rows(), table=table)
        return written

    def _write_located(self, located: LocatedRows) -> tuple[WrittenChanges, WrittenChanges]:
        """The changed rows and the new rows of a source that knows its rows of the table: one job
        without a join.
        """
        functions, names = self._functions, self.plan.names
        source = [functions.col(quote(name)).alias(name) for name in self.source.schema.names]
        found = self.source.frame.select(
            *(FILE_KEY, ROW_INDEX, ROW_NUMBER),
            functions.col(OLD_ROW).alias(names.alias(TARGET)),
            functions.struct(*source).alias(names.alias(SOURCE)),
        )
        stored = {name: name for name in self.plan.target.columns}
        is_new = functions.col(ROW_NUMBER).isNull()
        new = [self._row_change(clause, is_new) for clause in self._inserting]
        written = write_changes(
            ChangingRows(
                self._add_scopes(found, stored),
                [*self._list_changes(), *new],
                self.plan.data,
                # Without change data files, the feed reads new rows from the data files.
                self._change_data if located.num_old_rows else None,
                old=lambda name: self._column_of(TARGET, name),
                with_positions=True,
            ),
            self.plan.target.store,
        )
        first = len(self._changing)
        counts = Counter({index: n for index, n in written.counts.items() if index >= first})
        inserted = WrittenChanges(counts=counts, high_water_marks=written.high_water_marks)
        return written, inserted

    def _copy_rest(
        self, rows: Mapping[str, BitMap64], written: tuple[AddFile, ...], created: CreatedFiles
    ) -> RewriteResult:
        """Write the unchanged rows of the changed files together with the written ones."""
        rest = remaining_rows(self.plan.target, self.plan.data, rows)
        if rest is None:
            return RewriteResult(written, (), 0, 0)
        return copy_rows(self.session, rest, written, created)

    def _insert_rows(self, changed: WrittenChanges) -> WrittenChanges:
        if not self._inserting or len(changed.matched) == self.plan.num_source_rows:
            return WrittenChanges()
        rows = self.source.frame
        if changed.matched:
            rows = without_numbers(rows, ROW_NUMBER, changed.matched)
        if self.plan.checks_new_keys:
            self._refuse_repeated_keys(rows)
        return write_changes(
            ChangingRows(
                rows.alias(self.plan.names.alias(SOURCE)),
                [self._row_change(clause, None) for clause in self._inserting],
                self.plan.data,
                # If a commit has change data files, the feed consists of them alone.
                self._change_data if changed.rows else None,
                old=lambda name: self._column_of(SOURCE, name),
            ),
            self.plan.target.store,
        )

    def _has_repeated_keys(self) -> bool:
        """Whether rows of the source may match the same row of the table."""
        found = [self.source.key_column(key.source) for key in self.plan.condition.keys]
        columns = [column for column in found if column is not None]
        if not columns:
            return True
        named = [column.alias(f"key_{index}") for index, column in enumerate(columns)]
        counts = self.source.frame.select(*named)
        return bool(counts.groupBy(*counts.columns).count().where("count > 1").limit(1).collect())

    def _refuse_repeated_keys(self, new: DataFrame) -> None:
        keys = self.plan.condition.keys
        found = [self.source.key_column(key.source) for key in keys]
        columns = [column for column in found if column is not None]
        if len(columns) < len(keys):
            # Spark computes this key only inside the condition.
            return
        named = [column.alias(f"key_{index}") for index, column in enumerate(columns)]
        rows = new.select(*named)
        for index, key in enumerate(keys):
            rows = rows if key.nulls_match else rows.where(f"key_{index} IS NOT NULL")
        table = self.plan.target.store.location.uri
        counts = rows.groupBy(*rows.columns).count().where("count > 1")
        with spark_failures(table=table):
            several = counts.toArrow().to_pylist()
        if several:
            surplus = sum(row.pop("count") - 1 for row in several)
            examples = (tuple(row.values()) for row in several[:MAX_EXAMPLES])
            raise repeated_keys(surplus, examples, table=table)

    @cached_property
    def _functions(self) -> ModuleType:
        return functions_of(self.session)

    @cached_property
    def _change_data(self) -> WriteSpec | None:
        return self.plan.change_data_for(index for index, _ in self._changing)

    @cached_property
    def _files(self) -> FileIndex:
        target = self.plan.target
        return FileIndex.of(target.files, target.store, version=target.version)

    @cached_property
    def _changing(self) -> list[tuple[int, MergeClause]]:
        """The clauses for rows of the table, with their indexes among all clauses."""
        return self.plan.clauses_of("matched", "not_matched_by_source")

    @cached_property
    def _inserting(self) -> list[MergeClause]:
        return [clause for _, clause in self.plan.clauses_of("not_matched")]

    def _column_of(self, side: str, name: str) -> Column:
        return self._functions.col(f"{quote(self.plan.names.alias(side))}.{quote(name)}")

    def _join_source(self) -> DataFrame:
        """Rows of the table with the rows of the source that match, or without any."""
        self._files  # noqa: B018  two files of one key would mix up their rows
        rows = read_frame(self.session, self.plan.target, with_positions=True)
        names, columns = self.plan.names, self.plan.target.columns
        # Expressions cannot read what the merge adds to the table, and what the ids of rows need.
        hidden = {
            name: f"__delta_target_{index}"
            for index, name in enumerate(columns)
            if names.target.get(name) is None
        }
        target = rows.withColumnsRenamed(hidden).alias(names.alias(TARGET))
        source = self.source.frame.alias(names.alias(SOURCE))
        lacking = self.plan.clauses_of("not_matched_by_source")
        condition = sql_column(self.plan.on, self._functions)
        joined = target.join(source, condition, "left" if lacking else "inner")
        return self._add_scopes(joined, {name: hidden.get(name, name) for name in columns})

    def _add_scopes(self, joined: DataFrame, stored: Mapping[str, str]) -> DataFrame:
        """The rows with a struct for each alias, and the columns that need no alias: Spark finds a
        name in them as `MergeNames` does. It takes these columns under their alias, too, and not
        the fields of the structs, whose texts of CHAR(n) it would not pad.

        `stored`: by column of the table, its name in the rows.
        """
        names, functions = self.plan.names, self._functions
        of_target = names.scope("not_matched_by_source").names[1:]
        others = [name for name in names.scope("matched").names[2:] if name not in of_target]
        target = [self._column_of(TARGET, stored[name]).alias(name) for name in stored]
        source = [self._column_of(SOURCE, name).alias(name) for name in names.source.names]
        return joined.select(
            *(FILE_KEY, ROW_INDEX, ROW_NUMBER),
            functions.struct(*target).alias(names.alias(TARGET)),
            functions.struct(*source).alias(names.alias(SOURCE)),
            *[self._column_of(TARGET, name) for name in of_target],
            *[self._column_of(SOURCE, name) for name in others],
        )

    def _list_changes(self, *, skips: bool = True) -> list[RowChange]:
        """What each clause does; without `skips` also to rows that keep their values."""
        is_matched = self._functions.col(ROW_NUMBER).isNotNull()
        changes, before = [], self._functions.lit(False)
        for index, clause in self._changing:
            is_of_kind = is_matched if clause.text.kind == "matched" else ~is_matched
            change = self._row_change(clause, is_of_kind)
            test = self.plan.unchanged.get(index) if skips else None
            if test is not None and change.applies is not None:
                # The clauses after this one do not apply to the rows that it leaves as they are.
                applies = self._functions.coalesce(change.applies, self._functions.lit(False))
                is_same = sql_column(test.sql, self._functions)
                change = replace(change, applies=applies & ~before & ~is_same)
                before = before | (applies & is_same)
            elif self.plan.unchanged and skips and change.applies is not None:
                change = replace(change, applies=change.applies & ~before)
            changes.append(change)
        return changes

    def _row_change(self, clause: MergeClause, applies: Column | None) -> RowChange:
        text = clause.text
        if text.condition is not None:
            condition = sql_column(text.condition, self._functions)
            applies = condition if applies is None else applies & condition
        return RowChange(
            text.action, applies, clause.assignments, clause.values, fills=clause.fills
        )

    def _without_doubles(
        self, frame: DataFrame, changes: list[RowChange]
    ) -> tuple[DataFrame, list[RowChange]]:
        """The changes, with one row for each row that several source rows match."""
        functions = self._functions
        window = Window.partitionBy(FILE_KEY, ROW_INDEX).orderBy(ROW_NUMBER)
        turns = frame.withColumn(_TURN, functions.row_number().over(window))
        is_first = functions.col(_TURN) == 1
        return turns, [
            replace(
                change, applies=is_first if change.applies is None else change.applies & is_first
            )
            for change in changes
        ]

    def _count_changes(self, changed: WrittenChanges) -> dict[int, int]:
        counts = {index: changed.counts[place] for place, (index, _) in enumerate(self._changing)}
        if self.plan.deletes_every_match:
            # Several source rows may have removed one row.
            doubles = sum(counts.values()) - sum(map(len, changed.rows.values()))
            for index, clause in self._changing:
                counts[index] -= doubles if clause.text.kind == "matched" else 0
        return counts

    def _ambiguous_rows(self) -> Iterator[object]:
        """Keys of some source rows that match the same row, as far as they are columns."""
        functions = self._functions
        wanted = functions.lit(False)
        for change in self._list_changes(skips=False):
            wanted = wanted | functions.coalesce(change.applies, functions.lit(False))
        names = self.plan.condition.source_names or self.source.schema.names
        shown = functions.struct(*[self._column_of(SOURCE, name).alias(name) for name in names])
        found = (
            self._join_source()
            .where(wanted)
            .groupBy(FILE_KEY, ROW_INDEX)
            .agg(
                functions.count(functions.lit(1)).alias("count"), functions.max(shown).alias("row")
            )
            .where(functions.col("count") > 1)
            .limit(MAX_EXAMPLES)
            .collect()
        )
        yield from (row["row"].asDict() for row in found)
