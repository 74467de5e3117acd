"""LIKE in the whitelist: patterns that are constants, in pieces that every engine understands."""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from typing import TypeAlias

from dagster_delta.engines.sql.casts import Refusal
from dagster_delta.engines.sql.rules import boolean_call, literal_of, types_of
from dagster_delta.engines.sql.typed import Call, Literal, Typed
from dagster_delta.engines.sql.types import BOOLEAN, STRING, sql_type_name

__all__ = ["LikePiece", "Wildcard", "like_pieces", "resolve_like", "sql_like"]

_ESCAPE = "\\"


class Wildcard(Enum):
    """What a pattern leaves open."""

    ANY = "%"
    """Any text, the empty one included."""
    ONE = "_"
    """One character."""


LikePiece: TypeAlias = str | Wildcard


def like_pieces(pattern: str, escape: str = _ESCAPE) -> list[LikePiece]:
    """A LIKE pattern as text (never empty, never beside text) and wildcards.

    Raises:
        Refusal: an escape stands before a character that Spark lets nobody escape.
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


def resolve_like(name: str, arguments: tuple[Typed, ...]) -> Typed:
    """`text LIKE 'pattern'`, with the pattern escaped by a backslash whatever the SQL used.

    Raises:
        Refusal: the pattern is not a constant, or the operand is not text.
    """
    if not 2 <= len(arguments) <= 3:
        raise Refusal(f"{name.upper()} with {len(arguments)} arguments")
    if types_of(arguments)[0] != STRING:
        raise Refusal(f"LIKE of {sql_type_name(types_of(arguments)[0])}")
    if isinstance(arguments[1], Literal) and arguments[1].value is None:
        return Literal(None, BOOLEAN)
    pattern = literal_of("LIKE", arguments[1], str)
    escape = literal_of("LIKE", arguments[2], str) if len(arguments) == 3 else _ESCAPE
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
    return "".join(_ESCAPE + each if each in "%_" + _ESCAPE else each for each in text)


def sql_like(call: Call, operands: Sequence[str]) -> str:  # noqa: ARG001
    """DuckDB SQL, where LIKE has no escape unless it is given. Raises nothing."""
    return f"({operands[0]} LIKE {operands[1]} ESCAPE '{_ESCAPE}')"
