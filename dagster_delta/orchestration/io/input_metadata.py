"""Metadata of a run about the tables it has read: versions, files, rows.

Dagster puts metadata of an input on an observation of the upstream asset: one event per reader and
partition, which hides the observations of an external table and cannot cover several partitions at
once. So these facts are put on the materializations of the step's assets, or on the loaded input if
the step has none.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from dagster import InputContext, MetadataValue

from dagster_delta.orchestration.io.run_facts import current_execution, step_notes
from dagster_delta.orchestration.io.type_handlers import annotation_of
from dagster_delta.orchestration.metadata_keys import RawMetadata, RawMetadataValue

if TYPE_CHECKING:
    from dagster_delta.orchestration.io.type_handlers import TypeHandler
    from dagster_delta.table.read.scan import Scan

INPUT_PREFIX = "delta/input/"
"""Prefix of the metadata key; the name of the input follows."""

_OPENED_ONLY = frozenset({"delta_table", "snapshot", "scan"})
"""Load types that read nothing by themselves."""

_MAX_WHERE_CHARACTERS = 1_000


def input_facts(scan: Scan, handler: TypeHandler[Any], value: object) -> RawMetadata:
    """Facts about an input, from data that is already read."""
    snapshot = scan.snapshot
    facts: RawMetadata = {
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
    # If Spark has read the log, or it was not read yet, do not read it only for the totals.
    if snapshot.logged_files(more_than=0) is None:
        files = {"files": scan.num_files, "of_files": snapshot.num_files, "bytes": scan.size_bytes}
        facts |= files
    rows = _rows(value)
    if rows is not None:
        facts["rows"] = rows
    return facts


def log_input_metadata(context: InputContext, facts: Mapping[str, RawMetadataValue]) -> None:
    """Add the facts about an input to the metadata of the running step, if there is one."""
    if not context.has_input_name:
        return
    metadata: RawMetadata = {f"{INPUT_PREFIX}{context.name}": MetadataValue.json(dict(facts))}
    notes = step_notes()
    if notes is not None and isinstance(read := facts.get("bytes"), int):
        # Charts are drawn of numbers alone.
        bytes_read = notes.setdefault("bytes_read", {})
        bytes_read[context.name] = read
        metadata["delta/bytes_read"] = sum(bytes_read.values())
    execution = current_execution()
    if execution is None:
        return
    if execution.has_assets_def:
        for key in execution.selected_asset_keys:
            execution.add_asset_metadata(metadata, asset_key=key)
    elif not context.has_asset_key:
        context.add_input_metadata(metadata)


def _cut(sql: str) -> str:
    return sql if len(sql) <= _MAX_WHERE_CHARACTERS else f"{sql[:_MAX_WHERE_CHARACTERS]} …"


def _rows(value: object) -> int | None:
    """Row count of a frame or table in memory; None for a lazy value."""
    if isinstance(value, dict):
        counts = [_rows(frame) for frame in value.values()]
        known = [count for count in counts if count is not None]
        return sum(known) if len(known) == len(counts) else None
    if type(value).__module__.partition(".")[0] == "pyspark":
        return None
    shape = getattr(value, "shape", None)
    return int(shape[0]) if isinstance(shape, tuple) and shape else None
