"""A table of production below a root, and what the tests of its branches share."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pyarrow as pa
import pytest

from dagster_delta.table.branches.branch import Branch
from dagster_delta.table.delta_table import DeltaTable

PROPERTIES = {
    "delta.enableDeletionVectors": "true",
    "delta.enableChangeDataFeed": "true",
    "delta.enableRowTracking": "true",
}


def rows(*ids: int, value: str = "a") -> pa.Table:
    return pa.table({"id": pa.array(ids, pa.int64()), "v": [value] * len(ids)})


@pytest.fixture
def root(tmp_path: Path) -> str:
    return str(tmp_path / "lake")


@pytest.fixture
def production(root: str) -> DeltaTable:
    table = DeltaTable(f"{root}/raw/orders", must_exist=False)
    table.append(rows(1, 2, 3), properties=PROPERTIES)
    table.append(rows(4, 5, 6))
    table.delete("id = 5")
    return table


def begin(branch: Branch, production: DeltaTable) -> DeltaTable:
    """The branch's own table, to write."""
    table = branch.begin(production.uri)
    assert table is not None
    return table


def ids(table: DeltaTable) -> list[int]:
    return sorted(table.refresh().scan().to_arrow()["id"].to_pylist())


def digest(directory: str) -> dict[str, str]:
    return {
        str(path.relative_to(directory)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in Path(directory).rglob("*")
        if path.is_file()
    }
