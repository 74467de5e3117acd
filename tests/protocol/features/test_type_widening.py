from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dagster_delta.errors import InvalidTable, UnsupportedFeature
from dagster_delta.protocol.features.type_widening import (
    TYPE_CHANGES_KEY,
    TypeChange,
    check_type_changes,
    is_widening,
    type_changes,
)
from dagster_delta.protocol.schema import (
    DecimalType,
    PrimitiveType,
    StructField,
    StructType,
    data_type_from_json,
)
from tests.protocol.schema_strategies import PARTITIONABLE_NAMES, decimals

WIDENINGS = {
    ("byte", "short"),
    ("byte", "integer"),
    ("byte", "long"),
    ("byte", "double"),
    ("short", "integer"),
    ("short", "long"),
    ("short", "double"),
    ("integer", "long"),
    ("integer", "double"),
    ("float", "double"),
    ("date", "timestamp_ntz"),
}


@pytest.mark.parametrize("pair", [*itertools.product(PARTITIONABLE_NAMES, repeat=2)], ids="-".join)
def test_primitive_widens_exactly_as_the_protocol_lists(pair: tuple[str, str]) -> None:
    assert is_widening(*map(PrimitiveType, pair)) == (pair in WIDENINGS)


@pytest.mark.parametrize(
    ("source", "target", "widens"),
    [
        ("byte", "decimal(10,0)", True),
        ("integer", "decimal(12,2)", True),
        ("integer", "decimal(11,2)", False),
        ("byte", "decimal(9,0)", False),
        ("long", "decimal(20,0)", True),
        ("long", "decimal(19,0)", False),
        ("decimal(6,2)", "decimal(10,4)", True),
        ("decimal(6,2)", "decimal(7,4)", False),
        ("decimal(6,2)", "decimal(7,1)", False),
        ("decimal(6,2)", "decimal(6,2)", False),
        ("float", "decimal(38,0)", False),
        ("decimal(5,0)", "long", False),
        ("long", "double", False),
        ("date", "timestamp", False),
        ("variant", "variant", False),
    ],
)
def test_decimal_and_other_edges(source: str, target: str, widens: bool) -> None:
    assert is_widening(data_type_from_json(source), data_type_from_json(target)) == widens


@given(decimals, decimals)
def test_widened_decimal_holds_every_value_of_the_narrow_one(
    narrow: DecimalType, wide: DecimalType
) -> None:
    holds = (
        wide.scale >= narrow.scale
        and wide.precision - wide.scale >= narrow.precision - narrow.scale
    )
    assert is_widening(narrow, wide) == (holds and narrow != wide)


@given(
    st.builds(
        TypeChange,
        decimals,
        decimals,
        st.one_of(st.none(), st.sampled_from(["element", "key.element", "value"])),
        st.one_of(st.none(), st.integers(0, 100)),
    )
)
def test_recorded_change_survives_its_json(change: TypeChange) -> None:
    field = StructField("c", change.to_type, metadata={TYPE_CHANGES_KEY: [change.to_json()]})
    assert type_changes(field) == (change,)


def schema_with(*changes: object) -> StructType:
    inner = StructField("inner", PrimitiveType("long"), metadata={TYPE_CHANGES_KEY: list(changes)})
    return StructType((StructField("outer", StructType((inner,))),))


def test_spaced_decimals_of_the_specification_are_read() -> None:
    check_type_changes(
        schema_with({"fromType": "decimal(6, 2)", "toType": "decimal(10, 4)", "fieldPath": "value"})
    )


def test_narrow_integer_to_narrow_decimal_of_preview_tables_is_read() -> None:
    check_type_changes(schema_with({"fromType": "byte", "toType": "decimal(4,1)"}))


def test_change_outside_the_list_is_refused_by_its_path() -> None:
    change = {"fromType": "string", "toType": "long", "fieldPath": "element.key"}
    with pytest.raises(
        UnsupportedFeature, match=r"outer\.inner\.element\.key .* string to long"
    ) as it:
        check_type_changes(schema_with({"fromType": "integer", "toType": "long"}, change))
    assert it.value.column == "outer.inner"


@pytest.mark.parametrize("changes", ["text", {"fromType": "byte"}, [1], [{"fromType": "byte"}]])
def test_damaged_record_is_refused(changes: object) -> None:
    field = StructField("c", PrimitiveType("long"), metadata={TYPE_CHANGES_KEY: changes})
    with pytest.raises(InvalidTable):
        type_changes(field)
