"""The replay of change events in this process: the rows of their keys are collected by number, in
memory or in a file, and the SQL engine, which may spill, says which of them become what.

The SQL engine sees keys, sequences and values to compare, and the numbers of rows; what is written
is taken from the rows by their number, so no value is converted on its way.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator, Sequence
from contextlib import closing
from itertools import chain
from typing import TYPE_CHECKING, cast

import numpy as np
import pyarrow as pa
from msgspec.structs import replace
from pyroaring import BitMap64

import dagster_delta.arrow_compute as pc
from dagster_delta.engines.arrow.merge_join import ArrowMergeSource, MergeJoin
from dagster_delta.engines.arrow.predicate_matching import add_rows
from dagster_delta.engines.plans import ReadPlan
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
from dagster_delta.engines.statements.source_buffer import SourceRows
from dagster_delta.errors import MAX_EXAMPLES
from dagster_delta.nested_arrays import index_of, numbers_of
from dagster_delta.parquet.opened_file import data_files
from dagster_delta.parquet.reader import plan_reader, read_ahead
from dagster_delta.parquet.store_assignment import assign_rows
from dagster_delta.protocol.schema import DataType, StructField, StructType, as_nullable
from dagster_delta.protocol.values.arrow_columns import integer_column, string_column
from dagster_delta.protocol.values.arrow_schema import to_arrow_schema, to_arrow_type
from dagster_delta.protocol.values.arrow_values import (
    FALSE,
    TRUE,
    every,
    integer_scalar,
    null_scalar,
)
from dagster_delta.python_values import python_rows
from dagster_delta.sql.duckdb_sql import comparable_input, open_database
from dagster_delta.sql.evaluator import Evaluator, column_at
from dagster_delta.sql.filters import parse_filter
from dagster_delta.sql.types import VARIANT, holds_values, is_primitive

if TYPE_CHECKING:
    from numpy.typing import NDArray

_SEQUENCE, _END = "\0sequence", "\0end"
_ORIGIN, _IS_DELETE, _IS_TRUNCATE = "\0origin", "\0delete", "\0truncate"
_MEMORY, _ROW, _ROW_END, _GIVEN = range(4)
_BATCH_ROWS = 65_536


def replay_changes(plan: ReplayPlan, directory: str, *, time_zone: str) -> Replayed:
    """What events change. Raises as `Engine.replay_changes` says."""
    source = cast("ArrowMergeSource", plan.given)
    collection = _Collection(plan, source, time_zone)
    rows = SourceRows(collection.reader(), directory, memory_bytes=source.memory.source_bytes)
    replay = _Replay(plan, rows, source)
    with closing(replay.connection):
        replay.load_events()
        replay.check_events()
        replay.run()
        changed = replay.table_of("op IS NOT NULL")
        remembered = replay.table_of("m = 1")
    memory = None
    if remembered.num_rows or replay.marks:
        memory = replay.memory_rows(remembered)
    return Replayed(replay.table_rows(changed), memory)


class _Collection:
    """The rows that a replay is about: given events, rows of their keys, and the memory of them."""

    def __init__(self, plan: ReplayPlan, source: ArrowMergeSource, time_zone: str) -> None:
        self._plan, self._source, self._zone = plan, source, time_zone
        rules = plan.rules
        self._order = [Evaluator(part) for part in rules.order.parts]
        named = [
            *(StructField(field.name, as_nullable(field.data_type)) for field in rules.columns),
            StructField(_SEQUENCE, rules.sequence_type),
            StructField(_END, rules.sequence_type),
        ]
        self._columns = StructType(tuple(named[:-2]))
        self._types = to_arrow_schema(StructType(tuple(named)))
        flags = (_ORIGIN, _IS_DELETE, _IS_TRUNCATE)
        self._schema = pa.schema([*self._types, *(pa.field(flag, pa.int8()) for flag in flags)])

    def reader(self) -> pa.RecordBatchReader:
        """All rows: given ones first, in their order."""
        return pa.RecordBatchReader.from_batches(self._schema, self._batches())

    def _batches(self) -> Iterator[pa.RecordBatch]:
        yield from self._given_batches()
        yield from self._table_batches()
        yield from self._memory_batches()

    def _given_batches(self) -> Iterator[pa.RecordBatch]:
        rules = self._plan.rules
        schema, moment = self._source.schema, dt.datetime.now(dt.UTC)
        tests: list[Evaluator | None] = []
        for sql in (rules.deletes, rules.truncates):
            if sql is None:
                tests.append(None)
                continue
            expression = parse_filter(sql, schema, moment, self._zone)
            expression.check_embeddable()
            tests.append(Evaluator(expression.typed))
        for _, batch in self._source.batches():
            is_delete, is_truncate = (
                every(False, batch.num_rows)
                if test is None
                else test.is_true(
                    {path: column_at(batch, path) for path in test.columns}, batch.num_rows
                )
                for test in tests
            )
            is_delete = pc.or_(is_delete, is_truncate)
            yield self._given_batch(batch, is_delete, is_truncate)

    def _given_batch(
        self, batch: pa.RecordBatch, is_delete: pa.BooleanArray, is_truncate: pa.BooleanArray
    ) -> pa.RecordBatch:
        plan, rules = self._plan, self._plan.rules
        sequence = self._sequence_of(batch)
        names = [name for name in batch.schema.names if self._columns.get(name) is not None]
        given = assign_rows(
            batch.select(names), self._columns, table=plan.table, is_exact=plan.is_exact
        )
        needed = {rules.order.name: pc.is_null(sequence)}
        for key in rules.keys:
            needed[key] = pc.and_(pc.is_null(given.column(key)), pc.invert(is_truncate))
        for name, nulls in needed.items():
            if count := nulls.true_count:
                shown = python_rows(pc.filter(batch, nulls).slice(0, MAX_EXAMPLES))
                raise null_in_events(name, count, shown, table=plan.table)
        return self._batch(
            given.columns, sequence, None, (_GIVEN, is_delete, is_truncate), batch.num_rows
        )

    def _sequence_of(self, batch: pa.RecordBatch) -> pa.Array:
        """The sequence of events: one value, or several as a struct."""
        order = self._plan.rules.order
        parts = [part.of_batch(batch) for part in self._order]
        target = to_arrow_type(order.data_type)
        if not order.fields:
            return pc.cast(parts[0], target)
        return pa.StructArray.from_arrays(parts, names=list(order.fields)).cast(target)

    def _table_batches(self) -> Iterator[pa.RecordBatch]:
        plan, rules = self._plan, self._plan.rules
        names = [field.name for field in rules.rows]
        bounds = rules.bounds if rules.keeps_history else (rules.stored_sequence, None)
        for batch in self._rows_of_keys(plan.target, names):
            columns = [batch.column(field.name) for field in rules.columns]
            start, end = (None if name is None else batch.column(name) for name in bounds)
            yield self._batch(columns, start, end, (_ROW, None, None), batch.num_rows)

    def _memory_batches(self) -> Iterator[pa.RecordBatch]:
        plan, rules = self._plan, self._plan.rules
        if plan.memory is None:
            return
        # It lacks the columns that the table has got since.
        schema = plan.memory.configuration.schema
        known = [name for name in rules.memory.names if schema.get(name) is not None]
        found = self._rows_of_keys(plan.memory, known)
        marks = [] if plan.marks is None else plan.marks.to_batches()
        for batch in (*found, *marks):
            columns = [
                batch.column(field.name) if field.name in known else None for field in rules.columns
            ]
            kinds = batch.column(KIND_COLUMN)
            is_delete, is_truncate = (pc.equal(kinds, _text(kind)) for kind in (DELETE, TRUNCATE))
            # A snapshot is an entry of its own, which is no event.
            is_snapshot = pc.equal(kinds, _text(SNAPSHOT))
            marks_all = pc.if_else(is_snapshot, _int8(2), pc.cast(is_truncate, pa.int8()))
            yield self._batch(
                columns,
                batch.column(SEQUENCE_COLUMN),
                None,
                (_MEMORY, pc.or_(is_delete, is_truncate), marks_all),
                batch.num_rows,
            )

    def _batch(
        self,
        columns: Sequence[pa.Array | None],
        sequence: pa.Array | None,
        end: pa.Array | None,
        kind: tuple[int, pa.Array | None, pa.Array | None],
        count: int,
    ) -> pa.RecordBatch:
        origin, is_delete, is_truncate = kind
        arrays = [
            pa.nulls(count, field.type)
            if values is None
            else values
            if values.type == field.type
            else pc.cast(values, field.type)
            for field, values in zip(self._types, [*columns, sequence, end], strict=True)
        ]
        arrays.append(pa.repeat(_int8(origin), count))
        arrays += [
            pa.repeat(_int8(0), count) if flag is None else pc.cast(flag, pa.int8())
            for flag in (is_delete, is_truncate)
        ]
        return pa.RecordBatch.from_arrays(arrays, schema=self._schema)

    def _rows_of_keys(self, target: ReadPlan, columns: list[str]) -> Iterator[pa.RecordBatch]:
        """The rows of a table with a key of the events; all of it if a truncate is among them."""
        files = list(data_files(target.files))
        selected = None if self._plan.takes_all else self._find_rows(target)
        if selected is not None:
            files = [
                replace(file, selected=selected[file.ordinal])
                for file in files
                if file.ordinal in selected
            ]
        reader = plan_reader(target, columns)
        yield from read_ahead(target.store, reader.sources(files))

    def _find_rows(self, target: ReadPlan) -> dict[int, BitMap64]:
        found: dict[int, BitMap64] = {}
        with closing(MergeJoin(self._plan.condition, self._source, {})) as join:
            if not join.num_candidates or not target.files.num_rows:
                return found
            needed = {path[1] for path in join.target_paths}
            names = [name for name in target.configuration.schema.names if name in needed]
            reader = plan_reader(target, names)
            sources = (join.narrowed(file) for file in reader.sources(data_files(target.files)))
            for pairs in join.pairs(read_ahead(target.store, sources)):
                add_rows(found, pairs.ordinals, pairs.rows)
        return found


def _int8(value: int) -> pa.Scalar:
    return pc.cast(integer_scalar(value), pa.int8())


def _text(value: str) -> pa.Scalar:
    return string_column([value])[0]


def _leaves_of(values: pa.Array, data_type: DataType) -> Iterator[tuple[pa.Array, DataType]]:
    """A sequence in the parts that it is compared by, one after another."""
    if not isinstance(data_type, StructType):
        yield values, data_type
        return
    for index, field in enumerate(data_type):
        yield from _leaves_of(pc.struct_field(values, indices=[index]), field.data_type)


def _known_sql(side: str, expression: str) -> str:
    return f"{side}_value({expression} IGNORE NULLS)"


class _Replay:
    """The events in the SQL engine, and what becomes of them."""

    def __init__(self, plan: ReplayPlan, rows: SourceRows, source: ArrowMergeSource) -> None:
        self._plan, self._rules, self._rows = plan, plan.rules, rows
        leaves = _leaves_of(
            pa.nulls(0, to_arrow_type(self._rules.sequence_type)), self._rules.sequence_type
        )
        self._parts = [data_type for _, data_type in leaves]
        opaque = (
            f"c{i}"
            for i, field in enumerate(self._rules.values)
            if not (holds_values(field.data_type) or field.data_type == VARIANT)
            and not is_primitive(field.data_type)
        )
        self._query = ReplayQuery(
            self._rules,
            len(self._rules.keys),
            len(self._parts),
            _known_sql,
            opaque=frozenset(opaque),
            takes_all=plan.takes_all,
        )
        self.marks: list[tuple[str, int]] = []
        """Kind and reference of the sequence of each entry of the memory without a key."""
        self.connection = open_database(source.directory, source.memory.join_bytes)

    def load_events(self) -> None:
        """Make the relation of events."""
        batches = self._event_batches()
        first = next(batches, None)
        if first is None:
            first = self._event_batch(0, self._rows.take(np.empty(0, np.int64), ()))
        reader = pa.RecordBatchReader.from_batches(first.schema, chain([first], batches))
        self.connection.register("given", reader)
        self.connection.execute("CREATE TABLE entries AS SELECT * FROM given")
        self.connection.unregister("given")
        self.connection.execute("CREATE TABLE marks AS SELECT * FROM entries WHERE t > 0")
        self.connection.execute("DELETE FROM entries WHERE t > 0")
        self._apply_truncates()
        if self._plan.is_snapshot:
            self._end_missing_rows()

    def _event_batches(self) -> Iterator[pa.RecordBatch]:
        for start, batch in self._rows.batches():
            yield self._event_batch(start, batch)
            if self._rules.keeps_history:
                ended = pc.is_valid(batch.column(_END))
                if ended.true_count:
                    places = pc.indices_nonzero(ended)
                    yield self._event_batch(start, batch, ended=numbers_of(places))

    def _event_batch(
        self, start: int, batch: pa.RecordBatch, *, ended: NDArray[np.int64] | None = None
    ) -> pa.RecordBatch:
        """Entries for rows, or for the ends of some of them."""
        rules = self._rules
        numbers = np.arange(batch.num_rows, dtype=np.int64) + start
        if ended is not None:
            batch, numbers = pc.take(batch, index_of(ended)), numbers[ended]
        count, is_end = batch.num_rows, ended is not None
        references = index_of(numbers)
        origin = batch.column(_ORIGIN)
        is_row = pc.and_(pc.equal(origin, _int8(_ROW)), FALSE if is_end else TRUE)
        is_delete = pa.repeat(_int8(1), count) if is_end else batch.column(_IS_DELETE)
        arrays = {
            "o": pa.repeat(_int8(_ROW_END), count) if is_end else origin,
            "d": is_delete,
            "t": batch.column(_IS_TRUNCATE),
            "n": references,
            "p": references,
            "q": index_of(numbers * 2 + is_end),
            "w": pc.if_else(is_row, references, null_scalar(pa.int64())),
        }
        for i, field in enumerate(map(rules.columns.field, rules.keys)):
            arrays[f"k{i}"] = comparable_input(batch.column(field.name), field.data_type)
        for letter, name in (("s", _END if is_end else _SEQUENCE), ("e", _END)):
            leaves = _leaves_of(batch.column(name), rules.sequence_type)
            for i, (values, data_type) in enumerate(leaves):
                arrays[f"{letter}{i}"] = comparable_input(values, data_type)
        is_live = pc.and_(is_row, pc.is_null(batch.column(_END)))
        arrays["l"] = pc.cast(is_live, pa.int8())
        is_value = pc.equal(is_delete, _int8(0))
        for i, field in enumerate(rules.values):
            values = batch.column(field.name)
            values = pc.if_else(is_value, values, pa.nulls(count, values.type))
            arrays[f"c{i}"] = comparable_input(values, field.data_type)
            if rules.fills_nulls:
                none = null_scalar(pa.int64())
                arrays[f"f{i}"] = pc.if_else(pc.is_valid(values), references, none)
        # An array of a dictionary has no null type that the SQL engine takes.
        return pa.RecordBatch.from_arrays(list(arrays.values()), names=list(arrays))

    def _apply_truncates(self) -> None:
        """Make a truncate a delete of every key that there is."""
        if self._rules.truncates is None and self._plan.marks is None:
            return
        parts = [f"s{i}" for i in range(len(self._parts))]
        newest = ", ".join(f"{part} DESC NULLS LAST" for part in parts)
        keys = ", ".join(f"k{i}" for i in range(len(self._rules.keys)))
        others = [f"c{i}" for i in range(len(self._rules.values))]
        if self._rules.fills_nulls:
            others += [f"f{i}" for i in range(len(self._rules.values))]
        found = self.connection.execute(
            f"SELECT q, o FROM marks WHERE t = 1 ORDER BY {newest}, o LIMIT 1"
        ).fetchall()
        if not found:
            return
        (reference, origin), *_ = found
        if origin == _GIVEN:
            self.marks.append((TRUNCATE, reference))
        empty = "".join(f", NULL AS {name}" for name in others)
        self.connection.execute(
            f"INSERT INTO entries BY NAME SELECT {', '.join(f'of_all.{name}' for name in parts)}, "
            f"of_all.q, of_all.o, of_all.n, 1 AS d, 1 AS t, keyed.*{empty} FROM "
            f"(SELECT * FROM marks WHERE t = 1 ORDER BY {newest}, o LIMIT 1) AS of_all, "
            f"(SELECT {keys}, min(p) AS p FROM entries GROUP BY {keys}) AS keyed"
        )

    def _end_missing_rows(self) -> None:
        """Make a delete of each key that a snapshot lacks and the one before it, or the table,
        has.
        """
        parts = [f"s{i}" for i in range(len(self._parts))]
        order = ", ".join(f"{part} ASC NULLS FIRST" for part in parts)
        shown = ", ".join(parts)
        keys = [f"k{i}" for i in range(len(self._rules.keys))]
        execute = self.connection.execute
        newest_first = ", ".join(f"{part} DESC NULLS LAST" for part in parts)
        execute(
            f"CREATE TABLE known AS SELECT {shown}, q, o FROM marks WHERE t = 2 "
            f"ORDER BY {newest_first} LIMIT 1"
        )
        known = execute("SELECT q FROM known").fetchall()
        first = execute(
            f"SELECT q, o FROM (SELECT {shown}, q, o FROM entries WHERE o = {_GIVEN} UNION ALL "
            f"SELECT * FROM known) ORDER BY {order}, o LIMIT 1"
        ).fetchall()
        if known and first[0][1] == _GIVEN:
            sequences = integer_column([first[0][0], known[0][0]])
            raise late_snapshot(
                *self._take_sequences(sequences).to_pylist(), table=self._plan.table
            )
        execute(
            f"CREATE TABLE snapshots AS SELECT {shown}, min(q) AS q, row_number() OVER "
            f"(ORDER BY {order}) AS turn FROM entries WHERE o = {_GIVEN} GROUP BY {shown}"
        )
        newest = execute("SELECT q FROM snapshots ORDER BY turn DESC LIMIT 1").fetchall()
        if not newest:
            return
        self.marks.append((SNAPSHOT, newest[0][0]))
        same = _all_equal("there", "present", keys)
        named = ", ".join(f"present.{key}" for key in keys)
        execute(
            "CREATE TABLE present AS SELECT entries.*, turn FROM entries JOIN snapshots ON "
            f"{_all_equal('entries', 'snapshots', parts)} WHERE entries.o = {_GIVEN} "
            "UNION ALL SELECT *, 0 FROM entries WHERE l = 1"
        )
        execute(
            f"INSERT INTO entries BY NAME SELECT DISTINCT ON ({named}, following.turn) {named}, "
            f"{', '.join(f'following.{part}' for part in parts)}, following.q, 3 AS o, 1 AS d, "
            "0 AS t, 0 AS l, present.p, present.n FROM present JOIN snapshots AS following ON "
            "following.turn = (SELECT min(turn) FROM snapshots AS later WHERE "
            "later.turn > present.turn) WHERE NOT EXISTS (SELECT 1 FROM present AS there WHERE "
            f"there.turn = following.turn AND {same})"
        )

    def check_events(self) -> None:
        """Unite the entries of each event, and refuse events that contradict each other."""
        self.connection.execute(
            "CREATE TABLE events AS SELECT * EXCLUDE (w, first_d) FROM "
            f"({_nested('entries', self._query.unite_events())}) WHERE rn = 1 OR x = 1"
        )
        if self._rules.replaces_equal:
            return
        sql = "SELECT count(*) FROM events WHERE x = 1"
        ((count,),) = self.connection.execute(sql).fetchall()
        if count:
            sql = f"SELECT p FROM events WHERE x = 1 ORDER BY p LIMIT {MAX_EXAMPLES}"
            found = numbers_of(
                self.connection.sql(sql).to_arrow_table().column("p").combine_chunks()
            )
            shown = self._rows.take(found, [*self._rules.keys, _SEQUENCE])
            examples = [tuple(row.values()) for row in python_rows(shown)]
            raise contradicting_events(
                count, examples, keys=self._rules.keys, table=self._plan.table
            )

    def run(self) -> None:
        """Replay the events."""
        count = len(self._rules.values) if self._rules.fills_nulls else 0
        names = ["op", "m", "d", "tp", "p", "q", *(f"tf{i}" for i in range(count))]
        names += [f"f{i}" for i in range(count)]
        names += ["tq"] if self._rules.keeps_history else []
        # Only these columns are sorted and kept.
        self.connection.execute(
            f"CREATE TABLE replayed AS SELECT {', '.join(names)}, {self._query.old} AS old "
            f"FROM ({_nested('events', self._query.replay())}) WHERE op IS NOT NULL OR m = 1"
        )

    def table_of(self, where: str) -> pa.Table:
        """Some of what was found, as references to rows."""
        sql = f"SELECT * EXCLUDE (m) FROM replayed WHERE {where}"
        table: pa.Table = self.connection.sql(sql).to_arrow_table()
        return table

    def table_rows(self, changed: pa.Table) -> pa.RecordBatchReader:
        """The rows that references stand for."""
        rules = self._rules
        schema = to_arrow_schema(
            StructType(tuple(StructField(f.name, as_nullable(f.data_type)) for f in rules.rows))
        ).append(pa.field(CHANGE_COLUMN, pa.string()))
        return pa.RecordBatchReader.from_batches(schema, self._changed_batches(changed, schema))

    def _changed_batches(self, changed: pa.Table, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        rules = self._rules
        for batch in changed.to_batches(_BATCH_ROWS):
            leaves = pc.equal(batch["op"], _text("D"))
            rows = pc.if_else(leaves, batch["old"], batch["tp"])
            arrays = self._take_columns(rows, batch, "tf", rules.columns.names)
            if rules.keeps_history:
                kept = pc.multiply(pc.cast(batch["old"], pa.int64()), integer_scalar(2))
                start = pc.coalesce(kept, batch["q"])
                end = pc.if_else(leaves, null_scalar(pa.int64()), batch["tq"])
                arrays += [self._take_sequences(start), self._take_sequences(end)]
            arrays.append(batch["op"])
            yield pa.RecordBatch.from_arrays(
                [pc.cast(values, field.type) for values, field in zip(arrays, schema, strict=True)],
                schema=schema,
            )

    def memory_rows(self, remembered: pa.Table) -> pa.Table:
        """The events to remember, as rows of the memory."""
        rules = self._rules
        schema = to_arrow_schema(rules.memory)
        names = [name for name in rules.columns.names if rules.memory.get(name) is not None]
        parts = []
        for batch in remembered.to_batches(_BATCH_ROWS):
            is_delete = pc.equal(batch["d"], integer_scalar(1))
            arrays = self._take_columns(batch["p"], batch, "f", names)
            arrays = [
                values
                if name in rules.keys
                else pc.if_else(is_delete, pa.nulls(len(values), values.type), values)
                for name, values in zip(names, arrays, strict=True)
            ]
            kinds = pc.if_else(is_delete, _text(DELETE), _text(UPSERT))
            arrays += [self._take_sequences(batch["q"]), kinds]
            parts.append(_as_schema(arrays, schema))
        for kind, reference in self.marks:
            empty = [pa.nulls(1, schema.field(name).type) for name in names]
            found = self._take_sequences(integer_column([reference]))
            parts.append(_as_schema([*empty, found, string_column([kind])], schema))
        return pa.Table.from_batches(parts, schema)

    def _take_columns(
        self, rows: pa.Array, batch: pa.RecordBatch, letters: str, names: Sequence[str]
    ) -> list[pa.Array]:
        """Columns of the rows; where nulls are filled, each from the row that has its value."""
        rules = self._rules
        if not rules.fills_nulls:
            return list(self._rows.take(_numbers(rows), list(names)).columns)
        arrays = []
        leaves = pc.equal(batch["op"], _text("D")) if letters == "tf" else every(False, len(rows))
        for name in names:
            of = rows
            if name not in rules.keys:
                place = [field.name for field in rules.values].index(name)
                of = pc.if_else(leaves, rows, batch[f"{letters}{place}"])
            arrays.append(self._take_values(of, name))
        return arrays

    def _take_values(self, references: pa.Array, name: str) -> pa.Array:
        """A column of some rows; null where there is no row."""
        known = pc.fill_null(pc.cast(references, pa.int64()), integer_scalar(0))
        values = self._rows.take(_numbers(known), [name]).column(0)
        return pc.if_else(pc.is_valid(references), values, pa.nulls(len(values), values.type))

    def _take_sequences(self, references: pa.Array) -> pa.Array:
        known = pc.cast(references, pa.int64())
        rows = pc.shift_right(known, integer_scalar(1))
        is_end = pc.equal(pc.bit_wise_and(known, integer_scalar(1)), integer_scalar(1))
        starts, ends = (self._take_values(rows, name) for name in (_SEQUENCE, _END))
        return pc.if_else(pc.fill_null(is_end, FALSE), ends, starts)


def _as_schema(arrays: Sequence[pa.Array], schema: pa.Schema) -> pa.RecordBatch:
    cast_arrays = [
        pc.cast(values, field.type) for values, field in zip(arrays, schema, strict=True)
    ]
    return pa.RecordBatch.from_arrays(cast_arrays, schema=schema)


def _numbers(references: pa.Array) -> NDArray[np.int64]:
    return numbers_of(pc.cast(references, pa.int64()))


def _nested(relation: str, steps: Sequence[Step]) -> str:
    sql = f"SELECT * FROM {relation}"
    for step in steps:
        added = "".join(f", {of} AS {name}" for name, of in step.add.items())
        where = "" if step.where is None else f" WHERE {step.where}"
        sql = f"SELECT *{added} FROM ({sql}){where}"
    return sql


def _all_equal(left: str, right: str, names: Sequence[str]) -> str:
    return " AND ".join(f"{left}.{name} IS NOT DISTINCT FROM {right}.{name}" for name in names)
