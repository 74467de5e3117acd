"""What AUTO CDC makes of change events, for both engines: a short list of columns and filters over
one relation, in the SQL that DuckDB and Spark share.

The result is that of sorting all events of a key by their sequence and replaying them. What is
recorded of a key stands in three places, and becomes events again:

- a row of the table is the upsert at its start, and its end is a delete, unless another row of the
  key starts there;
- the memory has the events that the table does not show: deletes that end no row, and upserts next
  to others with equal tracked columns, which are one row together.

Every entry of the relation is one event, with these columns:

    k0…  the key                          d  0 for an upsert, 1 for a delete
    s0…  the sequence, in parts           o  0 of the memory, 1 a row of the table, 2 the end of
    c0…  the other columns, to compare       one, 3 a given event
    e0…  the end of the row, if o = 1     n  number of the given row, in their order
    p    carries the row                  t  1 for a delete by a truncate, of the whole table
    f0…  carries each column, if nulls    q  carries the sequence
         are no values                    w  carries the row of the table as it is, if o = 1

What a carrier is decides the engine: a value, or the number of a row.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

import msgspec
import pyarrow as pa

from dagster_delta.errors import MAX_EXAMPLES, ConstraintViolation, InvalidArgument
from dagster_delta.protocol.schema import DataType, PrimitiveType, StructField, StructType
from dagster_delta.sql.typed import Column, Typed, walk

if TYPE_CHECKING:
    from dagster_delta.engines.plans import ReadPlan
    from dagster_delta.engines.statements.merge_plan import MergeCondition, MergeSource

CHANGE_COLUMN = "__dagster_delta_change"
"""Column of the replayed rows: `U` for a new or changed row, `D` for one that leaves."""
SEQUENCE_COLUMN = "__SEQUENCE"
KIND_COLUMN = "__EVENT"
"""Columns of the memory: the sequence of the event, and what it is."""
_TEXT = PrimitiveType("string")
UPSERT, DELETE, TRUNCATE, SNAPSHOT = "upsert", "delete", "truncate", "snapshot"
"""Kinds of events in the memory. A snapshot is the sequence of the newest one, without a key."""


class EventOrder(msgspec.Struct, frozen=True):
    """The sequence of events."""

    given: tuple[str, ...]
    """Columns of the events, or Spark SQL over them, as the caller wrote them."""
    sql: tuple[str, ...]
    """Spark SQL of each."""
    parts: tuple[Typed, ...]
    """The same over the columns of the events; of one `struct(…)`, its fields."""
    fields: tuple[str, ...]
    """Names of the parts as fields of a struct; empty if the sequence is the only part."""
    data_type: DataType

    @property
    def name(self) -> str:
        """What it is called in an error."""
        return ", ".join(self.given)

    @property
    def column(self) -> str | None:
        """The column of the events that is the sequence; None if it is computed."""
        match self.parts:
            case (Column((name,)),) if not self.fields:
                return name
        return None

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns of the events from which it is computed."""
        nodes = (node for part in self.parts for node in walk(part))
        return tuple(dict.fromkeys(node.path[0] for node in nodes if isinstance(node, Column)))


