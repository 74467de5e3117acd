"""Comparisons of CHAR(n) columns as Spark makes them: constants are padded with blanks.

Only a column itself is compared this way, not a field of a struct or a value computed from it.
"""

from __future__ import annotations

from msgspec.structs import replace

from dagster_delta.protocol.schema import PrimitiveType
from dagster_delta.sql.typed import Column, Literal, Refusal, Typed, walk

_COMPARISONS = frozenset({"=", "<", "<=", ">", ">=", "<=>"})
_STRING = PrimitiveType("string")


def with_padded_literals(name: str, operands: tuple[Typed, ...]) -> tuple[Typed, ...]:
    """The operands of a call, with constants padded to the length of the compared column."""
    if name == "in" and operands:
        length = _char_length(operands[0])
        is_padded = length is not None and not any(map(_has_column, operands[1:]))
        return tuple(_padded(each, length) for each in operands) if is_padded else operands
    if name not in _COMPARISONS or len(operands) != 2:
        return operands
    lengths = [_char_length(each) for each in operands]
    match lengths:
        case [None, None]:
            return operands
        case [int() as left, int() as right]:
            if left != right:
                raise Refusal("a comparison of CHAR(n) of different lengths")
            return operands
    length = lengths[0] or lengths[1]
    if any(_has_column(each) for each, own in zip(operands, lengths, strict=True) if own is None):
        return operands
    return tuple(_padded(each, length) for each in operands)


def _char_length(operand: Typed) -> int | None:
    return operand.char_length if isinstance(operand, Column) else None


def _has_column(operand: Typed) -> bool:
    return any(isinstance(each, Column) for each in walk(operand))


def _padded(operand: Typed, length: int | None) -> Typed:
    if isinstance(operand, Column) or length is None:
        return operand
    if not isinstance(operand, Literal):
        raise Refusal("a comparison of CHAR(n) with a computed text")
    if operand.data_type != _STRING or not isinstance(operand.value, str):
        return operand
    if len(operand.value.rstrip(" ")) > length:
        raise Refusal(f"a comparison of CHAR({length}) with a longer text")
    # A longer constant ends in blanks; Spark pads the column to the same length.
    return replace(operand, value=operand.value.ljust(length)[:length])
