"""Deletion vectors: the row indexes they hold, as bytes, as text and as masks.

Spec: Deletion Vectors; Deletion Vector Format; Deletion Vector File Storage Format.
"""

from __future__ import annotations

import base64
import struct
import zlib
from collections.abc import Iterable, Iterator, Sequence
from uuid import UUID

import pyarrow as pa
from pyroaring import BitMap64

import dagster_delta.arrow_compute as pc
from dagster_delta.errors import CorruptDeletionVector, InvalidArgument
from dagster_delta.protocol.actions import AddFile, DeletionVectorDescriptor, RemoveFile
from dagster_delta.protocol.values.arrow_columns import boolean_column
from dagster_delta.protocol.values.partition_values import decode_path

_PORTABLE_MAGIC = 1681511377
_NATIVE_MAGIC = 1681511376
"""Older layout: consecutive 32-bit bitmaps, each preceded by its size, with keys from zero."""

_FILE_VERSION = b"\x01"
_FIRST_OFFSET = len(_FILE_VERSION)
_UUID_TEXT_LENGTH = 20
_MAX_ROWS = 2**63

_B85 = b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz!#$%&()*+-;<=>?@^_`{|}~"
_Z85 = b"0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-:+=^!/*?&<>()[]{}@%$#"
_TO_Z85 = bytes.maketrans(_B85, _Z85)
_FROM_Z85 = bytes.maketrans(_Z85, _B85)


def decode_z85(text: str) -> bytes:
    """The bytes of a Z85 text, padding zeros included.

    The Rust crate `z85` pads the last chunk differently: with one leading `#` per missing byte.
    Such a chunk is also read, since no number below 2^32 begins with `#`.
    """
    raw = text.encode()
    if len(raw) % 5 or raw.translate(None, _Z85):
        raise CorruptDeletionVector(f"{text!r} is not Z85 text")
    try:
        if raw[-5:].startswith(b"#"):
            return base64.b85decode(raw[:-5].translate(_FROM_Z85)) + _padded_in_front(raw[-5:])
        return base64.b85decode(raw.translate(_FROM_Z85))
    except ValueError as error:
        raise CorruptDeletionVector(f"{text!r} is not Z85 text: {error}") from error


def _padded_in_front(chunk: bytes) -> bytes:
    """The bytes of a chunk that begins with one to three `#`. Raises ValueError if it does not
    decode.
    """
    missing = len(chunk) - len(chunk.lstrip(b"#"))
    if missing > 3:
        raise ValueError("a chunk without bytes")
    zeros = _Z85[:1] * missing
    value = base64.b85decode((zeros + chunk[missing:]).translate(_FROM_Z85))
    if any(value[:missing]):
        raise ValueError("a chunk holds more bytes than its padding leaves")
    return value[missing:]


def encode_z85(data: bytes) -> str:
    """The Z85 text of bytes, padded with zeros to a multiple of four."""
    padded = data + bytes(-len(data) % 4)
    return base64.b85encode(padded).translate(_TO_Z85).decode()


def decode_deletion_vector(data: bytes) -> BitMap64:
    """The row indexes of a serialised deletion vector, in either shipped layout."""
    if len(data) < 4:
        raise CorruptDeletionVector(f"a deletion vector of {len(data)} bytes has no magic number")
    (magic,) = struct.unpack_from("<I", data)
    if magic == _PORTABLE_MAGIC:
        portable = data[4:]
    elif magic == _NATIVE_MAGIC:
        portable = _native_to_portable(data)
    else:
        raise CorruptDeletionVector(f"{magic} is not the magic number of a deletion vector")
    try:
        bitmap = BitMap64.deserialize(portable)
    except (ValueError, IndexError) as error:
        raise CorruptDeletionVector(
            f"{len(data)} bytes are not a bitmap of row indexes: {error}"
        ) from error
    # Spec: keys have a zero as their most significant bit.
    if bitmap and bitmap.max() >= _MAX_ROWS:
        raise CorruptDeletionVector(f"{bitmap.max()} is beyond every row index")
    return bitmap


