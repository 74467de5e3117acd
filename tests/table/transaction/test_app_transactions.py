"""An application moves on with the commit that does its work, and only from where it stood."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest

from dagster_delta.errors import ConcurrentTransaction, PartitionMismatch
from dagster_delta.table.delta_table import CommitResult, DeltaTable
from dagster_delta.table.transaction.transaction import AppTransaction

ROWS = pa.table({"id": [1, 2], "v": ["a", "b"]})


def step(version: int, after: int | None) -> list[AppTransaction]:
    return [AppTransaction("app", version, after)]


def merge(table: DeltaTable, rows: pa.Table, progress: list[AppTransaction]) -> CommitResult:
    builder = table.merge(rows, "t.id = s.id", progress=progress)
    return builder.when_matched_update_all().when_not_matched_insert_all().execute()


WRITES: dict[str, Callable[[DeltaTable, list[AppTransaction]], CommitResult]] = {
    "append": lambda table, progress: table.append(ROWS, progress=progress),
    "overwrite": lambda table, progress: table.overwrite(ROWS, progress=progress),
    "merge": lambda table, progress: merge(table, ROWS, progress),
}


@pytest.fixture
def table(tmp_path: Path) -> DeltaTable:
    handle = DeltaTable(str(tmp_path / "t"), must_exist=False)
    handle.append(ROWS, progress=step(1, None))
    return handle


@pytest.mark.parametrize("write", WRITES)
def test_progress_is_recorded_with_the_rows(table: DeltaTable, write: str) -> None:
    result = WRITES[write](table, step(5, 1))
    assert not result.skipped
    assert result.snapshot.transaction_version("app") == 5


@pytest.mark.parametrize("write", WRITES)
@pytest.mark.parametrize("after", [None, 0, 2])
def test_work_that_somebody_else_has_begun_is_refused(
    table: DeltaTable, write: str, after: int | None
) -> None:
    with pytest.raises(ConcurrentTransaction, match="another run of it has committed"):
        WRITES[write](table, step(5, after))
    assert table.refresh().version == 0


def test_of_two_writers_that_start_from_one_version_one_lands(table: DeltaTable) -> None:
    ours = table.transaction()
    for each in step(5, 1):
        ours.advance_application(each)
    DeltaTable(table.uri).append(ROWS, progress=step(3, 1))
    with pytest.raises(ConcurrentTransaction):
        ours.commit("WRITE")
    assert table.refresh().transaction_version("app") == 3


def test_a_merge_that_changes_nothing_still_moves_its_application_on(table: DeltaTable) -> None:
    result = merge(table, ROWS.slice(0, 0), step(2, 1))
    assert not result.skipped
    assert result.snapshot.transaction_version("app") == 2
    assert table.snapshot().scan().count() == 2


def test_a_merge_is_done_once_per_application_version(table: DeltaTable) -> None:
    def once() -> CommitResult:
        builder = table.merge(ROWS, "t.id = s.id", idempotency=("nightly", 7))
        return builder.when_matched_update({"v": "concat(t.v, s.v)"}).execute()

    assert [once().skipped, once().skipped] == [False, True]
    assert sorted(table.snapshot().scan().to_arrow()["v"].to_pylist()) == ["aa", "bb"]


def test_new_rows_of_a_merge_satisfy_its_check(table: DeltaTable) -> None:
    builder = table.merge(pa.table({"id": [9], "v": ["z"]}), "t.id = s.id", check="id < 5")
    with pytest.raises(PartitionMismatch, match="id < 5"):
        builder.when_not_matched_insert_all().execute()
    assert table.refresh().version == 0
