"""Functions of numbers as DuckDB SQL, beside the operators."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from dagster_delta.engines.expressions.rendering import REWRITTEN, Rendering, duckdb_type, raising
from dagster_delta.sql.typed import Call

__all__ = ["NUMERIC_FUNCTIONS"]


def _sql_as_type(call: Call, operands: Sequence[str]) -> str:
    # A cast to fewer digits rounds halves away from zero, which is what ROUND does.
    return f"CAST({operands[0]} AS {duckdb_type(call.data_type)})"


def _sql_root(call: Call, operands: Sequence[str]) -> str:  # noqa: ARG001
    return f"CASE WHEN {operands[0]} < 0 THEN CAST('nan' AS DOUBLE) ELSE sqrt({operands[0]}) END"


def _sql_sign(call: Call, operands: Sequence[str]) -> str:  # noqa: ARG001
    return (
        f"CASE WHEN isnan({operands[0]}) OR {operands[0]} = 0 THEN {operands[0]}"
        f" ELSE CAST(sign({operands[0]}) AS DOUBLE) END"
    )


def _sql_pmod(call: Call, operands: Sequence[str]) -> str:
    left, right = operands
    target = duckdb_type(call.data_type)
    rest = f"CAST({left} % {right} AS {target})"
    return (
        f"CASE WHEN {left} IS NULL OR {right} IS NULL THEN NULL"
        f" WHEN {right} = 0 THEN {raising('remainder by zero')}"
        f" WHEN {right} = -1 THEN CAST(0 AS {target})"
        f" WHEN {rest} < 0 THEN CAST(({rest} + {right}) % {right} AS {target}) ELSE {rest} END"
    )


NUMERIC_FUNCTIONS: Mapping[str, Rendering] = {
    "round": Rendering(_sql_as_type),
    "sqrt": Rendering(_sql_root),
    "sign": Rendering(_sql_sign),
    "pmod": Rendering(_sql_pmod, may_raise=True),
    "zeroifnull": REWRITTEN,
    "nullifzero": REWRITTEN,
}
