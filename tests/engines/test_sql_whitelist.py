"""The two halves of the whitelist agree: what the language types, DuckDB SQL is there for."""

from __future__ import annotations

import pytest

from dagster_delta.errors import UnsupportedExpression
from dagster_delta.protocol.schema import ArrayType, DataType, DecimalType, MapType, PrimitiveType
from dagster_delta.sql.casts import cast
from dagster_delta.sql.functions.rendering import REWRITTEN
from dagster_delta.sql.functions.renderings import RENDERINGS
from dagster_delta.sql.functions.signatures import typed_by_analysis
from dagster_delta.sql.functions.whitelist import WHITELIST
from dagster_delta.sql.text_conversion import cast_sql
from dagster_delta.sql.typed import Cast, Column, Refusal

ATOMIC = (
    "boolean", "byte", "short", "integer", "long", "float", "double", "string", "binary", "date",
    "timestamp", "timestamp_ntz", "void", "variant",
)  # fmt: skip
VALUES: tuple[DataType, ...] = (
    *map(PrimitiveType, ATOMIC),
    *(DecimalType(*digits) for digits in ((5, 0), (5, 2), (3, 3), (16, 0), (38, 10), (38, 38))),
)
TYPES: tuple[DataType, ...] = (
    *VALUES,
    *(ArrayType(each, True) for each in VALUES),
    MapType(PrimitiveType("string"), PrimitiveType("long"), True),
)


def test_both_tables_have_the_same_names() -> None:
    assert set(WHITELIST) == set(RENDERINGS)


def test_a_call_that_the_analysis_makes_has_sql_of_its_own() -> None:
    made = {name for name, resolve in WHITELIST.items() if resolve is typed_by_analysis}
    assert made == {"and", "or", "not", "map value", "."}
    assert not {name for name in made if RENDERINGS[name] is REWRITTEN}


@pytest.mark.parametrize("source", TYPES, ids=str)
def test_a_cast_that_is_typed_has_sql_and_no_other_has(source: DataType) -> None:
    for target in TYPES:
        try:
            typed = cast(Column(("c",), source), target)
        except Refusal:
            with pytest.raises(UnsupportedExpression):
                cast_sql("c0", source, target)
            continue
        if isinstance(typed, Cast) and not isinstance(target, MapType):
            assert "c0" in cast_sql("c0", source, target)
