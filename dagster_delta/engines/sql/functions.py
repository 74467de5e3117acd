"""The whitelist: what DuckDB is proved to compute as Spark does; any other name is refused."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from dagster_delta.engines.sql.arithmetic import ARITHMETIC
from dagster_delta.engines.sql.casts import Refusal, cast, raising
from dagster_delta.engines.sql.dates import DATE_FUNCTIONS
from dagster_delta.engines.sql.nested_functions import NESTED_FUNCTIONS
from dagster_delta.engines.sql.numeric_functions import NUMERIC_FUNCTIONS
from dagster_delta.engines.sql.patterns import resolve_like, sql_like
from dagster_delta.engines.sql.rules import (
    Resolve,
    Rule,
    boolean_call,
    fixed,
    function,
    literal_of,
    typed_alike,
    types_of,
)
from dagster_delta.engines.sql.text_functions import TEXT_FUNCTIONS
from dagster_delta.engines.sql.typed import Call, Literal, Typed
from dagster_delta.engines.sql.types import (
    BINARY,
    BOOLEAN,
    INTEGER,
    STRING,
    VARIANT,
    VOID,
    sql_type_name,
)
from dagster_delta.engines.sql.variant_functions import VARIANT_FUNCTIONS
from dagster_delta.errors import InvalidArgument
from dagster_delta.protocol.schema import DataType, PrimitiveType

__all__ = ["WHITELIST", "canonical_name"]

_SYNONYMS = {
    "abs": "abs", "cardinality": "size", "ceiling": "ceil", "char_length": "length",
    "character_length": "length", "date_part": "extract", "datepart": "extract",
    "day": "dayofmonth", "ends_with": "endswith", "equal_null": "<=>", "ifnull": "coalesce",
    "isnull": "is null", "lcase": "lower", "len": "length", "mod": "%", "nvl": "coalesce",
    "position": "locate", "regexp": "rlike", "regexp_like": "rlike", "sha": "sha1",
    "signum": "sign", "starts_with": "startswith", "substr": "substring", "ucase": "upper",
}  # fmt: skip


def canonical_name(name: str) -> str:
    """The name under which the whitelist knows a function. Raises nothing."""
    return _SYNONYMS.get(name, name)


def _check_comparable(name: str, arguments: tuple[Typed, ...]) -> None:
    if any(each.data_type == VARIANT for each in arguments):
        raise InvalidArgument(
            f"variants cannot be compared by {name}: take values out of them and compare those, as "
            "in variant_get(v, '$.field', 'int')"
        )


def _resolve_comparison(name: str, arguments: tuple[Typed, ...]) -> Typed:
    _check_comparable(name, arguments)
    _, operands = typed_alike(name, arguments)
    return boolean_call(name, operands)


def _sql_comparison(call: Call, operands: Sequence[str]) -> str:
    operator = "IS NOT DISTINCT FROM" if call.name == "<=>" else call.name
    return f"({operands[0]} {operator} {operands[1]})"


def _resolve_in(name: str, arguments: tuple[Typed, ...]) -> Typed:
    if len(arguments) < 2:
        raise Refusal("an empty IN list")
    _check_comparable("IN", arguments)
    _, operands = typed_alike("IN", arguments)
    return boolean_call(name, operands)


def _sql_in(call: Call, operands: Sequence[str]) -> str:  # noqa: ARG001
    return f"({operands[0]} IN ({', '.join(operands[1:])}))"


def _resolve_is_null(name: str, arguments: tuple[Typed, ...]) -> Typed:
    if len(arguments) != 1:
        raise Refusal(f"{name} with {len(arguments)} arguments")
    return boolean_call(name, arguments)


def _resolve_is_not_null(name: str, arguments: tuple[Typed, ...]) -> Typed:  # noqa: ARG001
    return boolean_call("not", [_resolve_is_null("is null", arguments)])


def _sql_is_null(call: Call, operands: Sequence[str]) -> str:  # noqa: ARG001
    return f"({operands[0]} IS NULL)"


def _resolve_is_nan(name: str, arguments: tuple[Typed, ...]) -> Typed:
    types = types_of(arguments)
    if types not in ([PrimitiveType("float")], [PrimitiveType("double")]):
        raise Refusal(f"{name} of {' and '.join(map(sql_type_name, types))}")
    return boolean_call(name, arguments)


def _sql_is_nan(call: Call, operands: Sequence[str]) -> str:  # noqa: ARG001
    return f"coalesce(isnan({operands[0]}), FALSE)"


def _resolve_case(name: str, arguments: tuple[Typed, ...]) -> Typed:
    """Operands are condition, value, condition, value, …, and maybe the value of ELSE."""
    conditions = list(arguments[:-1:2] if len(arguments) % 2 else arguments[::2])
    values = list(arguments[1::2])
    values.append(arguments[-1] if len(arguments) % 2 else Literal(None, VOID))
    if any(each != BOOLEAN for each in types_of(conditions)):
        raise Refusal("a condition that is not boolean")
    target, values = typed_alike("CASE", values, with_variants=True)
    branches = [
        each
        for condition, value in zip(conditions, values, strict=False)
        for each in (condition, value)
    ]
    return Call(name, (*branches, values[-1]), target)


def _sql_case(call: Call, operands: Sequence[str]) -> str:  # noqa: ARG001
    branches = " ".join(
        f"WHEN {condition} THEN {value}"
        for condition, value in zip(operands[:-1:2], operands[1::2], strict=True)
    )
    return f"CASE {branches} ELSE {operands[-1]} END"


def _resolve_if(name: str, arguments: tuple[Typed, ...]) -> Typed:
    if len(arguments) != 3:
        raise Refusal(f"{name} with {len(arguments)} arguments")
    return _resolve_case("case", arguments)


def _resolve_nvl2(name: str, arguments: tuple[Typed, ...]) -> Typed:
    if len(arguments) != 3:
        raise Refusal(f"{name} with {len(arguments)} arguments")
    is_there = _resolve_is_not_null("isnotnull", arguments[:1])
    return _resolve_case("case", (is_there, *arguments[1:]))


def _resolve_nullif(name: str, arguments: tuple[Typed, ...]) -> Typed:
    if len(arguments) != 2:
        raise Refusal(f"{name} with {len(arguments)} arguments")
    equal = _resolve_comparison("=", arguments)
    target = types_of(arguments)[0]
    return Call("case", (equal, Literal(None, target), arguments[0]), target)


def _resolve_coalesce(name: str, arguments: tuple[Typed, ...]) -> Typed:
    if not arguments:
        raise Refusal(f"{name} without arguments")
    target, operands = typed_alike(name, arguments, with_variants=name == "coalesce")
    return Call(name, tuple(operands), target)


def _resolve_extremum(name: str, arguments: tuple[Typed, ...]) -> Typed:
    if len(arguments) < 2:
        raise Refusal(f"{name} with fewer than two arguments")
    return _resolve_coalesce(name, arguments)


def _sql_extremum(call: Call, operands: Sequence[str]) -> str:
    found = f"{call.name}({', '.join(operands)})"
    if call.data_type not in (PrimitiveType("float"), PrimitiveType("double")):
        return found
    # DuckDB makes zero of minus zero; Spark takes the first of equal values as it is.
    values = f"[{', '.join(operands)}]"
    return f"{values}[list_position({values}, {found})]"


def _resolve_concat(name: str, arguments: tuple[Typed, ...]) -> Typed:
    types = types_of(arguments)
    if not types:
        raise Refusal(f"{name} without arguments")
    if BINARY in types:
        raise Refusal(f"{name} of binary")
    return Call("||", tuple(cast(each, STRING) for each in arguments), STRING)


def _sql_concat(call: Call, operands: Sequence[str]) -> str:  # noqa: ARG001
    return f"({' || '.join(operands)})"


def _ascii_only(name: str) -> Rule:
    """Case of letters outside ASCII hangs on the version of Unicode and on the locale."""

    def sql(call: Call, operands: Sequence[str]) -> str:  # noqa: ARG001
        text = operands[0]
        refused = raising(f"{name}() of letters outside ASCII: use the Spark engine")
        return (
            f"CASE WHEN {text} IS NULL OR strlen({text}) = length({text})"
            f" THEN {name}({text}) ELSE {refused} END"
        )

    return Rule(fixed(STRING, STRING), sql, may_raise=True)


def _resolve_length(name: str, arguments: tuple[Typed, ...]) -> Typed:
    types = types_of(arguments)
    if types not in ([STRING], [BINARY]):
        raise Refusal(f"{name} of {' and '.join(map(sql_type_name, types))}")
    return Call(name, arguments, INTEGER)


def _sql_length(call: Call, operands: Sequence[str]) -> str:
    measure = "octet_length" if call.arguments[0].data_type == BINARY else "length"
    return f"CAST({measure}({operands[0]}) AS INTEGER)"


def _resolve_substring(name: str, arguments: tuple[Typed, ...]) -> Typed:
    if len(arguments) not in (2, 3) or types_of(arguments)[0] != STRING:
        raise Refusal(f"{name} of these arguments")
    limits = [literal_of(name, each, int) for each in arguments[1:]]
    # Positions from the end and lengths below zero mean different things in the two engines.
    if any(not isinstance(each, int) or each < 0 for each in limits):
        raise Refusal(f"{name} with a negative argument")
    start = Literal(max(1, limits[0]), INTEGER)  # type: ignore[call-overload]
    return Call(name, (arguments[0], start, *arguments[2:]), STRING)


def _resolve_left(name: str, arguments: tuple[Typed, ...]) -> Typed:
    if len(arguments) != 2:
        raise Refusal(f"{name} with {len(arguments)} arguments")
    return _resolve_substring("substring", (arguments[0], Literal(1, INTEGER), arguments[1]))


def _trim(duckdb_name: str) -> Rule:
    def sql(call: Call, operands: Sequence[str]) -> str:  # noqa: ARG001
        return f"{duckdb_name}({operands[0]}, ' ')"

    return Rule(fixed(STRING, STRING), sql)


def _cast_function(target: DataType) -> Resolve:
    def resolve(name: str, arguments: tuple[Typed, ...]) -> Typed:
        if len(arguments) != 1:
            raise Refusal(f"{name} with {len(arguments)} arguments")
        result = cast(arguments[0], target)
        return replace(result, is_written=False) if isinstance(result, Literal) else result

    return resolve


def _never(name: str, arguments: tuple[Typed, ...]) -> Typed:
    raise AssertionError(f"{name} of {len(arguments)} operands is typed by the analysis")


def _sql_logical(call: Call, operands: Sequence[str]) -> str:
    return f"({f' {call.name.upper()} '.join(operands)})"


def _sql_not(call: Call, operands: Sequence[str]) -> str:  # noqa: ARG001
    return f"(NOT {operands[0]})"


_COMPARISON = Rule(_resolve_comparison, _sql_comparison)
_TEXT_TEST = (BOOLEAN, STRING, STRING)
_CAST_FUNCTIONS = {
    "bigint": PrimitiveType("long"),
    "boolean": BOOLEAN,
    "date": PrimitiveType("date"),
    "double": PrimitiveType("double"),
    "float": PrimitiveType("float"),
    "int": INTEGER,
    "smallint": PrimitiveType("short"),
    "string": STRING,
    "timestamp": PrimitiveType("timestamp"),
    "tinyint": PrimitiveType("byte"),
    "to_date": PrimitiveType("date"),
    "to_timestamp": PrimitiveType("timestamp"),
}

WHITELIST: Mapping[str, Rule] = {
    "and": Rule(_never, _sql_logical),
    "or": Rule(_never, _sql_logical),
    "not": Rule(_never, _sql_not),
    **dict.fromkeys(("=", "<", "<=", ">", ">=", "<=>"), _COMPARISON),
    "in": Rule(_resolve_in, _sql_in),
    "is null": Rule(_resolve_is_null, _sql_is_null),
    "isnotnull": Rule(_resolve_is_not_null, _sql_is_null),
    "isnan": Rule(_resolve_is_nan, _sql_is_nan),
    "case": Rule(_resolve_case, _sql_case),
    "if": Rule(_resolve_if, _sql_case),
    "nullif": Rule(_resolve_nullif, _sql_case),
    "nvl2": Rule(_resolve_nvl2, _sql_case),
    "coalesce": Rule(_resolve_coalesce, function("coalesce")),
    "greatest": Rule(_resolve_extremum, _sql_extremum),
    "least": Rule(_resolve_extremum, _sql_extremum),
    "concat": Rule(_resolve_concat, _sql_concat),
    "||": Rule(_resolve_concat, _sql_concat),
    "upper": _ascii_only("upper"),
    "lower": _ascii_only("lower"),
    "length": Rule(_resolve_length, _sql_length),
    "substring": Rule(_resolve_substring, function("substring")),
    "left": Rule(_resolve_left, function("substring")),
    "trim": _trim("trim"),
    "ltrim": _trim("ltrim"),
    "rtrim": _trim("rtrim"),
    "startswith": Rule(fixed(*_TEXT_TEST), function("starts_with")),
    "endswith": Rule(fixed(*_TEXT_TEST), function("ends_with")),
    "contains": Rule(fixed(*_TEXT_TEST), function("contains")),
    "like": Rule(resolve_like, sql_like),
    **ARITHMETIC,
    **NUMERIC_FUNCTIONS,
    **TEXT_FUNCTIONS,
    **NESTED_FUNCTIONS,
    **VARIANT_FUNCTIONS,
    **DATE_FUNCTIONS,
    **{
        name: Rule(_cast_function(target), function(name))
        for name, target in _CAST_FUNCTIONS.items()
    },
}
