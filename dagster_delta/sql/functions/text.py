"""Functions of text in the whitelist; patterns of LIKE are constants."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from dagster_delta.sql.casts import cast, raising
from dagster_delta.sql.functions.function import (
    Function,
    boolean_call,
    calls,
    fixed,
    literal_of,
    of_types,
    text_operand,
)
from dagster_delta.sql.functions.patterns import (
    ESCAPE,
    LINE_END,
    Wildcard,
    like_pieces,
    re2_pattern,
)
from dagster_delta.sql.typed import Call, Literal, Refusal, Typed, types_of
from dagster_delta.sql.types import BINARY, BOOLEAN, INTEGER, STRING, sql_type_name


def _check_count(name: str, argument: Typed) -> Literal:
    found = literal_of(name, argument, int)
    # Negative positions and lengths mean different things in the two engines.
    if not isinstance(found, int) or found < 0:
        raise Refusal(f"{name} with a negative argument")
    return Literal(found, INTEGER)


def _resolve_replace(name: str, arguments: tuple[Typed, ...]) -> Typed:
    searched, by = (
        str(literal_of(name, argument, str)) for argument in (*arguments, Literal("", STRING))[1:3]
    )
    # Nested calls with longer texts could make gigabytes of a short one.
    if not 0 < len(searched.encode()) >= len(by.encode()):
        raise Refusal(f"{name} by a longer text")
    operands = (text_operand(name, arguments[0]), Literal(searched, STRING), Literal(by, STRING))
    return Call(name, operands, STRING)


def _resolve_concat(name: str, arguments: tuple[Typed, ...]) -> Typed:
    types = types_of(arguments)
    if BINARY in types:
        raise Refusal(f"{name} of binary")
    return Call("||", tuple(cast(argument, STRING) for argument in arguments), STRING)


def _resolve_substring(name: str, arguments: tuple[Typed, ...]) -> Typed:
    if types_of(arguments)[0] != STRING:
        raise Refusal(f"{name} of these arguments")
    start, *length = (_check_count(name, argument) for argument in arguments[1:])
    first = start if start.value else Literal(1, INTEGER)
    return Call(name, (arguments[0], first, *length), STRING)


def _resolve_left(name: str, arguments: tuple[Typed, ...]) -> Typed:  # noqa: ARG001
    return _resolve_substring("substring", (arguments[0], Literal(1, INTEGER), arguments[1]))


def _resolve_like(name: str, arguments: tuple[Typed, ...]) -> Typed:
    """`text LIKE 'pattern'`, with backslash as the escape whichever one the SQL uses."""
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
    match pieces := like_pieces(pattern, escape):
        case [str() as text]:
            return boolean_call("=", (arguments[0], Literal(text, STRING)))
        case [str() as text, Wildcard.ANY]:
            return boolean_call("startswith", (arguments[0], Literal(text, STRING)))
        case [Wildcard.ANY, str() as text]:
            return boolean_call("endswith", (arguments[0], Literal(text, STRING)))
    normalised = "".join(
        piece.value if isinstance(piece, Wildcard) else _escape_wildcards(piece) for piece in pieces
    )
    return boolean_call(name, (arguments[0], Literal(normalised, STRING)))


def _resolve_ilike(name: str, arguments: tuple[Typed, ...]) -> Typed:  # noqa: ARG001
    """LIKE of the text and the pattern in lower case."""
    text, *pattern = arguments
    lowered: list[Typed] = []
    for argument in pattern:
        found = argument.value if isinstance(argument, Literal) else None
        # Case of letters outside ASCII depends on the version of Unicode.
        if isinstance(found, str) and not found.isascii():
            raise Refusal("ILIKE with a pattern outside ASCII")
        is_escape = isinstance(found, str) and len(lowered) == 1
        if isinstance(found, str) and is_escape and found.isalpha():
            raise Refusal(f"ILIKE with the escape {found!r}")
        lowered.append(Literal(found.lower(), STRING) if isinstance(found, str) else argument)
    if types_of(arguments)[0] != STRING:
        raise Refusal(f"ILIKE of {sql_type_name(types_of(arguments)[0])}")
    return _resolve_like("like", (Call("ascii lower", (text,), STRING), *lowered))


def _resolve_rlike(name: str, arguments: tuple[Typed, ...]) -> Typed:
    if types_of(arguments)[0] != STRING:
        raise Refusal(f"RLIKE of {sql_type_name(types_of(arguments)[0])}")
    if isinstance(arguments[1], Literal) and arguments[1].value is None:
        return Literal(None, BOOLEAN)
    pattern = re2_pattern(str(literal_of("RLIKE", arguments[1], str)))
    found = name if not pattern.has_end else "rlike of line"
    return boolean_call(found, (arguments[0], Literal(pattern.text, STRING)))


def _escape_wildcards(text: str) -> str:
    return "".join(
        ESCAPE + character if character in "%_" + ESCAPE else character for character in text
    )


def _sql_length(call: Call, operands: Sequence[str]) -> str:
    measure = "octet_length" if call.arguments[0].data_type == BINARY else "length"
    return f"CAST({measure}({operands[0]}) AS INTEGER)"


def _changed_case(name: str) -> Function:
    """Case of letters outside ASCII depends on the version of Unicode and on the locale."""
    refused = raising(f"{name}() of letters outside ASCII: use the Spark engine")
    sql = (
        "CASE WHEN {0} IS NULL OR strlen({0}) = length({0})"
        f" THEN {name}({{0}}) ELSE {refused} END"
    )
    return Function(_text, sql, may_raise=True)


_text = fixed(STRING, STRING)
_text_test = fixed(BOOLEAN, STRING, STRING)

_SEVERAL_LINES = raising("RLIKE with $ of a text with line ends: use the Spark engine")
_RLIKE_OF_LINE = (
    f"CASE WHEN regexp_matches({{0}}, '{LINE_END.replace('{', '{{').replace('}', '}}')}')"
    f" THEN {_SEVERAL_LINES} ELSE regexp_matches({{0}}, {{1}}) END"
)

TEXT_FUNCTIONS: Mapping[str, Function] = {
    **dict.fromkeys(("concat", "||"), Function(_resolve_concat, "({joined})", takes=(1, None))),
    "upper": _changed_case("upper"),
    "lower": _changed_case("lower"),
    **dict.fromkeys(("trim", "ltrim", "rtrim"), Function(_text, "{name}({0}, ' ')")),
    "startswith": Function(_text_test, "starts_with({all})", takes=(2, 2)),
    "endswith": Function(_text_test, "ends_with({all})", takes=(2, 2)),
    "contains": Function(_text_test, "contains({all})", takes=(2, 2)),
    "length": Function(calls(INTEGER, of_types(STRING, BINARY)), _sql_length),
    "substring": Function(_resolve_substring, "substring({all})", takes=(2, 3)),
    "left": Function(_resolve_left, takes=(2, 2)),
    "replace": Function(_resolve_replace, "replace({all})", takes=(2, 3)),
    "right": Function(calls(STRING, text_operand, _check_count), "right({all})", takes=(2, 2)),
    "ilike": Function(_resolve_ilike, takes=(2, 3)),
    # The only letters outside ASCII with lower ones in it are I with a dot and the sign of Kelvin.
    "ascii lower": Function(
        None, "lower(replace(replace({0}, chr(304), 'i' || chr(775)), chr(8490), 'k'))"
    ),
    "rlike": Function(_resolve_rlike, "regexp_matches({0}, {1})", takes=(2, 2)),
    "rlike of line": Function(None, _RLIKE_OF_LINE, may_raise=True, takes=(2, 2)),
    # LIKE has no default escape in DuckDB.
    "like": Function(_resolve_like, f"({{0}} LIKE {{1}} ESCAPE '{ESCAPE}')", takes=(2, 3)),
}
