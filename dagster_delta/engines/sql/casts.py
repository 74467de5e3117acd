"""Casts of the embedded engine: Spark's ANSI casts that DuckDB can be made to repeat exactly.

What is not in here is refused. A cast that meets a value it cannot convert raises, as Spark's does;
text is only accepted in the forms that both engines read alike.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable
from decimal import Context, Decimal

from dagster_delta.engines.sql.literals import BeyondPython, parse_date, parse_timestamp, to_float
from dagster_delta.engines.sql.text_casts import read_text, reads_text, text_cast_sql
from dagster_delta.engines.sql.typed import Cast, Literal, Typed
from dagster_delta.engines.sql.types import VOID, is_integral, sql_type_name
from dagster_delta.protocol.schema import ArrayType, DataType, DecimalType, PrimitiveType

__all__ = [
    "Refusal",
    "cast",
    "cast_depends_on_time_zone",
    "cast_may_raise",
    "cast_sql",
    "duckdb_type",
    "raising",
]

# The mantissa of a double holds this many decimal digits, whatever they are.
_EXACT_DOUBLE_DIGITS = 15
_MAX_PRECISION = 38

_DUCKDB_TYPES = {
    "boolean": "BOOLEAN",
    "byte": "TINYINT",
    "short": "SMALLINT",
    "integer": "INTEGER",
    "long": "BIGINT",
    "float": "FLOAT",
    "double": "DOUBLE",
    "string": "VARCHAR",
    "binary": "BLOB",
    "date": "DATE",
    # Both are microseconds; the session's zone is UTC, and zones need an extension of DuckDB.
    "timestamp": "TIMESTAMP",
    "timestamp_ntz": "TIMESTAMP",
    "void": "INTEGER",
    "variant": 'STRUCT("value" BLOB, metadata BLOB)',
}

_EXACT = Context(prec=100)

_BITS = {"byte": 7, "short": 15, "integer": 31, "long": 63}


class Refusal(Exception):
    """A construct that is not in the whitelist; the argument says which."""


def duckdb_type(data_type: DataType) -> str:
    """The DuckDB type that holds values of a type.

    Raises:
        Refusal: there is none.
    """
    if isinstance(data_type, DecimalType):
        return f"DECIMAL({data_type.precision},{data_type.scale})"
    if isinstance(data_type, PrimitiveType) and data_type.name in _DUCKDB_TYPES:
        return _DUCKDB_TYPES[data_type.name]
    if isinstance(data_type, ArrayType):
        return f"{duckdb_type(data_type.element_type)}[]"
    raise Refusal(f"a value of type {data_type}")


def cast(expression: Typed, target: DataType) -> Typed:
    """The expression as a value of `target`; constants are converted at once.

    Raises:
        Refusal: the cast is not in the whitelist, or a constant does not fit.
    """
    source = expression.data_type
    if source is None or source == target:
        return expression
    if isinstance(expression, Literal):
        if expression.value is None:
            return Literal(None, target)
        folded = _fold(expression, target)
        if folded is not None:
            return folded
    if _rule(source, target) is None:
        raise Refusal(f"CAST({sql_type_name(source)} AS {sql_type_name(target)})")
    return Cast(expression, target)


def cast_sql(operand: str, source: DataType, target: DataType) -> str:
    """DuckDB SQL of a cast that `cast` let pass.

    Raises:
        Refusal: it did not.
    """
    rule = _rule(source, target)
    if rule is None:
        raise Refusal(f"CAST({sql_type_name(source)} AS {sql_type_name(target)})")
    return rule(operand, duckdb_type(target))


def cast_may_raise(source: DataType, target: DataType) -> bool:
    """Whether some value makes the cast fail. Raises nothing."""
    if _kind(source) == "integral":
        if is_integral(target):
            return _BITS[_name(source)] > _BITS[_name(target)]
        return isinstance(target, DecimalType)
    safe = {("float", "double"), ("date", "timestamp"), ("timestamp", "timestamp")}
    return (_kind(source), _kind(target)) not in safe


def cast_depends_on_time_zone(source: DataType, target: DataType) -> bool:
    """Whether the result of a cast hangs on the session's time zone. Raises nothing."""
    zoned, others = "timestamp", ("date", "timestamp_ntz", "string")
    return (_name(source) == zoned and _name(target) in others) or (
        _name(target) == zoned and _name(source) in others
    )


def raising(message: str) -> str:
    """DuckDB SQL that fails with a message. Raises nothing."""
    quoted = message.replace("'", "''")
    return f"error('{quoted}')"


def _name(data_type: DataType) -> str:
    return data_type.name if isinstance(data_type, PrimitiveType) else ""


def _kind(data_type: DataType) -> str:
    if isinstance(data_type, DecimalType):
        return "decimal"
    if is_integral(data_type):
        return "integral"
    name = _name(data_type)
    return "timestamp" if name == "timestamp_ntz" else name


_Rule = Callable[[str, str], str]


def _rule(source: DataType, target: DataType) -> _Rule | None:
    """How to cast, or None where it is not in the whitelist."""
    kinds = (_kind(source), _kind(target))
    if isinstance(source, DecimalType) and kinds[1] == "integral":
        return _plain if source.scale == 0 else _truncated
    if isinstance(source, DecimalType) and kinds[1] in ("float", "double"):
        is_exact = kinds[1] == "double" and source.precision <= _EXACT_DOUBLE_DIGITS
        return _plain if is_exact else _by_way_of_text
    if isinstance(source, DecimalType) and kinds[1] == "string":
        return _decimal_to_text(source)
    if kinds == ("timestamp", "timestamp"):
        return _unchanged
    if source == VOID:
        return _plain
    if reads_text(source, target):
        return lambda operand, found: text_cast_sql(operand, target, found)
    if isinstance(source, ArrayType) and isinstance(target, ArrayType):
        # DuckDB casts the elements as it casts any value.
        return _plain if _rule(source.element_type, target.element_type) is _plain else None
    return _RULES.get(kinds)


