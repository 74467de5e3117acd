"""Which values may be stored in which column, as Spark's ANSI store assignment has it."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dagster_delta.engines.data_input import to_reader
from dagster_delta.errors import ConstraintViolation, InvalidCast, SchemaMismatch
from dagster_delta.parquet.casts import value_cast
from dagster_delta.parquet.shadow_column import value_conversion
from dagster_delta.parquet.store_assignment import MAX_BATCH_ROWS, assign_batches
from dagster_delta.protocol.schema import (
    ArrayType,
    DataType,
    DecimalType,
    MapType,
    PrimitiveType,
    StructField,
    StructType,
)
from dagster_delta.protocol.values.arrow_schema import to_arrow_schema
from tests.parquet.delta_values import tables

INT = PrimitiveType("integer")
LONG = PrimitiveType("long")
STRING = PrimitiveType("string")
TIMESTAMP = PrimitiveType("timestamp")
NTZ = PrimitiveType("timestamp_ntz")
VARIANT = PrimitiveType("variant")
EMPTY = b"\x11\x00\x00"  # the dictionary of no names
UTC = dt.UTC


def struct(*fields: tuple[str, DataType] | StructField) -> StructType:
    return StructType(
        tuple(each if isinstance(each, StructField) else StructField(*each) for each in fields)
    )


def assign(data: Any, schema: StructType) -> pa.Table:
    batches = list(assign_batches(to_reader(data), schema, table="memory://t"))
    return pa.Table.from_batches(batches, to_arrow_schema(schema))


def store(array: pa.Array, target: DataType) -> list[Any]:
    """The values of one array once they are stored in a column of the target type."""
    table = assign(pa.table({"c": array}), struct(("c", target)))
    assert table.schema == to_arrow_schema(struct(("c", target)))
    return table.column("c").to_pylist()


@pytest.mark.parametrize("source", [pa.float16(), pa.float32(), pa.float64()])
def test_floats_of_any_width_lose_nothing_in_a_decimal_that_an_exact_cast_takes(
    source: pa.DataType,
) -> None:
    cast = value_cast(source, DecimalType(4, 1), is_exact=True)
    assert cast(pa.array(np.array([1.5, 2.0], source.to_pandas_dtype()))).to_pylist() == [
        Decimal("1.5"),
        Decimal("2.0"),
    ]
    with pytest.raises(pa.ArrowInvalid):
        cast(pa.array(np.array([1.25], source.to_pandas_dtype())))


@pytest.mark.parametrize(
    ("array", "target", "stored"),
    [
        (pa.array([1, None], pa.int64()), PrimitiveType("byte"), [1, None]),
        (pa.array([7], pa.uint64()), INT, [7]),
        (pa.array([1.9, -1.9, None]), INT, [1, -1, None]),
        (pa.array([127.9, -128.9]), PrimitiveType("byte"), [127, -128]),
        (pa.array([Decimal("2.99"), Decimal("-2.99")]), LONG, [2, -2]),
        (pa.array([Decimal("2.99"), None], pa.decimal32(5, 2)), LONG, [2, None]),
        (pa.array([2**53 + 1]), PrimitiveType("double"), [float(2**53)]),
        (pa.array([3]), PrimitiveType("float"), [3.0]),
        (pa.array([1e300]), PrimitiveType("float"), [float("inf")]),
        (pa.array([3]), DecimalType(3, 2), [Decimal("3.00")]),
        (pa.array([Decimal("1.25"), Decimal("-1.25")]), DecimalType(4, 1), [Decimal("1.3"), Decimal("-1.3")]),
        (pa.array([Decimal("9.95")], pa.decimal128(3, 2)), DecimalType(3, 1), [Decimal("10.0")]),
        (pa.array([Decimal("1.5")], pa.decimal256(60, 1)), DecimalType(4, 2), [Decimal("1.50")]),
        (pa.array([0.15, 2.675]), DecimalType(4, 2), [Decimal("0.15"), Decimal("2.68")]),
        (pa.array([1, None]), STRING, ["1", None]),
        (pa.array([True]), STRING, ["true"]),
        (pa.array([Decimal("0.0000001")]), STRING, ["0.0000001"]),
        (pa.array([1e10, 1e-4, 0.5, 100.0, float("nan"), float("-inf"), -0.0]), STRING,
         ["1.0E10", "1.0E-4", "0.5", "100.0", "NaN", "-Infinity", "-0.0"]),
        (pa.array([0.1], pa.float32()), STRING, ["0.1"]),
        (pa.array([dt.date(2020, 1, 2)]), STRING, ["2020-01-02"]),
        (pa.array([2932896, 2932897, -719529], pa.int32()).cast(pa.date32()), STRING, ["9999-12-31", "+10000-01-01", "-0001-12-31"]),
        (pa.array([253402300800000001], pa.timestamp("us")), STRING, ["+10000-01-01 00:00:00.000001"]),
        (pa.array([1_500_000, 0], pa.timestamp("us", "UTC")), STRING, ["1970-01-01 00:00:01.5", "1970-01-01 00:00:00"]),
        (pa.array([b"abc"]), STRING, ["abc"]),
        (pa.array(["a", "b", "a"]).dictionary_encode(), STRING, ["a", "b", "a"]),
        (pa.array(["a"], pa.string_view()), STRING, ["a"]),
        (pa.DictionaryArray.from_arrays(pa.array([1, None, 0], pa.uint8()), pa.array(["a", "b"], pa.string_view())),
         STRING, ["b", None, "a"]),
        (pa.RunEndEncodedArray.from_arrays(pa.array([2, 3, 5], pa.int32()), pa.array(["a", None, "b"], pa.string_view())).slice(1, 3),
         STRING, ["a", None, "b"]),
        (pa.RunEndEncodedArray.from_arrays(pa.array([2, 3], pa.int16()), pa.array([7, 8])), LONG, [7, 7, 8]),
        (pa.array(["a"], pa.large_string()), STRING, ["a"]),
        (pa.array([b"ab"], pa.binary(2)), PrimitiveType("binary"), [b"ab"]),
        (pa.array([dt.date(2020, 1, 2)]), TIMESTAMP, [dt.datetime(2020, 1, 2, tzinfo=UTC)]),
        (pa.array([dt.date(2020, 1, 2)], pa.date64()), NTZ, [dt.datetime(2020, 1, 2)]),
        (pa.array([-1], pa.timestamp("us", "America/New_York")), PrimitiveType("date"), [dt.date(1969, 12, 31)]),
        (pa.array([-1], pa.timestamp("ns")), NTZ, [dt.datetime(1969, 12, 31, 23, 59, 59, 999999)]),
        (pa.array([-1], pa.timestamp("ns", "Asia/Tokyo")), TIMESTAMP, [dt.datetime(1969, 12, 31, 23, 59, 59, 999999, UTC)]),
        (pa.array([0], pa.timestamp("ms", "Asia/Tokyo")), TIMESTAMP, [dt.datetime(1970, 1, 1, tzinfo=UTC)]),
        (pa.array([0], pa.timestamp("s")), TIMESTAMP, [dt.datetime(1970, 1, 1, tzinfo=UTC)]),
        (pa.array([0], pa.timestamp("us", "Asia/Tokyo")), NTZ, [dt.datetime(1970, 1, 1)]),
        (pa.nulls(2), INT, [None, None]),
        (pa.nulls(1), struct(("a", INT)), [None]),
        (pa.array([[1, None], None, []], pa.list_view(pa.int64())), ArrayType(INT), [[1, None], None, []]),
        (pa.array([[1, 2], None], pa.list_(pa.int64(), 2)), ArrayType(STRING), [["1", "2"], None]),
        (pa.array([[("k", 1)], None], pa.map_(pa.string(), pa.int64())), MapType(STRING, INT), [[("k", 1)], None]),
        (pa.array([[{"key": "k", "value": 1}], None]), MapType(STRING, INT), [[("k", 1)], None]),
        (pa.array([{"B": 1, "a": 2}, None]), struct(("a", INT), ("b", STRING), ("c", LONG)),
         [{"a": 2, "b": "1", "c": None}, None]),
        (pa.array([{"metadata": EMPTY, "value": b"\x00"}]), VARIANT, [{"value": b"\x00", "metadata": EMPTY}]),
        (pa.array([None, 7], pa.int64()), VARIANT, [None, {"value": b"\x0c\x07", "metadata": EMPTY}]),
        (pa.array([0.5], pa.float32()), VARIANT, [{"value": b"\x38\x00\x00\x00\x3f", "metadata": EMPTY}]),
        (pa.array(["{}"]), VARIANT, [{"value": b"\x09{}", "metadata": EMPTY}]),
        (pa.nulls(1), VARIANT, [None]),
        (pa.nulls(1), PrimitiveType("void"), [None]),
    ],
)  # fmt: skip
def test_what_fits_is_stored(array: pa.Array, target: DataType, stored: list[Any]) -> None:
    assert repr(_without_zone(store(array, target))) == repr(_without_zone(stored))


def _without_zone(values: list[Any]) -> list[Any]:
    """UTC times as offsets: the zone object differs, the instant does not."""
    return [
        each.astimezone(UTC) if isinstance(each, dt.datetime) and each.tzinfo else each
        for each in values
    ]


@pytest.mark.parametrize(
    ("array", "target", "example"),
    [
        (pa.array([1, 128, 2]), PrimitiveType("byte"), "128"),
        (pa.array([2**63], pa.uint64()), LONG, str(2**63)),
        (pa.array([1.0, 2.0**31]), INT, "2147483648.0"),
        (pa.array([2.0**63]), LONG, "9.2"),
        (pa.array([float("nan")]), INT, "nan"),
        (pa.array([float("inf")]), LONG, "inf"),
        (pa.array([Decimal("300")]), PrimitiveType("byte"), "300"),
        (pa.array([Decimal("99.95")]), DecimalType(3, 1), "99.95"),
        (pa.array([10]), DecimalType(3, 2), "10"),
        (pa.array([4 * 10**18]), DecimalType(38, 20), str(4 * 10**18)),
        (pa.array([0, 99], pa.int8()), DecimalType(38, 38), "99"),
        (pa.array([Decimal(4 * 10**18)]), DecimalType(38, 20), str(4 * 10**18)),
        (pa.array([Decimal("9.5")], pa.decimal256(76, 1)), DecimalType(38, 38), "9.5"),
        (pa.array([1e40]), DecimalType(38, 0), "1e+40"),
        (pa.array([float("nan")]), DecimalType(38, 0), "nan"),
        (pa.array([b"\xff"]), STRING, "xff"),
        (pa.array([2**62], pa.timestamp("s")), NTZ, str(2**62)),
        (pa.array([2**31 - 1], pa.int32()).cast(pa.date32()), STRING, str(2**31 - 1)),
        (pa.array([-(2**62)], pa.timestamp("us", "UTC")), STRING, str(2**62)),
        (pa.array([2**31 - 1], pa.int32()).cast(pa.date32()), TIMESTAMP, str(2**31 - 1)),
    ],
)
def test_what_does_not_fit_is_refused_with_examples(
    array: pa.Array, target: DataType, example: str
) -> None:
    with pytest.raises(InvalidCast) as caught:
        store(array, target)
    assert caught.value.column == "c"
    assert caught.value.table == "memory://t"
    assert any(example in each for each in caught.value.examples)


@pytest.mark.parametrize(
    ("arrow_type", "target"),
    [
        (pa.string(), INT),
        (pa.string(), PrimitiveType("boolean")),
        (pa.string(), PrimitiveType("date")),
        (pa.string(), PrimitiveType("binary")),
        (pa.string(), DecimalType(3, 1)),
        (pa.bool_(), INT),
        (pa.int32(), PrimitiveType("boolean")),
        (pa.int64(), TIMESTAMP),
        (pa.timestamp("us"), LONG),
        (pa.date32(), INT),
        (pa.time64("us"), STRING),
        (pa.duration("us"), LONG),
        (pa.list_(pa.int32()), STRING),
        (pa.list_(pa.string()), ArrayType(INT)),
        (pa.struct([("a", pa.int32())]), INT),
        (pa.struct([("a", pa.int32())]), ArrayType(INT)),
        (pa.int32(), struct(("a", INT))),
        (pa.list_(pa.int32()), MapType(INT, INT)),
        (pa.int32(), PrimitiveType("void")),
    ],
)
def test_types_that_cannot_be_stored_are_refused_before_any_row(
    arrow_type: pa.DataType, target: DataType
) -> None:
    reader = pa.RecordBatchReader.from_batches(pa.schema([("c", arrow_type)]), iter(()))
    with pytest.raises(SchemaMismatch) as caught:
        assign_batches(reader, struct(("c", target)), table="memory://t")
    assert caught.value.column is not None
    assert caught.value.column.split(".")[0] == "c"


@given(
    st.decimals(allow_nan=False, allow_infinity=False, places=7, min_value=-(10**30)).filter(
        lambda each: abs(each) < 10**30
    )
)
def test_a_decimal_becomes_the_double_nearest_to_it(value: Decimal) -> None:
    wide = pa.array([None, value, None], pa.decimal128(38, 7))
    assert store(wide.slice(1), PrimitiveType("double")) == [float(value), None]
    if abs(value) < 10**8:
        narrow = pa.array([None, value], pa.decimal128(15, 7))
        assert store(narrow.slice(1), PrimitiveType("double")) == [float(value)]


def test_a_decimal_becomes_the_float_nearest_to_it() -> None:
    values = pa.array([Decimal("0.05"), Decimal("16777217.00"), None], pa.decimal128(10, 2))
    assert store(values, PrimitiveType("float")) == [0.05000000074505806, 16777216.0, None]


def test_a_time_becomes_the_exact_decimal_of_its_seconds() -> None:
    # A double of so many seconds has a digit less.
    moments = pa.array([34_994_082_377_672_174, -1, None], pa.timestamp("us", "UTC"))
    found = value_conversion(TIMESTAMP, DecimalType(18, 6)).convert(moments)
    seconds = [Decimal("34994082377.672174"), Decimal("-0.000001"), None]
    assert (found.values.to_pylist(), found.num_failed) == (seconds, 0)
    rounded = value_conversion(TIMESTAMP, DecimalType(13, 2)).convert(moments)
    assert rounded.values.to_pylist() == [Decimal("34994082377.67"), Decimal("0.00"), None]


def test_bytes_that_are_no_text_are_shown_where_they_fail_to_convert() -> None:
    broken = pa.array([b"\xff", b"7"], pa.binary()).view(pa.string())
    found = value_conversion(STRING, LONG).convert(broken)
    assert (found.values.to_pylist(), found.examples) == ([None, 7], ["b'\\xff'"])


def test_columns_are_matched_by_name_without_regard_to_case() -> None:
    table = assign(pa.table({"B": [1], "a": [2]}), struct(("A", LONG), ("b", LONG)))
    assert table.to_pylist() == [{"A": 2, "b": 1}]


def test_a_missing_nullable_column_is_null() -> None:
    assert assign(pa.table({"a": [2]}), struct(("a", LONG), ("b", STRING))).to_pylist() == [
        {"a": 2, "b": None}
    ]


def test_an_unknown_column_is_refused_with_the_option_that_would_add_it() -> None:
    with pytest.raises(SchemaMismatch, match='schema_mode="merge"') as caught:
        assign(pa.table({"a": [1], "x": [1]}), struct(("a", LONG)))
    assert caught.value.column == "x"


def test_an_unknown_nested_field_is_refused_by_its_path() -> None:
    data = pa.table({"s": [[{"a": 1, "x": 2}]]})
    with pytest.raises(SchemaMismatch) as caught:
        assign(data, struct(("s", ArrayType(struct(("a", LONG))))))
    assert caught.value.column == "s.element.x"


def test_a_column_that_comes_twice_is_refused() -> None:
    data = pa.Table.from_arrays([pa.array([1]), pa.array([2])], ["a", "A"])
    with pytest.raises(SchemaMismatch, match="twice"):
        assign(data, struct(("a", LONG)))


def test_rows_outside_the_years_of_python_can_be_shown() -> None:
    data = pa.table({"t": pa.array([2**62], pa.timestamp("us")), "b": pa.nulls(1, pa.int64())})
    schema = struct(("t", NTZ), StructField("b", LONG, nullable=False))
    with pytest.raises(ConstraintViolation) as caught:
        assign(data, schema)
    assert len(caught.value.examples) == 1


def test_a_missing_not_null_column_is_refused() -> None:
    with pytest.raises(ConstraintViolation) as caught:
        assign(pa.table({"a": [1]}), struct(("a", LONG), StructField("b", LONG, nullable=False)))
    assert caught.value.column == "b"


def test_nulls_in_a_not_null_column_are_counted_and_shown() -> None:
    data = pa.table({"id": list(range(10)), "b": [None, 1] * 5})
    schema = struct(("id", LONG), StructField("b", LONG, nullable=False))
    with pytest.raises(ConstraintViolation, match="5 null") as caught:
        assign(data, schema)
    assert caught.value.column == "b"
    assert caught.value.examples[0] == "{'id': 0, 'b': None}"


def test_nulls_beside_text_of_polars_are_shown() -> None:
    data = pl.DataFrame({"id": [1, 2], "b": ["x", None]})
    schema = struct(("id", LONG), StructField("b", STRING, nullable=False))
    with pytest.raises(ConstraintViolation, match="1 null") as caught:
        assign(pa.table(data), schema)
    assert caught.value.examples == ("{'id': 2, 'b': None}",)


@pytest.mark.parametrize(
    ("values", "target", "column"),
    [
        ([{"a": None}], struct(StructField("a", LONG, nullable=False)), "c.a"),
        ([[1, None]], ArrayType(LONG, contains_null=False), "c.element"),
        ([[{"a": None}]], ArrayType(struct(StructField("a", LONG, nullable=False))), "c.element.a"),
        ([{"s": {"a": None}}], struct(("s", struct(StructField("a", LONG, nullable=False)))), "c.s.a"),
    ],
)  # fmt: skip
def test_not_null_binds_at_every_depth(values: Any, target: DataType, column: str) -> None:
    with pytest.raises(ConstraintViolation) as caught:
        store(pa.array(values), target)
    assert caught.value.column == column


def test_a_null_map_value_is_refused_where_values_are_not_null() -> None:
    array = pa.array([[("k", None)]], pa.map_(pa.string(), pa.int64()))
    with pytest.raises(ConstraintViolation) as caught:
        store(array, MapType(STRING, LONG, value_contains_null=False))
    assert caught.value.column == "c.value"


def test_a_null_struct_does_not_break_the_not_null_of_its_fields() -> None:
    target = struct(StructField("a", LONG, nullable=False))
    assert store(pa.array([None, {"a": 1}]), target) == [None, {"a": 1}]


def test_values_hidden_below_nulls_and_outside_a_slice_are_not_cast() -> None:
    hidden = pa.StructArray.from_arrays(
        [pa.array([1, 1000])], names=["a"], mask=pa.array([False, True])
    )
    lists = pa.ListArray.from_arrays(
        pa.array([0, 1, 2]), pa.array([1, 1000]), mask=pa.array([False, True])
    )
    byte = PrimitiveType("byte")
    assert store(hidden, struct(("a", byte))) == [{"a": 1}, None]
    assert store(lists, ArrayType(byte)) == [[1], None]
    assert store(pa.array([[1000], [1]]).slice(1), ArrayType(byte)) == [[1]]


def test_long_batches_are_cut() -> None:
    data = pa.table({"a": pa.array(range(MAX_BATCH_ROWS + 1))})
    schema = struct(("a", LONG))
    batches = list(assign_batches(data.to_reader(), schema, table="memory://t"))
    assert [each.num_rows for each in batches] == [MAX_BATCH_ROWS, 1]


@settings(max_examples=100, deadline=None)
@given(tables())
def test_rows_that_already_fit_pass_unchanged(drawn: Any) -> None:
    schema, table = drawn
    sliced = pa.concat_tables([table, table]).combine_chunks().slice(1)
    got = assign(sliced, schema)
    assert got.schema == table.schema
    assert [repr(each) for each in got.to_pylist()] == [repr(each) for each in sliced.to_pylist()]


def test_long_values_of_a_dictionary_are_repeated_in_a_limited_number_of_bytes() -> None:
    indices = pa.array([0] * 20_000, pa.int32())
    text = pa.DictionaryArray.from_arrays(indices, pa.array(["x" * 20_000]))
    reader = pa.table({"s": text}).to_reader()
    schema = StructType((StructField("s", PrimitiveType("string")),))
    sizes = [batch.nbytes for batch in assign_batches(reader, schema, table="t")]
    assert max(sizes) < 70 * 1024 * 1024
    assert sum(sizes) > 20_000 * 20_000
