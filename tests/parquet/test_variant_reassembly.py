"""Shredded variants are put together as they were, whatever the shredding."""

from __future__ import annotations

import struct
import uuid
from array import array as buffer_of
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from dagster_delta.errors import InvalidTable, UnsupportedFeature
from dagster_delta.parquet.variant_reassembly import reassemble as reassemble_of
from dagster_delta.protocol.features.column_mapping import physical_arrow_schema
from dagster_delta.protocol.schema import (
    ArrayType,
    DataType,
    MapType,
    PrimitiveType,
    StructField,
    StructType,
)
from dagster_delta.protocol.values.arrow_schema import VARIANT_STORAGE
from dagster_delta.protocol.variant import binary
from dagster_delta.protocol.variant.binary import (
    decode_names,
    decode_variant,
    encode_names,
    encode_variant,
)
from dagster_delta.storage.memory_store import MemoryStore
from tests.parquet.data_tables import configuration, mapped_configuration, read
from tests.parquet.shredding import Group, groups, shred
from tests.parquet.test_parquet_reader import add_file, read_as
from tests.protocol.variant.variant_strategies import NAMES, VARIANTS, canonical

VARIANT = PrimitiveType("variant")
NAMED = encode_names(["a", "b", "c"])


def reassemble(array: Any) -> Any:
    return reassemble_of(array, "v")


def decoded(array: Any) -> list[object]:
    """The variants of a storage array; `...` for a null of the column."""
    return [
        ... if each is None else decode_variant(each["metadata"], each["value"])
        for each in array.to_pylist()
    ]


def encoded(value: object, names: bytes = NAMED) -> bytes:
    return binary._encode_value(value, decode_names(names).ids)


def column(typed_value: Any, rows: list[dict[str, Any] | None]) -> Any:
    """A column with rows of `value` and `typed_value`, of a dictionary of a, b and c."""
    fields = [("metadata", pa.binary()), ("value", pa.binary()), ("typed_value", typed_value)]
    return pa.array(
        [None if row is None else {"metadata": NAMED} | row for row in rows], pa.struct(fields)
    )


def group(typed_value: Any) -> Any:
    return pa.struct([("value", pa.binary()), ("typed_value", typed_value)])


# -- what the specification shows ---------------------------------------------------------------


def test_scalars_stand_in_either_column() -> None:
    array = column(
        pa.int64(),
        [
            {"typed_value": 34},
            {"value": b"\x00"},
            {"value": encoded("n/a")},
            {"typed_value": 100},
            None,
            {},
        ],
    )
    assert decoded(reassemble(array)) == [34, None, "n/a", 100, ..., None]


def test_arrays_of_strings_hold_other_elements_too() -> None:
    array = column(
        pa.list_(group(pa.string())),
        [
            {"typed_value": [{"typed_value": "comedy"}, {"typed_value": "drama"}]},
            {"typed_value": [{"typed_value": "horror"}, {"value": b"\x00"}]},
            {"typed_value": []},
            {"value": b"\x00"},
            {"typed_value": [{}, {"value": encoded({"a": 1})}]},
            None,
        ],
    )
    assert decoded(reassemble(array)) == [
        ["comedy", "drama"],
        ["horror", None],
        [],
        None,
        [None, {"a": 1}],
        ...,
    ]


def test_objects_are_whole_partial_missing_null_or_no_object() -> None:
    fields = pa.struct([("b", group(pa.int64())), ("a", group(pa.string()))])
    array = column(
        fields,
        [
            {"typed_value": {"a": {"typed_value": "noop"}, "b": {"typed_value": 1}}},
            {"value": encoded({"c": "x"}), "typed_value": {"a": {"typed_value": "login"}, "b": {}}},
            {"value": encoded({"c": "x"}), "typed_value": {"a": {}, "b": {}}},
            {"value": encoded("malformed")},
            {"typed_value": {"a": {"value": b"\x00"}, "b": {"typed_value": 2}}},
            {"typed_value": {"a": {"typed_value": "noop"}, "b": {"value": encoded("2024")}}},
            {"typed_value": {"a": {}, "b": {}}},
            {"value": b"\x00"},
            {},
            None,
        ],
    )
    assert decoded(reassemble(array)) == [
        {"a": "noop", "b": 1},
        {"a": "login", "c": "x"},
        {"c": "x"},
        "malformed",
        {"a": None, "b": 2},
        {"a": "noop", "b": "2024"},
        {},
        None,
        None,
        ...,
    ]


