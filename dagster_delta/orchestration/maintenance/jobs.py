"""Jobs and schedules that maintain the tables of assets.

They do not change rows, so they report an observation with an unchanged data version, and
downstream assets do not run. Rows that retention deletes change the data version. Only a restore is
a materialization; of an observable asset, an observation with another data version.
"""

# No `from __future__ import annotations`: Dagster reads the annotations of ops and mappings itself.

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

import dagster as dg
from dagster_shared.check import CheckError

from dagster_delta.errors import InvalidArgument, LogGap, VersionNotFound
from dagster_delta.orchestration.io.output_metadata import partition_figures
from dagster_delta.orchestration.known_fields import checked_arguments
from dagster_delta.orchestration.maintenance.maintained_tables import (
    Asset,
    MaintainedTable,
    config_naming_tables,
    maintained_tables,
    named_tables,
    split_by_branch,
)
from dagster_delta.orchestration.maintenance.operations import (
    MAINTENANCE_POOL,
    DeltaCloneConfig,
    DeltaMaintenanceConfig,
    DeltaRestoreConfig,
    OperationConfig,
    maintain,
)
from dagster_delta.orchestration.maintenance.retention import asset_operations
from dagster_delta.orchestration.metadata_keys import DETAILS, RawMetadata, counted, shown
from dagster_delta.orchestration.partitions.mapping import PartitionMapping
from dagster_delta.orchestration.partitions.partitions import partition_selector
from dagster_delta.orchestration.partitions.predicates import partition_slice
from dagster_delta.orchestration.storage_options import GivenStorage
from dagster_delta.orchestration.table_metadata import (
    DATA_VERSION_TAG,
    data_version_tags,
    table_metadata,
)
from dagster_delta.table.delta_table import DeltaTable
from dagster_delta.table.read.snapshot import Snapshot
from dagster_delta.table.read.watch import LogCursor, read_new_commits

_SELECT = "select_tables"

_NO_PARTITION: Mapping[str | None, Mapping[str, int]] = {None: {}}

_RESULTS = 100
"""Number of results of each check to search for the last version that passed."""


@checked_arguments(dg.GraphDefinition.to_job)
def delta_maintenance_job(
    name: str = "delta_maintenance",
    *,
    assets: Iterable[Asset] = (),
    selection: dg.AssetSelection | None = None,
    tables: Mapping[str, str] | None = None,
    storage_options: GivenStorage | None = None,
    config: DeltaMaintenanceConfig | None = None,
    spark: str | None = None,
    **job_options: Any,
) -> dg.JobDefinition:
    """A job that optimizes, vacuums and checkpoints tables and cleans up their logs, with one step
    per table.

    By default small files are compacted, and VACUUM only reports what it would delete; with
    `dry_run: true` in the config of a run no step writes anything. Rows that the metadata
    `retention` of an asset does not keep are counted, and deleted if a run asks. The Launchpad
    shows the config with types and descriptions; a run may restrict it to some `tables`.

    Every step is in the pool of its table, see `delta_table_pool`.

    Args:
        name: of the job.
        assets: assets stored by a `DeltaIOManager`, or with their location in the metadata
            `dagster/uri`.
        selection: selection among the assets.
        tables: tables that are not assets, by name, with their locations.
        storage_options: storage options for `tables`, and for assets with a `dagster/uri`; or the
            catalog of tables named `catalog://a.b.c`.
        config: default config of the runs.
        spark: key of the SparkSessionResource, for the engine `spark`; by default the session of
            the DeltaIOManager that stores the asset, or the session of the process.
        job_options: of `dg.GraphDefinition.to_job`: description, tags, executor_def, …

    Raises:
        InvalidArgument: there are no tables.

    Examples:
        delta_maintenance_job(assets=[flights, weather])
        delta_maintenance_job(tables={"flights": "s3://lake/raw/flights"})
    """
    found = maintained_tables(assets, selection, tables, storage_options)
    steps = {table.op_name: _maintenance_op(name, table, spark) for table in found}
    select = _selecting_op(name, found) if len(found) > 1 else None

    @dg.graph(name=f"{name}_graph")
    def maintenance() -> None:
        selected = None if select is None else select.alias(_SELECT)()
        for number, (step, op) in enumerate(steps.items()):
            # A step whose input has no value starts no process.
            op.alias(step)(*(() if selected is None else (selected[number],)))

    defaults = dict(config or DeltaMaintenanceConfig())
    asked = config_naming_tables(DeltaMaintenanceConfig, "tables", found, **defaults)
    mapping = one_config([*steps, *([] if select is None else [_SELECT])], asked)
    what = f"Compacts, vacuums, checkpoints and cleans the log of {named_tables(found)}."
    return maintenance.to_job(name=name, config=mapping, **{"description": what, **job_options})


