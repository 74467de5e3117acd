"""A job by which an operator changes the schema of a table from the Launchpad.

A run first reports what a change will do, and then what it did: the plan as Markdown, the schemas
side by side, the downstream assets that read the columns. Rows do not change, so the run reports an
observation instead of a materialization, and downstream automation does not run. The Columns tab of
the UI, which uses only materializations and definitions, shows the change after the next
materialization.
"""

# No `from __future__ import annotations`: Dagster reads the annotations of ops itself.

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from logging import Logger
from typing import TYPE_CHECKING, Any, Literal

import dagster as dg
from dagster_shared.check import CheckError

from dagster_delta.errors import InvalidArgument
from dagster_delta.orchestration.data_versions import data_version_tags
from dagster_delta.orchestration.known_fields import KnownFieldsOnly
from dagster_delta.orchestration.maintenance.jobs import StepOnOneTable, job_on_one_table
from dagster_delta.orchestration.maintenance.maintained_tables import (
    Asset,
    MaintainedTable,
    maintained_tables,
)
from dagster_delta.orchestration.maintenance.operations import spell_bytes
from dagster_delta.orchestration.maintenance.ops import commit_info_of_op
from dagster_delta.orchestration.metadata_keys import RawMetadata, counted
from dagster_delta.orchestration.schema_changes.readers import readers_of_change
from dagster_delta.orchestration.storage_options import StorageOptions
from dagster_delta.orchestration.table_metadata import table_schema

if TYPE_CHECKING:
    from dagster_delta.table.delta_table import DeltaTable
    from dagster_delta.table.operations.column_change import (
        ColumnChangeProgress,
        ColumnChangeState,
    )
    from dagster_delta.table.transaction.commit_result import CommitResult

SCHEMA_CHANGE_POOL = "delta_schema_change"
"""Pool of a job for several tables; set its limit to 1 in the deployment."""


class SchemaChangeKind(Enum):
    """The kind of change that a run of a schema change job makes."""

    ALTER = "alter"
    """Run `statement` in one commit; MODIFY, CHANGE and ALTER … TYPE to a type that is not wider
    are an online change of the column, with the switches of CHANGE_COLUMN."""
    CHANGE_COLUMN = "change_column"
    """Change the type of `column` online: to any type, in batches, during reads and writes. Only if
    `enable_column_change` of the resource is on, and the table's property too."""
    RESUME_COLUMN_CHANGE = "resume_column_change"
    """Resume a column change whose run ended before the change."""
    CANCEL_COLUMN_CHANGE = "cancel_column_change"
    """Cancel a column change, without effect on the column."""
    MATERIALIZE_DEFAULTS = "materialize_defaults"
    """Write defaults into files whose rows get them when they are read."""


class DeltaSchemaChangeConfig(KnownFieldsOnly, dg.Config):
    """One schema change of one table. By default, it is a dry run."""

    table: str = ""
    """Name of one of the job's tables. May be omitted if the job has only one."""
    statement: str = ""
    """For ALTER: an ALTER TABLE statement in the syntax of Spark, DuckDB or MySQL; `ALTER TABLE t`
    may be omitted. Several actions, separated by commas, are one commit. MODIFY, CHANGE and ALTER …
    TYPE to a type that is not wider run online, in the order of the statement."""
    dry_run: bool = True
    """Only plan the change: what it does, what it costs, which assets read the columns. Set to
    false to apply it."""
    kind: SchemaChangeKind = SchemaChangeKind.ALTER
    """ALTER: run `statement`; CHANGE_COLUMN: change the type of `column` online, if the resource
    has enable_column_change; RESUME_COLUMN_CHANGE, CANCEL_COLUMN_CHANGE: continue or cancel the
    change in progress; MATERIALIZE_DEFAULTS: write lazy defaults into the data files, so that other
    clients can read the table again."""
    existing_rows: Literal["rewrite", "lazy", "null"] = "rewrite"
    """For ALTER: the value of existing rows in a new column with a default. rewrite: the default,
    written by rewriting their files; lazy: the default, filled in when they are read, so that only
    this library can read the table until MATERIALIZE_DEFAULTS; null: null."""
    column: str = ""
    """For CHANGE_COLUMN: path of the column: `a`, `a.b`, `a.element`, `a.value`."""
    new_type: str = ""
    """For CHANGE_COLUMN: the new type, any atomic one: INT, DECIMAL(10,2), DATE."""
    cast: str | None = None
    """For CHANGE_COLUMN: Spark SQL expression over the row that computes the new value. Default:
    CAST."""
    on_error: Literal["abort", "null"] = "abort"
    """For CHANGE_COLUMN: whether a value that cannot be converted aborts the change, leaving the
    column as it was, or becomes null."""
    nullable: bool | None = None
    """For CHANGE_COLUMN: whether the changed column is nullable. Default: unchanged."""
    position: str | None = None
    """For CHANGE_COLUMN: FIRST, or the name of the column to place it after. Default: unchanged."""
    batch_bytes: int | None = None
    """For column changes: bytes of data files to rewrite per commit. Default: 1 GiB."""
    enable_features: bool = False
    """Whether to enable table features that the change needs, such as column mapping. Clients
    without these features can then no longer read the table."""
    engine: Literal["arrow", "spark"] = "arrow"
    """What rewrites existing rows. arrow: the process of the step; spark: the executors of its
    Spark session."""


