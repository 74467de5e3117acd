"""One Parquet file from several files of the same schema, by copying row groups.

Only the footer has the positions of pages: they are changed, without encoding the pages again. The
result is byte for byte that of a single writer.

Spec: Parquet's file format and its Thrift definition; Thrift's compact protocol.
"""

from __future__ import annotations

from collections.abc import Sequence

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
_FILE_NUM_ROWS, _FILE_ROW_GROUPS = 3, 4
_GROUP_COLUMNS, _GROUP_POSITION, _GROUP_ORDINAL = 1, 5, 7
_CHUNK_METADATA = 3
_CHUNK_POSITIONS = frozenset({2, 4, 6})
"""Of the chunk, of its offset index and of its column index."""
_METADATA_POSITIONS = frozenset({9, 10, 11, 14})
"""Of data pages, index pages, the dictionary page and the Bloom filter."""


class RowGroupBytes(msgspec.Struct, frozen=True):
    """The row groups of one Parquet file in memory, and their metadata in its footer."""

    pages: memoryview
    """Everything between the opening magic and the footer."""
    footer: bytes
    """The file's Thrift metadata."""

    @classmethod
    def of_file(cls, data: memoryview) -> RowGroupBytes:
        """The parts of a whole file.

        `data`: the bytes of a file that is not encrypted.
        """
        end = len(data) - len(MAGIC) - _LENGTH_BYTES
        start = end - int.from_bytes(data[end : end + _LENGTH_BYTES], "little")
        return cls(data[len(MAGIC) : start], bytes(data[start:end]))


def spliced_footer(parts: Sequence[tuple[bytes, int]]) -> bytes:
    """The end of a file with the pages of several others: metadata, length and magic.

    `parts`: at least one footer, each with the number of bytes by which its pages are further back
    than in their own file; in the order of the pages.
    """
    if len(parts) == 1 and not parts[0][1]:
        # No position changes; with many columns, parsing the footer would take the most time.
        return _file_end(parts[0][0])
    first = _Metadata.parse(parts[0][0])
    rows, groups, bodies = 0, 0, []
    for footer, shift in parts:
        metadata = _Metadata.parse(footer)
        bodies.append(metadata.moved_row_groups(shift, first_ordinal=groups))
        rows += metadata.num_rows
        groups += metadata.num_row_groups
    return _file_end(first.with_row_groups(rows, groups, bodies))


def _file_end(metadata: bytes) -> bytes:
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


class _Metadata(msgspec.Struct, frozen=True):
    """A `FileMetaData`, and the positions of its fields that change."""

    footer: bytes
    num_rows: int
    num_rows_at: slice
    num_row_groups: int
    row_groups_at: slice
    """The whole list, including its header."""
    first_group_at: int

    @classmethod
    def parse(cls, footer: bytes) -> _Metadata:
        cursor = Cursor(footer)
        num_rows = count = first_group_at = 0
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
                    cursor.skip(STRUCT)
                row_groups_at = slice(start, cursor.position)
            else:
                cursor.skip(kind)
        return cls(footer, num_rows, num_rows_at, count, row_groups_at, first_group_at)

    def moved_row_groups(self, shift: int, *, first_ordinal: int) -> bytes:
        """The row groups with every position changed, and renumbered."""
        cursor = Cursor(self.footer, self.first_group_at)
        edits: list[tuple[int, int, int]] = []
        for ordinal in range(first_ordinal, first_ordinal + self.num_row_groups):
            _edit_row_group(cursor, shift, ordinal, edits)
        return _replace_numbers(self.footer, self.first_group_at, self.row_groups_at.stop, edits)

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


def _edit_row_group(
    cursor: Cursor, shift: int, ordinal: int, edits: list[tuple[int, int, int]]
) -> None:
    """Collect the changes of a `RowGroup`: start and end in the footer, and the new number."""
    for field, kind in cursor.fields():
        if field == _GROUP_COLUMNS:
            count, _ = cursor.list_header()
            for _ in range(count):
                _edit_positions(cursor, _CHUNK_POSITIONS, shift, edits)
        elif field == _GROUP_POSITION:
            _edit_position(cursor, shift, edits)
        elif field == _GROUP_ORDINAL:
            start = cursor.position
            cursor.skip(kind)
            edits.append((start, cursor.position, ordinal))
        else:
            cursor.skip(kind)


def _edit_positions(
    cursor: Cursor, positions: frozenset[int], shift: int, edits: list[tuple[int, int, int]]
) -> None:
    """Collect the positions in a `ColumnChunk` and in its `ColumnMetaData`."""
    for field, kind in cursor.fields():
        if field in positions:
            _edit_position(cursor, shift, edits)
        elif field == _CHUNK_METADATA and kind == STRUCT:
            _edit_positions(cursor, _METADATA_POSITIONS, shift, edits)
        else:
            cursor.skip(kind)


def _edit_position(cursor: Cursor, shift: int, edits: list[tuple[int, int, int]]) -> None:
    start = cursor.position
    value = cursor.integer()
    # No page is at the position of the magic: 0 means that the position is not set.
    if value:
        edits.append((start, cursor.position, value + shift))
