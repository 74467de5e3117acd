"""One Parquet file from several of the same schema that were encoded apart, row group by row group.

Pages do not know where in a file they stand, only the footer does: its positions are moved, and
nothing is encoded again. The outcome is byte for byte what one writer would have made.

Spec: Parquet's file format and its Thrift definition; Thrift's compact protocol.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

__all__ = ["MAGIC", "RowGroupBytes", "spliced_footer"]

MAGIC = b"PAR1"
"""Begins and ends every Parquet file."""

_LENGTH_BYTES = 4

# Types of the compact protocol.
_TRUE, _FALSE, _BYTE, _I16, _I32, _I64, _DOUBLE, _BINARY, _LIST, _SET, _MAP, _STRUCT = range(1, 13)
_VARINTS = frozenset({_I16, _I32, _I64})

# Ids of the fields that are changed, and of those on the way to them.
_FILE_NUM_ROWS, _FILE_ROW_GROUPS = 3, 4
_GROUP_COLUMNS, _GROUP_POSITION, _GROUP_ORDINAL = 1, 5, 7
_CHUNK_METADATA = 3
_CHUNK_POSITIONS = frozenset({2, 4, 6})
"""Of the chunk, of its offset index and of its column index."""
_METADATA_POSITIONS = frozenset({9, 10, 11, 14})
"""Of data pages, index pages, the dictionary page and the Bloom filter."""


@dataclass(frozen=True, slots=True)
class RowGroupBytes:
    """The row groups of one Parquet file in memory, and what its footer says about them."""

    pages: memoryview
    """Everything between the opening magic and the footer."""
    footer: bytes
    """The file's Thrift metadata."""

    @classmethod
    def of_file(cls, data: memoryview) -> RowGroupBytes:
        """The parts of a whole file.

        Args:
            data: the bytes of a file that is not encrypted.
        """
        end = len(data) - len(MAGIC) - _LENGTH_BYTES
        start = end - int.from_bytes(data[end : end + _LENGTH_BYTES], "little")
        return cls(data[len(MAGIC) : start], bytes(data[start:end]))


def spliced_footer(parts: Sequence[tuple[bytes, int]]) -> bytes:
    """What ends the file that holds the pages of several others: metadata, length and magic.

    Args:
        parts: at least one footer, and by how many bytes its pages stand further back than in
            their own file; in the order of the pages.
    """
    first = _Metadata.parse(parts[0][0])
    rows, groups, bodies = 0, 0, []
    for footer, shift in parts:
        metadata = _Metadata.parse(footer)
        bodies.append(metadata.moved_row_groups(shift, first_ordinal=groups))
        rows += metadata.num_rows
        groups += metadata.num_row_groups
    metadata_bytes = b"".join(
        (
            first.footer[: first.num_rows_at.start],
            _zigzag(rows),
            first.footer[first.num_rows_at.stop : first.row_groups_at.start],
            _list_header(groups),
            *bodies,
            first.footer[first.row_groups_at.stop :],
        )
    )
    return metadata_bytes + len(metadata_bytes).to_bytes(_LENGTH_BYTES, "little") + MAGIC


@dataclass(frozen=True, slots=True)
class _Metadata:
    """A `FileMetaData`, and where in it the fields stand that change."""

    footer: bytes
    num_rows: int
    num_rows_at: slice
    num_row_groups: int
    row_groups_at: slice
    """The whole list, its header included."""
    first_group_at: int

    @classmethod
    def parse(cls, footer: bytes) -> _Metadata:
        cursor = _Cursor(footer)
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
                    cursor.skip(_STRUCT)
                row_groups_at = slice(start, cursor.position)
            else:
                cursor.skip(kind)
        return cls(footer, num_rows, num_rows_at, count, row_groups_at, first_group_at)

    def moved_row_groups(self, shift: int, *, first_ordinal: int) -> bytes:
        """The row groups with every position moved, and numbered anew."""
        cursor = _Cursor(self.footer, self.first_group_at)
        edits: list[tuple[int, int, int]] = []
        for ordinal in range(first_ordinal, first_ordinal + self.num_row_groups):
            _edit_row_group(cursor, shift, ordinal, edits)
        done, parts = self.first_group_at, []
        for start, end, value in edits:
            parts += [self.footer[done:start], _zigzag(value)]
            done = end
        return b"".join((*parts, self.footer[done : self.row_groups_at.stop]))


