"""The tables of op outputs without an asset and a name: each belongs to the run that wrote it.

A property marks such a table with its run, and its directory is called `<run id>-<op>-<output>`.
Sensors and pages of a root omit them, and `delta_op_outputs_job` deletes them.
"""

# No `from __future__ import annotations`: Dagster reads the annotation of a config itself.

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import dagster as dg
from pydantic import Field

from dagster_delta import clock
from dagster_delta.errors import DeltaError, InvalidArgument
from dagster_delta.orchestration.branches import find_refusal
from dagster_delta.orchestration.known_fields import KnownFieldsOnly, checked_arguments
from dagster_delta.orchestration.metadata_keys import counted
from dagster_delta.orchestration.storage_options import GivenStorage, plain_options
from dagster_delta.storage import open_store
from dagster_delta.table.operations.drop_table import drop_table
from dagster_delta.table.read.snapshot import Snapshot
from dagster_delta.table.table_discovery import find_tables

RUN_PROPERTY = "dagsterDelta.opOutputOfRun"
"""Table property: the run that wrote the table of an op's output."""
PLACE_PROPERTY = "dagsterDelta.opOutputAt"
"""Table property: where it wrote the table, below the root. A copy elsewhere is not the run's."""

# Opening a table waits for storage, not for the CPU.
_TABLES_AT_ONCE = 16
_MAX_NAMED = 20
_ROOT_RUN_TAG = "dagster/root_run_id"

_FINISHED = ("SUCCESS", "FAILURE", "CANCELED")


def find_lasting_tables(
    root: str, storage_options: Mapping[str, object], *, op_outputs: set[str] | None = None
) -> list[str]:
    """The locations of all tables at or below a root, sorted, without those of op outputs.

    `op_outputs`: locations that are known to be of op outputs, so that no table is opened for them;
    those that are found are added.
    """
    known = set() if op_outputs is None else op_outputs
    found = [uri for uri in find_tables(root, storage_options) if uri not in known]
    known.update(_op_outputs(found, storage_options))
    return [uri for uri in found if uri not in known]


def _op_outputs(uris: list[str], storage_options: Mapping[str, object]) -> dict[str, Snapshot]:
    """The tables of op outputs among these, by location."""

    def opened(uri: str) -> Snapshot | None:
        try:
            snapshot = Snapshot.load(open_store(uri, storage_options))
        except DeltaError:
            # Who uses the table reports it.
            return None
        return snapshot if _is_op_output(uri, snapshot) else None

    # The names of their directories have a run, a step and an output.
    named = [uri for uri in uris if uri.rpartition("/")[2].count("-") >= 2]
    with ThreadPoolExecutor(_TABLES_AT_ONCE) as threads:
        found = zip(named, threads.map(opened, named), strict=True)
        return {uri: snapshot for uri, snapshot in found if snapshot is not None}


def _is_op_output(uri: str, snapshot: Snapshot) -> bool:
    """Whether a table is where its run has written it: copies and clones have the marks, too."""
    properties = snapshot.metadata.configuration
    run_id, place = properties.get(RUN_PROPERTY), properties.get(PLACE_PROPERTY)
    return bool(run_id and place) and f"/{uri}".endswith(f"/{place}")


class OpOutputsConfig(KnownFieldsOnly, dg.Config):
    """Which tables of op outputs to delete."""

    older_than_hours: float = Field(
        default=168,
        ge=0,
        description="Only tables whose last commit is older. A re-execution reads the tables of "
        "the run before, and fails without them.",
    )
    dry_run: bool = Field(
        default=True,
        description="Only report what would be deleted. Set to false to delete it permanently.",
    )


@checked_arguments(dg.GraphDefinition.to_job)
def delta_op_outputs_job(
    name: str = "delta_op_outputs",
    *,
    root: str,
    storage_options: GivenStorage | None = None,
    config: OpOutputsConfig | None = None,
    **job_options: Any,
) -> dg.JobDefinition:
    """A job that deletes the tables of op outputs below a root, whole.

    They are the tables that a `DeltaIOManager` stores for outputs of ops without an asset and
    without a `table_name`. A table stays while its run, or a re-execution of it, is not finished.
    By default the job only reports the tables that it would delete.

    Args:
        name: of the job.
        root: `root_uri` of the DeltaIOManager, or a location below it.
        storage_options: storage options.
        config: default config of the runs.
        job_options: of `dg.GraphDefinition.to_job`: description, tags, executor_def, …

    Examples:
        delta_op_outputs_job(root="s3://lake", config=OpOutputsConfig(dry_run=False))
    """
    options, default = plain_options(storage_options), config or OpOutputsConfig()

    @dg.op(name=f"{name}__drop", out=dg.Out(dg.Nothing))
    def drop(context: dg.OpExecutionContext, config: OpOutputsConfig) -> None:
        _drop_op_outputs(context, root, options, config)

    @dg.graph(name=f"{name}_graph")
    def dropping() -> None:
        drop.alias("drop")()

    what = f"Deletes the tables of op outputs below {root}."
    given = {"description": what, "config": dg.RunConfig(ops={"drop": default}), **job_options}
    return dropping.to_job(name=name, **given)


def _drop_op_outputs(
    context: dg.OpExecutionContext,
    root: str,
    storage_options: Mapping[str, object],
    config: OpOutputsConfig,
) -> None:
    if not config.dry_run and (reason := find_refusal(context, root)) is not None:
        raise InvalidArgument(reason, table=root)
    before_ms = clock.now_ms() - config.older_than_hours * 3_600_000
    # The runs first: a run that begins later has no old table.
    kept_roots = _unfinished_roots(context.instance)
    tables = {
        uri: snapshot
        for uri, snapshot in _op_outputs(
            find_tables(root, storage_options), storage_options
        ).items()
        if snapshot.timestamp_ms < before_ms
        and _root_run(context.instance, snapshot) not in kept_roots
    }
    num_files = 0
    for uri, snapshot in tables.items():
        if not config.dry_run:
            run_id = snapshot.metadata.configuration[RUN_PROPERTY]
            num_files += drop_table(snapshot.store, RUN_PROPERTY, run_id)
        context.log.info(f"{'would delete' if config.dry_run else 'deleted'} {uri}")
    verb = "would be deleted" if config.dry_run else "were deleted"
    context.log.info(f"{counted(len(tables), 'table')} of op outputs {verb}")
    context.add_output_metadata(
        {
            "delta/drop_dry_run": config.dry_run,
            "delta/dropped_tables": len(tables),
            "delta/dropped_files": num_files,
            "delta/first_dropped_tables": "\n".join(list(tables)[:_MAX_NAMED]) or "none",
        }
    )


def _unfinished_roots(instance: dg.DagsterInstance) -> set[str]:
    """The first runs of all runs that are not finished, which may read what those wrote."""
    unfinished = [status for status in dg.DagsterRunStatus if status.name not in _FINISHED]
    records = instance.get_run_records(dg.RunsFilter(statuses=unfinished))
    runs = [record.dagster_run for record in records]
    return {run.tags.get(_ROOT_RUN_TAG, run.run_id) for run in runs}


def _root_run(instance: dg.DagsterInstance, snapshot: Snapshot) -> str:
    run_id = snapshot.metadata.configuration[RUN_PROPERTY]
    run = instance.get_run_by_id(run_id)
    return run_id if run is None else run.tags.get(_ROOT_RUN_TAG, run_id)
