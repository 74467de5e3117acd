"""Filters out rows whose key has no equal on the other side of a join, before the join."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["SemiJoinFilter"]

# With more keys, too many rows would pass.
_MAX_KEYS = 1_000_000

_MAX_BITS = 24
_ENTRIES_PER_KEY = 16
_WIDTHS = {
    pa.int8(): np.int8,
    pa.int16(): np.int16,
    pa.int32(): np.int32,
    pa.int64(): np.int64,
    pa.date32(): np.int32,
}


class SemiJoinFilter:
    """A set of whole numbers by their low bits: its members pass, and few other numbers do.

    May be used by several threads.

    Args:
        keys: `pyarrow.ChunkedArray` of a type that `takes` is true of; nulls are equal to nothing.
    """

    def __init__(self, keys: pa.ChunkedArray) -> None:
        wanted = max(1, len(keys) * _ENTRIES_PER_KEY)
        size = 1 << min(_MAX_BITS, (wanted - 1).bit_length())
        self._mask = size - 1
        self._is_there = np.zeros(size, dtype=bool)
        for chunk in keys.chunks:
            self._is_there[self._places(chunk.drop_null())] = True

    @staticmethod
    def takes(keys: pa.ChunkedArray, max_keys: int = _MAX_KEYS) -> bool:
        """Whether there are few enough keys of the right kind."""
        return keys.type in _WIDTHS and len(keys) <= max_keys

    def may_be_there(self, values: pa.Array) -> pa.BooleanArray:
        """Which values may be among the keys: a `pyarrow.BooleanArray`.

        Args:
            values: `pyarrow.Array` of the type of the keys; a null may or may not pass.
        """
        passes = self._is_there[self._places(values)]
        bits = pa.py_buffer(np.packbits(passes, bitorder="little"))
        return pa.Array.from_buffers(pa.bool_(), len(values), [None, bits])

    def _places(self, values: pa.Array) -> NDArray[np.int64]:
        # DLPack does not support nulls.
        width = _WIDTHS[values.type]
        if not len(values):
            return np.empty(0, dtype=np.int64)
        numbers = np.frombuffer(values.buffers()[1], dtype=width, count=values.offset + len(values))
        return numbers[values.offset :].astype(np.int64, copy=False) & self._mask
