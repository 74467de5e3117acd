"""Filtered scans of random and golden tables give the rows that DuckDB finds among all of them."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dagster_delta import DeltaTable
from dagster_delta.parquet import data_file_reader, opened_file
from dagster_delta.parquet.opened_file import OpenedFile
from tests.parquet.random_filters import (
    compare,
    foreign_table,
    indexed_table,
    own_table,
    readable_tables,
)

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("make", [foreign_table, own_table])
def test_filtered_scans_give_the_rows_that_a_second_reader_finds(
    make: Callable[[Path, random.Random], DeltaTable], seed: int, tmp_path: Path
) -> None:
    draw = random.Random(seed)
    table = make(tmp_path / "t", draw)
    assert [found for found in compare(table, 60, draw) if found is not None] == []


@pytest.mark.parametrize("seed", range(2))
def test_filtered_scans_by_the_page_index_give_the_rows_that_a_second_reader_finds(
    seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(data_file_reader, "_FEW_ROWS", 0)
    monkeypatch.setattr(opened_file, "_BLOCK_ROWS", 1)
    used = 0
    original = data_file_reader.DataFileReader._find_in_pages

    def counted(self: Any, opened: OpenedFile, *arguments: Any) -> Any:
        nonlocal used
        # Each filter is tried on each row group.
        opened.has_selective_pages = True
        found = original(self, opened, *arguments)
        used += found is not None
        return found

    monkeypatch.setattr(data_file_reader.DataFileReader, "_find_in_pages", counted)
    draw = random.Random(seed)
    table = indexed_table(tmp_path / "t", draw)
    assert [found for found in compare(table, 40, draw) if found is not None] == []
    assert used > 5


@pytest.mark.usefixtures("golden_tables")
def test_filtered_scans_of_golden_tables_give_the_rows_that_a_second_reader_finds() -> None:
    draw = random.Random(3)
    found = [found for table in readable_tables() for found in compare(table, 4, draw)]
    assert len(found) > 400
    assert [difference for difference in found if difference is not None] == []
