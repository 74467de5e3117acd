"""Functions that give another result when the same row is evaluated again.

A condition is computed more than once: to find the files, to change the rows, to record the
changes. If the results differ, rows are lost or duplicated.
"""

from __future__ import annotations

from itertools import pairwise

from dagster_delta.errors import InvalidArgument
from dagster_delta.sql.expressions import SqlExpression
from dagster_delta.sql.tokens import tokenize

RANDOM = frozenset(
    {
        "input_file_name", "monotonically_increasing_id", "rand", "randn", "random", "randstr",
        "shuffle", "spark_partition_id", "uniform", "uuid",
    }
)  # fmt: skip
"""Random functions, and functions of the partition in which Spark computes a row."""

OF_THE_SESSION = frozenset(
    {
        "curdate", "current_catalog", "current_database", "current_date", "current_schema",
        "current_time", "current_timestamp", "current_timezone", "current_user", "localtimestamp",
        "now", "session_user", "user",
    }
)  # fmt: skip
"""Functions of the clock and the session: one value for all rows of a statement."""


def unsteady_functions(expression: SqlExpression) -> list[str]:
    """Sorted names of an expression's functions that are random or read the clock or the
    session.
    """
    return _named(expression, RANDOM | OF_THE_SESSION)


def check_repeatable(expression: SqlExpression, what: str) -> None:
    """Check that an expression gives every row one result within a statement.

    Args:
        expression: a condition, as parsed.
        what: its name in the error: "the condition of a merge".

    Raises:
        InvalidArgument: it has a random function.
    """
    found = _named(expression, RANDOM)
    if found:
        raise InvalidArgument(
            f"{what} holds {', '.join(found)}, which gives another answer each time it is asked: "
            "compute it into a column first"
        )


def _named(expression: SqlExpression, functions: frozenset[str]) -> list[str]:
    tokens = tokenize(expression.sql)
    columns = {part.lower() for path in expression.references for part in path}
    return sorted(
        {
            word
            for token, following in pairwise(tokens)
            if token.kind == "word"
            and (word := token.text.lower()) in functions
            and (word not in columns or following.is_operator("("))
        }
    )
