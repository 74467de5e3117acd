"""Variants are decoded as the specification says, and as Spark decodes them."""

from __future__ import annotations

import datetime as dt
import decimal
import json
import math
import struct
import sys
import uuid
from contextlib import suppress
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import VariantVal

from dagster_delta.errors import DeltaError, InvalidArgument, InvalidTable, UnsupportedFeature
from dagster_delta.protocol.variant.binary import (
    NanosecondTimestamp,
    decode_names,
    decode_variant,
    encode_array,
    encode_names,
    encode_object,
    encode_variant,
    object_fields,
)
from tests.protocol.variant.variant_strategies import LONGS, SPARK_VARIANTS, VARIANTS, canonical

NO_NAMES = bytes.fromhex("110000")


def primitive(type_id: int, content: str = "") -> bytes:
    return bytes([type_id << 2]) + bytes.fromhex(content)


@pytest.mark.parametrize(
    ("encoded", "value"),
    [
        (primitive(0), None),
        (primitive(1), True),
        (primitive(2), False),
        (primitive(3, "80"), -128),
        (primitive(4, "ff7f"), 32767),
        (primitive(5, "00000080"), -(2**31)),
        (primitive(6, "ffffffffffffff7f"), 2**63 - 1),
        (primitive(7, "000000000000f83f"), 1.5),
        (primitive(8, "02 85ffffff"), Decimal("-1.23")),
        (primitive(9, "00 00e40b5402000000"), Decimal(10_000_000_000)),
        (primitive(10, "26 01000000000000000000000000000000"), Decimal("1e-38")),
        (primitive(11, "ffffffff"), dt.date(1969, 12, 31)),
        (primitive(12, "40420f0000000000"), dt.datetime(1970, 1, 1, 0, 0, 1, tzinfo=dt.UTC)),
        (primitive(13, "ffffffffffffffff"), dt.datetime(1969, 12, 31, 23, 59, 59, 999999)),
        (primitive(14, "0000c03f"), 1.5),
        (primitive(15, "02000000 00ff"), b"\x00\xff"),
        (primitive(16, "02000000 c3a9"), "é"),
        (primitive(17, "01 00000000000000"), dt.time(microsecond=1)),
        (primitive(18, "01 00000000000000"), NanosecondTimestamp(1, is_utc=True)),
        (primitive(19, "ffffffffffffffff"), NanosecondTimestamp(-1, is_utc=False)),
        (
            primitive(20, "f24f9b64 81fa 49d1 b74e 8c09a6e31c56"),
            uuid.UUID("f24f9b64-81fa-49d1-b74e-8c09a6e31c56"),
        ),
        (bytes.fromhex("01"), ""),
        (bytes.fromhex("09 c3a9"), "é"),
        (bytes.fromhex("03 00 00"), []),
        # Wider numbers than needed are valid: is_large, and offsets of three bytes.
        (bytes.fromhex("1b 01000000 000000 010000 00"), [None]),
        (bytes.fromhex("03 02 00 01 03 04 0c05"), [True, 5]),
    ],
)
def test_values_are_what_the_encoding_says(encoded: bytes, value: object) -> None:
    assert canonical(decode_variant(NO_NAMES, encoded)) == canonical(value)


def test_fields_may_stand_in_another_order_than_their_values() -> None:
    # An unsorted dictionary: c, a, b.
    metadata = bytes.fromhex("01 03 00 01 02 03") + b"cab"
    encoded = bytes.fromhex("02 03 010200 04020006 0c03 0c02 0c01")
    decoded = decode_variant(metadata, encoded)
    assert decoded == {"a": 1, "b": 2, "c": 3}
    assert list(decoded) == ["a", "b", "c"]
    assert object_fields(encoded) == [(1, b"\x0c\x01"), (2, b"\x0c\x02"), (0, b"\x0c\x03")]


@given(VARIANTS)
def test_encoding_and_decoding_gives_the_value_back(value: object) -> None:
    metadata, encoded = encode_variant(value)
    assert canonical(decode_variant(metadata, encoded)) == canonical(value)


@given(SPARK_VARIANTS)
def test_spark_decodes_what_is_encoded(value: object) -> None:
    metadata, encoded = encode_variant(value)
    with decimal.localcontext(prec=80):
        by_spark = VariantVal(encoded, metadata).toPython()
    assert canonical(by_spark) == canonical(value)


@given(
    st.recursive(
        st.none() | st.booleans() | LONGS | st.text("aé\U0001f600", max_size=70),
        lambda inner: st.lists(inner, max_size=5) | st.dictionaries(st.text("abé"), inner),
        max_leaves=20,
    )
)
def test_what_spark_encodes_is_decoded(value: object) -> None:
    by_spark = VariantVal.parseJson(json.dumps(value))
    assert decode_variant(by_spark.metadata, by_spark.value) == value


@pytest.mark.parametrize("count", [255, 256, 300, 70_000])
def test_containers_of_any_size_come_back(count: int) -> None:
    numbers = list(range(count))
    assert decode_variant(*encode_variant(numbers)) == numbers
    fields = {f"field {number:05}": number for number in numbers}
    metadata, encoded = encode_variant(fields)
    assert decode_variant(metadata, encoded) == fields
    assert len(object_fields(encoded) or ()) == count
    if count < 1000:
        assert VariantVal(encoded, metadata).toPython() == fields


def test_nan_and_infinities_come_back() -> None:
    decoded = decode_variant(*encode_variant([math.nan, math.inf, -math.inf]))
    assert isinstance(decoded, list)
    assert math.isnan(decoded[0])
    assert decoded[1:] == [math.inf, -math.inf]


