"""Writes that sort the rows of each file."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import dagster as dg
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dagster_delta import DeltaIOManager, DeltaTable
from dagster_delta.errors import InvalidArgument

COUNT = 500


def unsorted() -> pa.Table:
    numbers = list(range(COUNT))
    random.Random(7).shuffle(numbers)
    strings = [None if n % 50 == 0 else f"s{n % 9}" for n in numbers]
    return pa.table({"n": numbers, "s": strings, "p": [n % 3 for n in numbers]})


def files_of(uri: str) -> list[list[dict[str, Any]]]:
    paths = DeltaTable(uri).snapshot().scan().files()["path"].to_pylist()
    return [pq.read_table(Path(uri, each)).to_pylist() for each in paths]


def check_sorted(uri: str) -> None:
    files = files_of(uri)
    assert sum(map(len, files)) == COUNT
    for rows in files:
        keys = [(row["s"] is None, row["s"] or "", row["n"]) for row in rows]
        assert keys == sorted(keys)
        assert keys


@pytest.mark.parametrize(
    ("columns", "what"),
    [
        (["q"], "the columns are"),
        (["p"], "partition column"),
        (["l"], "no order"),
        ("n", r"\['n'\]"),
    ],
)
def test_what_cannot_be_sorted_by_is_refused(tmp_path: Path, columns: Any, what: str) -> None:
    table = DeltaTable(str(tmp_path), must_exist=False)
    rows = pa.table({"n": [1], "p": [1], "l": [[1]]})
    with pytest.raises(InvalidArgument, match=what):
        table.append(rows, partition_by=["p"], sort_by=columns)
    assert not list(tmp_path.rglob("*.parquet"))


def test_an_asset_asks_for_sorted_files(tmp_path: Path) -> None:
    @dg.asset(metadata={"sort_by": ["s", "n"]})
    def numbers() -> pa.Table:
        return unsorted()

    dg.materialize([numbers], resources={"io_manager": DeltaIOManager(root_uri=str(tmp_path))})
    check_sorted(str(tmp_path / "public" / "numbers"))


def test_an_asset_that_merges_cannot_ask_for_sorted_files(tmp_path: Path) -> None:
    @dg.asset(
        metadata={"mode": "merge", "sort_by": "n", "merge_config": {"predicate": "s.n = t.n"}}
    )
    def numbers() -> pa.Table:
        return unsorted()

    resources = {"io_manager": DeltaIOManager(root_uri=str(tmp_path))}
    with pytest.raises(Exception, match="a merge does not support sort_by"):
        dg.materialize([numbers], resources=resources)
