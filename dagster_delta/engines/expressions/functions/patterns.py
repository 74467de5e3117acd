"""LIKE and regular expressions as DuckDB SQL."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from dagster_delta.engines.expressions.rendering import Rendering, raising
from dagster_delta.sql.functions.patterns import ESCAPE
from dagster_delta.sql.functions.regular_expressions import LINE_END, TEXT_END
from dagster_delta.sql.typed import Call, Literal

__all__ = ["PATTERN_FUNCTIONS"]


def _sql_like(call: Call, operands: Sequence[str]) -> str:  # noqa: ARG001
    """DuckDB SQL, in which LIKE has no default escape. Raises nothing."""
    return f"({operands[0]} LIKE {operands[1]} ESCAPE '{ESCAPE}')"


def _sql_rlike(call: Call, operands: Sequence[str]) -> str:  # noqa: ARG001
    text, *patterns = operands
    found = [f"regexp_matches({text}, {each})" for each in patterns]
    if len(found) == 1:
        return found[0]
    return f"CASE WHEN ends_with({text}, chr(13) || chr(10)) THEN {found[0]} ELSE {found[1]} END"


def _sql_regexp_replace(call: Call, operands: Sequence[str]) -> str:
    replaced, pattern = f"regexp_replace({', '.join(operands)})", call.arguments[1]
    assert isinstance(pattern, Literal)  # noqa: S101  as it was resolved
    if not str(pattern.value).endswith(TEXT_END):
        return replaced
    refused = raising(
        "regexp_replace() with $ of text that ends in a line end: use the Spark engine"
    )
    return (
        f"CASE WHEN regexp_matches({operands[0]}, '{LINE_END}') THEN {refused} ELSE {replaced} END"
    )


PATTERN_FUNCTIONS: Mapping[str, Rendering] = {
    "like": Rendering(_sql_like),
    "ilike": Rendering(_sql_like, may_raise=True),
    "rlike": Rendering(_sql_rlike),
    "regexp_replace": Rendering(_sql_regexp_replace, may_raise=True),
}
