"""Filtered scans of random and golden tables give the rows that DuckDB finds among all of them."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import pytest

from dagster_delta import DeltaTable
from tests.parquet.random_filters import compare, foreign_table, own_table, readable_tables

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("make", [foreign_table, own_table])
def test_filtered_scans_give_the_rows_that_a_second_reader_finds(
    make: Callable[[Path, random.Random], DeltaTable], seed: int, tmp_path: Path
) -> None:
    draw = random.Random(seed)
    table = make(tmp_path / "t", draw)
    assert [found for found in compare(table, 60, draw) if found is not None] == []


@pytest.mark.usefixtures("golden_tables")
def test_filtered_scans_of_golden_tables_give_the_rows_that_a_second_reader_finds() -> None:
    draw = random.Random(3)
    found = [found for table in readable_tables() for found in compare(table, 4, draw)]
    assert len(found) > 400
    assert [difference for difference in found if difference is not None] == []
