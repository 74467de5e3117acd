"""The replay of change events on Spark: the events, the rows of their keys and the memory of them
are one frame, whose windows say which of them become what. Rows never reach the driver.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from functools import reduce
from types import ModuleType
from typing import TYPE_CHECKING, Any, cast

import msgspec

from dagster_delta.cached_property import cached_property
from dagster_delta.engines.spark.changes.merge import (
    OLD_ROW,
    ROW_NUMBER,
    LocatedRows,
    SparkMergeSource,
)
from dagster_delta.engines.spark.read.file_keys import FILE_KEY, ROW_INDEX
from dagster_delta.engines.spark.read.reader import read_frame
from dagster_delta.engines.spark.session.errors import spark_failures
from dagster_delta.engines.spark.session.schema import (
    from_spark_schema,
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
from dagster_delta.engines.statements.change_replay import (
    CHANGE_COLUMN,
    DELETE,
    KIND_COLUMN,
    SEQUENCE_COLUMN,
    SNAPSHOT,
    TRUNCATE,
    UPSERT,
    Replayed,
    ReplayPlan,
    ReplayQuery,
    Step,
    contradicting_events,
    late_snapshot,
    null_in_events,
)
from dagster_delta.engines.statements.merge_plan import SourceSummary
from dagster_delta.engines.statements.row_tracking import read_row_ids
from dagster_delta.errors import MAX_EXAMPLES, InvalidCast
from dagster_delta.protocol.schema import (
    DataType,
    PrimitiveType,
    StructType,
    as_nullable,
    inner_types,
)
from dagster_delta.protocol.values.arrow_schema import from_arrow_schema
from dagster_delta.sql.typed import quote
from dagster_delta.sql.types import VARIANT, sql_type_name

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

_FLOATS = (PrimitiveType("float"), PrimitiveType("double"))
_MEMORY, _ROW, _ROW_END, _GIVEN = range(4)
_ORIGIN = f"{ROW_NUMBER}_origin"
_BROADCAST_ROWS = 1_000_000


def replay_changes(session: SparkSession, plan: ReplayPlan) -> Replayed:
    """What events change. Raises as `Engine.replay_changes` says."""
    with spark_failures(table=plan.table):
        return _FrameReplay(session, plan, cast("SparkMergeSource", plan.given)).run()


class _FrameReplay(msgspec.Struct, frozen=True, dict=True):
    """One replay, planned."""

    session: SparkSession
    plan: ReplayPlan
    source: SparkMergeSource

    @cached_property
    def _functions(self) -> ModuleType:
        return functions_of(self.session)

    @cached_property
    def _leaves(self) -> list[tuple[str, ...]]:
        """The paths below a sequence of the parts that it is compared by."""
        return list(_leaf_paths(self.plan.rules.sequence_type))

    @cached_property
    def _query(self) -> ReplayQuery:
        rules = self.plan.rules
        return ReplayQuery(
            rules,
            len(rules.keys),
            len(self._leaves),
            _known_sql,
            takes_all=self.plan.takes_all,
            locates=True,
        )

    def run(self) -> Replayed:
        """What events change."""
        functions = self._functions
        self._check_given()
        entries, marks = self._add_implied(self._all_entries())
        named = [f"k{i}" for i in range(len(self.plan.rules.keys))]
        keys = ", ".join(named)
        # Every window is of a key, or of a part of its entries: one shuffle serves all of them.
        events = _apply(entries.repartition(*named), self._query.unite_events())
        contradicts = "0" if self.plan.rules.replaces_equal else "x"
        watched = events.selectExpr("*", f"max({contradicts}) OVER (PARTITION BY {keys}) AS bad")
        replayed = _apply(watched, self._query.replay())
        found = self._kept(
            replayed.where("op IS NOT NULL OR m = 1 OR bad = 1").select(*self._result_columns)
        )
        old, op = functions.col(self._query.old), functions.col("op")
        is_changed = op.isNotNull()
        (sums,) = found.agg(
            functions.max("bad"),
            functions.sum("m"),
            functions.count(op),
            functions.count(functions.when(is_changed, old)),
            functions.max(functions.when(is_changed, functions.col("num_old"))),
        ).collect()
        is_bad, num_remembered, num_changed, num_old, most_old = sums
        if is_bad:
            self._refuse_contradictions(events)
        memory = self._memory_rows(found, marks) if num_remembered or marks is not None else None
        rows = self._table_rows(found)
        if (most_old or 0) > 1:
            # Others have written several rows of a key and start, and all of them change.
            return Replayed(rows.drop(ROW_NUMBER, FILE_KEY, ROW_INDEX, OLD_ROW), memory)
        schema = from_spark_schema(rows.drop(ROW_NUMBER, FILE_KEY, ROW_INDEX, OLD_ROW).schema)
        summary = SourceSummary(num_changed, self.plan.keys, time.perf_counter())
        located = LocatedRows(summary, num_old)
        return Replayed(SparkMergeSource(rows, schema, self.plan.table, located), memory)

    @property
    def _result_columns(self) -> list[str]:
        """What is kept of the windows: Spark computes no other column."""
        rules = self.plan.rules
        names = ["op", "m", "bad", "num_old", "d", "p", "q", "tp", self._query.old]
        names += ["tq"] if rules.keeps_history else []
        count = len(rules.values) if rules.fills_nulls else 0
        return names + [f"{letters}{i}" for letters in ("f", "tf") for i in range(count)]

    def _kept(self, frame: DataFrame) -> DataFrame:
        """The rows, computed once."""
        if is_apache_spark(self.session):
            return frame.localCheckpoint()
        frame = with_nullable_parts(frame)
        return frame_of(self.session, frame.toArrow(), frame.schema)

    def _check_given(self) -> None:
        """Refuse events without a key or a sequence, and values that do not fit."""
        plan, rules, functions = self.plan, self.plan.rules, self._functions
        given = self.source.frame
        is_truncate = self._test_of(rules.truncates)
        wrong = {rules.order.name: self._given_sequence().isNull()}
        for key in rules.keys:
            wrong[key] = functions.col(quote(key)).isNull() & ~is_truncate
        misfits = dict(self._misfits())
        tests = [*wrong.values(), *misfits.values()]
        counts = given.agg(
            *[
                functions.coalesce(functions.sum(test.cast("int")), functions.lit(0))
                for test in tests
            ]
        ).collect()[0]
        shown = given.drop(ROW_NUMBER)
        for (name, test), count in zip((wrong | misfits).items(), counts, strict=True):
            if not count:
                continue
            examples = [row.asDict() for row in shown.where(test).limit(MAX_EXAMPLES).collect()]
            if name in wrong:
                raise null_in_events(name, count, examples, table=plan.table)
            raise InvalidCast(
                f"{count} values of column {name} do not fit its type "
                f"{sql_type_name(rules.columns.field(name).data_type)}, or would lose a part in "
                "it: correct them, or widen the column",
                table=plan.table,
                column=name,
                examples=tuple(repr(example.get(name)) for example in examples),
            )

    def _misfits(self) -> Iterator[tuple[str, Column]]:
        """By column, whether the value of an event cannot be stored in it."""
        for field in self.plan.rules.columns:
            given = self.source.schema.get(field.name)
            if given is None or as_nullable(given.data_type) == as_nullable(field.data_type):
                continue
            if inner_types(given.data_type) or str(given.data_type) == "void":
                continue
            column = self._functions.col(quote(field.name))
            stored = column.try_cast(to_spark_type(field.data_type))
            fails = stored.isNull()
            if self.plan.is_exact:
                fails |= ~stored.try_cast(to_spark_type(given.data_type)).eqNullSafe(column)
            yield field.name, column.isNotNull() & fails

    def _given_sequence(self) -> Column:
        functions, order = self._functions, self.plan.rules.order
        columns = [sql_column(sql, functions) for sql in order.sql]
        found = columns[0] if len(columns) == 1 else functions.struct(*columns)
        return found.cast(to_spark_type(order.data_type))

    def _test_of(self, sql: str | None) -> Column:
        functions = self._functions
        if sql is None:
            return functions.lit(False)
        return functions.coalesce(sql_column(sql, functions), functions.lit(False))

    def _all_entries(self) -> DataFrame:
        rules, plan, functions = self.plan.rules, self.plan, self._functions
        is_truncate = self._test_of(rules.truncates)
        is_delete = self._test_of(rules.deletes) | is_truncate
        given = self._entries(
            self.source.frame,
            self._given_sequence(),
            kind=(functions.lit(_GIVEN), is_delete, is_truncate.cast("int")),
        )
        target = self._rows_of_keys(
            read_frame(self.session, read_row_ids(plan.target), with_positions=True)
        )
        start, end = rules.bounds if rules.keeps_history else (rules.stored_sequence, None)
        of_start = None if start is None else functions.col(quote(start))
        origin, of_end = functions.lit(_ROW), None
        if end is not None:
            # A closed row is two entries. The table is scanned once for both.
            at_end = functions.col(quote(end))
            starts, ends = functions.array(origin), functions.array(origin, functions.lit(_ROW_END))
            entries_of_row = functions.when(at_end.isNull(), starts).otherwise(ends)
            target = target.withColumn(_ORIGIN, functions.explode(entries_of_row))
            origin = functions.col(_ORIGIN)
            of_end = functions.when(origin == _ROW, at_end)
            of_start = functions.when(origin == _ROW, of_start).otherwise(at_end)
        kind = (origin, origin == _ROW_END, functions.lit(0))
        of_table = self._entries(target, of_start, of_end, kind=kind)
        # The table's first, which have all columns: to Sail 0.7, one that the left lacks is void.
        frames = [of_table, given, *map(self._memory_entries, self._memory_frames())]
        return reduce(lambda left, right: left.unionByName(right, allowMissingColumns=True), frames)

    def _memory_frames(self) -> Iterator[DataFrame]:
        plan = self.plan
        if plan.memory is not None:
            yield self._rows_of_keys(read_frame(self.session, plan.memory))
        if plan.marks is not None:
            schema = to_spark_schema(from_arrow_schema(plan.marks.schema))
            yield frame_of(self.session, plan.marks, schema)

    def _memory_entries(self, frame: DataFrame) -> DataFrame:
        functions = self._functions
        kind = functions.col(KIND_COLUMN)
        mark = functions.when(kind == SNAPSHOT, 2).when(kind == TRUNCATE, 1).otherwise(0)
        is_delete = kind.isin(DELETE, TRUNCATE)
        return self._entries(
            frame, functions.col(SEQUENCE_COLUMN), kind=(functions.lit(_MEMORY), is_delete, mark)
        )

    def _rows_of_keys(self, frame: DataFrame) -> DataFrame:
        """The rows with a key of the events; all of them if the plan takes all."""
        plan, functions = self.plan, self._functions
        if plan.takes_all:
            return frame.where(functions.col(quote(plan.rules.keys[0])).isNotNull())
        keys = self.source.frame.select(
            *[
                self._comparable(quote(key), plan.rules.columns.field(key).data_type).alias(f"k{i}")
                for i, key in enumerate(plan.rules.keys)
            ]
        )
        if plan.num_events <= _BROADCAST_ROWS:
            keys = functions.broadcast(keys)
        on = [
            self._comparable(quote(key), plan.rules.columns.field(key).data_type)
            == functions.col(f"k{i}")
            for i, key in enumerate(plan.rules.keys)
        ]
        return frame.join(keys, reduce(lambda left, right: left & right, on), "left_semi")

    def _comparable(self, name: str, data_type: DataType) -> Column:
        """A value as the type of its column, in a form whose equality is that of sequences."""
        column = self._functions.col(name).cast(to_spark_type(data_type))
        # Minus zero equals zero, and windows would tell them apart.
        return column + self._functions.lit(0.0).cast("float") if data_type in _FLOATS else column

    def _entries(
        self,
        frame: DataFrame,
        sequence: Column | None,
        end: Column | None = None,
        *,
        kind: tuple[Column, Column, Column],
    ) -> DataFrame:
        rules, functions = self.plan.rules, self._functions
        origin, is_delete, is_truncate = kind
        known = {name.lower() for name in frame.columns}
        of_sequence = to_spark_type(rules.sequence_type)
        none = functions.lit(None)
        row = {
            field.name: (
                functions.col(quote(field.name)) if field.name.lower() in known else none
            ).cast(to_spark_type(as_nullable(field.data_type)))
            for field in rules.columns
        }
        whole = functions.struct(*[column.alias(name) for name, column in row.items()])
        q = (none if sequence is None else sequence).cast(of_sequence)
        e = (none if end is None else end).cast(of_sequence)
        number = functions.col(ROW_NUMBER) if ROW_NUMBER in frame.columns else functions.lit(0)
        columns = {
            "o": origin,
            "d": is_delete.cast("int"),
            "t": is_truncate.cast("int"),
            "n": number.cast("long"),
            "p": whole,
            "q": q,
            "l": ((origin == _ROW) & e.isNull()).cast("int"),
        }
        if FILE_KEY in frame.columns:
            stored = [name for name in frame.columns if name not in (FILE_KEY, ROW_INDEX, _ORIGIN)]
            row_of_table = functions.struct(*[functions.col(quote(name)) for name in stored])
            old = functions.struct(row_of_table.alias("row"), q.alias("start"), FILE_KEY, ROW_INDEX)
            columns["w"] = functions.when(origin == _ROW, old)
        for i, name in enumerate(rules.keys):
            columns[f"k{i}"] = self._comparable(quote(name), rules.columns.field(name).data_type)
        for letter, value in (("s", q), ("e", e)):
            for i, path in enumerate(self._leaves):
                leaf = reduce(lambda column, name: column.getField(name), path, value)
                columns[f"{letter}{i}"] = _without_minus_zero(leaf, path, rules.sequence_type)
        for i, field in enumerate(rules.values):
            value = functions.when(~is_delete, row[field.name])
            columns[f"c{i}"] = (
                functions.to_json(functions.struct(value.alias("v")))
                if _has_no_equality(field.data_type)
                else value
            )
            if _has_no_equality(field.data_type):
                columns[f"c{i}"] = functions.when(value.isNotNull(), columns[f"c{i}"])
            if rules.fills_nulls:
                columns[f"f{i}"] = value
        return frame.select(*[column.alias(name) for name, column in columns.items()])

    def _add_implied(self, entries: DataFrame) -> tuple[DataFrame, DataFrame | None]:
        """The entries with the deletes that truncates and snapshots mean, and the new marks: their
        kind and sequence.
        """
        rules, plan, functions = self.plan.rules, self.plan, self._functions
        if rules.truncates is None and plan.marks is None and not plan.is_snapshot:
            return entries, None
        # The frame is used several times.
        entries = self._kept(entries)
        marks, entries = entries.where("t > 0"), entries.where("t = 0")
        keys = [f"k{i}" for i in range(len(rules.keys))]
        parts = [f"s{i}" for i in range(len(self._leaves))]
        found: list[DataFrame] = []
        newest = marks.where("t = 1").orderBy(*_newest_first(parts, functions), "o").limit(1)
        if newest.limit(1).collect():
            taken = {f"of_{name}": name for name in (*parts, "q", "o", "n")}
            of_all = newest.select(*[functions.col(name).alias(of) for of, name in taken.items()])
            keyed = entries.groupBy(*keys).agg(functions.first("p").alias("p"))
            implied = keyed.crossJoin(of_all)
            implied = implied.select(
                *keys,
                "p",
                *[functions.col(of).alias(name) for of, name in taken.items()],
                functions.lit(1).alias("d"),
                functions.lit(1).alias("t"),
            )
            entries = entries.unionByName(implied, allowMissingColumns=True)
            new = newest.where(f"o = {_GIVEN}")
            found.append(new.select(functions.lit(TRUNCATE).alias("kind"), "q"))
        if plan.is_snapshot:
            entries, last = self._end_missing_rows(entries, marks, keys, parts)
            found.append(last.select(functions.lit(SNAPSHOT).alias("kind"), "q"))
        if not found:
            return entries, None
        new_marks = reduce(lambda left, right: left.unionByName(right), found)
        return entries, new_marks if new_marks.limit(1).collect() else None

    def _end_missing_rows(
        self, entries: DataFrame, marks: DataFrame, keys: list[str], parts: list[str]
    ) -> tuple[DataFrame, DataFrame]:
        """The entries with a delete of each key that a snapshot lacks, and the one before it, or
        the table, has; and the newest snapshot.
        """
        functions = self._functions
        given = entries.where(f"o = {_GIVEN}")
        known = marks.where("t = 2").orderBy(*_newest_first(parts, functions)).limit(1)
        both = given.select(*parts, "q", "o").unionByName(known.select(*parts, "q", "o"))
        order = [functions.col(part).asc_nulls_first() for part in parts]
        first = both.orderBy(*order, "o").limit(1).collect()
        recorded = known.limit(1).collect()
        if recorded and first and first[0]["o"] == _GIVEN:
            raise late_snapshot(first[0]["q"], recorded[0]["q"], table=self.plan.table)
        shown = ", ".join(f"{part} ASC NULLS FIRST" for part in parts)
        snapshots = (
            given.groupBy(*parts)
            .agg(functions.first("q").alias("q"))
            .selectExpr("*", f"row_number() OVER (ORDER BY {shown}) AS turn")
        )
        turns = self._kept(snapshots)
        of_turns = turns.select(
            *[functions.col(part).alias(f"turn_{part}") for part in parts], "turn"
        )
        at_turn = [functions.col(part).eqNullSafe(functions.col(f"turn_{part}")) for part in parts]
        present = given.join(of_turns, reduce(lambda a, b: a & b, at_turn)).select(
            *keys, "p", "n", "turn"
        )
        live = entries.where("l = 1").select(*keys, "p", "n", functions.lit(0).alias("turn"))
        present = present.unionByName(live)
        following = present.select(
            *keys, "p", "n", (functions.col("turn") + 1).alias("turn")
        ).dropDuplicates([*keys, "turn"])
        there = present.select(
            *[functions.col(key).alias(f"there_{key}") for key in keys],
            functions.col("turn").alias("there_turn"),
        )
        on = [functions.col(key).eqNullSafe(functions.col(f"there_{key}")) for key in keys]
        on.append(functions.col("turn") == functions.col("there_turn"))
        missing = following.join(there, reduce(lambda a, b: a & b, on), "left_anti")
        implied = missing.join(turns, "turn").select(
            *keys,
            "p",
            "n",
            *parts,
            "q",
            *[
                functions.lit(value).alias(name)
                for name, value in (("o", _GIVEN), ("d", 1), ("t", 0), ("l", 0))
            ],
        )
        last = turns.orderBy(functions.col("turn").desc()).limit(1)
        return entries.unionByName(implied, allowMissingColumns=True), last

    def _refuse_contradictions(self, events: DataFrame) -> None:
        rules = self.plan.rules
        wrong = events.where("x = 1")
        keys = [f"k{i}" for i in range(len(rules.keys))]
        shown = [tuple(row) for row in wrong.select(*keys, "q").limit(MAX_EXAMPLES).collect()]
        raise contradicting_events(wrong.count(), shown, keys=rules.keys, table=self.plan.table)

    def _table_rows(self, found: DataFrame) -> DataFrame:
        """The rows to merge, as those of a `SparkMergeSource` that is located."""
        rules, functions = self.plan.rules, self._functions
        old = self._query.old
        leaves = functions.col("op") == "D"
        columns = []
        for field in rules.columns:
            column = functions.col(f"tp.{quote(field.name)}")
            if rules.fills_nulls and field.name not in rules.keys:
                place = [value.name for value in rules.values].index(field.name)
                column = functions.col(f"tf{place}")
            kept = functions.col(f"{old}.row.{quote(field.name)}")
            kept = kept.cast(to_spark_type(as_nullable(field.data_type)))
            columns.append(functions.when(leaves, kept).otherwise(column).alias(field.name))
        if rules.keeps_history:
            start, end = rules.bounds
            is_new = functions.col(old).isNull()
            first = functions.when(is_new, functions.col("q")).otherwise(
                functions.col(f"{old}.start")
            )
            columns.append(first.alias(start))
            columns.append(functions.when(~leaves, functions.col("tq")).alias(end))
        columns.append(functions.col("op").alias(CHANGE_COLUMN))
        is_old = functions.col(old).isNotNull()
        columns.append(functions.when(is_old, functions.lit(0)).alias(ROW_NUMBER))
        columns += [functions.col(f"{old}.{name}") for name in (FILE_KEY, ROW_INDEX)]
        columns.append(functions.col(f"{old}.row").alias(OLD_ROW))
        return found.where("op IS NOT NULL").select(*columns)

    def _memory_rows(self, found: DataFrame, marks: DataFrame | None) -> DataFrame:
        rules, functions = self.plan.rules, self._functions
        is_upsert = functions.col("d") == 0
        columns: list[Column] = []
        for field in rules.columns:
            if rules.memory.get(field.name) is None:
                continue
            value = functions.col(f"p.{quote(field.name)}")
            if field.name not in rules.keys:
                value = functions.when(is_upsert, value)
            columns.append(value.alias(field.name))
        kind = functions.when(is_upsert, UPSERT).otherwise(DELETE)
        rows = found.where("m = 1").select(
            *columns, functions.col("q").alias(SEQUENCE_COLUMN), kind.alias(KIND_COLUMN)
        )
        if marks is None:
            return rows
        of_marks = marks.select(
            functions.col("q").alias(SEQUENCE_COLUMN), functions.col("kind").alias(KIND_COLUMN)
        )
        return rows.unionByName(of_marks, allowMissingColumns=True)


def _known_sql(side: str, expression: str) -> str:
    return f"{side}_value({expression}, true)"


def _apply(frame: DataFrame, steps: Sequence[Step]) -> DataFrame:
    for step in steps:
        if step.where is not None:
            frame = frame.where(step.where)
        if step.add:
            frame = frame.selectExpr("*", *[f"{of} AS {name}" for name, of in step.add.items()])
    return frame


def _leaf_paths(data_type: DataType) -> Iterator[tuple[str, ...]]:
    if not isinstance(data_type, StructType):
        yield ()
        return
    for field in data_type:
        for path in _leaf_paths(field.data_type):
            yield (field.name, *path)


def _without_minus_zero(leaf: Any, path: Sequence[str], data_type: DataType) -> Any:  # noqa: ANN401  a Column of either kind of session
    for name in path:
        assert isinstance(data_type, StructType)  # noqa: S101  the path leads through it
        data_type = data_type.field(name).data_type
    if data_type not in _FLOATS:
        return leaf
    return leaf + 0.0


def _newest_first(parts: Sequence[str], functions: ModuleType) -> list[Column]:
    return [functions.col(part).desc_nulls_last() for part in parts]


def _has_no_equality(data_type: DataType) -> bool:
    if data_type == VARIANT or hasattr(data_type, "key_type"):
        return True
    return any(map(_has_no_equality, inner_types(data_type)))
