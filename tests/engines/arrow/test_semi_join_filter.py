"""Rows that are left out of a join early."""

from __future__ import annotations

import datetime as dt
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dagster_delta.engines.arrow import merge_join
from dagster_delta.engines.arrow.merge_join import SemiJoinFilter
from dagster_delta.storage.memory_store import MemoryStore
from dagster_delta.table.delta_table import DeltaTable

LONGS = st.none() | st.integers(-(2**63), 2**63 - 1) | st.integers(-5, 5)


@given(st.lists(st.lists(LONGS, max_size=8), max_size=3), st.lists(LONGS, max_size=20))
def test_what_is_there_passes(chunks: list[list[int | None]], others: list[int | None]) -> None:
    keys = pa.chunked_array(chunks, pa.int64())
    known = [each for each in keys.to_pylist() if each is not None]
    semi_join = SemiJoinFilter(keys)
    values = pa.array([None, *others, *known], pa.int64()).slice(1)
    passes = semi_join.may_be_there(values).to_pylist()
    assert len(passes) == len(values)
    assert all(
        passed for passed, value in zip(passes, values.to_pylist(), strict=True) if value in known
    )


def test_little_else_passes() -> None:
    semi_join = SemiJoinFilter(pa.chunked_array([pa.array(range(0, 10**9, 10**6 + 3))]))
    passes = semi_join.may_be_there(pa.array(range(0, 10**8, 997)))
    assert passes.true_count < len(passes) / 8


def test_many_keys_and_texts_are_not_filtered(monkeypatch: pytest.MonkeyPatch) -> None:
    assert SemiJoinFilter.takes(pa.chunked_array([[1, 2]]))
    assert not SemiJoinFilter.takes(pa.chunked_array([["1", "2"]]))
    monkeypatch.setattr(merge_join, "_MAX_KEYS", 1)
    assert not SemiJoinFilter.takes(pa.chunked_array([[1, 2]]))


@pytest.mark.parametrize(
    ("keys", "kind"),
    [
        ([-128, 127, 0, None], pa.int8()),
        ([-(2**15), 2**15 - 1, 0, None], pa.int16()),
        ([-(2**31), 2**31 - 1, 0, None], pa.int32()),
        ([-(2**63), 2**63 - 1, 0, None], pa.int64()),
        ([dt.date(1, 1, 1), dt.date(9999, 12, 31), dt.date(1970, 1, 1), None], pa.date32()),
        (["a", "b", "", None], pa.string()),
    ],
    ids=str,
)
@pytest.mark.parametrize("operator", ["=", "<=>"])
def test_keys_of_every_kind_are_matched(keys: list[Any], kind: Any, operator: str) -> None:
    table = DeltaTable("", store=MemoryStore(), must_exist=False)
    table.append(pa.table({"k": pa.array(keys, kind), "v": [1, 2, 3, 4]}))
    source = pa.table({"k": pa.array([keys[1], keys[0], None], kind), "v": [20, 10, 40]})
    merge = table.merge(source, f"t.k {operator} s.k")
    merge.when_matched_update_all().when_not_matched_insert_all().execute()
    found = sorted(table.snapshot().scan().to_arrow()["v"].to_pylist())
    assert found == ([3, 4, 10, 20, 40] if operator == "=" else [3, 10, 20, 40])
