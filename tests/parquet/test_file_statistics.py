"""The statistics of new files: what Spark's hold, and never a bound that a value breaks."""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Mapping, Sequence
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dagster_delta.parquet.statistics import truncate_upper_bound
from dagster_delta.protocol.features.table_configuration import TableConfiguration
from dagster_delta.storage.memory_store import MemoryStore
from tests.parquet.data_tables import (
    configuration,
    featured,
    mapped_configuration,
    schema_of,
    write,
)

NAN = float("nan")
INFINITY = float("inf")


def statistics(
    data: pa.Table, config: TableConfiguration | None = None, **bounds: Any
) -> dict[str, Any]:
    config = config or configuration(schema_of(data))
    (file,) = write(MemoryStore(), data, config, **bounds).files
    parsed: dict[str, Any] = json.loads(file.stats or "", parse_float=Decimal)
    return parsed


def bounds(array: pa.Array) -> tuple[Any, Any, Any]:
    """Minimum, maximum and null count of a file of one column."""
    found = statistics(pa.table({"c": array}))
    return (
        found["minValues"].get("c"),
        found["maxValues"].get("c"),
        found["nullCount"].get("c"),
    )


@pytest.mark.parametrize(
    ("array", "expected"),
    [
        (pa.array([3, None, -1], pa.int8()), (-1, 3, 1)),
        (pa.array([2**63 - 1, -(2**63)]), (-(2**63), 2**63 - 1, 0)),
        (pa.array(["b", "a"]), ("a", "b", 0)),
        (pa.array(["", "ä"]), ("", "ä", 0)),
        (pa.array([dt.date(2020, 1, 2), dt.date(1, 1, 1)]), ("0001-01-01", "2020-01-02", 0)),
        (pa.array([Decimal("-1.5"), Decimal("20.0")], pa.decimal128(38, 1)), (Decimal("-1.5"), Decimal("20.0"), 0)),
        (pa.array([Decimal(0)], pa.decimal128(20, 10)), (0, 0, 0)),
        (pa.array([-1, 1999], pa.timestamp("us", "UTC")), ("1969-12-31T23:59:59.999Z", "1970-01-01T00:00:00.001Z", 0)),
        (pa.array([0], pa.timestamp("us")), ("1970-01-01T00:00:00.000",) * 2 + (0,)),
        (pa.array([True, False, None]), (False, True, 1)),
        (pa.array([Decimal("0E-7"), Decimal("1E-7")], pa.decimal128(12, 7)), (Decimal("0E-7"), Decimal("1E-7"), 0)),
        (pa.array([b"a", b"b"]), (None, None, 0)),
        (pa.nulls(2, pa.int64()), (None, None, 2)),
        (pa.array([[1], None, []]), (None, None, 1)),
        (pa.array([[("k", 1)], None], pa.map_(pa.string(), pa.int64())), (None, None, 1)),
    ],
)  # fmt: skip
def test_bounds_and_nulls_of_each_type(array: pa.Array, expected: tuple[Any, Any, Any]) -> None:
    assert bounds(array) == expected


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([1.5, -2.0], (Decimal("-2.0"), Decimal("1.5"))),
        ([1.5, NAN], (Decimal("1.5"), "NaN")),
        ([INFINITY, NAN], ("Infinity", "NaN")),
        ([NAN, NAN, None], ("NaN", "NaN")),
        ([-INFINITY, 1.0, INFINITY], ("-Infinity", "Infinity")),
        ([0.0, -0.0], (Decimal("-0.0"), Decimal("0.0"))),
        ([5e-324, 1.7976931348623157e308], (Decimal("5e-324"), Decimal("1.7976931348623157e308"))),
    ],
)
def test_bounds_of_floats_spell_what_json_lacks_as_text_and_order_nan_last(
    values: list[float | None], expected: tuple[Any, Any]
) -> None:
    assert bounds(pa.array(values))[:2] == expected


def test_bounds_of_decimals_have_no_exponent() -> None:
    data = pa.table({"c": pa.array([Decimal("1E-30"), Decimal(0)], pa.decimal128(38, 30))})
    (file,) = write(MemoryStore(), data, configuration(schema_of(data))).files
    zero, least = (f"0.{'0' * 29}{digit}" for digit in "01")
    assert f'"minValues":{{"c":{zero}}},"maxValues":{{"c":{least}}}' in (file.stats or "")


def test_single_floats_keep_the_digits_of_their_exact_value() -> None:
    # Cut to a float's own digits, 3.14 would lie below the value once read as a double.
    _, highest, _ = bounds(pa.array([3.14], pa.float32()))
    assert float(highest) == pa.scalar(3.14, pa.float32()).as_py()


@pytest.mark.parametrize("microseconds", [-(2**63), 2**63 - 1])
def test_times_beyond_the_year_9999_have_no_bound(microseconds: int) -> None:
    lowest, highest, nulls = bounds(pa.array([microseconds, 0], pa.timestamp("us", "UTC")))
    present = "1970-01-01T00:00:00.000Z"
    assert (lowest, highest) == ((None, present) if microseconds < 0 else (present, None))
    assert nulls == 0


def test_nested_structs_have_nested_statistics_that_count_null_parents() -> None:
    found = statistics(
        pa.table(
            {"s": [{"a": 1, "t": {"b": "x"}, "l": [1]}, {"a": None, "t": None, "l": None}, None]}
        )
    )
    assert found["minValues"] == {"s": {"a": 1, "t": {"b": "x"}}}
    assert found["nullCount"] == {"s": {"a": 2, "t": {"b": 2}, "l": 2}}


