"""Arrow arrays and scalars from Python values of a Delta type, by their buffers.

`pyarrow.array` and `pyarrow.scalar` import pandas, if installed, at their first Python value, which
takes longer than planning most scans.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from dagster_delta.protocol.schema import DataType
from dagster_delta.protocol.values.arrow_columns import boolean_column, column_of, integer_column
from dagster_delta.protocol.values.arrow_schema import to_arrow_type

TRUE, FALSE = boolean_column([True, False])
"""The two `pa.BooleanScalar`s."""


def every(value: bool, count: int) -> pa.BooleanArray:
    """A pa.BooleanArray that repeats one value `count` times."""
    return pa.repeat(TRUE if value else FALSE, count)


def integer_scalar(value: int) -> pa.Scalar:
    """A pa.Int64Scalar."""
    return integer_column([value])[0]


def null_scalar(arrow_type: pa.DataType) -> pa.Scalar:
    """The null of an Arrow type."""
    return pa.nulls(1, arrow_type)[0]


def scalar_of(value: object, data_type: DataType) -> pa.Scalar:
    """A pyarrow Scalar of the type. Raises as `array_of` does."""
    return array_of([value], data_type)[0]


def array_of(values: Sequence[Any], data_type: DataType) -> pa.Array:
    """A pyarrow Array of `to_arrow_type(data_type)`. Raises as `column_of` does."""
    return column_of(values, to_arrow_type(data_type))
