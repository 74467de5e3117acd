"""Functions named after a type in the whitelist: casts, written as calls."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec.structs import replace

from dagster_delta.protocol.schema import DataType, PrimitiveType
from dagster_delta.sql.casts import cast
from dagster_delta.sql.functions.signatures import Resolve
from dagster_delta.sql.typed import Literal, Refusal, Typed
from dagster_delta.sql.types import BOOLEAN, INTEGER, STRING

__all__ = ["CONVERSIONS"]


def _cast_function(target: DataType) -> Resolve:
    def resolve(name: str, arguments: tuple[Typed, ...]) -> Typed:
        if len(arguments) != 1:
            raise Refusal(f"{name} with {len(arguments)} arguments")
        result = cast(arguments[0], target)
        return replace(result, is_written=False) if isinstance(result, Literal) else result

    return resolve


_CAST_FUNCTIONS = {
    "bigint": PrimitiveType("long"),
    "boolean": BOOLEAN,
    "date": PrimitiveType("date"),
    "double": PrimitiveType("double"),
    "float": PrimitiveType("float"),
    "int": INTEGER,
    "smallint": PrimitiveType("short"),
    "string": STRING,
    "timestamp": PrimitiveType("timestamp"),
    "tinyint": PrimitiveType("byte"),
    "to_date": PrimitiveType("date"),
    "to_timestamp": PrimitiveType("timestamp"),
}


CONVERSIONS: Mapping[str, Resolve] = {
    name: _cast_function(target) for name, target in _CAST_FUNCTIONS.items()
}
