"""Casts in the whitelist: Spark's ANSI casts that DuckDB can be made to repeat exactly.

All other casts are refused. Constants are converted at once.
"""

from __future__ import annotations

import datetime as dt
from decimal import Context, Decimal

from dagster_delta.errors import UnsupportedExpression
from dagster_delta.protocol.schema import ArrayType, DataType, DecimalType
from dagster_delta.sql.literals import BeyondPython, parse_moment, to_float
from dagster_delta.sql.text_values import read_text
from dagster_delta.sql.time_zone import UTC, ZONE, instant, local_time
from dagster_delta.sql.typed import Cast, Literal, Refusal, Typed
from dagster_delta.sql.types import (
    INTEGRAL_BITS,
    STRING,
    TIMESTAMP,
    TIMESTAMP_NTZ,
    VARIANT,
    VOID,
    fits,
    is_integral,
    is_primitive,
    sql_type_name,
)

# A double keeps any number of this many decimal digits.
_EXACT_DOUBLE_DIGITS = 15
_MAX_PRECISION = 38

_EXACT = Context(prec=100)

_DUCKDB_TYPES = {
    # The session's zone is UTC, and zones need an extension of DuckDB.
    "timestamp_ntz": "TIMESTAMP",
    "void": "INTEGER",
    "variant": 'STRUCT("value" BLOB, metadata BLOB)',
}
"""The types that DuckDB does not know by Spark's names."""


def duckdb_type(data_type: DataType) -> str:
    """The DuckDB type that holds values of a type."""
    if is_primitive(data_type) or data_type == VARIANT:
        return _DUCKDB_TYPES.get(str(data_type), sql_type_name(data_type))
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
        folded = _fold_cast(expression, target)
        if folded is not None:
            return folded
    if _find_cast_template(source, target) is None:
        raise Refusal(f"CAST({sql_type_name(source)} AS {sql_type_name(target)})")
    return Cast(expression, target)


def _cast_in_zone(expression: Typed, target: DataType) -> Typed:
    source = expression.data_type
    if source == TIMESTAMP:
        return cast(local_time(expression), target)
    if target == TIMESTAMP and source != STRING:
        return instant(cast(expression, TIMESTAMP_NTZ))
    folded = _fold_cast(expression, target) if isinstance(expression, Literal) else None
    if folded is None:
        raise Refusal(f"a cast to {sql_type_name(target)} in the time zone {ZONE.get()}")
    return folded


def cast_sql(operand: str, source: DataType, target: DataType) -> str:
    """DuckDB SQL of a cast that `cast` made. It raises for a value that it cannot convert."""
    rule = _find_cast_template(source, target)
    assert rule is not None  # noqa: S101  or there is no such cast
    return rule.format(operand, duckdb_type(target))


def reads_text(source: DataType, target: DataType) -> bool:
    """Whether a function of `text_columns` computes a cast: DuckDB reads other texts."""
    return (cast_kind(source), cast_kind(target)) in _OF_TEXT


def cast_may_raise(source: DataType, target: DataType) -> bool:
    """Whether some value makes the cast fail."""
    kinds = (cast_kind(source), cast_kind(target))
    if kinds == ("integral", "integral"):
        return INTEGRAL_BITS[str(source)] > INTEGRAL_BITS[str(target)]
    if kinds[0] == "integral":
        return kinds[1] in ("decimal", "timestamp")
    return kinds not in {("float", "double"), ("date", "timestamp"), ("timestamp", "timestamp")}


def _find_cast_template(source: DataType, target: DataType) -> str | None:
    """A template of DuckDB SQL: `{0}` is the operand, `{1}` the DuckDB type."""
    kinds = (cast_kind(source), cast_kind(target))
    if _is_plain(source, target):
        return _PLAIN
    if kinds in _OF_SECONDS and TIMESTAMP_NTZ in (source, target):
        return None
    if kinds == ("string", "decimal"):
        assert isinstance(target, DecimalType)  # noqa: S101  as its kind says
        # A function has one result type: the digits are passed as text.
        return f"CAST(text_to_decimal({{0}}, {target.precision}, {target.scale}) AS {{1}})"
    if kinds in _OF_TEXT:
        return f"text_to_{target}({{0}})"
    if kinds == ("decimal", "string"):
        assert isinstance(source, DecimalType)  # noqa: S101  as its kind says
        if source.precision == _MAX_PRECISION:
            return None
        # The zero before the point needs one more digit; without room for it DuckDB omits it.
        return f"CAST(CAST({{0}} AS DECIMAL({source.precision + 1},{source.scale})) AS {{1}})"
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
    return source == VOID or _RULES.get(kinds) == _PLAIN