class ReplayRules(msgspec.Struct, frozen=True):
    """How events become rows."""

    keys: tuple[str, ...]
    """Columns that identify a row."""
    columns: StructType
    """The columns of the table that events bring, keys included, as they will be."""
    tracked: frozenset[str]
    """Columns whose changes begin a new row."""
    order: EventOrder
    keeps_history: bool
    """Whether each state of a key is a row (type 2), instead of the newest alone (type 1)."""
    bounds: tuple[str, str]
    """Names of the columns for the start and the end of a row; of type 2 alone."""
    replaces_equal: bool = False
    """Whether the later of two events of one key and sequence counts."""
    fills_nulls: bool = False
    """Whether a null in an upsert leaves the column as it is."""
    remembers_equal: bool = True
    """Whether events that the table does not show are remembered."""
    deletes: str | None = None
    """Spark SQL over an event: whether it is a delete."""
    truncates: str | None = None
    """Spark SQL over an event: whether it deletes every row."""

    @property
    def sequence_type(self) -> DataType:
        """Type of the sequences."""
        return self.order.data_type

    @property
    def values(self) -> tuple[StructField, ...]:
        """The columns besides the key."""
        return tuple(field for field in self.columns if field.name not in self.keys)

    @property
    def stored_sequence(self) -> str | None:
        """The column of the table that has the sequence of a row; None: the memory has it."""
        if self.keeps_history:
            return self.bounds[0]
        name = self.order.column
        return None if name is None or self.columns.get(name) is None else name

    @property
    def rows(self) -> StructType:
        """The columns of the table."""
        if not self.keeps_history:
            return self.columns
        bounds = (StructField(name, self.sequence_type) for name in self.bounds)
        return StructType((*self.columns, *bounds))

    @property
    def memory(self) -> StructType:
        """The columns of the memory. A type 1 table needs no values there, unless nulls are
        filled.
        """
        fields = [field for field in self.columns if self.remembers_values or self.is_key(field)]
        named = (StructField(field.name, field.data_type) for field in fields)
        return StructType(
            (
                *named,
                StructField(SEQUENCE_COLUMN, self.sequence_type),
                StructField(KIND_COLUMN, _TEXT),
            )
        )

    @property
    def remembers_values(self) -> bool:
        """Whether the memory has the values of upserts."""
        return self.keeps_history or self.fills_nulls

    def is_key(self, field: StructField) -> bool:
        """Whether a column belongs to the key."""
        return field.name in self.keys


class ReplayPlan(msgspec.Struct, frozen=True):
    """Events to apply to a table, fully planned."""

    rules: ReplayRules
    given: MergeSource
    """The events, made by the same engine."""
    condition: MergeCondition
    """That the keys of a row and of an event are equal."""
    num_events: int
    target: ReadPlan
    """The files that may have a row of a key of the events, with the columns as they will be; all
    files where an event truncates."""
    memory: ReadPlan | None
    """The same of the memory; None if there is none."""
    table: str
    """URI of the table, for errors."""
    is_exact: bool = True
    """Whether values that lose a part in the type of their column are refused."""
    takes_all: bool = False
    """Whether rows of every key are read."""
    keys: tuple[Typed, ...] = ()
    """The condition for a row of the table to have a key of the events."""
    marks: pa.Table | None = None
    """The entries of the memory without a key; None if there are none."""
    is_snapshot: bool = False
    """Whether the rows are whole snapshots of the source instead of events."""


class Replayed(msgspec.Struct, frozen=True):
    """What a replay changes: rows in a form that the engine merges."""

    rows: object
    """Columns of the table and `CHANGE_COLUMN`: rows to merge by key and start. An engine that
    knows which rows of the table they replace tells itself so."""
    memory: object | None
    """Columns of the memory: events to merge into it; None if there are none."""


class Step(msgspec.Struct, frozen=True):
    """Columns to add, or a filter."""

    add: Mapping[str, str] = {}
    where: str | None = None


