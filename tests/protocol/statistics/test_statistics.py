"""Statistics from JSON text and from checkpoints, as columns."""

from __future__ import annotations

import datetime as dt
import json
import math
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dagster_delta.protocol.schema import ArrayType, DataType, DecimalType, PrimitiveType
from dagster_delta.protocol.statistics.statistics import (
    StatisticsColumn,
    parse_statistics_json,
    project_parsed_statistics,
)

LONG = PrimitiveType("long")


def parse(*texts: str | None, data_type: DataType = LONG, path: tuple[str, ...] = ("c",)) -> Any:
    return parse_statistics_json(
        pa.array(texts, pa.string()), [StatisticsColumn(path, data_type)]
    ).to_pylist()


def bound(value: str, data_type: DataType) -> object:
    return parse(f'{{"minValues":{{"c":{value}}}}}', data_type=data_type)[0]["min.0"]


def test_counts_and_bounds_become_columns() -> None:
    text = (
        '{"numRecords":3,"tightBounds":false,"minValues":{"c":1},"maxValues":{"c":9},'
        '"nullCount":{"c":0}}'
    )
    row = {"num_records": 3, "tight_bounds": False, "min.0": 1, "max.0": 9, "null_count.0": 0}
    assert parse(text) == [row]


def test_a_row_that_is_no_json_is_unknown_alone() -> None:
    good = '{"numRecords":1,"minValues":{"c":5}}'
    rows = parse(good, "{", None, "", "[]", '"x"', "{}{}", good)
    assert [row["num_records"] for row in rows] == [1, *[None] * 6, 1]
    assert [row["min.0"] for row in rows] == [5, *[None] * 6, 5]


def test_a_value_of_the_wrong_type_is_unknown_alone() -> None:
    (row,) = parse('{"numRecords":7,"minValues":{"c":"x"},"maxValues":{"c":9},"nullCount":null}')
    assert (row["num_records"], row["min.0"], row["max.0"]) == (7, None, 9)


def test_the_draft_name_of_null_counts_is_read() -> None:
    assert parse('{"nullCounts":{"c":4}}')[0]["null_count.0"] == 4


def test_nested_columns_are_found_by_their_path() -> None:
    text = '{"minValues":{"a":{"b":{"c":1}}},"maxValues":{"a":{"b":null}},"nullCount":{"a":{}}}'
    (row,) = parse(text, path=("a", "b", "c"))
    assert (row["min.0"], row["max.0"], row["null_count.0"]) == (1, None, None)


def test_odd_column_names_are_found() -> None:
    for name in ("a.b", "f0", "é", "minValues", ""):
        text = json.dumps({"minValues": {name: 1, "other": 2}})
        assert parse(text, path=(name,))[0]["min.0"] == 1


def test_columns_whose_names_json_escapes_have_no_statistics() -> None:
    for name in ('quo"te', "line\n"):
        text = json.dumps({"numRecords": 3, "minValues": {name: 1, "f0": 2, "other": 2}})
        found = parse(text, path=(name,))[0]
        assert (found["num_records"], found["min.0"]) == (3, None)


