"""Partitions of many files, identified without a Python value per file.

Spec: Partition Value Serialization.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import pyarrow as pa

import dagster_delta.arrow_compute as pc
from dagster_delta.protocol.values.arrow_columns import boolean_column, string_column, whole_array


def partition_texts(partition_values: pa.ChunkedArray, names: Sequence[str]) -> pa.StringArray:
    """A text per file; two files have the same text only if all their partition values are spelled
    the same.
    """
    maps = whole_array(partition_values)
    if not names:
        return string_column([""] * len(maps))
    empty, colon = string_column(["", ":"])
    texts = [pc.map_lookup(maps, string_column([name])[0], "last") for name in names]
    # Spec: an empty text is null. The length separates neighbouring values, whatever they contain.
    known = [pc.fill_null(text, empty) for text in texts]
    lengths = [pc.cast(pc.utf8_length(text), pa.string()) for text in known]
    return pc.binary_join_element_wise(*lengths, *known, colon)


def files_in_partitions(
    partition_values: pa.ChunkedArray,
    names: Sequence[str],
    is_wanted: Callable[[Mapping[str, str | None]], bool],
) -> pa.BooleanArray:
    """Which files are in wanted partitions; the test runs once per partition."""
    coded = pc.dictionary_encode(partition_texts(partition_values, names))
    first = pc.index_in(coded.dictionary, value_set=pc.cast(coded, pa.string()))
    maps = pc.take(whole_array(partition_values), first).to_pylist()
    wanted = boolean_column([is_wanted(dict(values or ())) for values in maps])
    return pc.take(wanted, coded.indices)
