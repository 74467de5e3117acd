"""Functions of text as DuckDB SQL."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from dagster_delta.engines.expressions.rendering import REWRITTEN, Rendering, function, raising
from dagster_delta.sql.typed import Call
from dagster_delta.sql.types import BINARY, STRING

__all__ = ["TEXT_FUNCTIONS"]


def _sql_concat(call: Call, operands: Sequence[str]) -> str:  # noqa: ARG001
    return f"({' || '.join(operands)})"


def _ascii_only(name: str) -> Rendering:
    """Case of letters outside ASCII depends on the version of Unicode and on the locale."""

    def sql(call: Call, operands: Sequence[str]) -> str:  # noqa: ARG001
        text = operands[0]
        refused = raising(f"{name}() of letters outside ASCII: use the Spark engine")
        return (
            f"CASE WHEN {text} IS NULL OR strlen({text}) = length({text})"
            f" THEN {name}({text}) ELSE {refused} END"
        )

    return Rendering(sql, may_raise=True)


def _sql_length(call: Call, operands: Sequence[str]) -> str:
    measure = "octet_length" if call.arguments[0].data_type == BINARY else "length"
    return f"CAST({measure}({operands[0]}) AS INTEGER)"


def _trim(duckdb_name: str) -> Rendering:
    def sql(call: Call, operands: Sequence[str]) -> str:  # noqa: ARG001
        return f"{duckdb_name}({operands[0]}, ' ')"

    return Rendering(sql)


def _sql_octets(call: Call, operands: Sequence[str]) -> str:
    is_text = call.arguments[0].data_type == STRING
    count = f"strlen({operands[0]})" if is_text else f"octet_length({operands[0]})"
    return f"CAST({count}{' * 8' if call.name == 'bit_length' else ''} AS INTEGER)"


TEXT_FUNCTIONS: Mapping[str, Rendering] = {
    "concat": REWRITTEN,
    "||": Rendering(_sql_concat),
    "upper": _ascii_only("upper"),
    "lower": _ascii_only("lower"),
    "trim": _trim("trim"),
    "ltrim": _trim("ltrim"),
    "rtrim": _trim("rtrim"),
    "startswith": Rendering(function("starts_with")),
    "endswith": Rendering(function("ends_with")),
    "contains": Rendering(function("contains")),
    "length": Rendering(_sql_length),
    "substring": Rendering(function("substring")),
    "left": REWRITTEN,
    "replace": Rendering(function("replace")),
    "right": Rendering(function("right")),
    "repeat": Rendering(function("repeat")),
    "lpad": Rendering(function("lpad")),
    "rpad": Rendering(function("rpad")),
    "instr": Rendering(function("instr", "INTEGER")),
    "locate": REWRITTEN,
    "split_part": Rendering(function("split_part")),
    "concat_ws": Rendering(function("concat_ws")),
    "translate": Rendering(function("translate")),
    "md5": Rendering(function("md5")),
    "sha1": Rendering(function("sha1")),
    "sha2": REWRITTEN,
    "sha256": Rendering(function("sha256")),
    "octet_length": Rendering(_sql_octets),
    "bit_length": Rendering(_sql_octets),
}
