"""Functions of arrays, maps and structs in the whitelist."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from dagster_delta.engines.sql.casts import Refusal, cast, raising
from dagster_delta.engines.sql.rules import Resolve, Rule, ToSql, boolean_call, types_of
from dagster_delta.engines.sql.typed import Call, Literal, Typed
from dagster_delta.engines.sql.types import (
    INTEGER,
    STRING,
    VOID,
    common_type,
    holds_values,
    is_integral,
    is_numeric,
    is_primitive,
    sql_type_name,
)
from dagster_delta.protocol.schema import ArrayType, DataType, DecimalType, MapType

__all__ = ["NESTED_FUNCTIONS"]


def _refused(name: str, arguments: Sequence[Typed]) -> Refusal:
    return Refusal(f"{name} of {' and '.join(map(sql_type_name, types_of(arguments)))}")


def _nested(name: str, arguments: Sequence[Typed], count: int) -> ArrayType | MapType:
    """The type of the first of `count` operands, an array or a map."""
    if len(arguments) != count:
        raise Refusal(f"{name} with {len(arguments)} arguments")
    found = types_of(arguments)[0]
    if not isinstance(found, ArrayType | MapType) or not holds_values(found):
        raise _refused(name, arguments)
    return found


def _resolve_size(name: str, arguments: tuple[Typed, ...]) -> Typed:
    _nested(name, arguments, 1)
    return Call(name, arguments, INTEGER)


def _sql_size(call: Call, operands: Sequence[str]) -> str:
    is_array = isinstance(call.arguments[0].data_type, ArrayType)
    return f"CAST({'len' if is_array else 'cardinality'}({operands[0]}) AS INTEGER)"


def _resolve_contains(name: str, arguments: tuple[Typed, ...]) -> Typed:
    array = _nested(name, arguments, 2)
    searched = types_of(arguments)[1]
    if not isinstance(array, ArrayType):
        raise _refused(name, arguments)
    target = common_type([array.element_type, searched])
    # Text is not compared with values of other types here, as it is by `=`.
    is_mixed = STRING in (array.element_type, searched) and array.element_type != searched
    if target is None or searched == VOID or is_mixed or not is_primitive(target):
        raise _refused(name, arguments)
    elements = cast(arguments[0], ArrayType(target, contains_null=array.contains_null))
    return boolean_call(name, (elements, cast(arguments[1], target)))


def _sql_contains(call: Call, operands: Sequence[str]) -> str:  # noqa: ARG001
    array, searched = operands
    return (
        f"CASE WHEN {array} IS NULL OR {searched} IS NULL THEN NULL"
        f" WHEN list_contains({array}, {searched}) THEN TRUE"
        f" WHEN list_count({array}) < len({array}) THEN NULL ELSE FALSE END"
    )


def _element(name: str) -> Resolve:
    """A value of an array by its position, or of a map by its key."""

    def resolve(spelled: str, arguments: tuple[Typed, ...]) -> Typed:  # noqa: ARG001
        match _nested(name, arguments, 2):
            case MapType(key_type, value_type) if name != "get":
                key = _key(name, arguments, key_type)
                return Call("map value", (arguments[0], key), value_type)
            case ArrayType(element_type):
                return Call(name, (arguments[0], _position(name, arguments)), element_type)
        raise _refused(name, arguments)

    return resolve


def _key(name: str, arguments: Sequence[Typed], key_type: DataType) -> Typed:
    given = types_of(arguments)[1]
    widens = is_numeric(given) and is_numeric(key_type) and not isinstance(key_type, DecimalType)
    if not is_primitive(key_type) or (
        given not in (key_type, VOID)
        and not (widens and common_type([given, key_type]) == key_type)
    ):
        raise _refused(name, arguments)
    return cast(arguments[1], key_type)


def _position(name: str, arguments: Sequence[Typed]) -> Typed:
    given = types_of(arguments)[1]
    # Spark cuts the upper half off a longer position.
    fits = is_integral(given) and common_type([given, INTEGER]) == INTEGER
    is_null = given == VOID and name in ("[]", "get")
    if not (fits or is_null):
        raise _refused(name, arguments)
    return cast(arguments[1], INTEGER)


def _sql_map_value(call: Call, operands: Sequence[str]) -> str:  # noqa: ARG001
    return f"{operands[0]}[{operands[1]}]"


def _sql_get(call: Call, operands: Sequence[str]) -> str:  # noqa: ARG001
    array, index = operands
    return f"CASE WHEN {index} >= 0 THEN {array}[CAST({index} AS BIGINT) + 1] ELSE NULL END"


def _sql_subscript(call: Call, operands: Sequence[str]) -> str:
    array, index = operands
    outside = raising("the position is outside the array")
    return (
        f"CASE WHEN {array} IS NULL OR {index} IS NULL THEN NULL"
        f" WHEN {index} < 0 OR {index} >= len({array}) THEN {outside}"
        f" ELSE {_sql_get(call, operands)} END"
    )


def _sql_element_at(*, tries: bool) -> ToSql:
    """Positions count from 1, and those below zero from the end."""

    def sql(call: Call, operands: Sequence[str]) -> str:  # noqa: ARG001
        array, position = operands
        outside = "NULL" if tries else raising("the position is outside the array")
        return (
            f"CASE WHEN {array} IS NULL OR {position} IS NULL THEN NULL"
            f" WHEN {position} = 0 THEN {raising('positions count from 1')}"
            f" WHEN abs(CAST({position} AS BIGINT)) > len({array}) THEN {outside}"
            f" ELSE {array}[{position}] END"
        )

    return sql


def _sql_field(call: Call, operands: Sequence[str]) -> str:
    position = call.arguments[1]
    assert isinstance(position, Literal)  # noqa: S101  the analysis put it there
    return f"struct_extract_at({operands[0]}, {position.value})"


def _never(name: str, arguments: tuple[Typed, ...]) -> Typed:
    raise AssertionError(f"{name} of {len(arguments)} operands is typed by the analysis")


NESTED_FUNCTIONS: Mapping[str, Rule] = {
    "size": Rule(_resolve_size, _sql_size),
    "array_contains": Rule(_resolve_contains, _sql_contains),
    "get": Rule(_element("get"), _sql_get),
    "[]": Rule(_element("[]"), _sql_subscript, may_raise=True),
    "element_at": Rule(_element("element_at"), _sql_element_at(tries=False), may_raise=True),
    "try_element_at": Rule(_element("try_element_at"), _sql_element_at(tries=True), may_raise=True),
    "map value": Rule(_never, _sql_map_value),
    ".": Rule(_never, _sql_field),
}
