"""Slices: named parts of a table that a statement keeps to.

A statement with `within=slice` touches the rows of the slice alone: it replaces, merges or checks
for those, refuses new rows outside of them, and its reads, for conflicts with concurrent commits,
are those of the slice.
"""

from __future__ import annotations

import typing
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from datetime import UTC, date, datetime, timedelta
from itertools import groupby
from typing import TYPE_CHECKING, Any, TypeAlias, cast

import msgspec
from msgspec.structs import replace

from dagster_delta.engines import rows_of_parts
from dagster_delta.errors import InvalidArgument, SchemaMismatch
from dagster_delta.evolution.column_rules import check_column_types
from dagster_delta.protocol.schema import StructType
from dagster_delta.sql.conditions import (
    NEVER,
    NoConditionError,
    all_of,
    any_of,
    compare,
    constant,
    find_column,
    is_in,
    is_null,
    to_expression,
    to_sql,
)
from dagster_delta.sql.constraint import Constraint
from dagster_delta.sql.expressions import SqlExpression
from dagster_delta.sql.typed import Column, Literal, Typed, with_paths

if TYPE_CHECKING:
    from dagster_delta.table.read.scan import Scan
    from dagster_delta.table.read.snapshot import Snapshot

IfPresent = typing.Literal["replace", "skip", "fail"]
"""What a part of a slice gets that has rows: it is replaced, stays as it is, or is an error."""

_MAX_NAMED = 5


class Range(msgspec.Struct, frozen=True):
    """The values from `start` to before `end`, both of the type of their column.

    Examples:
        Range(datetime(2026, 1, 1, 7, tzinfo=UTC), datetime(2026, 1, 1, 8, tzinfo=UTC))
    """

    start: Any
    end: Any


class ColumnRows(msgspec.Struct, frozen=True):
    """The rows with some values of one column."""

    column: str
    """Name, or dotted path of a field of a struct."""
    values: Sequence[object] = ()
    """Values of the type of the column; None is null."""
    ranges: Sequence[Range] = ()
    is_key: bool = False
    """Whether each part has one value, so that the column can partition a table."""


Box: TypeAlias = Sequence[ColumnRows]
"""The rows that are in all of some `ColumnRows`."""


