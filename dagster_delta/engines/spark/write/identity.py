"""Numbering rows on many executors at once, without coordination.

Spec: Identity Columns.
"""

from __future__ import annotations

from types import ModuleType
from typing import TYPE_CHECKING

from dagster_delta.protocol.features.column_values import LONG_MAX, LONG_MIN, IdentityColumn

if TYPE_CHECKING:
    from pyspark.sql import Column

_ROW_BITS = 33
"""Spark numbers the rows of a task with this many low bits; the task's number is above them."""


def identity_value(identity: IdentityColumn, functions: ModuleType) -> Column:
    """The unique value of an identity column for each row of a query; null if it does not
    fit a 64-bit integer.

    The number of tasks is unknown when rows are numbered. So row `k` of task `t` takes
    the number whose low bits are the Elias gamma code of `t + 1`, and whose high bits are `k`: no
    such code is a prefix of another, so tasks never collide, and few tasks leave small gaps.
    """

    def long(value: int) -> Column:
        literal: Column = functions.lit(value).cast("bigint")
        return literal

    number = functions.monotonically_increasing_id()
    row = number.bitwiseAND(long((1 << _ROW_BITS) - 1))
    task = functions.shiftright(number, _ROW_BITS) + long(1)
    # The length of the binary form minus one: logarithms would be rounded.
    width = functions.length(functions.bin(task)) - functions.lit(1)
    power = _shifted(long(1), width, functions)
    code = power + _shifted(task - power, width + functions.lit(1), functions)
    stride = _shifted(long(1), width * functions.lit(2) + functions.lit(1), functions)
    index = functions.try_add(functions.try_multiply(row, stride), code)
    first = identity.next_value
    if not LONG_MIN <= first <= LONG_MAX:
        nothing: Column = functions.lit(None).cast("bigint")
        return nothing
    # The lowest of all codes is 1.
    distance = functions.try_multiply(index - long(1), long(identity.step))
    found: Column = functions.try_add(long(first), distance)
    return found


def _shifted(value: Column, bits: Column, functions: ModuleType) -> Column:
    # The function of that name takes no column of bits.
    found: Column = functions.call_function("shiftleft", value, bits.cast("int"))
    return found
