"""The operations of tables that tests of faults run, and the table that they run on."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import pyarrow as pa

from dagster_delta.storage.memory_store import MemoryStore
from dagster_delta.table.delta_table import DeltaTable
from tests.table_rows import sorted_rows

Rows = list[tuple[Any, ...]]

PROPERTIES = {
    "delta.enableDeletionVectors": "true",
    "delta.enableChangeDataFeed": "true",
    "delta.enableTypeWidening": "true",
    "delta.checkpointInterval": "1000",
}


def frame(first: int, count: int) -> Any:
    """Rows in three partitions."""
    ids = range(first, first + count)
    return pa.table(
        {
            "id": pa.array(ids, pa.int64()),
            "day": [f"d{n % 3}" for n in ids],
            "number": [str(n) for n in ids],
        }
    )


def _merge(table: DeltaTable) -> object:
    merge = table.merge(frame(28, 5), on="t.id = s.id", source_alias="s", target_alias="t")
    return merge.when_matched_update_all().when_not_matched_insert_all().execute()


def _feed(table: DeltaTable) -> Rows:
    return sorted_rows(table.changes(4).to_arrow().drop_columns(["_commit_timestamp"]))


READS: dict[str, Callable[[DeltaTable], Rows]] = {
    "scan": lambda table: sorted_rows(table.snapshot().scan().to_arrow()),
    "filtered scan": lambda table: sorted_rows(
        table.snapshot().scan(where="number = '7'").to_arrow()
    ),
    "scan of an old version": lambda table: sorted_rows(table.snapshot(2).scan().to_arrow()),
    "change feed": _feed,
}

WRITES: dict[str, Callable[[DeltaTable], object]] = {
    "append": lambda table: table.append(frame(50, 3)),
    "overwrite": lambda table: table.overwrite(frame(50, 3)),
    "overwrite where": lambda table: table.overwrite(frame(3, 1), where="id = 3"),
    "overwrite partitions": lambda table: table.overwrite(frame(3, 1), where="dynamic"),
    "delete": lambda table: table.delete("id % 4 = 1"),
    "delete everything": lambda table: table.delete(),
    "update": lambda table: table.update({"number": "concat(number, '!')"}, where="id > 30"),
    "merge": _merge,
    "optimize": lambda table: table.optimize(max_deleted_share=0),
    "zorder": lambda table: table.optimize(zorder_by=["id"]),
    "vacuum": lambda table: table.vacuum(0, enforce_retention=False, dry_run=False),
    "restore": lambda table: table.restore(version=2),
    "checkpoint": lambda table: table.checkpoint(),
    "clean log": lambda table: table.clean_log(0, enforce_retention=False, dry_run=False),
    "add column": lambda table: table.add_column("extra", "STRING", default="'x'"),
    "drop feature": lambda table: table.drop_feature("deletionVectors"),
    "change column": lambda table: table.change_column("number", "INT", enable_features=True),
}


@cache
def table_objects() -> dict[str, bytes]:
    """A table with a checkpoint and commits after it, deletion vectors and change data."""
    store = MemoryStore()
    table = DeltaTable("", store=store, must_exist=False)
    table.append(frame(0, 20), partition_by=["day"])
    table.set_properties(PROPERTIES)
    table.append(frame(20, 10))
    table.checkpoint()
    table.delete("id % 8 = 3")
    table.update({"number": "'0'"}, where="id = 10")
    return {meta.path: store.read(meta.path) for meta in store.list_recursive()}
