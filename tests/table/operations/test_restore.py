"""RESTORE: an older version comes back as a new one, whole or not at all."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest

from dagster_delta.clock import now_ms
from dagster_delta.errors import (
    CommitConflict,
    ConcurrentAppend,
    DataFileMissing,
    InvalidArgument,
    UnsupportedFeature,
    VersionNotFound,
)
from dagster_delta.evolution.required_protocol import minimal_protocol
from dagster_delta.protocol.actions import DomainMetadata, Format, Metadata, Protocol
from dagster_delta.protocol.features.table_configuration import TableConfiguration
from dagster_delta.protocol.log.paths import commit_path
from dagster_delta.storage.memory_store import MemoryStore
from dagster_delta.table.delta_table import DeltaTable
from dagster_delta.table.operations.restore import restored_configuration
from dagster_delta.testing.faulty_store import FaultyStore
from tests.sample_tables import VECTORS, numbered_with_nulls
from tests.table.logs import actions
from tests.table.operations.test_optimize import content, make
from tests.table_rows import row_ids_of


def test_rows_deleted_rows_and_vectors_come_back() -> None:
    table = make(2, VECTORS)
    table.delete("id < 3")
    then = content(table)
    table.delete("id < 5")
    table.append(numbered_with_nulls(77))
    table.optimize()
    result = table.restore(2)
    assert content(table) == then
    assert result.version == table.version() == 6
    assert content(DeltaTable("", store=table.store)) == then
    # And forward again: a restore is a version like any other.
    table.restore(4)
    assert table.snapshot().num_records == 16


def test_row_ids_come_back_after_their_feature_was_dropped() -> None:
    table = make(2, {"delta.enableRowTracking": "true"})
    then = row_ids_of(table)
    table.drop_feature("rowTracking")
    table.append(numbered_with_nulls(77))
    table.restore(1)
    assert row_ids_of(table) == then
    table.append(numbered_with_nulls(78))
    again = DeltaTable("", store=table.store)
    ids = [row_id for row_id, _ in row_ids_of(again).values()]
    assert len(set(ids)) == len(ids) == 21
    again.snapshot().check_totals()


def test_the_commit_says_what_it_did() -> None:
    table = make(3)
    table.optimize()
    table.restore(1)
    found = actions(table)
    (info,) = found["commitInfo"]
    assert info["operation"] == "RESTORE"
    assert info["operationParameters"] == {"version": "1", "timestamp": None}
    assert info["operationMetrics"]["numRestoredFiles"] == "2"
    assert info["operationMetrics"]["numRemovedFiles"] == "1"
    assert all(each["dataChange"] for each in found["add"] + found["remove"])


def test_a_timestamp_finds_the_version() -> None:
    table = make(2)
    timestamp = table.snapshot(version=0).timestamp_ms
    store = table.store
    assert isinstance(store, MemoryStore)
    data, modified_ms = store._objects.by_path[commit_path(1)]
    store._objects.by_path[commit_path(1)] = data, modified_ms + 60_000
    table.restore(timestamp=timestamp)
    assert table.snapshot().num_records == 10
    assert actions(table)["commitInfo"][0]["operationParameters"]["timestamp"] == str(timestamp)


def test_the_schema_comes_back_and_the_protocol_stays() -> None:
    table = make(1)
    table.append(
        pa.table({"id": [1], "at": pa.array([0], pa.timestamp("us"))}), schema_mode="merge"
    )
    assert table.snapshot().configuration.supports("timestampNtz")
    table.restore(0)
    assert table.schema().names == ("id", "v", "p")
    assert table.snapshot().configuration.supports("timestampNtz")
    table.restore(1)
    assert table.schema().names == ("id", "v", "p", "at")


def test_a_restore_to_what_the_table_is_makes_no_version() -> None:
    table = make(2)
    result = table.restore(1)
    assert result.skipped
    assert table.version() == 1


def test_a_missing_file_is_found_before_anything_is_changed() -> None:
    table = make(3)
    gone = actions(table, 1)["add"][0]["path"]
    table.optimize()
    table.store.delete([gone])
    with pytest.raises(DataFileMissing, match="1 of the 3 files") as caught:
        table.restore(2)
    assert caught.value.file == gone
    assert table.refresh().version == 3
    table.restore(0)
    assert table.snapshot().num_records == 10


def test_a_missing_deletion_vector_is_found_too() -> None:
    table = DeltaTable("", store=MemoryStore(), must_exist=False)
    table.append(numbered_with_nulls(*range(20_000)), properties=VECTORS)
    table.delete("id % 7 = 3")
    table.optimize(max_deleted_share=0)
    (vector,) = (e.path for e in table.store.list_recursive() if e.path.endswith(".bin"))
    table.store.delete([vector])
    with pytest.raises(DataFileMissing) as caught:
        table.restore(1)
    assert caught.value.file == vector


def rival(store: MemoryStore, version: int, act: Callable[[DeltaTable], object]) -> FaultyStore:
    """A store on which another writer commits `version` first."""

    def strike(operation: str, path: str) -> None:
        other = DeltaTable("", store=store)
        is_due = (operation, path) == ("put_if_absent", commit_path(version))
        if is_due and other.version() < version:
            act(other)

    return FaultyStore(store, before_call=strike)


def test_a_concurrent_append_counts_as_later() -> None:
    store = MemoryStore()
    make(3, store=store)
    faulty = rival(store, 3, lambda other: other.append(numbered_with_nulls(99)))
    table = DeltaTable("", store=faulty)
    table.restore(0)
    assert sorted(table.snapshot().scan(["id"]).to_arrow()["id"].to_pylist()) == [*range(10), 99]


def test_a_concurrent_delete_is_a_conflict() -> None:
    store = MemoryStore()
    make(3, store=store)
    faulty = rival(store, 3, lambda other: other.delete("id = 3"))
    with pytest.raises(CommitConflict):
        DeltaTable("", store=faulty).restore(1)
    assert DeltaTable("", store=store).snapshot().num_records == 29


@pytest.mark.parametrize("record", [True, False])
def test_a_restore_whose_files_a_vacuum_deletes_meanwhile_is_taken_back(*, record: bool) -> None:
    table = make(3)
    table.overwrite(numbered_with_nulls(1000))
    then = content(table)

    def vacuum(other: DeltaTable) -> None:
        found = other.vacuum(0, dry_run=False, enforce_retention=False, record_in_log=record)
        assert found.num_files == 3

    done: list[str] = []

    def strike(operation: str, path: str) -> None:
        if operation == "put_if_absent" and path.endswith(".json") and not done:
            done.append(path)
            vacuum(DeltaTable("", store=table.store))

    restored = DeltaTable("", store=FaultyStore(table.store, before_call=strike))
    with pytest.raises(DataFileMissing, match=r"took version . back"):
        restored.restore(2)
    again = DeltaTable("", store=table.store)
    assert content(again) == then
    assert [entry.operation for entry in again.history(2)] == ["RESTORE", "RESTORE"]


def test_a_restore_beside_a_vacuum_that_has_not_ended_is_taken_back() -> None:
    table = make(3)
    table.optimize()
    then = content(table)
    start = table.transaction().commit("VACUUM START").snapshot
    with pytest.raises(CommitConflict, match=r"VACUUM of version 4.*version 6 took version 5 back"):
        table.restore(1)
    assert content(table) == then
    table.refresh()
    assert start.version == 4
    table.transaction().commit("VACUUM END")
    assert table.restore(1).version == 8


def test_a_vacuum_that_was_stopped_a_day_ago_does_not_hold_a_restore_up() -> None:
    table = make(3)
    table.optimize()
    started = table.transaction()
    started.clock = lambda: now_ms() - 25 * 60 * 60 * 1000
    started.commit("VACUUM START")
    assert table.restore(1).version == 5


def test_an_append_under_another_schema_is_a_conflict() -> None:
    store = MemoryStore()
    make(1, store=store).append(pa.table({"id": [1], "new": [2]}), schema_mode="merge")
    faulty = rival(store, 2, lambda other: other.append(numbered_with_nulls(5)))
    with pytest.raises(ConcurrentAppend):
        DeltaTable("", store=faulty).restore(0)


def test_an_append_only_table_loses_no_rows() -> None:
    table = make(2, {"delta.appendOnly": "true"})
    with pytest.raises(UnsupportedFeature, match="appendOnly"):
        table.restore(0)


def test_what_to_restore_is_said_once() -> None:
    table = make(1)
    for arguments in ({}, {"version": 0, "timestamp": 0}):
        with pytest.raises(InvalidArgument):
            table.restore(**arguments)  # type: ignore[arg-type]
    with pytest.raises(VersionNotFound):
        table.restore(7)


def configuration(properties: dict[str, str], protocol: Protocol) -> TableConfiguration:
    return TableConfiguration(
        protocol,
        Metadata(id="t", format=Format(), partition_columns=(), configuration=properties),
    )


def test_counters_and_in_commit_timestamps_are_those_of_today() -> None:
    listed = minimal_protocol(["inCommitTimestamp", "columnMapping"])
    now = configuration(
        {
            "delta.columnMapping.maxColumnId": "9",
            "delta.enableInCommitTimestamps": "true",
            "delta.inCommitTimestampEnablementVersion": "4",
            "b": "2",
        },
        listed,
    )
    then = configuration(
        {"delta.columnMapping.maxColumnId": "3", "a": "1"},
        Protocol(min_reader_version=1, min_writer_version=4),
    )
    restored = restored_configuration(now, then)
    assert restored.metadata.configuration == {
        "delta.columnMapping.maxColumnId": "9",
        "delta.enableInCommitTimestamps": "true",
        "delta.inCommitTimestampEnablementVersion": "4",
        "a": "1",
    }
    assert restored.features >= now.features | then.features


def domain(table: DeltaTable, name: str) -> Any:
    found = table.snapshot().domain_metadata().get(name)
    return None if found is None else json.loads(found.configuration)


def test_clustering_follows_the_schema_and_other_domains_stay() -> None:
    store = MemoryStore()
    properties = {"delta.feature.clustering": "supported"}
    table = make(1, properties, store=store)
    for columns in (["id"], ["v"]):
        transaction = table.transaction()
        transaction.set_domain_metadata("mine", json.dumps(columns))
        text = json.dumps({"clusteringColumns": [columns]})
        transaction.stage_domain(
            DomainMetadata(domain="delta.clustering", configuration=text, removed=False)
        )
        transaction.commit("CLUSTER BY")
    table.restore(1)
    assert domain(table, "delta.clustering") == {"clusteringColumns": [["id"]]}
    assert domain(table, "mine") == ["v"]
    table.restore(0)
    assert domain(table, "delta.clustering") is None


def test_a_plan_shows_what_a_restore_changes_and_writes_nothing() -> None:
    table = make(3)
    table.delete("id < 3")
    table.alter("ADD COLUMN n INT")
    written = dict(table.store._objects.by_path)  # type: ignore[attr-defined]
    plan = table.plan_restore(0)
    told = plan.to_markdown()
    assert table.store._objects.by_path == written  # type: ignore[attr-defined]
    before, target = plan.before, plan.target
    assert "| rows | 27 | 10 | -17 |" in told
    assert f"| files | {before.num_files} | 1 | {1 - before.num_files:+} |" in told
    size = target.size_bytes - before.size_bytes
    assert f"| bytes | {before.size_bytes:,} | {target.size_bytes:,} | {size:+,} |" in told
    assert "- n: integer" in told
    table.restore(0)
    assert table.plan_restore(0).to_markdown() == "The table is already as it was at version 0.\n"
    assert not table.plan_restore(0).changes_anything
    assert table.restore(0).skipped


def test_a_plan_finds_missing_files() -> None:
    table = make(1)
    table.optimize()
    (path,) = table.snapshot(version=0).files()["path"].to_pylist()
    table.overwrite(numbered_with_nulls(1))
    table.store.delete([path])
    with pytest.raises(DataFileMissing):
        table.plan_restore(0)
