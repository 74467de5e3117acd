"""What gives another answer when it is asked again is told from columns of the same names."""

from __future__ import annotations

import pytest

from dagster_delta.errors import InvalidArgument
from dagster_delta.protocol.schema import PrimitiveType, StructField, StructType
from dagster_delta.sql.expressions import parse_expression
from dagster_delta.sql.repeatability import check_repeatable, unsteady_functions

LONG = PrimitiveType("long")
SCHEMA = StructType(
    (
        StructField("user", LONG),
        StructField("Rand", LONG),
        StructField("s", StructType((StructField("now", LONG), StructField("rand", LONG)))),
    )
)


@pytest.mark.parametrize(
    ("sql", "functions"),
    [
        ("user = 1 AND rand > `RAND`", []),
        ("s.now = s.rand", []),
        ("s.now < now()", ["now"]),
        ("Rand = 1 AND rand () < 0.5", ["rand"]),
        ("session_user = 'x' AND user = 1", ["session_user"]),
    ],
)
def test_functions_are_told_from_columns(sql: str, functions: list[str]) -> None:
    expression = parse_expression(sql, SCHEMA)
    assert unsteady_functions(expression) == functions
    if "rand" in functions:
        with pytest.raises(InvalidArgument, match="rand"):
            check_repeatable(expression, "the condition")
    else:
        check_repeatable(expression, "the condition")