@pytest.mark.parametrize(
    ("text", "lowest", "highest"),
    [
        ("a" * 32, "a" * 32, "a" * 32),
        ("a" * 33, "a" * 32, "a" * 32 + "\x7f"),
        ("a" * 32 + "\x7f" + "b", "a" * 32, "a" * 32 + "\U0010ffff"),
        ("a" * 32 + "ü", "a" * 32, "a" * 32 + "\U0010ffff"),
        ("😀" * 40, "😀" * 32, "😀" * 32 + "\U0010ffff"),
        ("a" * 32 + "\U0010ffff" + "b", "a" * 32, None),
        ("a" * 5000, "a" * 32, "a" * 32 + "\x7f"),
        ("\U0010ffff" * 5000, "\U0010ffff" * 32, None),
    ],
)
def test_long_strings_are_cut_so_that_they_still_bound(
    text: str, lowest: str | None, highest: str | None
) -> None:
    assert bounds(pa.array([text]))[:2] == (lowest, highest)


@given(st.text(min_size=25))
def test_a_cut_upper_bound_sorts_at_or_after_the_text(text: str) -> None:
    bound = truncate_upper_bound(text, 32)
    assert bound is None or (bound.encode() >= text.encode() and len(bound) <= 33)


WIDE = pa.table({f"c{i}": [i] for i in range(40)})
NESTED = pa.table({"a": [1], "s": [{"x": 1, "y": {"z": 2}}], "l": [[1]], "b": [2]})


def indexed(data: pa.Table, properties: Mapping[str, str], partition_by: Sequence[str] = ()) -> Any:
    config = configuration(schema_of(data), partition_by, properties)
    return statistics(data, config)["nullCount"]


def test_the_first_32_leaf_columns_are_indexed() -> None:
    assert list(indexed(WIDE, {})) == [f"c{i}" for i in range(32)]


def test_partition_columns_do_not_count() -> None:
    assert list(indexed(WIDE, {}, ["c0", "c1"])) == [f"c{i}" for i in range(2, 34)]


@pytest.mark.parametrize(
    ("number", "expected"),
    [
        (0, {}),
        (1, {"a": 0}),
        (3, {"a": 0, "s": {"x": 0, "y": {"z": 0}}}),
        (4, {"a": 0, "s": {"x": 0, "y": {"z": 0}}, "l": 0}),
        (-1, {"a": 0, "s": {"x": 0, "y": {"z": 0}}, "l": 0, "b": 0}),
    ],
)
def test_the_number_of_indexed_columns_counts_leaves(number: int, expected: Any) -> None:
    assert indexed(NESTED, {"delta.dataSkippingNumIndexedCols": str(number)}) == expected


def test_named_columns_are_indexed_instead_and_a_struct_with_all_it_holds() -> None:
    properties = {"delta.dataSkippingStatsColumns": "s.y,`b`"}
    assert indexed(NESTED, properties) == {"s": {"y": {"z": 0}}, "b": 0}
    assert indexed(NESTED, {"delta.dataSkippingStatsColumns": "S"}) == {
        "s": {"x": 0, "y": {"z": 0}}
    }


DOTTED = pa.table({"c.d": [1], "C": [{"D": 2, "e": 3}], "x": [4]})


def test_a_field_that_is_spelled_as_a_column_has_no_bounds_that_duckdb_would_take_for_its() -> None:
    assert indexed(DOTTED, {}) == {"c.d": 0, "C": {"e": 0}, "x": 0}
    config = mapped_configuration(schema_of(DOTTED), "name")
    assert statistics(DOTTED, config)["maxValues"] == {
        "col-1": 1,
        "col-2": {"col-4": 3},
        "col-5": 4,
    }


def test_such_a_field_has_statistics_where_it_is_named_or_may_be_a_clustering_column() -> None:
    everything = {"c.d": 0, "C": {"D": 0, "e": 0}, "x": 0}
    assert indexed(DOTTED, {"delta.dataSkippingStatsColumns": "`c.d`,C,x"}) == everything
    config = configuration(schema_of(DOTTED), protocol=featured("clustering", "domainMetadata"))
    assert statistics(DOTTED, config)["nullCount"] == everything


def test_statistics_are_keyed_by_physical_names() -> None:
    config = mapped_configuration(schema_of(NESTED), "name")
    found = statistics(NESTED, config)
    assert found["minValues"] == {
        "col-1": 1,
        "col-2": {"col-3": 1, "col-4": {"col-5": 2}},
        "col-7": 2,
    }


def test_tight_bounds_are_recorded_where_deletion_vectors_may_come() -> None:
    data = pa.table({"a": [1]})
    assert "tightBounds" not in statistics(data)
    config = configuration(schema_of(data), protocol=featured("deletionVectors"))
    assert statistics(data, config)["tightBounds"] is True


def test_bounds_hold_over_all_row_groups() -> None:
    data = pa.table(
        {
            "n": list(range(95)),
            "x": [float(i) for i in range(95)],
            "y": [NAN if i == 15 else float(i) for i in range(95)],
            "d": pa.array([Decimal(i - 50) for i in range(95)], pa.decimal128(30, 0)),
            "sparse": [1 if i == 42 else None for i in range(95)],
            "nan": [NAN if i < 10 else INFINITY if i < 20 else float(i) for i in range(95)],
            "long": [None if i < 10 else "x" * 5000 if i in (33, 34) else "b" for i in range(95)],
        }
    )
    found = statistics(data, row_group_rows=10)
    assert found["numRecords"] == 95
    lowest = {"n": 0, "x": 0, "y": 0, "d": -50, "sparse": 1, "nan": 20, "long": "b"}
    assert found["minValues"] == lowest
    highest = {"n": 94, "x": 94, "d": 44, "sparse": 1, "long": "x" * 32 + "\x7f"}
    assert found["maxValues"] == {**highest, "y": "NaN", "nan": "NaN"}
    assert found["nullCount"]["sparse"] == 94
