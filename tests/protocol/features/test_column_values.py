"""Where values come from that data lack: what a schema says, and what a plan makes of it."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dagster_delta.errors import (
    InvalidArgument,
    InvalidTable,
    SchemaMismatch,
    UnsupportedFeature,
)
from dagster_delta.protocol.actions import Format, Metadata, Protocol
from dagster_delta.protocol.features.column_values import (
    LONG_MAX,
    LONG_MIN,
    ColumnExpression,
    IdentityColumn,
    advance_high_water_marks,
    differ_in_marks_only,
    filled_columns,
    generated_columns,
    identity_columns,
    inserted_values,
    updated_values,
)
from dagster_delta.protocol.features.table_configuration import TableConfiguration
from dagster_delta.protocol.schema import PrimitiveType, StructField, StructType

LONG = PrimitiveType("long")
LISTED = Protocol(
    min_reader_version=1,
    min_writer_version=7,
    writer_features=("generatedColumns", "identityColumns", "allowColumnDefaults"),
)
NUMBERED = {
    "delta.identity.start": 1,
    "delta.identity.step": 1,
    "delta.identity.allowExplicitInsert": False,
}


def table(
    columns: Mapping[str, Mapping[str, object]], protocol: Protocol = LISTED
) -> TableConfiguration:
    schema = StructType(
        tuple(StructField(name, LONG, True, each) for name, each in columns.items())
    )
    return of_schema(schema, protocol)


def of_schema(schema: StructType, protocol: Protocol = LISTED) -> TableConfiguration:
    metadata = Metadata(
        id="t",
        format=Format(),
        schema_string=schema.to_json(),
        partition_columns=(),
        configuration={},
    )
    return TableConfiguration(protocol, metadata)


EVERY_KIND = table(
    {
        "id": NUMBERED,
        "a": {},
        "twice": {"delta.generationExpression": "a * 2"},
        "d": {"CURRENT_DEFAULT": "7"},
    }
)


def test_an_insert_fills_what_the_data_lack_and_verifies_what_they_bring() -> None:
    values = inserted_values(EVERY_KIND, {"a"})
    assert values.columns == ("d", "id", "twice")
    assert values.verified == ()
    values = inserted_values(EVERY_KIND, {"A", "TWICE", "D"})
    assert values.columns == ("id",)
    assert values.verified == (ColumnExpression("twice", "a * 2"),)


def test_an_update_computes_anew_what_it_does_not_assign() -> None:
    assert updated_values(EVERY_KIND, {"a"}).generated == (ColumnExpression("twice", "a * 2"),)
    assert updated_values(EVERY_KIND, {"a"}).defaults == ()
    assert updated_values(EVERY_KIND, {"a", "Twice"}).generated == ()
    assert updated_values(EVERY_KIND, {"a", "Twice"}).verified != ()


def test_values_of_an_always_generated_identity_are_refused() -> None:
    with pytest.raises(SchemaMismatch, match="GENERATED ALWAYS") as caught:
        inserted_values(EVERY_KIND, {"a", "ID"})
    assert caught.value.column == "id"
    by_default = table({"id": {**NUMBERED, "delta.identity.allowExplicitInsert": True}})
    assert inserted_values(by_default, {"id"}).identities == ()
    with pytest.raises(InvalidArgument, match="identity column"):
        updated_values(by_default, {"id"})


@pytest.mark.parametrize(
    "protocol",
    [
        Protocol(min_reader_version=1, min_writer_version=2),
        Protocol(min_reader_version=1, min_writer_version=7, writer_features=()),
    ],
)
def test_leftover_metadata_means_nothing_without_the_feature(protocol: Protocol) -> None:
    leftover = TableConfiguration(protocol, EVERY_KIND.metadata)
    assert filled_columns(leftover) == frozenset()
    assert inserted_values(leftover, {"a", "id"}).columns == ()


def test_legacy_versions_imply_the_features() -> None:
    fourth = TableConfiguration(
        Protocol(min_reader_version=1, min_writer_version=4), EVERY_KIND.metadata
    )
    assert generated_columns(fourth)
    assert not identity_columns(fourth)
    sixth = TableConfiguration(
        Protocol(min_reader_version=1, min_writer_version=6), EVERY_KIND.metadata
    )
    assert identity_columns(sixth)
    assert filled_columns(sixth) == {"id", "twice"}


@pytest.mark.parametrize(
    "metadata",
    [
        {"delta.identity.start": 1},
        {**NUMBERED, "delta.identity.step": 0},
        {**NUMBERED, "delta.identity.start": "1"},
        {**NUMBERED, "delta.identity.highWaterMark": 2**63},
        {**NUMBERED, "delta.identity.allowExplicitInsert": "no"},
        {"delta.generationExpression": 1},
        {"CURRENT_DEFAULT": None},
    ],
)
def test_damaged_metadata_is_refused_by_column(metadata: Mapping[str, object]) -> None:
    with pytest.raises(InvalidTable) as caught:
        filled_columns(table({"c": metadata}))
    assert caught.value.column == "c"


def test_a_computed_field_inside_a_column_is_refused() -> None:
    inner = StructType((StructField("x", LONG, True, {"delta.generationExpression": "1"}),))
    with pytest.raises(UnsupportedFeature) as caught:
        inserted_values(of_schema(StructType((StructField("s", inner),))), {"s"})
    assert caught.value.column == "s.x"


longs = st.integers(LONG_MIN, LONG_MAX)


@given(start=longs, step=longs.filter(bool), mark=st.none() | longs)
def test_the_next_value_is_of_the_sequence_and_beyond_the_mark(
    start: int, step: int, mark: int | None
) -> None:
    value = IdentityColumn("id", start, step, mark).next_value
    steps, rest = divmod(value - start, step)
    assert (rest, steps >= 0) == (0, True)
    if mark is not None:
        assert value > mark if step > 0 else value < mark
        if steps:
            # No earlier one would do.
            assert value - step <= mark if step > 0 else value - step >= mark


def test_a_sequence_ends_where_64_bits_do() -> None:
    rising = IdentityColumn("id", 1, 3, high_water_mark=LONG_MAX - 6)
    assert LONG_MAX - 6 < rising.value(0) <= LONG_MAX
    with pytest.raises(InvalidArgument, match="64-bit"):
        rising.value(2)
    with pytest.raises(InvalidArgument, match="64-bit"):
        IdentityColumn("id", 1, -1, high_water_mark=LONG_MIN).value(0)


def test_marks_move_in_the_direction_of_the_step_only() -> None:
    falling = {**NUMBERED, "delta.identity.step": -2, "delta.identity.highWaterMark": -9}
    before = table({"id": falling, "up": NUMBERED})
    after = advance_high_water_marks(before, {"id": -21, "up": 5})
    assert [each.high_water_mark for each in identity_columns(after)] == [-21, 5]
    assert advance_high_water_marks(after, {"id": -3, "up": 4}) is after
    assert advance_high_water_marks(before, {}) is before


def test_marks_are_told_from_every_other_change() -> None:
    after = advance_high_water_marks(EVERY_KIND, {"id": 5})
    assert after.metadata != EVERY_KIND.metadata
    assert differ_in_marks_only(EVERY_KIND.metadata, after.metadata)
    renamed = msgspec.structs.replace(after.metadata, name="other")
    assert not differ_in_marks_only(EVERY_KIND.metadata, renamed)
    other = table({"id": NUMBERED, "a": {}})
    assert not differ_in_marks_only(EVERY_KIND.metadata, other.metadata)
