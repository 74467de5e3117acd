"""One Parquet file from several files of the same schema, by copying row groups.

Only the footer and the offset indexes have the positions of pages: they are changed, without
encoding the pages again. The result is byte for byte that of a single writer, except that Bloom
filters follow their own row group: they would wait in memory for the last one.

Spec: Parquet's file format and its Thrift definition; Page Index; Thrift's compact protocol.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from operator import methodcaller

import msgspec

from dagster_delta.parquet_format.thrift_compact import (
    STRUCT,
    Cursor,
    list_header_bytes,
    zigzag,
)

MAGIC = b"PAR1"
"""The first and last bytes of every Parquet file."""

_LENGTH_BYTES = 4

# Ids of the fields that change, and of their parents.
_FILE_NUM_ROWS, _FILE_ROW_GROUPS, _FILE_COLUMN_ORDERS = 3, 4, 7
_GROUP_COLUMNS, _GROUP_POSITION, _GROUP_ORDINAL = 1, 5, 7
_CHUNK_POSITION, _CHUNK_METADATA = 2, 3
_OFFSET_INDEX_POSITION, _OFFSET_INDEX_LENGTH, _COLUMN_INDEX_POSITION = 4, 5, 6
_METADATA_POSITIONS = frozenset({9, 10, 11, 14})
"""Of data pages, index pages, the dictionary page and the Bloom filter."""
_PAGE_LOCATIONS, _PAGE_POSITION = 1, 1


class RowGroupBytes(msgspec.Struct, frozen=True):
    """The row groups of one Parquet file in memory, and their metadata in its footer."""

    pages: memoryview
    """The pages and the Bloom filters: everything between the opening magic and the page index."""
    tail: FileTail

    @classmethod
    def of_file(cls, data: memoryview, *, has_page_index: bool = False) -> RowGroupBytes:
        """The parts of a whole file.

        `data`: the bytes of a file that Arrow wrote, not encrypted.
        """
        stop = len(data) - len(MAGIC) - _LENGTH_BYTES
        footer_at = stop - int.from_bytes(data[stop : stop + _LENGTH_BYTES], "little")
        footer = bytes(data[footer_at:stop])
        column_indexes_at = offset_indexes_at = footer_at
        # With many columns, looking for what is not there would take long.
        if has_page_index:
            column_indexes_at, offset_indexes_at = _find_page_index(footer) or (
                footer_at,
                footer_at,
            )
        tail = FileTail(
            column_indexes_at,
            bytes(data[column_indexes_at:offset_indexes_at]),
            bytes(data[offset_indexes_at:footer_at]),
            footer,
        )
        return cls(data[len(MAGIC) : column_indexes_at], tail)


class FileTail(msgspec.Struct, frozen=True):
    """What follows the pages in a file."""

    position: int
    """Where it starts in its own file."""
    column_indexes: bytes
    offset_indexes: bytes
    footer: bytes
    """The file's Thrift metadata."""


def _find_page_index(footer: bytes) -> tuple[int, int] | None:
    """Positions of the first column index and of the first offset index.

    Arrow writes the column indexes of all row groups, then the offset indexes, both in the order of
    the columns. A column without statistics has no column index.
    """
    offset_indexes_at = 0
    for field, position in _page_index_fields(footer):
        if field == _COLUMN_INDEX_POSITION:
            return position, offset_indexes_at
        offset_indexes_at = offset_indexes_at or position
    return (offset_indexes_at, offset_indexes_at) if offset_indexes_at else None


def _page_index_fields(footer: bytes) -> Iterator[tuple[int, int]]:
    cursor = Cursor(footer)
    if not cursor.find(_FILE_ROW_GROUPS):
        return
    for _ in range(cursor.list_header()[0]):
        for field, kind in cursor.fields():
            if field != _GROUP_COLUMNS:
                cursor.skip(kind)
                continue
            for _ in range(cursor.list_header()[0]):
                for chunk_field, chunk_kind in cursor.fields():
                    if chunk_field in (_OFFSET_INDEX_POSITION, _COLUMN_INDEX_POSITION):
                        yield chunk_field, cursor.integer()
                    else:
                        cursor.skip(chunk_kind)


