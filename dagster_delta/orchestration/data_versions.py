"""The data version of an asset: it names the rows of its table.

It is `table_id:version` of the last commit that changed rows, for every event: of the IO manager,
observations, maintenance, schema changes and sensors.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import dagster as dg

from dagster_delta.table.read.watch import NOTHING_SEEN, LogCursor, data_version, last_data_change

if TYPE_CHECKING:
    from dagster_delta.table.read.snapshot import Snapshot

DATA_VERSION_TAG = "dagster/data_version"


def data_version_tags(
    snapshot: Snapshot, instance: dg.DagsterInstance, key: dg.AssetKey
) -> dict[str, str]:
    """The tag of an event of an asset whose table is at a version.

    It reads the newest commits until one changed rows, or until the version of the latest event of
    the asset.
    """
    cursor = LogCursor(version=snapshot.version, table_id=snapshot.metadata.id)
    at, known = known_data_version(cursor, instance, key)
    version, commit = last_data_change(snapshot.store, cursor, after=at)
    if commit is None and version <= at:
        return {DATA_VERSION_TAG: known}
    return {DATA_VERSION_TAG: data_version(snapshot.metadata.id, version)}


def known_data_version(
    cursor: LogCursor, instance: dg.DagsterInstance, key: dg.AssetKey
) -> tuple[int, str]:
    """The version of a table up to which an event of its asset says how its rows are named, and
    that name; `NOTHING_SEEN` and no name if no event does.
    """
    at, known = NOTHING_SEEN, ""
    for fetch in (instance.fetch_materializations, instance.fetch_observations):
        for record in fetch(key, limit=1).records:
            event = record.asset_materialization or record.asset_observation
            assert event is not None  # noqa: S101  one of them
            name = (event.tags or {}).get(DATA_VERSION_TAG, "")
            version = event.metadata.get("delta/version")
            if (
                # Others are of another table, or were set by the asset itself.
                name.startswith(f"{cursor.table_id}:")
                and isinstance(version, dg.IntMetadataValue)
                and version.value is not None
                and at < version.value <= cursor.version
            ):
                at, known = version.value, name
    return at, known