def _plain(operand: str, target: str) -> str:
    return f"CAST({operand} AS {target})"


def _by_way_of_text(operand: str, target: str) -> str:
    # Text is rounded once, to the nearest number.
    return f"CAST(CAST({operand} AS VARCHAR) AS {target})"


def _unchanged(operand: str, target: str) -> str:  # noqa: ARG001
    return operand


def _decimal_to_text(source: DecimalType) -> _Rule | None:
    if source.scale < source.precision:
        return _plain
    if source.precision == _MAX_PRECISION:
        return None
    # Without room for it DuckDB leaves out the zero before the point.
    roomy = f"DECIMAL({source.precision + 1},{source.scale})"
    return lambda operand, target: f"CAST(CAST({operand} AS {roomy}) AS {target})"


def _truncated(operand: str, target: str) -> str:
    # DuckDB rounds here, Spark cuts.
    return (
        f"CAST(CASE WHEN {operand} < 0 THEN ceil({operand}) ELSE floor({operand}) END AS {target})"
    )


def _truncated_float(operand: str, target: str) -> str:
    return f"CAST(trunc(CAST({operand} AS DOUBLE)) AS {target})"


def _four_digit_year(operand: str, target: str) -> str:
    return (
        f"CASE WHEN {operand} IS NULL OR year({operand}) BETWEEN 1 AND 9999"
        f" THEN CAST({operand} AS {target})"
        f" ELSE {raising('only Spark writes years outside 1 to 9999 as text')} END"
    )


def _text_to_bytes(operand: str, target: str) -> str:  # noqa: ARG001
    return f"encode({operand})"


_RULES: dict[tuple[str, str], _Rule] = {
    ("integral", "integral"): _plain,
    ("integral", "decimal"): _plain,
    ("integral", "float"): _plain,
    ("integral", "double"): _plain,
    ("integral", "string"): _plain,
    ("integral", "boolean"): _plain,
    ("boolean", "integral"): _plain,
    ("boolean", "string"): _plain,
    ("float", "double"): _plain,
    ("float", "integral"): _truncated_float,
    ("double", "integral"): _truncated_float,
    ("decimal", "decimal"): _plain,
    ("date", "timestamp"): _plain,
    ("timestamp", "date"): _plain,
    ("date", "string"): _four_digit_year,
    ("timestamp", "string"): _four_digit_year,
    ("string", "binary"): _text_to_bytes,
}


def _fold(literal: Literal, target: DataType) -> Literal | None:
    """The converted constant, or None where it is left to DuckDB.

    Raises:
        Refusal: it does not fit, so that Spark fails as well, or only Spark can tell.
    """
    value, kind = literal.value, _kind(target)
    try:
        match value:
            case bool():
                return None
            case int() | Decimal() if kind == "integral" and value == int(value):
                return Literal(_checked_integer(int(value), target), target)
            case int() | Decimal() if isinstance(target, DecimalType):
                return _fold_decimal(Decimal(value), target)
            case int() | Decimal() | float() if kind == "double":
                return Literal(float(value), target)
            case int() if kind == "float":
                # Rounding twice, through a double, could end on another value.
                return Literal(to_float(value), target) if abs(value) < 2**53 else None
            case str():
                return _fold_text(value, target)
            case dt.datetime() if _name(target) == "date":
                zoned = literal.depends_on_time_zone or _name(literal.data_type) == "timestamp"
                return Literal(value.date(), target, depends_on_time_zone=zoned)
            case dt.datetime() if kind == "timestamp":
                zone = None if _name(target) == "timestamp_ntz" else dt.UTC
                return Literal(value.replace(tzinfo=zone), target, depends_on_time_zone=True)
            case dt.date() if kind == "timestamp" and not isinstance(value, dt.datetime):
                zone = None if _name(target) == "timestamp_ntz" else dt.UTC
                midnight = dt.datetime.combine(value, dt.time(), zone)
                return Literal(midnight, target, depends_on_time_zone=zone is not None)
            case _:
                return None
    except (BeyondPython, ValueError, OverflowError) as error:
        raise Refusal(f"the conversion of {value!r} to {sql_type_name(target)}") from error


def _checked_integer(value: int, target: DataType) -> int:
    bits = _BITS[_name(target)]
    if not -(2**bits) <= value < 2**bits:
        raise OverflowError(f"{value} does not fit {target}")
    return value


def _fold_decimal(value: Decimal, target: DecimalType) -> Literal | None:
    scaled = value.scaleb(target.scale, _EXACT)
    if scaled != scaled.to_integral_value(context=_EXACT):
        return None  # it has to be rounded
    if abs(scaled) >= 10**target.precision:
        raise OverflowError(f"{value} does not fit {target}")
    return Literal(value, target)


def _fold_text(text: str, target: DataType) -> Literal | None:
    match _name(target):
        case "date":
            return Literal(parse_date(text), target)
        case "timestamp":
            moment, has_zone = parse_timestamp(text)
            return Literal(moment, target, depends_on_time_zone=not has_zone)
        case "timestamp_ntz":
            moment, has_zone = parse_timestamp(text)
            if has_zone:
                raise BeyondPython(text)
            return Literal(moment.replace(tzinfo=None), target)
        case "binary":
            return Literal(text.encode(), target)
        case _:
            # A text without a value fails where a row asks for it.
            value = read_text(text, target)
            return None if value is None else Literal(value, target, is_written=False)