def test_a_required_variant_that_is_missing_is_the_variant_null() -> None:
    array = column(pa.string(), [{}])
    assert reassemble(array).to_pylist() == [{"value": b"\x00", "metadata": NAMED}]
    unshredded = array.cast(pa.struct([("metadata", pa.binary()), ("value", pa.binary())]))
    assert reassemble(unshredded).to_pylist() == [{"value": b"\x00", "metadata": NAMED}]


def test_an_int_keeps_the_width_of_its_column() -> None:
    array = column(pa.int64(), [{"typed_value": 1}])
    assert reassemble(array).field("value").to_pylist() == [b"\x18" + (1).to_bytes(8, "little")]


def test_single_precision_keeps_its_width() -> None:
    array = column(pa.float32(), [{"typed_value": 0.5}])
    assert reassemble(array).field("value").to_pylist() == [b"\x38" + struct.pack("<f", 0.5)]


@pytest.mark.parametrize(("precision", "size"), [(9, 4), (10, 8), (18, 8), (19, 16), (38, 16)])
def test_a_decimal_keeps_the_width_of_its_column(precision: int, size: int) -> None:
    array = column(pa.decimal128(precision, 2), [{"typed_value": Decimal("-1.20")}, None])
    (value, _) = reassemble(array).field("value").to_pylist()
    assert len(value) == 2 + size
    assert decoded(reassemble(array)) == [Decimal("-1.20"), ...]


# -- any values, any schema ---------------------------------------------------------------------


@given(groups(NAMES), st.lists(VARIANTS | st.just(...), max_size=6), st.booleans())
def test_shredding_is_undone(shape: Group, values: list[object], lean: bool) -> None:
    array = shred(shape, [None if each is ... else (each,) for each in values], lean=lean)
    assert [canonical(each) for each in decoded(reassemble(array))] == [
        canonical(each) for each in values
    ]


@given(groups(NAMES), st.lists(VARIANTS, min_size=3, max_size=6), st.data())
def test_a_slice_is_put_together_alone(
    shape: Group, values: list[object], data: st.DataObject
) -> None:
    array = shred(shape, [(each,) for each in values], lean=True)
    start = data.draw(st.integers(0, len(values) - 1))
    assert [canonical(each) for each in decoded(reassemble(array.slice(start, 2)))] == [
        canonical(each) for each in values[start : start + 2]
    ]


@given(groups(NAMES), st.lists(VARIANTS, min_size=1, max_size=4))
def test_shredded_files_are_read(shape: Group, values: list[object]) -> None:
    array = shred(shape, [(each,) for each in values], lean=True)
    assume(_can_be_written(array))
    rows = read_as(pa.table({"v": array}), of(v=VARIANT))
    got = [decode_variant(row["v"]["metadata"], row["v"]["value"]) for row in rows]
    assert [canonical(each) for each in got] == [canonical(each) for each in values]


def _can_be_written(array: Any) -> bool:
    """Arrow writes no string views that stand below some lists."""
    try:
        pq.write_table(pa.table({"v": array}), pa.BufferOutputStream())
    except pa.ArrowNotImplementedError:
        return False
    return True


# -- where variants stand -----------------------------------------------------------------------


def of(**fields: DataType) -> StructType:
    return StructType(tuple(StructField(name, kind) for name, kind in fields.items()))


