"""A file of a table is deleted only by the process that created it, or by VACUUM and log clean-up
under their retention; never a file that the newest log refers to.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import dagster_delta
from dagster_delta.errors import DeltaError, InvalidArgument
from dagster_delta.storage.memory_store import MemoryStore
from dagster_delta.table.delta_table import DeltaTable
from dagster_delta.testing.faulty_store import FaultyStore, SimulatedCrash
from tests.table_rows import stored_rows

PROPERTIES = {
    "delta.columnMapping.mode": "name",
    "delta.enableTypeWidening": "true",
    "delta.enableDeletionVectors": "true",
    "delta.feature.allowColumnDefaults": "supported",
    "delta.feature.domainMetadata": "supported",
}
DEFAULT = "ADD COLUMN state STRING DEFAULT 'new'"
CHANGES = ("put", "put_if_absent", "open_output", "delete")
"""The calls of a store that change it."""
Rows = list[dict[str, Any]]

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("one_file_a_batch")]


def ids(*values: int) -> pa.Table:
    days = pa.array([value % 2 for value in values], pa.int64())
    return pa.table({"id": pa.array(values, pa.int64()), "day": days})


@cache
def stored_objects() -> dict[str, bytes]:
    store = MemoryStore()
    table = DeltaTable.create("", ids().schema, store=store, properties=PROPERTIES)
    for first in (0, 10):
        table.append(ids(*range(first, first + 4)))
    return {meta.path: store.read(meta.path) for meta in store.list_recursive()}


def made() -> MemoryStore:
    """A new copy of the table."""
    store = MemoryStore()
    for path, data in stored_objects().items():
        store.put(path, data)
    return store


BEFORE = [{"id": n, "day": n % 2} for first in (0, 10) for n in range(first, first + 4)]
LATE = {"id": 99, "day": 1}


@dataclass(frozen=True)
class Run:
    """An operation that two processes run at the same time."""

    name: str
    act: Callable[[DeltaTable], object]
    expected: list[Rows] = field(default_factory=lambda: [BEFORE])
    """What the table may hold afterwards."""


def with_state(found: Rows) -> Rows:
    return [{**row, "state": "new"} for row in found]


def merge(table: DeltaTable) -> object:
    source = pa.concat_tables([ids(0, 99)])
    builder = table.merge(source, on="t.id = s.id")
    return builder.when_matched_update_all().when_not_matched_insert_all().execute()


def lazily(table: DeltaTable) -> object:
    if "state" not in table.schema().names:
        table.add_column("state", "STRING", default="'new'", existing_rows="lazy")
    return table.materialize_defaults()


def changed_online(table: DeltaTable) -> object:
    return table.change_column("day", "STRING", enable_features=True)


RUNS = [
    Run("alter", lambda table: table.alter(DEFAULT), [with_state(BEFORE)]),
    Run("materialize", lazily, [with_state(BEFORE)]),
    Run("change column", changed_online, [[{**row, "day": str(row["day"])} for row in BEFORE]]),
    Run("append", lambda table: table.append(ids(99), idempotency=("a", 1)), [[*BEFORE, LATE]]),
    Run("overwrite", lambda table: table.overwrite(ids(*range(4))), [BEFORE[:4]]),
    Run(
        "overwrite where",
        lambda table: table.overwrite(ids(99), where="id = 0 OR id = 99"),
        [[*BEFORE[1:], LATE]],
    ),
    Run("delete", lambda table: table.delete("id < 2"), [BEFORE[2:]]),
    Run(
        "update",
        lambda table: table.update({"id": "id + 100"}, where="id < 1"),
        [[*BEFORE[1:], {"id": 100, "day": 0}]],
    ),
    Run("merge", merge, [[*BEFORE, LATE]]),
    Run("optimize", lambda table: table.optimize()),
    Run("restore", lambda table: table.restore(1), [BEFORE[:4]]),
    Run("vacuum", lambda table: table.vacuum(dry_run=False)),
    Run("checkpoint", lambda table: table.checkpoint()),
]


def check(store: Any, run: Run) -> None:
    """The table is whole, whichever runs succeeded."""
    assert stored_rows(store) in [sorted(each, key=repr) for each in (*run.expected, BEFORE)]
    table = DeltaTable("", store=store)
    for path in table.snapshot().files()["path"].to_pylist():
        assert store.head(path) is not None, path


@pytest.mark.parametrize("run", RUNS, ids=lambda run: run.name)
@pytest.mark.examples(3)
def test_a_second_run_of_the_same_operation_at_any_moment_costs_no_row(run: Run) -> None:
    """Process B does all of the operation before the n-th call to the store of process A."""
    moment, interrupted = 0, True
    while interrupted:
        moment += 1
        store, calls, interrupted = made(), 0, False

        def other(_operation: str, _path: str) -> None:
            nonlocal calls, interrupted
            calls += 1
            if calls == moment:  # noqa: B023
                interrupted = True
                run.act(DeltaTable("", store=store))  # noqa: B023

        succeeded = True
        try:
            run.act(DeltaTable("", store=FaultyStore(store, before_call=other)))
        except DeltaError:
            succeeded = False
        assert interrupted or succeeded, "nothing came between, so nothing may fail"
        check(store, run)
    assert moment > 3


@pytest.mark.parametrize("run", RUNS[:3], ids=lambda run: run.name)
def test_a_run_that_dies_at_any_moment_leaves_the_table_to_the_next_one(run: Run) -> None:
    """It dies before its n-th change of the store: a read leaves nothing behind."""
    moment, died = 0, True
    while died:
        moment += 1
        store, calls, died = made(), 0, False

        def die(operation: str, _path: str) -> None:
            nonlocal calls, died
            calls += operation in CHANGES
            if calls == moment:  # noqa: B023
                died = True
                raise SimulatedCrash

        # The last one dies after all of its changes.
        with suppress(SimulatedCrash):
            run.act(DeltaTable("", store=FaultyStore(store, before_call=die)))
        table = DeltaTable("", store=store)
        if table.column_change() is not None:
            table.resume_column_change()
        else:
            try_again(run, table)
        check(store, run)
        assert stored_rows(store) != BEFORE
    assert moment > 3


def try_again(run: Run, table: DeltaTable) -> None:
    try:
        run.act(table)
    except InvalidArgument as error:
        # The change was committed before the crash.
        if "already" not in str(error):
            raise


DELETES = {
    "engines/arrow/compaction.py": "files that this call wrote, and returned to no one",
    "parquet/writer.py": "files that this writer created",
    "engines/spark/changes/merge.py": "files that the tasks of this merge reported",
    "engines/spark/changes/delete_update.py": "files that the tasks of this change reported, united",
    "engines/statements/expectations.py": "rows set aside by an attempt to write that was given up",
    "engines/spark/executor_reports.py": "files that the tasks of this write reported",
    "engines/spark/write/compaction.py": "files that the tasks of this backfill reported",
    "storage/cloud/store.py": "the port itself, and the objects of its probe",
    "storage/file_publication.py": "its own temporary file",
    "storage/local_store.py": "the port itself",
    "storage/unreferenced_files.py": "what the callers of it have created",
    "table/log_upkeep/checkpoint_files.py": "sidecars that no manifest names yet",
    "table/transaction/file_actions.py": "files that this call wrote",
    "table/log_upkeep/symlink_manifests.py": "manifests for other engines, no files of the table",
    "table/log_upkeep/cleanup.py": "the log before the retention",
    "streaming/data_source.py": "files that the tasks of this write reported",
    "table/transaction/committer.py": "its own commit, put where a clean-up had deleted another one",
    "table/transaction/transaction.py": "files written for this commit, which is not in the log",
    "table/operations/write_rows.py": "rows of an attempt to write that was given up",
    "table/branches/branch.py": "a branch that is dropped, with its directory alone",
    "table/operations/drop_table.py": "all files of a table that is dropped",
    "table/operations/rewrite_files.py": "files of an attempt to rewrite that was given up",
    "table/operations/vacuum.py": "VACUUM",
    "testing/store_conformance.py": "tests of stores",
}
"""Every module that deletes files by a store, or below a table, and which."""


def test_every_place_that_deletes_files_is_known() -> None:
    package = Path(dagster_delta.__file__).parent
    found = set()
    words = ("CreatedFiles", "delete", "remove", "unlink")
    # Most modules have no such call, and parsing them all takes seconds.
    call = re.compile(
        r"CreatedFiles|delete_with_checksums|delete_unreferenced|[.](delete|remove|unlink)[(]"
    )
    for path in package.rglob("*.py"):
        source = path.read_text()
        nodes = ast.walk(ast.parse(source)) if call.search(source) else ()
        for node in nodes:
            name = path.relative_to(package).as_posix()
            if isinstance(node, ast.Name) and node.id == "delete_with_checksums":
                found.add(name)
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
                if node.func.id in ("CreatedFiles", "delete_unreferenced"):
                    found.add(name)
                continue
            if not (
                isinstance(node, ast.Call)
                and isinstance(node.func, ast.Attribute)
                and node.func.attr in words
            ):
                continue
            target = ast.unparse(node.func.value)
            if (node.func.attr, "store" in target) == ("delete", True) or (
                target == "os" and node.func.attr in ("remove", "unlink")
            ):
                found.add(name)
    assert found == set(DELETES)
