from __future__ import annotations

import struct
import uuid
from pathlib import Path

import msgspec
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyroaring import BitMap, BitMap64

from dagster_delta.errors import CorruptDeletionVector, InvalidArgument
from dagster_delta.protocol.actions import DeletionVectorDescriptor
from dagster_delta.protocol.features.deletion_vectors import (
    decode_deletion_vector,
    decode_z85,
    deleted_row_mask,
    deletion_vector_path,
    deletion_vector_range,
    encode_deletion_vector,
    encode_deletion_vector_file,
    encode_z85,
    parse_inline,
    read_from_file_bytes,
)
from tests.inline_vectors import encode_inline

FILE_ID = uuid.UUID("d2c639aa-8816-431a-aaf6-d3fe2512ff61")

rows = st.one_of(
    st.sets(st.integers(0, 300_000)),
    st.sets(st.integers(0, 2**34)),
    st.tuples(st.integers(0, 200_000), st.integers(0, 200_000)).map(
        lambda bounds: set(range(min(bounds), max(bounds)))
    ),
)


def stored(*bitmaps: BitMap64) -> tuple[bytes, tuple[DeletionVectorDescriptor, ...]]:
    return encode_deletion_vector_file(bitmaps, file_id=FILE_ID)


def cut(data: bytes, descriptor: DeletionVectorDescriptor) -> bytes:
    offset, length = deletion_vector_range(descriptor)
    return data[offset : offset + length]


def native(*bitmaps: BitMap) -> bytes:
    parts = [struct.pack("<II", 1681511376, len(bitmaps))]
    for each in bitmaps:
        serialized = each.serialize()
        parts += [struct.pack("<I", len(serialized)), serialized]
    return b"".join(parts)


def test_shipped_inline_example_holds_its_six_rows() -> None:
    descriptor = DeletionVectorDescriptor(
        storage_type="i",
        path_or_inline_dv="^Bg9^0rr910000000000iXQKl0rr91000f55c8Xg0@@D72lkbi5=-{L",
        size_in_bytes=44,
        cardinality=6,
    )
    assert list(parse_inline(descriptor)) == [3, 4, 7, 11, 18, 29]


def test_path_of_a_relative_vector_is_made_of_prefix_and_uuid() -> None:
    descriptor = DeletionVectorDescriptor(
        storage_type="u",
        path_or_inline_dv="ab^-aqEH.-t@S}K{vb[*k^",
        offset=4,
        size_in_bytes=40,
        cardinality=6,
    )
    assert deletion_vector_path(descriptor) == f"ab/deletion_vector_{FILE_ID}.bin"


def test_path_of_an_absolute_vector_is_decoded_once() -> None:
    descriptor = DeletionVectorDescriptor(
        storage_type="p",
        path_or_inline_dv="file:/a%20b/c%2525/deletion_vector.bin",
        size_in_bytes=1,
        cardinality=1,
    )
    assert deletion_vector_path(descriptor) == "file:/a b/c%25/deletion_vector.bin"


def test_inline_vector_has_no_path() -> None:
    with pytest.raises(InvalidArgument):
        deletion_vector_path(encode_inline(BitMap64([1])))


def test_unknown_storage_type_is_refused() -> None:
    descriptor = DeletionVectorDescriptor(
        storage_type="x", path_or_inline_dv="?", size_in_bytes=1, cardinality=1
    )
    with pytest.raises(CorruptDeletionVector, match="storage type 'x'"):
        deletion_vector_path(descriptor)


@given(st.binary(max_size=64))
def test_z85_text_gives_back_the_bytes(data: bytes) -> None:
    assert decode_z85(encode_z85(data))[: len(data)] == data


