"""The lexical rules of Spark SQL that expressions need."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Literal, NoReturn, TypeAlias

import msgspec

from dagster_delta.errors import InvalidArgument, UnsupportedExpression

TokenKind: TypeAlias = Literal["word", "quoted", "string", "number", "operator", "end"]


class GrammarUnknown(Exception):
    """The text is outside the grammar known here; only a full parser can decide if it is valid."""

    def __init__(self, position: int, problem: str) -> None:
        super().__init__(problem)
        self.position = position
        self.problem = problem


class Token(msgspec.Struct, frozen=True):
    """One lexeme."""

    kind: TokenKind
    text: str
    """A word or an operator as written; a string or a quoted name without quotes and escapes."""
    position: int
    """Offset of its first character."""

    def is_word(self, *words: str) -> bool:
        """Whether it is one of the (upper-case) words, written without quotes."""
        return self.kind == "word" and self.text.upper() in words

    def is_operator(self, *operators: str) -> bool:
        """Whether it is one of the operators."""
        return self.kind == "operator" and self.text in operators


class TokenCursor:
    """Reads the lexemes of one text in order. `tokens`: as of `tokenize`."""

    def __init__(self, tokens: Sequence[Token]) -> None:
        self._tokens = tokens
        self._index = 0

    @property
    def token(self) -> Token:
        """The next lexeme."""
        return self._tokens[self._index]

    def peek(self, distance: int = 1) -> Token:
        """The lexeme at a distance from the next one; the end if there is none."""
        return self._tokens[min(self._index + distance, len(self._tokens) - 1)]

    def next(self) -> Token:
        """Take the next lexeme; the end stays."""
        token = self.token
        self._index += token.kind != "end"
        return token

    def take_word(self, *words: str) -> bool:
        """Take the next lexeme if it is one of the (upper-case) words, without quotes."""
        taken = self.token.is_word(*words)
        self._index += taken
        return taken

    def take_operator(self, *operators: str) -> bool:
        """Take the next lexeme if it is one of the operators."""
        taken = self.token.is_operator(*operators)
        self._index += taken
        return taken


_LEXEMES = re.compile(
    r"""
      (?P<space>   \s+ | --(?:\\\n|[^\r\n])* | /\*(?!\+)(?:(?!/\*).)*?\*/ )
    | (?P<string>  [rR](?: '[^']*' | "[^"]*" ) | '(?:[^'\\]|\\.|'')*' | "(?:[^"\\]|\\.|"")*" )
    | (?P<quoted>  `(?:[^`]|``)*` )
    | (?P<number>  (?: [0-9]+\.[0-9]* | \.[0-9]+ | [0-9]+ ) (?: [eE][+-]?[0-9]+ )?
                   (?: BD | [LSYFD] )? (?!\w) )
    | (?P<word>    [0-9]* [A-Za-z_] [A-Za-z0-9_]* (?!\w) )
    | (?P<operator> <=> | <> | != | == | <= | >= | !< | !> | \|\| | :: | -> | => | << | >>>?
                  | [-+*/%<>=!()\[\],.&|^~:?] )
    """,
    re.VERBOSE | re.DOTALL | re.IGNORECASE,
)

_ESCAPES = re.compile(r"\\(?:u([0-9a-fA-F]{4})|U([0-9a-fA-F]{8})|([01][0-7]{2})|(.))", re.DOTALL)
_ESCAPED_CHARACTERS = {
    "0": "\0",
    "b": "\b",
    "n": "\n",
    "r": "\r",
    "t": "\t",
    "Z": "\x1a",
    # These keep their backslash, which has a meaning in LIKE.
    "%": "\\%",
    "_": "\\_",
}


def tokenize(sql: str) -> list[Token]:
    """The lexemes of a text; the last is of kind `end`.

    Raises:
        InvalidArgument: a character starts no lexeme; the message shows where.
    """
    _refuse_surrogates(sql)
    tokens = []
    position = 0
    while position < len(sql):
        match = _match_lexeme(sql, position)
        kind = match.lastgroup
        text = match[0]
        if kind == "string":
            tokens.append(
                Token("string", _check_surrogates(sql, position, unescape_string(text)), position)
            )
        elif kind == "quoted":
            tokens.append(Token("quoted", text[1:-1].replace("``", "`"), position))
        elif kind in ("number", "word", "operator"):
            tokens.append(Token(kind, text, position))  # type: ignore[arg-type]
        position = match.end()
    tokens.append(Token("end", "", len(sql)))
    return tokens


