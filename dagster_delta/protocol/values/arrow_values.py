"""Arrow arrays and scalars from Python values of a Delta type, by their buffers.

`pyarrow.array` and `pyarrow.scalar` import pandas, if installed, at their first Python value, which
takes longer than planning most scans.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

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


def python_value(scalar: pa.Scalar) -> object:
    """The value of a `pyarrow.Scalar`, to be shown: dates that Python does not have are a text."""
    try:
        return scalar.as_py()
    except UnicodeDecodeError:
        return scalar.cast(pa.binary()).as_py()
    except (OverflowError, ValueError):
        # Dates of Python end at the year 9999, those of a table do not.
        if isinstance(scalar, pa.StructScalar):
            return {name: python_value(scalar[name]) for name in scalar}
        number = f"{scalar.value} in {scalar.type} " if hasattr(scalar, "value") else ""
        return f"{number}(outside the years 1 to 9999)"


def python_rows(batch: pa.RecordBatch | pa.Table) -> list[dict[str, Any]]:
    """The rows as values by column, as `python_value` shows them."""
    return [cast("dict[str, Any]", python_value(row)) for row in batch.to_struct_array()]


def scalar_of(value: object, data_type: DataType) -> pa.Scalar:
    """A pyarrow Scalar of the type. Raises as `array_of` does."""
    return array_of([value], data_type)[0]


def array_of(values: Sequence[Any], data_type: DataType) -> pa.Array:
    """A pyarrow Array of `to_arrow_type(data_type)`. Raises as `column_of` does."""
    return column_of(values, to_arrow_type(data_type))
