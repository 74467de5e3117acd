"""Functions of arrays, maps and structs as DuckDB SQL."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from dagster_delta.engines.expressions.rendering import Rendering, ToSql, raising
from dagster_delta.protocol.schema import ArrayType
from dagster_delta.sql.typed import Call, Literal

__all__ = ["NESTED_FUNCTIONS"]


def _sql_size(call: Call, operands: Sequence[str]) -> str:
    is_array = isinstance(call.arguments[0].data_type, ArrayType)
    return f"CAST({'len' if is_array else 'cardinality'}({operands[0]}) AS INTEGER)"


def _sql_contains(call: Call, operands: Sequence[str]) -> str:  # noqa: ARG001
    array, searched = operands
    return (
        f"CASE WHEN {array} IS NULL OR {searched} IS NULL THEN NULL"
        f" WHEN list_contains({array}, {searched}) THEN TRUE"
        f" WHEN list_count({array}) < len({array}) THEN NULL ELSE FALSE END"
    )


def _sql_map_value(call: Call, operands: Sequence[str]) -> str:  # noqa: ARG001
    return f"{operands[0]}[{operands[1]}]"


def _sql_get(call: Call, operands: Sequence[str]) -> str:  # noqa: ARG001
    array, index = operands
    return f"CASE WHEN {index} >= 0 THEN {array}[CAST({index} AS BIGINT) + 1] ELSE NULL END"


def _sql_subscript(call: Call, operands: Sequence[str]) -> str:
    array, index = operands
    outside = raising("the position is outside the array")
    return (
        f"CASE WHEN {array} IS NULL OR {index} IS NULL THEN NULL"
        f" WHEN {index} < 0 OR {index} >= len({array}) THEN {outside}"
        f" ELSE {_sql_get(call, operands)} END"
    )


def _sql_element_at(*, tries: bool) -> ToSql:
    """Positions count from 1, negative ones from the end."""

    def sql(call: Call, operands: Sequence[str]) -> str:  # noqa: ARG001
        array, position = operands
        outside = "NULL" if tries else raising("the position is outside the array")
        return (
            f"CASE WHEN {array} IS NULL OR {position} IS NULL THEN NULL"
            f" WHEN {position} = 0 THEN {raising('positions count from 1')}"
            f" WHEN abs(CAST({position} AS BIGINT)) > len({array}) THEN {outside}"
            f" ELSE {array}[{position}] END"
        )

    return sql


def _sql_field(call: Call, operands: Sequence[str]) -> str:
    position = call.arguments[1]
    assert isinstance(position, Literal)  # noqa: S101  the analysis put it there
    return f"struct_extract_at({operands[0]}, {position.value})"


NESTED_FUNCTIONS: Mapping[str, Rendering] = {
    "size": Rendering(_sql_size),
    "array_contains": Rendering(_sql_contains),
    "get": Rendering(_sql_get),
    "[]": Rendering(_sql_subscript, may_raise=True),
    "element_at": Rendering(_sql_element_at(tries=False), may_raise=True),
    "try_element_at": Rendering(_sql_element_at(tries=True), may_raise=True),
    "map value": Rendering(_sql_map_value),
    ".": Rendering(_sql_field),
}
