"""Functions of text in the whitelist, beside those that `functions` spells in one line."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from dagster_delta.engines.sql.casts import Refusal, cast, raising
from dagster_delta.engines.sql.patterns import resolve_like, sql_like
from dagster_delta.engines.sql.regular_expressions import (
    LINE_END,
    TEXT_END,
    WITHIN_LINE_ENDS,
    translated_pattern,
)
from dagster_delta.engines.sql.rules import (
    Rule,
    boolean_call,
    fixed,
    function,
    literal_of,
    types_of,
)
from dagster_delta.engines.sql.typed import Call, Literal, Typed
from dagster_delta.engines.sql.types import BINARY, INTEGER, STRING, sql_type_name

__all__ = ["TEXT_FUNCTIONS"]


def _text(name: str, argument: Typed) -> Typed:
    """An operand that is text, or NULL."""
    is_null = isinstance(argument, Literal) and argument.value is None
    if argument.data_type != STRING and not is_null:
        raise Refusal(f"{name} of {sql_type_name(types_of([argument])[0])}")
    return cast(argument, STRING)


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


def _arguments(name: str, arguments: Sequence[Typed], *counts: int) -> None:
    if len(arguments) not in counts:
        raise Refusal(f"{name} with {len(arguments)} arguments")


def _resolve_replace(name: str, arguments: tuple[Typed, ...]) -> Typed:
    _arguments(name, arguments, 2, 3)
    searched = Literal(_constant_text(name, arguments[1]), STRING)
    by = _text(name, arguments[2]) if len(arguments) == 3 else Literal("", STRING)
    return Call(name, (_text(name, arguments[0]), searched, by), STRING)


def _resolve_counted(name: str, arguments: tuple[Typed, ...]) -> Typed:
    _arguments(name, arguments, 2)
    return Call(name, (_text(name, arguments[0]), _count(name, arguments[1])), STRING)


def _resolve_pad(name: str, arguments: tuple[Typed, ...]) -> Typed:
    _arguments(name, arguments, 2, 3)
    padding = _constant_text(name, arguments[2]) if len(arguments) == 3 else " "
    operands = (_text(name, arguments[0]), _count(name, arguments[1]), Literal(padding, STRING))
    return Call(name, operands, STRING)


def _resolve_instr(name: str, arguments: tuple[Typed, ...]) -> Typed:
    _arguments(name, arguments, 2)
    return Call("instr", tuple(_text(name, each) for each in arguments), INTEGER)


def _resolve_locate(name: str, arguments: tuple[Typed, ...]) -> Typed:
    _arguments(name, arguments, 2)
    return _resolve_instr(name, (arguments[1], arguments[0]))


def _resolve_split_part(name: str, arguments: tuple[Typed, ...]) -> Typed:
    _arguments(name, arguments, 3)
    delimiter = Literal(_constant_text(name, arguments[1]), STRING)
    part = _count(name, arguments[2])
    if part.value == 0:
        raise Refusal(f"{name} with the part 0")
    return Call(name, (_text(name, arguments[0]), delimiter, part), STRING)


def _resolve_concat_ws(name: str, arguments: tuple[Typed, ...]) -> Typed:
    if len(arguments) < 2:
        raise Refusal(f"{name} with {len(arguments)} arguments")
    return Call(name, tuple(_text(name, each) for each in arguments), STRING)


def _resolve_translate(name: str, arguments: tuple[Typed, ...]) -> Typed:
    _arguments(name, arguments, 3)
    constants = [str(literal_of(name, each, str)) for each in arguments[1:]]
    operands = (_text(name, arguments[0]), *(Literal(each, STRING) for each in constants))
    return Call(name, operands, STRING)


def _resolve_digest(name: str, arguments: tuple[Typed, ...]) -> Typed:
    if name == "sha2":
        _arguments(name, arguments, 2)
        if literal_of(name, arguments[1], int) not in (0, 256):
            raise Refusal(f"{name} of other than 256 bits")
    else:
        _arguments(name, arguments, 1)
    if types_of(arguments)[0] not in (STRING, BINARY):
        raise Refusal(f"{name} of {sql_type_name(types_of(arguments)[0])}")
    return Call({"sha2": "sha256"}.get(name, name), arguments[:1], STRING)


def _resolve_octets(name: str, arguments: tuple[Typed, ...]) -> Typed:
    _arguments(name, arguments, 1)
    if types_of(arguments)[0] not in (STRING, BINARY):
        raise Refusal(f"{name} of {sql_type_name(types_of(arguments)[0])}")
    return Call(name, arguments, INTEGER)


def _sql_octets(call: Call, operands: Sequence[str]) -> str:
    is_text = call.arguments[0].data_type == STRING
    count = f"strlen({operands[0]})" if is_text else f"octet_length({operands[0]})"
    return f"CAST({count}{' * 8' if call.name == 'bit_length' else ''} AS INTEGER)"


def _resolve_ilike(name: str, arguments: tuple[Typed, ...]) -> Typed:
    _arguments(name, arguments, 2, 3)
    if isinstance(arguments[1], Literal) and arguments[1].value is None:
        return resolve_like(name, arguments)
    pattern = literal_of("ILIKE", arguments[1], str)
    if not isinstance(pattern, str) or not pattern.isascii():
        raise Refusal("ILIKE with letters outside ASCII")
    lowered = Call("lower", (_text("ILIKE", arguments[0]),), STRING)
    return resolve_like(name, (lowered, Literal(pattern.lower(), STRING), *arguments[2:]))


def _resolve_rlike(name: str, arguments: tuple[Typed, ...]) -> Typed:
    _arguments(name, arguments, 2)
    pattern = translated_pattern(str(literal_of("RLIKE", arguments[1], str)))
    patterns = [pattern]
    if pattern.endswith(TEXT_END):
        patterns = [pattern.removesuffix(TEXT_END) + each for each in WITHIN_LINE_ENDS]
    literals = (Literal(each, STRING) for each in patterns)
    return boolean_call(name, (_text("RLIKE", arguments[0]), *literals))


def _sql_rlike(call: Call, operands: Sequence[str]) -> str:  # noqa: ARG001
    text, *patterns = operands
    found = [f"regexp_matches({text}, {each})" for each in patterns]
    if len(found) == 1:
        return found[0]
    return f"CASE WHEN ends_with({text}, chr(13) || chr(10)) THEN {found[0]} ELSE {found[1]} END"


def _resolve_regexp_replace(name: str, arguments: tuple[Typed, ...]) -> Typed:
    _arguments(name, arguments, 3)
    pattern = translated_pattern(str(literal_of(name, arguments[1], str)), replaces=True)
    replacement = literal_of(name, arguments[2], str)
    if not isinstance(replacement, str) or set(replacement) & set("$\\"):
        raise Refusal(f"{name} with groups in what it puts in")
    operands = (
        _text(name, arguments[0]),
        Literal(pattern, STRING),
        Literal(replacement, STRING),
        Literal("g", STRING),
    )
    return Call(name, operands, STRING)


def _sql_regexp_replace(call: Call, operands: Sequence[str]) -> str:
    replaced, pattern = f"regexp_replace({', '.join(operands)})", call.arguments[1]
    assert isinstance(pattern, Literal)  # noqa: S101  as it was resolved
    if not str(pattern.value).endswith(TEXT_END):
        return replaced
    refused = raising(
        "regexp_replace() with $ of text that ends in a line end: use the Spark engine"
    )
    return (
        f"CASE WHEN regexp_matches({operands[0]}, '{LINE_END}') THEN {refused} ELSE {replaced} END"
    )


TEXT_FUNCTIONS: Mapping[str, Rule] = {
    "replace": Rule(_resolve_replace, function("replace")),
    "right": Rule(_resolve_counted, function("right")),
    "repeat": Rule(_resolve_counted, function("repeat")),
    "lpad": Rule(_resolve_pad, function("lpad")),
    "rpad": Rule(_resolve_pad, function("rpad")),
    "instr": Rule(_resolve_instr, function("instr", "INTEGER")),
    "locate": Rule(_resolve_locate, function("instr", "INTEGER")),
    "split_part": Rule(_resolve_split_part, function("split_part")),
    "concat_ws": Rule(_resolve_concat_ws, function("concat_ws")),
    "translate": Rule(_resolve_translate, function("translate")),
    "md5": Rule(_resolve_digest, function("md5")),
    "sha1": Rule(_resolve_digest, function("sha1")),
    "sha2": Rule(_resolve_digest, function("sha256")),
    "sha256": Rule(fixed(STRING, STRING), function("sha256")),
    "octet_length": Rule(_resolve_octets, _sql_octets),
    "bit_length": Rule(_resolve_octets, _sql_octets),
    "ilike": Rule(_resolve_ilike, sql_like, may_raise=True),
    "rlike": Rule(_resolve_rlike, _sql_rlike),
    "regexp_replace": Rule(_resolve_regexp_replace, _sql_regexp_replace, may_raise=True),
}
