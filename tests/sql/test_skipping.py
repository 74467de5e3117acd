"""Conditions against bounds: what may match, what cannot, and never a file lost."""

from __future__ import annotations

import datetime as dt
import math
from collections.abc import Callable, Iterable
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dagster_delta.protocol.schema import DataType, DecimalType, PrimitiveType
from dagster_delta.protocol.statistics.bounds import (
    ColumnBounds,
    bounds_of_partition_values,
    bounds_of_statistics,
)
from dagster_delta.protocol.values.arrow_schema import to_arrow_type
from dagster_delta.sql.skipping import possible_outcomes, starts_with
from dagster_delta.sql.typed import (
    FALSE,
    TRUE,
    UNKNOWN,
    Call,
    Cast,
    Column,
    Literal,
    Refused,
    Typed,
)
from dagster_delta.sql.types import BOOLEAN

LONG, DOUBLE, STRING = PrimitiveType("long"), PrimitiveType("double"), PrimitiveType("string")
DATE, TIMESTAMP = PrimitiveType("date"), PrimitiveType("timestamp")
COLUMN: tuple[str, ...] = ("c",)


def bounds(
    data_type: DataType,
    *files: tuple[object, object, int | None, int | None],
) -> dict[tuple[str, ...], ColumnBounds]:
    """Bounds of files given as (minimum, maximum, null count, number of records)."""
    lows, highs, nulls, records = zip(*files, strict=True)
    arrow_type = to_arrow_type(data_type)
    table = pa.table(
        {
            "num_records": pa.array(records, pa.int64()),
            "min.0": pa.array(lows, arrow_type),
            "max.0": pa.array(highs, arrow_type),
            "null_count.0": pa.array(nulls, pa.int64()),
        }
    )
    return {COLUMN: bounds_of_statistics(table, 0, data_type)}


def matches(condition: Typed, known: dict[tuple[str, ...], ColumnBounds]) -> list[bool]:
    count = len(next(iter(known.values())).minimum)
    found: list[bool] = possible_outcomes(condition, known, count).true.to_pylist()
    return found


def column(data_type: DataType = LONG) -> Column:
    return Column(COLUMN, data_type)


def compare(operator: str, value: object, data_type: DataType = LONG) -> Call:
    return Call(operator, (column(data_type), Literal(value, data_type)), BOOLEAN)


def is_in(values: Iterable[object], data_type: DataType = LONG) -> Call:
    return call("in", column(data_type), *(Literal(value, data_type) for value in values))


def call(name: str, *operands: Typed) -> Call:
    return Call(name, operands, BOOLEAN)


IS_NULL = call("is null", column())
NULL = Literal(None, BOOLEAN)


@pytest.mark.parametrize(
    ("operator", "expected"),
    [
        ("=", [False, True, False, True]),
        ("<", [True, True, False, True]),
        ("<=", [True, True, False, True]),
        (">", [False, True, True, True]),
        (">=", [False, True, True, True]),
    ],
)
def test_a_file_is_kept_where_its_range_allows_a_match(operator: str, expected: list[bool]) -> None:
    known = bounds(LONG, (1, 4, 0, 9), (4, 6, 0, 9), (6, 9, 0, 9), (None, None, None, None))
    assert matches(compare(operator, 5), known) == expected


def test_not_equal_drops_only_files_of_that_one_value() -> None:
    known = bounds(LONG, (5, 5, 0, 9), (5, 5, 2, 9), (5, 6, 0, 9), (5, None, 0, 9))
    assert matches(call("not", compare("=", 5)), known) == [False, False, True, True]
    # Null is different from 5 for `IS DISTINCT FROM`.
    assert matches(call("not", call("<=>", compare("=", 5), TRUE)), known) == [
        False,
        True,
        True,
        True,
    ]


