from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given

from dagster_delta.errors import SchemaMismatch
from dagster_delta.protocol.schema import (
    ArrayType,
    DecimalType,
    MapType,
    PrimitiveType,
    StructField,
    StructType,
    data_type_from_json,
)
from dagster_delta.protocol.values.arrow_schema import (
    VARIANT_STORAGE,
    from_arrow_schema,
    from_arrow_type,
    to_arrow_schema,
    to_arrow_type,
)
from tests.protocol.schema_strategies import schemas


@given(schemas)
def test_schema_survives_the_way_to_arrow_and_back(schema: StructType) -> None:
    back = from_arrow_schema(to_arrow_schema(schema))
    assert back == schema
    assert back.to_json() == schema.to_json()


@pytest.mark.parametrize(
    ("name", "arrow_type"),
    [
        ("string", pa.string()),
        ("long", pa.int64()),
        ("integer", pa.int32()),
        ("short", pa.int16()),
        ("byte", pa.int8()),
        ("float", pa.float32()),
        ("double", pa.float64()),
        ("boolean", pa.bool_()),
        ("binary", pa.binary()),
        ("date", pa.date32()),
        ("timestamp", pa.timestamp("us", "UTC")),
        ("timestamp_ntz", pa.timestamp("us")),
        ("decimal(9,2)", pa.decimal128(9, 2)),
        ("variant", VARIANT_STORAGE),
        ("void", pa.null()),
    ],
)
def test_delta_type_has_one_arrow_type(name: str, arrow_type: Any) -> None:
    assert to_arrow_type(data_type_from_json(name)) == arrow_type


@pytest.mark.parametrize(
    ("arrow_type", "text"),
    [
        (pa.large_string(), "string"),
        (pa.string_view(), "string"),
        (pa.large_binary(), "binary"),
        (pa.binary_view(), "binary"),
        (pa.binary(16), "binary"),
        (pa.uint8(), "short"),
        (pa.uint16(), "integer"),
        (pa.uint32(), "long"),
        (pa.uint64(), "decimal(20,0)"),
        (pa.float16(), "float"),
        (pa.date64(), "date"),
        (pa.timestamp("s"), "timestamp_ntz"),
        (pa.timestamp("ns", "Europe/Berlin"), "timestamp"),
        (pa.decimal32(5, 2), "decimal(5,2)"),
        (pa.decimal256(38, 3), "decimal(38,3)"),
        (pa.dictionary(pa.int8(), pa.large_string()), "string"),
        (pa.run_end_encoded(pa.int32(), pa.int64()), "long"),
        (pa.large_list(pa.int32()), "array<integer>"),
        (pa.list_view(pa.int32()), "array<integer>"),
        (pa.list_(pa.int32(), 3), "array<integer>"),
        (pa.map_(pa.string(), pa.list_(pa.uint8())), "map<string,array<short>>"),
        (pa.uuid(), "binary"),
        (pa.json_(), "string"),
    ],
)
def test_other_arrow_types_become_the_narrowest_that_holds_them(arrow_type: Any, text: str) -> None:
    assert str(from_arrow_type(arrow_type)) == text


@pytest.mark.parametrize(
    "arrow_type",
    [
        pa.time64("us"),
        pa.duration("s"),
        pa.month_day_nano_interval(),
        pa.decimal256(40, 2),
        pa.decimal128(5, -2),
        pa.dense_union([pa.field("a", pa.int8())]),
    ],
)
def test_arrow_type_without_counterpart_is_refused_by_column(arrow_type: Any) -> None:
    schema = pa.schema([pa.field("outer", pa.list_(pa.struct([pa.field("inner", arrow_type)])))])
    with pytest.raises(SchemaMismatch) as caught:
        from_arrow_schema(schema)
    assert caught.value.column == "outer.element.inner"
    assert str(arrow_type) in caught.value.message


def test_nullability_is_kept_at_every_depth() -> None:
    schema = StructType(
        (
            StructField("a", PrimitiveType("long"), nullable=False),
            StructField("b", ArrayType(PrimitiveType("long"), contains_null=False)),
            StructField(
                "c", MapType(PrimitiveType("string"), DecimalType(4, 1), value_contains_null=False)
            ),
            StructField(
                "d", StructType((StructField("e", PrimitiveType("date"), nullable=False),))
            ),
        )
    )
    arrow = to_arrow_schema(schema)
    assert not arrow.field("a").nullable
    assert not arrow.field("b").type.value_field.nullable
    assert not arrow.field("c").type.key_field.nullable
    assert not arrow.field("c").type.item_field.nullable
    assert not arrow.field("d").type.field("e").nullable
    assert from_arrow_schema(arrow) == schema


def test_comment_travels_in_field_metadata() -> None:
    schema = StructType((StructField("a", PrimitiveType("long"), metadata={"comment": "größe"}),))
    arrow = to_arrow_schema(schema)
    assert arrow.field("a").metadata == {b"comment": "größe".encode()}
    assert from_arrow_schema(arrow).field("a").comment == "größe"
