"""A parser of Spark SQL expressions with Spark's own grammar and precedences.

Generic SQL parsers silently bind `a = b IN (c)` or `a || b + c` differently from Spark; a wrong
filter could delete rows. A construct that only Spark knows becomes `Opaque` if its end can be
found.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import NoReturn, TypeAlias

import msgspec

from dagster_delta.protocol.schema import DataType, PrimitiveType
from dagster_delta.sql.literals import (
    INTERVAL_UNITS,
    TYPE_NAMES,
    BeyondPython,
    interval_of,
    number_literal,
    parse_moment,
    type_from_words,
)
from dagster_delta.sql.tokens import GrammarUnknown, Token, TokenCursor, syntax_error, tokenize
from dagster_delta.sql.typed import Literal


class Name(msgspec.Struct, frozen=True):
    """A column or a field of one: `a`, `a.b`, `` `odd name` ``."""

    parts: tuple[str, ...]


class Function(msgspec.Struct, frozen=True):
    """An operator or a function, by its lower-case name: `=`, `and`, `is null`, `case`, `year`."""

    name: str
    arguments: tuple[Syntax, ...]


class CastSyntax(msgspec.Struct, frozen=True):
    """`CAST(child AS type)`."""

    child: Syntax
    data_type: DataType


class Opaque(msgspec.Struct, frozen=True):
    """A parsed part that only Spark evaluates."""

    construct: str
    """Its name in an error."""
    names: tuple[Name, ...]
    """Names in it, some of which may not be columns."""


Syntax: TypeAlias = Name | Literal | Function | CastSyntax | Opaque


# Untrusted text must not exhaust the stack.
_MAX_DEPTH = 50

_COMPARISONS = {
    "=": "=", "==": "=", "<>": "<>", "!=": "<>", "<": "<", "<=": "<=", ">": ">", ">=": ">=",
    "!>": "<=", "!<": ">=", "<=>": "<=>",
}  # fmt: skip

_MOVED_BY_UNITS = frozenset(
    {"date_add", "date_diff", "dateadd", "datediff", "timestampadd", "timestampdiff"}
)
"""Functions that may have a unit of time before their arguments: `datediff(DAY, a, b)`."""
_UNITS = INTERVAL_UNITS | {"dayofyear", "quarter"}


# Words that are never a column without backticks; Spark allows most others as columns.
_RESERVED = frozenset(
    {"AND", "OR", "NOT", "IN", "IS", "BETWEEN", "LIKE", "WHEN", "THEN", "ELSE", "SELECT", "CASE"}
)

# Types that only Spark casts to.
_OTHER_TYPES = (
    "ARRAY", "MAP", "STRUCT", "INTERVAL", "CHAR", "CHARACTER", "VARCHAR", "VARIANT", "VOID", "TIME",
    "GEOMETRY", "GEOGRAPHY",
)  # fmt: skip


def parse_syntax(sql: str) -> Syntax:
    """The syntax tree of an expression.

    Raises:
        InvalidArgument: a character starts no lexeme, or nesting is too deep.
        GrammarUnknown: the text is not in the grammar.
    """
    parser = _Parser(sql)
    tree = parser.expression()
    parser.expect_end()
    return tree


class _Parser(TokenCursor):
    """A recursive descent parser; every method reads one construct at the current token."""

    def __init__(self, sql: str) -> None:
        super().__init__(tokenize(sql))
        self._sql = sql
        self._depth = 0

    def _expect(self, text: str) -> None:
        if not (self.take_operator(text) or self.take_word(text)):
            self._raise_unknown(f"expected {text}")

    def expect_end(self) -> None:
        if self.token.kind in ("number", "string") or self.token.is_operator(")", "]", ","):
            self._raise_syntax_error("expected the end")
        if self.token.kind != "end":
            self._raise_unknown("expected the end")

    def _raise_unknown(self, problem: str) -> NoReturn:
        found = self.token.text or "the end"
        raise GrammarUnknown(self.token.position, f"{problem}, found {found}")

    def _raise_syntax_error(self, problem: str) -> NoReturn:
        """Raise for a token that Spark's grammar does not allow here."""
        found = self.token.text or "the end"
        syntax_error(self._sql, self.token.position, f"{problem}, found {found}")

    # Boolean level: OR, AND, NOT, predicates

    def expression(self) -> Syntax:
        self._depth += 1
        if self._depth > _MAX_DEPTH:
            syntax_error(self._sql, self.token.position, "nested too deeply")
        terms = [self._parse_conjunction()]
        while self.take_word("OR"):
            terms.append(self._parse_conjunction())
        self._depth -= 1
        return terms[0] if len(terms) == 1 else Function("or", tuple(terms))

    def _parse_conjunction(self) -> Syntax:
        terms = [self._parse_negation()]
        while self.take_word("AND"):
            terms.append(self._parse_negation())
        return terms[0] if len(terms) == 1 else Function("and", tuple(terms))

    def _parse_negation(self) -> Syntax:
        count = 0
        while self.take_word("NOT") or self.take_operator("!"):
            count += 1
        term = self._parse_predicate()
        # An even number of negations cancels out; in three-valued logic NOT null is null.
        return Function("not", (term,)) if count % 2 else term

    def _parse_predicate(self) -> Syntax:
        result = self._parse_one_predicate()
        if self.token.is_operator("!", *_COMPARISONS) or self.token.is_word(
            "IS", "NOT", *self._list_predicate_parsers()
        ):
            self._raise_syntax_error(
                "a condition that is compared or tested needs parentheses: expected the end"
            )
        return result

    def _parse_one_predicate(self) -> Syntax:
        left = self._parse_value()
        if self.take_word("IS"):
            return self._parse_is(left)
        negated = self.token.is_word("NOT")
        word = self.peek() if negated else self.token
        rule = (
            self._list_predicate_parsers().get(word.text.upper()) if word.kind == "word" else None
        )
        if rule is None:
            return left
        self._index += 2 if negated else 1
        if self.token.is_word("ANY", "SOME", "ALL") and word.is_word("LIKE", "ILIKE"):
            return self._any_or_all(word.text.lower(), left, negated=negated)
        result = rule(left)
        return Function("not", (result,)) if negated else result

    def _list_predicate_parsers(self) -> dict[str, Callable[[Syntax], Syntax]]:
        return {
            "BETWEEN": self._parse_between,
            "IN": self._parse_in,
            "LIKE": partial(self._parse_pattern, "like"),
            "ILIKE": partial(self._parse_pattern, "ilike"),
            "RLIKE": self._parse_rlike,
            "REGEXP": self._parse_rlike,
        }

    def _parse_is(self, left: Syntax) -> Syntax:
        negated = self.take_word("NOT")
        result: Syntax
        if self.take_word("NULL", "UNKNOWN"):
            result = Function("is null", (left,))
        elif self.token.is_word("TRUE", "FALSE"):
            truth = Literal(self.next().is_word("TRUE"), PrimitiveType("boolean"))
            result = Function("<=>", (left, truth))
        elif self.take_word("DISTINCT"):
            self._expect("FROM")
            result = Function("not", (Function("<=>", (left, self._parse_value())),))
        else:
            self._raise_syntax_error("expected NULL, TRUE, FALSE, UNKNOWN or DISTINCT FROM")
        return Function("not", (result,)) if negated else result

    def _parse_between(self, left: Syntax) -> Syntax:
        low = self._parse_value()
        self._expect("AND")
        return Function("between", (left, low, self._parse_value()))

    def _parse_in(self, left: Syntax) -> Syntax:
        if not self.take_operator("("):
            self._raise_syntax_error("expected (")
        if self.token.is_word("SELECT", "WITH"):
            return self._opaque_until_closed("a subquery", self._index - 1)
        if self.token.is_operator(")"):
            self._raise_syntax_error("expected a value")
        return Function("in", (left, *self._parse_list(")")))

    def _any_or_all(self, name: str, left: Syntax, *, negated: bool) -> Syntax:
        """`LIKE ANY (patterns)`; NOT LIKE ANY is true where one of the patterns does not match."""
        combined = "and" if self.next().is_word("ALL") else "or"
        if not self.take_operator("(") or self.token.is_operator(")"):
            self._raise_syntax_error("expected patterns in parentheses")
        tests: list[Syntax] = [Function(name, (left, pattern)) for pattern in self._parse_list(")")]
        if negated:
            tests = [Function("not", (test,)) for test in tests]
        return tests[0] if len(tests) == 1 else Function(combined, tuple(tests))

    def _parse_pattern(self, name: str, left: Syntax) -> Syntax:
        arguments = (left, self._parse_value())
        if self.take_word("ESCAPE"):
            if self.token.kind != "string" or len(self.token.text) != 1:
                self._raise_syntax_error("expected one character as a text")
            arguments = (*arguments, self._parse_value())  # type: ignore[assignment]
        return Function(name, arguments)

    def _parse_rlike(self, left: Syntax) -> Syntax:
        return Function("rlike", (left, self._parse_value()))

    # Value level: comparison, then | ^ & (refused), + - ||, * / % DIV, unary, primary

    def _parse_value(self) -> Syntax:
        left = self._parse_sum()
        while self.token.kind == "operator" and self.token.text in _COMPARISONS:
            name = _COMPARISONS[self.next().text]
            right = self._parse_sum()
            if name == "<>":
                left = Function("not", (Function("=", (left, right)),))
            else:
                left = Function(name, (left, right))
        if self.token.is_operator("|", "^", "&", "<<", ">>", ">>>"):
            self._raise_unknown("bitwise operators are not supported")
        return left

    def _parse_sum(self) -> Syntax:
        left = self._parse_product()
        while self.token.is_operator("+", "-", "||"):
            name = self.next().text
            if name != "||" and self.token.is_word("INTERVAL"):
                left = self._parse_interval_shift(left, -1 if name == "-" else 1)
            else:
                left = Function(name, (left, self._parse_product()))
        return left

    def _parse_interval_shift(self, moment: Syntax, sign: int) -> Syntax:
        """A date or time and an interval of whole units: `INTERVAL 30 DAYS`, `INTERVAL '1'
        MONTH`.
        """
        words = [self.next().text]
        while self.token.kind in ("number", "string") or (
            self.token.kind == "word" and self.token.text.casefold() in INTERVAL_UNITS
        ):
            words += self.next().text.split()
        amounts = interval_of(words[1:])
        if amounts is None:
            self._raise_unknown("expected an interval of whole units")
        literals = (Literal(sign * amount, PrimitiveType("long")) for amount in amounts)
        return Function("interval shift", (moment, *literals))

    def _parse_product(self) -> Syntax:
        left = self._parse_unary()
        while self.token.is_operator("*", "/", "%") or self.token.is_word("DIV"):
            left = Function(self.next().text.lower(), (left, self._parse_unary()))
        return left

    def _parse_unary(self) -> Syntax:
        if self.token.is_operator("-", "+", "~"):
            sign = self.next()
            if sign.text == "~":
                self._raise_unknown("bitwise operators are not supported")
            if sign.text == "-" and self.token.kind == "number":
                # The smallest integer is a literal, though its absolute value would not fit.
                return self._parse_postfix(number_literal(self._sql, self.next(), negative=True))
            self._depth += 1
            if self._depth > _MAX_DEPTH:
                syntax_error(self._sql, sign.position, "nested too deeply")
            operand = self._parse_unary()
            self._depth -= 1
            return Function("negative" if sign.text == "-" else "positive", (operand,))
        return self._parse_postfix(self._parse_primary())

    def _parse_postfix(self, base: Syntax) -> Syntax:
        while True:
            if self.take_operator("["):
                index = self.expression()
                self._expect("]")
                base = Function("[]", (base, index))
            elif self.token.is_operator("."):
                self._index += 1
                base = Function(
                    ".", (base, Literal(self._parse_identifier(), PrimitiveType("string")))
                )
            elif self.take_operator("::"):
                base = CastSyntax(base, self._parse_type())
            elif self.take_operator(":"):
                base = self._parse_variant_path(base)
            elif self.token.is_word("COLLATE", "OVER", "FILTER", "WITHIN"):
                self._raise_unknown(f"{self.token.text.upper()} is not supported")
            else:
                return base

    def _parse_variant_path(self, base: Syntax) -> Syntax:
        """`base:a.b[0]::type`, which is a call of `variant_get`."""
        path = "$"
        while path == "$" or self.token.is_operator(".", "["):
            if self.take_operator("["):
                is_name = self.token.kind == "string"
                path += f"['{self._join_literals()}']" if is_name else f"[{self.next().text}]"
                self._expect("]")
            else:
                self.take_operator(".")
                path += f"['{self._parse_identifier()}']"
        target = str(self._parse_type()) if self.take_operator("::") else "variant"
        texts = (Literal(text, PrimitiveType("string")) for text in (path, target))
        return Function("variant_get", (base, *texts))

    def _parse_primary(self) -> Syntax:
        token = self.token
        if token.kind == "number":
            return number_literal(self._sql, self.next(), negative=False)
        if token.kind == "string":
            return Literal(self._join_literals(), PrimitiveType("string"))
        if token.kind == "quoted":
            return self._parse_name()
        if token.is_operator("("):
            return self._parse_parenthesised()
        if token.kind != "word":
            if not token.is_operator("*", "?", ":"):
                self._raise_syntax_error("expected a value")
            self._raise_unknown("expected a value")
        return self._parse_word()

    def _parse_parenthesised(self) -> Syntax:
        self._expect("(")
        if self.token.is_word("SELECT", "WITH"):
            return self._opaque_until_closed("a subquery", self._index - 1)
        inner = self.expression()
        if self.take_operator(","):
            if self.token.is_operator(")"):
                self._raise_syntax_error("expected a value")
            return Function("struct", (inner, *self._parse_list(")")))
        self._expect(")")
        return inner

    def _join_literals(self) -> str:
        # Adjacent literals are concatenated.
        text = self.next().text
        while self.token.kind == "string":
            text += self.next().text
        return text

    def _parse_word(self) -> Syntax:
        word, following = self.token.text.upper(), self.peek()
        if word in ("TRUE", "FALSE"):
            self._index += 1
            return Literal(word == "TRUE", PrimitiveType("boolean"))
        if word == "NULL":
            self._index += 1
            return Literal(None, PrimitiveType("void"))
        if word == "CASE":
            return self._parse_case()
        if word == "INTERVAL" and following.kind == "number":
            self._raise_unknown(
                "an interval is only added to, or subtracted from, a date or a time"
            )
        if following.kind == "string":
            return _typed_literal(self._sql, self.next(), self._join_literals())
        if following.is_operator("("):
            return self._parse_call()
        if word in _RESERVED:
            self._raise_unknown("expected a value")
        return self._parse_name()

    def _parse_name(self) -> Syntax:
        parts = [self._parse_identifier()]
        while self.token.is_operator("."):
            self._index += 1
            parts.append(self._parse_identifier())
        if self.token.is_operator("->"):
            self._raise_unknown("lambda functions are not supported")
        return Name(tuple(parts))

    def _parse_identifier(self) -> str:
        if self.token.is_operator("*"):
            self._raise_unknown("expected a name")
        if self.token.kind not in ("word", "quoted"):
            self._raise_syntax_error("expected a name")
        return self.next().text

    # CASE, CAST and calls

    def _parse_case(self) -> Syntax:
        self._expect("CASE")
        operand = None if self.token.is_word("WHEN") else self.expression()
        branches: list[Syntax] = []
        while self.take_word("WHEN"):
            condition = self.expression()
            if operand is not None:
                condition = Function("=", (operand, condition))
            self._expect("THEN")
            branches += [condition, self.expression()]
        if not branches:
            self._raise_unknown("expected WHEN")
        if self.take_word("ELSE"):
            branches.append(self.expression())
        self._expect("END")
        return Function("case", tuple(branches))

    def _parse_call(self) -> Syntax:
        start, depth = self._index, self._depth
        name = self.next().text.lower()
        self._expect("(")
        try:
            if name in ("cast", "try_cast"):
                return self._parse_cast(name)
            if name == "trim" and self.token.is_word("BOTH", "LEADING", "TRAILING", "FROM"):
                self._raise_unknown("this form of TRIM is not supported")
            if name in ("substring", "substr", "extract", "overlay", "position"):
                return self._keyword_call(name)
            if self.token.is_word("DISTINCT", "ALL", "SELECT", "WITH"):
                self._raise_unknown("expected an argument")
            arguments = tuple(self._parse_list(")"))
            if name in _MOVED_BY_UNITS and len(arguments) == 3 and _is_unit(arguments[0]):
                self._raise_unknown("expected a moment")
            return Function(name, arguments)
        except GrammarUnknown:
            self._index, self._depth = start + 2, depth
            return self._opaque_until_closed(f"this form of the function {name}", start)

    def _parse_cast(self, name: str) -> Syntax:
        child = self.expression()
        self._expect("AS")
        data_type = self._parse_type()
        self._expect(")")
        if name == "try_cast":
            return Function("try_cast", (child,))
        return CastSyntax(child, data_type)

    def _keyword_call(self, name: str) -> Syntax:
        """Functions whose arguments may be separated by FROM, FOR and IN instead of commas."""
        if name == "extract":
            unit = self._parse_identifier()
            self._expect("FROM")
            source = self.expression()
            self._expect(")")
            return Function("extract", (Literal(unit, PrimitiveType("string")), source))
        # In `position(a IN b)`, IN is a separator.
        arguments = [self._parse_value() if name == "position" else self.expression()]
        while not self.take_operator(")"):
            if not (self.take_operator(",") or self.take_word("FROM", "FOR")):
                self._raise_unknown("expected a comma")
            arguments.append(self.expression())
        return Function(name, tuple(arguments))

    def _parse_list(self, closing: str) -> list[Syntax]:
        if self.take_operator(closing):
            return []
        items: list[Syntax] = []
        while not items or self.take_operator(","):
            if self.token.is_operator(",", closing):
                self._raise_syntax_error("expected a value")
            items.append(self.expression())
        self._expect(closing)
        return items

    def _parse_type(self) -> DataType:
        first, name = self.token, self._parse_identifier()
        found = type_from_words(name, self._type_parameters())
        if first.kind == "word" and first.is_word(*_OTHER_TYPES):
            raise GrammarUnknown(first.position, f"the type {name} is not supported")
        if first.kind != "word" or found is None:
            syntax_error(self._sql, first.position, _not_a_type(name))
        return found

    def _type_parameters(self) -> list[str]:
        parameters: list[str] = []
        if self.take_operator("("):
            while not parameters or self.take_operator(","):
                parameters.append(self.next().text)
            self._expect(")")
        return parameters

    def _opaque_until_closed(self, construct: str, start: int) -> Syntax:
        """Everything from a token up to the parenthesis that closes the one already read."""
        first, words, depth = self._tokens[start], [], 1
        while depth:
            if self.token.kind == "end":
                self._raise_unknown("expected )")
            token = self.next()
            depth += token.is_operator("(") - token.is_operator(")")
            if token.kind in ("word", "quoted"):
                words.append(Name((token.text,)))
        names = columns_in(self._sql[first.position : token.position + 1])
        return Opaque(construct, tuple(words) if names is None else names)