_PLAIN = "CAST({0} AS {1})"
# Text is rounded once, to the nearest number.
_BY_WAY_OF_TEXT = "CAST(CAST({0} AS VARCHAR) AS {1})"
# DuckDB rounds here, Spark truncates.
_TRUNCATED = "CAST(CASE WHEN {0} < 0 THEN ceil({0}) ELSE floor({0}) END AS {1})"
_TRUNCATED_FLOAT = "CAST(trunc(CAST({0} AS DOUBLE)) AS {1})"
_INSTANT_OF_DOUBLE = (
    "make_timestamp(CAST(trunc(CAST(CAST({0} AS DOUBLE) * 1000000 AS DOUBLE)) AS BIGINT))"
)
_FOUR_DIGIT_YEAR = (
    "CASE WHEN {0} IS NULL OR year({0}) BETWEEN 1 AND 9999 THEN CAST({0} AS {1})"
    f" ELSE {raising('only Spark writes years outside 1 to 9999 as text')} END"
)

_OF_TEXT = frozenset(
    ("string", kind)
    for kind in ("integral", "float", "double", "decimal", "boolean", "date", "timestamp")
)

_RULES: dict[tuple[str, str], str] = {
    **{("integral", kind): _PLAIN for kind in ("integral", "decimal", "float", "double")},
    **{("integral", kind): _PLAIN for kind in ("string", "boolean")},
    **{("boolean", kind): _PLAIN for kind in ("integral", "float", "double", "string")},
    ("float", "double"): _PLAIN,
    ("decimal", "decimal"): _PLAIN,
    ("date", "timestamp"): _PLAIN,
    ("timestamp", "date"): _PLAIN,
    ("decimal", "integral"): _TRUNCATED,
    ("decimal", "float"): _BY_WAY_OF_TEXT,
    ("decimal", "double"): _BY_WAY_OF_TEXT,
    ("float", "integral"): _TRUNCATED_FLOAT,
    ("double", "integral"): _TRUNCATED_FLOAT,
    ("timestamp", "timestamp"): "{0}",
    ("date", "string"): _FOUR_DIGIT_YEAR,
    ("timestamp", "string"): _FOUR_DIGIT_YEAR,
    ("string", "binary"): "encode({0})",
    ("boolean", "decimal"): "CAST(CAST({0} AS TINYINT) AS {1})",
    **{(kind, "boolean"): "({0} <> 0)" for kind in ("float", "double", "decimal")},
}
"""By kinds; those that are plain give Spark's result by DuckDB's cast, array elements too."""

_MICROS_AS_DOUBLE = "CAST(epoch_us({0}) AS DOUBLE)"
# A double has too few digits for the microseconds of far years.
_EXACT_SECONDS = "CAST(epoch_us({0}) AS DECIMAL(19,0)) * 0.000001"

_OF_SECONDS: dict[tuple[str, str], str] = {
    ("timestamp", "integral"): f"CAST(floor({_EXACT_SECONDS}) AS {{1}})",
    ("timestamp", "float"): f"CAST({_MICROS_AS_DOUBLE} / 1000000 AS {{1}})",
    ("timestamp", "double"): f"({_MICROS_AS_DOUBLE} / 1000000)",
    ("timestamp", "decimal"): f"CAST({_EXACT_SECONDS} AS {{1}})",
    ("integral", "timestamp"): "make_timestamp(CAST({0} AS BIGINT) * 1000000)",
    ("float", "timestamp"): _INSTANT_OF_DOUBLE,
    ("double", "timestamp"): _INSTANT_OF_DOUBLE,
    # The product has the precision of its factor: fractions beyond microseconds would fill it.
    ("decimal", "timestamp"): (
        "make_timestamp(CAST(CAST(trunc({0}, 6) AS DECIMAL(38,6)) * 1000000 AS BIGINT))"
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


def _fold_cast(literal: Literal, target: DataType) -> Literal | None:
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
                return _fold_integer(int(value), target)
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


def _fold_integer(value: int, target: DataType) -> Literal:
    if not fits(value, target):
        raise OverflowError(f"{value} does not fit {target}")
    return Literal(value, target)


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
