"""What follows a statement that wrote rows: the handle moves on, and small files may be compacted.

Source: the table properties `delta.autoOptimize.*` of Databricks.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec.structs import replace

from dagster_delta.clock import now_ms

if TYPE_CHECKING:
    from dagster_delta.table.table_handle import TableHandle
    from dagster_delta.table.transaction.commit_result import CommitResult

_AUTO = "delta.autoOptimize"


def adopt_write(
    table: TableHandle, result: CommitResult, engine: str | None, data: object = None
) -> CommitResult:
    """The result, after the handle has moved to its version, or to that of the compaction after it
    if the table has that property.
    """
    table._adopt(result)
    if any(key.startswith(_AUTO) for key in result.snapshot.metadata.configuration):
        from dagster_delta.engines import engine_for
        from dagster_delta.table.operations.optimize import compact_after

        compacted = compact_after(result, engine=engine_for(data, engine), clock=now_ms)
        if compacted is not None and compacted.versions:
            table._snapshot = compacted.snapshot
            return replace(result, compacted_version=compacted.versions[-1])
    return result