@checked_arguments(delta_maintenance_job, dg.GraphDefinition.to_job)
def delta_maintenance_schedule(
    name: str,
    cron_schedule: str,
    *,
    execution_timezone: str | None = None,
    default_status: dg.DefaultScheduleStatus = dg.DefaultScheduleStatus.STOPPED,
    **job_options: Any,
) -> dg.ScheduleDefinition:
    """A schedule with its own maintenance job, called `<name>_job`.

    It runs at the times of `cron_schedule` in `execution_timezone`, UTC by default, once it is
    turned on, or from the start if `default_status` says so. It requests no run in a code location
    with a branch that none of its tables is in. `job_options` are the arguments of
    `delta_maintenance_job`.

    Raises:
        InvalidArgument: there are no tables.

    Examples:
        delta_maintenance_schedule(
            "nightly_maintenance",
            "0 3 * * *",
            assets=[flights, weather],
            config=DeltaMaintenanceConfig(vacuum=VacuumConfig(dry_run=False)),
        )
    """
    # An iterator gives them once.
    job_options["assets"] = tuple(job_options.get("assets", ()))
    which = ("assets", "selection", "tables", "storage_options")
    given: Any = {option: job_options.get(option) for option in which}
    found = maintained_tables(**given)

    def request(context: dg.ScheduleEvaluationContext) -> dg.RunRequest | dg.SkipReason:
        tables, left = split_by_branch(found, context)
        return dg.RunRequest() if tables else dg.SkipReason("; ".join(left))

    return dg.ScheduleDefinition(
        name=name,
        job=delta_maintenance_job(f"{name}_job", **job_options),
        cron_schedule=cron_schedule,
        execution_timezone=execution_timezone,
        default_status=default_status,
        execution_fn=request,
    )


@checked_arguments(dg.GraphDefinition.to_job)
def delta_restore_job(
    name: str = "delta_restore",
    *,
    assets: Iterable[Asset] = (),
    selection: dg.AssetSelection | None = None,
    tables: Mapping[str, str] | None = None,
    storage_options: GivenStorage | None = None,
    **job_options: Any,
) -> dg.JobDefinition:
    """A job that restores one of its tables to an older version.

    A run names the table, and the version or the time. By default it only reports what would
    change. With `checks_passed` the version is the latest at which the asset checks passed. A
    restored asset is reported as materialized, so that downstream assets can follow; its asset
    checks then run in a run of their own.

    The step is in the pool of its table if the job has only one, see `delta_table_pool`; otherwise
    in the pool `delta_maintenance`, because only the run names the table.

    The arguments are those of `delta_maintenance_job`.

    Raises:
        InvalidArgument: there are no tables.
    """
    found = maintained_tables(assets, selection, tables, storage_options)
    what = f"Makes a table what it was at an older version: one of {named_tables(found)}."
    options = {"description": what, **job_options}
    return job_on_one_table(name, "restore", DeltaRestoreConfig, _restore_or_clone, found, options)


@checked_arguments(dg.GraphDefinition.to_job)
def delta_clone_job(
    name: str = "delta_clone",
    *,
    assets: Iterable[Asset] = (),
    selection: dg.AssetSelection | None = None,
    tables: Mapping[str, str] | None = None,
    storage_options: GivenStorage | None = None,
    **job_options: Any,
) -> dg.JobDefinition:
    """A job that clones one of its tables to another location.

    A run names the table, the location and, if it is not the latest, the version or the time. By
    default it only reports what would be cloned. The table itself does not change.

    The step uses the same pool as that of `delta_restore_job`, so that the table is not vacuumed
    while its files are copied.

    The arguments are those of `delta_maintenance_job`.

    Raises:
        InvalidArgument: there are no tables.
    """
    found = maintained_tables(assets, selection, tables, storage_options)
    what = f"Makes another location a clone of a table: one of {named_tables(found)}."
    options = {"description": what, **job_options}
    return job_on_one_table(name, "clone", DeltaCloneConfig, _restore_or_clone, found, options)