def _native_to_portable(data: bytes) -> bytes:
    try:
        (count,) = struct.unpack_from("<I", data, 4)
        position = 8
        parts = [struct.pack("<Q", count)]
        for key in range(count):
            (size,) = struct.unpack_from("<I", data, position)
            position += 4
            parts += [struct.pack("<I", key), data[position : position + size]]
            position += size
    except struct.error as error:
        raise CorruptDeletionVector(f"a deletion vector ends too early: {error}") from error
    if position > len(data):
        raise CorruptDeletionVector("a deletion vector ends too early")
    return b"".join(parts)


def encode_deletion_vector(bitmap: BitMap64) -> bytes:
    """The serialised deletion vector in the portable layout, from the magic number on."""
    if bitmap and bitmap.max() >= _MAX_ROWS:
        raise InvalidArgument(f"{bitmap.max()} is beyond every row index; pass rows of one file")
    compact = bitmap.copy()
    compact.run_optimize()
    return struct.pack("<I", _PORTABLE_MAGIC) + compact.serialize()


def parse_inline(descriptor: DeletionVectorDescriptor) -> BitMap64:
    """The row indexes of a vector that is stored in the log itself (`storageType` `i`)."""
    data = decode_z85(descriptor.path_or_inline_dv)
    if len(data) < descriptor.size_in_bytes:
        raise CorruptDeletionVector(
            f"an inline deletion vector has {len(data)} of {descriptor.size_in_bytes} bytes"
        )
    return _check_cardinality(decode_deletion_vector(data[: descriptor.size_in_bytes]), descriptor)


def deletion_vector_path(descriptor: DeletionVectorDescriptor) -> str:
    """Path of the file that holds the vector: relative to the table root, or absolute; decoded.

    Spec: Derived Fields.
    """
    text = descriptor.path_or_inline_dv
    match descriptor.storage_type:
        case "p":
            return decode_path(text)
        case "u" if len(text) >= _UUID_TEXT_LENGTH:
            prefix, encoded = text[:-_UUID_TEXT_LENGTH], text[-_UUID_TEXT_LENGTH:]
            name = f"deletion_vector_{UUID(bytes=decode_z85(encoded))}.bin"
            return f"{prefix}/{name}" if prefix else name
        case "i":
            raise InvalidArgument("an inline deletion vector has no file; parse it in place")
        case storage_type:
            raise CorruptDeletionVector(
                f"a deletion vector of storage type {storage_type!r} at {text!r} cannot be located"
            )


def vector_file(vector: DeletionVectorDescriptor | None) -> str | None:
    """The file that holds a vector, as `deletion_vector_path`; None if no file does."""
    return None if vector is None or vector.storage_type == "i" else deletion_vector_path(vector)


def vector_files(files: Iterable[AddFile | RemoveFile]) -> Iterator[str]:
    """The files that hold the deletion vectors of some files, as `deletion_vector_path`."""
    return filter(None, (vector_file(file.deletion_vector) for file in files))


def deletion_vector_range(descriptor: DeletionVectorDescriptor) -> tuple[int, int]:
    """Where a stored vector is in its file: (offset, length) in bytes, with size and checksum.

    The bytes of that range are what `read_from_file_bytes` takes.
    """
    offset = _FIRST_OFFSET if descriptor.offset is None else descriptor.offset
    return offset, 4 + descriptor.size_in_bytes + 4


