"""Statements without deletion vectors leave few files: changed and unchanged rows together."""

from __future__ import annotations

from pathlib import Path

import pytest

from dagster_delta import DeltaTable
from tests.conformance.engines import Engine, files_of
from tests.sample_tables import FEED, numbered, of_day
from tests.table_rows import row_ids_of

TRACKED = {"delta.enableRowTracking": "true"}


def upsert(engine: Engine, table: DeltaTable, *ids: int, text: str, inserts: bool = True) -> None:
    merge = table.merge(engine.rows(numbered(*ids, text=text)), "t.id = s.id", engine=engine.name)
    merge = merge.when_matched_update_all()
    (merge.when_not_matched_insert_all() if inserts else merge).execute()


def named_in_log(table: DeltaTable) -> set[Path]:
    """Every file that some version of the table has, or records changes in."""
    found: set[str] = set()
    for version in range(table.version() + 1):
        found |= set(table.snapshot(version=version).files()["path"].to_pylist())
    changes = {each for each in files_of(table) if "_change_data" in each.parts}
    return {Path(table.uri) / each for each in found} | changes


def test_merges_that_only_update_leave_as_many_files_as_there_were(
    engine: Engine, table: DeltaTable
) -> None:
    table.append(numbered(*range(20)), properties=FEED)
    for hour in range(3):
        upsert(engine, table, hour, text="hour ", inserts=False)
        assert table.snapshot().num_files == 1
    expected = {each: f"hour {each}" if each < 3 else f"v{each}" for each in range(20)}
    assert dict(engine.tuples(table, "id", "v")) == expected
    assert engine.changes(table, 1, "id") == [
        *(("update_postimage", each) for each in range(3)),
        *(("update_preimage", each) for each in range(3)),
    ]
    assert files_of(table) == named_in_log(table)


def test_a_merge_unites_small_files_that_it_touches_with_its_new_rows(
    engine: Engine, table: DeltaTable
) -> None:
    for part in range(3):
        table.append(numbered(*range(10 * part, 10 * part + 10)), properties=TRACKED)
    before = row_ids_of(table)
    upsert(engine, table, 5, 15, 25, 99, text="new")
    assert table.snapshot().num_files == 1
    assert len(engine.tuples(table)) == 31
    after = row_ids_of(table)
    highest = max(row_id for row_id, _ in before.values())
    version = table.version()
    assert after.pop(99)[0] > highest
    assert {each: row_id for each, (row_id, _) in after.items()} == {
        each: row_id for each, (row_id, _) in before.items()
    }
    assert {each for each, (_, changed) in after.items() if changed == version} == {5, 15, 25}
    assert files_of(table) == named_in_log(table)


def test_a_merge_leaves_one_file_in_each_partition(engine: Engine, table: DeltaTable) -> None:
    days = ["2026-01-01", "2026-01-02"]
    for first in (0, 10):
        for place, day in enumerate(days):
            ids = range(first + 100 * place, first + 100 * place + 10)
            table.append(of_day(*ids, day=day), partition_by=["day"])
    assert table.snapshot().num_files == 4
    source = engine.rows(of_day(5, 15, 16, day=days[0]))
    merge = table.merge(source, "t.id = s.id", engine=engine.name)
    result = merge.when_matched_delete("s.id = 16").when_matched_update_all().execute()
    assert result.metrics["numTargetRowsCopied"] == 17
    assert result.metrics["numTargetFilesAdded"] == 1
    assert result.metrics["numTargetFilesRemoved"] == 2
    assert table.snapshot().num_files == 3
    assert len(engine.tuples(table)) == 39


@pytest.mark.parametrize("change", ["update", "delete"])
def test_updates_and_deletes_unite_small_files(
    change: str, engine: Engine, table: DeltaTable
) -> None:
    for part in range(3):
        table.append(numbered(*range(10 * part, 10 * part + 10)), properties=TRACKED | FEED)
    before = row_ids_of(table)
    if change == "update":
        table.update({"v": "'new'"}, "id % 10 = 3", engine=engine.name)
    else:
        table.delete("id % 10 = 3", engine=engine.name)
    assert table.snapshot().num_files == 1
    assert len(engine.changes(table, table.version())) == (6 if change == "update" else 3)
    after = row_ids_of(table)
    assert all(row_id == before[each][0] for each, (row_id, _) in after.items())
    assert len(after) == (30 if change == "update" else 27)
    assert files_of(table) == named_in_log(table)