def test_variants_inside_other_types_are_put_together() -> None:
    shape = Group({"a": Group(pa.int64()), "b": Group(Group(pa.string()))})
    variants = shred(shape, [({"a": 1},), None, ({"b": ["x", 2], "c": 3},), ("y",)], lean=True)
    table = pa.table(
        {
            "s": pa.StructArray.from_arrays(
                [variants], ["v"], mask=pa.array([False, False, False, True])
            ),
            "l": pa.ListArray.from_arrays(pa.array([0, 2, None, 2, 4], pa.int32()), variants),
            "m": pa.MapArray.from_arrays([0, 1, 1, 2, 4], pa.array(["p", "q", "r", "s"]), variants),
        }
    )
    schema = of(s=of(v=VARIANT), l=ArrayType(VARIANT), m=MapType(PrimitiveType("string"), VARIANT))
    first, second, third, fourth = read_as(table, schema)

    def value(each: Any) -> object:
        return ... if each is None else decode_variant(each["metadata"], each["value"])

    assert [row["s"] and value(row["s"]["v"]) for row in (first, second, third, fourth)] == [
        {"a": 1},
        ...,
        {"b": ["x", 2], "c": 3},
        None,
    ]
    assert [row["l"] and [value(each) for each in row["l"]] for row in (first, second, third)] == [
        [{"a": 1}, ...],
        [],
        None,
    ]
    assert [value(each) for each in fourth["l"]] == [{"b": ["x", 2], "c": 3}, "y"]
    assert [[(key, value(each)) for key, each in row["m"]] for row in (first, second, fourth)] == [
        [("p", {"a": 1})],
        [],
        [("r", {"b": ["x", 2], "c": 3}), ("s", "y")],
    ]


@pytest.mark.parametrize("mode", ["name", "id"])
def test_columns_are_mapped_and_the_parts_of_a_variant_are_not(mode: Any) -> None:
    config = mapped_configuration(of(v=VARIANT, s=of(v=VARIANT)), mode)
    physical = physical_arrow_schema(config.schema, mode)
    variants = shred(Group({"v": Group(pa.int8())}), [({"v": 1, "w": 2},)], lean=True)
    inner = physical.field(1).type.field(0).with_type(variants.type)
    structs = pa.StructArray.from_arrays([variants], fields=[inner])
    schema = pa.schema(
        [physical.field(0).with_type(variants.type), physical.field(1).with_type(structs.type)]
    )
    store = MemoryStore()
    file = add_file(store, pa.Table.from_arrays([variants, structs], schema=schema))
    (row,) = read(store, [file], config).to_pylist()
    for each in (row["v"], row["s"]["v"]):
        assert decode_variant(each["metadata"], each["value"]) == {"v": 1, "w": 2}


def test_a_file_with_typed_columns_and_one_without_belong_to_one_table() -> None:
    store = MemoryStore()
    plain = pa.array([dict(zip(("metadata", "value"), encode_variant({"a": 1}), strict=True))])
    files = [
        add_file(store, pa.table({"v": plain}), "plain.parquet"),
        add_file(
            store,
            pa.table({"v": shred(Group({"a": Group(pa.int32())}), [({"a": 1},)], lean=True)}),
            "shredded.parquet",
        ),
    ]
    got = read(store, files, configuration(of(v=VARIANT)))
    assert got.schema.field("v").type == VARIANT_STORAGE
    assert decoded(got["v"].combine_chunks()) == [{"a": 1}, {"a": 1}]


def test_uuids_are_read_with_and_without_their_annotation() -> None:
    value = uuid.UUID(int=7)
    array = shred(Group(pa.binary(16)), [(value,)], lean=True)
    uuids = pa.ExtensionArray.from_storage(pa.uuid(), array.field("typed_value"))
    annotated = pa.StructArray.from_arrays(
        [array.field("metadata"), uuids], ["metadata", "typed_value"]
    )
    for each in (array, annotated):
        assert decoded(reassemble(each)) == [value]


def test_dictionaries_are_decoded() -> None:
    array = shred(Group(pa.string()), [("x",), ("x",), (1,)], lean=True)
    packed = pa.StructArray.from_arrays(
        [each.dictionary_encode() for each in array.flatten()], [each.name for each in array.type]
    )
    assert decoded(reassemble(packed)) == ["x", "x", 1]


# -- what is refused ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "typed_value",
    [
        pa.uint8(),
        pa.uint64(),
        pa.float16(),
        pa.timestamp("ms"),
        pa.time32("ms"),
        pa.date64(),
        pa.binary(12),
        pa.decimal256(60, 2),
        pa.map_(pa.string(), pa.int64()),
        pa.list_(pa.int64()),
        pa.struct([("a", pa.int64())]),
        pa.struct([("a", pa.struct([("typed_value", pa.int64()), ("other", pa.int64())]))]),
        pa.struct([("a", group(pa.int64())), ("a", group(pa.int64()))]),
    ],
)
def test_what_is_not_shredded_so_is_refused(typed_value: Any) -> None:
    storage = pa.struct([("metadata", pa.binary()), ("typed_value", typed_value)])
    with pytest.raises(InvalidTable, match="a column is of type variant") as caught:
        reassemble_of(pa.nulls(0, storage), "s.v")
    assert caught.value.column == "s.v"


