"""The whitelist: what the embedded engine is proved to compute as Spark does. Comparisons, tests
for null, choices between values and casts are here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from dagster_delta.errors import InvalidArgument
from dagster_delta.protocol.schema import DataType, PrimitiveType
from dagster_delta.sql.casts import cast
from dagster_delta.sql.functions.dates import DATE_FUNCTIONS
from dagster_delta.sql.functions.function import (
    Function,
    boolean_call,
    calls,
    of_types,
    refused_type,
    typed_alike,
)
from dagster_delta.sql.functions.nested import NESTED_FUNCTIONS
from dagster_delta.sql.functions.numbers import NUMERIC_FUNCTIONS
from dagster_delta.sql.functions.text import TEXT_FUNCTIONS
from dagster_delta.sql.functions.time_zones import ZONE_FUNCTIONS
from dagster_delta.sql.literals import TYPE_NAMES
from dagster_delta.sql.typed import (
    FLIPPED,
    Call,
    Column,
    Literal,
    Refusal,
    Refused,
    Typed,
    types_of,
    walk,
)
from dagster_delta.sql.types import BOOLEAN, DOUBLE, FLOAT, STRING, VARIANT, VOID


def _check_comparable(name: str, arguments: tuple[Typed, ...]) -> None:
    if any(argument.data_type == VARIANT for argument in arguments):
        raise InvalidArgument(
            f"variants cannot be compared by {name}: take values out of them and compare those, as "
            "in variant_get(v, '$.field', 'int'), with the Spark engine"
        )


def _resolve_comparison(name: str, arguments: tuple[Typed, ...]) -> Typed:
    _check_comparable(name, arguments)
    _, operands = typed_alike(name, arguments)
    # Beside NULL on the left, DuckDB does not compute what may fail on the right.
    is_null = isinstance(operands[0], Literal) and operands[0].value is None and name != "<=>"
    if not is_null and not has_column(operands[0]) and has_column(operands[1]):
        # A constant is on the right, for what matches on the form of a comparison.
        name, operands = FLIPPED[name], operands[::-1]
    return boolean_call(name, operands)


def has_column(operand: Typed) -> bool:
    """Whether an operand reads a column, or may: a part that only Spark evaluates."""
    return any(isinstance(node, Column | Refused) for node in walk(operand))


def _resolve_in(name: str, arguments: tuple[Typed, ...]) -> Typed:
    _check_comparable("IN", arguments)
    _, operands = typed_alike("IN", arguments)
    return boolean_call(name, operands)


def _resolve_case(name: str, arguments: tuple[Typed, ...]) -> Typed:
    """Operands are condition, value, condition, value, …, and optionally the value of ELSE."""
    conditions = list(arguments[:-1:2] if len(arguments) % 2 else arguments[::2])
    values = list(arguments[1::2])
    values.append(arguments[-1] if len(arguments) % 2 else Literal(None, VOID))
    if any(data_type != BOOLEAN for data_type in types_of(conditions)):
        raise Refusal("a condition that is not boolean")
    target, values = typed_alike("CASE", values, with_variants=True)
    branches = [
        operand
        for condition, value in zip(conditions, values, strict=False)
        for operand in (condition, value)
    ]
    return Call(name, (*branches, values[-1]), target)


def _resolve_nullif(name: str, arguments: tuple[Typed, ...]) -> Typed:  # noqa: ARG001
    equal = _resolve_comparison("=", arguments)
    target = types_of(arguments)[0]
    return Call("case", (equal, Literal(None, target), arguments[0]), target)


def _resolve_coalesce(name: str, arguments: tuple[Typed, ...]) -> Typed:
    target, operands = typed_alike(name, arguments, with_variants=True)
    return Call("coalesce", tuple(operands), target)


def _resolve_extreme(name: str, arguments: tuple[Typed, ...]) -> Typed:
    types = set(types_of(arguments)) - {VOID}
    if not types or (STRING in types and len(types) > 1):
        raise refused_type(name, *arguments)
    target, operands = typed_alike(name, arguments)
    return Call(name, tuple(operands), target)


def _sql_case(call: Call, operands: Sequence[str]) -> str:  # noqa: ARG001
    branches = " ".join(
        f"WHEN {condition} THEN {value}"
        for condition, value in zip(operands[:-1:2], operands[1::2], strict=True)
    )
    return f"CASE {branches} ELSE {operands[-1]} END"


_CONDITIONS: Mapping[str, Function] = {
    **dict.fromkeys(("and", "or"), Function(None, "({joined})", is_strict=False)),
    "not": Function(None, "(NOT {0})"),
    **dict.fromkeys(
        ("=", "<", "<=", ">", ">="),
        Function(_resolve_comparison, "({0} {name} {1})", takes=(2, 2)),
    ),
    "<=>": Function(
        _resolve_comparison, "({0} IS NOT DISTINCT FROM {1})", is_strict=False, takes=(2, 2)
    ),
    "in": Function(_resolve_in, "({0} IN ({rest}))", is_strict=False, takes=(2, None)),
    "is null": Function(boolean_call, "({0} IS NULL)", is_strict=False),
    "isnotnull": Function(
        lambda _, arguments: boolean_call("not", [boolean_call("is null", arguments)])
    ),
    "isnan": Function(
        calls(BOOLEAN, of_types(FLOAT, DOUBLE)),
        "coalesce(isnan({0}), FALSE)",
        is_strict=False,
    ),
    "case": Function(_resolve_case, _sql_case, is_strict=False, takes=(2, None)),
    "if": Function(lambda _, arguments: _resolve_case("case", arguments), takes=(3, 3)),
    "nullif": Function(_resolve_nullif, takes=(2, 2)),
    **dict.fromkeys(("nvl", "ifnull"), Function(_resolve_coalesce, takes=(2, 2))),
    **dict.fromkeys(
        ("greatest", "least"),
        Function(_resolve_extreme, "{name}({all})", is_strict=False, takes=(2, None)),
    ),
    "coalesce": Function(_resolve_coalesce, "coalesce({all})", is_strict=False, takes=(1, None)),
}


def _cast_function(target: DataType) -> Function:
    return Function(lambda _, arguments: cast(arguments[0], target))


_CAST_FUNCTIONS = (
    "bigint", "boolean", "date", "double", "float", "int", "smallint", "string", "timestamp",
    "tinyint", "to_date", "to_timestamp",
)  # fmt: skip
"""Functions named for a type of Spark SQL."""


_SYNONYMS = {
    "cardinality": "size", "ceiling": "ceil", "char_length": "length",
    "character_length": "length", "date_part": "extract", "datepart": "extract",
    "day": "dayofmonth", "ends_with": "endswith", "equal_null": "<=>",
    "regexp": "rlike", "regexp_like": "rlike",
    "isnull": "is null", "lcase": "lower", "len": "length", "mod": "%",
    "starts_with": "startswith", "substr": "substring", "ucase": "upper",
}  # fmt: skip


def canonical_name(name: str) -> str:
    """The name of a function in the whitelist."""
    return _SYNONYMS.get(name, name)


WHITELIST: Mapping[str, Function] = {
    **_CONDITIONS,
    **NUMERIC_FUNCTIONS,
    **TEXT_FUNCTIONS,
    **NESTED_FUNCTIONS,
    **DATE_FUNCTIONS,
    **ZONE_FUNCTIONS,
    **{
        name: _cast_function(PrimitiveType(TYPE_NAMES[name.removeprefix("to_")]))
        for name in _CAST_FUNCTIONS
    },
}
"""Functions and operators by name; any other name is refused."""
