"""A table of production below a root, and what the tests of its branches share."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Sequence
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


def feed_of(table: DeltaTable, version: int) -> list[tuple[object, ...]]:
    """Kind of change, id and value of each row that a version has changed, sorted."""
    table.refresh()
    feed = table.changes(version, ending_version=version).to_arrow()
    columns = (feed[name].to_pylist() for name in ("_change_type", "id", "v"))
    return sorted(zip(*columns, strict=True))


def check_feed(table: DeltaTable, version: int) -> None:
    """The feed of a version leads from the rows before it to those after it, and has no more."""
    table.refresh()
    names = table.snapshot(version).schema.names
    before, after = (
        Counter(repr(row) for row in _rows_with(table.snapshot(at).scan().to_arrow(), names))
        for at in (version - 1, version)
    )
    feed = table.changes(version, ending_version=version).to_arrow()
    kinds = Counter(feed["_change_type"].to_pylist())
    assert kinds["update_preimage"] == kinds["update_postimage"]
    came, gone = Counter[str](), Counter[str]()
    for kind, row in zip(feed["_change_type"].to_pylist(), _rows_with(feed, names), strict=True):
        (came if kind in ("insert", "update_postimage") else gone)[repr(row)] += 1
    assert gone == before - after
    assert came == after - before


def _rows_with(rows: pa.Table, names: Sequence[str]) -> list[dict[str, object]]:
    return [{name: row.get(name) for name in names} for row in rows.to_pylist()]