def test_null_counts_decide_where_they_are_none_or_all() -> None:
    known = bounds(LONG, (1, 9, 0, 9), (None, None, 9, 9), (1, 9, 3, 9), (1, 9, None, 9), (1, 9, 9, None))  # fmt: skip
    assert matches(IS_NULL, known) == [False, True, True, True, True]
    assert matches(call("not", IS_NULL), known) == [True, False, True, True, True]
    assert matches(compare("=", 5), known) == [True, False, True, True, True]


def test_negation_of_a_null_is_no_match() -> None:
    known = bounds(LONG, (None, None, 9, 9))
    assert matches(call("not", compare("=", 5)), known) == [False]
    assert matches(call("not", call("<=>", compare("=", 5), TRUE)), known) == [True]


def test_unknown_parts_leave_the_rest_to_prune() -> None:
    known = bounds(LONG, (1, 4, 0, 9), (5, 9, 0, 9))
    assert matches(call("and", UNKNOWN, compare("<", 5)), known) == [True, False]
    assert matches(call("or", UNKNOWN, compare("<", 5)), known) == [True, True]
    assert matches(call("not", call("and", UNKNOWN, compare("<", 5))), known) == [True, True]


def test_constants_match_everything_or_nothing() -> None:
    known = bounds(LONG, (1, 4, 0, 9))
    assert matches(TRUE, known) == [True]
    assert matches(FALSE, known) == [False]
    assert matches(NULL, known) == [False]
    assert matches(call("not", NULL), known) == [False]


def test_lists_are_looked_for_value_by_value() -> None:
    known = bounds(LONG, (2, 3, 0, 9), (4, 6, 0, 9), (8, 8, 0, 9), (None, None, None, None))
    values = is_in((1, 5, 8))
    assert matches(values, known) == [False, True, True, True]
    assert matches(call("not", values), known) == [True, True, False, True]
    # With a null in the list nothing is surely outside it.
    assert matches(call("not", is_in((1, None))), known) == [False] * 4
    assert matches(is_in(()), known) == [False] * 4


def test_long_lists_are_looked_for_as_ranges() -> None:
    known = bounds(LONG, (3, 3, 0, 9), (10**6, 10**7, 0, 9))
    values = is_in(range(0, 100_000, 2))
    assert matches(values, known) == [True, False]


def test_prefixes_prune_by_both_bounds() -> None:
    known = bounds(
        STRING, ("aa", "ab", 0, 9), ("ab", "b", 0, 9), ("b", "c", 0, 9), ("ab", "abz", 0, 9)
    )
    prefix = starts_with(column(STRING), "ab")
    assert matches(prefix, known) == [True, True, False, True]
    assert matches(call("not", prefix), known) == [True, True, True, False]


@pytest.mark.parametrize("prefix", ["\ud7ff", "a\U0010ffff", "\U0010ffff", ""])
def test_prefixes_at_the_end_of_the_alphabet_keep_their_files(prefix: str) -> None:
    known = bounds(STRING, (prefix + "x", prefix + "y", 0, 9))
    assert matches(starts_with(column(STRING), prefix), known) == [True]


def test_a_cut_maximum_of_a_string_does_not_hide_longer_values() -> None:
    cut = "x" * 32
    known = bounds(STRING, ("a", cut, 0, 9), ("a", cut[:31], 0, 9))
    assert matches(compare("=", cut + "tail", STRING), known) == [True, False]
    assert matches(compare(">", cut + "a", STRING), known) == [True, False]


def test_timestamps_cut_to_milliseconds_keep_their_last_millisecond() -> None:
    cut = dt.datetime(2024, 1, 1, 12, 0, 0, 123_000, dt.UTC)
    known = bounds(TIMESTAMP, (cut, cut, 0, 9))
    just_after = cut + dt.timedelta(microseconds=999)
    assert matches(compare("=", just_after, TIMESTAMP), known) == [True]
    assert matches(compare(">", cut, TIMESTAMP), known) == [True]
    assert matches(compare(">", cut + dt.timedelta(milliseconds=2), TIMESTAMP), known) == [False]
    assert matches(call("not", compare("=", cut, TIMESTAMP)), known) == [True]


