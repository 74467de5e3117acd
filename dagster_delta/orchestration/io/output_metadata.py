"""What the UI shows of a write and of the inputs of its run, from their logs; only sample rows are
read from data.

Dagster puts metadata of an input on an observation of the upstream asset: one event per reader and
partition, which hides the observations of an external table and cannot cover several partitions at
once. So these facts are put on the materializations of the step's assets, or on the loaded input if
the step has none.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import closing
from typing import TYPE_CHECKING, Any, TypeVar

from dagster import DataVersion, InputContext, MetadataValue, OutputContext

import dagster_delta.arrow_compute as pc
from dagster_delta.errors import DeltaError, InvalidArgument, SchemaMismatch
from dagster_delta.orchestration.io.asset_writer import NothingWritten, WrittenAsset
from dagster_delta.orchestration.io.expectation_report import (
    audit_metadata,
    expectation_metadata,
    report_evaluations,
)
from dagster_delta.orchestration.io.merge_config import MergeConfig
from dagster_delta.orchestration.io.run_facts import current_execution, step_notes
from dagster_delta.orchestration.io.type_handlers import OPENED_ONLY, annotation_of
from dagster_delta.orchestration.metadata_keys import (
    DETAILS,
    RawMetadata,
    RawMetadataValue,
    first_names,
    shown,
)
from dagster_delta.orchestration.row_tables import (
    MAX_COLUMNS,
    check_masked_columns,
    column_statistics,
    first_rows,
    row_table,
)
from dagster_delta.orchestration.table_metadata import (
    data_version_tags,
    history_metadata,
    table_metadata,
)
from dagster_delta.table.log.commit_summary import rows_by_deed
from dagster_delta.table.read.log_facts import whole_files

if TYPE_CHECKING:
    import pyarrow as pa

    from dagster_delta.orchestration.io.type_handlers import TypeHandler
    from dagster_delta.table.read.scan import Scan
    from dagster_delta.table.read.snapshot import Snapshot
    from dagster_delta.table.slices import Slice

T = TypeVar("T")

INPUT_PREFIX = "delta/input/"
"""Prefix of the metadata key; the name of the input follows."""

_MAX_WHERE_CHARACTERS = 1_000

_MAX_COMPARISONS = 10_000_000
"""Maximum number of partitions times files: at most a few seconds of work after a write."""

_MAX_STATISTICS = 1_000_000
"""Maximum number of columns times files whose statistics are shown: two seconds of work."""

_OF_EXPECTATIONS = ("numDroppedRows", "numQuarantinedRows")
"""Metrics with keys of their own."""

_COUNTERS = {
    "numFiles": "delta/files_added",
    "numTargetFilesAdded": "delta/files_added",
    "numRemovedFiles": "delta/files_removed",
    "numTargetFilesRemoved": "delta/files_removed",
    "numOutputBytes": "delta/bytes_added",
    "numTargetBytesAdded": "delta/bytes_added",
}
"""Metrics of a write to their keys; those not of its rows either are details."""


def report_write(
    context: OutputContext, written: WrittenAsset, further: Mapping[str, object], *, table_name: str
) -> None:
    """Report a commit to Dagster with the data version of the asset, unless its function has set
    one, and warn of what may surprise.
    """
    _log_commit(context, written)
    snapshot = written.snapshot
    execution = current_execution()
    if context.has_asset_key and execution is not None:
        asset_key, instance = context.asset_key, execution.instance
        if not execution.get_step_execution_context().has_data_version(asset_key):
            found = _read_optional(
                context, "data version", lambda: data_version_tags(snapshot, instance, asset_key)
            )
            for value in found.values():
                execution.set_data_version(asset_key, DataVersion(value))
    table = table_metadata(snapshot, uri=snapshot.store.location.uri, table_name=table_name)
    by_key = _read_optional(context, "figures per partition", lambda: _by_partition(written))
    count = written.write.options.show_history
    history = _read_optional(context, "history", lambda: history_metadata(snapshot, count))
    sample = _read_optional(context, "sample rows", lambda: _read_sample(written))
    statistics = _read_optional(context, "column statistics", lambda: _column_statistics(written))
    effect = _effect_of_run(written, by_key)
    context.add_output_metadata(
        shown(
            table,
            _collect_facts(written),
            effect,
            history,
            sample,
            statistics,
            written.metadata,
            _report_expectations(context, written),
            further,
        )
    )
    run = written.write.partitions_of_run
    if execution is not None and run is not None and len(run.parts) > 1 and context.has_asset_key:
        for key, figures in by_key.items():
            execution.add_asset_metadata(figures, asset_key=context.asset_key, partition_key=key)


def _report_expectations(context: OutputContext, written: WrittenAsset) -> Mapping[str, object]:
    """Report the results of expectations and audits; returns their metadata."""
    options, observed = written.write.options, written.observed
    audits = written.audit_results
    if context.has_asset_key:
        report_evaluations(context.asset_key, options, observed, audits, written.snapshot)
    others = written.metadata.get("delta/quarantined_rows")
    also = others if isinstance(others, int) else 0
    counts = expectation_metadata(options.expectations, observed, also_set_aside=also)
    return {**counts, **audit_metadata(audits)}


def _effect_of_run(
    written: WrittenAsset, by_key: Mapping[str, Mapping[str, int]]
) -> Mapping[str, object]:
    """What the write changed, on the materialization of every partition of the run."""
    effect: dict[str, object] = {**_collect_counts(written)}
    run = written.write.partitions_of_run
    keys = () if run is None else run.parts
    if len(keys) < 2:
        return {**effect, **(by_key.get(keys[0], {}) if keys else {})}
    totals = {key.partition("/")[2]: value for key, value in effect.items() if value}
    found: dict[str, object] = {DETAILS: {"run": {"partitions": len(keys), **totals}}}
    if len(by_key) == len(keys):
        # Replaced by the figures of each partition, which keep the place of these.
        names = set.intersection(*map(set, by_key.values()))
        found |= {name: sum(by_key[key][name] for key in keys) for name in names}
    return found


def report_nothing(context: OutputContext, written: NothingWritten) -> None:
    """Report that nothing was written, without a table."""
    context.log.info(f"nothing was written: {written.reason}")
    for warning in written.warnings:
        context.log.warning(warning)
    context.add_output_metadata(shown({"delta/skipped": written.reason}, written.metadata))


def _collect_facts(written: WrittenAsset) -> dict[str, object]:
    """What was done, without figures."""
    lineage, options = written.column_lineage, written.write.options
    merge = options.merge_config or MergeConfig()
    others = {
        name: value
        for name, value in written.metrics.items()
        if name not in (*_COUNTERS, *_OF_EXPECTATIONS)
        and value not in (0, "0")
        and not rows_by_deed({name: value})
    }
    return {
        "delta/mode": options.mode,
        "delta/skipped": written.skipped_because,
        "delta/compacted_version": written.compacted_version,
        "delta/attempts": written.attempts if written.attempts > 1 else None,
        "dagster/column_lineage": None
        if lineage is None
        else MetadataValue.column_lineage(lineage),
        DETAILS: {
            "merge_type": merge.merge_type.value if options.mode == "merge" else None,
            "predicate": written.predicate,
            "metrics": others or None,
        },
    }


def _collect_counts(written: WrittenAsset) -> dict[str, int | str]:
    metrics = written.metrics
    rows = {f"delta/rows_{deed}": count for deed, count in rows_by_deed(metrics).items()}
    return rows | {key: metrics[name] for name, key in _COUNTERS.items() if name in metrics}


def _by_partition(written: WrittenAsset) -> dict[str, dict[str, int]]:
    """Metadata of each partition of the run, by its key; unknown figures are omitted."""
    run, within = written.write.partitions_of_run, written.write.within
    if run is None or within is None:
        return {}
    found = partition_figures(written.snapshot, run)
    if written.write.options.mode != "overwrite" or written.skipped_because is not None:
        return found
    if len(within.parts) == 1 and within.parts[0] not in found:
        rows = written.metrics.get("numOutputRows")
        if rows is not None:
            found = {**found, within.parts[0]: {"dagster/partition_row_count": int(rows)}}
    # The run has replaced these partitions.
    written_now = {
        "delta/partition_files": "delta/files_added",
        "delta/partition_size_bytes": "delta/bytes_added",
        "dagster/partition_row_count": "delta/rows_written",
    }
    replaced = frozenset(within.parts)
    return {
        key: figures | {written_now[name]: value for name, value in figures.items()}
        if key in replaced
        else figures
        for key, figures in found.items()
    }


def _read_sample(written: WrittenAsset) -> RawMetadata:
    """A few rows of the table, or of the partitions of the run, read from its data files."""
    options, schema = written.write.options, written.snapshot.schema
    if not options.sample_rows:
        return {}
    check_masked_columns(options.masked_columns, schema)
    scan = written.snapshot.scan(columns=schema.names[:MAX_COLUMNS], where=written.predicate)
    with closing(scan.to_batches()) as batches:
        rows = first_rows(batches, options.sample_rows)
    return {"delta/sample_rows": row_table(rows, options.masked_columns)} if rows else {}


def _column_statistics(written: WrittenAsset) -> RawMetadata:
    options, snapshot = written.write.options, written.snapshot
    if not options.column_statistics or snapshot.is_large_and_unread:
        return {}
    if snapshot.num_files * min(len(snapshot.schema), MAX_COLUMNS) > _MAX_STATISTICS:
        return {}
    return {"delta/column_statistics": column_statistics(snapshot, options.masked_columns)}


def _read_optional(
    context: OutputContext, what: str, read: Callable[[], Mapping[str, T]]
) -> Mapping[str, T]:
    """Metadata that a run does not fail for: its rows are written, and a retry repeats them."""
    try:
        return read()
    except (DeltaError, OSError) as error:
        context.log.warning(f"the materialization lacks its {what}: {error}")
        return {}


def _log_commit(context: OutputContext, written: WrittenAsset) -> None:
    """The commit in one line: in a terminal there is no page with the metadata."""
    write, snapshot = written.write, written.snapshot
    figures = [
        f"{int(value):,} {key.partition('/')[2].replace('_', ' ')}"
        for key, value in _collect_counts(written).items()
        if str(value).isdecimal() and int(value)
    ]
    done = f"{write.name}: version {snapshot.version} of {snapshot.store.location.uri}"
    line = ", ".join([f"{done}, mode {write.options.mode}", *figures])
    if written.skipped_because is not None:
        line = f"nothing was written to {write.uri}: {written.skipped_because}"
    context.log.info(line)
    if written.kept_partitions:
        context.log.info(
            f"the mode of {write.name} is ignore: {first_names(written.kept_partitions)} have rows "
            "already and were left as they are"
        )
    for warning in written.warnings:
        context.log.warning(warning)


def partition_figures(snapshot: Snapshot, run: Slice) -> dict[str, dict[str, int]]:
    """Partition key to the totals of its rows in this version, as metadata.

    A key is omitted if a file may hold rows of this partition and of others: neither the partition
    values nor the bounds of its columns tell. Rows are omitted if a file has no row count.
    """
    if snapshot.is_large_and_unread or len(run.parts) * snapshot.num_files > _MAX_COMPARISONS:
        return {}
    files = snapshot.live_files(["size_bytes"])
    rows = snapshot.record_counts()
    figures = {}
    for key in run.parts:
        own = _own_files(snapshot, run.narrowed((key,)))
        if own is None:
            continue
        counts, sizes = rows.filter(own), files["size_bytes"].filter(own)
        figures[key] = {
            "delta/partition_files": len(counts),
            "delta/partition_size_bytes": int(pc.sum(sizes).as_py() or 0),
        }
        if not counts.null_count:
            figures[key]["dagster/partition_row_count"] = int(pc.sum(counts).as_py() or 0)
    return figures


def _own_files(snapshot: Snapshot, part: Slice) -> pa.BooleanArray | None:
    """Which live files hold the rows of a part; None if one may hold others too."""
    try:
        scan = snapshot.scan(where=part.condition(snapshot.schema))
    except (InvalidArgument, SchemaMismatch):
        # A column may distinguish all partitions of the run together, and not each of them.
        return None
    return whole_files(scan)


def input_facts(scan: Scan, handler: TypeHandler[Any], value: object) -> RawMetadata:
    """Facts about an input, from data that is already read."""
    snapshot = scan.snapshot
    facts: RawMetadata = {
        "table": snapshot.store.location.uri,
        "version": snapshot.version,
        "loaded_as": annotation_of(handler),
    }
    if scan.where is not None:
        facts["where"] = _shorten_sql(scan.where.sql)
    if len(scan.columns) < len(snapshot.schema):
        facts["columns"] = list(scan.columns)
    if handler.name in OPENED_ONLY:
        return facts
    # A log that was not read yet is not read only for the totals.
    if not snapshot.is_unread:
        files = {"files": scan.num_files, "of_files": snapshot.num_files, "bytes": scan.size_bytes}
        facts |= files
    rows = _count_rows(value)
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


def _shorten_sql(sql: str) -> str:
    return sql if len(sql) <= _MAX_WHERE_CHARACTERS else f"{sql[:_MAX_WHERE_CHARACTERS]} …"


def _count_rows(value: object) -> int | None:
    """Row count of a frame or table in memory; None for a lazy value."""
    if isinstance(value, dict):
        counts = [_count_rows(frame) for frame in value.values()]
        known = [count for count in counts if count is not None]
        return sum(known) if len(known) == len(counts) else None
    if type(value).__module__.partition(".")[0] == "pyspark":
        return None
    shape = getattr(value, "shape", None)
    return int(shape[0]) if isinstance(shape, tuple) and shape else None
