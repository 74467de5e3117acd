"""Splits record batches by the values of their partition columns, without sorting the data."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import msgspec
import numpy as np
import pyarrow as pa

import dagster_delta.arrow_compute as pc
from dagster_delta.engines.values.nested_arrays import index_of
from dagster_delta.protocol.features.table_configuration import TableConfiguration
from dagster_delta.protocol.schema import DataType
from dagster_delta.protocol.values.partition_values import serialize_partition_value

if TYPE_CHECKING:
    from numpy.typing import NDArray

PartitionKey = tuple[str | None, ...]
"""Serialised partition values in the order of the partition columns."""


class PartitionColumn(msgspec.Struct, frozen=True):
    """A partition column of the batches that are split."""

    name: str
    """Logical name, for errors."""
    position: int
    data_type: DataType

    @classmethod
    def all_of(cls, configuration: TableConfiguration, schema: pa.Schema) -> list[PartitionColumn]:
        """The partition columns of a table, in directory order."""
        position = {name: index for index, name in enumerate(schema.names)}
        return [
            cls(each.name, position[each.name], each.data_type)
            for each in configuration.partition_schema
        ]


_MAX_CODE = 2**62
"""Largest number that stands for the values of a row while they are told apart."""


def split_by_partition(
    batch: pa.RecordBatch,
    partition_columns: Sequence[PartitionColumn],
    *,
    stored: pa.RecordBatch | None = None,
    shares_memory: bool = False,
) -> Iterator[tuple[PartitionKey, pa.RecordBatch]]:
    """The rows of each partition in the batch, in their own order, with all columns.

    `partition_columns`: in directory order; if empty, all rows are one partition.
    `stored`: the same rows in the form to return, if not `batch` itself.
    `shares_memory`: whether each part may keep the rows of all parts in memory. That takes much
    less time if the parts are small.
    """
    rows = batch if stored is None else stored
    if not partition_columns:
        yield (), rows
        return
    if not batch.num_rows:
        return
    encoded = [_encode(batch.column(each.position), each) for each in partition_columns]
    codes, size = encoded[0][0], len(encoded[0][1])
    for more_codes, values in encoded[1:]:
        size *= len(values)
        if size > _MAX_CODE:
            distinct, codes = np.unique(codes, return_inverse=True)
            size = len(distinct) * len(values)
        codes = codes * len(values) + more_codes
    first = codes[0]
    if (codes == first).all():
        yield tuple(values[row_codes[0]] for row_codes, values in encoded), rows
        return
    # 16-bit codes use radix sort, which takes a tenth of the time.
    order = np.argsort(codes.astype(np.uint16) if size <= 2**16 else codes, kind="stable")
    bounds = np.flatnonzero(np.diff(codes[order])) + 1
    starts = [0, *bounds.tolist()]
    positions = index_of(order)
    ordered = pc.take(rows, positions) if shares_memory else None
    for start, stop in zip(starts, [*starts[1:], len(order)], strict=True):
        row = order[start]
        key = tuple(values[row_codes[row]] for row_codes, values in encoded)
        length = stop - start
        if ordered is None:
            # Taking each group separately releases the batch: a small waiting partition must not
            # keep all the others in memory.
            yield key, pc.take(rows, positions.slice(start, length))
        else:
            yield key, ordered.slice(start, length)


def _encode(
    column: pa.Array, partition_column: PartitionColumn
) -> tuple[NDArray[np.int64], list[str | None]]:
    """A code per row, and the serialised value of each code.

    Values with the same serialised form (null and "") get one code, so they are one partition.
    """
    dictionary = pc.dictionary_encode(column, null_encoding="encode")
    data_type, name = partition_column.data_type, partition_column.name
    texts = [
        serialize_partition_value(each, data_type, column=name)
        for each in dictionary.dictionary.to_pylist()
    ]
    distinct = list(dict.fromkeys(texts))
    code_of = {text: code for code, text in enumerate(distinct)}
    translation = np.array([code_of[text] for text in texts], dtype=np.int64)
    # `to_numpy` would import pandas. There are no nulls among the codes.
    return translation[np.from_dlpack(dictionary.indices)], distinct