@pytest.mark.parametrize(
    ("value", "data_type", "expected"),
    [
        ("9223372036854775807", LONG, 2**63 - 1),
        ("9223372036854775808", LONG, None),
        ("-129", PrimitiveType("byte"), None),
        ("127", PrimitiveType("byte"), 127),
        ("1", PrimitiveType("double"), 1.0),
        ('"Infinity"', PrimitiveType("double"), math.inf),
        ('"-Infinity"', PrimitiveType("float"), -math.inf),
        ('"infinite"', PrimitiveType("double"), None),
        ("3.4028235e38", PrimitiveType("float"), 3.4028234663852886e38),
        ("12345678901234567890.123456789012345678", DecimalType(38, 18), Decimal("12345678901234567890.123456789012345678")),
        ("1.5", DecimalType(10, 4), Decimal("1.5000")),
        ('"1.5"', DecimalType(10, 4), Decimal("1.5000")),
        ("1.55", DecimalType(10, 1), None),
        ("1E+3", DecimalType(10, 0), Decimal(1000)),
        ("true", PrimitiveType("boolean"), True),
        ('"é\\n\\u0041"', PrimitiveType("string"), "é\nA"),
        ('"2024-02-29"', PrimitiveType("date"), dt.date(2024, 2, 29)),
        ('"2024-02-30"', PrimitiveType("date"), None),
        ('"2024-01-01T00:00:00.123Z"', PrimitiveType("timestamp"), dt.datetime(2024, 1, 1, 0, 0, 0, 123_000, dt.UTC)),
        ('"2024-01-01T00:00:00.000-08:00"', PrimitiveType("timestamp"), dt.datetime(2024, 1, 1, 8, tzinfo=dt.UTC)),
        ('"2024-01-01T00:00:00"', PrimitiveType("timestamp"), dt.datetime(2024, 1, 1, tzinfo=dt.UTC)),
        ('"1900-01-01T00:00:00.000+00:53:28"', PrimitiveType("timestamp"), dt.datetime(1899, 12, 31, 23, 6, 32, tzinfo=dt.UTC)),
        ('"+12024-01-01T00:00:00Z"', PrimitiveType("timestamp"), None),
        ('"2024-01-01T00:00:00.123456789Z"', PrimitiveType("timestamp"), dt.datetime(2024, 1, 1, 0, 0, 0, 123_456, dt.UTC)),
        ('"2024-01-01T00:00:00.5"', PrimitiveType("timestamp_ntz"), dt.datetime(2024, 1, 1, 0, 0, 0, 500_000)),
        ('"2024-01-01"', PrimitiveType("timestamp_ntz"), dt.datetime(2024, 1, 1)),
        ('"2024-01-01T00:00:00+01:00"', PrimitiveType("timestamp_ntz"), None),
    ],
)  # fmt: skip
def test_bounds_of_every_type_are_read_exactly(
    value: str, data_type: DataType, expected: object
) -> None:
    assert bound(value, data_type) == expected


def test_an_odd_row_does_not_cost_another_its_digits() -> None:
    text = '{"numRecords":"x","minValues":{"c":1234567890123456789012345678.9}}'
    (row,) = parse(text, data_type=DecimalType(38, 1))
    assert row["min.0"] == Decimal("1234567890123456789012345678.9")


def test_nan_is_read_as_nan() -> None:
    found = bound('"NaN"', PrimitiveType("double"))
    assert isinstance(found, float)
    assert math.isnan(found)


@pytest.mark.parametrize(
    "data_type", [PrimitiveType("binary"), PrimitiveType("void"), ArrayType(LONG)]
)
def test_types_without_order_have_null_counts_only(data_type: DataType) -> None:
    text = '{"minValues":{"c":"x"},"nullCount":{"c":2}}'
    (row,) = parse(text, data_type=data_type)
    assert (row["min.0"], row["null_count.0"]) == (None, 2)


def test_more_rows_than_one_chunk_stay_in_order() -> None:
    texts = pa.array([f'{{"numRecords":{n}}}' for n in range(70_000)])
    assert parse_statistics_json(texts, [])["num_records"].to_pylist() == list(range(70_000))


