"""Functions of text in the whitelist; patterns of LIKE and regular expressions are constants."""

from __future__ import annotations

import re
import string
from collections.abc import Mapping

from dagster_delta.sql.casts import cast
from dagster_delta.sql.functions.patterns import ESCAPE, Wildcard, like_pieces
from dagster_delta.sql.functions.signatures import (
    Resolve,
    boolean_call,
    calls,
    check_count,
    fixed,
    literal_of,
    of_types,
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
    """The pattern for RE2, with which the embedded engine matches; Spark matches with Java's.

    Each construct is checked; one that differs between the two is rewritten for RE2 or refused.

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
        found, end = _escaped_character(pattern[position + 1 : position + 2]), position + 2
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


def _escaped_character(character: str) -> str | None:
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