def job_on_one_table(
    name: str,
    step: str,
    config_class: type[dg.Config],
    work: Callable[[dg.OpExecutionContext, MaintainedTable, DeltaTable, Any], None],
    tables: Sequence[MaintainedTable],
    job_options: Mapping[str, Any],
    resources: Collection[str] = (),
) -> dg.JobDefinition:
    """A job of one step, on the table that the config of a run names in `table`. `resources` are
    needed besides IO managers.
    """
    by_name = {table.name: table for table in tables}

    def do(context: dg.OpExecutionContext, config: Any) -> None:  # noqa: ANN401
        chosen = by_name[config.table]
        table = chosen.open_to_write(context)
        if table is None:
            raise InvalidArgument(f"{config.table} has no Delta table yet: materialize it first")
        work(context, chosen, table, config)

    do.__annotations__["config"] = config_class
    managers = {table.io_manager_key for table in tables if table.io_manager_key}
    op = dg.op(
        # Op names are unique in a code location.
        name=f"{name}__{step}",
        out=dg.Out(dg.Nothing),
        required_resource_keys={*managers, *resources},
        pool=tables[0].pool if len(tables) == 1 else MAINTENANCE_POOL,
    )(do)

    @dg.graph(name=f"{name}_graph")
    def doing() -> None:
        op.alias(step)()

    mapping = one_config([step], config_naming_tables(config_class, "table", tables))
    return doing.to_job(name=name, config=mapping, **job_options)


def one_config(steps: Sequence[str], config: type[dg.Config]) -> dg.ConfigMapping:
    """The config of a run as that of each of its steps."""

    def mapping(val: Any) -> dg.RunConfig:  # noqa: ANN401
        return dg.RunConfig(ops=dict.fromkeys(steps, val))

    mapping.__annotations__["val"] = config
    return dg.config_mapping(mapping)


def _restore_or_clone(
    context: dg.OpExecutionContext,
    maintained: MaintainedTable,
    table: DeltaTable,
    config: OperationConfig,
) -> None:
    before = table.version()
    if isinstance(config, DeltaRestoreConfig) and config.checks_passed:
        config = _config_of_passed_version(context, maintained, table, config)
    metadata = maintain(context, table, maintained.name, [config])
    if isinstance(config, DeltaRestoreConfig) and table.version() != before:
        restored = f"Restored as version {table.version()}"
        report_table(context, maintained, table, metadata, described=restored)
        _run_checks(context, maintained.asset_key)


def _config_of_passed_version(
    context: dg.OpExecutionContext,
    maintained: MaintainedTable,
    table: DeltaTable,
    config: DeltaRestoreConfig,
) -> DeltaRestoreConfig:
    """The config with the latest version whose checks passed."""
    if config.version is not None or config.timestamp is not None:
        raise InvalidArgument("checks_passed finds the version: leave version and timestamp out")
    _, keys = _checks_of_asset(context, maintained.asset_key)
    version = last_passed_version(context.instance, keys, table.snapshot().metadata.id)
    if version is None:
        raise InvalidArgument(
            f"no version of {maintained.name} is known at which its asset checks passed: choose a "
            "version or a timestamp, for example from the history of the table"
        )
    context.log.info(f"the asset checks of {maintained.name} last passed at version {version}")
    return config.model_copy(update={"version": version})


def _checks_of_asset(
    context: dg.OpExecutionContext, key: dg.AssetKey | None
) -> tuple[dg.RepositoryDefinition | None, set[dg.AssetCheckKey]]:
    """The code location of a step, and the checks of an asset in it that can run without it; none
    outside a code location, as in a test that executes a job directly.
    """
    try:
        repository = context.repository_def
    except CheckError:
        return None, set()
    return repository, {of for of in repository.asset_checks_defs_by_key if of.asset_key == key}


