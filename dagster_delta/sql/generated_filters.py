"""Filters on partition columns that follow from a filter on a column that they are generated from.

The derived filter follows from the original for every possible row, so it skips files but never
matching rows. A writer computes dates and hours in the time zone of its session, which is unknown
later; so bounds on timestamps are widened by the largest possible offset.

Spec: Generated Columns.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Iterator, Mapping
from itertools import groupby
from typing import Any, TypeAlias

import msgspec
import pyarrow as pa
from msgspec.structs import replace

from dagster_delta.errors import DeltaError
from dagster_delta.protocol.features.column_values import GENERATION_KEY
from dagster_delta.protocol.features.table_configuration import TableConfiguration
from dagster_delta.protocol.schema import DataType, PrimitiveType, StructField
from dagster_delta.protocol.values.arrow_values import array_of
from dagster_delta.sql.conditions import all_of, any_of, is_null
from dagster_delta.sql.evaluator import Evaluator
from dagster_delta.sql.skipping import is_null_literal, prefix_limits, starts_with
from dagster_delta.sql.time_zone import UTC
from dagster_delta.sql.typed import FALSE, Call, Cast, Column, Literal, Typed
from dagster_delta.sql.types import BOOLEAN, DATE, INTEGER, STRING, TIMESTAMP

_WIDEST_OFFSET = dt.timedelta(hours=18)
"""Spark accepts no time zone farther from UTC."""
_MAX_LISTED = 100
"""Members of an IN that are examined one by one."""

_TIMES = (DATE, TIMESTAMP, PrimitiveType("timestamp_ntz"))
_UNITS = ("yyyy", "MM", "dd", "HH", "mm", "ss")
_PARTS = ("year", "month", "dayofmonth", "hour")

_Value: TypeAlias = Any
"""A value of any atomic type, in Python."""

Bound: TypeAlias = Callable[[str, _Value], Typed]
"""Derives a bound of the generated columns, `>` or `<`, from one of the base column."""


class _Derivation(msgspec.Struct, frozen=True):
    base: Column
    generated: tuple[Column, ...]
    bound: Bound
    is_prefix: bool = False
    """Whether the generated column is the beginning of a text, or all of it."""

    def of(self, operator: str, value: _Value) -> Typed:
        parts = [
            self.bound(side, _widen_by_offset(side, value, self.base.data_type))
            for side in (">", "<")
            if operator in ("=", side, f"{side}=")
        ]
        if operator == "<" and self.is_prefix:
            parts.append(_compare_column(self.generated[0], "<", value))
        # Empty text is null as a partition value.
        return any_of((all_of(parts), *map(is_null, self.generated)))


def _widen_by_offset(side: str, value: _Value, data_type: DataType) -> _Value:
    offset = -_WIDEST_OFFSET if side == ">" else _WIDEST_OFFSET
    return value + offset if data_type == TIMESTAMP else value


def _compare_column(column: Column, operator: str, value: _Value) -> Call:
    return Call(operator, (column, Literal(value, column.data_type)), BOOLEAN)


def with_generated_filters(condition: Typed, configuration: TableConfiguration) -> Typed:
    """The condition, with the derived filter on generated partition columns at each comparison.

    It is true, false and null for the same rows as before.

    Raises:
        Nothing: an expression of another form derives nothing.
    """
    fields = [field for field in configuration.partition_schema if GENERATION_KEY in field.metadata]
    if not fields or not configuration.supports("generatedColumns"):
        return condition
    derivations = tuple(_find_derivations(fields, configuration))
    return _add_derived_conditions(condition, derivations) if derivations else condition


def _add_derived_conditions(condition: Typed, derivations: tuple[_Derivation, ...]) -> Typed:
    match condition:
        case Call("and" | "or" | "not", operands):
            extended = tuple(_add_derived_conditions(operand, derivations) for operand in operands)
            return replace(condition, arguments=extended)
        case Call("<=>" | "coalesce", (child, Literal(bool()) as value)):
            return replace(
                condition, arguments=(_add_derived_conditions(child, derivations), value)
            )
        case Call("<=>", (operand, Literal(value) as literal)) if value is not None:
            equal = Call("=", (operand, literal), BOOLEAN)
            return Call("coalesce", (_add_derived_conditions(equal, derivations), FALSE), BOOLEAN)
        case Call("startswith" | "like") if (limits := prefix_limits(condition)) is not None:
            return _add_derived_conditions(limits, derivations)
        case Call("in", (Column() | Cast(Column()) as operand, *values)) if any(
            map(is_null_literal, values)
        ):
            known = [value for value in values if not is_null_literal(value)]
            # Beside a null, what is not in the list is null, not false.
            listed = replace(condition, arguments=(operand, *known))
            return any_of((_add_derived_conditions(listed, derivations), Literal(None, BOOLEAN)))
        case Call("=" | "<" | "<=" | ">" | ">=" | "in" as operator, (Column() as column, *values)):
            constants = [value.value for value in values if isinstance(value, Literal)]
            if len(constants) < len(values):
                return condition
            derived = [
                found
                for derivation in derivations
                if (derivation.base.path, derivation.base.data_type)
                == (column.path, column.data_type)
                and (found := _derive_condition(operator, constants, derivation)) is not None
            ]
            return all_of((condition, *derived))
    return condition


def _derive_condition(
    operator: str, constants: list[_Value], derivation: _Derivation
) -> Typed | None:
    if None in constants or not 0 < len(constants) <= _MAX_LISTED:
        return None
    try:
        compared = "=" if operator == "in" else operator
        return any_of([derivation.of(compared, constant) for constant in constants])
    except (DeltaError, OverflowError, ValueError, TypeError):
        # Bounds beyond what can be computed here derive nothing.
        return None


def _find_derivations(
    fields: list[StructField], configuration: TableConfiguration
) -> Iterator[_Derivation]:
    from dagster_delta.sql.analysis import typed_tree

    parts: dict[Column, dict[str, Column]] = {}
    for field in fields:
        try:
            typed = typed_tree(str(field.metadata[GENERATION_KEY]), configuration.schema, UTC)
        except DeltaError:
            continue
        generated = Column((field.name,), field.data_type)
        match typed:
            case Call("year" | "month" | "dayofmonth" | "hour" as part, (operand,)):
                base = _time_column(operand)
                if base is not None and field.data_type == INTEGER:
                    parts.setdefault(base, {})[part] = generated
            case _:
                base = _monotonic_in(typed)
                # Constants are padded to the length of CHAR(n), but values are generated before
                # padding.
                is_as_written = base is not None and base.char_length is None
                if base is not None and is_as_written and typed.data_type == field.data_type:
                    yield _by_expression(base, generated, typed)
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


def _by_expression(base: Column, generated: Column, expression: Typed) -> _Derivation:
    data_type = generated.data_type
    is_text_of_time = data_type == STRING and base.data_type != STRING

    def computed(value: _Value) -> _Value:
        if isinstance(expression, Cast) and isinstance(value, dt.datetime):
            return value.date()
        values = array_of([value], base.data_type)
        for name in reversed(base.path[1:]):
            values = pa.StructArray.from_arrays([values], names=[name])
        return Evaluator(expression).of_batch(pa.table({base.path[0]: values}))[0].as_py()

    def bound(side: str, value: _Value) -> Typed:
        # Where a local day begins is an instant that depends on the time zone as well.
        found = _compare_column(
            generated, f"{side}=", _widen_by_offset(side, computed(value), data_type)
        )
        # A year of five digits is written with a plus, which comes before all digits.
        is_exceeded = is_text_of_time and side == ">"
        return any_of((found, starts_with(generated, "+"))) if is_exceeded else found

    is_prefix = base.data_type == data_type == STRING
    return _Derivation(base, (generated,), bound, is_prefix)


def _by_parts(base: Column, found: Mapping[str, Column]) -> _Derivation:
    columns = tuple(found[part] for part in _PARTS if part in found)
    return _Derivation(
        base,
        columns,
        lambda side, value: _compare_in_order(columns, _to_calendar_parts(value), side),
    )


def _to_calendar_parts(value: dt.date) -> tuple[int, ...]:
    hour = value.hour if isinstance(value, dt.datetime) else 0
    return value.year, value.month, value.day, hour


def _compare_in_order(
    columns: tuple[Column, ...], numbers: tuple[int, ...], operator: str
) -> Typed:
    """`(year, month, …) operator= numbers`, the earlier columns deciding first."""
    column, number = columns[0], numbers[0]
    if len(columns) == 1:
        return _compare_column(column, f"{operator}=", number)
    later = all_of(
        (
            _compare_column(column, "=", number),
            _compare_in_order(columns[1:], numbers[1:], operator),
        )
    )
    return any_of((_compare_column(column, operator, number), later))