def test_parsed_statistics_are_projected_and_widened() -> None:
    parsed = pa.array(
        [
            {"numRecords": 3, "minValues": {"c": {"d": 1}}, "maxValues": {"c": {"d": 2}}, "nullCounts": {"c": {"d": 0}}},
            None,
            {"numRecords": 4, "minValues": {"c": None}, "maxValues": None, "nullCounts": {"c": {"d": 4}}},
        ],
        pa.struct(
            {
                "numRecords": pa.int64(),
                "minValues": pa.struct({"c": pa.struct({"d": pa.int32()})}),
                "maxValues": pa.struct({"c": pa.struct({"d": pa.int32()})}),
                "nullCounts": pa.struct({"c": pa.struct({"d": pa.int64()})}),
            }
        ),
    )  # fmt: skip
    found = project_parsed_statistics(parsed, [StatisticsColumn(("c", "d"), LONG)])
    assert found.schema.field("min.0").type == pa.int64()
    assert found.to_pylist() == [
        {"num_records": 3, "tight_bounds": None, "min.0": 1, "max.0": 2, "null_count.0": 0},
        {"num_records": None, "tight_bounds": None, "min.0": None, "max.0": None, "null_count.0": None},
        {"num_records": 4, "tight_bounds": None, "min.0": None, "max.0": None, "null_count.0": 4},
    ]  # fmt: skip


def test_parsed_statistics_of_another_type_are_unknown() -> None:
    parsed = pa.array([{"minValues": {"c": "x"}}])
    (row,) = project_parsed_statistics(parsed, [StatisticsColumn(("c",), LONG)]).to_pylist()
    assert row["min.0"] is None


@pytest.mark.parametrize(
    ("data_type", "stored"),
    [
        (LONG, pa.scalar(2.0**60)),
        (LONG, pa.scalar(True)),
        (PrimitiveType("integer"), pa.scalar(Decimal(7))),
        (PrimitiveType("double"), pa.scalar(2**60)),
        (PrimitiveType("boolean"), pa.scalar(0)),
        (PrimitiveType("string"), pa.scalar(10)),
        (PrimitiveType("timestamp"), pa.scalar(1704067200123)),
        (PrimitiveType("timestamp"), pa.scalar(dt.date(2024, 1, 1))),
        (PrimitiveType("date"), pa.scalar(dt.datetime(2024, 1, 1, 7))),
        (DecimalType(9, 2), pa.scalar(1234567.89, pa.float32())),
    ],
)
def test_parsed_statistics_that_may_be_rounded_are_unknown(
    data_type: DataType, stored: pa.Scalar
) -> None:
    bounds = pa.StructArray.from_arrays([pa.array([stored.as_py()], stored.type)], names=["c"])
    parsed = pa.StructArray.from_arrays([bounds, bounds], names=["minValues", "maxValues"])
    (row,) = project_parsed_statistics(parsed, [StatisticsColumn(("c",), data_type)]).to_pylist()
    assert (row["min.0"], row["max.0"]) == (None, None)


def test_parsed_dates_serve_a_column_widened_to_timestamps() -> None:
    parsed = pa.array([{"minValues": {"c": dt.date(2024, 1, 2)}}])
    column = StatisticsColumn(("c",), PrimitiveType("timestamp_ntz"))
    (row,) = project_parsed_statistics(parsed, [column]).to_pylist()
    assert row["min.0"] == dt.datetime(2024, 1, 2)


_JSON_VALUES: dict[DataType, st.SearchStrategy[Any]] = {
    LONG: st.integers(-(2**63), 2**63 - 1),
    PrimitiveType("double"): st.floats(allow_nan=False, allow_infinity=False),
    PrimitiveType("string"): st.text(),
    PrimitiveType("boolean"): st.booleans(),
    PrimitiveType("date"): st.dates(),
}


@given(st.data())
def test_what_is_written_is_read_back(data: st.DataObject) -> None:
    data_type = data.draw(st.sampled_from(list(_JSON_VALUES)))
    values = data.draw(st.lists(st.none() | _JSON_VALUES[data_type], max_size=5))
    texts = [json.dumps({"minValues": {"c": each}}, default=str) for each in values]
    assert [row["min.0"] for row in parse(*texts, data_type=data_type)] == values


@given(st.lists(st.none() | st.text(), max_size=5))
def test_any_text_is_a_row(texts: list[str | None]) -> None:
    assert len(parse(*texts)) == len(texts)