class ReplayQuery(msgspec.Struct, frozen=True):
    """The steps of a replay over the relation of events, in order."""

    rules: ReplayRules
    num_keys: int
    num_parts: int
    """Parts of the sequence."""
    known: Callable[[str, str], str]
    """SQL of `first_value` or `last_value` without nulls, of an expression."""
    opaque: frozenset[str] = frozenset()
    """Columns of which the engine only knows whether they are null."""
    takes_all: bool = True
    """Whether there are entries of other keys than those of the events."""
    locates: bool = False
    """Whether `num_old` counts the rows of the table that an event has: more than one, if others
    have written it."""

    @property
    def _keys(self) -> str:
        return ", ".join(_numbered("k", self.num_keys))

    @property
    def _of_event(self) -> str:
        return ", ".join((self._keys, *_numbered("s", self.num_parts)))

    @property
    def _compared(self) -> list[str]:
        return _numbered("c", len(self.rules.values))

    def _in_order(self, direction: str = "ASC NULLS FIRST") -> str:
        return ", ".join(f"{part} {direction}" for part in _numbered("s", self.num_parts))

    def _window(self, frame: str = "ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW") -> str:
        return f"(PARTITION BY {self._keys} ORDER BY {self._in_order()} {frame})"

    def unite_events(self) -> list[Step]:
        """Steps to one entry for each event: rn = 1, and x = 1 of an event that contradicts another
        one of its sequence.
        """
        of_event, compared = self._of_event, self._compared
        # Of type 1, the memory has no values: those of the row are the ones of its newest event.
        stands = not (self.rules.keeps_history or self.rules.fills_nulls)
        recorded = {
            name: f"CASE WHEN o = 0 THEN row_{name} ELSE {name} END" if stands else name
            for name in compared
        }
        differs = _or(self._differ(name, f"first_{name}") for name in compared)
        # One order serves every window, so that entries are sorted once.
        ordered = f"PARTITION BY {of_event} ORDER BY o, n"
        whole = f"({ordered} {_WHOLE})"
        newest = "CASE WHEN o = 3 THEN 0 ELSE 1 END, CASE WHEN o = 3 THEN n END DESC, o, n"
        turn = f"({ordered})"
        if self.rules.replaces_equal:
            turn = f"(PARTITION BY {of_event} ORDER BY {newest})"
        ends = _numbered("e", self.num_parts)
        # Of all rows of a table, only those of the keys of events are concerned.
        touched = [Step({"is_touched": _any("o = 3", self._keys)}), Step(where="is_touched = 1")]
        return [
            *self._settle_latest_rows(),
            *(touched if self.takes_all else []),
            Step(
                {
                    "first_d": f"first_value(d) OVER {whole}",
                    **{
                        f"first_{name}": f"first_value({sql}) OVER {whole}"
                        for name, sql in recorded.items()
                    },
                    # The end of a row is no event where another row starts: its turn comes later.
                    "rn": f"row_number() OVER {turn}",
                    "old": f"{self.known('first', 'w')} OVER {whole}",
                    **{
                        f"old_{e}": f"{self.known('first', f'CASE WHEN o = 1 THEN {e} END')} "
                        f"OVER {whole}"
                        for e in ends
                    },
                    "has_memory": f"max({_flag('o = 0')}) OVER {whole}",
                    **self._count_rows(whole, keeps_history=True),
                }
            ),
            Step({"x": _flag(f"o = 3 AND (d <> first_d OR (d = 0 AND ({differs})))")}),
        ]

    def _settle_latest_rows(self) -> list[Step]:
        """Of type 1, the row of a key whose sequences only the memory has stands for its newest
        event there.
        """
        if self.rules.keeps_history:
            return []
        whole = f"(PARTITION BY {self._keys} ORDER BY o, n {_WHOLE})"
        of_row = {
            f"row_{name}": self.known("first", f"CASE WHEN o = 1 THEN {name} END")
            for name in self._compared
        }
        of_row["old_row"] = self.known("first", "w")
        steps = [
            Step(
                {
                    **{name: f"{sql} OVER {whole}" for name, sql in of_row.items()},
                    "is_known": f"max({_flag('o = 0 AND d = 0')}) OVER {whole}",
                    **self._count_rows(whole, keeps_history=False),
                }
            )
        ]
        if self.rules.fills_nulls or self.rules.stored_sequence is None:
            steps.append(Step(where="NOT (o = 1 AND is_known = 1)"))
        return steps

    def _count_rows(self, window: str, *, keeps_history: bool) -> dict[str, str]:
        """The number of rows that the table has of the event, or of the key in type 1."""
        if keeps_history != self.rules.keeps_history or not self.locates:
            return {}
        return {"num_old": f"sum({_flag('o = 1')}) OVER {window}"}

    def replay(self) -> list[Step]:
        """Steps from the entries with rn = 1 to what changes:

        op   U for a row to write, D for one to delete, else null
        tp, tf0…  carry the row; tq its end; old the row of the table that it replaces
        m    1 for an event to remember, which p, f0… and q carry
        """
        steps = [Step(where="rn = 1"), *self._fill_nulls()]
        return steps + (self._replay_history() if self.rules.keeps_history else self._keep_newest())

    def _fill_nulls(self) -> list[Step]:
        rules, names = self.rules, self._compared
        deleted = f"sum({_flag('d = 1')}) OVER {self._window()}"
        if not rules.fills_nulls:
            return [Step({f"v{i}": name for i, name in enumerate(names)} | {"h": "0"})]
        frame = "ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW"
        window = f"(PARTITION BY {self._keys}, z ORDER BY {self._in_order()} {frame})"
        filled = {}
        for i, name in enumerate(names):
            for made, of in ((f"v{i}", name), (f"g{i}", f"f{i}")):
                filled[made] = f"{self.known('last', of)} OVER {window}"
        is_filled = _or(f"({name} IS NULL AND v{i} IS NOT NULL)" for i, name in enumerate(names))
        return [Step({"z": deleted}), Step(filled), Step({"h": _flag(f"d = 0 AND ({is_filled})")})]

    def _replay_history(self) -> list[Step]:
        rules, window = self.rules, self._window()
        tracked = [f"v{i}" for i, field in enumerate(rules.values) if field.name in rules.tracked]
        parts = _numbered("s", self.num_parts)
        # lag and lead take no frame.
        beside = f"(PARTITION BY {self._keys} ORDER BY {self._in_order()})"
        differs = _or(self._differ(name, f"before_{name}") for name in tracked)
        of_row = f"(PARTITION BY {self._keys}, r, d ORDER BY {self._in_order()} {_WHOLE})"
        carried = {"tp": "p", "tq": "next_q", **{f"end_{s}": f"next_{s}" for s in parts}}
        carried |= {f"tail_{name}": name for name in self._compared}
        if rules.fills_nulls:
            carried |= {f"tf{i}": f"g{i}" for i in range(len(rules.values))}
        ends_alike = _and(f"end_s{i} IS NOT DISTINCT FROM old_e{i}" for i in range(self.num_parts))
        alike = _and(f"NOT ({self._differ(name, f'tail_{name}')})" for name in self._compared)
        is_same = f"o = 1 AND (b = 1 OR ({alike}))" if not rules.fills_nulls else "1 = 0"
        hidden = "(d = 0 AND (a = 0 OR b = 0 OR h = 1)) OR (d = 1 AND coalesce(before_d, 1) = 1)"
        needed = f"({hidden})" if rules.remembers_equal else "1 = 0"
        return [
            Step(
                {
                    "before_d": f"lag(d) OVER {beside}",
                    **{f"before_{name}": f"lag({name}) OVER {beside}" for name in tracked},
                }
            ),
            Step({"a": _flag(f"d = 0 AND (coalesce(before_d, 1) = 1 OR {differs})")}),
            Step(
                {
                    "next_d": f"lead(d) OVER {beside}",
                    "next_a": f"lead(a) OVER {beside}",
                    "next_q": f"lead(q) OVER {beside}",
                    **{f"next_{s}": f"lead({s}) OVER {beside}" for s in parts},
                    "r": f"sum(a) OVER {window}",
                }
            ),
            Step({"b": _flag("d = 0 AND (coalesce(next_d, 1) = 1 OR next_a = 1)")}),
            Step({name: f"last_value({of}) OVER {of_row}" for name, of in carried.items()}),
            Step(
                {
                    "op": f"CASE WHEN a = 1 AND old IS NOT NULL AND {is_same} AND {ends_alike} "
                    "THEN NULL WHEN a = 1 THEN 'U' WHEN old IS NOT NULL THEN 'D' END",
                    "m": _flag(f"o <> 0 AND (has_memory = 1 OR {needed})"),
                }
            ),
        ]

    def _keep_newest(self) -> list[Step]:
        rules = self.rules
        newest = f"row_number() OVER (PARTITION BY {self._keys} ORDER BY "
        newest += f"{self._in_order('DESC NULLS LAST')})"
        carried = {"tp": "p"}
        if rules.fills_nulls:
            carried |= {f"tf{i}": f"g{i}" for i in range(len(rules.values))}
            carried["last_z"] = f"max(z) OVER (PARTITION BY {self._keys})"
        names = [(f"v{i}", f"row_{name}") for i, name in enumerate(self._compared)]
        differs = _or(self._differ(*pair) for pair in names)
        is_new = "1 = 1" if rules.fills_nulls else "o = 3"
        is_new = f"{is_new} AND (old_row IS NULL OR {differs})"
        # Where the table has the sequence of a row, the memory is only needed for deleted keys.
        is_shown = "d = 0" if rules.stored_sequence is not None else "1 = 0"
        remembered = f"o = 3 AND turn = 1 AND NOT ({is_shown})"
        if rules.fills_nulls:
            remembered = "o <> 0 AND z = last_z"
        if not rules.remembers_equal:
            remembered = "1 = 0"
        return [
            Step({"turn": newest, **carried}),
            Step(
                {
                    "op": f"CASE WHEN turn = 1 AND d = 0 AND {is_new} THEN 'U' "
                    "WHEN turn = 1 AND d = 1 AND o = 3 AND old_row IS NOT NULL THEN 'D' END",
                    "m": _flag(f"t = 0 AND (({remembered}) OR (o <> 0 AND has_memory = 1))"),
                }
            ),
        ]

    def _differ(self, left: str, right: str) -> str:
        """Whether two values of one column differ; those that cannot be compared always do."""
        name = left.removeprefix("v").removeprefix("c")
        if f"c{name}" in self.opaque:
            return f"({left} IS NOT NULL OR {right} IS NOT NULL)"
        return f"{left} IS DISTINCT FROM {right}"

    @property
    def old(self) -> str:
        """The column that carries the row of the table that a row replaces."""
        return "old" if self.rules.keeps_history else "old_row"


