"""An upper bound for the bytes that the embedded engine needs per row, before computing any.

A few characters of SQL can make texts of gigabytes, and DuckDB's memory limit ignores computed
texts. The bound follows from the expression and the longest values of its columns: it is never too
small, and adds the maximum growth by each function.
"""

from __future__ import annotations

from collections.abc import Mapping

import pyarrow as pa

import dagster_delta.arrow_compute as pc
from dagster_delta.errors import UnsupportedExpression
from dagster_delta.sql.typed import Call, Cast, Column, Literal, Typed, operands_of, walk
from dagster_delta.sql.types import BINARY, BOOLEAN, STRING, VARIANT, is_primitive

MAX_ROW_BYTES = 256 * 1024 * 1024
"""Limit for one row, intermediate texts included; rows computed at once need about as much."""

_GROWING = frozenset({"||", "concat_ws", "lpad", "regexp_replace", "repeat", "replace", "rpad"})
_SELECTING = frozenset({"case", "coalesce", "greatest", "least"})
# Numbers, dates and their text.
_SCALAR_BYTES = 64
_CHARACTER_BYTES = 4

Lengths = Mapping[tuple[str, ...], int]


def grows(expression: Typed) -> bool:
    """Whether a function in it may make texts longer than its arguments."""
    return any(isinstance(node, Call) and node.name in _GROWING for node in walk(expression))


def check_constant_growth(expression: Typed) -> None:
    """Refuse expressions that need too much memory for any values of the columns."""
    if not grows(expression) or row_bytes(expression, {}) <= MAX_ROW_BYTES:
        return
    innermost_first = reversed(list(walk(expression)))
    calls = (node for node in innermost_first if isinstance(node, Call))
    name = next((call.name for call in calls if row_bytes(call, {}) > MAX_ROW_BYTES), "a constant")
    raise UnsupportedExpression(
        f"{name} makes texts of more than {MAX_ROW_BYTES} bytes a row, which is the limit of the "
        "embedded engine: make them shorter, or use the Spark engine"
    )


def row_bytes(expression: Typed, lengths: Lengths) -> int:
    """Maximum bytes of a row: the results of all parts of the expression together.

    `lengths`: of the longest value of every column, in bytes; 0 if it is missing.
    """
    return _bounds(expression, lengths)[1]


def _bounds(node: Typed, lengths: Lengths) -> tuple[int, int]:
    """Bytes of the result, and of the results of all parts."""
    if isinstance(node, Column):
        own = lengths.get(node.path, 0)
        return own, own
    if isinstance(node, Literal):
        own = _literal_bytes(node.value)
        return own, own
    found = [_bounds(operand, lengths) for operand in operands_of(node)]
    own = _result_bytes(node, [size for size, _ in found])
    return own, own + sum(needed for _, needed in found)


def _literal_bytes(value: object) -> int:
    if isinstance(value, str):
        return len(value.encode("utf-8", "surrogatepass"))
    return len(value) if isinstance(value, bytes) else _SCALAR_BYTES


def _result_bytes(node: Typed, operands: list[int]) -> int:
    if isinstance(node, Cast):
        return max(_SCALAR_BYTES, *operands) * (2 if node.data_type == STRING else 1)
    if not isinstance(node, Call) or node.data_type == BOOLEAN:
        return _SCALAR_BYTES
    arguments = node.arguments
    match node.name:
        case "repeat":
            return operands[0] * _constant(arguments[1])
        case "lpad" | "rpad":
            return operands[0] + _constant(arguments[1]) * _CHARACTER_BYTES
        case "replace" | "regexp_replace":
            searched = operands[1] if node.name == "replace" else 0
            by = operands[2]
            # A pattern may match between all characters and at the end.
            matches = operands[0] // searched if searched else operands[0] + 1
            return operands[0] + matches * by
        case "concat_ws":
            return sum(operands[1:]) + operands[0] * len(operands)
        case "md5" | "sha1" | "sha256":
            return _SCALAR_BYTES
        case name if name in _SELECTING:
            return max(operands)
    if node.data_type in (STRING, BINARY, VARIANT) or not is_primitive(node.data_type):
        # Substrings, changes of case (up to four bytes), or parts of nested values.
        times = _CHARACTER_BYTES if node.name == "translate" else 1
        return max(_SCALAR_BYTES, sum(operands) * times)
    return _SCALAR_BYTES


def _constant(argument: Typed) -> int:
    # The whitelist has no other types.
    assert isinstance(argument, Literal)  # noqa: S101
    assert isinstance(argument.value, int)  # noqa: S101
    return argument.value


def longest_value(values: pa.Array) -> int:
    """Bytes of the longest value of a `pa.Array`, or slightly more."""
    types, kind = pa.types, values.type
    if types.is_string(kind) or types.is_binary(kind):
        return int(pc.max(pc.binary_length(values)).as_py() or 0)
    if types.is_struct(kind):
        return sum(map(longest_value, values.flatten())) + _SCALAR_BYTES
    if types.is_map(kind):
        entries = pc.max(pc.subtract(values.offsets[1:], values.offsets[:-1])).as_py() or 0
        return int(entries) * (longest_value(values.keys) + longest_value(values.items))
    if types.is_list(kind):
        items = pc.max(pc.list_value_length(values)).as_py() or 0
        return int(items) * longest_value(values.values)
    return _SCALAR_BYTES
