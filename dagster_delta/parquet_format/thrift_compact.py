"""The part of Thrift's compact protocol that Parquet footers need: stepping over values, and
numbers.

Spec: Thrift's compact protocol.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

TRUE, FALSE, _BYTE, _I16, I32, I64, _DOUBLE, BINARY, LIST, _SET, _MAP, STRUCT = range(1, 13)
_VARINTS = frozenset({_I16, I32, I64})


def _short_headers(kinds: Iterable[int]) -> bytes:
    """A character class of field headers that contain the difference of the ids."""
    return b"[%s]" % re.escape(bytes(delta << 4 | kind for kind in kinds for delta in range(1, 16)))


# Nearly all fields of a footer are numbers: skip a run of them at once.
_NUMBERS = re.compile(
    b"(?:%s|%s[\x80-\xff]*[\x00-\x7f])*"
    % (_short_headers((TRUE, FALSE)), _short_headers(_VARINTS)),
)


class Cursor:
    """Steps over values of the compact protocol; IndexError if the bytes end too early."""

    def __init__(self, data: bytes, position: int = 0) -> None:
        self._data = data
        self.position = position

    def fields(self) -> Iterator[tuple[int, int]]:
        """Id and type of each field of the struct here; each is read or skipped by the caller."""
        field = 0
        while header := self._read_byte():
            delta, kind = header >> 4, header & 0x0F
            field = field + delta if delta else self.integer()
            yield field, kind

    def find(self, wanted: int) -> bool:
        """Step to the value of a field of the struct here, or past the struct if it has no such
        field.

        `skip(STRUCT)` steps over the fields that follow a value.
        """
        data, position, field = self._data, self.position, 0
        while header := data[position]:
            self.position = position = position + 1
            field = field + (header >> 4) if header > 0x0F else self.integer()
            if field == wanted:
                return True
            self.skip(header & 0x0F)
            position = self.position
        self.position = position + 1
        return False

    def copy_before(self, wanted: int) -> bytes:
        """The fields of the struct here before one, which are all fields with smaller ids.

        `skip(STRUCT)` steps over the fields after it. IndexError if it or one before it is missing.
        """
        start, position, last = self.position, self.position, 0
        for field, kind in self.fields():
            if field == wanted and last == wanted - 1:
                self.skip(kind)
                return self._data[start:position]
            self.skip(kind)
            position, last = self.position, field
        raise IndexError("the struct lacks a field, or has its fields in another order")

    def integer(self) -> int:
        """The integer here."""
        value = self._read_varint()
        return (value >> 1) ^ -(value & 1)

    def boolean(self) -> bool:
        """The element of a list here."""
        return self._read_byte() == TRUE

    def binary(self) -> bytes:
        """The bytes or the text here."""
        length = self._read_varint()
        self.position += length
        return self._data[self.position - length : self.position]

    def list_header(self) -> tuple[int, int]:
        """Number and type of the elements that follow."""
        header = self._read_byte()
        count = header >> 4
        return (self._read_count() if count == 0x0F else count), header & 0x0F

    def skip(self, kind: int) -> None:
        """Step over a value of a field."""
        if kind in _VARINTS:
            self._read_varint()
        elif kind == BINARY:
            length = self._read_varint()
            self.position += length
        elif kind == STRUCT:
            self._skip_struct()
        elif kind in (LIST, _SET):
            count, element = self.list_header()
            for _ in range(count):
                self._skip_element(element)
        elif kind == _DOUBLE:
            self.position += 8
        elif kind == _BYTE:
            self.position += 1
        elif kind == _MAP:
            self._skip_map()

    def _skip_struct(self) -> None:
        while True:
            if numbers := _NUMBERS.match(self._data, self.position):
                self.position = numbers.end()
            header = self._read_byte()
            if not header:
                return
            if header < 0x10:
                self._read_varint()
            self.skip(header & 0x0F)

    def _skip_map(self) -> None:
        count = self._read_count()
        if count:
            kinds = self._read_byte()
            for _ in range(count):
                self._skip_element(kinds >> 4)
                self._skip_element(kinds & 0x0F)

    def _skip_element(self, kind: int) -> None:
        # A boolean is in the header of a field, and takes a byte in a list.
        if kind in (TRUE, FALSE):
            self.position += 1
        else:
            self.skip(kind)

    def _read_count(self) -> int:
        count = self._read_varint()
        if count > len(self._data):
            raise IndexError("more elements than bytes")
        return count

    def _read_varint(self) -> int:
        byte = self._data[self.position]
        self.position += 1
        if byte < 0x80:
            return byte
        value, shift = byte & 0x7F, 7
        while True:
            byte = self._read_byte()
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value
            shift += 7

    def _read_byte(self) -> int:
        byte = self._data[self.position]
        self.position += 1
        return byte


def zigzag(value: int) -> bytes:
    """An integer, as fields and lists hold it."""
    return _varint_bytes((value << 1) if value >= 0 else (~value << 1) | 1)


def _varint_bytes(value: int) -> bytes:
    encoded = bytearray()
    while value >= 0x80:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)


def list_header_bytes(count: int) -> bytes:
    """The header of a list of `count` structs."""
    if count < 0x0F:
        return bytes([count << 4 | STRUCT])
    return bytes([0xF0 | STRUCT]) + _varint_bytes(count)
