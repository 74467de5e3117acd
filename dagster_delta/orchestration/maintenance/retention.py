"""Retention: the rows of an asset's table that are too old, or of partitions that Dagster deleted.

The rules are in the metadata of the asset; a run of maintenance counts the rows, and deletes them
in one commit if it is asked.
"""

# No `from __future__ import annotations`: Dagster reads the annotations of configs itself.

from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from logging import Logger
from typing import Any

import dagster as dg

from dagster_delta import arrow_compute as pc
from dagster_delta.errors import InvalidArgument
from dagster_delta.orchestration.io.asset_options import NAMESPACE, AssetOptions
from dagster_delta.orchestration.maintenance.maintained_tables import MaintainedTable
from dagster_delta.orchestration.maintenance.operations import (
    OperationConfig,
    RetentionConfig,
    StepReport,
)
from dagster_delta.orchestration.metadata_keys import RawMetadata, counted, first_names
from dagster_delta.orchestration.partitions.partitions import dimension_columns
from dagster_delta.orchestration.partitions.predicates import owned_slice, values_of_keys
from dagster_delta.protocol.schema import PrimitiveType, StructType
from dagster_delta.table.delta_table import DeltaTable
from dagster_delta.table.read.snapshot import Snapshot
from dagster_delta.table.slices import Slice, resolve_column
from dagster_delta.table.spelling import parse_age, quote

_OPTION = "retention"
_MAX_PARTITIONS = 1000
"""Deleted partitions of one dimension whose rows one run deletes."""


class AssetRetention(RetentionConfig):
    """The step with the rules of one asset."""

    rules: dict[str, str]
    """From what the rows are to the Spark SQL that they satisfy."""

    def run(self, table: DeltaTable, log: Logger, commit_info: Mapping[str, object]) -> StepReport:
        """Count the rows that the rules do not keep and, unless it is a dry run, delete them.

        Raises:
            InvalidArgument: they are more than `max_share` of the table.
        """
        if not self.rules:
            return "no row is to go", {"delta/retention_dry_run": self.dry_run}
        where = " OR ".join(f"({rule})" for rule in self.rules.values())
        snapshot = table.refresh()
        scan = snapshot.scan(where=where)
        rows, files = scan.count(), scan.num_files
        what = "; ".join(self.rules)
        facts: RawMetadata = {
            "delta/retention_dry_run": self.dry_run,
            "delta/retention_rows": rows,
            "delta/retention_where": where,
        }
        total = snapshot.num_records
        share = rows / max(1, snapshot.scan().count() if total is None else total)
        size = f"{counted(rows, 'row')} of {counted(files, 'file')} ({share:.1%} of the table)"
        if share > self.max_share:
            problem = (
                f"retention of {table.uri} means {size}: {what}. max_share allows {self.max_share}"
                ": see whether the rows are to go, and set it to 1 then"
            )
            if not self.dry_run:
                raise InvalidArgument(problem)
            log.warning(problem)
        if self.dry_run:
            return f"would delete {size}: {what}", facts
        deleted = table.delete(where, commit_info=commit_info) if rows else None
        if deleted is None or deleted.skipped:
            return f"no row is to go: {what}", facts
        facts["delta/retention_rows"] = int(deleted.metrics["numDeletedRows"])
        return f"deleted {size} as version {deleted.version}: {what}", facts


def asset_operations(
    operations: Iterable[OperationConfig],
    maintained: MaintainedTable,
    table: DeltaTable,
    context: dg.OpExecutionContext,
) -> Iterator[OperationConfig]:
    """The operations, that of retention with the rules of the asset; without it if there are none.

    Raises:
        SchemaMismatch, InvalidArgument: the table or the asset does not have what a rule needs.
    """
    has_option = bool({_OPTION, NAMESPACE + _OPTION} & set(maintained.metadata))
    for operation in operations:
        if not isinstance(operation, RetentionConfig):
            yield operation
        elif has_option and operation.enabled:
            options = maintained.read_options(context.resources)
            rules = find_rules(options, maintained, table.refresh(), context.instance)
            yield AssetRetention(**dict(operation), rules=rules)


