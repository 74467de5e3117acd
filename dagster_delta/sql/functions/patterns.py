"""LIKE and regular expressions in the whitelist: patterns that are constants."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import TypeAlias

from dagster_delta.sql.functions.regular_expressions import (
    TEXT_END,
    WITHIN_LINE_ENDS,
    translated_pattern,
)
from dagster_delta.sql.functions.signatures import (
    Resolve,
    boolean_call,
    check_count,
    literal_of,
    text_operand,
)
from dagster_delta.sql.typed import Call, Literal, Refusal, Typed, types_of
from dagster_delta.sql.types import BOOLEAN, STRING, sql_type_name

ESCAPE = "\\"


class Wildcard(Enum):
    """A wildcard of a pattern."""

    ANY = "%"
    """Any text, the empty one included."""
    ONE = "_"
    """One character."""


LikePiece: TypeAlias = str | Wildcard


def like_pieces(pattern: str, escape: str = ESCAPE) -> list[LikePiece]:
    """A LIKE pattern as text (never empty, never beside text) and wildcards.

    Raises:
        Refusal: an escape precedes a character that Spark does not let it escape.
    """
    pieces: list[LikePiece] = []

    def add(text: str) -> None:
        if pieces and isinstance(pieces[-1], str):
            pieces[-1] += text
        else:
            pieces.append(text)

    characters = iter(pattern)
    for character in characters:
        if character == escape:
            following = next(characters, "")
            if following not in ("%", "_", escape):
                raise Refusal(f"the LIKE pattern {pattern!r}, in which an escape has no meaning,")
            add(following)
        elif character in "%_":
            pieces.append(Wildcard(character))
        else:
            add(character)
    return pieces


def _resolve_like(name: str, arguments: tuple[Typed, ...]) -> Typed:
    """`text LIKE 'pattern'`, with backslash as the escape whichever one the SQL uses."""
    if not 2 <= len(arguments) <= 3:
        raise Refusal(f"{name.upper()} with {len(arguments)} arguments")
    if types_of(arguments)[0] != STRING:
        raise Refusal(f"LIKE of {sql_type_name(types_of(arguments)[0])}")
    if isinstance(arguments[1], Literal) and arguments[1].value is None:
        return Literal(None, BOOLEAN)
    pattern = literal_of("LIKE", arguments[1], str)
    escape = literal_of("LIKE", arguments[2], str) if len(arguments) == 3 else ESCAPE
    if not isinstance(pattern, str) or not isinstance(escape, str) or len(escape) != 1:
        raise Refusal("LIKE with an escape that is not one character")
    if escape in "%_":
        raise Refusal(f"LIKE with the escape {escape!r}")
    normalised = "".join(
        piece.value if isinstance(piece, Wildcard) else _escaped(piece)
        for piece in like_pieces(pattern, escape)
    )
    return boolean_call(name, (arguments[0], Literal(normalised, STRING)))


def _escaped(text: str) -> str:
    return "".join(ESCAPE + each if each in "%_" + ESCAPE else each for each in text)


def _resolve_ilike(name: str, arguments: tuple[Typed, ...]) -> Typed:
    check_count(name, arguments, 2, 3)
    if isinstance(arguments[1], Literal) and arguments[1].value is None:
        return _resolve_like(name, arguments)
    pattern = literal_of("ILIKE", arguments[1], str)
    if not isinstance(pattern, str) or not pattern.isascii():
        raise Refusal("ILIKE with letters outside ASCII")
    lowered = Call("lower", (text_operand("ILIKE", arguments[0]),), STRING)
    return _resolve_like(name, (lowered, Literal(pattern.lower(), STRING), *arguments[2:]))


def _resolve_rlike(name: str, arguments: tuple[Typed, ...]) -> Typed:
    check_count(name, arguments, 2)
    pattern = translated_pattern(str(literal_of("RLIKE", arguments[1], str)))
    patterns = [pattern]
    if pattern.endswith(TEXT_END):
        patterns = [pattern.removesuffix(TEXT_END) + each for each in WITHIN_LINE_ENDS]
    literals = (Literal(each, STRING) for each in patterns)
    return boolean_call(name, (text_operand("RLIKE", arguments[0]), *literals))


def _resolve_regexp_replace(name: str, arguments: tuple[Typed, ...]) -> Typed:
    check_count(name, arguments, 3)
    pattern = translated_pattern(str(literal_of(name, arguments[1], str)), replaces=True)
    replacement = literal_of(name, arguments[2], str)
    if not isinstance(replacement, str) or set(replacement) & set("$\\"):
        raise Refusal(f"{name} with groups in what it puts in")
    operands = (
        text_operand(name, arguments[0]),
        Literal(pattern, STRING),
        Literal(replacement, STRING),
        Literal("g", STRING),
    )
    return Call(name, operands, STRING)


PATTERN_FUNCTIONS: Mapping[str, Resolve] = {
    "like": _resolve_like,
    "ilike": _resolve_ilike,
    "rlike": _resolve_rlike,
    "regexp_replace": _resolve_regexp_replace,
}
