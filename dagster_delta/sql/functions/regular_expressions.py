"""Regular expressions in the whitelist: the part of Java's that means the same to RE2.

Spark matches with Java's regular expressions, the embedded engine with RE2. Each construct is
checked; one that differs between the two is rewritten for RE2 or refused.
"""

from __future__ import annotations

import re
import string

from dagster_delta.sql.typed import Refusal

# Java's line terminators; RE2 has only one.
_LINE_ENDS = r"\n\r\x{85}\x{2028}\x{2029}"
_ANY = f"[^{_LINE_ENDS}]"

TEXT_END = r"\z"
LINE_END = rf"[{_LINE_ENDS}]{TEXT_END}"
"""Matches the line terminator at the end of a text."""
WITHIN_LINE_ENDS = (rf"(?:\r\n)?{TEXT_END}", rf"[{_LINE_ENDS}]?{TEXT_END}")
"""What a `$` matches in a text that ends in CR LF (never between the two), and in others."""

_CLASSES = {
    "d": "[0-9]",
    "D": "[^0-9]",
    "w": "[A-Za-z0-9_]",
    "W": "[^A-Za-z0-9_]",
    "s": r"[ \t\n\x0B\f\r]",
    "S": r"[^ \t\n\x0B\f\r]",
}
_CONTROLS = {"t": r"\t", "n": r"\n", "r": r"\r", "f": r"\f"}
_PUNCTUATION = frozenset(string.punctuation)
_QUANTIFIER = re.compile(r"(?:[*+?]|\{[0-9]{1,3}(?:,[0-9]{0,3})?\})\??")
_SET = re.compile(r"\[(\^?)((?:[A-Za-z0-9 _.,:;/@#%!\"'<>=~`|+*?(){}$-]|\\[dws\\\]\[.^/+*?$-])+)\]")


def translated_pattern(pattern: str, *, replaces: bool = False) -> str:
    """The pattern for RE2.

    `replaces`: whether its matches are replaced; the engines treat empty matches differently.

    Returns:
        It ends in `TEXT_END` for a `$`, which also matches before a last line terminator.
    """
    parts: list[str] = []
    position = depth = 0
    while position < len(pattern):
        piece, position = _piece(pattern, position)
        depth += {"(": 1, "(?:": 1, ")": -1}.get(piece, 0)
        if depth < 0:
            raise _refused(pattern)
        parts.append(piece)
    if depth:
        raise _refused(pattern)
    if replaces and (not pattern or _may_be_empty(pattern)):
        raise Refusal(f"a replacement of the pattern {pattern!r}, which matches an empty text")
    return "".join(parts)


def _piece(pattern: str, position: int) -> tuple[str, int]:
    """The construct at a position, for RE2, and where it ends."""
    character = pattern[position]
    found: str | None = None
    end = position + 1
    if character == "\\":
        found, end = _escaped(pattern[position + 1 : position + 2]), position + 2
    elif character == "[":
        found, end = _set(pattern, position)
    elif character == "(":
        group = "(?:" if pattern.startswith("(?:", position) else "("
        end = position + len(group)
        found = None if pattern.startswith("(?", position) and group == "(" else group
    elif character in "*+?{":
        match = _QUANTIFIER.match(pattern, position)
        # A quantifier of a quantifier is possessive to Java, or an error.
        if match is not None and _quantifiable(pattern, position, match.end()):
            found, end = match[0], match.end()
    elif character in ")|":
        found = character
    elif character == "^":
        found = r"\A"
    elif character == "$":
        # Inside a pattern, the line end after it would be part of the match.
        found = TEXT_END if end == len(pattern) else None
    elif character == ".":
        found = _ANY
    elif character not in "]}" and character.isprintable():
        found = re.escape(character) if character.isascii() else character
    if found is None:
        raise _refused(pattern)
    return found, end


def _quantifiable(pattern: str, start: int, end: int) -> bool:
    before, after = pattern[start - 1 : start], pattern[end : end + 1]
    is_escaped = pattern[start - 2 : start - 1] == "\\"
    return bool(before) and (is_escaped or before not in "(|^$*+?") and after not in tuple("*+?{")


def _escaped(character: str) -> str | None:
    if character in _CLASSES or character in _CONTROLS:
        return _CLASSES.get(character) or _CONTROLS[character]
    return "\\" + character if character in _PUNCTUATION else None


def _set(pattern: str, position: int) -> tuple[str | None, int]:
    match = _SET.match(pattern, position)
    if match is None:
        return None, position
    inner = match[2]
    if "&&" in inner or "--" in inner:
        return None, position
    for letter in "dws":
        inner = inner.replace(f"\\{letter}", _CLASSES[letter][1:-1])
    return f"[{match[1]}{inner}]", match.end()


def _may_be_empty(pattern: str) -> bool:
    try:
        compiled = re.compile(pattern)
    except re.error:
        return True
    return any(compiled.search(text) and not compiled.search(text)[0] for text in ("", "\0"))  # type: ignore[index]


def _refused(pattern: str) -> Refusal:
    return Refusal(f"the regular expression {pattern!r}")
