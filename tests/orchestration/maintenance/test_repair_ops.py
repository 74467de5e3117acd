"""Ops of user-defined jobs that repair a table and purge its files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import dagster as dg

from dagster_delta import DeltaTable, fsck_op, reorg_op
from tests.sample_tables import VECTORS, numbered


@dg.job
def repairing() -> None:
    reorg_op(start=fsck_op())


def run(uri: str, dry_run: bool, **reorg: Any) -> dict[str, Any]:
    """The metadata of both steps of one run."""
    config = {
        "fsck_op": {"config": {"uri": uri, "dry_run": dry_run}},
        "reorg_op": {"config": {"uri": uri, **reorg}},
    }
    with dg.DagsterInstance.ephemeral() as instance:
        result = repairing.execute_in_process({"ops": config}, instance=instance)
        metadata: dict[str, Any] = {}
        for event in result.all_events:
            if event.is_successful_output:
                metadata |= {
                    name: value.value for name, value in event.step_output_data.metadata.items()
                }
        return metadata


def test_a_lost_file_is_removed_and_deleted_rows_are_purged(tmp_path: Path) -> None:
    uri = str(tmp_path / "table")
    table = DeltaTable(uri, must_exist=False)
    for first in range(0, 30, 10):
        table.append(numbered(*range(first, first + 10)), properties=VECTORS)
    table.delete("id = 5")
    kept = table.snapshot().files().filter(table.snapshot().files()["has_deletion_vector"])
    lost = next(
        path
        for path in table.snapshot().files()["path"].to_pylist()
        if path not in kept["path"].to_pylist()
    )
    (Path(uri) / lost).unlink()
    found = run(uri, dry_run=True, deletion_vectors=False, where="id = 5")
    assert (found["delta/fsck_missing_files"], found["delta/fsck_removed_files"]) == (1, 0)
    assert found["delta/fsck_first_files"][0]["path"] == lost
    assert found["delta/reorg_files_removed"] == 0
    found = run(uri, dry_run=False)
    assert found["delta/fsck_removed_files"] == 1
    assert found["delta/reorg_files_removed"] == 1
    assert found["delta/reorg_bytes_removed"] > 0
    table.refresh()
    assert found["delta/reorg_versions"] == str(table.version())
    assert table.snapshot().num_records == 19
    assert not any(table.snapshot().files()["has_deletion_vector"].to_pylist())
    runs = [entry for entry in table.history(2) if entry.operation in ("FSCK", "REORG")]
    assert len(runs) == 2


def test_an_op_that_is_not_enabled_does_nothing(tmp_path: Path) -> None:
    uri = str(tmp_path / "table")
    table = DeltaTable(uri, must_exist=False)
    table.append(numbered(1, 2), properties=VECTORS)
    table.delete("id = 1")
    (Path(uri) / table.snapshot().files()["path"][0].as_py()).unlink()
    ops = {
        "fsck_op": {"config": {"uri": uri, "dry_run": False, "enabled": False}},
        "reorg_op": {"config": {"uri": uri, "enabled": False}},
    }
    assert repairing.execute_in_process({"ops": ops}).success
    table.refresh()
    assert table.version() == 1
