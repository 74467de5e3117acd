"""Comparisons, tests for null and choices between values as DuckDB SQL."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from dagster_delta.engines.expressions.rendering import REWRITTEN, Rendering, function
from dagster_delta.protocol.schema import PrimitiveType
from dagster_delta.sql.typed import Call

__all__ = ["CONDITIONS"]


def _sql_logical(call: Call, operands: Sequence[str]) -> str:
    return f"({f' {call.name.upper()} '.join(operands)})"


def _sql_not(call: Call, operands: Sequence[str]) -> str:  # noqa: ARG001
    return f"(NOT {operands[0]})"


def _sql_comparison(call: Call, operands: Sequence[str]) -> str:
    operator = "IS NOT DISTINCT FROM" if call.name == "<=>" else call.name
    return f"({operands[0]} {operator} {operands[1]})"


def _sql_in(call: Call, operands: Sequence[str]) -> str:  # noqa: ARG001
    return f"({operands[0]} IN ({', '.join(operands[1:])}))"


def _sql_is_null(call: Call, operands: Sequence[str]) -> str:  # noqa: ARG001
    return f"({operands[0]} IS NULL)"


def _sql_is_nan(call: Call, operands: Sequence[str]) -> str:  # noqa: ARG001
    return f"coalesce(isnan({operands[0]}), FALSE)"


def _sql_case(call: Call, operands: Sequence[str]) -> str:  # noqa: ARG001
    branches = " ".join(
        f"WHEN {condition} THEN {value}"
        for condition, value in zip(operands[:-1:2], operands[1::2], strict=True)
    )
    return f"CASE {branches} ELSE {operands[-1]} END"


def _sql_extremum(call: Call, operands: Sequence[str]) -> str:
    found = f"{call.name}({', '.join(operands)})"
    if call.data_type not in (PrimitiveType("float"), PrimitiveType("double")):
        return found
    # DuckDB turns minus zero into zero; Spark returns the first of equal values unchanged.
    values = f"[{', '.join(operands)}]"
    return f"{values}[list_position({values}, {found})]"


CONDITIONS: Mapping[str, Rendering] = {
    "and": Rendering(_sql_logical),
    "or": Rendering(_sql_logical),
    "not": Rendering(_sql_not),
    **dict.fromkeys(("=", "<", "<=", ">", ">=", "<=>"), Rendering(_sql_comparison)),
    "in": Rendering(_sql_in),
    "is null": Rendering(_sql_is_null),
    "isnotnull": REWRITTEN,
    "isnan": Rendering(_sql_is_nan),
    "case": Rendering(_sql_case),
    "if": REWRITTEN,
    "nullif": REWRITTEN,
    "nvl2": REWRITTEN,
    "coalesce": Rendering(function("coalesce")),
    "greatest": Rendering(_sql_extremum),
    "least": Rendering(_sql_extremum),
}
