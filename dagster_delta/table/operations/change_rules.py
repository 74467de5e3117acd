"""The options of AUTO CDC, and the rules that they make for some events and a table.

Source: Spark Declarative Pipelines, AUTO CDC; asked of Apache Spark 4.3.0.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, get_args

import msgspec
from msgspec.structs import replace

from dagster_delta.engines.statements.change_replay import (
    EventOrder,
    ReplayRules,
    check_orderable,
)
from dagster_delta.engines.statements.merge_clauses import ClauseText
from dagster_delta.errors import InvalidArgument, SchemaMismatch, UnsupportedExpression
from dagster_delta.nearest_name import nearest_name
from dagster_delta.protocol.features.column_values import filled_columns
from dagster_delta.protocol.schema import StructField, StructType, fold_name
from dagster_delta.sql.expressions import parse_expression
from dagster_delta.sql.filters import check_repeatable
from dagster_delta.sql.typed import Column, Refused, Typed, quote
from dagster_delta.sql.typed import Literal as Constant
from dagster_delta.sql.types import VOID
from dagster_delta.table.operations.merge_statement import MergeStatement, merged_configuration
from dagster_delta.table.read.snapshot import Snapshot

AUTO_CDC_PROPERTY = "dagsterDelta.autoCdc"
"""Table property: how a table follows change events, which later runs may not change."""

OnEqualSequence = Literal["fail", "last"]
START_AT, END_AT = "__START_AT", "__END_AT"


class CdcOptions(msgspec.Struct, frozen=True, kw_only=True):
    """How change events become rows; names are those of Spark and Databricks."""

    keys: Sequence[str]
    """Columns that identify a row."""
    sequence_by: str | Sequence[str]
    """Column of the events that orders those of a key, or Spark SQL over an event; several order
    one after another."""
    stored_as_scd_type: int | str = 1
    """1: the newest row of each key; 2: a row for each state of it."""
    apply_as_deletes: str | None = None
    """Spark SQL over an event: whether it is a delete; null is none."""
    apply_as_truncates: str | None = None
    """Spark SQL over an event: whether it deletes all rows before it; of type 1 alone."""
    ignore_null_updates: bool = False
    """Whether a null in an event leaves the column as it is."""
    column_list: Sequence[str] | None = None
    """The columns of the events that the table has; None: all."""
    except_column_list: Sequence[str] | None = None
    """Instead: those that it does not have."""
    track_history_column_list: Sequence[str] | None = None
    """Columns whose changes begin a new row, of type 2; None: all but the sequence."""
    track_history_except_column_list: Sequence[str] | None = None
    """Instead: columns whose changes begin none."""
    start_at: str = START_AT
    end_at: str = END_AT
    """Names of the columns for the first sequence of a row, and the first one after it."""
    on_equal_sequence: OnEqualSequence = "fail"
    """What two differing events of one key and sequence do: `fail`, or the `last` one counts."""
    forget_before: str | None = None
    """Spark SQL of a sequence: what is remembered of events before it is forgotten."""
    from_snapshots: bool = False
    """Whether the rows are whole snapshots of the source, one for each sequence."""

    def __post_init__(self) -> None:
        if problem := self._find_problem():
            raise InvalidArgument(problem)

    @property
    def keeps_history(self) -> bool:
        """Whether the table is of type 2."""
        return str(self.stored_as_scd_type) == "2"

    @property
    def sequence_parts(self) -> tuple[str, ...]:
        """The columns, or expressions, that order the events of a key."""
        return _names_of(self.sequence_by)

    @property
    def recorded(self) -> str:
        """What later runs may not change, as the text of a table property."""
        track = {
            "only": self.track_history_column_list,
            "except": self.track_history_except_column_list,
        }
        said = {
            "keys": sorted(map(fold_name, self.keys)),
            "stored_as_scd_type": 2 if self.keeps_history else 1,
            "ignore_null_updates": self.ignore_null_updates,
            **{
                f"track_{kind}": sorted(map(fold_name, names))
                for kind, names in track.items()
                if names
            },
            **({"bounds": [self.start_at, self.end_at]} if self.keeps_history else {}),
        }
        return msgspec.json.encode(said).decode()

    def _find_problem(self) -> str | None:
        if texts := [name for name in ("keys", *_LISTS) if isinstance(getattr(self, name), str)]:
            return f"{texts[0]} is a list of columns; write [{getattr(self, texts[0])!r}]"
        if not self.keys:
            return "AUTO CDC takes keys: the columns that identify a row"
        if not self.sequence_parts:
            return "AUTO CDC takes sequence_by: the column that orders the events of a key"
        if str(self.stored_as_scd_type) not in ("1", "2"):
            return f"stored_as_scd_type is 1 or 2, not {self.stored_as_scd_type!r}"
        if self.on_equal_sequence not in get_args(OnEqualSequence):
            return f"on_equal_sequence is 'fail' or 'last', not {self.on_equal_sequence!r}"
        for one, other in (_LISTS[:2], _LISTS[2:]):
            if getattr(self, one) is not None and getattr(self, other) is not None:
                return f"AUTO CDC takes {one} or {other}, not both"
        return self._find_contradiction()

    def _find_contradiction(self) -> str | None:
        """What contradicts the type of the table, or the kind of its source."""
        tracks = self.track_history_column_list or self.track_history_except_column_list
        if tracks and not self.keeps_history:
            return "columns are tracked with stored_as_scd_type=2: type 1 keeps no history"
        if self.apply_as_truncates is not None and self.keeps_history:
            return "apply_as_truncates is for stored_as_scd_type=1: a history is not truncated"
        if self.from_snapshots:
            for name in ("apply_as_deletes", "apply_as_truncates", "ignore_null_updates"):
                if getattr(self, name):
                    return f"a snapshot has rows, and no events: leave out {name}"
        return None


_LISTS = (
    "column_list",
    "except_column_list",
    "track_history_column_list",
    "track_history_except_column_list",
)


def _names_of(names: str | Sequence[str]) -> tuple[str, ...]:
    return (names,) if isinstance(names, str) else tuple(names)


class RuleBook(msgspec.Struct, frozen=True):
    """What the options mean for events and a version of a table."""

    options: CdcOptions
    source: StructType
    """Columns of the events."""
    statement: MergeStatement
    snapshot: Snapshot | None
    zone: str
    """Time zone of the statement."""

    def rules(self) -> ReplayRules:
        """The rules, with the columns as they will be. Raises as `apply_changes` does."""
        options, given = self.options, self._selected()
        keys = self._named("keys", options.keys, given)
        order = self._order()
        check_orderable(order.data_type)
        self._check_recorded()
        self._check_bounds(given)
        self._check_slice(given, keys)
        rules = ReplayRules(
            keys=tuple(map(self._spelled, keys)),
            columns=StructType(
                tuple(replace(field, name=self._spelled(field.name)) for field in given)
            ),
            tracked=frozenset(),
            order=order,
            keeps_history=options.keeps_history,
            bounds=(self._spelled(options.start_at), self._spelled(options.end_at)),
            replaces_equal=options.on_equal_sequence == "last",
            fills_nulls=options.ignore_null_updates,
            remembers_equal=not options.from_snapshots,
            deletes=options.apply_as_deletes,
            truncates=options.apply_as_truncates,
        )
        return replace(self._as_table(rules), tracked=self._tracked(rules))

    def _order(self) -> EventOrder:
        """The sequence of the events, with its type."""
        given = self.options.sequence_parts
        sql, parts = [], []
        for text in given:
            field = self.source.get(text)
            sql.append(text if field is None else quote(field.name))
            parts.append(self._typed_sequence(text, sql[-1]))
        fields = [_field_name(part, index) for index, part in enumerate(parts)]
        if len(parts) == 1:
            fields, parts = _fields_of_struct(parts[0])
        types = [part.data_type for part in parts]
        kinds = [data_type for data_type in types if data_type is not None and data_type != VOID]
        if len(kinds) < len(parts):
            raise UnsupportedExpression(
                f"the type of sequence_by {', '.join(given)} is not known before Spark has "
                "computed it: add it to the events as a column, and name that"
            )
        data_type = kinds[0]
        if fields:
            named = zip(fields, kinds, strict=True)
            data_type = StructType(tuple(StructField(name, kind) for name, kind in named))
        return EventOrder(given, tuple(sql), tuple(parts), tuple(fields), data_type)

    def _typed_sequence(self, text: str, sql: str) -> Typed:
        try:
            expression = parse_expression(sql, self.source, self.zone)
        except (InvalidArgument, SchemaMismatch) as error:
            if text.isidentifier():
                self._named("sequence_by", [text], self.source)
            error.message = (
                f"sequence_by {text!r} is neither a column of the events nor Spark SQL over them: "
                f"{error.message}"
            )
            raise
        check_repeatable(expression, "sequence_by")
        return expression.typed

    def _as_table(self, rules: ReplayRules) -> ReplayRules:
        """The rules with the types of the table, and those of its columns that events lack."""
        if self.snapshot is None or not self.snapshot.exists:
            return rules
        current = self.snapshot.configuration
        asked = replace(
            self.statement,
            clauses=(
                ClauseText(
                    "matched", "update", None, {quote(name): name for name in rules.rows.names}
                ),
            ),
        )
        planned = merged_configuration(current, rules.rows, asked).schema
        fields = [
            replace(field, data_type=planned.field(field.name).data_type) for field in rules.columns
        ]
        if rules.keeps_history:
            # A row that only gets another end keeps its values.
            left_out = {*filled_columns(current), *rules.bounds, *rules.columns.names}
            fields += [field for field in current.schema if field.name not in left_out]
        return replace(
            rules, columns=StructType(tuple(StructField(f.name, f.data_type) for f in fields))
        )

    def _selected(self) -> StructType:
        """The columns of the events that the table has."""
        options, source = self.options, self.source
        kept = list(source.names)
        if options.column_list is not None:
            kept = list(self._named("column_list", options.column_list, source))
        if options.except_column_list is not None:
            left_out = self._named("except_column_list", options.except_column_list, source)
            kept = [name for name in kept if name not in left_out]
        for key in self._named("keys", options.keys, source):
            if key not in kept:
                raise InvalidArgument(
                    f"the key {key} is not among the columns of the table: name it in column_list, "
                    "or take it out of except_column_list"
                )
        return StructType(tuple(source.field(name) for name in kept))

    def _named(self, option: str, names: Sequence[str], columns: StructType) -> tuple[str, ...]:
        """The columns that an option names, as the events spell them."""
        found = []
        for name in names:
            field = columns.get(name)
            if field is None:
                near = nearest_name(name, columns.names)
                hint = f"did you mean {near!r}?" if near else f"they are {', '.join(columns.names)}"
                raise InvalidArgument(
                    f"{option} names {name!r}, which is no column of the events: {hint}"
                )
            found.append(field.name)
        return tuple(found)

    def _spelled(self, name: str) -> str:
        field = None if self.snapshot is None else self.snapshot.schema.get(name)
        return name if field is None else field.name

    def _tracked(self, rules: ReplayRules) -> frozenset[str]:
        """The columns whose changes begin a row. A column that the events have no more is one of
        them, or rows that differ in it would become one.
        """
        options, rows = self.options, self._as_table(rules)
        others = [field.name for field in rows.values]
        of_sequence = {self._spelled(name) for name in rules.order.columns}
        for option in ("track_history_column_list", "track_history_except_column_list"):
            names = getattr(options, option)
            if names is None:
                continue
            named = {self._spelled(name) for name in self._named(option, names, rows.columns)}
            if keys := named.intersection(rules.keys):
                raise InvalidArgument(f"{option} names {min(keys)!r}, which is a key")
            if option == "track_history_column_list":
                return frozenset(named)
            return frozenset(name for name in others if name not in named | of_sequence)
        return frozenset(name for name in others if name not in of_sequence)

    def _check_slice(self, given: StructType, keys: Sequence[str]) -> None:
        """Refuse a slice that a key may leave: events of other slices would matter to its rows."""
        within = self.statement.within
        if within is None:
            return
        others = {path[0] for path in within.condition(given).references} - {*keys}
        takes_all = self.options.from_snapshots or self.options.apply_as_truncates is not None
        if not others and not takes_all:
            return
        what = "snapshots and truncates are about all rows"
        if others:
            what = f"{min(others)} is none of the keys, so a row of another partition may match"
        raise InvalidArgument(
            f"change events are applied to {within.name} alone, and {what}: name the columns of "
            "the partitions among the keys, or leave the asset without partitions"
        )

    def _check_recorded(self) -> None:
        """Refuse other rules than those that the table was made by."""
        if self.snapshot is None:
            return
        recorded = self.snapshot.metadata.configuration.get(AUTO_CDC_PROPERTY)
        if recorded is None or recorded == self.options.recorded:
            return
        then, now = (msgspec.json.decode(text) for text in (recorded, self.options.recorded))
        changed = [
            f"{name} was {then.get(name)!r} and is {now.get(name)!r}"
            for name in {**then, **now}
            if then.get(name) != now.get(name)
        ]
        raise InvalidArgument(
            f"the table follows change events in another way: {', '.join(changed)}. Apply the "
            "events to another table, or overwrite this one and unset its property "
            f"{AUTO_CDC_PROPERTY}, and apply all events again",
            table=self.snapshot.store.location.uri,
            version=self.snapshot.version,
        )

    def _check_bounds(self, given: StructType) -> None:
        options, snapshot = self.options, self.snapshot
        bounds = (options.start_at, options.end_at)
        if not options.keeps_history:
            return
        if fold_name(bounds[0]) == fold_name(bounds[1]):
            raise InvalidArgument(f"start_at and end_at have the same name {bounds[0]!r}")
        for name in bounds:
            if given.get(name) is not None:
                raise InvalidArgument(
                    f"the events have a column {name}, which is that of a bound of the rows: leave "
                    "it out with except_column_list, or name the bounds with start_at and end_at"
                )
            if snapshot is not None and snapshot.exists and snapshot.schema.get(name) is None:
                raise InvalidArgument(
                    f"the table has no column {name}, so it is no history: name its columns with "
                    "start_at and end_at, or apply the events to a new table",
                    table=snapshot.store.location.uri,
                    version=snapshot.version,
                )


def _field_name(part: Typed, index: int) -> str:
    """The name that Spark's `struct` gives a field."""
    return part.path[-1] if isinstance(part, Column) else f"col{index + 1}"


def _fields_of_struct(typed: Typed) -> tuple[list[str], list[Typed]]:
    """Names and values of a `struct(…)`; no names and the value itself if it is another value."""
    match typed:
        case Refused("the function struct", operands):
            names = [_field_name(part, index) for index, part in enumerate(operands)]
        case Refused("the function named_struct", values):
            names = [str(name.value) for name in values[::2] if isinstance(name, Constant)]
            operands = values[1::2]
        case _:
            return [], [typed]
    return names, list(operands)
