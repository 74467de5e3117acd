"""FSCK: files that vanished from storage are found, and removed from the log."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from dagster_delta.errors import DataFileMissing, UnsupportedFeature
from dagster_delta.storage.memory_store import MemoryStore
from dagster_delta.table.delta_table import DeltaTable
from tests.sample_tables import VECTORS, numbered
from tests.table.logs import actions
from tests.table.operations.test_optimize import make
from tests.table_rows import ids_of


@pytest.mark.parametrize("num_files", [3, 1000], ids=["looked up", "listed"])
def test_a_dry_run_names_what_vanished_and_a_repair_removes_it(num_files: int) -> None:
    table = DeltaTable("", store=MemoryStore(), must_exist=False)
    table.append(pa.table({"id": range(num_files), "p": range(num_files)}), partition_by=["p"])
    lost = table.snapshot().files()["path"][1].as_py()
    table.store.delete([lost])
    found = table.fsck()
    assert found.dry_run
    assert found.files["path"].to_pylist() == [lost]
    assert found.files["missing"].to_pylist() == ["data file"]
    assert (found.version, found.num_removed) == (0, 0)
    with pytest.raises(DataFileMissing):
        ids_of(table)
    repaired = table.fsck(dry_run=False)
    assert (repaired.version, repaired.num_removed) == (1, 1)
    assert len(ids_of(table)) == num_files - 1
    assert actions(table)["commitInfo"][0]["operation"] == "FSCK"
    assert [each["path"] for each in actions(table)["remove"]] == [lost]
    assert table.fsck(dry_run=False).version == 1


def test_a_file_without_its_deletion_vector_is_reported_and_stays() -> None:
    table = DeltaTable("", store=MemoryStore(), must_exist=False)
    table.append(numbered(*range(20_000)), properties=VECTORS)
    table.delete("id % 7 = 3")
    (vector,) = (each.path for each in table.store.list_recursive() if each.path.endswith(".bin"))
    table.store.delete([vector])
    found = table.fsck(dry_run=False)
    assert found.files["missing"].to_pylist() == ["deletion vector"]
    assert found.num_removed == 0
    assert table.version() == 1


def test_an_append_only_table_is_not_repaired() -> None:
    table = make(2, {"delta.appendOnly": "true"})
    table.store.delete([table.snapshot().files()["path"][0].as_py()])
    assert table.fsck().files.num_rows == 1
    with pytest.raises(UnsupportedFeature, match="append-only"):
        table.fsck(dry_run=False)


def test_fsck_and_health_report_second_optimize_of_deltalake_that_doubles_rows(
    tmp_path: Path,
) -> None:
    deltalake = pytest.importorskip("deltalake")
    uri = str(tmp_path / "t")
    for number in range(3):
        deltalake.write_deltalake(uri, pa.table({"a": [number]}), mode="append")
    one, other = deltalake.DeltaTable(uri), deltalake.DeltaTable(uri)
    one.optimize.compact()
    assert DeltaTable(uri).health().repeated_removals == ()
    assert DeltaTable(uri).fsck().repeated_removals == ()
    other.optimize.compact()
    assert DeltaTable(uri).health().repeated_removals == (4,)
    assert DeltaTable(uri).fsck().repeated_removals == (4,)
    DeltaTable(uri).checkpoint()
    # The commits before a checkpoint are read by FSCK alone.
    assert DeltaTable(uri).health().repeated_removals == ()
    assert DeltaTable(uri).fsck().repeated_removals == (4,)


def test_fsck_reports_no_commit_that_removes_files_which_restore_added_again(
    tmp_path: Path,
) -> None:
    table = DeltaTable(str(tmp_path / "t"), must_exist=False)
    table.append(pa.table({"a": [1]}))
    table.delete("true")
    table.restore(0)
    table.delete("true")
    assert table.version() == 3
    assert table.fsck().repeated_removals == ()
    assert table.health().repeated_removals == ()