def delta_schema_change_job(
    name: str = "delta_schema_change",
    *,
    assets: Iterable[Asset] = (),
    selection: dg.AssetSelection | None = None,
    tables: Mapping[str, str] | None = None,
    storage_options: StorageOptions | Mapping[str, object] | None = None,
    enable_column_change: bool = False,
    spark: str | None = None,
    **job_options: Any,
) -> dg.JobDefinition:
    """A job that plans or applies a schema change of one of its tables.

    The Launchpad shows the config with types and descriptions; see `DeltaSchemaChangeConfig`. If a
    run ends in the middle of a column change, the table stays readable and writable; another run
    resumes or cancels the change.

    Readers of the columns are searched among all assets of the code location of the run, and among
    `assets`.

    The step is in the pool of its table if the job has only one, see `delta_table_pool`; otherwise
    in `SCHEMA_CHANGE_POOL`.

    `enable_column_change` lets columns change their type online in tables given by location; for
    other tables, the option of the same name of the IO manager decides. The other arguments are
    those of `delta_maintenance_job`.

    Raises:
        InvalidArgument: there are no tables.

    Examples:
        delta_schema_change_job(assets=[flights, weather])
    """
    # An iterator gives them once.
    assets = tuple(assets)
    found = tuple(
        replace(table, allow_column_changes=enable_column_change)
        for table in maintained_tables(assets, selection, tables, storage_options)
    )

    def change_schema(
        context: dg.OpExecutionContext,
        chosen: MaintainedTable,
        table: "DeltaTable",
        config: DeltaSchemaChangeConfig,
    ) -> None:
        if config.engine == "spark":
            chosen.start_spark(context.resources, spark)
        _change(context, config, chosen, table, assets)

    step = StepOnOneTable(
        "change_schema",
        DeltaSchemaChangeConfig,
        change_schema,
        "Plans and makes changes of the schema",
        SCHEMA_CHANGE_POOL,
        frozenset() if spark is None else frozenset({spark}),
    )
    return job_on_one_table(name, step, found, job_options)


@dataclass(frozen=True, slots=True)
class _ChangeReport:
    """A change that was made or planned."""

    title: str
    """One line, for the log."""
    markdown: str
    columns: tuple[str, ...] = ()
    """Top-level columns of the earlier schema that changed or were dropped."""
    metrics: Mapping[str, int | str] = field(default_factory=dict)
    """Of an online column change; see `DeltaTable.change_column`."""
    adds_columns: bool = False
    """Whether top-level columns were added."""


