"""Functions of text in the whitelist."""

from __future__ import annotations

from collections.abc import Mapping

from dagster_delta.sql.casts import cast
from dagster_delta.sql.functions.signatures import (
    Resolve,
    check_count,
    fixed,
    literal_of,
    text_operand,
)
from dagster_delta.sql.typed import Call, Literal, Refusal, Typed, types_of
from dagster_delta.sql.types import BINARY, BOOLEAN, INTEGER, STRING, sql_type_name

_TEXT_TEST = (BOOLEAN, STRING, STRING)


def _count(name: str, argument: Typed) -> Literal:
    found = literal_of(name, argument, int)
    if not isinstance(found, int) or found < 0:
        raise Refusal(f"{name} with a negative argument")
    return Literal(found, INTEGER)


def _constant_text(name: str, argument: Typed) -> str:
    found = literal_of(name, argument, str)
    if not found:
        raise Refusal(f"{name} with an empty text")
    return str(found)


def _resolve_replace(name: str, arguments: tuple[Typed, ...]) -> Typed:
    check_count(name, arguments, 2, 3)
    searched = Literal(_constant_text(name, arguments[1]), STRING)
    by = text_operand(name, arguments[2]) if len(arguments) == 3 else Literal("", STRING)
    return Call(name, (text_operand(name, arguments[0]), searched, by), STRING)


def _resolve_counted(name: str, arguments: tuple[Typed, ...]) -> Typed:
    check_count(name, arguments, 2)
    return Call(name, (text_operand(name, arguments[0]), _count(name, arguments[1])), STRING)


def _resolve_pad(name: str, arguments: tuple[Typed, ...]) -> Typed:
    check_count(name, arguments, 2, 3)
    padding = _constant_text(name, arguments[2]) if len(arguments) == 3 else " "
    operands = (
        text_operand(name, arguments[0]),
        _count(name, arguments[1]),
        Literal(padding, STRING),
    )
    return Call(name, operands, STRING)


def _resolve_instr(name: str, arguments: tuple[Typed, ...]) -> Typed:
    check_count(name, arguments, 2)
    return Call("instr", tuple(text_operand(name, each) for each in arguments), INTEGER)


def _resolve_locate(name: str, arguments: tuple[Typed, ...]) -> Typed:
    check_count(name, arguments, 2)
    return _resolve_instr(name, (arguments[1], arguments[0]))


def _resolve_split_part(name: str, arguments: tuple[Typed, ...]) -> Typed:
    check_count(name, arguments, 3)
    delimiter = Literal(_constant_text(name, arguments[1]), STRING)
    part = _count(name, arguments[2])
    if part.value == 0:
        raise Refusal(f"{name} with the part 0")
    return Call(name, (text_operand(name, arguments[0]), delimiter, part), STRING)


def _resolve_concat_ws(name: str, arguments: tuple[Typed, ...]) -> Typed:
    if len(arguments) < 2:
        raise Refusal(f"{name} with {len(arguments)} arguments")
    return Call(name, tuple(text_operand(name, each) for each in arguments), STRING)


def _resolve_translate(name: str, arguments: tuple[Typed, ...]) -> Typed:
    check_count(name, arguments, 3)
    constants = [str(literal_of(name, each, str)) for each in arguments[1:]]
    operands = (text_operand(name, arguments[0]), *(Literal(each, STRING) for each in constants))
    return Call(name, operands, STRING)


def _resolve_digest(name: str, arguments: tuple[Typed, ...]) -> Typed:
    if name == "sha2":
        check_count(name, arguments, 2)
        if literal_of(name, arguments[1], int) not in (0, 256):
            raise Refusal(f"{name} of other than 256 bits")
    else:
        check_count(name, arguments, 1)
    if types_of(arguments)[0] not in (STRING, BINARY):
        raise Refusal(f"{name} of {sql_type_name(types_of(arguments)[0])}")
    return Call({"sha2": "sha256"}.get(name, name), arguments[:1], STRING)


def _resolve_octets(name: str, arguments: tuple[Typed, ...]) -> Typed:
    check_count(name, arguments, 1)
    if types_of(arguments)[0] not in (STRING, BINARY):
        raise Refusal(f"{name} of {sql_type_name(types_of(arguments)[0])}")
    return Call(name, arguments, INTEGER)


def _resolve_concat(name: str, arguments: tuple[Typed, ...]) -> Typed:
    types = types_of(arguments)
    if not types:
        raise Refusal(f"{name} without arguments")
    if BINARY in types:
        raise Refusal(f"{name} of binary")
    return Call("||", tuple(cast(each, STRING) for each in arguments), STRING)


def _resolve_length(name: str, arguments: tuple[Typed, ...]) -> Typed:
    types = types_of(arguments)
    if types not in ([STRING], [BINARY]):
        raise Refusal(f"{name} of {' and '.join(map(sql_type_name, types))}")
    return Call(name, arguments, INTEGER)


def _resolve_substring(name: str, arguments: tuple[Typed, ...]) -> Typed:
    if len(arguments) not in (2, 3) or types_of(arguments)[0] != STRING:
        raise Refusal(f"{name} of these arguments")
    limits = [literal_of(name, each, int) for each in arguments[1:]]
    # Negative positions and lengths mean different things in the two engines.
    if any(not isinstance(each, int) or each < 0 for each in limits):
        raise Refusal(f"{name} with a negative argument")
    start = Literal(max(1, limits[0]), INTEGER)  # type: ignore[call-overload]
    return Call(name, (arguments[0], start, *arguments[2:]), STRING)


def _resolve_left(name: str, arguments: tuple[Typed, ...]) -> Typed:
    if len(arguments) != 2:
        raise Refusal(f"{name} with {len(arguments)} arguments")
    return _resolve_substring("substring", (arguments[0], Literal(1, INTEGER), arguments[1]))


TEXT_FUNCTIONS: Mapping[str, Resolve] = {
    **dict.fromkeys(("concat", "||"), _resolve_concat),
    **dict.fromkeys(("upper", "lower", "trim", "ltrim", "rtrim"), fixed(STRING, STRING)),
    **dict.fromkeys(("startswith", "endswith", "contains"), fixed(*_TEXT_TEST)),
    "length": _resolve_length,
    "substring": _resolve_substring,
    "left": _resolve_left,
    "replace": _resolve_replace,
    "right": _resolve_counted,
    "repeat": _resolve_counted,
    "lpad": _resolve_pad,
    "rpad": _resolve_pad,
    "instr": _resolve_instr,
    "locate": _resolve_locate,
    "split_part": _resolve_split_part,
    "concat_ws": _resolve_concat_ws,
    "translate": _resolve_translate,
    "md5": _resolve_digest,
    "sha1": _resolve_digest,
    "sha2": _resolve_digest,
    "sha256": fixed(STRING, STRING),
    "octet_length": _resolve_octets,
    "bit_length": _resolve_octets,
}