def test_the_greatest_timestamp_does_not_overflow() -> None:
    table = pa.table(
        {
            "num_records": [1],
            "min.0": pa.array([0], pa.timestamp("us", "UTC")),
            "max.0": pa.array([2**63 - 1], pa.int64()).cast(pa.timestamp("us", "UTC")),
            "null_count.0": [0],
        }
    )
    known = {COLUMN: bounds_of_statistics(table, 0, TIMESTAMP)}
    assert matches(compare(">", dt.datetime(2024, 1, 1, tzinfo=dt.UTC), TIMESTAMP), known) == [True]


def test_nan_may_hide_above_the_maximum_of_a_float() -> None:
    known = bounds(DOUBLE, (1.0, 2.0, 0, 9))
    assert matches(compare(">", 5.0, DOUBLE), known) == [True]
    assert matches(compare(">=", 5.0, DOUBLE), known) == [True]
    assert matches(call("not", compare("<=", 5.0, DOUBLE)), known) == [True]
    assert matches(compare("=", 5.0, DOUBLE), known) == [False]
    assert matches(compare("<", 1.0, DOUBLE), known) == [False]
    assert matches(is_in((5.0,), DOUBLE), known) == [False]
    assert matches(call("not", is_in((1.0,), DOUBLE)), bounds(DOUBLE, (1.0, 1.0, 0, 9))) == [True]
    assert matches(compare("=", math.nan, DOUBLE), known) == [True]
    assert matches(compare("<", math.nan, DOUBLE), known) == [True]


def test_bounds_that_spell_a_float_do_not_hide_its_double() -> None:
    widened = 3.4000000953674316  # the float 3.4
    known = bounds(DOUBLE, (3.4, 3.4, 0, 9), (1e300, 1e300, 0, 9))
    assert matches(compare("=", widened, DOUBLE), known) == [True, False]
    smaller = 1.100000023841858
    assert matches(
        compare("<=", 0.30000001192092896, DOUBLE), bounds(DOUBLE, (0.3, 1.1, 0, 9))
    ) == [True]
    assert matches(is_in((smaller,), DOUBLE), bounds(DOUBLE, (0.3, 1.1, 0, 9))) == [True]


def test_nan_as_a_bound_is_no_bound() -> None:
    known = bounds(DOUBLE, (math.nan, math.nan, 0, 9), (1.0, math.nan, 0, 9))
    assert matches(compare("=", 5.0, DOUBLE), known) == [True, True]
    assert matches(compare("<", 0.0, DOUBLE), known) == [True, False]


def test_partition_values_are_exact() -> None:
    values = pa.array([1, 5, None], pa.int64())
    known = {COLUMN: bounds_of_partition_values(values, LONG)}
    outcomes = possible_outcomes(compare("=", 5), known, 3)
    assert outcomes.true.to_pylist() == [False, True, False]
    assert outcomes.only_true.to_pylist() == [False, True, False]
    assert matches(IS_NULL, known) == [False, False, True]
    floats = {COLUMN: bounds_of_partition_values(pa.array([1.0, math.nan]), DOUBLE)}
    assert matches(compare(">", 2.0, DOUBLE), floats) == [False, True]


@pytest.mark.parametrize(
    ("data_type", "low", "high", "literal", "value"),
    [
        (PrimitiveType("integer"), 1, 3, LONG, 4),
        (PrimitiveType("integer"), 1, 3, DOUBLE, 3.5),
        (PrimitiveType("integer"), 1, 3, DecimalType(12, 2), Decimal("3.01")),
        (PrimitiveType("float"), 1.0, 3.0, DOUBLE, 3.5),
        (DecimalType(5, 2), Decimal("1.00"), Decimal("3.00"), DecimalType(6, 3), Decimal("3.001")),
        (DATE, dt.date(2024, 1, 1), dt.date(2024, 1, 2), TIMESTAMP, dt.datetime(2024, 1, 2, 1, tzinfo=dt.UTC)),
        (TIMESTAMP, dt.datetime(2024, 1, 1, tzinfo=dt.UTC), dt.datetime(2024, 1, 2, tzinfo=dt.UTC), DATE, dt.date(2024, 1, 3)),
    ],
)  # fmt: skip
def test_bounds_are_compared_in_the_wider_type(
    data_type: DataType, low: object, high: object, literal: DataType, value: object
) -> None:
    known = bounds(data_type, (low, high, 0, 9))
    operands = Cast(column(data_type), literal), Literal(value, literal)
    assert matches(call("=", *operands), known) == [False]
    assert matches(call("<", *operands), known) == [True]


