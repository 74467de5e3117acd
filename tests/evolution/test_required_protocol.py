"""The least protocol, and how a protocol grows."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dagster_delta.errors import InvalidArgument
from dagster_delta.evolution.required_protocol import (
    minimal_protocol,
    required_features,
    upgrade_protocol,
)
from dagster_delta.protocol.actions import Protocol
from dagster_delta.protocol.features.registry import TABLE_FEATURES, effective_features
from dagster_delta.protocol.schema import (
    ArrayType,
    MapType,
    PrimitiveType,
    StructField,
    StructType,
)

NAMES = st.sets(st.sampled_from([each.name for each in TABLE_FEATURES]))
PLAIN = StructType((StructField("id", PrimitiveType("long")),))


@given(NAMES)
def test_the_minimal_protocol_supports_what_it_was_made_for(names: set[str]) -> None:
    assert names <= effective_features(minimal_protocol(names))


@given(NAMES, NAMES)
def test_an_upgrade_adds_features_and_loses_none(old: set[str], new: set[str]) -> None:
    before = minimal_protocol(old)
    after = upgrade_protocol(before, new)
    assert effective_features(before) | new <= effective_features(after)
    assert after.min_reader_version >= before.min_reader_version
    assert after.min_writer_version >= before.min_writer_version
    assert (after.reader_features is not None) == (after.min_reader_version == 3)
    assert (after.writer_features is not None) == (after.min_writer_version == 7)
    assert upgrade_protocol(after, new) == after


def test_a_legacy_protocol_lists_what_it_implied_once_it_has_lists() -> None:
    legacy = Protocol(min_reader_version=2, min_writer_version=5)
    upgraded = upgrade_protocol(legacy, {"deletionVectors"})
    assert upgraded.reader_features == ("columnMapping", "deletionVectors")
    assert set(upgraded.writer_features or ()) == {
        "appendOnly",
        "invariants",
        "checkConstraints",
        "changeDataFeed",
        "generatedColumns",
        "columnMapping",
        "deletionVectors",
    }


def test_the_tables_own_spelling_of_a_feature_stays() -> None:
    old = Protocol(
        min_reader_version=3,
        min_writer_version=7,
        reader_features=("typeWidening-preview",),
        writer_features=("typeWidening-preview", "unheardOf"),
    )
    upgraded = upgrade_protocol(old, {"typeWidening", "timestampNtz"})
    assert upgraded.reader_features == ("typeWidening-preview", "timestampNtz")
    assert upgraded.writer_features == ("typeWidening-preview", "unheardOf", "timestampNtz")


@pytest.mark.parametrize(
    ("column", "feature"),
    [
        (StructField("c", PrimitiveType("timestamp_ntz")), "timestampNtz"),
        (StructField("c", ArrayType(PrimitiveType("timestamp_ntz"))), "timestampNtz"),
        (
            StructField("c", MapType(PrimitiveType("string"), PrimitiveType("variant"))),
            "variantType",
        ),
        (
            StructField("c", PrimitiveType("long"), metadata={"delta.invariants": "{}"}),
            "invariants",
        ),
        (
            StructField("c", PrimitiveType("long"), metadata={"delta.identity.start": 1}),
            "identityColumns",
        ),
    ],
)
def test_columns_bring_their_feature(column: StructField, feature: str) -> None:
    assert required_features(StructType((column,)), {}) == {feature}


def test_features_bring_those_they_need() -> None:
    assert required_features(PLAIN, {"delta.enableRowTracking": "true"}) == {
        "rowTracking",
        "domainMetadata",
    }


def test_features_can_be_asked_for_by_name() -> None:
    assert required_features(PLAIN, {"delta.feature.vacuumProtocolCheck": "supported"}) == {
        "vacuumProtocolCheck"
    }
    with pytest.raises(InvalidArgument, match="unheardOf"):
        required_features(PLAIN, {"delta.feature.unheardOf": "supported"})
    with pytest.raises(InvalidArgument, match="supported"):
        required_features(PLAIN, {"delta.feature.vacuumProtocolCheck": "maybe"})


def test_a_property_that_is_off_needs_nothing() -> None:
    properties = {"delta.appendOnly": "false", "delta.columnMapping.mode": "none"}
    assert required_features(PLAIN, properties) == frozenset()