@pytest.mark.parametrize(
    ("text", "data"),
    [
        ("##093", b"\x03\x00"),
        ("HelloWorld##093", bytes.fromhex("864fd26fb559f75b0300")),
        ("###0@", b"\x51"),
        ("#0001", b"\0\0\x01"),
    ],
)
def test_z85_padded_as_the_rust_crate_does_gives_the_bytes_without_padding(
    text: str, data: bytes
) -> None:
    assert decode_z85(text) == data


@pytest.mark.parametrize("text", ["####0", "#####", "##HHH", "##093HelloWorld"])
def test_z85_with_padding_that_means_nothing_is_refused(text: str) -> None:
    with pytest.raises(CorruptDeletionVector, match="is not Z85"):
        decode_z85(text)


def test_z85_of_the_reference_vector() -> None:
    assert encode_z85(bytes.fromhex("864fd26fb559f75b")) == "HelloWorld"


@pytest.mark.parametrize("text", ["abcd", "abc d", "~~~~~", "#####", "日本語です"])
def test_text_that_is_not_z85_is_refused(text: str) -> None:
    with pytest.raises(CorruptDeletionVector):
        decode_z85(text)


@given(rows)
def test_serialised_vector_gives_back_its_rows(indexes: set[int]) -> None:
    bitmap = BitMap64(indexes)
    assert decode_deletion_vector(encode_deletion_vector(bitmap)) == bitmap


@given(rows)
def test_inline_vector_gives_back_its_rows(indexes: set[int]) -> None:
    assert parse_inline(encode_inline(BitMap64(indexes))) == BitMap64(indexes)


@given(st.lists(rows, min_size=1, max_size=3))
def test_every_vector_of_a_file_gives_back_its_rows(vectors: list[set[int]]) -> None:
    bitmaps = [BitMap64(each) for each in vectors]
    data, descriptors = stored(*bitmaps)
    assert data[:1] == b"\x01"
    assert descriptors[0].offset == 1
    assert [read_from_file_bytes(cut(data, each), each) for each in descriptors] == bitmaps


def test_offset_defaults_to_the_first_vector() -> None:
    _, (descriptor,) = stored(BitMap64([7]))
    without = DeletionVectorDescriptor(
        storage_type="u",
        path_or_inline_dv=descriptor.path_or_inline_dv,
        size_in_bytes=descriptor.size_in_bytes,
        cardinality=1,
    )
    assert deletion_vector_range(without) == deletion_vector_range(descriptor)


@given(st.lists(st.sets(st.integers(0, 2**32 - 1)), max_size=3))
def test_native_layout_is_read(vectors: list[set[int]]) -> None:
    expected = {key << 32 | low for key, lows in enumerate(vectors) for low in lows}
    decoded = decode_deletion_vector(native(*(BitMap(each) for each in vectors)))
    assert set(decoded) == expected
    assert len(decoded) == len(expected)


@pytest.mark.parametrize("length", range(20))
def test_truncated_native_vector_is_refused(length: int) -> None:
    with pytest.raises(CorruptDeletionVector):
        decode_deletion_vector(native(BitMap([1, 2, 3]))[:length])


def test_unknown_magic_is_refused() -> None:
    with pytest.raises(CorruptDeletionVector, match="magic"):
        decode_deletion_vector(struct.pack("<I", 1681511378) + BitMap64([1]).serialize())


def test_row_index_with_its_highest_bit_set_is_refused() -> None:
    with pytest.raises(CorruptDeletionVector):
        decode_deletion_vector(struct.pack("<I", 1681511377) + BitMap64([2**63]).serialize())
    with pytest.raises(InvalidArgument):
        encode_deletion_vector(BitMap64([2**63]))