def _run_checks(context: dg.OpExecutionContext, key: dg.AssetKey | None) -> None:
    """Run the checks of a restored asset, in a run of their own: a step cannot evaluate those of
    others.
    """
    repository, keys = _checks_of_asset(context, key)
    if repository is None or not keys:
        return
    try:
        job = repository.get_implicit_global_asset_job_def()
        job = job.get_subset(asset_check_selection=keys)
        result = job.execute_in_process(instance=context.instance, raise_on_error=False)
    except dg.DagsterError as error:
        # The restore is committed; a check may need a partition, which it does not have.
        context.log.warning(f"run the checks of the restored asset, which did not start: {error}")
        return
    evaluations = result.get_asset_check_evaluations()
    failed = sorted(found.check_name for found in evaluations if not found.passed)
    context.log.log(
        "INFO" if result.success and not failed else "WARNING",
        f"{counted(len(evaluations), 'check')} of the restored asset in run {result.run_id}; "
        f"failed: {', '.join(failed) or 'none'}",
    )


def last_passed_version(
    instance: dg.DagsterInstance, keys: Iterable[dg.AssetCheckKey], table_id: str
) -> int | None:
    """The latest version of a table for which the last result of each check, up to it, is a pass or
    a warning. The version of a result is in its metadata, or in those of the materialization that
    was checked.
    """
    results: dict[dg.AssetCheckKey, dict[int, bool]] = {}
    for key in keys:
        history = instance.event_log_storage.get_asset_check_execution_history(key, limit=_RESULTS)
        # The newest comes first, and of several at one version it counts.
        for record in reversed(history):
            event = record.event and record.event.dagster_event
            if event and event.event_type is dg.DagsterEventType.ASSET_CHECK_EVALUATION:
                found = event.asset_check_evaluation_data
                if (version := _checked_version(instance, found, table_id)) is not None:
                    is_good = found.passed or found.severity is dg.AssetCheckSeverity.WARN
                    results.setdefault(key, {})[version] = is_good
    versions = {version for found in results.values() for version in found}
    for version in sorted(versions, reverse=True):
        known = [
            {v: good for v, good in found.items() if v <= version} for found in results.values()
        ]
        if all(found[max(found)] for found in known if found):
            return version
    return None


def _checked_version(
    instance: dg.DagsterInstance, evaluation: dg.AssetCheckEvaluation, table_id: str
) -> int | None:
    metadata, target = evaluation.metadata, evaluation.target_materialization_data
    own = metadata.get(DETAILS)
    facts = own.data if isinstance(own, dg.JsonMetadataValue) else None
    of_table = facts.get("table_id") if isinstance(facts, Mapping) else None
    if of_table is None and target is not None:
        chosen = dg.AssetRecordsFilter(evaluation.asset_key, storage_ids=[target.storage_id])
        for record in instance.fetch_materializations(chosen, limit=1).records:
            event = record.asset_materialization
            metadata = {} if event is None else event.metadata
            of_table = ((event and event.tags) or {}).get(DATA_VERSION_TAG, "").partition(":")[0]
    version = metadata.get("delta/version")
    if of_table != table_id or not isinstance(version, dg.IntMetadataValue):
        return None
    return version.value


def run_maintenance(
    context: dg.OpExecutionContext,
    maintained: MaintainedTable,
    config: DeltaMaintenanceConfig,
    spark: str | None,
) -> None:
    """Do the operations of a config on one table, and report them on its asset."""
    table = maintained.open_to_write(context)
    if table is None:
        context.log.info(f"{maintained.name} has no Delta table yet: there is nothing to do")
        return
    if table.refusal is not None:
        context.log.info(f"{maintained.name} is not maintained: {table.refusal}")
        return
    if "spark" in (config.optimize.engine, config.reorg.engine):
        maintained.start_spark(context.resources, spark)
    operations = list(asset_operations(config.operations(), maintained, table, context))
    metadata = maintain(context, table, maintained.name, operations)
    report_table(context, maintained, table, metadata)