def without_variables(sql: str) -> str:
    """The same expression in a spelling in which Spark finds no `${variable}` to replace.

    Spark substitutes environment variables, JVM properties and settings even in string literals
    (`'${env:HOME}'`). Data and table metadata must not read them; the embedded engine has none.

    Raises:
        UnsupportedExpression: Spark would replace a name in backticks, which has no other spelling.
        InvalidArgument: a character starts no lexeme.
    """
    if "${" not in sql:
        return sql
    parts, position = [], 0
    while position < len(sql):
        text = _match_lexeme(sql, position)[0]
        position += len(text)
        if text[0] == "`" and "${" in text:
            raise UnsupportedExpression(
                f"Spark would replace the variable in the column name {text}: rename the column, "
                'or pass engine="arrow"'
            )
        prefix = text[0] if text[0] in "rR" and text[1:2] in ("'", '"') else ""
        quote = text[len(prefix)]
        # Adjacent literals are concatenated; elsewhere a space changes nothing.
        apart = f"${quote} {prefix}{quote}{{" if quote in ("'", '"') else "$ {"
        parts.append(text.replace("${", apart))
    return "".join(parts)


def _match_lexeme(sql: str, position: int) -> re.Match[str]:
    match = _LEXEMES.match(sql, position)
    # Spark nests comments: after the first end, two readers could see different text.
    if match is None or (sql.startswith("/*", position) and match["space"] is None):
        syntax_error(sql, position, _describe_unreadable(sql[position : position + 2].strip()))
    return match


def _describe_unreadable(text: str) -> str:
    if text[:1] in ("'", '"', "`"):
        return f"the quote {text[0]} is not closed"
    return f"cannot read {text!r}"


def _refuse_surrogates(sql: str) -> None:
    try:
        sql.encode()
    except UnicodeEncodeError as error:
        # The message cannot encode surrogates either.
        shown = sql.encode(errors="replace").decode()
        syntax_error(shown, error.start, "half of a surrogate pair is not a character")


def _check_surrogates(sql: str, position: int, text: str) -> str:
    if any("\ud800" <= character <= "\udfff" for character in text):
        syntax_error(sql, position, "half of a surrogate pair is not a character")
    return text


def unescape_string(literal: str) -> str:
    """The text of a quoted string literal, with or without an `r` prefix."""
    if literal[0] in "rR":
        return literal[2:-1]
    quote, body = literal[0], literal[1:-1]
    parts = re.split(r"(\\.)", body, flags=re.DOTALL)
    # A doubled quote means one quote, unless its first half is escaped.
    body = "".join(
        part if part.startswith("\\") else part.replace(quote * 2, quote) for part in parts
    )
    return _ESCAPES.sub(_unescape_character, body)


def _unescape_character(match: re.Match[str]) -> str:
    short, long, octal, character = match.groups()
    if octal is not None:
        return chr(int(octal, 8))
    if short is not None or long is not None:
        return chr(int(short or long, 16))
    return _ESCAPED_CHARACTERS.get(character, character)


def syntax_error(sql: str, position: int, problem: str) -> NoReturn:
    """Raise InvalidArgument, with the position marked in the text that is not an expression."""
    raise InvalidArgument(
        f"this is not a Spark SQL expression: {problem} at character {position + 1}: "
        f"{sql[:position]}▸{sql[position:]}"
    )
