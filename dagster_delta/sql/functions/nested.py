"""Functions of arrays, maps and structs in the whitelist."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from dagster_delta.protocol.schema import ArrayType, DataType, DecimalType, MapType
from dagster_delta.sql.casts import cast
from dagster_delta.sql.functions.signatures import (
    Resolve,
    boolean_call,
    check_count,
    refused_type,
    typed_by_analysis,
)
from dagster_delta.sql.typed import Call, Typed, types_of
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


def _nested(name: str, arguments: Sequence[Typed], count: int) -> ArrayType | MapType:
    """The type of the first operand, an array or a map; checks that there are `count`."""
    check_count(name, arguments, count)
    found = types_of(arguments)[0]
    if not isinstance(found, ArrayType | MapType) or not holds_values(found):
        raise refused_type(name, *arguments)
    return found


def _resolve_size(name: str, arguments: tuple[Typed, ...]) -> Typed:
    _nested(name, arguments, 1)
    return Call(name, arguments, INTEGER)


def _resolve_contains(name: str, arguments: tuple[Typed, ...]) -> Typed:
    array = _nested(name, arguments, 2)
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


def _element(name: str) -> Resolve:
    """A value of an array by its position, or of a map by its key."""

    def resolve(spelled: str, arguments: tuple[Typed, ...]) -> Typed:  # noqa: ARG001
        match _nested(name, arguments, 2):
            case MapType(key_type, value_type) if name != "get":
                key = _key(name, arguments, key_type)
                return Call("map value", (arguments[0], key), value_type)
            case ArrayType(element_type):
                return Call(name, (arguments[0], _position(name, arguments)), element_type)
        raise refused_type(name, *arguments)

    return resolve


def _key(name: str, arguments: Sequence[Typed], key_type: DataType) -> Typed:
    given = types_of(arguments)[1]
    widens = is_numeric(given) and is_numeric(key_type) and not isinstance(key_type, DecimalType)
    if not is_primitive(key_type) or (
        given not in (key_type, VOID)
        and not (widens and common_type([given, key_type]) == key_type)
    ):
        raise refused_type(name, *arguments)
    return cast(arguments[1], key_type)


def _position(name: str, arguments: Sequence[Typed]) -> Typed:
    given = types_of(arguments)[1]
    # Spark drops the upper half of a longer position.
    fits = is_integral(given) and common_type([given, INTEGER]) == INTEGER
    is_null = given == VOID and name in ("[]", "get")
    if not (fits or is_null):
        raise refused_type(name, *arguments)
    return cast(arguments[1], INTEGER)


NESTED_FUNCTIONS: Mapping[str, Resolve] = {
    "size": _resolve_size,
    "array_contains": _resolve_contains,
    **{name: _element(name) for name in ("get", "[]", "element_at", "try_element_at")},
    **dict.fromkeys(("map value", "."), typed_by_analysis),
}
