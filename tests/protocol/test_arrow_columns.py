"""Arrow columns from Python lists."""

from __future__ import annotations

import subprocess
import sys

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from dagster_delta.protocol.arrow_columns import (
    boolean_column,
    index_column,
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
    assert integer_column(values, pa.int32()).equals(pa.array(values, pa.int32()))


@given(st.lists(LONGS))
def test_indices_are_kept(values: list[int]) -> None:
    assert index_column(iter(values)).equals(pa.array(values, pa.int64()))


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


def test_no_column_imports_pandas() -> None:
    script = """
import sys
from dagster_delta.protocol import arrow_columns
arrow_columns.string_column(["a", None])
arrow_columns.map_column([{"a": "b"}, None])
arrow_columns.boolean_column([True, None])
sys.exit("pandas" in sys.modules)
"""
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 0