def find_rules(
    options: AssetOptions,
    maintained: MaintainedTable,
    snapshot: Snapshot,
    instance: dg.DagsterInstance,
) -> dict[str, str]:
    """What the rows are that an asset does not keep, and the Spark SQL that they satisfy."""
    retention = options.retention
    rules: dict[str, str] = {}
    if retention is None:
        return rules
    if options.shared_table and options.owned_rows is None:
        raise InvalidArgument(
            f"asset {maintained.name} shares its table, and its retention deletes rows, which may "
            "be of the other assets: name its own in the metadata owned_rows"
        )
    if retention.column is not None and retention.older_than is not None:
        cutoff = datetime.now(UTC) - parse_age(retention.older_than)
        what, rule = _rule_of_age(retention.column, snapshot.schema, cutoff, maintained.name)
        rules[f"{what} ({retention.older_than})"] = rule
    if retention.deleted_partitions:
        rules |= _rules_of_partitions(options, maintained, snapshot, instance)
    owned = owned_slice(options.owned_rows, asset=maintained.name)
    if owned is not None:
        sql = owned.sql(snapshot.schema)
        rules = {what: f"({rule}) AND ({sql})" for what, rule in rules.items()}
    return rules


def _rule_of_age(name: str, schema: StructType, cutoff: datetime, asset: str) -> tuple[str, str]:
    column = resolve_column(name, schema, what=f"the retention of asset {asset}")
    match column.data_type:
        case PrimitiveType("date"):
            value, literal = str(cutoff.date()), "DATE"
        case PrimitiveType("timestamp"):
            value, literal = str(cutoff), "TIMESTAMP"
        case PrimitiveType("timestamp_ntz"):
            value, literal = str(cutoff.replace(tzinfo=None)), "TIMESTAMP_NTZ"
        case other:
            raise InvalidArgument(
                f"the retention of asset {asset} is by the column {name} of type {other}, which "
                "has no time: name a date, timestamp or timestamp_ntz column",
                column=name,
            )
    quoted = ".".join(map(quote, column.path))
    return f"{name} is before {value}", f"{quoted} < {literal} '{value}'"


def _rules_of_partitions(
    options: AssetOptions,
    maintained: MaintainedTable,
    snapshot: Snapshot,
    instance: dg.DagsterInstance,
) -> dict[str, str]:
    asset, partitions_def = f"asset {maintained.name}", maintained.partitions_def
    columns: Mapping[str, tuple[str, dg.PartitionsDefinition[Any]]] = {}
    rules: dict[str, str] = {}
    if partitions_def is not None and options.partition_expr is not None:
        columns = dimension_columns(partitions_def, options.partition_expr, owner=asset)
    dynamic = {
        name: definition.name
        for name, definition in columns.values()
        if isinstance(definition, dg.DynamicPartitionsDefinition) and definition.name
    }
    if not dynamic:
        raise InvalidArgument(
            f"the retention of {asset} has deleted_partitions, and the asset has no "
            "DynamicPartitionsDefinition with a name, or no partition_expr: leave it out"
        )
    for name, dimension in dynamic.items():
        column = resolve_column(name, snapshot.schema, what="partition_expr")
        # The keys are read after the rows: a key is there before its first row.
        present = _find_values(snapshot, column.path)
        keys = instance.get_dynamic_partitions(dimension)
        if present and not keys:
            raise InvalidArgument(
                f"the retention of {asset} has deleted_partitions, and this Dagster instance has "
                f"no partition of {dimension!r} at all: its runs are probably in another instance. "
                "To delete every row, use DeltaTable.delete()"
            )
        deleted = sorted(present - values_of_keys(keys, column.data_type), key=str)
        chosen = deleted[:_MAX_PARTITIONS]
        if chosen:
            named = first_names([str(value) for value in chosen], 10)
            more = f" of {len(deleted):,}" if len(deleted) > len(chosen) else ""
            what = f"{name} is one of {len(chosen):,}{more} deleted partitions ({named})"
            rules[what] = Slice.of({what: {name: chosen}}).sql(snapshot.schema)
    return rules


def _find_values(snapshot: Snapshot, path: Sequence[str]) -> set[object]:
    """The values of a column but null, read batch by batch."""
    found: set[object] = set()
    first, *fields = path
    for batch in snapshot.scan([first]).to_batches():
        values = batch.column(0)
        if fields:
            values = pc.struct_field(values, fields)
        found.update(pc.unique(values).to_pylist())
    return found - {None}
