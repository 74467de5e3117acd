"""A variant that a reader would stumble over is found before it is written, and no other is."""

from __future__ import annotations

import re
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dagster_delta.errors import DeltaError
from dagster_delta.protocol.variant.binary import (
    check_variant,
    decode_variant,
    encode_names,
    encode_object,
    encode_variant,
)
from tests.protocol.variant.variant_strategies import VARIANTS

GOOD = encode_variant({"a": [1, None, "é"], "b": {"c": 2.5}})


def first_of(*variants: tuple[bytes, bytes]) -> int | None:
    return next((row for row, given in enumerate(variants) if flaw_of(*given)), None)


def flaw_of(metadata: bytes, value: bytes) -> str | None:
    try:
        check_variant(metadata, value)
    except DeltaError as error:
        return str(error)
    return None


@given(st.lists(VARIANTS, max_size=8))
def test_no_whole_variant_is_refused(values: list[object]) -> None:
    assert first_of(*map(encode_variant, values)) is None


def test_large_objects_and_arrays_are_whole() -> None:
    wide = {f"name {index:04}": index for index in range(300)}
    assert first_of(*map(encode_variant, (wide, list(range(70_000)), "x" * 70_000, [[[]]]))) is None


@given(VARIANTS, st.data())
def test_what_python_cannot_decode_is_found(value: object, data: st.DataObject) -> None:
    metadata, encoded = encode_variant(value)
    parts = [bytearray(metadata), bytearray(encoded)]
    for _ in range(data.draw(st.integers(1, 3))):
        part = data.draw(st.sampled_from(parts))
        if part and data.draw(st.booleans()):
            part[data.draw(st.integers(0, len(part) - 1))] = data.draw(st.integers(0, 255))
        else:
            del part[data.draw(st.integers(0, len(part))) :]
    broken = (bytes(parts[0]), bytes(parts[1]))
    found = first_of(GOOD, broken, GOOD)
    flaw = flaw_in_python(*broken)
    if flaw is None:
        assert found in (None, 1)
    else:
        # What Python alone has no room for, or tells by a value, is whole.
        beyond_python = "the years 1 to 9999" in flaw or "a time of day" in flaw
        assert found == 1 or (beyond_python and found is None)


def flaw_in_python(metadata: bytes, value: bytes) -> str | None:
    try:
        decode_variant(metadata, value)
    except DeltaError as error:
        return str(error)
    return None


NAMES_AB = encode_names(["a", "b"])
ONE = b"\x0c\x01"
AB = encode_object([0, 1], [ONE, ONE])


@pytest.mark.parametrize(
    ("metadata", "value", "said"),
    [
        (NAMES_AB, b"", "bytes are needed"),
        (NAMES_AB, b"\x0c", "bytes are needed"),
        (NAMES_AB, ONE + b"\x00", "bytes are left over"),
        (NAMES_AB, encode_object([1, 0], [ONE, ONE]), "out of order"),
        (NAMES_AB, encode_object([0, 0], [ONE, ONE]), "out of order, or twice"),
        (NAMES_AB, encode_object([0, 2], [ONE, ONE]), "field id 2"),
        (NAMES_AB, b"\xfc", "primitive type 63"),
        (NAMES_AB, b"\x05\xff", "UTF-8"),
        (NAMES_AB, b"\x20\x27" + struct.pack("<i", 1), "scale 39"),
        (b"\x02\x00\x00", ONE, "version 2"),
        (b"\x11\x02\x00\x01\x02ba", AB, "out of order"),
        (b"\x01\x01\x00\x09a", ONE, "bytes are needed"),
    ],
)
def test_a_malformed_variant_is_found_and_described(
    metadata: bytes, value: bytes, said: str
) -> None:
    assert first_of(GOOD, (NAMES_AB, AB), (metadata, value)) == 2
    assert re.search(said, flaw_of(metadata, value) or "")


def test_values_that_overlap_do_not_take_forever() -> None:
    # Each level holds the one below it twice, in the same bytes.
    value = ONE
    for _ in range(40):
        value = b"\x03\x02\x00\x00" + bytes([len(value)]) + value
    assert first_of((NAMES_AB, value)) == 0


def test_the_order_of_names_that_spark_writes_is_taken_too() -> None:
    # Java sorts what lies beyond 16 bits in front of U+FB00, and bytes sort it behind.
    names = encode_names(["\ufb00", "\U0001f600"])
    assert first_of((names, encode_object([0, 1], [ONE, ONE]))) is None
    assert first_of((names, encode_object([1, 0], [ONE, ONE]))) is None