class Slice(msgspec.Struct, frozen=True):
    """Part of a table: the rows of one or more named parts.

    Examples:
        table.overwrite(rows, within=Slice.of({"2026-01-01": {"day": date(2026, 1, 1)}}))
    """

    name: str
    """Of the whole, for messages."""
    parts: tuple[str, ...]
    """The names of the parts."""
    find_boxes: Callable[[tuple[str, ...], StructType], Sequence[Box]]
    """From names of parts, and the schema of a table, to the boxes whose union they are."""

    @classmethod
    def of(cls, parts: Mapping[str, Mapping[str, object]], *, name: str | None = None) -> Slice:
        """A slice by the values that its rows have.

        Args:
            parts: by the name of each part: from columns to the value, the `Range`, or a list of
                either that its rows have, all of the type of the column; None is null.
            name: of the whole, for messages; by default made of the names of the parts.

        Raises:
            InvalidArgument: there is no part, or one without columns.

        Examples:
            Slice.of({"de": {"country": "de"}, "nordic": {"country": ["dk", "no", "se"]}})
            Slice.of({"7 o'clock": {"at": Range(datetime(2026, 1, 1, 7), datetime(2026, 1, 1, 8))}})
        """
        if not parts or not all(isinstance(part, Mapping) and part for part in parts.values()):
            raise InvalidArgument(
                "a slice has at least one part, and each part has a column, as in "
                "Slice.of({'de': {'country': 'de'}})"
            )
        found = {
            part: tuple(_rows_of(*item) for item in columns.items())
            for part, columns in parts.items()
        }
        named = name or f"the slice {_first_names(tuple(parts))}"
        return cls(
            named, tuple(parts), lambda names, _: _joined_boxes(map(found.__getitem__, names))
        )

    def narrowed(self, parts: Iterable[str]) -> Slice:
        """Some of the parts.

        Raises:
            InvalidArgument: the slice has no part of that name.
        """
        chosen = frozenset(parts)
        if unknown := chosen.difference(self.parts):
            raise InvalidArgument(
                f"{_first_names(sorted(unknown))} is not a part of {self.name}, which has "
                f"{_first_names(self.parts)}"
            )
        return replace(self, parts=tuple(part for part in self.parts if part in chosen))

    def condition(self, schema: StructType) -> SqlExpression:
        """The condition that is true exactly for the rows of the slice.

        Raises:
            SchemaMismatch: the schema lacks a column of the slice.
            InvalidArgument: a value has no literal, or not the type of its column.
        """
        return to_expression(self._typed(schema), schema)

    def sql(self, schema: StructType, *, alias: str | None = None) -> str:
        """The Spark SQL of `condition`; `alias` is a name of the table before its columns."""
        condition = self._typed(schema)
        if alias is not None:
            condition = with_paths(condition, lambda path: (alias, *path))
        return to_sql(condition)

    def scan(
        self, snapshot: Snapshot, columns: Sequence[str] | None = None, where: str | None = None
    ) -> Scan:
        """A read of the rows of the slice in a version of a table; arguments and errors as those of
        `Snapshot.scan`.
        """
        condition = self.condition(snapshot.schema)
        if where is None:
            return snapshot.scan(columns, condition)
        # The filter may end with a comment.
        return snapshot.scan(columns, f"({where}\n) AND ({condition.sql})")

    def constraint(self, schema: StructType) -> Constraint:
        """What every new row satisfies."""
        return Constraint(self.name, self.sql(schema), is_partition=True, is_slice=True)

    def key_columns(self, schema: StructType) -> tuple[str, ...]:
        """The columns with one value in each part. They partition a new table: a column with a
        range of values (a timestamp, the days of a month) would make a directory per value.
        """
        if schema.fields:
            # The columns of the slice are asked for their types next.
            check_column_types(schema)
        boxes = [
            {rows.column.strip("`") for rows in box if rows.is_key}
            for box in self.find_boxes(self.parts, schema)
        ]
        first = self.find_boxes(self.parts, schema)[0] if boxes else ()
        columns = (
            schema.get(rows.column.strip("`"))
            for rows in first
            if all(rows.column.strip("`") in keys for keys in boxes)
        )
        distinct = tuple(dict.fromkeys(field.name for field in columns if field is not None))
        # A table needs a column that is not a partition column.
        return distinct if len(distinct) < len(schema) else ()

    def rows_of(self, frames: Mapping[str, object]) -> object:
        """The rows of all frames, to be written within this slice; each row has to be in the part
        that has the frame's name.

        Args:
            frames: rows by the name of a part, in any form that an append takes but Spark frames.

        Raises:
            InvalidArgument: the slice has no such part, or a frame is none of these forms.
            SchemaMismatch: the frames have other columns, or no types hold the values of all.
            PartitionMismatch: while the rows are read: one is outside of its part.
        """
        chosen = {part: self.narrowed((part,)) for part in frames}
        return rows_of_parts(frames, lambda part, schema: chosen[part].condition(schema))

    def present_parts(self, snapshot: Snapshot) -> tuple[str, ...]:
        """The parts that have rows in a version of a table."""
        return tuple(part for part in self.parts if self.narrowed((part,)).scan(snapshot).count())

    def _typed(self, schema: StructType) -> Typed:
        boxes = self.find_boxes(self.parts, schema)
        if not boxes:
            return NEVER
        return any_of(all_of(_column_condition(rows, schema) for rows in box) for box in boxes)


def resolve_column(name: str, schema: StructType, *, what: str = "the slice") -> Column:
    """The column that a slice names: by its name, quoted or not, or a dotted path.

    Raises:
        SchemaMismatch: there is none; `what` says where the name is from.
    """
    column = find_column((name.strip("`"),), schema)
    column = column or find_column(name.replace("`", "").split("."), schema)
    if column is None:
        known = (
            f"it must be one of {', '.join(schema.names)}"
            if len(schema)
            else "the data have none, and need them where they have no rows, too"
        )
        raise SchemaMismatch(f"{what} {name!r} names no column; {known}", column=name)
    return column


