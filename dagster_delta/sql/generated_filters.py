"""Derives filters on generated partition columns from filters on their base column.

The derived filter follows from the original for every possible row, so it skips files but never
matching rows. A writer computes dates and hours in the time zone of its session, which is unknown
later; so bounds on timestamps are widened by the largest possible offset.

Spec: Generated Columns; Partition Value Serialization.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Iterator, Mapping
from itertools import groupby
from typing import Any, TypeAlias

import msgspec
import pyarrow as pa

from dagster_delta.errors import DeltaError
from dagster_delta.protocol.features.column_values import GENERATION_KEY
from dagster_delta.protocol.features.table_configuration import TableConfiguration
from dagster_delta.protocol.schema import DataType, PrimitiveType, StructField
from dagster_delta.protocol.statistics.predicates import (
    And,
    Comparison,
    In,
    IsNull,
    IsTrue,
    Not,
    Or,
    Predicate,
    StartsWith,
)
from dagster_delta.protocol.values.arrow_schema import to_arrow_type
from dagster_delta.sql.expressions import SqlExpression, parse_expression
from dagster_delta.sql.typed import Call, Cast, Column, Literal, Typed
from dagster_delta.sql.types import DATE, INTEGER, STRING, TIMESTAMP

_WIDEST_OFFSET = dt.timedelta(hours=18)
"""Spark accepts no time zone farther from UTC."""
_MAX_LISTED = 100
"""Members of an IN that are examined one by one."""

_TIMES = (DATE, TIMESTAMP, PrimitiveType("timestamp_ntz"))
_UNITS = ("yyyy", "MM", "dd", "HH", "mm", "ss")
_PARTS = ("year", "month", "dayofmonth", "hour")

Path: TypeAlias = tuple[str, ...]
_Value: TypeAlias = Any
"""A value of any atomic type, in Python."""

Bound: TypeAlias = Callable[[_Value], Predicate]
"""Derives bounds of the generated columns from a bound of the base column."""


class _Derivation(msgspec.Struct, frozen=True):
    base: Column
    generated: tuple[Path, ...]
    at_least: Bound
    at_most: Bound

    def of(self, operator: str, value: _Value) -> Predicate:
        parts: list[Predicate] = []
        if operator in ("=", "<=>", ">", ">="):
            parts.append(self.at_least(_loosened(value, self.base.data_type, -1)))
        if operator in ("=", "<=>", "<", "<="):
            parts.append(self.at_most(_loosened(value, self.base.data_type, 1)))
        return self.unless_null(And(tuple(parts)))

    def unless_null(self, predicate: Predicate) -> Predicate:
        """Also true if a generated column is null: empty text is null as a partition value."""
        return Or((predicate, *(IsNull(path) for path in self.generated)))


def _loosened(value: _Value, data_type: DataType, direction: int) -> _Value:
    return value + direction * _WIDEST_OFFSET if data_type == TIMESTAMP else value


def with_generated_filters(predicate: Predicate, configuration: TableConfiguration) -> Predicate:
    """The predicate, with the derived filter on generated partition columns at each comparison.

    It is true, false and null for the same rows as before.

    Raises:
        Nothing: an expression of another form derives nothing.
    """
    fields = [field for field in configuration.partition_schema if GENERATION_KEY in field.metadata]
    if not fields or not configuration.supports("generatedColumns"):
        return predicate
    derivations = tuple(_derivations(fields, configuration))
    return _extended(predicate, derivations) if derivations else predicate


def _extended(predicate: Predicate, derivations: tuple[_Derivation, ...]) -> Predicate:
    match predicate:
        case And(children):
            return And(tuple(_extended(child, derivations) for child in children))
        case Or(children):
            return Or(tuple(_extended(child, derivations) for child in children))
        case Not(child):
            return Not(_extended(child, derivations))
        case IsTrue(child):
            return IsTrue(_extended(child, derivations))
        case Comparison(column, data_type=data_type) | In(column, data_type=data_type):
            using = [
                derivation
                for derivation in derivations
                if (derivation.base.path, derivation.base.data_type) == (column, data_type)
            ]
        case StartsWith(column):
            using = [derivation for derivation in derivations if derivation.base.path == column]
        case _:
            return predicate
    derived = [
        found for derivation in using if (found := _derive(predicate, derivation)) is not None
    ]
    return And((predicate, *derived)) if derived else predicate


def _derive(predicate: Predicate, derivation: _Derivation) -> Predicate | None:
    try:
        match predicate:
            case Comparison(operator=operator, value=value) if operator != "<>":
                return derivation.of(operator, value)
            case In(values=values, has_null=False) if values:
                if len(values) <= _MAX_LISTED:
                    return Or(tuple(derivation.of("=", listed) for listed in values))
            case StartsWith(prefix=prefix) if derivation.base.data_type == STRING:
                lowest = derivation.at_least(prefix)
                if isinstance(lowest, Comparison):
                    begins = StartsWith(lowest.column, str(lowest.value))
                    return derivation.unless_null(begins)
    except (DeltaError, OverflowError, ValueError, TypeError):
        # Bounds beyond what can be computed here derive nothing.
        pass
    return None


def _derivations(
    fields: list[StructField], configuration: TableConfiguration
) -> Iterator[_Derivation]:
    parts: dict[Column, dict[str, Path]] = {}
    for field in fields:
        try:
            expression = parse_expression(str(field.metadata[GENERATION_KEY]), configuration.schema)
        except DeltaError:
            continue
        match expression.typed:
            case Call("year" | "month" | "dayofmonth" | "hour" as part, (operand,)):
                base = _time_column(operand)
                if base is not None and field.data_type == INTEGER:
                    parts.setdefault(base, {})[part] = (field.name,)
            case typed:
                base = _monotonic_in(typed)
                # Constants are padded to the length of CHAR(n), but values are generated before
                # padding.
                is_as_written = base is not None and base.char_length is None
                if base is not None and is_as_written and typed.data_type == field.data_type:
                    yield _by_expression(base, (field.name,), expression)
    for base, found in parts.items():
        # A month without its year, or a day without its month, gives no bound.
        known = [found[part] for part in _PARTS if part in found]
        if list(found) and known == [found.get(part) for part in _PARTS[: len(known)]]:
            yield _by_parts(base, found)
        elif "year" in found:
            yield _by_parts(base, {"year": found["year"]})


def _time_column(operand: Typed) -> Column | None:
    match operand:
        case Column(data_type=data_type) if data_type in _TIMES:
            return operand
        case Cast(Column(data_type=data_type) as column, target) if (
            data_type in _TIMES and target in _TIMES
        ):
            return column
    return None


def _monotonic_in(typed: Typed) -> Column | None:
    """The column in which an expression never decreases; None if none is known."""
    match typed:
        case Cast(_, data_type) if data_type == DATE:
            return _time_column(typed)
        case Column(data_type=data_type) if data_type in (*_TIMES, STRING, INTEGER):
            return typed
        case Call("trunc" | "date_trunc", (Literal(), operand)):
            return _time_column(operand)
        case Call("date_format", (operand, Literal(str() as pattern))):
            return _time_column(operand) if _falls_never(pattern) else None
        case Call("substring", (Column(data_type=data_type) as column, Literal(1), *_)) if (
            data_type == STRING
        ):
            return column
    return None


def _falls_never(pattern: str) -> bool:
    """Whether texts of the pattern sort as their times: larger units come first."""
    units = ("".join(group) for _, group in groupby(pattern))
    letters = tuple(unit for unit in units if unit[0].isalpha())
    return letters != () and letters == _UNITS[: len(letters)]


def _by_expression(base: Column, path: Path, expression: SqlExpression) -> _Derivation:
    data_type = expression.data_type
    assert data_type is not None  # noqa: S101  what has a known form has a type
    is_text_of_time = data_type == STRING and base.data_type != STRING

    def computed(value: _Value) -> _Value:
        if isinstance(expression.typed, Cast) and isinstance(value, dt.datetime):
            return value.date()
        values = pa.array([value], to_arrow_type(base.data_type))
        for name in reversed(base.path[1:]):
            values = pa.StructArray.from_arrays([values], names=[name])
        return expression.evaluate(pa.table({base.path[0]: values}))[0].as_py()

    def at_least(value: _Value) -> Predicate:
        # Where a local day begins is an instant that depends on the time zone as well.
        bound = Comparison(path, ">=", _loosened(computed(value), data_type, -1), data_type)
        # A year of five digits is written with a plus, which comes before all digits.
        return Or((bound, StartsWith(path, "+"))) if is_text_of_time else bound

    def at_most(value: _Value) -> Predicate:
        return Comparison(path, "<=", _loosened(computed(value), data_type, 1), data_type)

    return _Derivation(base, (path,), at_least, at_most)


def _by_parts(base: Column, found: Mapping[str, Path]) -> _Derivation:
    paths = tuple(found[part] for part in _PARTS if part in found)

    def at_least(value: _Value) -> Predicate:
        return _lexical(paths, _numbers(value), ">")

    def at_most(value: _Value) -> Predicate:
        return _lexical(paths, _numbers(value), "<")

    return _Derivation(base, paths, at_least, at_most)


def _numbers(value: dt.date) -> tuple[int, ...]:
    hour = value.hour if isinstance(value, dt.datetime) else 0
    return value.year, value.month, value.day, hour


def _lexical(paths: tuple[Path, ...], numbers: tuple[int, ...], operator: str) -> Predicate:
    """`(year, month, …) operator= numbers`, the earlier columns deciding first."""
    path, number = paths[0], numbers[0]
    if len(paths) == 1:
        closing: Any = f"{operator}="
        return Comparison(path, closing, number, INTEGER)
    strict: Any = operator
    return Or(
        (
            Comparison(path, strict, number, INTEGER),
            And(
                (
                    Comparison(path, "=", number, INTEGER),
                    _lexical(paths[1:], numbers[1:], operator),
                )
            ),
        )
    )