_WHOLE = "ROWS BETWEEN UNBOUNDED PRECEDING AND UNBOUNDED FOLLOWING"


def _numbered(letter: str, count: int) -> list[str]:
    return [f"{letter}{i}" for i in range(count)]


def _flag(condition: str) -> str:
    return f"CASE WHEN {condition} THEN 1 ELSE 0 END"


def _any(condition: str, partition: str) -> str:
    return f"max({_flag(condition)}) OVER (PARTITION BY {partition})"


def _or(conditions: Iterable[str]) -> str:
    return " OR ".join(conditions) or "1 = 0"


def _and(conditions: Iterable[str]) -> str:
    return " AND ".join(conditions) or "1 = 1"


def contradicting_events(
    count: int, examples: Sequence[object], *, keys: Sequence[str], table: str
) -> ConstraintViolation:
    """The error for events of one key and sequence that differ.

    `examples`: key and sequence of some of them.
    """
    return ConstraintViolation(
        f"{count} events have the key ({', '.join(keys)}) and the sequence of another one, and "
        "differ from it, so the result would depend on which came last: give sequence_by a column "
        "(or several) that orders the events of a key, or pass on_equal_sequence='last' to let the "
        "later one count",
        table=table,
        examples=tuple(map(repr, examples[:MAX_EXAMPLES])),
    )


