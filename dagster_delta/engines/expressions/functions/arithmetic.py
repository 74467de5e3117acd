"""Arithmetic as DuckDB SQL, with Spark's overflow errors and its division by zero."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from dagster_delta.engines.expressions.rendering import REWRITTEN, Rendering, duckdb_type, raising
from dagster_delta.errors import UnsupportedExpression
from dagster_delta.protocol.schema import DataType, DecimalType
from dagster_delta.sql.typed import Call, types_of
from dagster_delta.sql.types import common_type, is_integral

__all__ = ["ARITHMETIC"]


def _sql(call: Call, operands: Sequence[str]) -> str:
    left, right = operands
    target = duckdb_type(call.data_type)
    if isinstance(call.data_type, DecimalType) and call.name != "*":
        common = duckdb_type(_common_decimal(call))
        left, right = (f"CAST({each} AS {common})" for each in operands)
    if call.name == "%":
        # The smallest integer has no remainder by -1 in hardware; in Spark it is 0.
        is_whole = is_integral(call.data_type)
        minus_one = f" WHEN {right} = -1 THEN CAST(0 AS {target})" if is_whole else ""
        return (
            f"CASE WHEN {left} IS NULL OR {right} IS NULL THEN NULL"
            f" WHEN {right} = 0 THEN {raising('remainder by zero')}{minus_one}"
            f" ELSE CAST({left} % {right} AS {target}) END"
        )
    return f"CAST({left} {call.name} {right} AS {target})"


def _common_decimal(call: Call) -> DataType:
    common = common_type(types_of(call.arguments))
    if common is None:
        raise UnsupportedExpression(f"decimal {call.name}; use the Spark engine")
    return common


def _sql_date_shift(call: Call, operands: Sequence[str]) -> str:
    days, sign = operands[1], call.name[-1]
    return f"CAST({operands[0]} {sign} {days} AS DATE)"


def _sql_division(call: Call, operands: Sequence[str]) -> str:
    left, right = operands
    operator = "/" if call.name == "/" else "//"
    return (
        f"CASE WHEN {left} IS NULL OR {right} IS NULL THEN NULL"
        f" WHEN {right} = 0 THEN {raising('division by zero')}"
        f" ELSE CAST({left} {operator} {right} AS {duckdb_type(call.data_type)}) END"
    )


def _sql_negative(call: Call, operands: Sequence[str]) -> str:
    target = duckdb_type(call.data_type)
    if is_integral(call.data_type):
        # DuckDB widens the smallest integer instead of failing.
        return f"(CAST(0 AS {target}) - {operands[0]})"
    return f"CAST(-{operands[0]} AS {target})"


def _sql_absolute(call: Call, operands: Sequence[str]) -> str:
    return f"CAST(abs({operands[0]}) AS {duckdb_type(call.data_type)})"


def _sql_rounding(call: Call, operands: Sequence[str]) -> str:
    return f"CAST({call.name}({operands[0]}) AS {duckdb_type(call.data_type)})"


ARITHMETIC: Mapping[str, Rendering] = {
    **dict.fromkeys(("+", "-", "*", "%"), Rendering(_sql, may_raise=True)),
    **dict.fromkeys(("date +", "date -"), Rendering(_sql_date_shift, may_raise=True)),
    "date_add": REWRITTEN,
    "date_sub": REWRITTEN,
    "/": Rendering(_sql_division, may_raise=True),
    "div": Rendering(_sql_division, may_raise=True),
    "negative": Rendering(_sql_negative, may_raise=True),
    "positive": REWRITTEN,
    "abs": Rendering(_sql_absolute, may_raise=True),
    "ceil": Rendering(_sql_rounding),
    "floor": Rendering(_sql_rounding),
}
