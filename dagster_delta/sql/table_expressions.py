"""Which SQL of a table's metadata may be evaluated: CHECK constraints, generated columns, defaults.

These texts come from the writer of the table, so they are untrusted input. Spark would run all of
it: Java methods by reflection, subqueries that read files, functions of the session. Every lexeme
must be known: a column of the table, a word or an operator of the expression grammar,
or a built-in function that computes its result from its arguments alone.

Spec: CHECK Constraints; Column Invariants; Generated Columns; Default Columns.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from itertools import pairwise

from dagster_delta.errors import InvalidArgument, SchemaMismatch, UnsupportedExpression
from dagster_delta.protocol.schema import StructType, fold_name
from dagster_delta.sql.expressions import parse_expression
from dagster_delta.sql.functions.built_in import OF_ARGUMENTS, OF_THE_SESSION
from dagster_delta.sql.literals import INTERVAL_UNITS
from dagster_delta.sql.tokens import Token, tokenize

_KEYWORDS = """
    all and any array as between bigint binary boolean both byte case cast char character collate
    date day dayofweek dec decimal distinct div double dow doy else end escape exists false float
    for from hour ilike in int integer interval is leading like long map minute month not null
    numeric or placing quarter real regexp rlike second short smallint some string struct then time
    timestamp timestamp_ltz timestamp_ntz tinyint to trailing true unknown utf8_binary utf8_lcase
    unicode unicode_ci varchar variant void week when x year
"""
_WORDS = frozenset(_KEYWORDS.split()) | INTERVAL_UNITS

# Every subquery has one of them, even if the table has columns of these names.
_WORDS_OF_QUERIES = frozenset(
    {"except", "intersect", "lateral", "minus", "over", "select", "table", "union", "using"}
    | {"values", "with"}
)

# A query word followed by one of these is a column: no clause continues this way.
_BEHIND_A_VALUE = (
    ")", "]", "[", ",", ".", "=", "==", "<=>", "<>", "!=", "<=", ">=", "<", ">", "||", "::", "/",
    "%", "&", "|", "^", "<<", ">>", ">>>", "->",
)  # fmt: skip

_OPERATORS = frozenset(
    {
        "<=>", "<>", "!=", "==", "<=", ">=", "!<", "!>", "||", "::", "->", "-", "+", "*", "/", "%",
        "<<", ">>", ">>>", "<", ">", "=", "!", "(", ")", "[", "]", ",", ".", "&", "|", "^", "~",
    }
)  # fmt: skip


_CHANCE = frozenset({"rand", "randn", "random", "randstr", "uniform", "uuid"})

_MAX_NESTING = 100
"""Maximum nesting of brackets, also in constructs that only Spark knows."""


def check_table_expression(
    sql: str, schema: StructType, what: str, *, table: str | None = None, is_default: bool = False
) -> None:
    """Check that an expression from a table's metadata only computes a value.

    `what`: its name in the error: "CHECK positive".
    `is_default`: whether it is a default, which may be random: `uuid()`.

    Raises:
        UnsupportedExpression: it has a part that is not known to be safe; the message names it.
    """
    try:
        tokens = tokenize(sql)
        niladic = OF_THE_SESSION | _CHANCE if is_default else OF_THE_SESSION
        refused = _first_unknown(tokens, schema, niladic)
        if refused is None:
            # Names are already checked; the units of `datediff(DAY, a, b)` are not columns.
            with suppress(SchemaMismatch):
                parse_expression(sql, schema)
            return
    except InvalidArgument as error:
        raise _describe_refusal(what, sql, f"cannot be read: {error.message}", table) from None
    raise _describe_refusal(what, sql, f"holds {refused}", table)


def _describe_refusal(
    what: str, sql: str, problem: str, table: str | None
) -> UnsupportedExpression:
    shown = sql if len(sql) <= 200 else f"{sql[:200]}…"
    return UnsupportedExpression(
        f"{what} ({shown}) {problem}. Expressions that a table brings along are evaluated only "
        "where they consist of columns, operators and deterministic built-in functions: drop or "
        "replace it with ALTER TABLE",
        table=table,
    )


def _first_unknown(
    tokens: Sequence[Token], schema: StructType, niladic: frozenset[str]
) -> str | None:
    """Description of the first lexeme that is not known to be safe; None if all are."""
    names = {fold_name(field.name) for field in schema} | _lambda_variables(tokens)
    before: Token | None = None
    nesting = 0
    for token, following in pairwise(tokens):
        problem = None
        nesting += token.is_operator("(", "[") - token.is_operator(")", "]")
        if nesting > _MAX_NESTING:
            problem = f"more than {_MAX_NESTING} brackets within each other"
        elif token.kind == "operator":
            problem = _unknown_operator(token, following)
        elif token.kind == "string" and following.is_operator("("):
            problem = f"a call of {token.text!r}"
        elif token.kind in ("word", "quoted"):
            is_field = before is not None and before.is_operator(".")
            problem = _unknown_word(token, before, following, is_field, names, niladic)
        if problem is not None:
            return problem
        before = token
    return None


def _unknown_operator(token: Token, following: Token) -> str | None:
    if token.text not in _OPERATORS:
        return f"the character {token.text!r}"
    # `IDENTIFIER('name')(…)` calls a function whose name is a string.
    if token.text in (")", "]") and following.is_operator("("):
        return "a call of a computed name"
    return None


def _unknown_word(
    token: Token,
    before: Token | None,
    following: Token,
    is_field: bool,
    names: set[str],
    niladic: frozenset[str],
) -> str | None:
    word = token.text.casefold()
    is_word = token.kind == "word"
    if following.is_operator("("):
        is_known = word in OF_ARGUMENTS or word in niladic or (is_word and word in _WORDS)
        return None if is_known and not is_field else f"the function {token.text}"
    if is_field:
        return None
    is_value = following.kind == "end" or following.is_operator(*_BEHIND_A_VALUE)
    if is_word and word in _WORDS_OF_QUERIES and not (word in names and is_value):
        return f"the word {token.text} (a column of that name needs backticks)"
    if is_word and word == "from" and before is not None and before.is_operator("("):
        return "a subquery"
    if word in names or (is_word and (word in _WORDS or word in niladic)):
        return None
    # The name of a field of a struct, or of a collation.
    if before is not None and before.is_word("AS", "COLLATE"):
        return None
    # A name of a type or of a literal, such as X'00', is a word before a text.
    return f"the name {token.text}, which is not a column here"


def _lambda_variables(tokens: Sequence[Token]) -> set[str]:
    found = set()
    for index, token in enumerate(tokens):
        if not token.is_operator("->") or not index:
            continue
        start = index - 1
        if tokens[start].is_operator(")"):
            while start and not tokens[start].is_operator("("):
                start -= 1
        found |= {
            fold_name(variable.text)
            for variable in tokens[start:index]
            if variable.kind in ("word", "quoted")
        }
    return found
