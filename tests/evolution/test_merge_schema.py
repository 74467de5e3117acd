"""What a write may do to a schema."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dagster_delta.errors import InvalidArgument, SchemaMismatch
from dagster_delta.evolution.column_rules import check_column_types
from dagster_delta.evolution.merge_schema import check_strict, diff_schemas, merge_schemas
from dagster_delta.protocol.features.type_widening import TypeChange, type_changes
from dagster_delta.protocol.schema import (
    ArrayType,
    DataType,
    DecimalType,
    MapType,
    PrimitiveType,
    StructField,
    StructType,
    as_nullable,
)


def named(**types: str | DataType) -> StructType:
    return StructType(
        tuple(
            StructField(name, PrimitiveType(kind) if isinstance(kind, str) else kind)
            for name, kind in types.items()
        )
    )


TABLE = named(id="long", s=named(x="integer"), tags=ArrayType(named(k="string")))


def test_equal_schemas_have_no_differences() -> None:
    assert not diff_schemas(TABLE, TABLE)


def test_the_diff_names_added_missing_and_retyped_columns_at_every_depth() -> None:
    data = named(ID="string", s=named(x="integer", y="date"), tags=ArrayType(named()), new="double")
    assert str(diff_schemas(TABLE, data)).splitlines() == [
        "~ id: long in the table, string in the data",
        "+ s.y: date",
        "- tags.element.k: string",
        "+ new: double",
    ]


def test_strict_names_the_new_columns_and_the_option_that_allows_them() -> None:
    with pytest.raises(SchemaMismatch) as caught:
        check_strict(TABLE, named(id="long", s=named(x="integer", y="date")), option="OPTION")
    assert "s.y" in str(caught.value)
    assert "OPTION" in str(caught.value)
    assert caught.value.column == "s.y"


def test_strict_lets_nullable_columns_be_absent() -> None:
    check_strict(TABLE, named(id="long"), option="OPTION")


def test_strict_asks_for_columns_that_may_not_be_null() -> None:
    table = StructType((StructField("id", PrimitiveType("long"), nullable=False),))
    with pytest.raises(SchemaMismatch, match="lacks NOT NULL columns"):
        check_strict(table, named(), option="OPTION")


def test_new_columns_come_last_and_nullable_at_every_depth() -> None:
    data = StructType(
        (
            StructField("new", PrimitiveType("date"), nullable=False, metadata={"comment": "c"}),
            StructField("s", named(y="string")),
            StructField("tags", ArrayType(named(v="double"))),
        )
    )
    merged = merge_schemas(TABLE, data)
    assert str(merged) == (
        "struct<id:long,s:struct<x:integer,y:string>,tags:array<struct<k:string,v:double>>,"
        "new:date>"
    )
    assert merged.field("new").nullable
    assert merged.field("new").comment == "c"


def test_new_columns_carry_no_metadata_of_the_table_they_come_from() -> None:
    foreign = {"delta.columnMapping.id": 7, "delta.invariants": "{}", "comment": "c"}
    data = StructType((StructField("new", PrimitiveType("date"), metadata=foreign),))
    assert merge_schemas(TABLE, data).field("new").metadata == {"comment": "c"}


def test_merging_never_changes_a_type_by_itself() -> None:
    table, data = named(a="integer", b="float"), named(a="long", b="double")
    assert merge_schemas(table, data) == table


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("byte", "long"),
        ("integer", "long"),
        ("float", "double"),
        (DecimalType(10, 2), DecimalType(12, 4)),
    ],
)
def test_widening_on_write_records_the_change(before: Any, after: Any) -> None:
    merged = merge_schemas(named(c=before), named(c=after), widen_types=True)
    field = merged.field("c")
    assert field.data_type == named(c=after).field("c").data_type
    assert type_changes(field) == (
        TypeChange(named(c=before).field("c").data_type, field.data_type),
    )


@pytest.mark.parametrize(
    ("table", "data"),
    [
        ("integer", "double"),
        ("long", DecimalType(20, 0)),
        ("integer", DecimalType(12, 2)),
        ("long", "integer"),
        ("date", "timestamp_ntz"),
        (DecimalType(12, 4), DecimalType(12, 5)),
    ],
)
def test_other_type_changes_are_left_to_store_assignment(table: Any, data: Any) -> None:
    assert merge_schemas(named(c=table), named(c=data), widen_types=True) == named(c=table)


def test_dates_widen_where_the_table_knows_timestamps_without_zone() -> None:
    merged = merge_schemas(
        named(c="date"), named(c="timestamp_ntz"), widen_types=True, widen_dates=True
    )
    assert merged.field("c").data_type == PrimitiveType("timestamp_ntz")


def test_partition_columns_keep_their_type() -> None:
    table = named(p="integer", v="integer")
    merged = merge_schemas(table, named(p="long", v="long"), fixed_columns=("p",), widen_types=True)
    assert str(merged) == "struct<p:integer,v:long>"


def test_a_change_inside_arrays_and_maps_is_recorded_on_the_nearest_field() -> None:
    table = named(c=ArrayType(MapType(PrimitiveType("string"), PrimitiveType("integer"))))
    data = named(c=ArrayType(MapType(PrimitiveType("string"), PrimitiveType("long"))))
    merged = merge_schemas(table, data, widen_types=True)
    (change,) = type_changes(merged.field("c"))
    assert change.field_path == "element.value"


def test_a_second_change_is_added_to_the_record() -> None:
    once = merge_schemas(named(c="byte"), named(c="integer"), widen_types=True)
    twice = merge_schemas(once, named(c="long"), widen_types=True)
    assert [str(change.to_type) for change in type_changes(twice.field("c"))] == ["integer", "long"]


def test_a_new_column_of_nothing_but_nulls_is_refused() -> None:
    merged = merge_schemas(TABLE, named(s=named(x="integer", z="void")))
    with pytest.raises(InvalidArgument, match=r"column s\.z .*only nulls"):
        check_column_types(merged, TABLE)


PRIMITIVES = st.sampled_from(["string", "long", "double", "date"]).map(PrimitiveType)


def structs(children: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    names = st.sampled_from(["a", "b", "c", "D"])
    return st.dictionaries(names, children, max_size=4).map(
        lambda fields: StructType(tuple(StructField(n, t) for n, t in fields.items()))
    )


TYPES = st.recursive(PRIMITIVES, lambda c: structs(c) | c.map(ArrayType), max_leaves=6)
SCHEMAS = structs(TYPES)


@given(SCHEMAS, SCHEMAS)
def test_merging_is_idempotent_and_leaves_nothing_to_add(
    table: StructType, data: StructType
) -> None:
    merged = merge_schemas(table, data)
    assert merge_schemas(merged, data) == merged
    assert not diff_schemas(merged, data).added
    assert not diff_schemas(merged, table).added
    assert merged.fields[: len(table)] == table.fields or len(merged) >= len(table)


@given(TYPES)
def test_as_nullable_changes_no_type_name(data_type: DataType) -> None:
    assert str(as_nullable(data_type)) == str(data_type)
