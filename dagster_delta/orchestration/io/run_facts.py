"""Facts about the Dagster run of a write, and what the write reports to Dagster.

Only the public context of the running step is used. Outside a step (a context built by hand in a
unit test) the facts of a run are None, and nothing is reported.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

import dagster as dg
import msgspec

# Tags that Dagster sets. To a user's re-execution of selected steps its UI copies the number of the
# parent, and the mark of a re-execution from asset failure; to one of all steps it copies the mark.
_PARENT_RUN_TAG = "dagster/parent_run_id"
_RETRY_NUMBER_TAG = "dagster/retry_number"
_AUTO_RETRY_TAG = "dagster/auto_retry_run_id"
_FROM_FAILURE_TAG = "dagster/is_resume_retry"
_FROM_ASSET_FAILURE_TAG = "dagster/is_asset_resume_retry"

MAX_NAMED_PARTITIONS = 5
"""Maximum number of partitions named in a commit; of more, the first and the last are, so that a
backfill does not enlarge the log."""


_MAX_NOTED_STEPS = 100
_notes: dict[tuple[str, frozenset[dg.AssetKey]], dict[str, dict[str, Any]]] = {}


class RunFacts(msgspec.Struct, frozen=True):
    """The run, step and partitions that one output belongs to."""

    output: str
    """The asset key, or step key and output name if the output is not an asset."""
    partition_keys: tuple[str, ...]
    run_id: str | None
    """The run that writes."""
    attempt_id: str | None
    """The original run: the same for a run, its automatic retries and its re-executions from
    failure or from asset failure."""
    job_name: str | None
    step_key: str | None

    @property
    def transaction_id(self) -> tuple[str, int] | None:
        """Application id and version of the `txn` that makes a write idempotent, or None outside a
        run.

        It consists of the asset, the partitions and the run. A step that is retried inside its run,
        a run that Dagster retries automatically, and a re-execution from failure or from asset
        failure, use the same id; a run started by a user, including a re-execution of all steps or
        of selected ones, uses its own. The run is part of the id instead of its version: concurrent
        runs may commit in either order, and the older one must not count as done. Old ids expire by
        the table property `delta.setTransactionRetentionDuration`.

        Spec: Transaction Identifiers.
        """
        if self.attempt_id is None:
            return None
        parts = ["dagster", self.attempt_id, self.output]
        keys = self.partition_keys
        if len(keys) > 1:
            digest = hashlib.sha256("\0".join(sorted(keys)).encode()).hexdigest()
            keys = (f"{len(keys)}-partitions-{digest[:32]}",)
        if keys:
            # The empty part keeps the partition `c` of `a/b` apart from the asset `a/b/c`.
            parts += ["", *keys]
        return "/".join(parts), 1

    def commit_info(self, custom_metadata: Mapping[str, str]) -> dict[str, object]:
        """Provenance of a write for its commitInfo."""
        keys = sorted(self.partition_keys)
        partitions = ", ".join(keys) or None
        if len(keys) > MAX_NAMED_PARTITIONS:
            partitions = f"{len(keys)} partitions: {keys[0]} … {keys[-1]}"
        given = {
            "dagsterRunId": self.run_id,
            "dagsterJob": self.job_name,
            "dagsterStep": self.step_key,
            "dagsterAsset": self.output,
            "dagsterPartitions": partitions,
        }
        known = {key: value for key, value in given.items() if value is not None}
        return {**custom_metadata, **known}


def run_facts(context: dg.OutputContext, partition_keys: Sequence[str]) -> RunFacts:
    """The facts of the step that `context` belongs to."""
    if context.has_asset_key:
        output = context.asset_key.to_user_string()
    else:
        output = f"{context.step_key}.{context.name}"
        if context.mapping_key is not None:
            output += f"[{context.mapping_key}]"
    execution = current_execution()
    run = None if execution is None else execution.run
    if execution is None or run is None:
        return RunFacts(output, tuple(partition_keys), None, None, None, None)
    attempt_id = _first_attempt(run, execution.instance)
    step_key = context.step_key
    return RunFacts(output, tuple(partition_keys), run.run_id, attempt_id, run.job_name, step_key)


def asset_description(context: dg.OutputContext) -> str | None:
    """The description of the asset; None if the output is not an asset."""
    try:
        return context.asset_spec.description
    except dg.DagsterInvariantViolationError:
        return None


def current_execution() -> dg.AssetExecutionContext | None:
    """The context of the running step; None outside of a step."""
    try:
        return dg.AssetExecutionContext.get()
    except dg.DagsterInvariantViolationError:
        return None


def partitions_of_run() -> tuple[dg.PartitionsDefinition[Any] | None, tuple[str, ...]]:
    """The partitions definition and the keys of the running step; None and no keys if the run has
    no partition.
    """
    execution = current_execution()
    if execution is None or not (execution.has_partition_key or execution.has_partition_key_range):
        return None, ()
    owner = execution.assets_def if execution.has_assets_def else execution.job_def
    if owner.partitions_def is None:
        return None, ()
    return owner.partitions_def, tuple(execution.partition_keys)


def step_notes() -> dict[str, dict[str, Any]] | None:
    """What the loads of inputs note for the writes of the same step, by subject; None outside of a
    step of assets.
    """
    execution = current_execution()
    if execution is None or not execution.has_assets_def:
        return None
    notes = _notes.setdefault((execution.run.run_id, frozenset(execution.selected_asset_keys)), {})
    while len(_notes) > _MAX_NOTED_STEPS:
        del _notes[next(iter(_notes))]
    return notes


def _first_attempt(run: dg.DagsterRun, instance: dg.DagsterInstance) -> str:
    while (parent_id := run.tags.get(_PARENT_RUN_TAG)) is not None:
        parent = instance.get_run_by_id(parent_id)
        if not _is_continuation(run, parent):
            break
        if parent is None:
            return parent_id
        run = parent
    return run.run_id


def _is_continuation(run: dg.DagsterRun, parent: dg.DagsterRun | None) -> bool:
    """Whether Dagster itself started the run to finish the work of its parent.

    Where a tag may be a copy of the parent's, it does not count: rows that are appended again can
    be seen, rows that are not appended are lost.
    """
    theirs = {} if parent is None else parent.tags
    if (launched := theirs.get(_AUTO_RETRY_TAG)) is not None and launched == run.run_id:
        return True
    if run.tags.get(_FROM_FAILURE_TAG) == "true":
        return parent is None or parent.status is not dg.DagsterRunStatus.SUCCESS
    if run.tags.get(_FROM_ASSET_FAILURE_TAG) == "true":
        if parent is None or _FROM_ASSET_FAILURE_TAG not in theirs:
            return True
        # Only a re-execution from asset failure selects fewer assets than its parent.
        if run.asset_selection and run.asset_selection < (parent.asset_selection or frozenset()):
            return True
    number = run.tags.get(_RETRY_NUMBER_TAG)
    return launched is None and number is not None and number != theirs.get(_RETRY_NUMBER_TAG)
