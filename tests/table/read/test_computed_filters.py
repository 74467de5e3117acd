"""Filters with computed values, or over columns that are null, skip files."""

from __future__ import annotations

import datetime as dt
from pathlib import Path

import pyarrow as pa
import pytest

from dagster_delta import DeltaTable

TODAY = dt.datetime.now(dt.UTC).date()
SCHEMA = pa.schema([("id", pa.int64()), ("s", pa.string()), ("day", pa.date32())])
FILTERS: list[tuple[str, set[int], int]] = [
    ("id > 2 * 10", {31, 40}, 2),
    ("id IN (1 + 1, 30 + 1)", {31}, 2),
    ("s = upper('a')", {0}, 1),
    ("s = concat('A', trim(' '))", {0}, 1),
    ("day >= date_sub(current_date(), 7)", {31}, 1),
    ("id = cast('1' || '0' AS BIGINT)", {10}, 2),
    ("id = 10 DIV 0", set(), 5),
    ("upper(s) = 'A'", {0}, 3),
    ("NOT (upper(s) = 'A')", {10, 31}, 3),
    ("length(s) + id > 30", {31}, 3),
    ("upper(s) IN ('A', 'C')", {0, 31}, 3),
    ("coalesce(upper(s) = 'A', true)", {0, 20, 40}, 5),
    ("(upper(s) = 'A') IS NULL", {20, 40}, 5),
    ("(upper(s) = 'A') <=> NULL", {20, 40}, 5),
    ("day < date_add(DATE'9999-12-31', 500000)", {0, 10, 20, 31}, 5),
]
"""Filters, the rows that satisfy them, and the most files of the five that are opened."""


@pytest.fixture
def table(tmp_path: Path) -> DeltaTable:
    table = DeltaTable(tmp_path, must_exist=False)
    for row in (
        {"id": 0, "s": "A", "day": dt.date(2020, 1, 1)},
        {"id": 10, "s": "B", "day": dt.date(2020, 1, 2)},
        {"id": 20, "s": None, "day": dt.date(2020, 1, 3)},
        {"id": 31, "s": "C", "day": TODAY},
        {"id": 40, "s": None, "day": None},
    ):
        table.append(pa.Table.from_pylist([row], SCHEMA))
    return table


@pytest.mark.parametrize(("where", "ids", "num_files"), FILTERS, ids=[each[0] for each in FILTERS])
def test_files_without_matches_are_skipped(
    table: DeltaTable, where: str, ids: set[int], num_files: int
) -> None:
    scan = table.snapshot().scan(where=where)
    assert scan.num_files <= num_files
    if "DIV 0" not in where:
        assert set(scan.to_arrow()["id"].to_pylist()) == ids
