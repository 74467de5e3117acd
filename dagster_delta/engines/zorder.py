"""The Z-order or Hilbert curve through the values of several columns, from a sample of them.

Each value is replaced by its rank among the quantiles of its column, so that every column has the
same weight for any type and spread; then the bits of the ranks are interleaved. Neighbours on the
Hilbert curve are always close to each other; the Z-order curve jumps at its corners.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
import pyarrow as pa

import dagster_delta.arrow_compute as pc
from dagster_delta.parquet.casts import holds_bytes
from dagster_delta.protocol.values.arrow_columns import whole_array
from dagster_delta.protocol.values.arrow_values import integer_scalar
from dagster_delta.sql.evaluator import column_at

if TYPE_CHECKING:
    from numpy.typing import NDArray

SAMPLE_ROWS = 200_000
"""Number of rows that give sufficiently exact quantiles."""

_MAX_BITS = 16
_CURVE_BITS = 63


class ZOrderCurve(msgspec.Struct, frozen=True):
    """The position of rows along the curve. Picklable, so that executors can use it."""

    columns: tuple[tuple[str, ...], ...]
    """Logical paths of the columns."""
    quantiles: tuple[NDArray[Any], ...]
    """Per column the ascending values between its ranks: numbers, or objects that are bytes."""
    has_nulls: tuple[bool, ...]
    """Per column whether nulls have a rank of their own, below all values."""
    bits: int
    """Bits per column."""
    is_hilbert: bool = False
    """Whether it is the Hilbert curve."""

    @classmethod
    def through(
        cls, columns: Sequence[tuple[str, ...]], sample: pa.Table, *, is_hilbert: bool = False
    ) -> ZOrderCurve:
        """The curve through a sample of the rows."""
        bits = min(_MAX_BITS, _CURVE_BITS // len(columns))
        values = [column_at(sample, column) for column in columns]
        return cls(
            tuple(columns),
            tuple(_find_quantiles(value, 2**bits - 2) for value in values),
            tuple(value.null_count > 0 for value in values),
            bits,
            is_hilbert,
        )

    def positions(self, rows: pa.Table | pa.RecordBatch) -> NDArray[np.uint64]:
        """The position of each row along the curve, a numpy array of uint64; nulls come first."""
        ranks = [
            self._spread_ranks(column_at(rows, column), index)
            for index, column in enumerate(self.columns)
        ]
        if self.is_hilbert:
            ranks = _along_hilbert(ranks, self.bits)
        places = np.zeros(rows.num_rows, dtype=np.uint64)
        one = np.uint64(1)
        for bit in range(self.bits - 1, -1, -1):
            for rank in ranks:
                places = (places << one) | ((rank >> np.uint64(bit)) & one)
        return places

    def _spread_ranks(self, values: pa.Array | pa.ChunkedArray, index: int) -> NDArray[np.uint64]:
        quantiles, has_nulls = self.quantiles[index], self.has_nulls[index]
        ranks = _rank_values(values, quantiles) + has_nulls
        if values.null_count:
            ranks[np.from_dlpack(pc.indices_nonzero(pc.is_null(values)))] = 0
        # A column of few values is spread over all bits too; otherwise the others outweigh it.
        spread: NDArray[np.int64] = ranks * 2**self.bits // (len(quantiles) + 1 + has_nulls)
        return spread.astype(np.uint64)


def _along_hilbert(ranks: list[NDArray[np.uint64]], bits: int) -> list[NDArray[np.uint64]]:
    """Ranks whose interleaved bits give the position along the Hilbert curve.

    Algorithm of J. Skilling, Programming the Hilbert curve (2004): turn back the rotations of the
    sub-cubes from the largest on, then undo the Gray code.
    """
    if len(ranks) < 2:
        return ranks
    x = [rank.copy() for rank in ranks]
    powers = [np.uint64(1 << bit) for bit in range(bits - 1, 0, -1)]
    for power in powers:
        below = power - np.uint64(1)
        for index in range(len(x)):
            is_set = (x[index] & power) != 0
            swapped = np.where(is_set, 0, (x[0] ^ x[index]) & below).astype(np.uint64)
            x[0] ^= np.where(is_set, below, swapped)
            if index:
                x[index] ^= swapped
    for index in range(1, len(x)):
        x[index] ^= x[index - 1]
    turned = np.zeros_like(x[0])
    for power in powers:
        turned ^= np.where((x[-1] & power) != 0, power - np.uint64(1), np.uint64(0))
    return [rank ^ turned for rank in x]


def _find_quantiles(values: pa.ChunkedArray, most: int) -> NDArray[Any]:
    """At most `most` ascending distinct values that split the sample evenly: the least values of
    all ranks except the first.
    """
    known = values.drop_null()
    found = np.sort(_as_bytes(known) if holds_bytes(known.type) else _as_numbers(known))
    if len(found) > most:
        found = found[np.linspace(0, len(found) - 1, most).astype(np.int64)]
    return np.unique(found)[1:]


def _rank_values(values: pa.Array | pa.ChunkedArray, quantiles: NDArray[Any]) -> NDArray[np.int64]:
    """Number of quantiles not greater than each value; undefined for nulls."""
    if not holds_bytes(values.type):
        return np.searchsorted(quantiles, _as_numbers(values), side="right").astype(np.int64)
    encoded = pc.dictionary_encode(whole_array(values))
    if not len(encoded.dictionary):
        return np.zeros(len(values), dtype=np.int64)
    ranks = np.searchsorted(quantiles, _as_bytes(encoded.dictionary), side="right")
    indexes = np.from_dlpack(pc.fill_null(encoded.indices, integer_scalar(0).cast(pa.int32())))
    found: NDArray[np.int64] = ranks.astype(np.int64)[indexes]
    return found


def _as_bytes(values: pa.Array | pa.ChunkedArray) -> NDArray[np.object_]:
    # UTF-8 bytes sort as the text does in statistics.
    return np.array(values.cast(pa.large_binary()).to_pylist(), dtype=object)


def _as_numbers(values: pa.Array | pa.ChunkedArray) -> NDArray[Any]:
    """The values as numbers in the same order, nulls as zero; the loss of precision in a float does
    not matter here.
    """
    data_type = values.type
    if pa.types.is_decimal(data_type):
        values = values.cast(pa.float64())
    elif pa.types.is_date(data_type):
        values = values.cast(pa.int32())
    elif pa.types.is_timestamp(data_type):
        values = values.cast(pa.int64())
    elif pa.types.is_boolean(data_type):
        values = values.cast(pa.int8())
    zero = integer_scalar(0).cast(values.type)
    # Converting to a numpy array would import pandas.
    return np.from_dlpack(whole_array(pc.fill_null(values, zero)))
