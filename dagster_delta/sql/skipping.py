"""Converts typed expressions to the predicates that skip files.

Conditions on partition columns alone, such as `upper(country) = 'DE'`, are computed once for each
file instead of its rows, and parts without columns, such as `upper('de')`, once for all.

A filter on a column is also one on the partition columns that are generated from it. The derived
filter follows from the original for every possible row, so it skips files but never matching rows.
A writer computes dates and hours in the time zone of its session, which is unknown later; so bounds
on timestamps are widened by the largest possible offset.

Spec: Generated Columns; Partition Value Serialization.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Collection, Iterator, Mapping
from functools import partial
from itertools import groupby
from typing import Any, TypeAlias

import msgspec
import pyarrow as pa
from msgspec.structs import replace

from dagster_delta.errors import DeltaError
from dagster_delta.protocol.features.column_values import GENERATION_KEY
from dagster_delta.protocol.features.table_configuration import TableConfiguration
from dagster_delta.protocol.schema import DataType, DecimalType, PrimitiveType, StructField
from dagster_delta.protocol.statistics.predicates import (
    And,
    Comparison,
    Computed,
    Constant,
    In,
    IsNull,
    IsTrue,
    Not,
    Operator,
    Or,
    Predicate,
    Unknown,
    starts_with,
)
from dagster_delta.protocol.values.arrow_schema import to_arrow_type
from dagster_delta.sql.evaluator import Evaluator
from dagster_delta.sql.functions.patterns import like_pieces
from dagster_delta.sql.time_zone import UTC
from dagster_delta.sql.typed import Call, Cast, Column, Literal, Refused, Typed, walk
from dagster_delta.sql.types import BOOLEAN, DATE, INTEGER, STRING, TIMESTAMP


def to_predicate(expression: Typed, *, partition_columns: Collection[str] = ()) -> Predicate:
    """The predicate on column bounds; `Unknown` for every part that bounds cannot decide.

    `partition_columns`: names of columns of which each file has one value.
    """

    def convert(node: Typed) -> Predicate:
        return to_predicate(node, partition_columns=partition_columns)

    match expression:
        case Literal(bool() | None as value):
            return Constant(value)
        case Call("and", arguments):
            return And(tuple(map(convert, arguments)))
        case Call("or", arguments):
            return Or(tuple(map(convert, arguments)))
        case Call("not", (child,)):
            return Not(convert(child))
        case Call("<=>" | "coalesce" as name, (child, Literal(bool() as value))) if (
            child.data_type == BOOLEAN
        ):
            # `p <=> TRUE` and `coalesce(p, FALSE)` read null as false, the other two as true.
            if (name == "<=>") == value:
                return IsTrue(convert(child))
            negated = IsTrue(Not(convert(child)))
            return negated if name == "<=>" else Not(negated)
        case Call("<=>", (operand, Literal(value) as constant)) if value is not None:
            return IsTrue(convert(Call("=", (operand, constant), BOOLEAN)))
    found = _leaf(expression) or _computed_filter(expression, partition_columns)
    return found or Unknown(operands=_operands(expression))


def _operands(expression: Typed) -> tuple[tuple[str, ...], ...]:
    """Columns for whose nulls the expression is null."""
    match expression:
        case Column(path):
            return (path,)
        case Call("in", (operand, *_)) | Cast(operand):
            return _operands(operand)
        case Call(name, operands):
            from dagster_delta.sql.functions.whitelist import WHITELIST

            if not WHITELIST[name].is_strict:
                return ()
            return tuple(dict.fromkeys(path for operand in operands for path in _operands(operand)))
    return ()


def _leaf(expression: Typed) -> Predicate | None:
    match expression:
        case Column(path, data_type) if data_type == BOOLEAN:
            return Comparison(path, "=", value=True, data_type=BOOLEAN)
        case Call("is null", (operand,)) | Call("<=>", (operand, Literal(None))):
            # A cast gives null only for a null operand.
            found = _path(operand)
            return None if found is None else IsNull(found)
        case Call("in", (operand, *values)):
            return _membership(operand, values)
        case Call("startswith", (Column(path), Literal(str() as prefix))):
            return starts_with(path, prefix)
        case Call("like", (Column(path), Literal(str() as pattern))) if pattern:
            start = like_pieces(pattern)[0]
            if not isinstance(start, str):
                return None
            return And((starts_with(path, start), Unknown()))
        case Call("=" | "<" | "<=" | ">" | ">=" as operator, (left, right)):
            return _comparison(operator, left, right)
    return None


def _path(operand: Typed) -> tuple[str, ...] | None:
    match operand:
        case Column(path) | Cast(Column(path)):
            return path
    return None


def _comparison(operator: Operator, operand: Typed, other: Typed) -> Predicate | None:
    path, data_type = _path(operand), operand.data_type
    if any(isinstance(side, Literal) and side.value is None for side in (operand, other)):
        return Constant(None)
    if path is None or data_type is None or not isinstance(other, Literal):
        return None
    return Comparison(path, operator, other.value, data_type)


def _membership(operand: Typed, values: list[Typed]) -> Predicate | None:
    path, data_type = _path(operand), operand.data_type
    constants = [value.value for value in values if isinstance(value, Literal)]
    if path is None or data_type is None or len(constants) < len(values):
        return None
    known = tuple(constant for constant in constants if constant is not None)
    listed = In(path, known, data_type)
    return listed if len(known) == len(constants) else Or((listed, Constant(None)))


def with_constants(expression: Typed) -> Typed:
    """The expression, in which the parts without columns are literals, as far as they can be
    computed.

    Raises:
        Nothing: a part that fails stays as it is.
    """
    if not isinstance(expression, Call | Cast):
        return expression
    if not any(isinstance(node, Column | Refused) for node in walk(expression)):
        return _computed(expression)
    if isinstance(expression, Cast):
        return replace(expression, child=with_constants(expression.child))
    return replace(expression, arguments=tuple(map(with_constants, expression.arguments)))


def _computed(expression: Call | Cast) -> Typed:
    data_type = expression.data_type
    if not isinstance(data_type, PrimitiveType | DecimalType):
        return expression
    row = pa.table({"row": pa.array([0])})
    try:
        value = Evaluator(expression).of_batch(row)[0].as_py()
    except (DeltaError, OverflowError, ValueError):
        # It may be in a part of the filter that is not evaluated; dates of Python end in 9999.
        return expression
    return Literal(value, data_type, is_written=False)


def _computed_filter(condition: Typed, partition_columns: Collection[str]) -> Computed | None:
    """The predicate of a condition on partition columns alone; None for any other condition."""
    nodes = list(walk(condition))
    paths = [node.path for node in nodes if isinstance(node, Column)]
    if condition.data_type != BOOLEAN or not paths:
        return None
    if any(isinstance(node, Refused) for node in nodes):
        return None
    if any(len(path) > 1 or path[0] not in partition_columns for path in paths):
        return None
    return Computed(frozenset(path[0] for path in paths), partial(_values, condition))


def _values(condition: Typed, partitions: pa.Table) -> pa.BooleanArray | None:
    try:
        return Evaluator(condition).of_batch(partitions)
    except DeltaError:
        # It may fail on a partition whose rows another part of the filter leaves out.
        return None


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
    is_prefix: bool = False
    """Whether the generated column is the beginning of a text, or all of it."""

    def of(self, operator: str, value: _Value) -> Predicate:
        parts: list[Predicate] = []
        if operator in ("=", ">", ">="):
            parts.append(self.at_least(_loosened(value, self.base.data_type, -1)))
        if operator in ("=", "<", "<="):
            parts.append(self.at_most(_loosened(value, self.base.data_type, 1)))
        if operator == "<" and self.is_prefix:
            parts.append(Comparison(self.generated[0], "<", value, STRING))
        # Empty text is null as a partition value.
        return Or((And(tuple(parts)), *(IsNull(path) for path in self.generated)))


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
        case _:
            return predicate
    derived = [
        found for derivation in using if (found := _derive(predicate, derivation)) is not None
    ]
    return And((predicate, *derived)) if derived else predicate


def _derive(predicate: Predicate, derivation: _Derivation) -> Predicate | None:
    try:
        match predicate:
            case Comparison(operator=operator, value=value):
                return derivation.of(operator, value)
            case In(values=values) if len(values) <= _MAX_LISTED:
                return Or(tuple(derivation.of("=", listed) for listed in values))
    except (DeltaError, OverflowError, ValueError, TypeError):
        # Bounds beyond what can be computed here derive nothing.
        pass
    return None


def _derivations(
    fields: list[StructField], configuration: TableConfiguration
) -> Iterator[_Derivation]:
    from dagster_delta.sql.typed_tree import typed_tree

    parts: dict[Column, dict[str, Path]] = {}
    for field in fields:
        try:
            typed = typed_tree(str(field.metadata[GENERATION_KEY]), configuration.schema, UTC)
        except DeltaError:
            continue
        match typed:
            case Call("year" | "month" | "dayofmonth" | "hour" as part, (operand,)):
                base = _time_column(operand)
                if base is not None and field.data_type == INTEGER:
                    parts.setdefault(base, {})[part] = (field.name,)
            case _:
                base = _monotonic_in(typed)
                # Constants are padded to the length of CHAR(n), but values are generated before
                # padding.
                is_as_written = base is not None and base.char_length is None
                if base is not None and is_as_written and typed.data_type == field.data_type:
                    yield _by_expression(base, (field.name,), typed)
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


def _by_expression(base: Column, path: Path, expression: Typed) -> _Derivation:
    data_type = expression.data_type
    assert data_type is not None  # noqa: S101  what has a known form has a type
    is_text_of_time = data_type == STRING and base.data_type != STRING

    def computed(value: _Value) -> _Value:
        if isinstance(expression, Cast) and isinstance(value, dt.datetime):
            return value.date()
        values = pa.array([value], to_arrow_type(base.data_type))
        for name in reversed(base.path[1:]):
            values = pa.StructArray.from_arrays([values], names=[name])
        return Evaluator(expression).of_batch(pa.table({base.path[0]: values}))[0].as_py()

    def at_least(value: _Value) -> Predicate:
        # Where a local day begins is an instant that depends on the time zone as well.
        bound = Comparison(path, ">=", _loosened(computed(value), data_type, -1), data_type)
        # A year of five digits is written with a plus, which comes before all digits.
        return Or((bound, starts_with(path, "+"))) if is_text_of_time else bound

    def at_most(value: _Value) -> Predicate:
        return Comparison(path, "<=", _loosened(computed(value), data_type, 1), data_type)

    is_prefix = base.data_type == data_type == STRING
    return _Derivation(base, (path,), at_least, at_most, is_prefix)


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
