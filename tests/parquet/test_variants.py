"""Columns of variants from Python values and JSON, and back."""

from __future__ import annotations

import datetime as dt
import json
import uuid
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dagster_delta import (
    variants_from_json,
    variants_from_python,
    variants_to_json,
    variants_to_python,
)
from dagster_delta.errors import InvalidArgument
from dagster_delta.protocol.schema import PrimitiveType
from dagster_delta.protocol.values.arrow_schema import from_arrow_schema
from dagster_delta.protocol.variant.binary import NanosecondTimestamp, SingleFloat
from tests.protocol.variant.variant_strategies import VARIANTS, canonical

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@given(st.lists(VARIANTS, max_size=5))
def test_python_values_come_back(values: list[object]) -> None:
    found = variants_to_python(variants_from_python(values))
    # None is a null of the column, and comes back as one.
    assert [canonical(each) for each in found] == [canonical(each) for each in values]


def test_a_new_table_takes_the_column_for_variants() -> None:
    table = pa.table(
        {"v": variants_from_python([1]), "s": pa.array([{"value": b"", "metadata": b""}])}
    )
    types = [str(each.data_type) for each in from_arrow_schema(table.schema)]
    assert types == ["variant", "struct<value:binary,metadata:binary>"]
    assert PrimitiveType("variant") == from_arrow_schema(table.schema).field("v").data_type


@pytest.mark.parametrize(
    "texts",
    [
        ['{"a": 1}', None],
        pa.array(['{"a": 1}', None]),
        pa.chunked_array([['{"a": 1}'], [None]], pa.string()),
        pd.Series(['{"a": 1}', None]),
        pd.Series(['{"a": 1}', None], dtype="string"),
    ],
    ids=["list", "array", "chunked", "series", "strings"],
)
def test_json_is_taken_from_any_column(texts: Any) -> None:
    assert variants_to_python(variants_from_json(texts)) == [{"a": 1}, None]


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(st.characters(codec="utf-8")),
        lambda inner: (
            st.lists(inner) | st.dictionaries(st.text(st.characters(codec="utf-8")), inner)
        ),
        max_leaves=8,
    ).filter(lambda each: each is not None)
)
def test_json_comes_back(value: Any) -> None:
    (text,) = variants_to_json(variants_from_json([json.dumps(value)]))
    assert text is not None
    # Integers beyond 38 digits are doubles.
    wanted = json.loads(json.dumps(value), parse_int=lambda t: float(t) if len(t) > 30 else int(t))
    found = json.loads(text, parse_int=lambda t: float(t) if len(t) > 30 else int(t))
    assert found == wanted


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{a: 1}", "character 1"),
        ("", "is not valid JSON"),
        ("1 2", "Extra data at character 2"),
        ("NaN", "not a number in JSON"),
        ('{"a": 1, "a": 2}', "two fields 'a'"),
        ("[" * 100_000, "nested too deeply"),
        ('"\\ud800"', "surrogate"),
    ],
)
def test_what_is_no_json_is_refused_with_its_row(text: str, said: str) -> None:
    with pytest.raises(InvalidArgument, match=f"row 1: .*{said}"):
        variants_from_json(["1", text])


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ([object()], "row 0: a variant has no type"),
        ([{1: 2}], "names are strings"),
        ("[]", "in a list"),
    ],
)
def test_what_a_variant_has_no_type_for_is_refused(values: Any, said: str) -> None:
    with pytest.raises(InvalidArgument, match=said):
        variants_from_python(values)


def test_only_variants_become_text() -> None:
    with pytest.raises(InvalidArgument, match="struct of value and metadata"):
        variants_to_json(pa.array([1]))


def test_what_json_lacks_becomes_text() -> None:
    values = [
        dt.date(2024, 2, 29),
        dt.datetime(2024, 2, 29, 1, 2, 3, 40),
        dt.datetime(2024, 2, 29, 1, 2, 3, tzinfo=dt.timezone(dt.timedelta(hours=2))),
        NanosecondTimestamp(-1, is_utc=True),
        dt.time(1, 2, 3),
        uuid.UUID(int=1),
        b"\x00\xff",
    ]
    assert variants_to_json(variants_from_python(values)) == [
        '"2024-02-29"',
        '"2024-02-29 01:02:03.000040"',
        '"2024-02-28 23:02:03+00:00"',
        '"1969-12-31 23:59:59.999999999+00:00"',
        '"01:02:03"',
        '"00000000-0000-0000-0000-000000000001"',
        '"AP8="',
    ]


