"""Rows of Arrow as Python values, also those that Python has no value for."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["python_rows"]

_NO_PYTHON_VALUE = "(outside the years 1 to 9999)"


def python_rows(batch: pa.RecordBatch | pa.Table) -> list[dict[str, Any]]:
    """The rows as values by column, to be shown: dates that Python does not have are a text."""
    try:
        rows: list[dict[str, Any]] = batch.to_pylist()
    except (OverflowError, ValueError):
        # Dates of Python end at the year 9999, those of a table do not.
        columns = zip(batch.schema.names, batch.columns, strict=True)
        values = {name: [_python_value(each) for each in column] for name, column in columns}
        return [{name: values[name][at] for name in values} for at in range(batch.num_rows)]
    return rows


def _python_value(scalar: pa.Scalar) -> object:
    try:
        return scalar.as_py()
    except (OverflowError, ValueError):
        return _NO_PYTHON_VALUE