def test_a_file_that_is_not_shredded_so_is_named() -> None:
    storage = pa.struct([("metadata", pa.binary()), ("typed_value", pa.uint32())])
    table = pa.table({"s": pa.nulls(1, pa.struct([("v", storage)]))})
    with pytest.raises(InvalidTable) as caught:
        read_as(table, of(s=of(v=VARIANT)))
    assert (caught.value.column, caught.value.file) == ("s.v", "f.parquet")


@pytest.mark.parametrize(
    "storage",
    [
        pa.struct([]),
        pa.struct([("metadata", pa.binary())]),
        pa.struct([("value", pa.binary())]),
        pa.struct([("metadata", pa.binary()), ("value", pa.int64())]),
        pa.struct([("metadata", pa.binary()), ("value", pa.binary()), ("x", pa.binary())]),
        pa.struct([("metadata", pa.binary()), ("value", pa.binary()), ("value", pa.binary())]),
    ],
)
def test_a_struct_that_is_no_variant_is_refused(storage: Any) -> None:
    with pytest.raises(InvalidTable, match="a column is of type variant"):
        reassemble_of(pa.nulls(0, storage), "v")


FIELDS = pa.struct([("a", group(pa.int64()))])


@pytest.mark.parametrize(
    ("typed_value", "row", "what"),
    [
        (pa.int64(), {"value": b"\x00", "typed_value": 1}, "two values"),
        (pa.list_(group(pa.int64())), {"value": b"\x00", "typed_value": []}, "two values"),
        (
            FIELDS,
            {"typed_value": {"a": {"value": b"\x00", "typed_value": 1}}},
            "two values",
        ),
        (FIELDS, {"value": encoded("a"), "typed_value": {"a": {}}}, "none by its value"),
        (
            FIELDS,
            {"value": encoded({"a": 1}), "typed_value": {"a": {"typed_value": 2}}},
            "field a is both in a column and outside",
        ),
        (
            pa.struct([("z", group(pa.int64()))]),
            {"typed_value": {"z": {"typed_value": 2}}},
            "lacks the name of its field z",
        ),
        (FIELDS, {"metadata": b"\x01", "typed_value": {"a": {"typed_value": 2}}}, "damaged"),
        (FIELDS, {"metadata": None, "value": b"\x00"}, "no metadata"),
        (FIELDS, {"value": b"\x02\x01", "typed_value": {"a": {}}}, "damaged"),
    ],
)
def test_what_breaks_the_rules_of_shredding_is_named(
    typed_value: Any, row: dict[str, Any], what: str
) -> None:
    with pytest.raises(InvalidTable, match=what) as caught:
        reassemble(column(typed_value, [row]))
    assert caught.value.column == "v"


def test_a_later_version_of_the_encoding_is_named() -> None:
    row = {"metadata": b"\x12\x00\x00", "typed_value": {"a": {"typed_value": 2}}}
    with pytest.raises(UnsupportedFeature, match="version 2") as caught:
        reassemble(column(FIELDS, [row]))
    assert caught.value.column == "v"


def test_more_than_arrow_can_hold_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    # A signed byte for an offset stands for the 32 bits that would need 2 GiB here.
    narrow = "dagster_delta.protocol.values.arrow_columns.array"
    monkeypatch.setattr(narrow, lambda _, values: buffer_of("b", values))
    with pytest.raises(UnsupportedFeature, match="2 GiB"):
        reassemble(column(pa.string(), [{"typed_value": "x" * 200}]))


def test_nothing_gives_nothing() -> None:
    for typed_value in (pa.int64(), FIELDS, pa.list_(group(pa.int64()))):
        assert reassemble(column(typed_value, [])).type == VARIANT_STORAGE
        assert decoded(reassemble(column(typed_value, [None, None]))) == [..., ...]
