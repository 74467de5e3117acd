"""Columns of files: of live ones in chunks, filtered and concatenated without copying unchanged
chunks, of those that a store lists, and partitions without a Python value per file.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TypeVar

import pyarrow as pa

import dagster_delta.arrow_compute as pc
from dagster_delta.errors import InvalidTable
from dagster_delta.protocol.features.table_configuration import TableConfiguration
from dagster_delta.protocol.values.arrow_columns import (
    boolean_column,
    chunks_where,
    integer_column,
    map_column,
    string_column,
    whole_array,
)
from dagster_delta.storage.object_store import ObjectMeta

_T = TypeVar("_T")

# Every commit adds a chunk to a column; beyond this number small chunks are merged.
_MAX_CHUNKS = 64
_SMALL_CHUNK_ROWS = 4096
# Beyond this number of chunks, dropping a row copies its chunk instead of splitting it.
_MAX_CUT_CHUNKS = 1024

LISTED_FILE_SCHEMA = pa.schema(
    [("path", pa.string()), ("size_bytes", pa.int64()), ("modified_ms", pa.int64())]
)
"""Columns of a table of listed files; paths are decoded and relative to the root."""


def total_bytes(files: pa.Table) -> int:
    """The sum of `size_bytes`."""
    return pc.sum(files["size_bytes"], min_count=0).as_py() or 0


def in_known_order(rows: pa.Table, paths: pa.Array, error: InvalidTable) -> pa.Table:
    """Live files in the order of the paths that are already known. Raises the error if they are not
    the same files.
    """
    order = pc.index_in(paths, value_set=rows.column("path").combine_chunks())
    is_same = len(paths) == len(rows) == len(pc.unique(rows.column("path")))
    if not is_same or order.null_count:
        raise error
    return pc.take(rows, order)


def filtered(chunks: list[pa.Array], kept: pa.BooleanArray) -> list[pa.Array]:
    """The kept rows of a column; the list given is emptied.

    It copies a chunk only if it must: the paths take most of the memory of opening a large
    table.
    """
    remaining: list[pa.Array] = []
    start = 0
    chunks.reverse()
    while chunks:
        chunk = chunks.pop()
        mask = kept.slice(start, len(chunk))
        start += len(chunk)
        may_cut = len(remaining) + len(chunks) < _MAX_CUT_CHUNKS
        remaining += chunks_where(chunk, mask, may_cut=may_cut)
    return remaining


def narrowed(
    masks: Sequence[pa.BooleanArray], kept: pa.BooleanArray
) -> tuple[pa.BooleanArray, ...]:
    """Masks over all rows of the parts, narrowed by one mask over their live rows."""
    cut, start = [], 0
    for mask in masks:
        length = mask.true_count
        cut.append(pc.replace_with_mask(mask, mask, kept.slice(start, length)))
        start += length
    return tuple(cut)


def chosen(values: Sequence[_T], ordinals: Sequence[int]) -> list[_T]:
    """The values with these ordinals, which are in ascending order."""
    return list(values) if len(ordinals) == len(values) else [values[at] for at in ordinals]


def extended(column: pa.ChunkedArray, more: pa.Array | pa.ChunkedArray) -> pa.ChunkedArray:
    """A `pa.ChunkedArray` with the chunks of another column, or an array, appended."""
    chunks = more.chunks if isinstance(more, pa.ChunkedArray) else [more]
    return pa.chunked_array(
        [*column.chunks, *(chunk for chunk in chunks if len(chunk))], column.type
    )


def compacted(table: pa.Table) -> pa.Table:
    """A `pa.Table` with the small chunks at the end of its columns merged."""
    columns = [with_merged_chunks(column) for column in table.columns]
    return pa.Table.from_arrays(columns, schema=table.schema)


def with_merged_chunks(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """The column with the small chunks at its end merged, if it has many chunks."""
    if column.num_chunks <= _MAX_CHUNKS:
        return column
    chunks = column.chunks
    first = len(chunks)
    while first and len(chunks[first - 1]) < _SMALL_CHUNK_ROWS:
        first -= 1
    if len(chunks) - first < 2:
        return column
    return pa.chunked_array([*chunks[:first], pa.concat_arrays(chunks[first:])], column.type)


def with_logical_keys(
    partition_values: pa.ChunkedArray, configuration: TableConfiguration
) -> pa.ChunkedArray:
    """Partition values, a `pa.ChunkedArray` of maps, by the logical names of their columns."""
    if configuration.column_mapping_mode == "none":
        return partition_values
    names = configuration.physical_partition_columns, configuration.partition_columns
    logical = dict(zip(*names, strict=True))
    rows = partition_values.to_pylist()
    named = [{logical.get(key, key): text for key, text in row or ()} for row in rows]
    return pa.chunked_array([map_column(named)])


def listed_files(files: Iterable[ObjectMeta]) -> pa.Table:
    """The files as a table of LISTED_FILE_SCHEMA, in their order. Raises nothing."""
    found = list(files)
    columns = [
        string_column([file.path for file in found]),
        integer_column([file.size_bytes for file in found]),
        integer_column([file.modified_ms for file in found]),
    ]
    return pa.Table.from_arrays(columns, schema=LISTED_FILE_SCHEMA)


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
