"""Bounds of the values in variants, as far as they are bounds after a cast."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dagster_delta.protocol.features.deletion_vectors import decode_z85, encode_z85
from dagster_delta.protocol.schema import data_type_from_json
from dagster_delta.protocol.statistics.variant_bounds import bound_at, normalize_path
from dagster_delta.protocol.variant.binary import encode_variant

BY_DATABRICKS = "0rJlc5f$EczEEx[cTw04cUW9st(>6d00icd1U*?]0000000000"
"""Of `spark__variant-stats-no-checkpoint`: names that end one after the other, and padding."""
NOON = dt.datetime(2024, 5, 6, 12)


@pytest.mark.parametrize(
    ("path", "normalized"),
    [
        ("$", "$"),
        ("$.a", "$['a']"),
        ("$.a.b['c d'].e", None),
        ("$.a['b.c'][\"d\"]", "$['a']['b.c']['d']"),
        ("$.é", "$['é']"),
        ("$.a[0]", None),
        ("$.a-b", "$['a-b']"),
        ("$['it\\'s']", None),
        ('$["it\'s"]', None),
        ("$.a\\b", None),
        ("$. a", None),
        ("$..a", None),
        ("a", None),
    ],
)
def test_path_is_normalized_if_it_has_one_spelling(path: str, normalized: str | None) -> None:
    assert normalize_path(path) == normalized


def test_text_of_another_writer_is_decoded() -> None:
    long, string = map(data_type_from_json, ("long", "string"))
    assert bound_at(BY_DATABRICKS, "$['id']", long) == 0
    assert bound_at(BY_DATABRICKS, "$['name']", string) == "1"
    assert bound_at(BY_DATABRICKS, "$['name']", long) is None
    assert bound_at(BY_DATABRICKS, "$['absent']", long) is None


@pytest.mark.parametrize("stored", ["", "damaged", "00000", BY_DATABRICKS[:10], None, 7, {}, {"metadata": None, "value": b""}])  # fmt: skip
def test_damaged_bounds_are_unknown(stored: object) -> None:
    assert bound_at(stored, "$", data_type_from_json("long")) is None


@pytest.mark.parametrize(
    ("bound", "types"),
    [
        (7, "byte short integer long float double decimal(3,1)"),
        (2**53 + 1, "byte short integer long decimal(3,1)"),
        (2**24 + 1, "byte short integer long double decimal(3,1)"),
        (Decimal("7.00"), "byte short integer long float double decimal(3,1)"),
        (Decimal("7.5"), "float double decimal(3,1)"),
        (Decimal("7.1"), "decimal(3,1)"),
        (0.1, "double"),
        (0.5, "float double"),
        (float("nan"), ""),
        (True, ""),
        ("7", "string"),
        (b"7", ""),
        (dt.date(2024, 5, 6), "date"),
        (NOON, "timestamp_ntz"),
        (NOON.replace(tzinfo=dt.UTC), "timestamp"),
        ([7], ""),
    ],
)
def test_bound_is_one_of_the_types_whose_casts_keep_it(bound: object, types: str) -> None:
    # Values beyond the type are left out when they become Arrow values of it.
    metadata, value = encode_variant({"$['a']": bound})
    names = (
        "byte short integer long float double decimal(3,1) string binary boolean date timestamp "
        "timestamp_ntz"
    )
    stored = bound.isoformat() if isinstance(bound, dt.date) else bound
    kept = [
        name
        for name in names.split()
        if bound_at({"metadata": metadata, "value": value}, "$['a']", data_type_from_json(name))
        == stored
    ]
    assert kept == types.split()


@given(st.binary(max_size=40), st.integers(0, 39), st.sampled_from(["long", "double", "string"]))
def test_any_bytes_are_a_bound_or_unknown(noise: bytes, position: int, name: str) -> None:
    honest = decode_z85(BY_DATABRICKS)
    data = honest[:position] + noise + honest[position + len(noise) :]
    text = encode_z85(data + bytes(-len(data) % 4))
    found = bound_at(text, "$['id']", data_type_from_json(name))
    assert found is None or isinstance(found, (int, float, str, Decimal))
