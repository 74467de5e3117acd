"""The whitelist: what the embedded engine is proved to compute as Spark does."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec.structs import replace

from dagster_delta.protocol.schema import DataType, PrimitiveType
from dagster_delta.sql.casts import cast
from dagster_delta.sql.functions.conditions import CONDITIONS
from dagster_delta.sql.functions.dates import DATE_FUNCTIONS
from dagster_delta.sql.functions.function import Function
from dagster_delta.sql.functions.nested import NESTED_FUNCTIONS
from dagster_delta.sql.functions.numbers import NUMERIC_FUNCTIONS
from dagster_delta.sql.functions.text import TEXT_FUNCTIONS
from dagster_delta.sql.functions.time_zones import ZONE_FUNCTIONS
from dagster_delta.sql.literals import TYPE_NAMES
from dagster_delta.sql.typed import Literal, Typed


def _cast_function(target: DataType) -> Function:
    def resolve(_name: str, arguments: tuple[Typed, ...]) -> Typed:
        result = cast(arguments[0], target)
        return replace(result, is_written=False) if isinstance(result, Literal) else result

    return Function(resolve)


_CAST_FUNCTIONS = (
    "bigint", "boolean", "date", "double", "float", "int", "smallint", "string", "timestamp",
    "tinyint", "to_date", "to_timestamp",
)  # fmt: skip
"""Functions named for a type of Spark SQL."""


_SYNONYMS = {
    "cardinality": "size", "ceiling": "ceil", "char_length": "length",
    "character_length": "length", "date_part": "extract", "datepart": "extract",
    "day": "dayofmonth", "ends_with": "endswith", "equal_null": "<=>",
    "isnull": "is null", "lcase": "lower", "len": "length", "mod": "%",
    "starts_with": "startswith", "substr": "substring", "ucase": "upper",
}  # fmt: skip


def canonical_name(name: str) -> str:
    """The name of a function in the whitelist."""
    return _SYNONYMS.get(name, name)


WHITELIST: Mapping[str, Function] = {
    **CONDITIONS,
    **NUMERIC_FUNCTIONS,
    **TEXT_FUNCTIONS,
    **NESTED_FUNCTIONS,
    **DATE_FUNCTIONS,
    **ZONE_FUNCTIONS,
    **{
        name: _cast_function(PrimitiveType(TYPE_NAMES[name.removeprefix("to_")]))
        for name in _CAST_FUNCTIONS
    },
}
"""Functions and operators by name; any other name is refused."""
