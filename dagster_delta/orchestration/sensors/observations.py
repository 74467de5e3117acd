"""External tables as assets whose data version is their last commit that changed rows.

Automation conditions react to changed rows only, and ignore maintenance.
"""

# No `from __future__ import annotations`: Dagster compares the annotation of `context` itself.

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import dagster as dg

from dagster_delta.orchestration.known_fields import checked_arguments
from dagster_delta.orchestration.metadata_keys import DETAILS, RawMetadata, RawMetadataValue, shown
from dagster_delta.orchestration.sensors.table_watcher import commit_facts
from dagster_delta.orchestration.storage_options import StorageOptions, plain_options
from dagster_delta.orchestration.table_metadata import (
    DEFAULT_HISTORY,
    DELTA_KIND,
    columns_from_log,
    definition_metadata,
    history_metadata,
    latest_data_change,
    op_name,
    table_metadata,
)
from dagster_delta.storage import open_store
from dagster_delta.storage.locations import check_no_password
from dagster_delta.storage.object_store import ObjectStore
from dagster_delta.table.log.reader import KnownCommit, read_commits_after
from dagster_delta.table.read.snapshot import Snapshot

_POSITION = "delta/log_position"
"""Tag of an observation: version, digest and file time (ms) of the last commit, `41.9f3a….17…`."""


@checked_arguments(dg.AssetSpec)
def observable_delta_asset(
    key: dg.AssetKey | str | Sequence[str],
    table: str,
    *,
    storage_options: StorageOptions | Mapping[str, object] | None = None,
    show_history: int = DEFAULT_HISTORY,
    columns: bool = False,
    **asset_options: Any,
) -> dg.AssetsDefinition:
    """An observable asset for a table written outside Dagster.

    Its data version is `table_id:version` of the last commit that changed rows: compaction, new
    properties and new columns do not change it. An observation reads only the commits since the
    previous one; if there are any, it opens the table to show its columns, rows, size and history.

    Args:
        key: of the asset.
        table: location of the table.
        storage_options: storage options.
        show_history: number of latest commits that every observation shows, each with a link to its
            run; it reads one file per commit.
        columns: whether the page of the asset shows the columns: loading definitions then opens the
            table. Without it, only the page of each observation does.
        asset_options: of `dg.AssetSpec`: description, group_name, metadata, tags, owners, kinds in
            addition to `deltalake`, and automation_condition, which says when to observe:
            `dg.AutomationCondition.on_cron("*/5 * * * *")`.

    Examples:
        flights = observable_delta_asset(["raw", "flights"], "s3://lake/raw/flights")

        @dg.asset(deps=[flights], automation_condition=dg.AutomationCondition.eager())
        def report() -> None: ...
    """
    asset_key = dg.AssetKey.from_coercible(key)
    spec = delta_asset_spec(asset_key, table, **asset_options)
    if columns:
        known = columns_from_log(table, plain_options(storage_options), asset_key)
        found = {"dagster/column_schema": known} if known else {}
        spec = spec.replace_attributes(metadata={**found, **spec.metadata})

    def observe(context: dg.AssetExecutionContext) -> dg.ObserveResult:
        store = open_store(table, plain_options(storage_options))
        seen = _observe(store, context.instance, asset_key, show_history, context.log.warning)
        last = seen.commit
        position = last and f"{last.version}.{last.digest}.{last.modified_ms}"
        return dg.ObserveResult(
            asset_key,
            data_version=dg.DataVersion(seen.data_version),
            metadata=seen.metadata,
            tags={_POSITION: position} if position else None,
        )

    # The decorator for a single asset has no owners, and its result cannot be mapped.
    define = dg.multi_observable_source_asset(name=op_name(asset_key), specs=[spec])
    return cast("dg.AssetsDefinition", define(observe))


def delta_asset_spec(
    key: dg.AssetKey,
    table: str,
    *,
    metadata: Mapping[str, RawMetadataValue] | None = None,
    kinds: Collection[str] = (),
    **looks: Any,
) -> dg.AssetSpec:
    """The spec of the asset of a table: its location and its kind, in addition to other `kinds`.
    `looks` are further arguments of `dg.AssetSpec`.

    Raises:
        InvalidArgument: the location holds a password, so that metadata cannot show it.
    """
    check_no_password(table)
    return dg.AssetSpec(
        key,
        metadata={**(metadata or {}), **definition_metadata(table)},
        kinds={DELTA_KIND, *kinds},
        **looks,
    )


@dataclass(frozen=True, slots=True)
class _Observation:
    commit: KnownCommit | None
    """The last commit of the table; None if a clean-up has deleted it."""
    data_version: str
    metadata: RawMetadata
    """What the UI shows of the table: it shows only the latest observation, so that each has
    everything."""


def _observe(
    store: ObjectStore,
    instance: dg.DagsterInstance,
    key: dg.AssetKey,
    commits: int,
    warn: Callable[[str], None],
) -> _Observation:
    previous = _previous(instance, key)
    if previous is not None and (known := previous.commit) is not None:
        later = read_commits_after(store, known.version, at_most=1, commit=known)
        if later == []:
            return previous
        if later is None and not known.is_in(store):
            warn(f"{known.absence}; the table is observed from its latest version")
            previous = None
    snapshot = Snapshot.load(store)
    # The facts of the commit are read, unless the previous observation shows them.
    shown_before = None if previous is None else previous.data_version
    name, commit = latest_data_change(snapshot, instance, key, lambda name: name == shown_before)
    change: RawMetadata = {} if commit is None else commit_facts(commit, store.location.uri)
    if commit is None and previous is not None and shown_before == name:
        change = previous.metadata
    table = table_metadata(snapshot, uri=store.location.uri, table_name=None)
    metadata = shown(change, table, history_metadata(snapshot, commits))
    return _Observation(KnownCommit.read(store, snapshot.version), name, metadata)


def _previous(instance: dg.DagsterInstance, asset_key: dg.AssetKey) -> _Observation | None:
    records = instance.fetch_observations(asset_key, limit=1).records
    observation = records[0].asset_observation if records else None
    if observation is None or observation.data_version is None:
        return None
    version, digest, modified_ms = (observation.tags or {}).get(_POSITION, "..").split(".")
    if not digest:
        return None
    metadata: RawMetadata = dict(observation.metadata)
    entry = observation.metadata.get(DETAILS)
    if isinstance(entry, dg.JsonMetadataValue):
        metadata[DETAILS] = dict(entry.data or {})
    commit = KnownCommit(int(version), None, int(modified_ms), digest)
    return _Observation(commit, observation.data_version, metadata)
