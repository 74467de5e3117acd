"""CLONE: the same rows under a log of their own, shallow or deep, and again when the source moved."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from dagster_delta.errors import (
    DataFileMissing,
    InvalidArgument,
    StorageFailure,
    TableAlreadyExists,
    VersionNotFound,
)
from dagster_delta.protocol.log.paths import commit_path
from dagster_delta.protocol.values.partition_values import decode_path
from dagster_delta.storage.memory_store import MemoryStore
from dagster_delta.table.delta_table import DeltaTable
from dagster_delta.table.transaction.commit_result import NOT_FOLLOWED, AppTransaction
from dagster_delta.testing.faulty_store import Fault, FaultyStore, SimulatedCrash
from tests.sample_tables import VECTORS, numbered_with_nulls
from tests.table.change_event_model import event_rows
from tests.table.handles import data_files
from tests.table.logs import actions
from tests.table.operations.test_optimize import content, make
from tests.table.operations.test_vacuum import old, vacuum
from tests.table_rows import row_ids_of

TRACKED = {
    "delta.enableRowTracking": "true",
    "delta.enableInCommitTimestamps": "true",
    "delta.enableChangeDataFeed": "true",
    "mine": "1",
    **VECTORS,
}


def source(store: MemoryStore | None = None, **properties: str) -> DeltaTable:
    table = make(3, {**TRACKED, **properties}, partition_by=("p",), store=store)
    table.delete("id in (3, 14, 15)")
    return table


def clone(table: DeltaTable, store: Any = None, **options: Any) -> DeltaTable:
    store = store or MemoryStore()
    table.clone("", store=store, **{"deep": False, **options})
    return DeltaTable("", store=store)


@pytest.mark.parametrize("deep", [False, True])
def test_a_clone_has_the_rows_their_ids_and_the_promises_of_the_source(deep: bool) -> None:
    table = source()
    table.alter("ALTER TABLE t ADD CONSTRAINT few CHECK (id < 1000)")
    table.update({"v": "'new'"}, "id = 5")
    made = clone(table, deep=deep, properties={"theirs": 2})
    assert content(made) == content(table)
    assert row_ids_of(made) == row_ids_of(table)
    assert made.version() == 0
    assert made.schema() == table.schema()
    assert made.protocol() == table.protocol()
    assert made.metadata().partition_columns == ("p",)
    assert made.metadata().id != table.metadata().id
    properties = made.metadata().configuration
    assert (
        properties.items()
        >= {**TRACKED, "theirs": "2", "delta.constraints.few": "id < 1000"}.items()
    )
    # Numbers go on where the source stood, so no id is given out twice.
    made.append(numbered_with_nulls(500))
    assert row_ids_of(made)[500][0] > max(row_id for row_id, _ in row_ids_of(table).values())
    assert row_ids_of(made).keys() - row_ids_of(table).keys() == {500}


def test_a_shallow_clone_refers_to_the_files_and_a_deep_one_copies_them() -> None:
    table = source()
    shallow, deep = clone(table), clone(table, deep=True)
    assert not data_files(shallow)
    uri = table.uri
    for each in shallow.snapshot().files()["path"].to_pylist():
        assert each.startswith(f"{uri}/")
    copied = {decode_path(each) for each in deep.snapshot().files()["path"].to_pylist()}
    assert copied == {decode_path(each) for each in table.snapshot().files()["path"].to_pylist()}
    assert copied <= data_files(deep)


def test_the_commit_says_what_was_cloned() -> None:
    table = source()
    made = clone(table, deep=True, commit_info={"why": "test"})
    (info,) = actions(made)["commitInfo"]
    assert info["operation"] == "CLONE"
    assert info["operationParameters"] == {
        "source": f"delta.`{table.uri}`",
        "sourceVersion": str(table.version()),
    }
    size = str(table.snapshot().size_bytes)
    assert info["operationMetrics"] == {
        "sourceTableSize": size,
        "sourceNumOfFiles": str(table.snapshot().num_files),
        "numRemovedFiles": "0",
        "numCopiedFiles": str(table.snapshot().num_files),
        "removedFilesSize": "0",
        "copiedFilesSize": size,
    }
    assert info["why"] == "test"
    assert all(each["dataChange"] for each in actions(made)["add"])


@pytest.mark.parametrize("deep", [False, True])
def test_what_is_written_to_one_is_not_seen_in_the_other(deep: bool) -> None:
    table = source()
    before = content(table)
    made = clone(table, deep=deep)
    made.delete("id < 10")
    made.merge(
        numbered_with_nulls(20, 900), on="t.id = s.id"
    ).when_matched_delete().when_not_matched_insert_all().execute()
    made.optimize(max_deleted_share=0)
    table.refresh()
    assert content(table) == before
    assert sorted(made.snapshot().scan(["id"]).to_arrow()["id"].to_pylist()) == [
        *(each for each in range(10, 30) if each not in (14, 15, 20)),
        900,
    ]
    made.restore(0)
    assert content(made) == before
    changes = made.changes(starting_version=0, ending_version=1).to_arrow().to_pylist()
    kinds = [each["_change_type"] for each in changes]
    assert kinds.count("insert") == 27
    assert kinds.count("delete") == 9


def test_an_older_version_is_cloned() -> None:
    table = source()
    assert clone(table, version=1).snapshot().num_records == 20
    at = table.snapshot(version=0).timestamp_ms
    assert clone(table, timestamp=at).snapshot().num_records == 10
    with pytest.raises(VersionNotFound):
        clone(table, timestamp="2100-01-01")


def test_a_clone_of_a_clone_and_a_deep_clone_of_it(tmp_path: Path) -> None:
    first = make(2, VECTORS, partition_by=("p",), store=_local(tmp_path / "a b%20c"))
    first.delete("id = 3")
    shallow = clone(first, _local(tmp_path / "shallow"))
    shallow.delete("id = 4")
    again = clone(shallow, _local(tmp_path / "again"))
    deep = clone(again, _local(tmp_path / "deep"), deep=True)
    assert content(again) == content(shallow) == content(deep)
    for path in (tmp_path / "a b%20c", tmp_path / "shallow"):
        for each in path.rglob("*.*"):
            if each.suffix in (".parquet", ".bin"):
                each.unlink()
    assert content(DeltaTable(tmp_path / "deep"))
    assert not deep.snapshot().files()["path"].to_pylist()[0].startswith("file:")


def _local(path: Path) -> Any:
    from dagster_delta.storage import open_store

    return open_store(path)


@pytest.mark.parametrize("deep", [False, True])
def test_cloning_again_brings_what_changed_and_nothing_else(deep: bool) -> None:
    table = source()
    store = MemoryStore()
    made = clone(table, store, deep=deep)
    with pytest.raises(TableAlreadyExists, match="replace=True"):
        table.clone("", store=store, deep=deep)
    assert table.clone("", store=store, deep=deep, replace=True).skipped
    table.append(numbered_with_nulls(100, 101))
    table.delete("p = 0")
    made.append(numbered_with_nulls(7000))
    result = table.clone("", store=store, deep=deep, replace=True)
    assert result.version == made.version() + 1
    made.refresh()
    assert content(made) == content(table)
    assert row_ids_of(made) == row_ids_of(table)
    # Files of the partitions of 100 and 101, of which that of 100 was deleted again.
    assert len(actions(made)["add"]) < table.snapshot().num_files
    copied = result.metrics["numCopiedFiles"]
    assert copied == (len(actions(made)["add"]) if deep else 0)
    assert int(result.metrics["numRemovedFiles"]) > 1
    # Older versions of the clone are still there.
    assert made.snapshot(version=1).num_records == 28
    assert made.metadata().id == DeltaTable("", store=store, version=0).metadata().id


def test_a_table_of_another_shape_becomes_a_clone() -> None:
    table = source()
    other = DeltaTable("", store=MemoryStore(), must_exist=False)
    other.append(pa.table({"x": ["a"]}), properties={"delta.columnMapping.mode": "name"})
    table.clone("", store=other.store, replace=True, deep=False)
    other.refresh()
    assert content(other) == content(table)
    assert other.schema() == table.schema()
    assert other.snapshot(version=0).scan().to_arrow().to_pylist() == [{"x": "a"}]


def test_a_replaced_table_follows_others_as_far_as_its_new_rows_do() -> None:
    table, store = source(), MemoryStore()
    table.append(numbered_with_nulls(50), progress=[AppTransaction("dagster/changes/up", 7, None)])
    made = DeltaTable.create("", table.schema(), partition_by=["p"], store=store)
    ahead = [AppTransaction(f"dagster/changes/{name}", 9, None) for name in ("up", "other")]
    made.append(numbered_with_nulls(60), progress=ahead)
    made = clone(table, store, replace=True)
    versions = map(
        made.snapshot().transaction_version, ("dagster/changes/up", "dagster/changes/other")
    )
    assert list(versions) == [7, NOT_FOLLOWED]


def test_a_table_that_its_copy_replaces_follows_others_as_the_copy_did() -> None:
    table, copied = source(), MemoryStore()
    up = "dagster/changes/up"
    table.append(numbered_with_nulls(50), progress=[AppTransaction(up, 7, None)])
    copy = clone(table, copied)
    table.append(numbered_with_nulls(60), progress=[AppTransaction(up, 9, 7)])
    assert clone(copy, table.store, replace=True).snapshot().transaction_version(up) == 7


def test_other_files_of_the_same_name_are_not_overwritten() -> None:
    table = source()
    store = MemoryStore()
    path = next(each for each in data_files(table) if each.endswith(".parquet"))
    store.put(path, b"something else")
    made = clone(table, store, deep=True)
    assert content(made) == content(table)
    assert store.read(path) == b"something else"


def test_an_interrupted_clone_goes_on_with_what_it_has_copied() -> None:
    table = source()
    inner = MemoryStore()
    broken = FaultyStore(inner, [Fault("crash_before", "put_if_absent", ".json")])
    told: list[tuple[int, int]] = []
    with pytest.raises(SimulatedCrash):
        table.clone("", store=broken, deep=True)
    result = table.clone("", store=inner, deep=True, on_progress=lambda *each: told.append(each))
    assert result.metrics["numCopiedFiles"] == 0
    assert not told
    assert content(DeltaTable("", store=inner)) == content(table)


def test_vacuum_of_a_clone_leaves_the_files_of_the_source_alone(tmp_path: Path) -> None:
    store = MemoryStore("memory://lake-of-clones/source")
    table = source(store)
    made = clone(table, MemoryStore("memory://lake-of-clones/clone"))
    made.append(numbered_with_nulls(800))
    made.delete("id >= 0")
    old(table)
    before = data_files(table)
    result = vacuum(made, days=30, dry_run=False)
    assert data_files(table) == before
    assert result.num_files == 1
    assert content(table)


def test_vacuum_of_the_source_breaks_a_shallow_clone_and_no_deep_one() -> None:
    table = source()
    shallow, deep = clone(table), clone(table, deep=True)
    before = content(deep)
    table.optimize(max_deleted_share=0)
    old(table)
    vacuum(table, days=30, dry_run=False)
    with pytest.raises(DataFileMissing):
        content(shallow)
    with pytest.raises(InvalidArgument, match="deep=True"):
        clone(shallow)
    with pytest.raises(DataFileMissing, match="vacuumed"):
        clone(shallow, deep=True)
    assert content(deep) == before


@pytest.mark.parametrize(
    ("target", "is_beside"), [("a", False), ("a/b", False), ("", False), ("ab", True)]
)
def test_a_clone_in_or_around_its_source_is_refused(target: str, is_beside: bool) -> None:
    table = make(1, store=MemoryStore(f"memory://nest-{target}/a"))
    uri = f"memory://nest-{target}/{target}"
    if is_beside:
        assert table.clone(uri, deep=False).version == 0
        return
    with pytest.raises(InvalidArgument, match="beside"):
        table.clone(uri, deep=False)


def test_a_shallow_clone_in_another_kind_of_storage_is_refused(tmp_path: Path) -> None:
    table = source()
    with pytest.raises(InvalidArgument, match="deep=True"):
        table.clone(tmp_path / "t", properties={"a": 1}, deep=False)
    assert not (tmp_path / "t" / "_delta_log").exists()
    table.clone(tmp_path / "t", deep=True)
    assert content(DeltaTable(tmp_path / "t")) == content(table)


def test_what_belongs_to_the_log_of_the_source_stays_there() -> None:
    table = source()
    table.append(numbered_with_nulls(1), idempotency=("app", 3))
    transaction = table.transaction()
    transaction.set_domain_metadata("mine", "{}")
    transaction.commit("TEST")
    table.refresh()
    made = clone(table)
    assert made.snapshot().transactions() == ()
    assert set(made.snapshot().domain_metadata()) == {"delta.rowTracking"}
    assert not [
        each
        for each in made.metadata().configuration
        if each.startswith("delta.inCommitTimestampE")
    ]


def test_clustering_comes_along(tmp_path: Path) -> None:
    table = make(1, {"delta.feature.clustering": "supported"})
    domain = {"domain": "delta.clustering", "configuration": '{"clusteringColumns":[["id"]]}'}
    path = f"_delta_log/{table.version() + 1:020d}.json"
    lines = [{"commitInfo": {}}, {"domainMetadata": {**domain, "removed": False}}]
    table.store.put(path, "\n".join(map(json.dumps, lines)).encode())
    table.refresh()
    made = clone(table)
    assert made.snapshot().domain_metadata().keys() == {"delta.clustering"}


def test_the_loser_of_a_race_deletes_no_file_of_the_winner() -> None:
    table = source()
    inner = MemoryStore()

    def overtake(operation: str, path: str) -> None:
        if operation == "put_if_absent" and path == commit_path(0):
            table.clone("", store=inner, deep=True)

    with pytest.raises(TableAlreadyExists):
        table.clone("", store=FaultyStore(inner, before_call=overtake), deep=True)
    assert content(DeltaTable("", store=inner)) == content(table)


def test_a_copy_that_fails_leaves_no_table() -> None:
    table = source()
    inner = MemoryStore()
    broken = FaultyStore(inner, [Fault("refuse", "open_output", ".parquet", 2)])
    with pytest.raises(StorageFailure):
        table.clone("", store=broken, deep=True)
    assert not DeltaTable.is_delta_table("", store=inner)


def test_a_replaced_clone_gets_the_row_ids_that_it_had_dropped() -> None:
    table = source()
    made = clone(table)
    made.drop_feature("rowTracking")
    # The checkpoint of this commit counts the files anew.
    made.set_properties({"delta.checkpointInterval": "1"})
    table.clone("", store=made.store, deep=False, replace=True)
    again = DeltaTable("", store=made.store)
    assert row_ids_of(again) == row_ids_of(table)
    assert again.snapshot().live_files().num_rows == table.snapshot().num_files
    again.snapshot().check_totals()


@pytest.mark.parametrize("deep", [False, True])
def test_a_clone_remembers_change_events(tmp_path: Path, deep: bool) -> None:
    def apply(table: DeltaTable, key: int, seq: int, op: str) -> None:
        event = {"k": key, "seq": seq, "op": op, "v": "a", "u": 1}
        table.apply_changes(
            event_rows([event]),
            keys=["k"],
            sequence_by="seq",
            apply_as_deletes="op = 'D'",
            except_column_list=["op"],
        )

    table = DeltaTable(str(tmp_path / "t"), must_exist=False)
    apply(table, 9, 1, "U")
    apply(table, 1, 10, "D")
    for replace in (False, True):
        table.clone(tmp_path / "clone", deep=deep, replace=replace)
        made = DeltaTable(str(tmp_path / "clone"))
        # An event that is older than the deletion.
        apply(made, 1, 5, "U")
        made.refresh()
        assert made.snapshot().scan(["k"]).to_arrow().to_pylist() == [{"k": 9}]
