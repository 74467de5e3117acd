"""External tables as assets whose data version is their last commit that changed rows.

Automation conditions react to changed rows only, and ignore maintenance.
"""

# No `from __future__ import annotations`: Dagster compares the annotation of `context` itself.

import hashlib
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import dagster as dg

from dagster_delta.errors import VersionNotFound
from dagster_delta.orchestration.sensors.table_changes import commit_facts, data_version
from dagster_delta.orchestration.storage_options import StorageOptions, plain_options
from dagster_delta.orchestration.table_history import history_metadata
from dagster_delta.storage import open_store
from dagster_delta.storage.object_store import ObjectStore
from dagster_delta.table.log.commit_summary import CommitSummary
from dagster_delta.table.read.watch import (
    LogCursor,
    last_data_change,
    read_new_commits,
    start_cursor,
)

__all__ = ["delta_asset_spec", "observable_delta_asset"]

CURSOR_KEY = "delta/log_cursor"
_COMMITS_AT_ONCE = 1000


def observable_delta_asset(
    key: dg.AssetKey | str | Sequence[str],
    table: str,
    *,
    storage_options: StorageOptions | Mapping[str, Any] | None = None,
    description: str | None = None,
    group_name: str | None = None,
    metadata: Mapping[str, Any] | None = None,
    tags: Mapping[str, str] | None = None,
    owners: Sequence[str] | None = None,
    kinds: Collection[str] = (),
    automation_condition: dg.AutomationCondition[Any] | None = None,
    show_history: int = 0,
) -> dg.AssetsDefinition:
    """An observable asset for a table written outside Dagster.

    Its data version is `table_id:version` of the last commit that changed rows: compaction, new
    properties and new columns do not change it. An observation reads only the commits since the
    previous observation, and the history if requested.

    Args:
        key: of the asset.
        table: location of the table.
        storage_options: storage options.
        description: shown in the UI.
        group_name: group of the asset.
        metadata: further metadata of the asset.
        tags: tags of the asset.
        owners: of the asset: e-mail addresses, or teams as `team:name`.
        kinds: further kinds of the asset, in addition to `deltalake`.
        automation_condition: when to observe: `dg.AutomationCondition.on_cron("*/5 * * * *")`.
        show_history: number of latest commits that every observation shows, each with a link to its
            run; it reads one file per commit.

    Examples:
        flights = observable_delta_asset(["raw", "flights"], "s3://lake/raw/flights")

        @dg.asset(deps=[flights], automation_condition=dg.AutomationCondition.eager())
        def report() -> None: ...
    """
    asset_key = dg.AssetKey.from_coercible(key)

    spec = delta_asset_spec(
        asset_key,
        table,
        description=description,
        group_name=group_name,
        metadata=metadata,
        tags=tags,
        owners=owners,
        kinds=kinds,
        automation_condition=automation_condition,
    )

    def observe(context: dg.AssetExecutionContext) -> dg.ObserveResult:
        store = open_store(table, plain_options(storage_options))
        seen = _observe(store, _previous(context.instance, asset_key), context.log.warning)
        return dg.ObserveResult(
            asset_key,
            data_version=seen.data_version,
            metadata={**seen.metadata(table), **_history(store, show_history)},
        )

    # The decorator for a single asset has no owners, and its result cannot be mapped.
    define = dg.multi_observable_source_asset(name=_op_name(asset_key), specs=[spec])
    return cast("dg.AssetsDefinition", define(observe))


def delta_asset_spec(
    key: dg.AssetKey,
    table: str,
    *,
    metadata: Mapping[str, Any] | None = None,
    kinds: Collection[str] = (),
    **looks: Any,
) -> dg.AssetSpec:
    """The spec of the asset of a table: its location and its kind.

    Args:
        key: of the asset.
        table: location of the table.
        metadata: further metadata of the asset.
        kinds: further kinds of the asset, in addition to `deltalake`.
        looks: further arguments of `dg.AssetSpec`.
    """
    return dg.AssetSpec(
        key,
        metadata={"dagster/uri": table, "dagster/storage_kind": "deltalake", **(metadata or {})},
        kinds={"deltalake", *kinds},
        **looks,
    )


def _history(store: ObjectStore, commits: int) -> Mapping[str, Any]:
    from dagster_delta.table.read.snapshot import Snapshot

    return history_metadata(Snapshot.load(store), commits) if commits > 0 else {}


def _op_name(key: dg.AssetKey) -> str:
    """A name that Dagster accepts, unique per key."""
    parts = [re.sub(r"\W|__", "_", each, flags=re.ASCII) for each in key.path]
    name = "__".join(parts)
    if parts == list(key.path):
        return name
    return f"{name}_{hashlib.sha256(key.to_user_string().encode()).hexdigest()[:8]}"


@dataclass(frozen=True, slots=True)
class _Observation:
    """Result of polling one table."""

    cursor: LogCursor
    data_version: dg.DataVersion
    commit: CommitSummary | None
    """The last commit that changed rows, if this poll found it."""

    def metadata(self, uri: str) -> dict[str, Any]:
        facts = {} if self.commit is None else commit_facts(self.commit, uri)
        return {
            **facts,
            "delta/latest_version": self.cursor.version,
            CURSOR_KEY: dg.MetadataValue.json(self.cursor.to_json_value()),
        }


def _observe(
    store: ObjectStore, previous: _Observation | None, warn: Callable[[str], None]
) -> _Observation:
    if previous is not None:
        try:
            return _go_on(store, previous)
        except VersionNotFound as error:
            # An observation reports the current table: it starts over, and says so.
            warn(f"{error} Observing the table from its latest version.")
    cursor = start_cursor(store)
    commit = last_data_change(store, cursor)
    # If a clean-up deleted the commit that wrote the rows, use the start of the log.
    version = 0 if commit is None else commit.version
    return _Observation(cursor, data_version(cursor.table_id or "", version), commit)


def _go_on(store: ObjectStore, previous: _Observation) -> _Observation:
    cursor = previous.cursor
    found = None
    while True:
        cursor, commits = read_new_commits(store, cursor, limit=_COMMITS_AT_ONCE)
        found = next((each for each in reversed(commits) if each.changes_data), found)
        if len(commits) < _COMMITS_AT_ONCE:
            break
    version = previous.data_version
    if found is not None:
        version = data_version(found.table_id, found.version)
    return _Observation(cursor, version, found)


def _previous(instance: dg.DagsterInstance, asset_key: dg.AssetKey) -> _Observation | None:
    records = instance.fetch_observations(asset_key, limit=1).records
    observation = records[0].asset_observation if records else None
    if observation is None or observation.data_version is None:
        return None
    entry = observation.metadata.get(CURSOR_KEY)
    if not isinstance(entry, dg.JsonMetadataValue):
        return None
    cursor = LogCursor.from_json_value(entry.data)
    return _Observation(cursor, dg.DataVersion(observation.data_version), None)
