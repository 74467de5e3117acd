"""External tables as assets whose data version is their last commit that changed rows.

Automation conditions react to changed rows only, and ignore maintenance.
"""

# No `from __future__ import annotations`: Dagster compares the annotation of `context` itself.

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import dagster as dg

from dagster_delta.errors import VersionNotFound
from dagster_delta.orchestration.metadata_keys import DETAILS, RawMetadata, RawMetadataValue, shown
from dagster_delta.orchestration.sensors.table_changes import commit_facts
from dagster_delta.orchestration.storage_options import StorageOptions, plain_options
from dagster_delta.orchestration.table_metadata import (
    DEFAULT_HISTORY,
    DELTA_KIND,
    columns_from_log,
    definition_metadata,
    history_metadata,
    known_data_version,
    op_name,
    table_metadata,
)
from dagster_delta.storage import open_store
from dagster_delta.storage.object_store import ObjectStore
from dagster_delta.table.log.commit_summary import CommitSummary
from dagster_delta.table.read.snapshot import Snapshot
from dagster_delta.table.read.watch import (
    LogCursor,
    data_version,
    last_data_change,
    read_new_commits,
    start_cursor,
)

_POSITION = "delta/log_position"
"""Tag of an observation: version, digest and file time (ms) of the last commit, `41.9f3a….17…`."""
_COMMITS_AT_ONCE = 1000


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
        seen = _observe(store, context.instance, asset_key, context.log.warning)
        return dg.ObserveResult(
            asset_key,
            data_version=dg.DataVersion(seen.data_version),
            metadata=_metadata(store, seen, show_history),
            tags={_POSITION: _spelled_position(seen.cursor)},
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
    """
    return dg.AssetSpec(
        key,
        metadata={**definition_metadata(table), **(metadata or {})},
        kinds={DELTA_KIND, *kinds},
        **looks,
    )


@dataclass(frozen=True, slots=True)
class _Observation:
    cursor: LogCursor
    data_version: str
    commit: CommitSummary | None
    """The last commit that changed rows, if this poll found it."""
    previous: Mapping[str, object] = field(default_factory=dict)
    """Metadata of the previous observation of this table."""
    has_news: bool = True
    """Whether there are commits since that observation."""


def _metadata(store: ObjectStore, seen: _Observation, commits: int) -> RawMetadata:
    """What the UI shows of the table: it shows only the latest observation, so that each has
    everything.
    """
    uri, cursor = store.location.uri, seen.cursor
    # Maintenance changes no rows: the commit that the previous observation shows is the last one.
    change = seen.previous if seen.commit is None else commit_facts(seen.commit, uri)
    table, history = {}, {}
    if seen.has_news:
        snapshot = Snapshot.load(store, version=cursor.version)
        table = table_metadata(snapshot, uri=uri, table_name=None)
        history = history_metadata(snapshot, commits)
    return shown(change, table, history)


def _spelled_position(cursor: LogCursor) -> str:
    parts = (cursor.version, cursor.commit_digest, cursor.commit_modified_ms)
    return ".".join("" if part is None else str(part) for part in parts)


def _observe(
    store: ObjectStore,
    instance: dg.DagsterInstance,
    key: dg.AssetKey,
    warn: Callable[[str], None],
) -> _Observation:
    previous = _previous(instance, key)
    if previous is not None:
        try:
            return _go_on(store, previous)
        except VersionNotFound as error:
            # An observation reports the current table: it starts over, and says so.
            warn(f"{error} Observing the table from its latest version.")
    cursor = start_cursor(store)
    at, name = known_data_version(cursor, instance, key)
    # Also read if the name is known, because its facts are shown.
    version, commit = last_data_change(store, cursor)
    if commit is not None or version > at:
        name = data_version(cursor.table_id or "", version)
    return _Observation(cursor, name, commit)


def _go_on(store: ObjectStore, previous: _Observation) -> _Observation:
    cursor, first = previous.cursor, previous.cursor.version
    found = None
    while True:
        cursor, commits = read_new_commits(store, cursor, limit=_COMMITS_AT_ONCE)
        found = next((commit for commit in reversed(commits) if commit.changes_data), found)
        if len(commits) < _COMMITS_AT_ONCE:
            break
    version = previous.data_version
    if found is not None:
        version = data_version(found.table_id, found.version)
    has_news = cursor.version > first
    return _Observation(cursor, version, found, previous.previous, has_news)


def _previous(instance: dg.DagsterInstance, asset_key: dg.AssetKey) -> _Observation | None:
    records = instance.fetch_observations(asset_key, limit=1).records
    observation = records[0].asset_observation if records else None
    if observation is None or observation.data_version is None:
        return None
    position = (observation.tags or {}).get(_POSITION)
    if position is None:
        return None
    metadata: dict[str, object] = dict(observation.metadata)
    entry = observation.metadata.get(DETAILS)
    metadata[DETAILS] = entry.data if isinstance(entry, dg.JsonMetadataValue) else {}
    version, digest, modified_ms = position.split(".")
    cursor = LogCursor(
        version=int(version),
        table_id=observation.data_version.rpartition(":")[0],
        commit_digest=digest or None,
        commit_modified_ms=int(modified_ms) if modified_ms else None,
        # Observations do not use the partitions and row changes of commits.
        partition_columns={},
        change_feed_enabled=False,
    )
    return _Observation(cursor, observation.data_version, None, metadata)
