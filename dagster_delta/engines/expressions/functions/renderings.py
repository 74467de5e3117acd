"""The DuckDB SQL of every call in the whitelist."""

from __future__ import annotations

from collections.abc import Mapping

from dagster_delta.engines.expressions.functions.arithmetic import ARITHMETIC
from dagster_delta.engines.expressions.functions.conditions import CONDITIONS
from dagster_delta.engines.expressions.functions.dates import DATE_FUNCTIONS
from dagster_delta.engines.expressions.functions.nested import NESTED_FUNCTIONS
from dagster_delta.engines.expressions.functions.numbers import NUMERIC_FUNCTIONS
from dagster_delta.engines.expressions.functions.patterns import PATTERN_FUNCTIONS
from dagster_delta.engines.expressions.functions.text import TEXT_FUNCTIONS
from dagster_delta.engines.expressions.functions.variants import VARIANT_FUNCTIONS
from dagster_delta.engines.expressions.rendering import REWRITTEN, Rendering
from dagster_delta.sql.functions.conversions import CONVERSIONS

__all__ = ["RENDERINGS"]

RENDERINGS: Mapping[str, Rendering] = {
    **CONDITIONS,
    **ARITHMETIC,
    **NUMERIC_FUNCTIONS,
    **TEXT_FUNCTIONS,
    **PATTERN_FUNCTIONS,
    **NESTED_FUNCTIONS,
    **VARIANT_FUNCTIONS,
    **DATE_FUNCTIONS,
    **dict.fromkeys(CONVERSIONS, REWRITTEN),
}
"""Renderings by name, for all names of the whitelist."""