def read_from_file_bytes(data: bytes, descriptor: DeletionVectorDescriptor) -> BitMap64:
    """The row indexes of a stored vector, after checking its size, checksum and cardinality."""
    path = deletion_vector_path(descriptor)
    size = descriptor.size_in_bytes
    if len(data) < size + 8:
        raise CorruptDeletionVector(
            f"the file has {len(data)} of the {size + 8} bytes of a deletion vector", file=path
        )
    # The sizes and checksums of the file are big-endian, unlike the vectors between them.
    (stored_size,) = struct.unpack_from(">I", data)
    if stored_size != size:
        raise CorruptDeletionVector(
            f"a deletion vector has {stored_size} bytes in its file and {size} in the log",
            file=path,
        )
    serialized = bytes(data[4 : 4 + size])
    (checksum,) = struct.unpack_from(">I", data, 4 + size)
    if zlib.crc32(serialized) != checksum:
        raise CorruptDeletionVector(
            "the checksum of a deletion vector does not match: the file is damaged; restore it "
            "from a backup, or restore the table to a version before it",
            file=path,
        )
    try:
        return _check_cardinality(decode_deletion_vector(serialized), descriptor)
    except CorruptDeletionVector as error:
        error.file = path
        raise


def _check_cardinality(bitmap: BitMap64, descriptor: DeletionVectorDescriptor) -> BitMap64:
    if len(bitmap) != descriptor.cardinality:
        raise CorruptDeletionVector(
            f"a deletion vector removes {len(bitmap)} rows, and the log says "
            f"{descriptor.cardinality}"
        )
    return bitmap


def check_rows_in_file(bitmap: BitMap64, num_rows: int) -> None:
    """Refuse a vector that deletes rows beyond the end of its data file."""
    if bitmap and bitmap.max() >= num_rows:
        raise CorruptDeletionVector(
            f"a deletion vector removes row {bitmap.max()}, counted from 0, of a data file that "
            f"has {num_rows} rows"
        )


def encode_deletion_vector_file(
    bitmaps: Sequence[BitMap64], *, file_id: UUID, prefix: str = ""
) -> tuple[bytes, tuple[DeletionVectorDescriptor, ...]]:
    """A file of deletion vectors and one descriptor for each, in order.

    `prefix` is a directory below the table root, if files have random prefixes.
    """
    parts = [_FILE_VERSION]
    descriptors = []
    offset = _FIRST_OFFSET
    location = prefix + encode_z85(file_id.bytes)
    for bitmap in bitmaps:
        data = encode_deletion_vector(bitmap)
        parts += [struct.pack(">I", len(data)), data, struct.pack(">I", zlib.crc32(data))]
        descriptors.append(
            DeletionVectorDescriptor(
                storage_type="u",
                path_or_inline_dv=location,
                offset=offset,
                size_in_bytes=len(data),
                cardinality=len(bitmap),
            )
        )
        offset += len(data) + 8
    return b"".join(parts), tuple(descriptors)


def deleted_row_mask(bitmap: BitMap64, start: int, length: int) -> pa.BooleanArray:
    """Which of the rows `start` to `start + length - 1` of a data file are deleted."""
    rows = (bitmap & BitMap64(range(start, start + length))).shift(-start)
    if not rows or not length:
        return pa.repeat(boolean_column([False])[0], length)
    # A row where the mask changes differs from the row before it; those rows and the length are
    # the ends of runs that alternate between kept and deleted.
    changes = (rows ^ rows.shift(1)) & BitMap64(range(1, length))
    changes.add(length)
    count = len(changes)
    ends = pa.Array.from_buffers(pa.uint64(), count, [None, pa.py_buffer(changes.to_array())])
    alternating = b"\x55" if 0 in rows else b"\xaa"
    deleted = pa.Array.from_buffers(
        pa.bool_(), count, [None, pa.py_buffer(alternating * (count // 8 + 1))]
    )
    # `RunEndEncodedArray.from_arrays` would import pandas if it is installed.
    runs = pa.Array.from_buffers(
        pa.run_end_encoded(pa.int64(), pa.bool_()),
        length,
        [None],
        children=[pc.cast(ends, pa.int64()), deleted],
    )
    return pc.run_end_decode(runs)
