"""Casts in the whitelist: Spark's ANSI casts that DuckDB can be made to repeat exactly.

All other casts are refused. Constants are converted at once.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable
from decimal import Context, Decimal
from typing import TypeAlias

from dagster_delta.errors import UnsupportedExpression
from dagster_delta.protocol.schema import ArrayType, DataType, DecimalType, PrimitiveType
from dagster_delta.sql.literals import BeyondPython, parse_moment, to_float
from dagster_delta.sql.text_values import read_text
from dagster_delta.sql.time_zone import UTC, ZONE, instant, local_time
from dagster_delta.sql.typed import Cast, Literal, Refusal, Typed
from dagster_delta.sql.types import (
    STRING,
    TIMESTAMP,
    TIMESTAMP_NTZ,
    VOID,
    is_integral,
    sql_type_name,
)

# A double keeps any number of this many decimal digits.
_EXACT_DOUBLE_DIGITS = 15
_MAX_PRECISION = 38

_EXACT = Context(prec=100)

_BITS = {"byte": 7, "short": 15, "integer": 31, "long": 63}

_PLAIN = frozenset(
    {
        ("integral", "integral"), ("integral", "decimal"), ("integral", "float"),
        ("integral", "double"), ("integral", "string"), ("integral", "boolean"),
        ("boolean", "integral"), ("boolean", "float"), ("boolean", "double"),
        ("boolean", "string"), ("float", "double"),
        ("decimal", "decimal"), ("date", "timestamp"), ("timestamp", "date"),
    }
)  # fmt: skip
"""Kinds between which DuckDB's cast gives Spark's result."""


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


def duckdb_type(data_type: DataType) -> str:
    """The DuckDB type that holds values of a type."""
    if isinstance(data_type, DecimalType):
        return f"DECIMAL({data_type.precision},{data_type.scale})"
    if isinstance(data_type, PrimitiveType) and data_type.name in _DUCKDB_TYPES:
        return _DUCKDB_TYPES[data_type.name]
    if isinstance(data_type, ArrayType):
        return f"{duckdb_type(data_type.element_type)}[]"
    raise UnsupportedExpression(f"a value of type {data_type}; use the Spark engine")


def raising(message: str) -> str:
    """DuckDB SQL that fails with a message."""
    quoted = message.replace("'", "''")
    return f"error('{quoted}')"


def cast(expression: Typed, target: DataType) -> Typed:
    """The expression as a value of `target`; constants are converted at once.

    Raises:
        Refusal: the cast is not in the whitelist, or a constant does not fit.
    """
    source = expression.data_type
    if source is None or source == target:
        return expression
    if isinstance(expression, Literal) and expression.value is None:
        return Literal(None, target)
    if ZONE.get() != UTC and cast_depends_on_time_zone(source, target):
        return _cast_in_zone(expression, target)
    if isinstance(expression, Literal):
        folded = _fold(expression, target)
        if folded is not None:
            return folded
    if _rule(source, target) is None:
        raise Refusal(f"CAST({sql_type_name(source)} AS {sql_type_name(target)})")
    return Cast(expression, target)


def _cast_in_zone(expression: Typed, target: DataType) -> Typed:
    source = expression.data_type
    if source == TIMESTAMP:
        return cast(local_time(expression), target)
    if target == TIMESTAMP and source != STRING:
        return instant(cast(expression, TIMESTAMP_NTZ))
    folded = _fold(expression, target) if isinstance(expression, Literal) else None
    if folded is None:
        raise Refusal(f"a cast to {sql_type_name(target)} in the time zone {ZONE.get()}")
    return folded


def cast_sql(operand: str, source: DataType, target: DataType) -> str:
    """DuckDB SQL of a cast that `cast` made. It raises for a value that it cannot convert."""
    rule = _rule(source, target)
    assert rule is not None  # noqa: S101  or there is no such cast
    return rule(operand, duckdb_type(target))


def reads_text(source: DataType, target: DataType) -> bool:
    """Whether a function of `text_conversion` computes a cast: DuckDB reads other texts."""
    return (cast_kind(source), cast_kind(target)) in _OF_TEXT


def cast_may_raise(source: DataType, target: DataType) -> bool:
    """Whether some value makes the cast fail."""
    kinds = (cast_kind(source), cast_kind(target))
    if kinds == ("integral", "integral"):
        return _BITS[str(source)] > _BITS[str(target)]
    if kinds[0] == "integral":
        return kinds[1] in ("decimal", "timestamp")
    return kinds not in {("float", "double"), ("date", "timestamp"), ("timestamp", "timestamp")}


_Rule: TypeAlias = Callable[[str, str], str]
"""DuckDB SQL of a cast, from the SQL of its operand and the DuckDB type."""


def _rule(source: DataType, target: DataType) -> _Rule | None:
    kinds = (cast_kind(source), cast_kind(target))
    if _is_plain(source, target):
        return lambda operand, found: f"CAST({operand} AS {found})"
    if kinds in _OF_SECONDS and TIMESTAMP_NTZ in (source, target):
        return None
    if kinds == ("string", "decimal"):
        assert isinstance(target, DecimalType)  # noqa: S101  as its kind says
        # A function has one result type: the digits are passed as text.
        digits = f"text_to_decimal({{}}, {target.precision}, {target.scale})"
        return lambda operand, found: f"CAST({digits.format(operand)} AS {found})"
    if kinds in _OF_TEXT:
        return lambda operand, _: f"text_to_{target}({operand})"
    if kinds == ("decimal", "string"):
        assert isinstance(source, DecimalType)  # noqa: S101  as its kind says
        # The zero before the point needs one more digit; without room for it DuckDB omits it.
        roomy = f"DECIMAL({source.precision + 1},{source.scale})"
        if source.precision == _MAX_PRECISION:
            return None
        return lambda operand, found: f"CAST(CAST({operand} AS {roomy}) AS {found})"
    return _RULES.get(kinds) or _OF_SECONDS.get(kinds)


def _is_plain(source: DataType, target: DataType) -> bool:
    """Whether DuckDB's cast alone gives Spark's result: array elements are cast this way too."""
    kinds = (cast_kind(source), cast_kind(target))
    if isinstance(source, DecimalType):
        match kinds[1]:
            case "integral":
                return source.scale == 0
            case "double":
                return source.precision <= _EXACT_DOUBLE_DIGITS
            case "string":
                return source.scale < source.precision
    if isinstance(source, ArrayType) and isinstance(target, ArrayType):
        return _is_plain(source.element_type, target.element_type)
    return source == VOID or kinds in _PLAIN


def _by_way_of_text(operand: str, target: str) -> str:
    # Text is rounded once, to the nearest number.
    return f"CAST(CAST({operand} AS VARCHAR) AS {target})"


def _truncated(operand: str, target: str) -> str:
    # DuckDB rounds here, Spark truncates.
    return (
        f"CAST(CASE WHEN {operand} < 0 THEN ceil({operand}) ELSE floor({operand}) END AS {target})"
    )


def _truncated_float(operand: str, target: str) -> str:
    return f"CAST(trunc(CAST({operand} AS DOUBLE)) AS {target})"


def _is_not_zero(operand: str, _target: str) -> str:
    return f"({operand} <> 0)"


def _instant_of_double(operand: str, _target: str) -> str:
    micros = _truncated_float(f"CAST({operand} AS DOUBLE) * 1000000", "BIGINT")
    return f"make_timestamp({micros})"


def _four_digit_year(operand: str, target: str) -> str:
    return (
        f"CASE WHEN {operand} IS NULL OR year({operand}) BETWEEN 1 AND 9999"
        f" THEN CAST({operand} AS {target})"
        f" ELSE {raising('only Spark writes years outside 1 to 9999 as text')} END"
    )


_OF_TEXT = frozenset(
    ("string", kind)
    for kind in ("integral", "float", "double", "decimal", "boolean", "date", "timestamp")
)

_RULES: dict[tuple[str, str], _Rule] = {
    ("decimal", "integral"): _truncated,
    ("decimal", "float"): _by_way_of_text,
    ("decimal", "double"): _by_way_of_text,
    ("float", "integral"): _truncated_float,
    ("double", "integral"): _truncated_float,
    ("timestamp", "timestamp"): lambda operand, _: operand,
    ("date", "string"): _four_digit_year,
    ("timestamp", "string"): _four_digit_year,
    ("string", "binary"): lambda operand, _: f"encode({operand})",
    ("boolean", "decimal"): lambda operand, found: f"CAST(CAST({operand} AS TINYINT) AS {found})",
    **{(kind, "boolean"): _is_not_zero for kind in ("float", "double", "decimal")},
}

_MICROS_AS_DOUBLE = "CAST(epoch_us({0}) AS DOUBLE)"
# A double has too few digits for the microseconds of far years.
_EXACT_SECONDS = "CAST(epoch_us({0}) AS DECIMAL(19,0)) * 0.000001"

_OF_SECONDS: dict[tuple[str, str], _Rule] = {
    ("timestamp", "integral"): f"CAST(floor({_EXACT_SECONDS}) AS {{1}})".format,
    ("timestamp", "float"): f"CAST({_MICROS_AS_DOUBLE} / 1000000 AS {{1}})".format,
    ("timestamp", "double"): f"({_MICROS_AS_DOUBLE} / 1000000)".format,
    ("timestamp", "decimal"): f"CAST({_EXACT_SECONDS} AS {{1}})".format,
    ("integral", "timestamp"): "make_timestamp(CAST({0} AS BIGINT) * 1000000)".format,
    ("float", "timestamp"): _instant_of_double,
    ("double", "timestamp"): _instant_of_double,
    # The product has the precision of its factor: fractions beyond microseconds would fill it.
    ("decimal", "timestamp"): (
        "make_timestamp(CAST(CAST(trunc({0}, 6) AS DECIMAL(38,6)) * 1000000 AS BIGINT))".format
    ),
}
"""Between numbers and timestamps with a zone, which are seconds since the epoch to Spark."""


def cast_depends_on_time_zone(source: DataType, target: DataType) -> bool:
    """Whether the result of a cast depends on the session's time zone."""
    if isinstance(source, ArrayType) and isinstance(target, ArrayType):
        return cast_depends_on_time_zone(source.element_type, target.element_type)
    zoned, others = "timestamp", ("date", "timestamp_ntz", "string")
    return (str(source) == zoned and str(target) in others) or (
        str(target) == zoned and str(source) in others
    )