def spliced_end(parts: Sequence[tuple[FileTail, int]], position: int) -> bytes:
    """The end of a file with the pages of several others: page index, metadata, length and magic.

    `parts`: at least one tail, each with the number of bytes by which its pages are further back
    than in their own file; in the order of the pages. `position`: where the pages end.
    """
    first, shift = parts[0]
    if len(parts) == 1 and not shift:
        # No position changes; with many columns, parsing the footer would take the most time.
        return b"".join((first.column_indexes, first.offset_indexes, file_end(first.footer)))
    moved = _MovedParts(position, position + sum(len(tail.column_indexes) for tail, _ in parts))
    for tail, shift in parts:
        moved.add_part(tail, shift)
    metadata = FileMetadata.parse(first.footer)
    return b"".join(
        (
            *(tail.column_indexes for tail, _ in parts),
            *moved.offset_indexes,
            file_end(metadata.with_row_groups(moved.num_rows, moved.num_row_groups, moved.bodies)),
        )
    )


def file_end(metadata: bytes) -> bytes:
    """The bytes after the pages of a file."""
    return metadata + len(metadata).to_bytes(_LENGTH_BYTES, "little") + MAGIC


def _replace_numbers(
    data: bytes, start: int, stop: int, edits: Sequence[tuple[int, int, int]]
) -> bytes:
    """Part of some bytes, with some numbers replaced."""
    done, parts = start, []
    for edit_start, edit_stop, value in edits:
        parts += [data[done:edit_start], zigzag(value)]
        done = edit_stop
    return b"".join((*parts, data[done:stop]))


class FileMetadata(msgspec.Struct, frozen=True):
    """A `FileMetaData`, and the positions of its fields that change."""

    footer: bytes
    num_rows: int
    num_rows_at: slice
    num_row_groups: int
    row_groups_at: slice
    """The whole list, including its header."""
    first_group_at: int
    column_orders_at: int | None

    @classmethod
    def parse(
        cls,
        footer: bytes,
        read_group: Callable[[Cursor], object] = methodcaller("skip", STRUCT),
    ) -> FileMetadata:
        """The metadata in the bytes of a footer. IndexError or RecursionError: they are not Thrift.

        `read_group`: steps over a row group.
        """
        cursor = Cursor(footer)
        num_rows = count = first_group_at = 0
        column_orders_at = None
        num_rows_at = row_groups_at = slice(0, 0)
        for field, kind in cursor.fields():
            start = cursor.position
            if field == _FILE_NUM_ROWS:
                num_rows = cursor.integer()
                num_rows_at = slice(start, cursor.position)
            elif field == _FILE_ROW_GROUPS:
                count, _ = cursor.list_header()
                first_group_at = cursor.position
                for _ in range(count):
                    read_group(cursor)
                row_groups_at = slice(start, cursor.position)
            else:
                if field == _FILE_COLUMN_ORDERS:
                    column_orders_at = start
                cursor.skip(kind)
        return cls(
            footer, num_rows, num_rows_at, count, row_groups_at, first_group_at, column_orders_at
        )

    def with_row_groups(self, num_rows: int, count: int, row_groups: Sequence[bytes]) -> bytes:
        """The metadata with other row groups, `count` in all."""
        return b"".join(
            (
                self.footer[: self.num_rows_at.start],
                zigzag(num_rows),
                self.footer[self.num_rows_at.stop : self.row_groups_at.start],
                list_header_bytes(count),
                *row_groups,
                self.footer[self.row_groups_at.stop :],
            )
        )