NUMBERS = [
    "0",
    "-0",
    "127",
    "128",
    "-129",
    "32768",
    "2147483648",
    "9223372036854775807",
    "9223372036854775808",
    "1.0",
    "1.50",
    "-0.0",
    "0.00001",
    "1e5",
    "1E-3",
    "1.5e300",
    "1e999",
    "123456789.123456789",
    "12345678.9e0",
    "1e7",
    "9999999e0",
    "1e-7",
    "99999999999999999999999999999999999999",
    "999999999999999999999999999999999999999",
    "0.00000000000000000000000000000000000001",
    "0.000000000000000000000000000000000000001",
    "1.23456789012345678901234567890123456789",
]
OTHERS = [
    "true", "null", '"a\\u00e9\\n\\"/"', "[]", "{}", '"\\u001f\\\\u001f\\u0008"', ' {"b" : 1, "a": [1, {"z": null}]} ', '"😀"',
    "NaN", "[1,]", "{'a': 1}", "01", ".5", "5.", "+1", '"a\nb"', "tru", '{"a":1,"a":1}', "",
]  # fmt: skip


@pytest.mark.classic("Spark is the judge, with the same functions on every kind of session")
def test_json_means_what_it_means_in_spark(spark: SparkSession) -> None:
    texts = [*NUMBERS, *OTHERS]
    frame = spark.createDataFrame([(text,) for text in texts], "t string")
    parsed = frame.selectExpr("t", "try_parse_json(t) v").selectExpr(
        "t", "to_json(v) j", "schema_of_variant(v) s", "v"
    )
    ours = {}
    for text in texts:
        try:
            ours[text] = variants_from_json([text])[0].as_py()
        except InvalidArgument:
            ours[text] = None
    rows = parsed.collect()
    assert {each.t for each in rows if each.v is None} == {t for t, v in ours.items() if v is None}
    values = [variants_to_json(pa.array([ours[each.t]])) for each in rows if each.v is not None]
    assert values == [[each.j] for each in rows if each.v is not None]
    kept = [(each.t, each.s) for each in rows if each.v is not None]
    assert spark_schemas(spark, [ours[text] for text, _ in kept]) == [schema for _, schema in kept]


def spark_schemas(spark: SparkSession, variants: list[Any]) -> list[str]:
    from pyspark.sql import types

    schema = types.StructType(
        [types.StructField("i", types.IntegerType()), types.StructField("v", types.VariantType())]
    )
    rows = [
        (index, types.VariantVal(each["value"], each["metadata"]))
        for index, each in enumerate(variants)
    ]
    frame = spark.createDataFrame(rows, schema).selectExpr("i", "schema_of_variant(v) s")
    return [each.s for each in frame.orderBy("i").collect()]


@pytest.mark.classic("Spark is the judge, with the same functions on every kind of session")
def test_floats_are_spelled_as_spark_spells_them(spark: SparkSession) -> None:
    doubles = [1e7, 9999999.0, 1e-3, 9.99e-4, 123456.789, 1e22, 100.0, -0.0, 0.1 + 0.2, -1.5e-9]
    singles = [SingleFloat.of(each) for each in (0.1, 1e10, 3.4e38, 1e39, -1.5, 16777216.0)]
    column = variants_from_python([*doubles, *singles])
    from pyspark.sql import types

    rows = [(types.VariantVal(e["value"], e["metadata"]),) for e in column.to_pylist()]
    schema = types.StructType([types.StructField("v", types.VariantType())])
    found = spark.createDataFrame(rows, schema).selectExpr("to_json(v) j").collect()
    assert [each.j for each in found] == variants_to_json(column)
    assert variants_to_python(variants_from_python([Decimal("1.50")])) == [Decimal("1.50")]