def cast_kind(data_type: DataType) -> str:
    """The kind of a type, as casts distinguish them: "integral", "decimal", "timestamp" with or
    without a zone, or the name of the type; "" of nested ones.
    """
    if isinstance(data_type, DecimalType):
        return "decimal"
    if is_integral(data_type):
        return "integral"
    name = str(data_type)
    return "timestamp" if name == "timestamp_ntz" else name


def _fold(literal: Literal, target: DataType) -> Literal | None:
    """The converted constant; None if DuckDB converts it.

    Raises:
        Refusal: it does not fit, so Spark fails as well, or only Spark can decide.
    """
    value, kind = literal.value, cast_kind(target)
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
                # Rounding twice, through a double, could give another value.
                return Literal(to_float(value), target) if abs(value) < 2**53 else None
            case str():
                return _fold_text(value, target)
            case dt.datetime() if str(target) == "date":
                return Literal(value.date(), target)
            case dt.datetime() if kind == "timestamp":
                zone = None if str(target) == "timestamp_ntz" else dt.UTC
                return Literal(value.replace(tzinfo=zone), target)
            case dt.date() if kind == "timestamp" and not isinstance(value, dt.datetime):
                zone = None if str(target) == "timestamp_ntz" else dt.UTC
                return Literal(dt.datetime.combine(value, dt.time(), zone), target)
            case _:
                return None
    except (BeyondPython, ValueError, OverflowError) as error:
        raise Refusal(f"the conversion of {value!r} to {sql_type_name(target)}") from error


def _checked_integer(value: int, target: DataType) -> int:
    bits = _BITS[str(target)]
    if not -(2**bits) <= value < 2**bits:
        raise OverflowError(f"{value} does not fit {target}")
    return value


def _fold_decimal(value: Decimal, target: DecimalType) -> Literal | None:
    scaled = value.scaleb(target.scale, _EXACT)
    if scaled != scaled.to_integral_value(context=_EXACT):
        return None  # it has to be rounded
    if scaled.copy_abs() >= 10**target.precision:
        raise OverflowError(f"{value} does not fit {target}")
    return Literal(value, target)


def _fold_text(text: str, target: DataType) -> Literal | None:
    match str(target):
        case "date" | "timestamp" | "timestamp_ntz":
            return Literal(parse_moment(text, target), target)
        case "binary":
            return Literal(text.encode(), target)
        case _:
            # A text without a value fails only when a row needs it.
            value = read_text(text, target)
            return None if value is None else Literal(value, target, is_written=False)