def test_an_integer_beyond_64_bits_becomes_a_decimal() -> None:
    decoded = decode_variant(*encode_variant(2**63))
    assert canonical(decoded) == canonical(Decimal(2**63))


def test_trailing_zeros_before_the_point_are_written_out() -> None:
    assert decode_variant(*encode_variant(Decimal("12E+3"))) == Decimal(12000)
    assert decode_variant(*encode_variant(Decimal("0E+99"))) == 0


def test_names_are_sorted_as_utf8() -> None:
    metadata, _ = encode_variant({"\U0001f600": 1, "\uffff": 2, "a": [{"B": 3}]})
    names = decode_names(metadata).names
    assert names == ("B", "a", "\uffff", "\U0001f600")
    assert metadata[0] == 0b0001_0001


def test_an_unsorted_dictionary_does_not_say_that_it_is_sorted() -> None:
    assert encode_names(["b", "a"])[0] == 0b0000_0001
    assert encode_names(["a", "a"])[0] == 0b0000_0001


@pytest.mark.parametrize(
    "value",
    [
        10**38,
        Decimal("1E-39"),
        Decimal("1E+38"),
        Decimal(10) ** 9000,
        Decimal("NaN"),
        Decimal("-Infinity"),
        {1: 2},
        "\ud800",
        {"\ud800": 1},
        dt.time(1, tzinfo=dt.UTC),
        NanosecondTimestamp(2**63, is_utc=True),
        {1, 2},
        object(),
    ],
)
def test_what_a_variant_cannot_hold_is_refused(value: object) -> None:
    with pytest.raises(InvalidArgument):
        encode_variant([value])


def test_deep_nesting_is_refused_by_name() -> None:
    encoded = b"\x00"
    value: object = None
    for _ in range(sys.getrecursionlimit() + 10):
        encoded = encode_array([encoded])
        value = [value]
    with pytest.raises(UnsupportedFeature, match="nested"):
        decode_variant(NO_NAMES, encoded)
    with pytest.raises(InvalidArgument, match="nested"):
        encode_variant(value)


@given(VARIANTS, st.data())
def test_a_variant_that_was_cut_short_is_damaged(value: object, data: st.DataObject) -> None:
    metadata, encoded = encode_variant(value)
    with pytest.raises(InvalidTable, match="damaged"):
        decode_variant(metadata, encoded[: data.draw(st.integers(0, len(encoded) - 1))])
    with pytest.raises(InvalidTable, match="damaged"):
        decode_variant(metadata[: data.draw(st.integers(0, len(metadata) - 1))], encoded)


@given(st.binary(max_size=60), st.binary(max_size=60), VARIANTS)
def test_any_bytes_decode_or_fail_by_name(metadata: bytes, value: bytes, other: object) -> None:
    good_metadata, good_value = encode_variant(other)
    for names, encoded in ((good_metadata, value), (metadata, good_value), (metadata, value)):
        with suppress(InvalidTable, UnsupportedFeature):
            decode_variant(names, encoded)


@pytest.mark.parametrize(
    ("metadata", "value", "error", "what"),
    [
        ("12 00 00", "00", UnsupportedFeature, "version 2"),
        ("11 00 00", "54", UnsupportedFeature, "primitive type 21"),
        ("11 00 00", "02 01 00 00 01 00", InvalidTable, "field id 0"),
        ("11 02 00 01 02 61 61", "02 02 0001 000102 0000", InvalidTable, "two fields of one name"),
        ("11 01 00 01 ff", "00", InvalidTable, "UTF-8"),
        ("11 02 00 02 01 61 61", "00", InvalidTable, "out of order"),
        ("11 00 00", "05 ff", InvalidTable, "UTF-8"),
        ("11 00 00", "20 27 01000000", InvalidTable, "scale 39"),
        ("11 00 00", "44 ffffffffffffffff", InvalidTable, "time of day"),
        ("11 00 00", "2c ffffff7f", UnsupportedFeature, "years 1 to 9999"),
        ("11 00 00", "30 ffffffffffffff7f", UnsupportedFeature, "years 1 to 9999"),
        ("11 00 00", "34 0000000000000080", UnsupportedFeature, "years 1 to 9999"),
    ],
)
def test_what_cannot_be_decoded_is_named(
    metadata: str, value: str, error: type[DeltaError], what: str
) -> None:
    with pytest.raises(error, match=what):
        decode_variant(bytes.fromhex(metadata), bytes.fromhex(value))


def test_a_field_of_an_unknown_type_cannot_be_moved() -> None:
    with pytest.raises(UnsupportedFeature, match="primitive type 21"):
        object_fields(encode_object([0], [b"\x54"]))


@given(VARIANTS)
def test_the_fields_of_an_object_are_whole_values(value: object) -> None:
    metadata, encoded = encode_variant({"x": value, "y": None})
    names = decode_names(metadata)
    fields = {names.name(field_id): each for field_id, each in object_fields(encoded) or ()}
    assert canonical(decode_variant(metadata, fields["x"])) == canonical(value)
    assert fields["y"] == b"\x00"


def test_only_objects_have_fields() -> None:
    for value in (None, 1, "x", [1]):
        assert object_fields(encode_variant(value)[1]) is None


def test_single_precision_is_decoded_as_it_stands() -> None:
    encoded = b"\x38" + struct.pack("<f", 0.1)
    assert decode_variant(NO_NAMES, encoded) == struct.unpack("<f", struct.pack("<f", 0.1))[0]