def test_columns_without_bounds_are_never_pruned() -> None:
    assert possible_outcomes(compare("=", 1), {}, 2).true.to_pylist() == [True, True]
    assert possible_outcomes(IS_NULL, {}, 2).true.to_pylist() == [True, True]
    assert possible_outcomes(starts_with(column(STRING), "x"), {}, 2).true.to_pylist() == [
        True,
        True,
    ]
    known = bounds(STRING, ("a", "b", 0, 9))
    # Text bounds say nothing about the numbers the text stands for.
    as_number = call("=", Cast(column(STRING), LONG), Literal(7, LONG))
    assert matches(as_number, known) == [True]


# A model: rows in files, true statistics of them, and conditions evaluated row by row.

_TYPES: dict[str, tuple[DataType, st.SearchStrategy[Any]]] = {
    "long": (LONG, st.integers(-3, 3)),
    "double": (DOUBLE, st.sampled_from([-1.0, -0.0, 0.0, 1.5, math.nan, math.inf])),
    "string": (STRING, st.sampled_from(["", "a", "ab", "abc", "b", "a" * 31 + "b" * 5, "a" * 40])),
    "decimal": (DecimalType(5, 2), st.sampled_from([Decimal("-1.5"), Decimal("0.00"), Decimal("2.25")])),
    "timestamp": (TIMESTAMP, st.integers(0, 3_000).map(lambda us: dt.datetime(2024, 1, 1, tzinfo=dt.UTC) + dt.timedelta(microseconds=us))),
    "boolean": (PrimitiveType("boolean"), st.booleans()),
}  # fmt: skip


@st.composite
def _conditions(draw: st.DrawFn, kind: str, depth: int = 3) -> Typed:
    data_type, values = _TYPES[kind]
    leaves = ["compare", "in", "null", "constant", "unknown"] + ["prefix"] * (kind == "string")
    shape = draw(st.sampled_from(leaves + ["not", "and", "or", "<=>", "coalesce"] * (depth > 0)))
    inner = _conditions(kind, depth - 1)
    match shape:
        case "compare":
            operators = st.sampled_from(["=", "<", "<=", ">", ">="])
            return compare(draw(operators), draw(values), data_type)
        case "in":
            return is_in(draw(st.lists(st.none() | values, max_size=3)), data_type)
        case "null":
            return call("is null", column(data_type))
        case "prefix":
            return starts_with(
                column(data_type), draw(st.sampled_from(["", "a", "ab", "b", "a" * 33]))
            )
        case "constant":
            return draw(st.sampled_from([TRUE, FALSE, NULL]))
        case "not":
            return call("not", draw(inner))
        case "<=>" | "coalesce":
            return call(shape, draw(inner), draw(st.sampled_from([TRUE, FALSE])))
        case "and" | "or":
            return call(shape, *draw(st.lists(inner, min_size=1, max_size=3)))
        case _:
            return UNKNOWN


def _key(value: Any) -> Any:
    """Values in Spark's order: NaN equals itself and is the greatest; zeros are equal."""
    if isinstance(value, float):
        return (1, 0.0) if math.isnan(value) else (0, value)
    return value.encode() if isinstance(value, str) else value


_OPERATORS: dict[str, Callable[[Any, Any], bool]] = {
    "=": lambda a, b: a == b,
    "<": lambda a, b: a < b,
    "<=": lambda a, b: a <= b,
    ">": lambda a, b: a > b,
    ">=": lambda a, b: a >= b,
}


