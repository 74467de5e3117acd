"""External tables as assets whose data version is their last commit that changed rows.

Automation conditions react to changed rows only, and ignore maintenance.
"""

# No `from __future__ import annotations`: Dagster compares the annotation of `context` itself.

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, cast

import dagster as dg
import msgspec

from dagster_delta.errors import InvalidArgument
from dagster_delta.orchestration.known_fields import checked_arguments
from dagster_delta.orchestration.metadata_keys import DETAILS, RawMetadata, RawMetadataValue, shown
from dagster_delta.orchestration.partitions.mapping import PartitionMapping
from dagster_delta.orchestration.sensors.partition_versions import (
    find_changed_partitions,
    partition_observations,
)
from dagster_delta.orchestration.sensors.table_watcher import commit_facts
from dagster_delta.orchestration.storage_options import GivenStorage, plain_options
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
from dagster_delta.storage import ObjectStore, check_no_password, open_store
from dagster_delta.table.log.reader import KnownCommit, read_commits_after
from dagster_delta.table.read.snapshot import Snapshot

_POSITION = "delta/log_position"
"""Tag of an observation: version, digest and file time (ms) of the last commit, `41.9f3a….17…`."""


_RECENT = 100
"""Number of observations to search for the last one of the table, beside those of partitions; if
there is none, the whole log is read."""


@checked_arguments(dg.AssetSpec)
def observable_delta_asset(
    key: dg.AssetKey | str | Sequence[str],
    table: str,
    *,
    storage_options: GivenStorage | None = None,
    show_history: int = DEFAULT_HISTORY,
    columns: bool = False,
    partitions_def: dg.PartitionsDefinition[Any] | None = None,
    partition_expr: str | Mapping[str, str] | None = None,
    **asset_options: Any,
) -> dg.AssetsDefinition:
    """An observable asset for a table written outside Dagster.

    Its data version is `table_id:version` of the last commit that changed rows: compaction, new
    properties and new columns do not change it. An observation reads only the commits since the
    previous one; if there are any, it opens the table to show its columns, rows, size and history.

    With `partitions_def`, each partition has the data version of the last commit that changed its
    rows. A run without a partition observes every partition that changed since the last such run;
    a run for a partition observes that one.

    Args:
        key: of the asset.
        table: location of the table.
        storage_options: storage options, or the catalog of a table named `catalog://a.b.c`.
        show_history: number of latest commits that every observation shows, each with a link to its
            run; it reads one file per commit.
        columns: whether the page of the asset shows the columns: loading definitions then opens the
            table. Without it, only the page of each observation does.
        partitions_def: partitions definition of the asset. New dynamic partitions are added.
        partition_expr: partition column of the table that holds the partition key, or a mapping
            from dimension to column. Inputs of the asset are loaded by it, too.
        asset_options: of `dg.AssetSpec`: description, group_name, metadata, tags, owners, kinds in
            addition to `deltalake`, and automation_condition, which says when to observe:
            `dg.AutomationCondition.on_cron("*/5 * * * *")`.

    Raises:
        InvalidArgument: only one of partitions_def and partition_expr is given, or they have other
            dimensions; or there is a freshness_policy.

    Examples:
        flights = observable_delta_asset(["raw", "flights"], "s3://lake/raw/flights")

        @dg.asset(deps=[flights], automation_condition=dg.AutomationCondition.eager())
        def report() -> None: ...
    """
    asset_key = dg.AssetKey.from_coercible(key)
    check_freshness_policy(asset_key, asset_options.get("freshness_policy"))
    mapping = None
    if partitions_def is not None or partition_expr is not None:
        mapping = _make_mapping(asset_key, partitions_def, partition_expr)
        asset_options["partitions_def"] = partitions_def
        given = asset_options.get("metadata") or {}
        asset_options["metadata"] = {"partition_expr": partition_expr, **given}
    spec = delta_asset_spec(asset_key, table, **asset_options)
    if columns:
        known = columns_from_log(table, plain_options(storage_options), asset_key)
        found = {"dagster/column_schema": known} if known else {}
        spec = spec.replace_attributes(metadata={**found, **spec.metadata})

    def observe(context: dg.AssetExecutionContext) -> dg.ObserveResult:
        store = open_store(table, plain_options(storage_options))
        instance = context.instance
        partition = None if mapping is None else _partition_of_run(context)
        seen = _observe_table(
            store, instance, asset_key, show_history, context.log.warning, mapping, partition
        )
        if mapping is not None:
            keys = [str(event.partition) for event in seen.partitions]
            for request in mapping.dynamic_requests(keys, instance):
                instance.add_dynamic_partitions(request.partitions_def_name, request.partition_keys)
        for event in seen.partitions:
            context.log_event(event)
        return dg.ObserveResult(
            asset_key,
            data_version=dg.DataVersion(seen.data_version),
            metadata=seen.metadata,
            tags=_position_tags(seen.commit),
        )

    # The decorator for a single asset has no owners, and its result cannot be mapped.
    define = dg.multi_observable_source_asset(name=op_name(asset_key), specs=[spec])
    return cast("dg.AssetsDefinition", define(observe))


