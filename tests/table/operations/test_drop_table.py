"""Deletion of a whole table, which only a marked table allows."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from dagster_delta.errors import InvalidArgument, StorageFailure
from dagster_delta.storage import open_store
from dagster_delta.table.delta_table import DeltaTable
from dagster_delta.table.operations.drop_table import drop_table

MARK = "team.mark"


@pytest.fixture(params=["local", "memory"])
def table(request: pytest.FixtureRequest, tmp_path: Path) -> DeltaTable:
    uri = str(tmp_path / "t") if request.param == "local" else f"memory://drop/{tmp_path.name}"
    table = DeltaTable(uri, must_exist=False)
    rows = pa.table({"p": [1, 2], "n": [1, 2]})
    table.append(rows, partition_by=["p"], properties={MARK: "mine"})
    for _ in range(3):
        table.append(rows)
    table.checkpoint()
    return table


def paths(table: DeltaTable) -> list[str]:
    return sorted(meta.path for meta in open_store(table.uri).list_recursive())


def test_drop_refuses_a_table_with_another_one_below_it(table: DeltaTable) -> None:
    DeltaTable(f"{table.uri}/below", must_exist=False).append(pa.table({"id": [1]}))
    before = paths(table)
    with pytest.raises(InvalidArgument, match="another table is below"):
        drop_table(open_store(table.uri), MARK, "mine")
    assert paths(table) == before


@pytest.mark.parametrize(("mark", "value"), [(MARK, "yours"), ("team.other", "mine")])
def test_drop_refuses_a_table_without_the_mark(table: DeltaTable, mark: str, value: str) -> None:
    before = paths(table)
    with pytest.raises(InvalidArgument, match="is not deleted"):
        drop_table(open_store(table.uri), mark, value)
    assert paths(table) == before


def test_drop_refuses_a_table_whose_latest_version_has_lost_the_mark(table: DeltaTable) -> None:
    table.set_properties({MARK: "theirs"})
    with pytest.raises(InvalidArgument, match="is not deleted"):
        drop_table(open_store(table.uri), MARK, "mine")


def test_drop_deletes_each_file(table: DeltaTable) -> None:
    before = paths(table)
    assert drop_table(open_store(table.uri), MARK, "mine") == len(before)
    assert paths(table) == []
    assert not DeltaTable.is_delta_table(table.uri)


def test_drop_that_stopped_at_any_file_is_finished_by_the_next(table: DeltaTable) -> None:
    store = open_store(table.uri)
    delete = store.delete

    class Stopping:
        """Deletes some files, then fails."""

        def __init__(self, left: int) -> None:
            self.left = left

        def __getattr__(self, name: str) -> object:
            return getattr(store, name)

        def delete(self, given: object) -> None:
            for path in given:  # type: ignore[attr-defined]
                if not self.left:
                    raise StorageFailure("stopped")
                self.left -= 1
                delete([path])

    for _ in paths(table):
        if len(paths(table)) == 1:
            break
        with pytest.raises(StorageFailure, match="stopped"):
            drop_table(Stopping(1), MARK, "mine")  # type: ignore[arg-type]
    assert paths(table) == ["_delta_log/00000000000000000000.json"]
    drop_table(store, MARK, "mine")
    assert paths(table) == []
