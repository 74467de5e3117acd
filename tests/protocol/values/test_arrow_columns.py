"""Arrow columns from Python lists."""

from __future__ import annotations

import subprocess
import sys

import pyarrow as pa
import pyarrow.compute as pc
from hypothesis import given
from hypothesis import strategies as st

from dagster_delta.protocol.values.arrow_columns import (
    boolean_column,
    chunks_where,
    column_of,
    integer_column,
    map_column,
    string_column,
)

TEXTS = st.none() | st.text(st.characters(codec="utf-8"))
LONGS = st.integers(-(2**63), 2**63 - 1)
MAPS = st.dictionaries(st.text(st.characters(codec="utf-8")), TEXTS, max_size=3)


@given(st.lists(TEXTS))
def test_texts_are_kept(values: list[str | None]) -> None:
    column = string_column(values)
    column.validate(full=True)
    assert column.equals(pa.array(values, pa.string()))


@given(st.lists(st.none() | LONGS))
def test_integers_are_kept(values: list[int | None]) -> None:
    column = integer_column(values)
    column.validate(full=True)
    assert column.equals(pa.array(values, pa.int64()))


@given(st.lists(st.none() | st.integers(-(2**31), 2**31 - 1)))
def test_short_integers_are_kept(values: list[int | None]) -> None:
    assert column_of(values, pa.int32()).equals(pa.array(values, pa.int32()))


@given(st.lists(st.none() | st.booleans()))
def test_booleans_are_kept(values: list[bool | None]) -> None:
    column = boolean_column(values)
    column.validate(full=True)
    assert column.equals(pa.array(values, pa.bool_()))


@given(st.lists(st.none() | MAPS))
def test_maps_are_kept(values: list[dict[str, str | None] | None]) -> None:
    column = map_column(values)
    column.validate(full=True)
    pairs = [None if value is None else list(value.items()) for value in values]
    assert column.to_pylist() == pairs
    assert column.type == pa.map_(pa.string(), pa.string())


NESTED = pa.struct(
    [
        ("text", pa.string()),
        ("flag", pa.bool_()),
        ("number", pa.int32()),
        ("texts", pa.list_(pa.string())),
        ("inner", pa.struct([("pairs", pa.map_(pa.string(), pa.string()))])),
    ]
)
ROWS = st.fixed_dictionaries(
    {},
    optional={
        "text": TEXTS,
        "flag": st.none() | st.booleans(),
        "number": st.none() | st.integers(-(2**31), 2**31 - 1),
        "texts": st.none() | st.lists(TEXTS, max_size=3),
        "inner": st.none() | st.fixed_dictionaries({"pairs": st.none() | MAPS}),
    },
)


@given(st.lists(st.none() | ROWS))
def test_nested_values_are_kept(values: list[dict[str, object] | None]) -> None:
    column = column_of(values, NESTED)
    column.validate(full=True)
    assert column.equals(pa.array(values, NESTED))


def test_no_column_imports_pandas() -> None:
    script = """
import sys
from dagster_delta.protocol.values import arrow_columns
arrow_columns.string_column(["a", None])
arrow_columns.map_column([{"a": "b"}, None])
arrow_columns.boolean_column([True, None])
sys.exit("pandas" in sys.modules)
"""
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 0


@given(st.lists(st.tuples(TEXTS, st.booleans())))
def test_chunks_hold_the_rows_of_a_mask_and_no_others(rows: list[tuple[str | None, bool]]) -> None:
    values = pa.array([text for text, _ in rows], pa.string())
    mask = pa.array([kept for _, kept in rows], pa.bool_())
    chunks = chunks_where(values, mask)
    assert [each for part in chunks for each in part.to_pylist()] == [
        text for text, kept in rows if kept
    ]


_COUNT = 20_000
_NUMBERS = pa.array(range(_COUNT))
_LONG_COLUMNS = (
    _NUMBERS,
    pa.StructArray.from_arrays([_NUMBERS], ["n"]),
    pa.array([[("n", str(number))] for number in range(_COUNT)], pa.map_("string", "string")),
)


@given(st.sets(st.integers(0, _COUNT - 1), max_size=6))
def test_rows_that_drop_out_of_a_long_column_leave_the_others_in_order(dropped: set[int]) -> None:
    mask = pc.invert(pc.is_in(_NUMBERS, pa.array(sorted(dropped), pa.int64())))
    kept = pa.array([number for number in range(_COUNT) if number not in dropped], pa.int64())
    for values in _LONG_COLUMNS:
        found = pa.chunked_array(chunks_where(values, mask), values.type)
        assert found.combine_chunks().equals(values.take(kept))
