"""What a run tells of the tables it has read: which version, which files, how many rows.

Dagster would put metadata of an input on an observation of the asset that is read. That is one
event per reader and partition there, which hides the observations of an external table and cannot
be made for several partitions at once. The facts stand on what the step makes instead: on the
materialisations of its assets, or on the loaded input where it makes none.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from dagster import InputContext, MetadataValue

from dagster_delta.orchestration.io.run_facts import current_execution
from dagster_delta.orchestration.io.type_handlers import annotation_of

if TYPE_CHECKING:
    from dagster_delta.orchestration.io.type_handlers import TypeHandler
    from dagster_delta.table.read.scan import Scan

__all__ = ["INPUT_PREFIX", "input_facts", "log_input_metadata"]

INPUT_PREFIX = "delta/input/"
"""Metadata key of what was read, before the name of the input."""

_OPENED_ONLY = frozenset({"delta_table", "snapshot", "scan"})
"""Load types that read nothing by themselves."""

_MAX_WHERE_CHARACTERS = 1_000


def input_facts(scan: Scan, handler: TypeHandler[Any], value: object) -> dict[str, Any]:
    """What is known of an input: nothing is read for it that the input itself did not take.

    Args:
        scan: what the input asked for.
        handler: what it was loaded by.
        value: what the asset or op is given.
    """
    snapshot = scan.snapshot
    facts: dict[str, Any] = {
        "table": snapshot.store.location.uri,
        "version": snapshot.version,
        "loaded_as": annotation_of(handler),
    }
    if scan.where is not None:
        facts["where"] = _cut(scan.where.sql)
    if len(scan.columns) < len(snapshot.schema):
        facts["columns"] = list(scan.columns)
    if handler.name in _OPENED_ONLY:
        return facts
    # Where Spark has read the log, or nobody yet, the totals are not worth reading it.
    if snapshot.logged_files(more_than=0) is None:
        files = {"files": scan.num_files, "of_files": snapshot.num_files, "bytes": scan.size_bytes}
        facts |= files
    rows = _rows(value)
    if rows is not None:
        facts["rows"] = rows
    return facts


def log_input_metadata(context: InputContext, facts: Mapping[str, Any]) -> None:
    """Put the facts about an input into the metadata of the running step; nothing happens outside
    of a step.

    Args:
        context: of the input.
        facts: see `input_facts`.
    """
    told = {f"{INPUT_PREFIX}{context.name}": MetadataValue.json(dict(facts))}
    execution = current_execution()
    if execution is None:
        return
    if execution.has_assets_def:
        for key in execution.selected_asset_keys:
            execution.add_asset_metadata(told, asset_key=key)
    elif not context.has_asset_key:
        context.add_input_metadata(told)


def _cut(sql: str) -> str:
    return sql if len(sql) <= _MAX_WHERE_CHARACTERS else f"{sql[:_MAX_WHERE_CHARACTERS]} …"


def _rows(value: object) -> int | None:
    """Rows of what is in memory: a frame or table; None for what is read later."""
    if isinstance(value, dict):
        counts = [_rows(frame) for frame in value.values()]
        known = [count for count in counts if count is not None]
        return sum(known) if len(known) == len(counts) else None
    if type(value).__module__.partition(".")[0] == "pyspark":
        return None
    shape = getattr(value, "shape", None)
    return int(shape[0]) if isinstance(shape, tuple) and shape else None
