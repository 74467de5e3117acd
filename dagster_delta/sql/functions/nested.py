"""Functions of arrays, maps and structs in the whitelist."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from dagster_delta.protocol.schema import ArrayType, DataType, DecimalType, MapType
from dagster_delta.sql.casts import cast, raising
from dagster_delta.sql.functions.function import (
    UNLESS_NULL,
    Function,
    boolean_call,
    refused_type,
)
from dagster_delta.sql.typed import Call, Literal, Typed, types_of
from dagster_delta.sql.types import (
    INTEGER,
    STRING,
    VOID,
    common_type,
    holds_values,
    is_integral,
    is_numeric,
    is_primitive,
)


def _get_nested_type(name: str, arguments: Sequence[Typed]) -> ArrayType | MapType:
    found = types_of(arguments)[0]
    if not isinstance(found, ArrayType | MapType) or not holds_values(found):
        raise refused_type(name, *arguments)
    return found


def _resolve_size(name: str, arguments: tuple[Typed, ...]) -> Typed:
    _get_nested_type(name, arguments)
    return Call(name, arguments, INTEGER)


def _resolve_contains(name: str, arguments: tuple[Typed, ...]) -> Typed:
    array = _get_nested_type(name, arguments)
    searched = types_of(arguments)[1]
    if not isinstance(array, ArrayType):
        raise refused_type(name, *arguments)
    target = common_type([array.element_type, searched])
    # Text is not compared with values of other types here, as it is by `=`.
    is_mixed = STRING in (array.element_type, searched) and array.element_type != searched
    if target is None or searched == VOID or is_mixed or not is_primitive(target):
        raise refused_type(name, *arguments)
    elements = cast(arguments[0], ArrayType(target, contains_null=array.contains_null))
    return boolean_call(name, (elements, cast(arguments[1], target)))


def _resolve_subscript(name: str, arguments: tuple[Typed, ...]) -> Typed:
    """A value of an array by its position, from 0 on, or of a map by its key."""
    match _get_nested_type(name, arguments):
        case MapType(key_type, value_type):
            key = _cast_key(name, arguments, key_type)
            return Call("map value", (arguments[0], key), value_type)
        case ArrayType(element_type):
            return Call(name, (arguments[0], _cast_position(name, arguments)), element_type)


def _cast_key(name: str, arguments: Sequence[Typed], key_type: DataType) -> Typed:
    given = types_of(arguments)[1]
    widens = is_numeric(given) and is_numeric(key_type) and not isinstance(key_type, DecimalType)
    if not is_primitive(key_type) or (
        given not in (key_type, VOID)
        and not (widens and common_type([given, key_type]) == key_type)
    ):
        raise refused_type(name, *arguments)
    return cast(arguments[1], key_type)


def _cast_position(name: str, arguments: Sequence[Typed]) -> Typed:
    given = types_of(arguments)[1]
    # Spark drops the upper half of a longer position.
    fits = is_integral(given) and common_type([given, INTEGER]) == INTEGER
    if not (fits or given == VOID):
        raise refused_type(name, *arguments)
    return cast(arguments[1], INTEGER)


def _sql_size(call: Call, operands: Sequence[str]) -> str:
    is_array = isinstance(call.arguments[0].data_type, ArrayType)
    return f"CAST({'len' if is_array else 'cardinality'}({operands[0]}) AS INTEGER)"


def _sql_field(call: Call, operands: Sequence[str]) -> str:
    position = call.arguments[1]
    assert isinstance(position, Literal)  # noqa: S101  the analysis put it there
    return f"struct_extract_at({operands[0]}, {position.value})"


_CONTAINS = (
    f"{UNLESS_NULL} WHEN list_contains({{0}}, {{1}}) THEN TRUE"
    " WHEN list_count({0}) < len({0}) THEN NULL ELSE FALSE END"
)
_OUTSIDE = raising("the position is outside the array")
_SUBSCRIPT = (
    f"{UNLESS_NULL} WHEN {{1}} < 0 OR {{1}} >= len({{0}}) THEN {_OUTSIDE}"
    " ELSE {0}[CAST({1} AS BIGINT) + 1] END"
)

NESTED_FUNCTIONS: Mapping[str, Function] = {
    # With other settings than Spark's defaults, the size of null is -1.
    "size": Function(_resolve_size, _sql_size, is_strict=False),
    "array_contains": Function(_resolve_contains, _CONTAINS, takes=(2, 2)),
    "[]": Function(_resolve_subscript, _SUBSCRIPT, may_raise=True, takes=(2, 2)),
    "map value": Function(None, "{0}[{1}]"),
    ".": Function(None, _sql_field),
}