@given(st.data())
def test_one_flipped_bit_in_a_file_is_noticed(data: st.DataObject) -> None:
    contents, (descriptor,) = stored(BitMap64([1, 5, 70_000]))
    damaged = bytearray(cut(contents, descriptor))
    position = data.draw(st.integers(0, len(damaged) * 8 - 1))
    damaged[position // 8] ^= 1 << position % 8
    with pytest.raises(CorruptDeletionVector) as caught:
        read_from_file_bytes(bytes(damaged), descriptor)
    assert caught.value.file == f"deletion_vector_{FILE_ID}.bin"


def test_truncated_file_is_noticed() -> None:
    contents, (descriptor,) = stored(BitMap64([1, 5, 70_000]))
    with pytest.raises(CorruptDeletionVector, match="deletion vector"):
        read_from_file_bytes(cut(contents, descriptor)[:-1], descriptor)


def test_other_cardinality_than_the_log_says_is_noticed() -> None:
    inline = encode_inline(BitMap64([1, 2]))
    wrong = DeletionVectorDescriptor(
        storage_type="i",
        path_or_inline_dv=inline.path_or_inline_dv,
        size_in_bytes=inline.size_in_bytes,
        cardinality=3,
    )
    with pytest.raises(CorruptDeletionVector, match="removes 2 rows, and the log says 3"):
        parse_inline(wrong)


@given(rows, st.integers(0, 250_000), st.integers(0, 5_000))
def test_mask_marks_exactly_the_deleted_rows(indexes: set[int], start: int, length: int) -> None:
    mask = deleted_row_mask(BitMap64(indexes), start, length)
    assert mask.type == pa.bool_()
    assert mask.null_count == 0
    assert mask.to_pylist() == [row in indexes for row in range(start, start + length)]


@pytest.mark.parametrize("deleted", [range(131_072), range(0, 131_072, 2), range(1, 131_072, 2)])
def test_mask_of_a_whole_row_group(deleted: range) -> None:
    start = 3 * 131_072
    bitmap = BitMap64([start + row for row in deleted])
    mask = deleted_row_mask(bitmap, start, 131_072)
    assert mask.to_pylist() == [row in deleted for row in range(131_072)]


@pytest.mark.parametrize(
    ("table", "vectors"),
    [
        ("spark__table-with-dv-small", 1),
        ("spark__table-with-dv-large", 14),
        ("krs__with-short-dv", 1),
        ("golden__dv-partitioned-with-checkpoint", 18),
        ("golden__dv-with-columnmapping", 18),
        ("golden__log-replay-dv-key-cases", 5),
    ],
)
def test_vectors_written_by_others_are_read_and_written_alike(
    golden_tables: Path, table: str, vectors: int
) -> None:
    root = golden_tables / table / "table"
    descriptors = _descriptors(root)
    assert len(descriptors) == vectors
    for descriptor in descriptors:
        contents = cut((root / deletion_vector_path(descriptor)).read_bytes(), descriptor)
        bitmap = read_from_file_bytes(contents, descriptor)
        assert len(bitmap) == descriptor.cardinality
        assert encode_deletion_vector(bitmap) == contents[4:-4]


def test_absolute_vector_below_a_directory_with_special_characters(golden_tables: Path) -> None:
    root = golden_tables / "spark__table-with-dv-special-char" / "table"
    (path,) = root.glob("folder*/*.bin")
    (descriptor,) = _descriptors(root)
    assert descriptor.storage_type == "p"
    contents = path.read_bytes()
    assert len(read_from_file_bytes(cut(contents, descriptor), descriptor)) == (
        descriptor.cardinality
    )


class _FileAction(msgspec.Struct, rename="camel"):
    deletion_vector: DeletionVectorDescriptor | None = None


class _Line(msgspec.Struct):
    add: _FileAction | None = None
    remove: _FileAction | None = None


def _descriptors(root: Path) -> list[DeletionVectorDescriptor]:
    logs = sorted((root / "_delta_log").glob("*.json"))
    lines = [line for log in logs for line in log.read_bytes().splitlines()]
    actions = (msgspec.json.decode(line, type=_Line) for line in lines)
    found = (action.add or action.remove for action in actions)
    return [each.deletion_vector for each in found if each and each.deletion_vector]
