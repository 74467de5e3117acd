"""A cursor over the lexemes of a statement, and its syntax error."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NoReturn

from dagster_delta.errors import InvalidArgument
from dagster_delta.nearest_name import nearest_name
from dagster_delta.sql.tokens import Token, TokenCursor, tokenize

_MAX_SHOWN = 100


class StatementCursor(TokenCursor):
    """The lexemes of one text, read in order. What does not fit raises InvalidArgument."""

    def __init__(self, sql: str, what: str) -> None:
        self._sql = sql
        self._what = what
        try:
            # Expressions have no statement end, so it has no lexeme.
            tokens = tokenize(sql.rstrip().removesuffix(";"))
        except InvalidArgument as error:
            problem = error.message.partition(": ")[2]
            raise InvalidArgument(f"this is not {what}: {problem}") from None
        super().__init__([single for token in tokens for single in _without_shifts(token)])
        self._nesting = 0

    @property
    def is_done(self) -> bool:
        """Whether the end is reached."""
        return self.token.kind == "end"

    @contextmanager
    def one_level_deeper(self, deepest: int) -> Iterator[None]:
        """Enter a nested construct, up to `deepest` of them, and read it."""
        if self._nesting == deepest:
            self.fail("nested too deeply")
        self._nesting += 1
        yield
        self._nesting -= 1

    def is_word(self, *words: str) -> bool:
        """Whether the next lexeme is one of the (upper-case) words, without quotes."""
        return self.token.is_word(*words)

    def take_words(self, *words: str) -> bool:
        """Take the next lexemes if they are all of these words, in this order."""
        taken = all(self.peek(n).is_word(word) for n, word in enumerate(words))
        if taken:
            self._index += len(words)
        return taken

    def expect(self, *texts: str) -> None:
        """Take words and operators that must come next."""
        for text in texts:
            if not (self.take_operator(text) or self.take_word(text)):
                self.fail(f"expected {text if text.isalpha() else repr(text)}")

    def name(self, what: str = "a name") -> str:
        """Take a name: a word, or anything in backticks or double quotes."""
        token = self.token
        is_double_quoted = token.kind == "string" and self._sql[token.position] == '"'
        is_name = token.kind in ("word", "quoted") or is_double_quoted
        if not is_name or not token.text:
            self.fail(f"expected {what}")
        return self.next().text

    def path(self, what: str = "the name of a column") -> tuple[str, ...]:
        """Take names joined by dots."""
        path = [self.name(what)]
        while self.take_operator("."):
            path.append(self.name("a name after the dot"))
        return tuple(path)

    def string(self, what: str) -> str:
        """Take a string literal."""
        if self.token.kind != "string":
            self.fail(f"expected {what} in quotes")
        return self.next().text

    def integer(self, what: str) -> int:
        """Take a whole number."""
        if self.token.kind != "number" or not self.token.text.isdecimal():
            self.fail(f"expected {what}")
        return int(self.next().text)

    def span(self, *stops: str) -> str:
        """Take the text, unchanged, up to a comma, a closing parenthesis or one of the words,
        outside of all parentheses.
        """
        start, depth, last = self.token.position, 0, self._index
        while not (depth == 0 and (self.token.is_operator(",", ")") or self.is_word(*stops))):
            if self.is_done:
                break
            depth += self.token.is_operator("(", "[") - self.token.is_operator(")", "]")
            self._index += 1
        if depth:
            self.fail("expected ')'")
        if self._index == last:
            self.fail("expected an expression")
        return self._sql[start : self.token.position].strip()

    def parenthesised(self) -> str:
        """Take the expression between parentheses, unchanged."""
        self.expect("(")
        text = self.span()
        self.expect(")")
        return text

    def fail(self, problem: str, *, at: Token | None = None) -> NoReturn:
        """Raise a syntax error, with a caret under the position."""
        token = at or self.token
        found = ""
        if problem.startswith("expected"):
            found = f", not {token.text!r}" if token.kind != "end" else ", and the text ends"
            words = re.findall(r"\b[A-Z]{3,}\b", problem)
            near = nearest_name(token.text, words)
            found += f"; did you mean {near}?" if near else ""
        before = self._sql[: token.position]
        line = before.count("\n") + 1
        column = token.position - (before.rfind("\n") + 1)
        text = self._sql.split("\n")[line - 1]
        # Of a long line, show the part around the position.
        start = max(0, column - _MAX_SHOWN // 2)
        shown = text[start : start + _MAX_SHOWN].replace("\t", " ")
        raise InvalidArgument(
            f"this is not {self._what}: {problem}{found} (line {line}, character {column + 1})\n"
            f"  {shown}\n  {' ' * (column - start)}^"
        )


def _without_shifts(token: Token) -> list[Token]:
    """Split `>>` into closing brackets: in `ARRAY<ARRAY<INT>>` it is not a shift."""
    if not token.is_operator(">>", ">>>"):
        return [token]
    return [
        Token("operator", bracket, token.position + place)
        for place, bracket in enumerate(token.text)
    ]
