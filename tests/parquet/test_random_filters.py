"""Filtered scans of random tables give the rows that DuckDB finds among all decoded ones."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import pytest

from dagster_delta import DeltaTable
from tests.parquet.random_filters import compare, foreign_table, own_table


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("make", [foreign_table, own_table])
def test_filtered_scans_give_the_rows_that_a_second_reader_finds(
    make: Callable[[Path, random.Random], DeltaTable], seed: int, tmp_path: Path
) -> None:
    draw = random.Random(seed)
    table = make(tmp_path / "t", draw)
    assert [found for found in compare(table, 60, draw) if found is not None] == []
