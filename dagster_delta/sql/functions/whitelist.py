"""The whitelist: what the embedded engine is proved to compute as Spark does."""

from __future__ import annotations

from collections.abc import Mapping

from dagster_delta.sql.functions.arithmetic import ARITHMETIC
from dagster_delta.sql.functions.conditions import CONDITIONS
from dagster_delta.sql.functions.conversions import CONVERSIONS
from dagster_delta.sql.functions.dates import DATE_FUNCTIONS
from dagster_delta.sql.functions.nested import NESTED_FUNCTIONS
from dagster_delta.sql.functions.numbers import NUMERIC_FUNCTIONS
from dagster_delta.sql.functions.patterns import PATTERN_FUNCTIONS
from dagster_delta.sql.functions.signatures import Resolve
from dagster_delta.sql.functions.text import TEXT_FUNCTIONS
from dagster_delta.sql.functions.variants import VARIANT_FUNCTIONS

__all__ = ["WHITELIST", "canonical_name"]

_SYNONYMS = {
    "abs": "abs", "cardinality": "size", "ceiling": "ceil", "char_length": "length",
    "character_length": "length", "date_part": "extract", "datepart": "extract",
    "day": "dayofmonth", "ends_with": "endswith", "equal_null": "<=>", "ifnull": "coalesce",
    "isnull": "is null", "lcase": "lower", "len": "length", "mod": "%", "nvl": "coalesce",
    "position": "locate", "regexp": "rlike", "regexp_like": "rlike", "sha": "sha1",
    "signum": "sign", "starts_with": "startswith", "substr": "substring", "ucase": "upper",
}  # fmt: skip


def canonical_name(name: str) -> str:
    """The name of a function in the whitelist. Raises nothing."""
    return _SYNONYMS.get(name, name)


WHITELIST: Mapping[str, Resolve] = {
    **CONDITIONS,
    **ARITHMETIC,
    **NUMERIC_FUNCTIONS,
    **TEXT_FUNCTIONS,
    **PATTERN_FUNCTIONS,
    **NESTED_FUNCTIONS,
    **VARIANT_FUNCTIONS,
    **DATE_FUNCTIONS,
    **CONVERSIONS,
}
"""How Spark types a call, by the name of the function or operator; any other name is refused."""
