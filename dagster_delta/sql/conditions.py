"""Conditions that are built from columns and values, without a text to parse.

They are typed as the same condition in Spark SQL is. A process that needs no other condition does
not load the parser and the functions.
"""

from __future__ import annotations

import datetime as dt
import math
from collections.abc import Iterable, Sequence
from contextlib import suppress
from decimal import Decimal

from dagster_delta.protocol.schema import DataType, DecimalType, StructType
from dagster_delta.sql.expressions import SqlExpression
from dagster_delta.sql.typed import (
    FLIPPED,
    Call,
    Cast,
    Column,
    Literal,
    Typed,
    column_of,
    quote_path,
    walk,
)
from dagster_delta.sql.types import (
    BINARY,
    BOOLEAN,
    DATE,
    DOUBLE,
    INTEGER,
    LONG,
    STRING,
    TIMESTAMP,
    TIMESTAMP_NTZ,
    VOID,
    common_type,
    decimal_of,
    fits,
    is_numeric,
)

NEVER = Call("=", (Literal(1, INTEGER), Literal(0, INTEGER)), BOOLEAN)
"""The condition that no row satisfies."""


class NoConditionError(Exception):
    """No condition in Spark SQL is true, false and null for the same rows."""


def find_column(path: Sequence[str], schema: StructType) -> Column | None:
    """The column, or field of a struct, with a path; None if there is none."""
    fields = schema.fields_along(path)
    return column_of(fields) if fields and len(fields) == len(path) else None


def exact_column(path: Sequence[str], schema: StructType) -> Column:
    """The column with a path, whose values Spark SQL compares as other engines do: not a text with
    a collation. Raises NoConditionError.
    """
    column = find_column(path, schema)
    if column is None or column.collation is not None:
        raise NoConditionError
    return column


def constant(value: object) -> Literal:
    """The constant, of the type of its Spark SQL literal. Raises NoConditionError if there is no
    such literal.
    """
    match value:
        case bool():
            return Literal(value, BOOLEAN)
        case int() if fits(value, LONG):
            return Literal(value, INTEGER if fits(value, INTEGER) else LONG)
        case float() if math.isfinite(value):
            return Literal(value, DOUBLE)
        case str():
            # Half of a surrogate pair is not a character.
            if not any("\ud800" <= character <= "\udfff" for character in value):
                return Literal(value, STRING)
        case bytes():
            return Literal(value, BINARY)
        case Decimal() if value.is_finite() and (data_type := decimal_of(value)) is not None:
            return Literal(value, data_type)
        case dt.datetime(tzinfo=None):
            return Literal(value, TIMESTAMP_NTZ)
        case dt.datetime():
            with suppress(OverflowError):
                return Literal(value.astimezone(dt.UTC), TIMESTAMP)
        case dt.date():
            return Literal(value, DATE)
    raise NoConditionError


def compare(left: Typed, operator: str, right: Typed) -> Call:
    """`left operator right`, of a column and a constant. Raises NoConditionError if their types
    need a conversion that may fail or change a value.

    `operator`: `=`, `<>`, `<`, `<=`, `>`, `>=` or `<=>`.
    """
    if operator == "<>":
        return negate(compare(left, "=", right))
    if isinstance(left, Literal):
        left, operator, right = right, FLIPPED[operator], left
    return Call(operator, _cast_to_common_type([left, right]), BOOLEAN)


def is_in(column: Column, constants: Sequence[Literal]) -> Call:
    """`column IN (constants)`, which are at least one. Raises as `compare` does."""
    if not constants:
        raise NoConditionError
    return Call("in", _cast_to_common_type([column, *constants]), BOOLEAN)


def _cast_to_common_type(operands: Sequence[Typed]) -> tuple[Typed, ...]:
    types = list(
        dict.fromkeys(operand.data_type for operand in operands if operand.data_type is not None)
    )
    target = common_type(types)
    if target is None or (len(types) > 1 and not all(map(is_numeric, types))):
        raise NoConditionError
    return tuple(_cast_operand(operand, target) for operand in operands)


def _cast_operand(operand: Typed, target: DataType) -> Typed:
    if operand.data_type == target:
        return operand
    match operand:
        case Literal(Decimal() | int() as value):
            return Literal(_as_number(value, target), target)
    return Cast(operand, target)


def _as_number(value: Decimal | int, target: DataType) -> object:
    if isinstance(target, DecimalType):
        return Decimal(value)
    return float(value) if target == DOUBLE else int(value)


