"""Values of Arrow as Python values, to be shown."""

from __future__ import annotations

from typing import Any, cast

import pyarrow as pa


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
