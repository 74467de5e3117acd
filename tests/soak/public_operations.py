"""Every public operation on a small table, with what it reads or leaves behind.

The parts that inject faults run each of them while something fails, and compare the rows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from dagster_delta import DeltaTable
from dagster_delta.storage.memory_store import MemoryStore
from dagster_delta.storage.object_store import ObjectStore
from tests.soak.crash_steps import comparable

Rows = list[tuple[tuple[str, str], ...]]

PROPERTIES = {
    "delta.columnMapping.mode": "name",
    "delta.enableDeletionVectors": "true",
    "delta.enableChangeDataFeed": "true",
    "delta.enableTypeWidening": "true",
    "delta.feature.allowColumnDefaults": "supported",
    "delta.feature.checkConstraints": "supported",
    "dagsterDelta.enableColumnChange": "true",
    "delta.checkpointInterval": "1000",
}


@dataclass(frozen=True)
class Place:
    """Where an operation may put a second table."""

    uri: str
    store: ObjectStore | None = None
    storage_options: Mapping[str, Any] | None = None

    @property
    def options(self) -> dict[str, Any]:
        """Keyword arguments with which the table there is opened."""
        return {"store": self.store, "storage_options": self.storage_options}


@dataclass(frozen=True)
class PublicOperation:
    """One public operation, run on the latest version."""

    name: str
    run: Callable[[DeltaTable, Place], object]
    reads: bool = False
    """Whether the value of `run` is what was read; otherwise the rows of the table count."""
    alone: bool = False
    """Whether other statements may not run meanwhile, or see it half done."""


def _frame(first: int, count: int, **more: Any) -> pa.Table:
    ids = range(first, first + count)
    columns = {
        "id": pa.array(ids, pa.int64()),
        "day": pa.array([f"d{id_ % 2}" for id_ in ids]),
        "name": pa.array([f"name {id_ % 3}" for id_ in ids]),
        "v": pa.array([id_ % 10 for id_ in ids], pa.int32()),
        "n": pa.array([str(id_) for id_ in ids]),
        "w": pa.array(ids, pa.int32()),
    }
    return pa.table(columns | more)


def fill(uri: str, store: ObjectStore | None = None, **options: Any) -> DeltaTable:
    """A table with partitions, a checkpoint, deletion vectors and change data in six versions."""
    table = DeltaTable(uri, store=store, must_exist=False, **options)
    table.append(_frame(0, 12), partition_by=["day"], properties=PROPERTIES)
    table.append(_frame(12, 6))
    table.add_constraint("positive", "v >= 0")
    table.checkpoint()
    table.delete("id % 5 = 3")
    table.update({"v": "v + 1"}, where="id = 10")
    table.append(_frame(18, 2), idempotency=("soak", 1))
    return table


def memory_copy(template: MemoryStore) -> MemoryStore:
    """A store with the same objects."""
    copy = MemoryStore()
    for meta in template.list_recursive():
        copy.put(meta.path, template.read(meta.path))
    return copy


def rows_of(table: DeltaTable) -> Rows:
    """All rows of the latest version, each as sorted (column, text)."""
    return comparable(table.refresh().scan().to_arrow().to_pylist())


def _scanned(table: DeltaTable, where: str | None = None) -> Rows:
    return comparable(table.refresh().scan(where=where).to_arrow().to_pylist())


def _changes(table: DeltaTable) -> Rows:
    found = table.changes(starting_version=1).to_arrow().drop_columns(["_commit_timestamp"])
    return comparable(found.to_pylist())


def _merge(table: DeltaTable) -> object:
    merge = table.merge(_frame(16, 8), "t.id = s.id", source_alias="s", target_alias="t")
    merge.when_matched_update({"v": "s.v + 100"})
    return merge.when_not_matched_insert_all().execute()


def _lazily(table: DeltaTable) -> object:
    table.add_column("lazy", "INT", default="4", existing_rows="lazy", enable_features=True)
    return table.materialize_defaults()


def _cancelled(table: DeltaTable) -> object:
    from dagster_delta.errors import ColumnChangeFailed

    try:
        return table.change_column("name", "INT")
    except ColumnChangeFailed:
        # Names are no numbers: the change has to cancel itself.
        return None


def _clone(deep: bool) -> Callable[[DeltaTable, Place], object]:
    def run(table: DeltaTable, place: Place) -> object:
        options: dict[str, Any] = place.options
        table.clone(place.uri, deep=deep, **options)
        return rows_of(DeltaTable(place.uri, **options))

    return run


def _created(table: DeltaTable, place: Place) -> object:
    options: dict[str, Any] = place.options
    made = DeltaTable.create(place.uri, _frame(0, 1).schema, partition_by=["day"], **options)
    made.append(_frame(0, 3))
    return rows_of(DeltaTable(place.uri, **options))


def _transaction(table: DeltaTable) -> object:
    transaction = table.transaction()
    transaction.record_application("soak-transaction", 1)
    return transaction.commit("WRITE")


def _read(name: str, run: Callable[[DeltaTable], object]) -> PublicOperation:
    return PublicOperation(name, lambda table, _: run(table), reads=True)


def _write(
    name: str, run: Callable[[DeltaTable], object], *, alone: bool = False
) -> PublicOperation:
    return PublicOperation(name, lambda table, _: run(table), alone=alone)


_READS = (
    _read("scan", _scanned),
    _read("scan with a filter", lambda table: _scanned(table, "id > 8 AND day = 'd1'")),
    _read("scan of an old version", lambda table: comparable(
        table.snapshot(1).scan().to_arrow().to_pylist())),
    _read("count", lambda table: table.refresh().scan(where="v > 2").count()),
    _read("files", lambda table: sorted(table.refresh().files()["path"].to_pylist())),
    _read("history", lambda table: [entry.version for entry in table.history()]),
    _read("changes", _changes),
    _read("health", lambda table: table.health().num_files),
    _read("schema", lambda table: str(table.refresh().arrow_schema)),
    _read("plan_column_change", lambda table: table.plan_column_change("n", "INT") and 1),
    PublicOperation("create and append", _created, reads=True),
    PublicOperation("clone", _clone(deep=False), reads=True),
    PublicOperation("deep clone", _clone(deep=True), reads=True),
)  # fmt: skip

_WRITES = (
    _write("append", lambda table: table.append(_frame(30, 4))),
    _write("append a new column", lambda table: table.append(
        _frame(30, 2, extra=pa.array([1, 2])), schema_mode="merge")),
    _write("idempotent append", lambda table: table.append(
        _frame(40, 3), idempotency=("soak", 2))),
    _write("overwrite", lambda table: table.overwrite(_frame(0, 3))),
    _write("overwrite a new schema", lambda table: table.overwrite(
        _frame(0, 3).select(["id", "day", "v"]), schema_mode="overwrite")),
    _write("overwrite where", lambda table: table.overwrite(
        _frame(4, 2), where="id IN (4, 5, 6)")),
    _write("overwrite partitions", lambda table: table.overwrite(
        _frame(1, 1), where="dynamic")),
    _write("delete", lambda table: table.delete("id < 6")),
    _write("delete everything", lambda table: table.delete()),
    _write("update", lambda table: table.update({"v": "v + 5"}, where="id > 9")),
    _write("merge", _merge),
    _write("optimize", lambda table: table.optimize(max_deleted_share=0)),
    _write("z-order", lambda table: table.optimize(zorder_by=["id", "v"])),
    _write("vacuum", lambda table: table.vacuum(
        0, dry_run=False, enforce_retention=False), alone=True),
    _write("checkpoint", lambda table: table.checkpoint()),
    _write("clean_log", lambda table: table.clean_log(
        0, dry_run=False, enforce_retention=False)),
    _write("restore", lambda table: table.restore(1)),
    _write("add a column", lambda table: table.alter("ADD COLUMN c INT DEFAULT 7")),
    _write("add a lazy column", _lazily, alone=True),
    _write("drop_column", lambda table: table.drop_column("name")),
    _write("rename_column", lambda table: table.rename_column("name", "title")),
    _write("widen_column", lambda table: table.widen_column("w", "BIGINT")),
    _write("set_nullable", lambda table: table.set_nullable("id", False)),
    _write("set_default", lambda table: table.set_default("v", "3")),
    _write("set_comment", lambda table: table.set_comment("v", "a number")),
    _write("move_column", lambda table: table.move_column("v", first=True)),
    _write("add_constraint", lambda table: table.add_constraint("known", "id >= 0")),
    _write("drop_constraint", lambda table: table.drop_constraint("positive")),
    _write("set_properties", lambda table: table.set_properties({"delta.appendOnly": "true"})),
    _write("unset_properties", lambda table: table.unset_properties(
        ["delta.enableChangeDataFeed"])),
    _write("enable_feature", lambda table: table.enable_feature("rowTracking")),
    _write("drop_feature", lambda table: table.drop_feature("deletionVectors")),
    _write("upgrade_protocol", lambda table: table.upgrade_protocol(min_writer_version=7)),
    _write("change_column", lambda table: table.change_column("n", "INT")),
    _write("a column change that fails", _cancelled),
    _write("transaction", _transaction),
)  # fmt: skip

OPERATIONS = _READS + _WRITES