def _change(
    context: dg.OpExecutionContext,
    config: DeltaSchemaChangeConfig,
    chosen: MaintainedTable,
    table: "DeltaTable",
    assets: tuple[object, ...],
) -> None:
    _check_fields(config)
    columns_before = table.schema().names
    change = _Change(table, config, context.log, commit_info_of_op(context, chosen.name))
    report = _STEPS[config.kind](change)
    markdown = report.markdown
    if report.columns or report.adds_columns:
        readers = (
            "Assets that read the table are not known: the job has it by location, not by asset."
            if chosen.asset_key is None
            else readers_of_change(
                context.instance,
                (*assets, *_assets_of_code_location(context)),
                chosen.asset_key,
                report.columns,
                columns_before,
                adds_columns=report.adds_columns,
            )
        )
        markdown = f"{markdown.rstrip()}\n\n{readers}"
    context.log.info(f"{chosen.name}: {report.title}\n{markdown}")
    metadata: RawMetadata = {
        "delta/schema_change": dg.MetadataValue.md(markdown),
        "delta/version": table.version(),
        "delta/dry_run": config.dry_run,
        "dagster/uri": table.uri,
        **{
            f"delta/{name}": report.metrics[metric]
            for name, metric in _COLUMN_CHANGE_METRICS.items()
            if metric in report.metrics
        },
    }
    context.add_output_metadata(metadata)
    if chosen.asset_key is not None and not config.dry_run:
        snapshot = table.snapshot()
        schema = dg.MetadataValue.table_schema(table_schema(snapshot.configuration))
        metadata = {**metadata, "dagster/column_schema": schema}
        tags = data_version_tags(snapshot, context.instance, chosen.asset_key)
        context.log_event(dg.AssetObservation(chosen.asset_key, metadata=metadata, tags=tags))


_COLUMN_CHANGE_METRICS = {
    "rows_converted": "numCopiedRows",
    "rows_converted_late": "numLateRows",
    "values_nulled": "numNulledValues",
    "files_rewritten": "numRemovedFiles",
    "bytes_rewritten": "numRemovedBytes",
    "bytes_written": "numAddedBytes",
    "batches": "numBatches",
    "commit_retries": "numRetries",
    "longest_retry_ms": "longestRetryMs",
}
"""Metrics of an online column change by their name in the UI."""


def _assets_of_code_location(context: dg.OpExecutionContext) -> tuple[dg.AssetsDefinition, ...]:
    """All assets of the code location in which a step runs; none outside a code location, as in a
    test that executes a job directly.
    """
    try:
        return tuple(context.repository_def.assets_defs_by_key.values())
    except CheckError:
        return ()


_FIELDS: Mapping[SchemaChangeKind, tuple[tuple[str, ...], tuple[str, ...]]] = {
    SchemaChangeKind.ALTER: (("statement",), ("existing_rows",)),
    SchemaChangeKind.CHANGE_COLUMN: (
        ("column", "new_type"),
        ("cast", "on_error", "nullable", "position"),
    ),
}
"""Fields of one kind only: those it needs, and its options."""


def _check_fields(config: DeltaSchemaChangeConfig) -> None:
    """Refuse fields of another kind, and a lack of fields that the kind needs."""
    for kind, (needed, optional) in _FIELDS.items():
        for name in (*needed, *optional):
            default = DeltaSchemaChangeConfig.model_fields[name].default
            is_given = getattr(config, name) != default
            if is_given and kind is not config.kind:
                raise InvalidArgument(
                    f"kind {config.kind.name} takes no `{name}`: it is for {kind.name}"
                )
            if name in needed and not is_given and kind is config.kind:
                raise InvalidArgument(f"kind {config.kind.name} needs `{name}`: set it")


