"""Converts typed expressions to the predicates that skip files."""

from __future__ import annotations

from collections.abc import Callable

from dagster_delta.protocol.statistics.predicates import (
    And,
    Comparison,
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
from dagster_delta.sql.functions.patterns import like_pieces
from dagster_delta.sql.typed import Call, Cast, Column, Literal, Typed
from dagster_delta.sql.types import BOOLEAN

# Each operator, and its equivalent with swapped operands.
_OPERATORS: dict[str, tuple[Operator, Operator]] = {
    "=": ("=", "="),
    "<": ("<", ">"),
    "<=": ("<=", ">="),
    ">": (">", "<"),
    ">=": (">=", "<="),
    "<=>": ("<=>", "<=>"),
}


def to_predicate(
    expression: Typed,
    *,
    session_is_utc: bool,
    compute: Callable[[Typed], Predicate | None] | None = None,
) -> Predicate:
    """The predicate on column bounds; `Unknown` for every part that bounds cannot decide."""

    def convert(node: Typed) -> Predicate:
        return to_predicate(node, session_is_utc=session_is_utc, compute=compute)

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
    if not session_is_utc:
        from dagster_delta.sql.functions.dates import depends_on_time_zone

        if depends_on_time_zone(expression):
            return Unknown("it depends on the time zone of the session", _operands(expression))
    found = _leaf(expression) or (compute and compute(expression))
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
            return tuple(dict.fromkeys(path for each in operands for path in _operands(each)))
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
        case Call(name, (left, right)) if name in _OPERATORS:
            operator, flipped = _OPERATORS[name]
            if isinstance(left, Literal):
                return _comparison(flipped, right, left)
            return _comparison(operator, left, right)
    return None


def _path(operand: Typed) -> tuple[str, ...] | None:
    match operand:
        case Column(path) | Cast(Column(path)):
            return path
    return None


def _comparison(operator: Operator, operand: Typed, other: Typed) -> Predicate | None:
    path, data_type = _path(operand), operand.data_type
    if not isinstance(other, Literal):
        return None
    if other.value is None and operator != "<=>":
        return Constant(None)
    if path is None or data_type is None:
        return None
    if other.value is None:
        return IsNull(path)
    return Comparison(path, operator, other.value, data_type)


def _membership(operand: Typed, values: list[Typed]) -> Predicate | None:
    path, data_type = _path(operand), operand.data_type
    constants = [each.value for each in values if isinstance(each, Literal)]
    if path is None or data_type is None or len(constants) < len(values):
        return None
    known = tuple(each for each in constants if each is not None)
    return In(path, known, data_type, has_null=len(known) < len(constants))