def check_freshness_policy(key: dg.AssetKey, policy: object) -> None:
    """Refuse a freshness policy on an asset that is only observed: Dagster 1.13.27 evaluates
    materializations alone, and shows such an asset as unknown for ever.
    """
    if policy is not None:
        raise InvalidArgument(
            f"{key.to_user_string()} has a freshness_policy, which Dagster evaluates on "
            "materializations, and an observed asset has none: use delta_asset_checks(…, "
            "freshness=…) with a schedule, or a plain AssetSpec (observe: false in YAML) and a "
            "sensor with its asset_key, which reports each commit as a materialization"
        )


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


def _make_mapping(
    key: dg.AssetKey,
    partitions_def: dg.PartitionsDefinition[Any] | None,
    partition_expr: str | Mapping[str, str] | None,
) -> PartitionMapping:
    if partitions_def is None or not partition_expr:
        raise InvalidArgument(
            f"partitions_def and partition_expr of {key.to_user_string()} go together: the second "
            "names the partition column of the table that holds the partition key, or maps each "
            "dimension to its column"
        )
    return PartitionMapping(partitions_def, partition_expr, None)


def _partition_of_run(context: dg.AssetExecutionContext) -> str | None:
    if not (context.has_partition_key or context.has_partition_key_range):
        return None
    keys: Sequence[str] = context.partition_keys
    if len(keys) > 1:
        raise InvalidArgument(
            "one run observes one partition, or all of them if it has no partition, because "
            "Dagster records one data version for each run of a range: launch it without a "
            "partition, or one run for each"
        )
    return keys[0]


class _Observation(msgspec.Struct, frozen=True):
    commit: KnownCommit | None
    """The last commit of the table; None if a clean-up has deleted it."""
    data_version: str
    metadata: RawMetadata
    """What the UI shows of the table: it shows only the latest observation, so that each has
    everything."""
    partitions: Sequence[dg.AssetObservation] = ()
    """Observations of the partitions that changed, if all of them are observed."""


def _observe_table(
    store: ObjectStore,
    instance: dg.DagsterInstance,
    key: dg.AssetKey,
    commits: int,
    warn: Callable[[str], None],
    mapping: PartitionMapping | None,
    partition: str | None,
) -> _Observation:
    """Observe a table, or one partition of it."""
    previous = _find_previous(instance, key, partition, is_partitioned=mapping is not None)
    known = None if previous is None else previous.commit
    if previous is not None and known is not None:
        later = read_commits_after(store, known.version, at_most=1, commit=known)
        if later == []:
            return previous
        if later is None and not known.is_in(store):
            warn(f"{known.absence}; the table is observed from its latest version")
            previous = known = None
    snapshot, uri = Snapshot.load(store), store.location.uri
    changes = None if mapping is None else find_changed_partitions(snapshot, known, mapping, warn)
    # The facts of the commit are read, unless the previous observation shows them.
    shown_before = None if previous is None else previous.data_version
    if changes is not None and partition is not None:
        name, commit = changes.data_version(partition), changes.commits.get(partition)
        # Without a previous observation, every partition has changed.
        name = name or str(shown_before)
    else:
        name, commit = latest_data_change(
            snapshot, instance, key, lambda name: name == shown_before
        )
    change: RawMetadata = {} if commit is None else commit_facts(commit, uri)
    if commit is None and previous is not None and shown_before == name:
        change = previous.metadata
    table = table_metadata(snapshot, uri=uri, table_name=None)
    metadata = shown(change, table, history_metadata(snapshot, commits))
    last = KnownCommit.read(store, snapshot.version)
    events: Sequence[dg.AssetObservation] = ()
    if changes is not None and partition is None:
        events = partition_observations(changes, key, uri, instance, _position_tags(last))
    return _Observation(last, name, metadata, events)


def _position_tags(commit: KnownCommit | None) -> dict[str, str]:
    return {_POSITION: f"{commit.version}.{commit.digest}.{commit.modified_ms}"} if commit else {}


def _find_previous(
    instance: dg.DagsterInstance,
    asset_key: dg.AssetKey,
    partition: str | None,
    *,
    is_partitioned: bool,
) -> _Observation | None:
    """The last observation of a partition, or of the table."""
    which: dg.AssetKey | dg.AssetRecordsFilter = asset_key
    if partition is not None:
        which = dg.AssetRecordsFilter(asset_key=asset_key, asset_partitions=[partition])
    limit = _RECENT if is_partitioned and partition is None else 1
    records = instance.fetch_observations(which, limit=limit).records
    found = (record for record in records if record.partition_key == partition)
    record = next(found, None)
    observation = None if record is None else record.asset_observation
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
