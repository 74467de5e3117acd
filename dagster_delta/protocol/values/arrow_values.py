"""Arrow arrays and scalars from Python values of a Delta type, by their buffers.

`pyarrow.array` and `pyarrow.scalar` import pandas, if installed, at their first Python value, which
takes longer than planning most scans.
"""

from __future__ import annotations

import datetime as dt
from array import array
from collections.abc import Callable, Sequence
from decimal import Context, Decimal
from itertools import accumulate
from typing import Any, TypeVar, cast

import pyarrow as pa

import dagster_delta.arrow_compute as pc
from dagster_delta.protocol.schema import DataType, DecimalType, PrimitiveType
from dagster_delta.protocol.values.arrow_columns import (
    boolean_column,
    integer_column,
    string_column,
    validity_of,
)
from dagster_delta.protocol.values.arrow_schema import to_arrow_type

_T = TypeVar("_T")

TRUE, FALSE = boolean_column([True, False])
"""The two `pa.BooleanScalar`s."""

_EXACT = Context(prec=100)
_EPOCH = dt.datetime(1970, 1, 1)  # noqa: DTZ001  both kinds of timestamp count from it
_EPOCH_DAY = _EPOCH.toordinal()
_MICROSECOND = dt.timedelta(microseconds=1)


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
        return "(outside the years 1 to 9999)"


def python_rows(batch: pa.RecordBatch | pa.Table) -> list[dict[str, Any]]:
    """The rows as values by column, as `python_value` shows them."""
    return [cast("dict[str, Any]", python_value(row)) for row in batch.to_struct_array()]


def scalar_of(value: object, data_type: DataType) -> pa.Scalar:
    """A pyarrow Scalar of the type. Raises as `array_of` does."""
    return array_of([value], data_type)[0]


def array_of(values: Sequence[Any], data_type: DataType) -> pa.Array:
    """A pyarrow Array of `to_arrow_type(data_type)`.

    Timestamps need a time zone, timestamp_ntz must not have one. A value that does not fit raises
    what Python or Arrow raise: ValueError, OverflowError, TypeError, ArithmeticError,
    ArrowException.
    """
    target = to_arrow_type(data_type)
    match data_type:
        case DecimalType():
            return _decimals(values, target)
        case PrimitiveType("boolean"):
            return boolean_column(values)
        case PrimitiveType("string"):
            return string_column(values)
        case PrimitiveType("binary"):
            return _binaries(values)
        case PrimitiveType("float" | "double"):
            return pc.cast(_doubles(values), target, safe=False)
        case PrimitiveType("date"):
            days = _mapped(values, lambda day: day.toordinal() - _EPOCH_DAY)
            return integer_column(days, pa.int32()).view(target)
        case PrimitiveType("timestamp" | "timestamp_ntz"):
            return integer_column(_mapped(values, _microseconds)).view(target)
        case _:
            return pc.cast(integer_column(values), target)


def _mapped(values: Sequence[Any], function: Callable[[Any], _T]) -> list[_T | None]:
    return [None if value is None else function(value) for value in values]


def _microseconds(moment: dt.datetime) -> int:
    offset = moment.utcoffset() or dt.timedelta(0)
    return (moment.replace(tzinfo=None) - offset - _EPOCH) // _MICROSECOND


def _doubles(values: Sequence[float | None]) -> pa.Array:
    data = array("d", [0.0 if value is None else value for value in values])
    buffers = [validity_of(values), pa.py_buffer(data)]
    return pa.Array.from_buffers(pa.float64(), len(values), buffers)


def _decimals(values: Sequence[Decimal | int | None], target: pa.DataType) -> pa.Array:
    data = b"".join(
        _unscaled(value, target).to_bytes(16, "little", signed=True) for value in values
    )
    return pa.Array.from_buffers(target, len(values), [validity_of(values), pa.py_buffer(data)])


def _unscaled(value: Decimal | int | None, target: pa.DataType) -> int:
    if value is None:
        return 0
    scaled = _EXACT.scaleb(Decimal(value), target.scale)
    unscaled = int(scaled)
    if unscaled != scaled or abs(unscaled) >= 10**target.precision:
        raise ValueError(f"{value} does not fit {target}")
    return unscaled


def _binaries(values: Sequence[bytes | None]) -> pa.Array:
    data = b"".join(value or b"" for value in values)
    offsets = array("i", accumulate((len(value or b"") for value in values), initial=0))
    buffers = [validity_of(values), pa.py_buffer(offsets), pa.py_buffer(data)]
    return pa.Array.from_buffers(pa.binary(), len(values), buffers)
