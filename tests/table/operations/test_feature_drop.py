"""Features leave a table: its rows stay, its use of the feature goes, the protocol is lower."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest

from dagster_delta.errors import InvalidArgument, StorageFailure
from dagster_delta.protocol.log.commit_writer import CHECKPOINT_PROTECTION_KEY
from dagster_delta.protocol.log.paths import commit_path
from dagster_delta.storage.memory_store import MemoryStore
from dagster_delta.table.delta_table import DeltaTable
from dagster_delta.table.operations.clustering import table_clustering
from dagster_delta.testing.faulty_store import Fault, FaultyStore
from tests.table.handles import reopened
from tests.table_rows import ids_of

ROWS = pa.table({"id": pa.array([1, 2, 3], pa.int32()), "v": ["a", "b", "c"]})


def table_with(properties: dict[str, Any]) -> DeltaTable:
    store = MemoryStore()
    table = DeltaTable.create("", ROWS.schema, properties=properties, store=store)
    table.append(ROWS)
    return table


def nothing(table: DeltaTable) -> None:
    """Use a feature by listing it."""


def forget_before(table: DeltaTable, version: int) -> None:
    """Clean the log as far as a version that has a checkpoint."""
    log = [each.path for each in table.store.list_from("_delta_log", "0")]
    table.store.delete([each for each in log if each < f"_delta_log/{version:020}"])


def widen(table: DeltaTable) -> None:
    table.append(pa.table({"id": pa.array([2**40], pa.int64())}), schema_mode="merge")


USES: dict[str, tuple[dict[str, Any], Callable[[DeltaTable], Any], set[str]]] = {
    "deletionVectors": (
        {"delta.enableDeletionVectors": True},
        lambda table: table.delete("id = 2"),
        {"checkpointProtection"},
    ),
    "typeWidening": ({"delta.enableTypeWidening": True}, widen, {"checkpointProtection"}),
    "columnMapping": (
        {"delta.columnMapping.mode": "name", "delta.feature.domainMetadata": "supported"},
        lambda table: table.update({"v": "'x'"}, "id = 1"),
        {"domainMetadata", "checkpointProtection"},
    ),
    "v2Checkpoint": (
        {"delta.checkpointPolicy": "v2"},
        lambda table: table.checkpoint(),
        {"checkpointProtection"},
    ),
    "vacuumProtocolCheck": (
        {"delta.feature.vacuumProtocolCheck": "supported"},
        nothing,
        {"checkpointProtection"},
    ),
    "inCommitTimestamp": (
        {"delta.enableInCommitTimestamps": True},
        nothing,
        set(),
    ),
    "rowTracking": (
        {"delta.enableRowTracking": True},
        lambda table: table.update({"v": "'x'"}, "id = 1"),
        {"domainMetadata"},
    ),
    "checkConstraints": (
        {"delta.feature.checkConstraints": "supported"},
        nothing,
        {"invariants", "appendOnly"},
    ),
    "invariants": ({}, nothing, {"appendOnly"}),
    "appendOnly": ({"delta.appendOnly": True}, nothing, {"invariants"}),
    "changeDataFeed": (
        {"delta.enableChangeDataFeed": True},
        lambda table: table.delete("id = 2"),
        {"invariants", "appendOnly", "checkConstraints", "generatedColumns"},
    ),
    "generatedColumns": (
        {"delta.feature.generatedColumns": "supported"},
        nothing,
        {"invariants", "appendOnly", "checkConstraints", "changeDataFeed"},
    ),
    "allowColumnDefaults": (
        {"delta.feature.allowColumnDefaults": "supported"},
        nothing,
        set(),
    ),
}


@pytest.mark.parametrize("feature", USES)
def test_a_dropped_feature_leaves_the_rows_and_nothing_of_itself(feature: str) -> None:
    properties, use, expected = USES[feature]
    table = table_with(properties)
    use(table)
    before, old_version, rows = table.protocol(), table.version(), ids_of(reopened(table))
    assert feature in table.snapshot().configuration.features
    table.drop_feature(feature)
    snapshot = reopened(table).snapshot()
    assert snapshot.configuration.features == expected
    assert ids_of(reopened(table)) == rows
    assert not any(
        key.startswith("delta.") and key != "delta.requireCheckpointProtectionBeforeVersion"
        for key in snapshot.metadata.configuration
    )
    assert '"metadata":{"' not in snapshot.metadata.schema_string
    assert snapshot.live_files()["deletion_vector"].null_count == snapshot.num_files
    if feature != "changeDataFeed":
        assert snapshot.live_files()["base_row_id"].null_count == snapshot.num_files
    reopened(table).append(ROWS.slice(0, 1).set_column(0, "id", pa.array([9], pa.int32())))
    assert ids_of(reopened(table)) == [*sorted([*rows, 9])]
    old = reopened(table).snapshot(version=old_version)
    assert (old.protocol, ids_of(reopened(table), old_version)) == (before, rows)


def test_checkpoints_stand_before_the_drop_of_a_reader_feature() -> None:
    table = table_with({"delta.enableDeletionVectors": True})
    table.delete("id = 2")
    version = table.drop_feature("deletionVectors").version
    names = [each.path for each in table.store.list_from("_delta_log", "0")]
    for each in range(version - 3, version + 1):
        assert f"_delta_log/{each:020}.checkpoint.parquet" in names
    protected = table.metadata().configuration["delta.requireCheckpointProtectionBeforeVersion"]
    assert protected == str(version)
    assert table.protocol().min_reader_version == 1


def test_only_files_of_an_old_type_are_written_again() -> None:
    table = table_with({"delta.enableTypeWidening": True})
    widen(table)
    old, new = table.snapshot().live_files()["path"].to_pylist()
    table.drop_feature("typeWidening")
    left = table.snapshot().live_files()["path"].to_pylist()
    assert len(left) == 2
    assert (new in left) != (old in left)


def test_moved_rows_keep_their_ids_and_are_no_change() -> None:
    table = table_with({"delta.enableDeletionVectors": True, "delta.enableRowTracking": True})
    table.delete("id = 2")
    before = table.snapshot().scan(row_ids=True).to_arrow().sort_by("id")
    table.drop_feature("deletionVectors")
    assert table.snapshot().scan(row_ids=True).to_arrow().sort_by("id") == before
    lines = table.store.read(commit_path(3)).splitlines()
    actions = [next(iter(json.loads(line).items())) for line in lines]
    moved = [each["dataChange"] for name, each in actions if name in ("add", "remove")]
    assert moved
    assert not any(moved)


@pytest.mark.parametrize(
    ("properties", "feature", "message"),
    [
        ({}, "deletionVectors", "does not have the feature"),
        ({}, "noSuchFeature", "does not have the feature"),
        ({"delta.enableRowTracking": True}, "domainMetadata", "rowTracking, which depends on it"),
        ({"delta.constraints.c": "id > 0"}, "checkConstraints", "drop its CHECK constraints"),
        ({"delta.columnMapping.mode": "name"}, "columnMapping", "rename the column"),
    ],
)
def test_a_drop_that_cannot_be_is_refused_with_what_to_do(
    properties: dict[str, Any], feature: str, message: str
) -> None:
    schema = ROWS.schema
    if feature == "columnMapping":
        schema = pa.schema([pa.field("an id", pa.int32())])
    table = DeltaTable.create("", schema, properties=properties, store=MemoryStore())
    with pytest.raises(InvalidArgument, match=message):
        table.drop_feature(feature)
    assert table.version() == 0


def test_a_history_with_the_feature_has_to_go_before_it_is_dropped_without_protection() -> None:
    table = table_with({"delta.enableDeletionVectors": True})
    table.delete("id = 2")
    with pytest.raises(InvalidArgument, match="clean the log"):
        table.drop_feature("deletionVectors", truncate_history=True)
    table = reopened(table)
    assert table.snapshot().live_files()["deletion_vector"].null_count == 1
    table.checkpoint()
    forget_before(table, table.version())
    table.drop_feature("deletionVectors", truncate_history=True)
    assert reopened(table).snapshot().configuration.features == set()
    assert ids_of(reopened(table)) == [1, 3]


def test_a_table_stays_clustered_when_its_columns_are_not_mapped_any_more() -> None:
    mapped = {"delta.columnMapping.mode": "name"}
    store = MemoryStore()
    table = DeltaTable.create("", ROWS.schema, properties=mapped, cluster_by=["id"], store=store)
    table.append(ROWS)
    table.rename_column("id", "key")
    table.drop_feature("columnMapping")
    assert table_clustering(reopened(table).snapshot()) == (("key",),)
    assert len(table.optimize().versions) == 1


@pytest.mark.parametrize(
    "change",
    [
        lambda table: table.restore(1),
        lambda table: DeltaTable.create("", table.schema(), mode="replace", store=table.store),
    ],
    ids=["restored", "replaced"],
)
def test_checkpoints_stay_protected_where_the_table_gets_other_properties(
    change: Callable[[DeltaTable], Any],
) -> None:
    table = table_with({"delta.enableDeletionVectors": True})
    table.delete("id = 2")
    table.drop_feature("deletionVectors")
    protected = table.metadata().configuration[CHECKPOINT_PROTECTION_KEY]
    change(table)
    assert reopened(table).metadata().configuration[CHECKPOINT_PROTECTION_KEY] == protected


def test_the_protection_goes_once_the_history_is_gone() -> None:
    table = table_with({"delta.feature.vacuumProtocolCheck": "supported"})
    version = table.drop_feature("vacuumProtocolCheck").version
    with pytest.raises(InvalidArgument, match="clean the log"):
        table.drop_feature("checkpointProtection")
    forget_before(table, version)
    table.drop_feature("checkpointProtection")
    assert reopened(table).metadata().configuration == {}
    assert ids_of(reopened(table)) == [1, 2, 3]


def test_next_drop_begins_again_after_a_store_that_refused() -> None:
    table = table_with({"delta.columnMapping.mode": "name"})
    refused = [Fault("refuse", "put_if_absent", commit_path(2), n) for n in (1, 2, 3)]
    with pytest.raises(StorageFailure):
        DeltaTable("", store=FaultyStore(table.store, refused)).drop_feature("columnMapping")
    plan = table.alter("DROP FEATURE columnMapping", dry_run=True).plan
    assert (plan.affected_files, plan.schema_changes.lines) == (1, ())
    table.drop_feature("columnMapping")
    assert ids_of(reopened(table)) == [1, 2, 3]


def test_a_dropped_feature_leaves_the_properties_of_users() -> None:
    table = DeltaTable("", store=MemoryStore(), must_exist=False)
    own = {"CURRENT_DEFAULT_OWNER": "me", "delta.feature.allowColumnDefaults": "supported"}
    table.append(pa.table({"id": [1]}), properties=own)
    table.set_default("id", "7")
    table.drop_feature("allowColumnDefaults")
    assert table.metadata().configuration == {"CURRENT_DEFAULT_OWNER": "me"}
    assert "CURRENT_DEFAULT" not in table.metadata().schema_string
