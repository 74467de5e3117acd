"""Indexes of rows as Arrow arrays."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["index_of"]


def index_of(numbers: NDArray[np.integer[Any]]) -> pa.Array:
    """Numbers of a numpy array as a `pa.Int64Array`; `pyarrow.array` would import pandas."""
    data = np.ascontiguousarray(numbers, dtype=np.int64)
    return pa.Array.from_buffers(pa.int64(), len(data), [None, pa.py_buffer(data)])