class _MovedParts(msgspec.Struct):
    """Row groups and offset indexes with every position changed, part after part."""

    column_indexes_at: int
    """Where the column indexes of the next part go."""
    offset_index_at: int
    """Where the next offset index goes."""
    bodies: list[bytes] = msgspec.field(default_factory=list)
    """The row groups of each part."""
    offset_indexes: list[bytes] = msgspec.field(default_factory=list)
    num_rows: int = 0
    num_row_groups: int = 0
    _edits: list[tuple[int, int, int]] = msgspec.field(default_factory=list)
    """Of the part: start and end of a number in its footer, and the new number."""

    def add_part(self, tail: FileTail, shift: int) -> None:
        """Add the row groups of a part, renumbered."""
        metadata = FileMetadata.parse(tail.footer)
        cursor = Cursor(tail.footer, metadata.first_group_at)
        self._edits = []
        for _ in range(metadata.num_row_groups):
            self._edit_row_group(cursor, tail, shift)
        start, stop = metadata.first_group_at, metadata.row_groups_at.stop
        self.bodies.append(_replace_numbers(tail.footer, start, stop, self._edits))
        self.num_rows += metadata.num_rows
        self.column_indexes_at += len(tail.column_indexes)

    def _edit_row_group(self, cursor: Cursor, tail: FileTail, shift: int) -> None:
        for field, kind in cursor.fields():
            if field == _GROUP_COLUMNS:
                count, _ = cursor.list_header()
                for _ in range(count):
                    self._edit_chunk(cursor, tail, shift)
            elif field == _GROUP_POSITION:
                self._move_position(cursor, shift)
            elif field == _GROUP_ORDINAL:
                start = cursor.position
                cursor.skip(kind)
                self._edits.append((start, cursor.position, self.num_row_groups))
            else:
                cursor.skip(kind)
        self.num_row_groups += 1

    def _edit_chunk(self, cursor: Cursor, tail: FileTail, shift: int) -> None:
        index_at = 0
        for field, kind in cursor.fields():
            if field == _CHUNK_POSITION:
                self._move_position(cursor, shift)
            elif field == _CHUNK_METADATA:
                self._edit_chunk_metadata(cursor, shift)
            elif field == _COLUMN_INDEX_POSITION:
                self._move_position(cursor, self.column_indexes_at - tail.position)
            elif field == _OFFSET_INDEX_POSITION:
                start, index_at = cursor.position, cursor.integer()
                self._edits.append((start, cursor.position, self.offset_index_at))
            elif field == _OFFSET_INDEX_LENGTH:
                start, length = cursor.position, cursor.integer()
                index_at -= tail.position + len(tail.column_indexes)
                index = _moved_offset_index(
                    tail.offset_indexes[index_at : index_at + length], shift
                )
                self._edits.append((start, cursor.position, len(index)))
                self.offset_indexes.append(index)
                self.offset_index_at += len(index)
            else:
                cursor.skip(kind)

    def _edit_chunk_metadata(self, cursor: Cursor, shift: int) -> None:
        for field, kind in cursor.fields():
            if field in _METADATA_POSITIONS:
                self._move_position(cursor, shift)
            else:
                cursor.skip(kind)

    def _move_position(self, cursor: Cursor, shift: int) -> None:
        start = cursor.position
        value = cursor.integer()
        # No page is at the position of the magic: 0 means that the position is not set.
        if value:
            self._edits.append((start, cursor.position, value + shift))


def _moved_offset_index(index: bytes, shift: int) -> bytes:
    """An `OffsetIndex` whose pages are further back."""
    cursor, edits = Cursor(index), []
    if cursor.find(_PAGE_LOCATIONS):
        for _ in range(cursor.list_header()[0]):
            cursor.find(_PAGE_POSITION)
            start, position = cursor.position, cursor.integer()
            edits.append((start, cursor.position, position + shift))
            cursor.skip(STRUCT)
    return _replace_numbers(index, 0, len(index), edits)
