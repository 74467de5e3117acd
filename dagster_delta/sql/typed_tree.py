"""The typed tree of a Spark SQL text."""

from __future__ import annotations

from dagster_delta.errors import InvalidArgument
from dagster_delta.protocol.schema import StructType
from dagster_delta.sql.analysis import analyse
from dagster_delta.sql.parser import parse_syntax
from dagster_delta.sql.syntax import Name, Opaque, Syntax
from dagster_delta.sql.tokens import GrammarUnknown, syntax_error, tokenize
from dagster_delta.sql.typed import Typed, operands_of

__all__ = ["typed_tree"]

# Later walks of the tree must not overflow the stack, at any depth of the caller.
_MAX_DEPTH = 120


def typed_tree(sql: str, schema: StructType) -> Typed:
    """Parse and analyse a Spark SQL expression.

    Args:
        sql: text of the expression.
        schema: logical schema that its names are found in.

    Raises:
        InvalidArgument: the text is not an expression, or nested too deeply.
        SchemaMismatch: it names a column that does not exist.
    """
    try:
        expression = analyse(_parse(sql), schema)
    except RecursionError:
        raise _too_deep() from None
    if _depth(expression) > _MAX_DEPTH:
        raise _too_deep()
    return expression


def _too_deep() -> InvalidArgument:
    return InvalidArgument(
        "the expression is nested too deeply: combine conditions with AND and OR, of which "
        "there may be any number, and shorten other chains of operators"
    )


def _depth(expression: Typed) -> int:
    """Levels of the tree, found without recursion."""
    depth, level = 0, [expression]
    while level and depth <= _MAX_DEPTH:
        depth += 1
        level = [child for each in level for child in operands_of(each)]
    return depth


def _parse(sql: str) -> Syntax:
    try:
        return parse_syntax(sql)
    except GrammarUnknown as unknown:
        return _parse_for_spark(sql, unknown)


# sqlglot raises these for invalid SQL, besides its own errors.
_FAILURES_OF_PARSER = (
    ArithmeticError,
    AttributeError,
    LookupError,
    RecursionError,
    TypeError,
    ValueError,
)


def _parse_for_spark(sql: str, unknown: GrammarUnknown) -> Syntax:
    """The whole text as one opaque part, if a full Spark SQL parser accepts it.

    Raises:
        InvalidArgument: it does not.
    """
    import sqlglot

    try:
        tree = sqlglot.parse_one(sql, read="spark")
    except (sqlglot.errors.SqlglotError, *_FAILURES_OF_PARSER):
        syntax_error(sql, unknown.position, unknown.problem)
    if isinstance(tree, sqlglot.exp.Alias | sqlglot.exp.Query):
        # It is an item of a SELECT (`a = 1 banana`) or a whole query.
        syntax_error(sql, unknown.position, unknown.problem)
    names = (Name((each.text,)) for each in tokenize(sql) if each.kind in ("word", "quoted"))
    return Opaque(f"a construct outside its grammar ({unknown.problem})", tuple(names))