def is_null(column: Column) -> Call:
    """`column IS NULL`."""
    return Call("is null", (column,), BOOLEAN)


def starts_with(column: Column, prefix: Literal) -> Call:
    """`startswith(column, prefix)`, both texts."""
    return Call("startswith", (column, prefix), BOOLEAN)


def negate(condition: Typed) -> Call:
    """`NOT condition`."""
    return Call("not", (condition,), BOOLEAN)


def all_of(conditions: Iterable[Typed]) -> Typed:
    """The conjunction of one or more conditions."""
    return _join_conditions("and", conditions)


def any_of(conditions: Iterable[Typed]) -> Typed:
    """The disjunction of one or more conditions."""
    return _join_conditions("or", conditions)


def _join_conditions(name: str, conditions: Iterable[Typed]) -> Typed:
    operands: list[Typed] = []
    for condition in conditions:
        if isinstance(condition, Call) and condition.name == name:
            operands += condition.arguments
        else:
            operands.append(condition)
    return operands[0] if len(operands) == 1 else Call(name, tuple(operands), BOOLEAN)


def to_expression(condition: Typed, schema: StructType) -> SqlExpression:
    """The condition, made by this module over the columns of a schema, as an expression."""
    columns = [node for node in walk(condition) if isinstance(node, Column)]
    sql = to_sql(condition)
    if any(column.collation is not None or column.char_length is not None for column in columns):
        # Only the analysis of the text knows how Spark compares such texts.
        return SqlExpression(sql, schema)
    return SqlExpression(sql, schema, condition)


def narrowed(expression: SqlExpression, condition: Typed) -> SqlExpression:
    """The expression, a filter, and a condition as `to_expression` takes it."""
    found = to_expression(condition, expression.schema)
    own = expression.typed
    # A filter may be NULL.
    own = Literal(None, BOOLEAN) if own.data_type == VOID else own
    # The text may end with a comment.
    sql = f"({expression.sql}\n) AND ({found.sql})"
    both = Call("and", (own, found.typed), BOOLEAN)
    return SqlExpression(sql, expression.schema, both, expression.zone)


def to_sql(condition: Typed) -> str:
    """The Spark SQL of a condition that this module made."""
    match condition:
        case Column(path):
            return quote_path(path)
        case Literal(value):
            return _literal_sql(value)
        case Cast(child):
            # Spark widens it by itself.
            return to_sql(child)
        case Call("and", operands):
            return " AND ".join(_render_operand(operand, "or") for operand in operands)
        case Call("or", operands):
            return " OR ".join(f"({to_sql(operand)})" for operand in operands)
        case Call("not", (child,)):
            return _negated_sql(child)
        case Call("is null", (operand,)):
            return f"{to_sql(operand)} IS NULL"
        case Call("in", (operand, *constants)):
            return f"{to_sql(operand)} IN ({', '.join(map(to_sql, constants))})"
        case Call("startswith", (operand, prefix)):
            return f"startswith({to_sql(operand)}, {to_sql(prefix)})"
        case Call(operator, (left, right)):
            return f"{to_sql(left)} {operator} {to_sql(right)}"
    raise AssertionError(condition)


def _negated_sql(condition: Typed) -> str:
    match condition:
        case Call("=", (left, right)):
            return f"{to_sql(left)} <> {to_sql(right)}"
        case Call("is null", (operand,)):
            return f"{to_sql(operand)} IS NOT NULL"
    return f"NOT ({to_sql(condition)})"


def _render_operand(operand: Typed, name: str) -> str:
    sql = to_sql(operand)
    return f"({sql})" if isinstance(operand, Call) and operand.name == name else sql


def _literal_sql(value: object) -> str:
    match value:
        case bool():
            return "true" if value else "false"
        case float():
            return f"{value!r}D"
        case str():
            # Spark reads backslashes as escapes.
            escaped = value.replace("\\", "\\\\").replace("'", "\\'")
            return f"'{escaped}'"
        case bytes():
            return f"X'{value.hex()}'"
        case Decimal():
            return f"{value:f}BD"
        case dt.datetime(tzinfo=None):
            return f"TIMESTAMP_NTZ '{value.isoformat(sep=' ')}'"
        case dt.datetime():
            return f"TIMESTAMP '{value.replace(tzinfo=None).isoformat(sep=' ')}Z'"
        case dt.date():
            return f"DATE '{value.isoformat()}'"
    return str(value)
