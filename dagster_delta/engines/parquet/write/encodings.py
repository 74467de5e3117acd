"""Chooses the encoding of each Parquet column from a sample of its values.

A dictionary saves space only if values repeat; other numbers and times are stored as differences.
Every encoding chosen here is read by Spark's vectorized reader.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from dagster_delta.engines.values.nested_arrays import list_elements, map_entries
from dagster_delta.protocol.checkpoint.parquet_reader import decoding_pool

SAMPLE_ROWS = 64_000

_MAX_DISTINCT_SHARE = 0.25
"""Share of distinct values in the sample up to which a dictionary pays."""


class ColumnEncodings(msgspec.Struct, frozen=True):
    """The encoding of each Parquet column by its dotted path; columns in neither are plain."""

    dictionary: tuple[str, ...]
    delta_packed: tuple[str, ...]


PLAIN = ColumnEncodings((), ())
"""Every column plain."""


def choose_encodings(rows: pa.Table) -> ColumnEncodings:
    """Encodings for a file that starts with `rows`.

    Args:
        rows: a `pyarrow.Table` in the file's schema; only the first `SAMPLE_ROWS` are used.
    """
    dictionary: list[str] = []
    delta_packed: list[str] = []
    sample = rows.slice(0, SAMPLE_ROWS).combine_chunks(decoding_pool())
    for name, column in zip(sample.schema.names, sample.columns, strict=True):
        array = column.chunk(0) if column.num_chunks else pa.array([], column.type)
        for path, leaf in _leaves(name, array):
            if _pays_as_dictionary(leaf):
                dictionary.append(path)
            elif _is_packable(leaf.type):
                delta_packed.append(path)
    return ColumnEncodings(tuple(dictionary), tuple(delta_packed))


def _leaves(path: str, array: pa.Array) -> Iterator[tuple[str, pa.Array]]:
    """Parquet columns under their paths. Spec of the paths: Parquet's nested types."""
    if pa.types.is_struct(array.type):
        for field, child in zip(array.type, array.flatten(), strict=True):
            yield from _leaves(f"{path}.{field.name}", child)
    elif pa.types.is_map(array.type):
        keys, values = map_entries(array)
        yield from _leaves(f"{path}.key_value.key", keys)
        yield from _leaves(f"{path}.key_value.value", values)
    elif pa.types.is_list(array.type):
        yield from _leaves(f"{path}.list.element", list_elements(array))
    else:
        yield path, array


def _pays_as_dictionary(values: pa.Array) -> bool:
    if pa.types.is_boolean(values.type):
        return False
    count = len(values) - values.null_count
    if not count:
        return True
    distinct = pc.count_distinct(values, memory_pool=decoding_pool()).as_py()
    return bool(distinct <= max(1, count * _MAX_DISTINCT_SHARE))


def _is_packable(arrow_type: pa.DataType) -> bool:
    types = pa.types
    return bool(
        types.is_integer(arrow_type)
        or types.is_timestamp(arrow_type)
        or types.is_date32(arrow_type)
    )
