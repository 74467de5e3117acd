"""A Parquet file in memory with those pages of a row group that hold wanted rows.

Arrow decodes every page of a column chunk that it reads. Here the pages without a wanted row are
left out, and the others copied unchanged into a file of one row group. Pages are found by their
headers: many files have no offset index, and the headers are what Arrow decodes by.

Spec: Parquet's file format and its Thrift definition.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from itertools import accumulate, chain
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from dagster_delta.parquet_format.footer import ChunkStatistics
from dagster_delta.parquet_format.footer_splicing import MAGIC, file_end
from dagster_delta.parquet_format.reader import FETCHED_BYTES, column_ranges
from dagster_delta.parquet_format.thrift_compact import (
    STRUCT,
    Cursor,
    list_header_bytes,
    zigzag,
)

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.parquet as pq
    from numpy.typing import NDArray

_HEADER_BYTES = 128
"""Nearly all headers are shorter; those with long bounds are read again."""
_MAX_HEADER_BYTES = 64 * 1024
_VARINT = rb"([\x80-\xff]*[\x00-\x7f])"
_PAGE_HEADER = re.compile(
    rb"\x15([\x00\x04\x06])\x15%b\x15%b(\x15%b)?([\x1c-\xfc])(?=\x15%b)" % ((_VARINT,) * 4),
    re.DOTALL,
)
"""Kind of a page, its size without and with compression, a checksum if there is one, and the header
of its kind, which begins with the number of values."""
_CHECKSUM_FIELD, _DICTIONARY_FIELD = 4, 7
_FIELDS = {b"\x00": 5, b"\x04": _DICTIONARY_FIELD, b"\x06": 8}
"""Id of the header of each kind: data, dictionary, and data of version 2."""

_CHUNK_METADATA, _NUM_VALUES = 3, 5
_ABSENT_CHUNK = b"\x26\x00\x00"
"""A `ColumnChunk` without metadata: nothing reads it."""


class PageExcerpt(msgspec.Struct, frozen=True):
    """Some pages of columns of a row group, which all begin at the same rows."""

    columns: list[range]
    """Parquet columns of each top-level column."""
    data: bytes
    """A Parquet file with the schema of the whole one; its other columns cannot be read."""
    wanted: NDArray[np.bool_]
    """Of each of its rows, whether it is wanted."""


class _Page(msgspec.Struct, frozen=True):
    start: int
    length: int
    """Encoded bytes, with the header."""
    decoded_length: int
    num_values: int
    is_dictionary: bool


def extract_pages(
    handle: pa.NativeFile,
    statistics: ChunkStatistics,
    group: int,
    columns: Sequence[range],
    wanted: NDArray[np.bool_],
    max_share: float,
) -> list[PageExcerpt]:
    """The pages of a row group that hold wanted rows.

    `columns`: the Parquet columns of each top-level column to read.
    `wanted`: for each row of the row group, whether it is wanted.
    `max_share`: of the bytes of all data pages.

    Returns:
        Nothing if the pages are more than that, or it is uncertain which rows they hold.
    """
    by_rows: dict[tuple[int, ...], dict[range, list[list[_Page]]]] = {}
    for column in columns:
        pages = _find_column(handle, statistics.metadata, group, column)
        first_rows = _first_rows(pages, statistics.metadata, column, len(wanted))
        if first_rows is None:
            return []
        by_rows.setdefault(first_rows, {})[column] = pages
    parts, all_bytes, held_bytes = [], 0, 0
    for first_rows, found in by_rows.items():
        is_held = np.logical_or.reduceat(wanted, first_rows[:-1])
        held = {
            leaf: _select_pages(pages, is_held)
            for column, chunks in found.items()
            for leaf, pages in zip(column, chunks, strict=True)
        }
        all_bytes += sum(map(_data_bytes, chain.from_iterable(found.values())))
        held_bytes += sum(map(_data_bytes, held.values()))
        parts.append(([*found], held, wanted[np.repeat(is_held, np.diff(first_rows))]))
    if held_bytes > min(all_bytes * max_share, FETCHED_BYTES):
        return []
    try:
        return [
            PageExcerpt(found, _build_file(handle, statistics, group, held, len(rows)), rows)
            for found, held, rows in parts
        ]
    except (IndexError, RecursionError):
        # A footer in an unusual form.
        return []


def find_first_rows(
    handle: pa.NativeFile, metadata: pq.FileMetaData, group: int, leaf: int
) -> tuple[int, ...] | None:
    """Index of the first row of each data page of a Parquet column, and the number of rows; None
    if uncertain.
    """
    column = range(leaf, leaf + 1)
    pages = _find_column(handle, metadata, group, column)
    return _first_rows(pages, metadata, column, metadata.row_group(group).num_rows)


def _data_bytes(pages: Sequence[_Page]) -> int:
    # A dictionary is decoded in any case.
    return sum(page.length for page in pages if not page.is_dictionary)


def _find_column(
    handle: pa.NativeFile, metadata: pq.FileMetaData, group: int, column: range
) -> list[list[_Page]]:
    """The pages of the Parquet columns of a top-level column; nothing if one is uncertain."""
    found = []
    ranges = column_ranges(metadata, group, column)
    for leaf, (start, length) in zip(column, ranges, strict=True):
        pages = _find_pages(handle, start, start + length)
        count = sum(page.num_values for page in pages if not page.is_dictionary)
        if not pages or count != metadata.row_group(group).column(leaf).num_values:
            return []
        found.append(pages)
    return found


def _find_pages(handle: pa.NativeFile, start: int, end: int) -> list[_Page]:
    """The pages between two positions of a file; none if they cannot be told apart."""
    pages = []
    while start < end:
        page = _read_header(handle, start)
        if page is None:
            return []
        pages.append(page)
        start += page.length
    return pages if start == end else []


def _read_header(
    handle: pa.NativeFile, start: int, size_bytes: int = _HEADER_BYTES
) -> _Page | None:
    """The page whose header begins at a position."""
    data = handle.read_at(size_bytes, start)
    match = _PAGE_HEADER.match(data)
    if match is None:
        return None
    kind, decoded, encoded, checksum, _, field, num_values = match.groups()
    before = _CHECKSUM_FIELD if checksum else _CHECKSUM_FIELD - 1
    if field[0] != (_FIELDS[kind] - before) << 4 | STRUCT:
        return None
    cursor = Cursor(data, match.end())
    try:
        cursor.skip(STRUCT)
        if data[cursor.position]:
            return None
    except IndexError:
        is_cut = size_bytes <= len(data) < _MAX_HEADER_BYTES
        return _read_header(handle, start, size_bytes * 8) if is_cut else None
    length = cursor.position + 1
    plain, packed, values = (Cursor(text).integer() for text in (decoded, encoded, num_values))
    is_dictionary = _FIELDS[kind] == _DICTIONARY_FIELD
    if min(plain, packed, values if is_dictionary else values - 1) < 0:
        return None
    return _Page(start, length + packed, length + plain, values, is_dictionary)


def _first_rows(
    chunks: Sequence[Sequence[_Page]], metadata: pq.FileMetaData, column: range, num_rows: int
) -> tuple[int, ...] | None:
    """Index of the first row of each data page, and the number of rows; None if uncertain.

    All pages count as one if only all together are known to begin and end with a row.
    """
    firsts = {
        (0, *accumulate(page.num_values for page in pages if not page.is_dictionary))
        for pages in chunks
    }
    is_flat = all(metadata.schema.column(leaf).max_repetition_level == 0 for leaf in column)
    if not firsts or (is_flat and any(rows[-1] != num_rows for rows in firsts)):
        return None
    return firsts.pop() if is_flat and len(firsts) == 1 else (0, num_rows)


def _select_pages(pages: Sequence[_Page], is_held: NDArray[np.bool_]) -> list[_Page]:
    """The dictionary, and the data pages that are held; the last of these holds the rest."""
    held = iter(is_held.tolist())
    return [page for page in pages if page.is_dictionary or next(held, True)]


def _build_file(
    handle: pa.NativeFile,
    statistics: ChunkStatistics,
    group: int,
    columns: Mapping[int, Sequence[_Page]],
    num_rows: int,
) -> bytes:
    """A file of one row group, with some pages of some columns."""
    layout = statistics.layout
    places = layout.chunks[group]
    chunks = [_ABSENT_CHUNK] * len(places)
    parts, position, size_bytes = [MAGIC], len(MAGIC), 0
    for index, pages in sorted(columns.items()):
        copied = _copy_column(Cursor(statistics.footer, places[index].start))
        chunks[index] = _chunk_bytes(copied, pages, position)
        parts += [handle.read_at(page.length, page.start) for page in pages]
        position += sum(page.length for page in pages)
        size_bytes += sum(page.decoded_length for page in pages)
    body = b"".join(
        (
            b"\x19",
            list_header_bytes(len(places)),
            *chunks,
            b"\x16",
            zigzag(size_bytes),
            b"\x16",
            zigzag(num_rows),
            b"\x00",
        )
    )
    return b"".join((*parts, file_end(layout.metadata.with_row_groups(num_rows, 1, [body]))))


def _copy_column(cursor: Cursor) -> bytes:
    """The fields of a column's metadata before the number of values: type, encodings, name and
    codec.
    """
    cursor.find(_CHUNK_METADATA)
    return cursor.copy_before(_NUM_VALUES)


def _chunk_bytes(copied: bytes, pages: Sequence[_Page], position: int) -> bytes:
    """The `ColumnChunk` of pages that begin at a position."""
    dictionary = pages[0].length if pages[0].is_dictionary else 0
    numbers = [
        sum(page.num_values for page in pages if not page.is_dictionary),
        sum(page.decoded_length for page in pages),
        sum(page.length for page in pages),
    ]
    return b"".join(
        (
            b"\x26\x00\x1c",
            copied,
            *(b"\x16" + zigzag(number) for number in numbers),
            b"\x26" + zigzag(position + dictionary),
            b"\x26" + zigzag(position) if dictionary else b"",
            b"\x00\x00",
        )
    )