def null_in_events(
    column: str, count: int, examples: Sequence[object], *, table: str
) -> ConstraintViolation:
    """The error for events without a key or a sequence."""
    return ConstraintViolation(
        f"{count} events have a null in {column}, and keys and sequences of events are never null: "
        "correct the source, or leave these rows out",
        table=table,
        column=column,
        examples=tuple(map(repr, examples[:MAX_EXAMPLES])),
    )


def late_snapshot(sequence: object, newest: object, *, table: str) -> ConstraintViolation:
    """The error for a snapshot that is older than one that the table has."""
    return ConstraintViolation(
        f"the snapshot of {sequence!r} is older than that of {newest!r}, which the table has "
        "already, and the changes between two snapshots are only known in their order: leave it "
        "out, or replace the rows of the table by all snapshots (overwrite the table, and apply "
        "them again)",
        table=table,
    )


def check_orderable(data_type: DataType) -> None:
    """Refuse a sequence whose values have no order."""
    if not isinstance(data_type, StructType):
        if str(data_type) in ("variant", "void") or hasattr(data_type, "key_type"):
            raise InvalidArgument(
                f"sequence_by has the type {data_type}, whose values have no order: name a number, "
                "a time or a text"
            )
        return
    for field in data_type:
        check_orderable(field.data_type)