# sqlglot raises these for invalid SQL, besides its own errors.
_FAILURES_OF_SQLGLOT = (
    ArithmeticError,
    AttributeError,
    LookupError,
    RecursionError,
    TypeError,
    ValueError,
)


def columns_in(sql: str) -> tuple[Name, ...] | None:
    """The columns of a text that only Spark evaluates, without variables of lambdas and fields of
    types; None if a full parser finds no value in it.
    """
    import sqlglot

    try:
        tree = sqlglot.parse_one(sql, read="spark")
    except (sqlglot.errors.SqlglotError, *_FAILURES_OF_SQLGLOT):
        return None
    is_query = isinstance(tree, sqlglot.exp.Query) and not isinstance(tree, sqlglot.exp.Subquery)
    if is_query or isinstance(tree, sqlglot.exp.Alias):
        # It is an item of a SELECT (`a = 1 banana`) or a whole query.
        return None
    columns = tree.find_all(sqlglot.exp.Column)
    return tuple(Name(tuple(part.name for part in column.parts)) for column in columns)


def _typed_literal(sql: str, word: Token, text: str) -> Literal | Opaque:
    """The constant of `WORD 'text'`: a date, a timestamp or bytes.

    Raises:
        InvalidArgument: the text is not of that type.
        GrammarUnknown: the word starts no supported literal.
    """
    kind = word.text.upper()
    try:
        match kind:
            case "DATE" | "TIMESTAMP" | "TIMESTAMP_LTZ" | "TIMESTAMP_NTZ":
                data_type = PrimitiveType(TYPE_NAMES[kind.lower()])
                return Literal(parse_moment(text, data_type), data_type)
            case "X":
                return Literal(
                    bytes.fromhex(text.rjust(len(text) + len(text) % 2, "0")),
                    PrimitiveType("binary"),
                )
    except BeyondPython:
        return Opaque(f"the literal {kind} {text!r}", ())
    except ValueError:
        syntax_error(sql, word.position, f"{text!r} is not a valid {kind} literal")
    if kind not in ("INTERVAL", "TIME"):
        syntax_error(sql, word.position, f"{word.text} does not start a literal")
    raise GrammarUnknown(word.position, f"{word.text} does not start a supported literal")


def _not_a_type(name: str) -> str:
    return (
        f"{name} is not a type of Spark SQL, or takes other parameters (there are STRING, BOOLEAN, "
        "TINYINT, SMALLINT, INT, BIGINT, FLOAT, DOUBLE, DECIMAL(p,s), DATE, TIMESTAMP, BINARY)"
    )


def _is_unit(argument: Syntax) -> bool:
    return isinstance(argument, Name) and argument.parts[0].casefold() in _UNITS
