"""Catalog-managed tables that other programs wrote, with commits that are not published: those of
delta-kernel-rs (`delta-kernel-unity-catalog/tests/data`) and of delta's `workload_specs`. They are
read from the folder of the variable CATALOG_TABLES, and nothing of them is part of this project.
"""

from __future__ import annotations

import json
import os
import shutil
import urllib.parse
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from dagster_delta import DeltaTable
from dagster_delta.catalogs import UnityCatalog
from dagster_delta.errors import CatalogRequired
from tests.catalogs.unity_server import Table, UnityServer, respell

FOLDER = os.environ.get("CATALOG_TABLES", "")
TABLES = [found.parents[1] for found in sorted(Path(FOLDER or "none").rglob("_staged_commits"))]


@pytest.mark.parametrize("place", TABLES, ids=lambda place: place.parent.name + "-" + place.name)
def test_table_with_unpublished_commits_is_read_and_written(
    server: UnityServer, catalog: UnityCatalog, tmp_path: Path, place: Path
) -> None:
    copied = tmp_path / "copied"
    shutil.copytree(place, copied)
    register(server, copied)
    with pytest.raises(CatalogRequired):
        DeltaTable(copied)
    location = catalog.resolve("main.shop.theirs")
    table = DeltaTable(location.uri, storage_options=location.options)
    held = server.find("main.shop.theirs")
    assert table.version() == held.latest
    for version in range(held.latest + 1):
        assert table.snapshot(version).num_records == rows_at(copied, version)
    rows = table.snapshot().scan().to_arrow()
    assert rows.num_rows == rows_at(copied, held.latest)
    table.append(rows)
    # Everything is published now, in order.
    assert not held.commits
    again = DeltaTable(location.uri, storage_options=location.options)
    assert again.snapshot().scan().to_arrow().num_rows == 2 * rows.num_rows


def test_folder_has_tables() -> None:
    if not FOLDER:
        pytest.skip("CATALOG_TABLES names no folder of tables that other programs wrote")
    assert TABLES


def register(server: UnityServer, copied: Path) -> None:
    """Tell the catalog of the table, and of the commits that are not published."""
    log = copied / "_delta_log"
    first = actions_of(log / f"{0:020d}.json")
    (metadata,) = [one["metaData"] for one in first if "metaData" in one]
    (protocol,) = [one["protocol"] for one in first if "protocol" in one]
    held = Table("theirs", metadata["id"], f"file://{copied}", "MANAGED")
    held.columns = respell(json.loads(metadata["schemaString"]))
    held.partition_columns = metadata["partitionColumns"]
    held.properties = metadata["configuration"]
    held.protocol = {
        "min-reader-version": 3,
        "min-writer-version": 7,
        "reader-features": protocol["readerFeatures"],
        "writer-features": protocol["writerFeatures"],
    }
    for staged in (log / "_staged_commits").glob("*.json"):
        version = int(staged.name.split(".")[0])
        held.commits[version] = {
            "version": version,
            "timestamp": actions_of(staged)[0]["commitInfo"]["inCommitTimestamp"],
            "file-name": staged.name,
            "file-size": staged.stat().st_size,
            "file-modification-timestamp": int(staged.stat().st_mtime * 1000),
        }
    held.latest = max(held.commits)
    server.tables_of("main", "shop")["theirs"] = held


def rows_at(copied: Path, version: int) -> int:
    """The rows of the files that the commits up to a version name."""
    log, live = copied / "_delta_log", set[str]()
    for number in range(version + 1):
        staged = list((log / "_staged_commits").glob(f"{number:020d}.*.json"))
        for one in actions_of(*staged or [log / f"{number:020d}.json"]):
            live |= {one["add"]["path"]} if "add" in one else set()
            live -= {one["remove"]["path"]} if "remove" in one else set()
    files = (copied / urllib.parse.unquote(path) for path in live)
    return sum(pq.read_metadata(file).num_rows for file in files)


def actions_of(file: Path) -> list[Any]:
    return [json.loads(line) for line in file.read_text().splitlines()]
