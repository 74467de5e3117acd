"""Patterns of LIKE as texts and wildcards, and regular expressions of Java as those of RE2."""

from __future__ import annotations

import re
from enum import Enum
from typing import NamedTuple, TypeAlias

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


_LINE_ENDS = r"\n\r\x{85}\x{2028}\x{2029}"
LINE_END = f"[{_LINE_ENDS}]"
"""RE2 for what Java takes for the end of a line."""
_SPACES = r"\t\n\v\f\r "
_OPERATORS = r"\^$.|?*+()[]{}"
_SHARED_ESCAPES = frozenset("dDwWtnrf" + _OPERATORS + "-/")
_MAX_REPEATS = 1000

_ATOM = re.compile(
    r"\\(?P<escape>.)|\[(?P<class>\^?(?:\\.|[^\[\]\\])+)\]|(?P<group>\((?:\?:)?)|(?P<plain>[^\x00-\x1f])",
    re.DOTALL,
)
_QUANTIFIER = re.compile(r"(?:[*+?]|\{([0-9]+)(,([0-9]*))?\})\??(?![*+?{])")
_IN_CLASS = re.compile(r"(\\.|[^\\-])(?:-([^\\-]))?|-(?=$)", re.DOTALL)


class Re2Pattern(NamedTuple):
    """A regular expression of Java for RE2."""

    text: str
    has_end: bool
    """Whether it has a `$`, which Java also finds before a line end at the end of the text."""


def re2_pattern(pattern: str) -> Re2Pattern:
    """A regular expression of Java as one of RE2 that is found in the same texts.

    Raises:
        Refusal: it has more than characters, classes of ASCII, groups, alternatives, repetitions,
            `^` and `$`.
    """
    refusal = Refusal(f"the regular expression {pattern!r}")
    found, place, depth, repeats, has_end = "", 0, 0, 1, False
    while place < len(pattern):
        atom = _ATOM.match(pattern, place)
        if atom is None:
            raise refusal
        place = atom.end()
        may_repeat = True
        if atom["escape"] is not None:
            found += _re2_escape(atom["escape"], refusal)
        elif atom["class"] is not None:
            found += _re2_class(atom["class"], refusal)
        elif atom["group"] is not None:
            found, depth, may_repeat = found + "(?:", depth + 1, False
        else:
            character = atom["plain"]
            depth -= character == ")"
            has_end = has_end or character == "$"
            may_repeat = character not in "^$|"
            found += _re2_character(character, refusal)
        if depth < 0:
            raise refusal
        quantifier = _QUANTIFIER.match(pattern, place)
        if quantifier is not None and may_repeat:
            repeats *= max(1, *(int(number or 1) for number in quantifier.group(1, 3)))
            found, place = found + quantifier[0], quantifier.end()
    if depth or repeats > _MAX_REPEATS:
        raise refusal
    return Re2Pattern(found, has_end)


def _re2_character(character: str, refusal: Refusal) -> str:
    match character:
        case ".":
            return f"[^{_LINE_ENDS}]"
        case "^":
            return r"\A"
        case "$":
            return r"\z"
        case "|" | ")":
            return character
    if character in _OPERATORS:
        raise refusal
    return character


def _re2_escape(character: str, refusal: Refusal) -> str:
    if character in ("s", "S"):
        return f"[{'^' if character == 'S' else ''}{_SPACES}]"
    if character not in _SHARED_ESCAPES:
        raise refusal
    return "\\" + character


def _re2_class(text: str, refusal: Refusal) -> str:
    negation = "^" if text.startswith("^") else ""
    items = text.removeprefix("^")
    if not items or "&&" in items:
        raise refusal
    found, place = negation, 0
    if items.startswith("-"):
        found, place = found + r"\-", 1
    while place < len(items):
        item = _IN_CLASS.match(items, place)
        if item is None:
            raise refusal
        place = item.end()
        first, last = item.groups()
        if first is None:
            found += r"\-"
        elif first == r"\s":
            found += _SPACES
        elif first.startswith("\\"):
            if last is not None or first[1] not in _SHARED_ESCAPES:
                raise refusal
            found += first
        elif last is not None:
            if not (first <= last and first.isalnum() and last.isalnum()):
                raise refusal
            found += f"{first}-{last}"
        else:
            found += "\\^" if first == "^" else first
    return f"[{found}]"