def join_ranges(ranges: Iterable[Range]) -> list[Range]:
    """The same values in ascending order, with ranges joined that touch or overlap."""
    joined: list[Range] = []
    for found in sorted(ranges, key=lambda found: _moment(found.start)):
        if joined and _moment(found.start) <= _moment(joined[-1].end):
            joined[-1] = Range(joined[-1].start, max(joined[-1].end, found.end, key=_moment))
        else:
            joined.append(found)
    return joined


def _moment(value: Any) -> Any:  # noqa: ANN401  of any type with an order
    """The value in an order: datetimes of one zone compare by wall clock, which is two instants in
    the hour that a clock change repeats.
    """
    if isinstance(value, datetime) and value.tzinfo is not None:
        return value.astimezone(UTC)
    return value


def _rows_of(column: str, given: object) -> ColumnRows:
    is_one = not isinstance(given, Collection) or isinstance(given, str | bytes)
    found = [given] if is_one else list(given)  # type: ignore[call-overload]
    ranges = tuple(one for one in found if isinstance(one, Range))
    for one in ranges:
        _check_range(column, one)
    try:
        join_ranges(ranges)
    except TypeError as error:
        raise InvalidArgument(f"the ranges of {column} have different types: {error}") from error
    # Values of numpy, as those of a column of pandas are.
    values = tuple(
        cast("Any", one).item() if type(one).__module__ == "numpy" else one
        for one in found
        if not isinstance(one, Range)
    )
    return ColumnRows(column, values, ranges, is_key=is_one and not ranges)


def _check_range(column: str, found: Range) -> None:
    try:
        has_values = _moment(found.start) < _moment(found.end)
    except TypeError:
        has_values = False
    if not has_values:
        raise InvalidArgument(
            f"the range of {column} from {found.start!r} to {found.end!r} has no values: its end "
            "has to be greater than its start, and of the same type"
        )


def _joined_boxes(boxes: Iterable[Box]) -> list[Box]:
    """The same rows in fewer boxes: neighbours that differ in the last column are one."""
    joined: list[Box] = []
    for (rest, _), alike in groupby(boxes, lambda box: (tuple(box[:-1]), box[-1].column)):
        last = [box[-1] for box in alike]
        both = ColumnRows(
            last[0].column,
            tuple(value for rows in last for value in rows.values),
            tuple(found for rows in last for found in rows.ranges),
            all(rows.is_key for rows in last),
        )
        joined.append((*rest, both))
    return joined


def _column_condition(rows: ColumnRows, schema: StructType) -> Typed:
    column = resolve_column(rows.column, schema)
    values = [value for value in rows.values if value is not None]
    found: list[Typed] = [is_null(column)] if len(values) < len(rows.values) else []
    if len(values) == 1:
        found.append(_compared(column, "=", values[0]))
    elif values:
        constants = [_literal(value, column) for value in values]
        try:
            found.append(is_in(column, constants))
        except NoConditionError as error:
            raise _misfit(values[0], column) from error
    found += [_within_range(column, one) for one in join_ranges(rows.ranges)]
    return any_of(found) if found else NEVER


def _within_range(column: Column, found: Range) -> Typed:
    """`column >= start AND column < end`."""
    if type(found.start) is date and found.end - found.start == timedelta(days=1):
        return _compared(column, "=", found.start)
    return all_of((_compared(column, ">=", found.start), _compared(column, "<", found.end)))


def _compared(column: Column, operator: str, value: object) -> Typed:
    try:
        return compare(column, operator, constant(value))
    except NoConditionError as error:
        raise _misfit(value, column) from error


def _literal(value: object, column: Column) -> Literal:
    try:
        return constant(value)
    except NoConditionError as error:
        raise _misfit(value, column) from error


def _misfit(value: object, column: Column) -> InvalidArgument:
    name = ".".join(column.path)
    return InvalidArgument(
        f"{value!r} cannot be a value of the column {name} of type {column.data_type}, by which "
        "the slice is made: give a value of that type",
        column=name,
    )


def _first_names(names: Sequence[str]) -> str:
    more = "" if len(names) <= _MAX_NAMED else f" and {len(names) - _MAX_NAMED} more"
    return ", ".join(names[:_MAX_NAMED]) + more
