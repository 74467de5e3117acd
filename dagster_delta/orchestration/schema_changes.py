"""A job by which an operator changes the schema of a table from the Launchpad.

A run first reports what a change will do, and then what it did: the plan as Markdown, the schemas
side by side, the downstream assets that read the columns. Rows do not change, so the run reports an
observation instead of a materialization, and downstream automation does not run. The Columns tab of
the UI, which uses only materializations and definitions, shows the change after the next
materialization.
"""

# No `from __future__ import annotations`: Dagster reads the annotations of ops itself.

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from enum import Enum
from functools import partial
from logging import Logger
from typing import TYPE_CHECKING, Any, Literal

import dagster as dg
import msgspec
from dagster_shared.check import CheckError
from msgspec.structs import replace
from pydantic import Field

from dagster_delta.engines import active_spark_session
from dagster_delta.errors import InvalidArgument
from dagster_delta.orchestration.known_fields import KnownFieldsOnly, checked_arguments
from dagster_delta.orchestration.maintenance.jobs import job_on_one_table, report_table
from dagster_delta.orchestration.maintenance.maintained_tables import (
    Asset,
    MaintainedTable,
    maintained_tables,
    named_tables,
)
from dagster_delta.orchestration.maintenance.operations import commit_info_of_op, spell_bytes
from dagster_delta.orchestration.metadata_keys import (
    COLUMNS_READ_KEY,
    QUERY_KEY,
    RawMetadata,
    counted,
)
from dagster_delta.orchestration.spark_progress import watch_spark
from dagster_delta.orchestration.storage_options import GivenStorage
from dagster_delta.protocol.schema import fold_name
from dagster_delta.table.delta_table import DeltaTable
from dagster_delta.table.spelling import table_cell

if TYPE_CHECKING:
    from dagster_delta.table.operations.column_change import (
        ColumnChangeProgress,
        ColumnChangeState,
    )

_LINEAGE_KEY = "dagster/column_lineage"
_ALL = "every column"


class SchemaChangeKind(Enum):
    """The kind of change that a run of a schema change job makes; see `DeltaSchemaChangeConfig`."""

    ALTER = "alter"
    RESUME_COLUMN_CHANGE = "resume_column_change"
    CANCEL_COLUMN_CHANGE = "cancel_column_change"
    MATERIALIZE_DEFAULTS = "materialize_defaults"


class DeltaSchemaChangeConfig(KnownFieldsOnly, dg.Config):
    """One schema change of one table. By default, it is a dry run."""

    passed_to = DeltaTable.alter

    table: str = Field(
        default="",
        description="Name of one of the job's tables. May be omitted if the job has only one.",
    )
    statement: str = Field(
        default="",
        description="For ALTER: an ALTER TABLE statement in the syntax of Spark, DuckDB or MySQL; "
        "`ALTER TABLE t` may be omitted. Several actions, separated by commas, are one commit. "
        "MODIFY, CHANGE and ALTER … TYPE to a type that is not wider change the column online, in "
        "batches, if `enable_column_change` of the resource is on, and the table's property too.",
    )
    dry_run: bool = Field(
        default=True,
        description="Only plan the change: what it does, what it costs, which assets read the "
        "columns. Set to false to apply it.",
    )
    kind: SchemaChangeKind = Field(
        default=SchemaChangeKind.ALTER,
        description="ALTER: run `statement`; RESUME_COLUMN_CHANGE, CANCEL_COLUMN_CHANGE: continue "
        "an online change whose run ended, or cancel it without effect on the column; "
        "MATERIALIZE_DEFAULTS: write lazy defaults into the data files, so that other clients can "
        "read the table again.",
    )
    existing_rows: Literal["rewrite", "lazy", "null"] = Field(
        default="rewrite",
        description="For ALTER: the value of existing rows in a new column with a default. "
        "rewrite: the default, written by rewriting their files; lazy: the default, filled in "
        "when they are read, so that only this library can read the table until "
        "MATERIALIZE_DEFAULTS; null: null.",
    )
    on_error: Literal["abort", "null"] = Field(
        default="abort",
        description="For online changes: whether a value that cannot be converted aborts the "
        "change, leaving the column as it was, or becomes null.",
    )
    batch_bytes: int | None = Field(
        default=None,
        description="For online changes: bytes of data files to rewrite per commit. Default: 1 "
        "GiB.",
    )
    enable_features: bool = Field(
        default=False,
        description="Whether to enable table features that the change needs, such as column "
        "mapping. Clients without these features can then no longer read the table.",
    )
    force: bool = Field(
        default=False,
        description="Whether to make a change after which readers that the table names "
        "(dagsterDelta.readers) give wrong rows without an error.",
    )
    engine: Literal["arrow", "spark"] = Field(
        default="arrow",
        description="What rewrites existing rows. arrow: the process of the step; spark: the "
        "executors of its Spark session.",
    )


