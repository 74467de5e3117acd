"""Patterns of LIKE as texts and wildcards."""

from __future__ import annotations

from enum import Enum
from typing import TypeAlias

from dagster_delta.sql.typed import Refusal

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
