"""Spark SQL expressions over the columns of a table: parsed once, understood by every engine.

One text serves three readers: bounds that skip files (`to_predicate`), exact evaluation over Arrow
of the typed tree, and Spark, which gets the text as it is.
"""

from __future__ import annotations

from dataclasses import dataclass

from dagster_delta.cached_property import cached_property
from dagster_delta.errors import InvalidArgument, UnsupportedExpression
from dagster_delta.protocol.schema import DataType, StructType
from dagster_delta.protocol.statistics.predicates import Predicate
from dagster_delta.sql.analysis import analyse
from dagster_delta.sql.parser import parse_syntax
from dagster_delta.sql.skipping import depends_on_time_zone, to_predicate
from dagster_delta.sql.syntax import Name, Opaque, Syntax
from dagster_delta.sql.tokens import GrammarUnknown, syntax_error, tokenize
from dagster_delta.sql.typed import Column, Refused, Typed, operands_of, walk
from dagster_delta.sql.types import BOOLEAN, VOID, sql_type_name

__all__ = ["SqlExpression", "parse_expression"]


# What walks the tree later must not meet the end of the stack, wherever it is called from.
_MAX_DEPTH = 120


def parse_expression(sql: str, schema: StructType) -> SqlExpression:
    """The expression that a Spark SQL text stands for over the columns of a schema.

    Columns are matched as Spark matches them, without regard to case; `a.b` is a field of a struct,
    backticks quote odd names. Constants and casts of timestamps are read in UTC by the embedded
    engine, and in the session's time zone by Spark.

    Raises:
        InvalidArgument: the text is not an expression; the message shows where.
        SchemaMismatch: it names a column that is not there.
    """
    expression = SqlExpression(sql, schema)
    _ = expression.typed  # problems show here, and not at the first batch
    return expression


@dataclass(frozen=True)
class SqlExpression:
    """A Spark SQL expression; make one with `parse_expression`. Pickles as its text and schema."""

    sql: str
    """The text as it was given, for Spark."""
    schema: StructType
    """Logical schema that its names are found in."""

    def __reduce__(self) -> tuple[object, ...]:
        return SqlExpression, (self.sql, self.schema)

    def __hash__(self) -> int:
        # Evaluators are found by it for every batch, and schemas may be long.
        return hash(self.sql)

    @cached_property
    def typed(self) -> Typed:
        """The typed tree.

        Raises:
            InvalidArgument, SchemaMismatch: as `parse_expression` does.
        """
        try:
            expression = analyse(_parse(self.sql), self.schema)
        except RecursionError:
            raise _too_deep() from None
        if _depth(expression) > _MAX_DEPTH:
            raise _too_deep()
        return expression

    @property
    def data_type(self) -> DataType | None:
        """Type of the result, or None where only Spark can tell."""
        return self.typed.data_type

    @cached_property
    def references(self) -> frozenset[tuple[str, ...]]:
        """Logical paths of the columns it looks at."""
        return frozenset(each.path for each in walk(self.typed) if isinstance(each, Column))

    @cached_property
    def depends_on_time_zone(self) -> bool:
        """Whether its result may hang on the session's time zone, which is UTC when embedded."""
        return depends_on_time_zone(self.typed)

    def to_predicate(self, *, session_is_utc: bool = True) -> Predicate:
        """What it asks of the bounds of columns, for skipping files.

        Args:
            session_is_utc: False where Spark will evaluate it in another time zone, so that what
                hangs on the zone must not skip anything.

        Raises:
            Nothing: parts without an answer are `Unknown`.
        """
        return to_predicate(self.typed, session_is_utc=session_is_utc)

    def check_filter(self) -> None:
        """Make sure that it can be true or false.

        Raises:
            InvalidArgument: it is of another type.
        """
        data_type = self.data_type
        if data_type is not None and data_type not in (BOOLEAN, VOID):
            raise InvalidArgument(
                f"a filter must be a condition, and {self.sql!r} is a value of type "
                f"{sql_type_name(data_type)}: compare it with something"
            )

    def check_embeddable(self) -> None:
        """Make sure that the embedded engine computes it exactly as Spark would.

        Raises:
            InvalidArgument: Spark would refuse it as well.
            UnsupportedExpression: it holds a construct outside the whitelist.
        """
        self.check_valid()
        for each in walk(self.typed):
            if isinstance(each, Refused):
                raise UnsupportedExpression(
                    f"the embedded engine cannot evaluate {self.sql!r} exactly as Spark would, "
                    f"because of {each.construct}: {each.remedy}"
                )

    def check_valid(self) -> None:
        """Make sure that it holds nothing that is surely wrong, whatever the engine.

        Raises:
            InvalidArgument: it calls a function with the wrong number of arguments, or puts types
                together that Spark SQL does not.
        """
        for each in walk(self.typed):
            if isinstance(each, Refused) and each.is_wrong:
                raise InvalidArgument(f"{self.sql!r} is wrong in Spark SQL: {each.construct}")


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


# What sqlglot raises over text that is no SQL, besides its own errors.
_FAILURES_OF_PARSER = (
    ArithmeticError,
    AttributeError,
    LookupError,
    RecursionError,
    TypeError,
    ValueError,
)


def _parse_for_spark(sql: str, unknown: GrammarUnknown) -> Syntax:
    """The whole text as one opaque part, if a full parser of Spark SQL takes it.

    Raises:
        InvalidArgument: it does not.
    """
    import sqlglot

    try:
        tree = sqlglot.parse_one(sql, read="spark")
    except (sqlglot.errors.SqlglotError, *_FAILURES_OF_PARSER):
        syntax_error(sql, unknown.position, unknown.problem)
    if isinstance(tree, sqlglot.exp.Alias | sqlglot.exp.Query):
        # An item of a SELECT (`a = 1 banana`) or a whole query, and no expression.
        syntax_error(sql, unknown.position, unknown.problem)
    names = (Name((each.text,)) for each in tokenize(sql) if each.kind in ("word", "quoted"))
    return Opaque(f"a construct outside its grammar ({unknown.problem})", tuple(names))