@checked_arguments(dg.GraphDefinition.to_job)
def delta_schema_change_job(
    name: str = "delta_schema_change",
    *,
    assets: Iterable[Asset] = (),
    selection: dg.AssetSelection | None = None,
    tables: Mapping[str, str] | None = None,
    storage_options: GivenStorage | None = None,
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
    in the pool `delta_maintenance`.

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
    what = f"Plans and makes changes of the schema: one of {named_tables(found)}."
    options = {"description": what, **job_options}
    work, resources = partial(_change_table, assets, spark), () if spark is None else (spark,)
    return job_on_one_table(
        name, "change_schema", DeltaSchemaChangeConfig, work, found, options, resources
    )


class _ChangeReport(msgspec.Struct, frozen=True):
    """A change that was made or planned."""

    title: str
    """One line, for the log."""
    markdown: str
    columns: tuple[str, ...] = ()
    """Top-level columns of the earlier schema that changed or were dropped."""
    metrics: Mapping[str, int | str] = msgspec.field(default_factory=dict)
    """Of an online change; see `DeltaTable.change_column`."""
    adds_columns: bool = False
    """Whether top-level columns were added."""


def _change_table(
    assets: tuple[object, ...],
    spark: str | None,
    context: dg.OpExecutionContext,
    chosen: MaintainedTable,
    table: DeltaTable,
    config: DeltaSchemaChangeConfig,
) -> None:
    if config.engine == "spark":
        chosen.start_spark(context.resources, spark)
    columns_before = table.schema().names
    change = _Change(table, config, context.log, commit_info_of_op(context, chosen.name))
    session = active_spark_session() if config.engine == "spark" else None
    with watch_spark(session, context.log) as spark_work:
        report = _STEPS[config.kind](change)
    markdown = report.markdown
    if report.columns or report.adds_columns:
        readers = (
            "Assets that read the table are not known: the job has it by location, not by asset."
            if chosen.asset_key is None
            else _readers_of_change(
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
        **spark_work,
        **{
            f"delta/{name}": report.metrics[metric]
            for name, metric in _COLUMN_CHANGE_METRICS.items()
            if metric in report.metrics
        },
    }
    context.add_output_metadata(metadata)
    if not config.dry_run:
        report_table(context, chosen, table, metadata)


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


class _Change(msgspec.Struct, frozen=True):
    """Makes the change of a config, or plans it: one method for each kind."""

    table: DeltaTable
    config: DeltaSchemaChangeConfig
    log: Logger
    commit_info: Mapping[str, object]

    def alter(self) -> _ChangeReport:
        config = self.config
        result = self.table.alter(**config.arguments(), **self._make_reporting_arguments())
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
        result = self.table.materialize_defaults(
            dry_run=self.config.dry_run,
            engine=self.config.engine,
            **self._make_reporting_arguments(),
        )
        files = counted(result.plan.affected_files, "file")
        cost = f"{files}, {spell_bytes(result.plan.affected_bytes)}"
        title = f"version {result.version}: {cost} were rewritten with their defaults"
        if self.config.dry_run:
            title = f"dry run: {cost} would be rewritten"
        elif result.skipped:
            title = "the table has no lazy defaults"
        return _ChangeReport(title, result.to_markdown())

    def _make_reporting_arguments(self) -> dict[str, Any]:
        return {
            "commit_info": self.commit_info,
            "on_progress": lambda done, of: self.log.info(f"{done:,} of {of:,} files rewritten"),
        }

    def end_change(self) -> _ChangeReport:
        """Resume or cancel the change in progress."""
        state = self.table.column_change()
        if state is None:
            raise InvalidArgument("no column of the table is being changed", table=self.table.uri)
        config, columns = self.config, (state.column,)
        if config.dry_run:
            return _ChangeReport("dry run", _spell_state(state), columns)
        if config.kind is SchemaChangeKind.CANCEL_COLUMN_CHANGE:
            version = self.table.cancel_column_change(commit_info=self.commit_info).version
            what = f"The change of `{state.column}` to {state.to_type}"
            done = f"{what} was cancelled in version {version}."
            return _ChangeReport(f"version {version}", done)

        def log_commit(progress: "ColumnChangeProgress") -> None:
            what = (
                "the change is published"
                if progress.state is None
                else _spell_state(progress.state)
            )
            self.log.info(f"version {progress.version}: {what}")

        result = self.table.resume_column_change(
            engine=config.engine,
            batch_bytes=config.batch_bytes,
            commit_info=self.commit_info,
            on_progress=log_commit,
        )
        title = f"version {result.version}: the change of column {state.column} is complete"
        return _ChangeReport(title, f"{title}.", columns, result.metrics)


def _spell_state(state: "ColumnChangeState") -> str:
    return (
        f"column {state.column} from {state.from_type} to {state.to_type}: {state.state}, "
        f"{state.num_files_left:,} of {state.num_files:,} files "
        f"({spell_bytes(state.bytes_left)}) remain"
    )


_STEPS: Mapping[SchemaChangeKind, Callable[[_Change], _ChangeReport]] = {
    SchemaChangeKind.ALTER: _Change.alter,
    SchemaChangeKind.RESUME_COLUMN_CHANGE: _Change.end_change,
    SchemaChangeKind.CANCEL_COLUMN_CHANGE: _Change.end_change,
    SchemaChangeKind.MATERIALIZE_DEFAULTS: _Change.materialize_defaults,
}


def _readers_of_change(
    instance: dg.DagsterInstance,
    assets: Iterable[object],
    key: dg.AssetKey,
    columns: Sequence[str],
    table_columns: Sequence[str],
    *,
    adds_columns: bool,
) -> str:
    """The assets that read what changes in the asset `key`, as Markdown, or why there are none.

    Columns of assets between, computed from what changes, are named `a/b.column`. An asset that has
    read every column so far, as `SELECT *` does, gets new ones and passes them on. Assets are
    included if it is not known what they read; assets downstream of them are not.

    `columns` are the top-level columns that change or are dropped, of all `table_columns` before.
    """
    # By key, since the same asset may be given twice, by the job and by the code location.
    specs = tuple({spec.key: spec for spec in _list_specs(assets)}.values())
    found: dict[str, set[str]] = {}
    waiting = [(key, _fold_names(columns), adds_columns, _fold_names(table_columns))]
    seen: set[tuple[dg.AssetKey, str]] = set()
    while waiting:
        source, wanted, grows, all_columns = waiting.pop(0)
        wanted = frozenset(column for column in wanted if (source, column) not in seen)
        grows = grows and (source, _ALL) not in seen
        seen |= {(source, column) for column in (*wanted, *([_ALL] if grows else []))}
        name = source.to_user_string()
        prefix, of_source = ("", "") if source == key else (f"{name}.", f" of {name}")
        for spec in _direct_readers(specs, source) if wanted or grows else ():
            reads = _Reads.of(instance, spec, source, table_columns if source == key else None)
            read = {f"{prefix}{name}" for folded, name in reads.columns.items() if folded in wanted}
            reads_all = grows and all_columns <= reads.columns.keys()
            if reads_all:
                read.add(f"{_ALL}{of_source}")
            if read:
                computed = [name for name, deps in reads.computed.items() if deps & wanted]
                every = _fold_names(reads.computed)
                waiting.append((spec.key, _fold_names(computed), reads_all, every))
            elif reads.unknown is not None:
                read.add(reads.unknown)
            if read:
                found.setdefault(spec.key.to_user_string(), set()).update(read)
    if found:
        head = "### Who reads the columns\n\n| downstream asset | reads |\n|---|---|"
        cells = {asset: table_cell(", ".join(sorted(read))) for asset, read in found.items()}
        return "\n".join([head, *(f"| `{asset}` | {cell} |" for asset, cell in cells.items())])
    if not any(_direct_readers(specs, key)):
        return "No asset of the code location reads the table."
    return (
        "No asset of the code location is affected: the queries that read the table read other "
        "columns."
    )


def _fold_names(columns: Iterable[str]) -> frozenset[str]:
    return frozenset(fold_name(column) for column in columns)


class _Reads(msgspec.Struct, frozen=True):
    """The columns of an upstream asset that an asset reads."""

    columns: Mapping[str, str]
    """Those that are known, by their name in lower case."""
    computed: Mapping[str, set[str]]
    """By column of the asset: the columns it is computed from, in lower case."""
    unknown: str | None
    """Why it may read others; None if it reads no others."""

    @classmethod
    def of(
        cls,
        instance: dg.DagsterInstance,
        spec: dg.AssetSpec,
        source: dg.AssetKey,
        source_columns: Sequence[str] | None,
    ) -> "_Reads":
        """From the latest materialization of the asset, or else from its definition. The columns of
        the source are those now, or None if they do not change.
        """
        event = instance.get_latest_materialization_event(spec.key)
        materialization = None if event is None else event.asset_materialization
        recorded = {} if materialization is None else materialization.metadata

        def value(key: str) -> Any:  # noqa: ANN401
            found = recorded.get(key, spec.metadata.get(key))
            return found.value if isinstance(found, dg.MetadataValue) else found

        lineage = value(_LINEAGE_KEY)
        deps_by_column = {} if lineage is None else lineage.deps_by_column
        computed: dict[str, set[str]] = {}
        columns: dict[str, str] = {}
        for column, deps in deps_by_column.items():
            names = [dep.column_name for dep in deps if dep.asset_key == source]
            computed[column] = {fold_name(name) for name in names}
            columns |= {fold_name(name): name for name in names}
        query = (value(COLUMNS_READ_KEY) or {}).get(source.to_user_string())
        if query is None:
            # Lineage leaves out what only filters, joins or groups.
            nothing = "(no column lineage)"
            return cls(columns, computed, nothing if lineage is None else "(maybe in a filter)")
        columns |= {fold_name(column): column for column in query["read"]}
        is_current = recorded.get(QUERY_KEY) == spec.metadata.get(QUERY_KEY) and (
            source_columns is None or set(source_columns) == set(query["of"])
        )
        return cls(columns, computed, None if is_current else "(it has not run since a change)")


def _list_specs(assets: Iterable[object]) -> Iterator[dg.AssetSpec]:
    for asset in assets:
        if isinstance(asset, dg.AssetsDefinition):
            yield from asset.specs
        elif isinstance(asset, dg.AssetSpec):
            yield asset


def _direct_readers(specs: Iterable[dg.AssetSpec], key: dg.AssetKey) -> Iterator[dg.AssetSpec]:
    for spec in specs:
        if any(dep.asset_key == key for dep in spec.deps):
            yield spec
