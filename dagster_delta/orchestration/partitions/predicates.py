"""Partition keys as values and ranges of columns: the slice of a table that some partitions are.

The same slice is replaced, checks every row that is written into it, and is read back. Its form
depends on the type of the column that holds the partition:

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
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal, InvalidOperation
from functools import lru_cache

from dagster import TimeWindow

from dagster_delta.errors import InvalidArgument
from dagster_delta.orchestration.metadata_keys import first_names
from dagster_delta.orchestration.partitions.partitions import (
    DimensionSlice,
    PartitionSelection,
    SelectPartitions,
    owned_selection,
)
from dagster_delta.protocol.schema import DataType, DecimalType, PrimitiveType, StructType
from dagster_delta.table.slices import (
    Box,
    ColumnRows,
    Range,
    Slice,
    join_ranges,
    resolve_column,
)

INTEGERS = frozenset({"byte", "short", "integer", "long"})
_NUMERIC_KEY = re.compile(r"[0-9]+([-/_:. T][0-9]+)*")
_MAX_LONG = 2**63 - 1
_MAX_DIGITS = 38
"""Of a decimal in Spark SQL."""


def partition_slice(select: SelectPartitions, keys: Iterable[str], *, asset: str) -> Slice:
    """The rows of some partitions of an asset; each is a part with the name of its key."""
    chosen = select(keys)
    plural = "s" if len(chosen.keys) > 1 else ""
    return Slice(
        f"the partition{plural} {first_names(chosen.keys)} of the run of {asset}",
        chosen.keys,
        lambda parts, schema: find_boxes(chosen if parts == chosen.keys else select(parts), schema),
    )


def owned_slice(owned_rows: Mapping[str, Sequence[str]] | None, *, asset: str) -> Slice | None:
    """The rows that an asset without partitions owns; None for all."""
    owned = owned_selection(owned_rows)
    if owned is None:
        return None
    name = f"the rows that {asset} owns by owned_rows"
    return Slice(name, ("",), lambda parts, schema: find_boxes(owned, schema) if parts else ())


def find_boxes(selection: PartitionSelection, schema: StructType) -> list[Box]:
    """The rows of some partitions in a table with a schema."""
    return [[_column_rows(dimension, schema) for dimension in box] for box in selection.boxes]


def identity_values(dimension: DimensionSlice, schema: StructType) -> tuple[object, ...] | None:
    """The single value of the rows of every key of the slice, or None if a key is a range.

    If it is not None, the column can partition the table: one directory per key.
    """
    data_type = resolve_column(dimension.column, schema, what="partition_expr").data_type
    if dimension.windows is None:
        return _key_values(dimension, data_type)
    if data_type == PrimitiveType("string"):
        return dimension.keys
    if _is_integer(data_type):
        return tuple(_parse_digits(key, dimension.column, data_type) for key in dimension.keys)
    if data_type == PrimitiveType("date"):
        days = [days_of_window(window) for window in dimension.windows]
        if all(start + timedelta(days=1) == end for start, end in days):
            return tuple(start for start, _ in days)
    return None


def values_of_keys(keys: Iterable[str], data_type: DataType) -> frozenset[object]:
    """The values of partition keys without time in a column; keys that cannot be values of its type
    have none.
    """
    return frozenset(_keys_by_value(tuple(keys), data_type))


def _column_rows(dimension: DimensionSlice, schema: StructType) -> ColumnRows:
    column = dimension.column
    data_type = resolve_column(column, schema, what="partition_expr").data_type
    values = identity_values(dimension, schema)
    windows = [Range(*window) for window in dimension.windows or ()]
    match data_type:
        case PrimitiveType("date") if windows:
            days = _whole_days(dimension)
            return ColumnRows(column, ranges=days, is_key=values is not None)
        case _ if values is not None:
            return ColumnRows(column, values, is_key=True)
        case PrimitiveType("timestamp"):
            return ColumnRows(column, ranges=windows)
        case PrimitiveType("timestamp_ntz"):
            joined = join_ranges(windows)
            _check_wall_clock(joined, column)
            return ColumnRows(column, ranges=[_wall_clock(window) for window in joined])
    raise InvalidArgument(
        f"a column of type {data_type} cannot hold time partitions; partition_expr must name a "
        "timestamp, timestamp_ntz, date, string or integer column",
        column=column,
    )


def _wall_clock(window: Range) -> Range:
    return Range(window.start.replace(tzinfo=None), window.end.replace(tzinfo=None))


def _check_wall_clock(windows: Iterable[Range], column: str) -> None:
    for window in windows:
        for boundary in (window.start, window.end):
            if boundary.fold or _is_within_repeated_hour(boundary):
                raise InvalidArgument(
                    f"the clock goes back around {boundary.replace(tzinfo=None)} in "
                    f"{boundary.tzinfo}, and a timestamp_ntz column cannot distinguish the "
                    "repeated hour from the one before it; write both partitions in one run, or "
                    "use a timestamp column or partitions of UTC",
                    column=column,
                )


def _is_within_repeated_hour(boundary: datetime) -> bool:
    """Whether a wall clock shows the moment before a time twice, and the time, too: a window that
    begins or ends there has rows on both sides of the clock change.
    """
    moments = (boundary, boundary - timedelta(microseconds=1))
    return all(_is_shown_twice(moment.replace(tzinfo=boundary.tzinfo)) for moment in moments)


def _is_shown_twice(moment: datetime) -> bool:
    first, second = (moment.replace(fold=fold).utcoffset() for fold in (0, 1))
    return first is not None and second is not None and first > second


def _whole_days(dimension: DimensionSlice) -> list[Range]:
    """The days of the windows. A window of a day or longer may begin at any hour: it means the days
    on which it begins. Shorter windows must add up to whole days.
    """
    days = [days_of_window(window) for window in dimension.windows or ()]
    if all(start < end for start, end in days):
        return [Range(*found) for found in days]
    joined = join_ranges(Range(*window) for window in dimension.windows or ())
    for window in joined:
        # Where the clock goes back to midnight, an hour ends at the midnight of its beginning.
        is_day = window.start.date() < window.end.date()
        if not (is_day and _is_midnight(window.start) and _is_midnight(window.end)):
            raise InvalidArgument(
                f"the partition from {window.start} to {window.end} is a part of a day, and a "
                "date column cannot distinguish it from the other parts; partition_expr must name "
                "a timestamp, timestamp_ntz or string column",
                column=dimension.column,
            )
    return [Range(*days_of_window(TimeWindow(found.start, found.end))) for found in joined]


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


def _parse_digits(key: str, column: str, data_type: DataType) -> int:
    """`2013-01-31` as 20130131: a day, a month or a year in an integer column."""
    # A key with the name of a month would lose it, and mean the whole year.
    if not _NUMERIC_KEY.fullmatch(key):
        raise _make_key_error(key, column, data_type)
    return int(re.sub(r"[^0-9]", "", key))


def _parse_key(key: str, data_type: DataType, column: str) -> object:
    try:
        match data_type:
            case PrimitiveType("string"):
                # Half of a surrogate pair is not a character.
                return key.encode().decode()
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
                if number.is_finite() and len(_digits_of(number)) <= _MAX_DIGITS:
                    return number
            case _ if _is_integer(data_type):
                if abs(whole := int(key)) <= _MAX_LONG:
                    return whole
            case _:
                pass
    except (ValueError, KeyError, InvalidOperation) as error:
        raise _make_key_error(key, column, data_type) from error
    raise _make_key_error(key, column, data_type)


def _digits_of(number: Decimal) -> str:
    return f"{abs(number):f}".replace(".", "").lstrip("0")


def _make_key_error(key: str, column: str, data_type: DataType) -> InvalidArgument:
    return InvalidArgument(
        f"partition key {key!r} cannot be a value of type {data_type}, which is the type of the "
        "column that partition_expr names; name another column, or change the partition keys",
        column=column,
    )
