"""The Spark SQL predicate that selects exactly the rows of some partitions.

The same predicate replaces a partition, checks every row that is written into it, and reads it
back. Its form depends on the type of the column that holds the partition:

| column          | static and dynamic keys | time windows                                       |
|-----------------|-------------------------|----------------------------------------------------|
| string          | `c IN (keys)`           | `c IN (keys)`: the key as the definition formats it |
| integers        | `c IN (numbers)`        | `c IN (digits of the keys)`: 2013, 201301, 20130131 |
| date            | `c IN (dates)`          | days of the window in its time zone                |
| timestamp       | `c IN (timestamps)`     | `c >= start AND c < end`, as instants              |
| timestamp_ntz   | `c IN (timestamps)`     | wall clock of the definition's time zone           |
| boolean,decimal | `c IN (values)`         | refused                                            |

Adjacent windows are joined; gaps between windows stay. A window that a column cannot distinguish
from its neighbour (an hour in a date column, the hour that a clock change repeats in a naive
timestamp) is refused: writing it would lose the neighbour's rows.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal, InvalidOperation
from functools import lru_cache
from itertools import chain
from typing import Any, TypeVar

from dagster import TimeWindow

from dagster_delta.errors import InvalidArgument, SchemaMismatch
from dagster_delta.orchestration.partitions.partitions import DimensionSlice, PartitionSelection
from dagster_delta.protocol.schema import DataType, DecimalType, PrimitiveType, StructType
from dagster_delta.sql.conditions import (
    NEVER,
    NoConditionError,
    all_of,
    any_of,
    compare,
    constant,
    find_column,
    is_in,
    to_expression,
    to_sql,
)
from dagster_delta.sql.expressions import SqlExpression
from dagster_delta.sql.typed import Column, Typed, with_paths

INTEGERS = frozenset({"byte", "short", "integer", "long"})
_NUMERIC_KEY = re.compile(r"[0-9]+([-/_:. T][0-9]+)*")

_T = TypeVar("_T", bound=date)


def partition_condition(selection: PartitionSelection, schema: StructType) -> SqlExpression:
    """The condition on `schema` that is true exactly for the rows of the selection."""
    return to_expression(_selected(selection, schema), schema)


def partition_predicate(
    selection: PartitionSelection, schema: StructType, *, alias: str | None = None
) -> str:
    """The Spark SQL of `partition_condition`; `alias` is a name of the table before its columns."""
    condition = _selected(selection, schema)
    if alias is not None:
        condition = with_paths(condition, lambda path: (alias, *path))
    return to_sql(condition)


def identity_values(dimension: DimensionSlice, schema: StructType) -> tuple[object, ...] | None:
    """The single value of the rows of every key of the slice, or None if a key is a range.

    If it is not None, the column can partition the table: one directory per key.
    """
    data_type = resolve_column(dimension.column, schema).data_type
    if dimension.windows is None:
        return _key_values(dimension, data_type)
    if data_type == PrimitiveType("string"):
        return dimension.keys
    if _is_integer(data_type):
        return tuple(_digits(key, dimension.column, data_type) for key in dimension.keys)
    if data_type == PrimitiveType("date"):
        days = [days_of_window(window) for window in dimension.windows]
        if all(start + timedelta(days=1) == end for start, end in days):
            return tuple(start for start, _ in days)
    return None


def resolve_column(expression: str, schema: StructType) -> Column:
    """The column that a `partition_expr` names."""
    whole = (expression.strip("`"),)
    column = find_column(whole, schema)
    column = column or find_column(expression.replace("`", "").split("."), schema)
    if column is None:
        known = (
            f"it must be one of {', '.join(schema.names)}"
            if len(schema)
            else "the data have none, and need them where they have no rows, too"
        )
        raise SchemaMismatch(
            f"partition_expr {expression!r} names no column; {known}",
            column=expression,
        )
    return column


def _selected(selection: PartitionSelection, schema: StructType) -> Typed:
    if not selection.boxes:
        return NEVER
    return any_of(
        all_of(_slice_condition(dimension, schema) for dimension in box) for box in selection.boxes
    )


def _slice_condition(dimension: DimensionSlice, schema: StructType) -> Typed:
    column = resolve_column(dimension.column, schema)
    data_type, windows = column.data_type, dimension.windows or ()
    is_range_of_days = dimension.windows is not None and data_type == PrimitiveType("date")
    values = None if is_range_of_days else identity_values(dimension, schema)
    if values is not None:
        return _one_of(column, dimension, values)
    match data_type:
        case PrimitiveType("timestamp"):
            return any_of(_between(column, *bounds) for bounds in _joined(windows, _instant))
        case PrimitiveType("timestamp_ntz"):
            joined = _joined(windows, _instant)
            _check_wall_clock(joined, dimension.column)
            walls = ([moment.replace(tzinfo=None) for moment in bounds] for bounds in joined)
            return any_of(_between(column, *bounds) for bounds in walls)
        case PrimitiveType("date"):
            return _dates(column, dimension)
        case _:
            raise InvalidArgument(
                f"a column of type {data_type} cannot hold time partitions; partition_expr must "
                "name a timestamp, timestamp_ntz, date, string or integer column",
                column=dimension.column,
            )


def _one_of(column: Column, dimension: DimensionSlice, values: Sequence[object]) -> Typed:
    """The rows with a value of the keys of a slice."""
    if len(values) == 1:
        return _compared(column, "=", values[0])
    constants = []
    for key, value in zip(dimension.keys, values, strict=True):
        with _fitting(key, column):
            constants.append(constant(value))
    with _fitting(dimension.keys[0], column):
        return is_in(column, constants)


def _between(column: Column, start: date, end: date) -> Typed:
    """`column >= start AND column < end`."""
    return all_of((_compared(column, ">=", start), _compared(column, "<", end)))


def _compared(column: Column, operator: str, value: object) -> Typed:
    with _fitting(str(value), column):
        return compare(column, operator, constant(value))


@contextmanager
def _fitting(key: str, column: Column) -> Iterator[None]:
    """Refuse a key that makes no condition on a column."""
    try:
        yield
    except NoConditionError as error:
        raise _unfit(key, ".".join(column.path), column.data_type) from error


def _joined(ranges: Iterable[tuple[_T, _T]], moment: Callable[[_T], Any]) -> list[tuple[_T, _T]]:
    """Half-open ranges, with those joined that touch or overlap."""
    joined: list[tuple[_T, _T]] = []
    for start, end in sorted(ranges, key=lambda bounds: moment(bounds[0])):
        if joined and moment(start) <= moment(joined[-1][1]):
            first, last = joined[-1]
            joined[-1] = (first, max(last, end, key=moment))
        else:
            joined.append((start, end))
    return joined


def _instant(value: datetime) -> datetime:
    return value.astimezone(UTC)


def _check_wall_clock(windows: Iterable[tuple[datetime, datetime]], column: str) -> None:
    for boundary in chain.from_iterable(windows):
        if boundary.fold:
            raise InvalidArgument(
                f"the clock goes back around {boundary.replace(tzinfo=None)} in "
                f"{boundary.tzinfo}, and a timestamp_ntz column cannot distinguish the "
                "repeated hour from the one before it; write both partitions in one run, or "
                "use a timestamp column or partitions of UTC",
                column=column,
            )


def _dates(column: Column, dimension: DimensionSlice) -> Typed:
    return any_of(
        _compared(column, "=", start)
        if start + timedelta(days=1) == end
        else _between(column, start, end)
        for start, end in _joined(_whole_days(dimension), date.toordinal)
    )


def _whole_days(dimension: DimensionSlice) -> list[tuple[date, date]]:
    """The days of the windows. A window of a day or longer may begin at any hour: it means the days
    on which it begins. Shorter windows must add up to whole days.
    """
    days = [days_of_window(window) for window in dimension.windows or ()]
    if all(start < end for start, end in days):
        return days
    joined = _joined(dimension.windows or (), _instant)
    for start, end in joined:
        if not (_is_midnight(start) and _is_midnight(end)):
            raise InvalidArgument(
                f"the partition from {start} to {end} is a part of a day, and a "
                "date column cannot distinguish it from the other parts; partition_expr must name "
                "a timestamp, timestamp_ntz or string column",
                column=dimension.column,
            )
    return [days_of_window(TimeWindow(start, end)) for start, end in joined]


def days_of_window(window: TimeWindow) -> tuple[date, date]:
    """The days that a time window means in a date column, half open; none if it is shorter than a
    day.
    """
    if window.end.replace(tzinfo=None) - window.start.replace(tzinfo=None) < timedelta(days=1):
        return window.start.date(), window.start.date()
    return window.start.date(), window.end.date()


def _is_midnight(value: datetime) -> bool:
    return value.time() == time(0)


def _is_integer(data_type: DataType) -> bool:
    return isinstance(data_type, PrimitiveType) and data_type.name in INTEGERS


def _key_values(dimension: DimensionSlice, data_type: DataType) -> tuple[object, ...]:
    """The value of each key of a dimension without time. Two keys with one value, such as 1 and 01
    in an integer column, are refused: each would replace the rows of the other.
    """
    values = tuple(_parse_key(key, data_type, dimension.column) for key in dimension.keys)
    if data_type == PrimitiveType("string"):
        return values
    given = _keys_by_value(dimension.keys, data_type)
    known = _keys_by_value(tuple(dimension.known_keys()), data_type)
    for key, value in zip(dimension.keys, values, strict=True):
        for other in (*given[value], *known.get(value, ())):
            if other != key:
                raise InvalidArgument(
                    f"the partition keys {key!r} and {other!r} are the same value of the column "
                    f"{dimension.column} of type {data_type}, so that each would replace the rows "
                    "of the other: remove one of them, or name a string column in partition_expr",
                    column=dimension.column,
                )
    return values


@lru_cache(maxsize=16)
def _keys_by_value(keys: tuple[str, ...], data_type: DataType) -> dict[object, list[str]]:
    """Keys that cannot be values of the type are left out: no row has them."""
    found: dict[object, list[str]] = {}
    for key in keys:
        try:
            found.setdefault(_parse_key(key, data_type, ""), []).append(key)
        except InvalidArgument:
            continue
    return found


def _digits(key: str, column: str, data_type: DataType) -> int:
    """`2013-01-31` as 20130131: a day, a month or a year in an integer column."""
    # A key with the name of a month would lose it, and mean the whole year.
    if not _NUMERIC_KEY.fullmatch(key):
        raise _unfit(key, column, data_type)
    return int(re.sub(r"[^0-9]", "", key))


def _parse_key(key: str, data_type: DataType, column: str) -> object:
    try:
        match data_type:
            case PrimitiveType("string"):
                return key
            case PrimitiveType("date"):
                return date.fromisoformat(key)
            case PrimitiveType("timestamp"):
                value = datetime.fromisoformat(key)
                return value if value.tzinfo else value.replace(tzinfo=UTC)
            case PrimitiveType("timestamp_ntz"):
                value = datetime.fromisoformat(key)
                if value.tzinfo is None:
                    return value
            case PrimitiveType("boolean"):
                return {"true": True, "false": False}[key.lower()]
            case DecimalType():
                number = Decimal(key)
                if number.is_finite():
                    return number
            case _ if _is_integer(data_type):
                return int(key)
            case _:
                pass
    except (ValueError, KeyError, InvalidOperation) as error:
        raise _unfit(key, column, data_type) from error
    raise _unfit(key, column, data_type)


def _unfit(key: str, column: str, data_type: DataType) -> InvalidArgument:
    return InvalidArgument(
        f"partition key {key!r} cannot be a value of type {data_type}, which is the type of the "
        "column that partition_expr names; name another column, or change the partition keys",
        column=column,
    )