def report_table(
    context: dg.OpExecutionContext,
    maintained: MaintainedTable,
    table: DeltaTable,
    metadata: RawMetadata,
    *,
    described: str | None = None,
) -> None:
    """Report the state of an asset's table after a job: as a materialization with a description,
    if the job has changed its rows, else as an observation; a materialization of a partitioned
    asset is one for each partition with changed files, with its rows, files and bytes. The UI shows
    columns and row count of the latest event, so that each has everything.
    """
    key, snapshot = maintained.asset_key, table.snapshot()
    if key is None:
        return
    name = maintained.table_name(context.resources)
    known = table_metadata(snapshot, uri=table.uri, table_name=name)
    is_materialized = described is not None and not maintained.is_observable
    event = dg.AssetMaterialization if is_materialized else dg.AssetObservation
    tags = data_version_tags(snapshot, context.instance, key)
    changed = _NO_PARTITION
    if described is not None:
        changed = changed_partitions(context, maintained, snapshot)
    for partition, figures in changed.items():
        context.log_event(
            event(
                key,
                description=described,
                metadata=shown(metadata, known, figures),
                partition=partition,
                tags=tags,
            )
        )


def changed_partitions(
    context: dg.OpExecutionContext, maintained: MaintainedTable, snapshot: Snapshot
) -> Mapping[str | None, Mapping[str, int]]:
    """The partitions of an asset whose files the last change of its table has changed, with rows,
    files and bytes of each as metadata; None alone if the table has no partition columns that give
    the keys. Dynamic ones are added to the instance.
    """
    key, definition = maintained.asset_key, maintained.partitions_def
    options = maintained.read_options(context.resources)
    if key is None or definition is None or options.partition_expr is None:
        return _NO_PARTITION
    mapping = PartitionMapping(definition, options.partition_expr, None)
    name = data_version_tags(snapshot, context.instance, key)[DATA_VERSION_TAG]
    before = LogCursor(version=int(name.rpartition(":")[2]) - 1)
    try:
        cursor, (commit, *_) = read_new_commits(snapshot.store, before, limit=1)
    except (LogGap, VersionNotFound):
        return _NO_PARTITION
    if not all(values.keys() >= set(mapping.columns) for values in commit.partitions):
        return _NO_PARTITION
    keys = mapping.map(commit.partitions, timestamp_columns=cursor.timestamp_columns or ()).keys
    for request in mapping.dynamic_requests(keys, context.instance):
        context.instance.add_dynamic_partitions(
            request.partitions_def_name, list(request.partition_keys)
        )
    select = partition_selector(
        definition, options.partition_expr, asset=maintained.name, owned_rows=options.owned_rows
    )
    run = partition_slice(select, keys, asset=maintained.name)
    figures = partition_figures(snapshot, run)
    return {key: figures.get(key, {}) for key in keys} or _NO_PARTITION


def _selecting_op(job_name: str, tables: Sequence[MaintainedTable]) -> dg.OpDefinition:
    """One output per table, which has a value if the run selects the table."""
    outputs = {f"{_SELECT}_{table.op_name}": table for table in tables}

    @dg.op(
        name=f"{job_name}__{_SELECT}",
        description="Selects the tables of the run; the steps of all others are skipped.",
        out={name: dg.Out(dg.Nothing, is_required=False) for name in outputs},
    )
    def select_tables(config: DeltaMaintenanceConfig) -> Iterator[dg.Output[None]]:
        for name, table in outputs.items():
            if not config.tables or table.name in config.tables:
                yield dg.Output(None, name)

    return select_tables


def _maintenance_op(
    job_name: str, maintained: MaintainedTable, spark: str | None
) -> dg.OpDefinition:
    resources = {key for key in (maintained.io_manager_key, spark) if key is not None}

    @dg.op(
        # Op names are unique in a code location, and an asset is an op with its own name.
        name=f"{job_name}__{maintained.op_name}",
        description=f"Maintains {maintained.name}.",
        ins={"selected": dg.In(dg.Nothing)},
        out=dg.Out(dg.Nothing),
        required_resource_keys=resources,
        pool=maintained.pool,
    )
    def maintain_table(context: dg.OpExecutionContext, config: DeltaMaintenanceConfig) -> None:
        run_maintenance(context, maintained, config, spark)

    return maintain_table
