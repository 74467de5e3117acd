"""Rows written under other bounds than those of `write_spec`, as small row groups and files."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
from msgspec.structs import replace

from dagster_delta.engines.arrow.engine import ArrowEngine
from dagster_delta.engines.plans import WriteSpec
from dagster_delta.table.delta_table import DeltaTable
from dagster_delta.table.operations.write_planning import write_spec
from dagster_delta.table.read.file_planner import read_plan
from dagster_delta.table.read.snapshot import Snapshot
from dagster_delta.table.transaction.file_actions import tombstones
from dagster_delta.table.transaction.transaction import Transaction


def append_bounded(table: DeltaTable, rows: pa.Table | pa.RecordBatchReader, **bounds: int) -> None:
    """An append by the Arrow engine; `bounds` are fields of its `WriteSpec`."""
    snapshot = table.refresh()
    written = ArrowEngine().write(rows, _spec(snapshot, bounds), store=table.store)
    transaction = Transaction(table.store, snapshot)
    transaction.stage_written(written.files)
    transaction.commit("WRITE")
    table.refresh()


def sort_bounded(
    table: DeltaTable, columns: Sequence[tuple[str, ...]], *, is_hilbert: bool, **bounds: int
) -> None:
    """All files of the table, sorted along a curve through the columns by the Arrow engine."""
    snapshot = table.refresh()
    files = snapshot.live_files()
    plan = read_plan(snapshot, files, None)
    spec = _spec(snapshot, bounds)
    written = ArrowEngine().sort([plan], spec, columns, is_hilbert=is_hilbert)
    transaction = Transaction(table.store, snapshot)
    transaction.stage_removed(tombstones(files, snapshot.timestamp_ms))
    transaction.stage_written(written.files)
    transaction.commit("OPTIMIZE")
    table.refresh()


def _spec(snapshot: Snapshot, bounds: dict[str, int]) -> WriteSpec:
    return replace(write_spec(snapshot.configuration, snapshot.store.location), **bounds)
