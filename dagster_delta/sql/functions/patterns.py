"""Patterns of LIKE as texts and wildcards."""

from __future__ import annotations

import re
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
    lexemes = rf"(?s){re.escape(escape)}(.?)|([%_])|(.)"
    for escaped, wildcard, plain in re.findall(lexemes, pattern):
        if wildcard:
            pieces.append(Wildcard(wildcard))
            continue
        if not plain and escaped not in ("%", "_", escape):
            raise Refusal(f"the LIKE pattern {pattern!r}, in which an escape has no meaning,")
        if pieces and isinstance(pieces[-1], str):
            pieces[-1] += escaped or plain
        else:
            pieces.append(escaped or plain)
    return pieces