def _edit_row_group(
    cursor: _Cursor, shift: int, ordinal: int, edits: list[tuple[int, int, int]]
) -> None:
    """Note what changes in a `RowGroup`: from where to where in the footer, and to which number."""
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
    cursor: _Cursor, positions: frozenset[int], shift: int, edits: list[tuple[int, int, int]]
) -> None:
    """Note the positions in a `ColumnChunk` and in the `ColumnMetaData` that it holds."""
    for field, kind in cursor.fields():
        if field in positions:
            _edit_position(cursor, shift, edits)
        elif field == _CHUNK_METADATA and kind == _STRUCT:
            _edit_positions(cursor, _METADATA_POSITIONS, shift, edits)
        else:
            cursor.skip(kind)


def _edit_position(cursor: _Cursor, shift: int, edits: list[tuple[int, int, int]]) -> None:
    start = cursor.position
    value = cursor.integer()
    # Nothing stands where the magic does: 0 says that the position is not told.
    if value:
        edits.append((start, cursor.position, value + shift))


class _Cursor:
    """Walks over values of the compact protocol."""

    def __init__(self, data: bytes, position: int = 0) -> None:
        self._data = data
        self.position = position

    def fields(self) -> Iterator[tuple[int, int]]:
        """Id and type of each field of the struct here; each is read or skipped by the caller."""
        field = 0
        while header := self._byte():
            delta, kind = header >> 4, header & 0x0F
            field = field + delta if delta else self.integer()
            yield field, kind

    def integer(self) -> int:
        value = self._varint()
        return (value >> 1) ^ -(value & 1)

    def list_header(self) -> tuple[int, int]:
        """Number and type of the elements that follow."""
        header = self._byte()
        count = header >> 4
        return (self._varint() if count == 0x0F else count), header & 0x0F

    def skip(self, kind: int) -> None:
        """Step over a value of a field."""
        if kind in _VARINTS:
            self._varint()
        elif kind == _BINARY:
            length = self._varint()
            self.position += length
        elif kind == _STRUCT:
            for _, each in self.fields():
                self.skip(each)
        elif kind in (_LIST, _SET):
            count, element = self.list_header()
            for _ in range(count):
                self._skip_element(element)
        elif kind == _DOUBLE:
            self.position += 8
        elif kind == _BYTE:
            self.position += 1
        elif kind == _MAP:
            self._skip_map()

    def _skip_map(self) -> None:
        count = self._varint()
        if count:
            kinds = self._byte()
            for _ in range(count):
                self._skip_element(kinds >> 4)
                self._skip_element(kinds & 0x0F)

    def _skip_element(self, kind: int) -> None:
        # A truth value is in the header of a field, and takes a byte in a list.
        if kind in (_TRUE, _FALSE):
            self.position += 1
        else:
            self.skip(kind)

    def _varint(self) -> int:
        value = shift = 0
        while True:
            byte = self._byte()
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value
            shift += 7

    def _byte(self) -> int:
        byte = self._data[self.position]
        self.position += 1
        return byte


def _zigzag(value: int) -> bytes:
    return _varint_bytes((value << 1) if value >= 0 else (~value << 1) | 1)


def _varint_bytes(value: int) -> bytes:
    encoded = bytearray()
    while value >= 0x80:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)


def _list_header(count: int) -> bytes:
    if count < 0x0F:
        return bytes([count << 4 | _STRUCT])
    return bytes([0xF0 | _STRUCT]) + _varint_bytes(count)
