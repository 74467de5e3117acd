"""Functions of text in the whitelist."""

from __future__ import annotations

from collections.abc import Mapping

from dagster_delta.sql.casts import cast
from dagster_delta.sql.functions.signatures import (
    Resolve,
    calls,
    check_count,
    fixed,
    literal_of,
    of_types,
    text_operand,
)
from dagster_delta.sql.typed import Call, Literal, Refusal, Typed, types_of
from dagster_delta.sql.types import BINARY, BOOLEAN, INTEGER, STRING

_TEXT_TEST = (BOOLEAN, STRING, STRING)


def _count(name: str, argument: Typed) -> Literal:
    found = literal_of(name, argument, int)
    if not isinstance(found, int) or found < 0:
        raise Refusal(f"{name} with a negative argument")
    return Literal(found, INTEGER)


def _part(name: str, argument: Typed) -> Literal:
    part = _count(name, argument)
    if part.value == 0:
        raise Refusal(f"{name} with the part 0")
    return part


def _constant(name: str, argument: Typed) -> Literal:
    return Literal(literal_of(name, argument, str), STRING)


def _filled_constant(name: str, argument: Typed) -> Literal:
    text = _constant(name, argument)
    if not text.value:
        raise Refusal(f"{name} with an empty text")
    return text


_text_or_bytes = of_types(STRING, BINARY)


def _resolve_locate(name: str, arguments: tuple[Typed, ...]) -> Typed:
    check_count(name, arguments, 2)
    return Call("instr", tuple(text_operand(name, each) for each in arguments[::-1]), INTEGER)


def _resolve_concat_ws(name: str, arguments: tuple[Typed, ...]) -> Typed:
    if len(arguments) < 2:
        raise Refusal(f"{name} with {len(arguments)} arguments")
    return Call(name, tuple(text_operand(name, each) for each in arguments), STRING)


def _resolve_sha2(name: str, arguments: tuple[Typed, ...]) -> Typed:
    check_count(name, arguments, 2)
    if literal_of(name, arguments[1], int) not in (0, 256):
        raise Refusal(f"{name} of other than 256 bits")
    return Call("sha256", (_text_or_bytes(name, arguments[0]),), STRING)


def _resolve_concat(name: str, arguments: tuple[Typed, ...]) -> Typed:
    types = types_of(arguments)
    if not types:
        raise Refusal(f"{name} without arguments")
    if BINARY in types:
        raise Refusal(f"{name} of binary")
    return Call("||", tuple(cast(each, STRING) for each in arguments), STRING)


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
    check_count(name, arguments, 2)
    return _resolve_substring("substring", (arguments[0], Literal(1, INTEGER), arguments[1]))


TEXT_FUNCTIONS: Mapping[str, Resolve] = {
    **dict.fromkeys(("concat", "||"), _resolve_concat),
    **dict.fromkeys(("upper", "lower", "trim", "ltrim", "rtrim"), fixed(STRING, STRING)),
    **dict.fromkeys(("startswith", "endswith", "contains"), fixed(*_TEXT_TEST)),
    **dict.fromkeys(("length", "octet_length", "bit_length"), calls(INTEGER, _text_or_bytes)),
    "substring": _resolve_substring,
    "left": _resolve_left,
    "replace": calls(
        STRING, text_operand, _filled_constant, text_operand, defaults=(Literal("", STRING),)
    ),
    **dict.fromkeys(("right", "repeat"), calls(STRING, text_operand, _count)),
    **dict.fromkeys(
        ("lpad", "rpad"),
        calls(STRING, text_operand, _count, _filled_constant, defaults=(Literal(" ", STRING),)),
    ),
    "instr": calls(INTEGER, text_operand, text_operand),
    "locate": _resolve_locate,
    "split_part": calls(STRING, text_operand, _filled_constant, _part),
    "concat_ws": _resolve_concat_ws,
    "translate": calls(STRING, text_operand, _constant, _constant),
    **dict.fromkeys(("md5", "sha1"), calls(STRING, _text_or_bytes)),
    "sha2": _resolve_sha2,
    "sha256": fixed(STRING, STRING),
}