def _truth(condition: Typed, value: Any, unknown: bool | None) -> bool | None:
    match condition:
        case Literal(bool() | None as constant):
            return constant
        case Refused():
            return unknown
        case Call("is null"):
            return value is None
        case Call("not" | "and" | "or" | "<=>" | "coalesce" as name, operands):
            first, *others = (_truth(operand, value, unknown) for operand in operands)
            match name:
                case "not":
                    return None if first is None else not first
                case "<=>":
                    return first is others[0]
                case "coalesce":
                    return others[0] if first is None else first
            decisive = name == "or"
            found = [first, *others]
            return decisive if decisive in found else None if None in found else not decisive
        case Call(operator, (_, *constants)):
            known = [_key(each.value) for each in constants if isinstance(each, Literal)]
            if value is None:
                return None
            if operator != "in":
                return _OPERATORS[operator](_key(value), known[0])
            return _key(value) in known or (None if None in known else False)
    raise AssertionError(condition)


def _statistics(rows: list[Any], writer: str) -> tuple[object, object, int | None, int | None]:
    """What a writer records about some rows.

    `plain` is exact but for what the format cuts; `careless` leaves NaN out; `wide` is from before
    rows were deleted; `none` records nothing.
    """
    values = [each for each in rows if each is not None]
    if writer == "careless":
        values = [each for each in values if each == each]
    if writer == "none":
        return None, None, None, None
    low = min(values, key=_key) if values else None
    high = max(values, key=_key) if values else None
    if isinstance(low, dt.datetime) and isinstance(high, dt.datetime):
        low, high = (
            each.replace(microsecond=each.microsecond // 1000 * 1000) for each in (low, high)
        )
    if isinstance(low, str) and isinstance(high, str):
        low, high = low[:32], high[:32]
    nulls = len(rows) - len([each for each in rows if each is not None])
    return low, high, nulls, len(rows)


@given(st.data())
def test_pruning_never_drops_a_file_with_a_match(data: st.DataObject) -> None:
    kind = data.draw(st.sampled_from(sorted(_TYPES)))
    data_type, values = _TYPES[kind]
    files = data.draw(
        st.lists(st.lists(st.none() | values, max_size=4), min_size=1, max_size=5), label="files"
    )
    writers = [data.draw(st.sampled_from(["plain", "careless", "wide", "none"])) for _ in files]
    condition = data.draw(_conditions(kind), label="condition")
    unknown = data.draw(st.sampled_from([True, False, None]), label="unknown parts are")
    recorded = [_statistics(rows, writer) for rows, writer in zip(files, writers, strict=True)]
    outcomes = possible_outcomes(condition, bounds(data_type, *recorded), len(files))
    for index, (rows, writer) in enumerate(zip(files, writers, strict=True)):
        # Wide statistics stay as they were when rows of the file are deleted.
        alive = rows[::2] if writer == "wide" else rows
        truths = {_truth(condition, value, unknown) for value in alive}
        assert not (True in truths and not outcomes.true[index].as_py())
        assert not (False in truths and not outcomes.false[index].as_py())
        assert not (None in truths and not outcomes.null[index].as_py())


@given(st.data())
def test_partition_values_never_drop_a_file_with_a_match(data: st.DataObject) -> None:
    kind = data.draw(st.sampled_from(sorted(_TYPES)))
    data_type, values = _TYPES[kind]
    rows = data.draw(st.lists(st.none() | values, min_size=1, max_size=5))
    condition = data.draw(_conditions(kind))
    known = bounds_of_partition_values(pa.array(rows, to_arrow_type(data_type)), data_type)
    outcomes = possible_outcomes(condition, {COLUMN: known}, len(rows))
    for index, value in enumerate(rows):
        truth = _truth(condition, value, unknown=True)
        assert not (truth is True and not outcomes.true[index].as_py())
        assert not (truth is not True and outcomes.only_true[index].as_py())
