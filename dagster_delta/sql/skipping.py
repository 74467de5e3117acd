"""Converts typed expressions to the predicates that skip files.

Conditions on partition columns alone, such as `upper(country) = 'DE'`, are computed once for each
file instead of its rows, and parts without columns, such as `upper('de')`, once for all.
"""

from __future__ import annotations

from collections.abc import Collection
from functools import partial

import pyarrow as pa
from msgspec.structs import replace

from dagster_delta.errors import DeltaError
from dagster_delta.protocol.schema import DecimalType, PrimitiveType
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
    StartsWith,
    Unknown,
)
from dagster_delta.sql.evaluator import Evaluator
from dagster_delta.sql.functions.patterns import like_pieces
from dagster_delta.sql.typed import Call, Cast, Column, Literal, Refused, Typed, walk
from dagster_delta.sql.types import BOOLEAN


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
        case Call("is null", (operand,)):
            # A cast gives null only for a null operand.
            found = _path(operand)
            return None if found is None else IsNull(found)
        case Call("in", (operand, *values)):
            return _membership(operand, values)
        case Call("startswith", (Column(path), Literal(str() as prefix))):
            return StartsWith(path, prefix)
        case Call("like", (Column(path), Literal(str() as pattern))) if pattern:
            start = like_pieces(pattern)[0]
            if not isinstance(start, str):
                return None
            return And((StartsWith(path, start), Unknown("the rest of the pattern")))
        case Call("=" | "<" | "<=" | ">" | ">=" | "<=>" as operator, (left, right)):
            return _comparison(operator, left, right)
    return None


def _path(operand: Typed) -> tuple[str, ...] | None:
    match operand:
        case Column(path) | Cast(Column(path)):
            return path
    return None


def _comparison(operator: Operator, operand: Typed, other: Typed) -> Predicate | None:
    path, data_type = _path(operand), operand.data_type
    sides = (operand, other)
    if operator != "<=>" and any(isinstance(e, Literal) and e.value is None for e in sides):
        return Constant(None)
    if not isinstance(other, Literal):
        return None
    if path is None or data_type is None:
        return None
    if other.value is None:
        return IsNull(path)
    return Comparison(path, operator, other.value, data_type)


def _membership(operand: Typed, values: list[Typed]) -> Predicate | None:
    path, data_type = _path(operand), operand.data_type
    constants = [value.value for value in values if isinstance(value, Literal)]
    if path is None or data_type is None or len(constants) < len(values):
        return None
    known = tuple(constant for constant in constants if constant is not None)
    return In(path, known, data_type, has_null=len(known) < len(constants))


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