@dataclass(frozen=True, slots=True)
class _Change:
    """Makes the change of a config, or plans it: one method for each kind."""

    table: "DeltaTable"
    config: DeltaSchemaChangeConfig
    log: Logger
    commit_info: Mapping[str, object]

    def alter(self) -> _ChangeReport:
        config = self.config
        result = self.table.alter(
            config.statement,
            existing_rows=config.existing_rows,
            enable_features=config.enable_features,
            batch_bytes=config.batch_bytes,
            **self._options(),
        )
        changes = result.plan.schema_changes
        fields = (path for path in changes.added if len(path) > 1)
        columns = dict.fromkeys(path[0] for path in (*changes.dropped, *changes.changed, *fields))
        done = "no change is needed" if result.skipped else f"version {result.version}"
        return _ChangeReport(
            f"{'dry run' if config.dry_run else done}: {config.statement}",
            result.to_markdown(),
            tuple(columns),
            result.metrics,
            adds_columns=any(len(path) == 1 for path in changes.added),
        )

    def materialize_defaults(self) -> _ChangeReport:
        result = self.table.materialize_defaults(**self._options())
        files = counted(result.plan.affected_files, "file")
        cost = f"{files}, {spell_bytes(result.plan.affected_bytes)}"
        title = f"version {result.version}: {cost} were rewritten with their defaults"
        if self.config.dry_run:
            title = f"dry run: {cost} would be rewritten"
        elif result.skipped:
            title = "the table has no lazy defaults"
        return _ChangeReport(title, result.to_markdown())

    def _options(self) -> dict[str, Any]:
        return {
            "dry_run": self.config.dry_run,
            "engine": self.config.engine,
            "commit_info": self.commit_info,
            "on_progress": lambda done, of: self.log.info(f"{done:,} of {of:,} files rewritten"),
        }

    def change_column(self) -> _ChangeReport:
        config = self.config
        needed, optional = _FIELDS[config.kind]
        names = (*needed, *optional, "enable_features", "batch_bytes")
        asked: dict[str, Any] = {name: getattr(config, name) for name in names}
        plan = self.table.plan_column_change(**asked)
        columns = (plan.change.path[0],)
        if config.dry_run:
            return _ChangeReport(f"dry run: {plan.summary}", plan.to_markdown(), columns)
        result = self.table.change_column(**asked, **self._online_options())
        report = f"{plan.to_markdown()}\n{_totals(result)}"
        title = f"version {result.version}: {plan.summary}"
        return _ChangeReport(title, report, columns, result.metrics)

    def end_change(self) -> _ChangeReport:
        """Resume or cancel the change in progress."""
        state = self.table.column_change()
        if state is None:
            raise InvalidArgument("no column of the table is being changed", table=self.table.uri)
        config, columns = self.config, (state.column,)
        if config.dry_run:
            return _ChangeReport("dry run", _spell(state), columns)
        if config.kind is SchemaChangeKind.CANCEL_COLUMN_CHANGE:
            version = self.table.cancel_column_change(commit_info=self.commit_info).version
            what = f"The change of `{state.column}` to {state.to_type}"
            done = f"{what} was cancelled in version {version}."
            return _ChangeReport(f"version {version}", done)
        options = self._online_options()
        result = self.table.resume_column_change(batch_bytes=config.batch_bytes, **options)
        title = f"version {result.version}: the change of column {state.column} is complete"
        return _ChangeReport(title, _totals(result), columns, result.metrics)

    def _online_options(self) -> dict[str, Any]:
        def log_commit(progress: "ColumnChangeProgress") -> None:
            what = "the change is published" if progress.state is None else _spell(progress.state)
            self.log.info(f"version {progress.version}: {what}")

        return {
            "engine": self.config.engine,
            "commit_info": self.commit_info,
            "on_progress": log_commit,
        }


def _totals(result: "CommitResult") -> str:
    metrics = result.metrics
    size = spell_bytes(int(metrics["numAddedBytes"]))
    return (
        f"| version | rows rewritten | bytes written | values that became null |\n"
        f"|---:|---:|---:|---:|\n"
        f"| {result.version} | {metrics['numCopiedRows']:,} "
        f"| {size} | {metrics['numNulledValues']:,} |"
    )


def _spell(state: "ColumnChangeState") -> str:
    return (
        f"column {state.column} from {state.from_type} to {state.to_type}: {state.state}, "
        f"{state.num_files_left:,} of {state.num_files:,} files "
        f"({spell_bytes(state.bytes_left)}) remain"
    )


_STEPS: Mapping[SchemaChangeKind, Callable[[_Change], _ChangeReport]] = {
    SchemaChangeKind.ALTER: _Change.alter,
    SchemaChangeKind.CHANGE_COLUMN: _Change.change_column,
    SchemaChangeKind.RESUME_COLUMN_CHANGE: _Change.end_change,
    SchemaChangeKind.CANCEL_COLUMN_CHANGE: _Change.end_change,
    SchemaChangeKind.MATERIALIZE_DEFAULTS: _Change.materialize_defaults,
}
