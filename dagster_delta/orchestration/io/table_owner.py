"""Which asset a table belongs to: assets with the same table location must not silently replace
each other's rows.

A new table records its asset in a property, which is in every snapshot. A table without it, from an
earlier release or another tool, belongs to the asset that wrote its latest commit, if any.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from dagster_delta.errors import CommitConflict, InvalidArgument, VersionNotFound
from dagster_delta.table.log.reader import read_commit_info

if TYPE_CHECKING:
    from dagster_delta.orchestration.io.asset_options import AssetOptions
    from dagster_delta.table.delta_table import DeltaTable
    from dagster_delta.table.read.snapshot import Snapshot

OWNER_PROPERTY = "dagsterDelta.asset"
"""Table property: the key of the asset that writes the table, or `SHARED`."""

SHARED = "(shared)"

_WRITES = ("WRITE", "MERGE")
"""Operations by which assets write; maintenance and schema changes do not set an owner."""


def owner_of(asset_key: str | None, options: AssetOptions) -> str | None:
    """The owner that a table of the asset should have; None for the output of an op."""
    return SHARED if options.shared_table else asset_key


def check_owner(
    table: DeltaTable,
    snapshot: Snapshot,
    asset_key: str | None,
    options: AssetOptions,
    commit_info: Mapping[str, object],
) -> None:
    """Make sure that the table belongs to the asset; a commit records a new owner.

    Raises:
        InvalidArgument: it belongs to another asset.
    """
    wanted = owner_of(asset_key, options)
    recorded = snapshot.metadata.configuration.get(OWNER_PROPERTY)
    if recorded is None and (options.shared_table or asset_key is None):
        return
    owner = _latest_writer(snapshot) if recorded is None else recorded
    if owner is None or owner == wanted:
        return
    if not options.shared_table and owner not in options.renamed_from:
        raise _make_error(asset_key or "this output", owner, snapshot)
    if wanted is None:
        return
    record_property(table, OWNER_PROPERTY, wanted, commit_info)


def record_property(
    table: DeltaTable, key: str, wanted: str, commit_info: Mapping[str, object]
) -> None:
    """Set a property of a table, which another run of the asset may do too."""
    try:
        table.set_properties({key: wanted}, commit_info=commit_info)
    except CommitConflict:
        if table.refresh().metadata.configuration.get(key) != wanted:
            raise


def _make_error(
    name: str, owner: str, snapshot: Snapshot, *, would: str = "replace or add to"
) -> InvalidArgument:
    if owner == SHARED:
        cause = "is shared by several assets"
        remedy = f"{name} may write to it too with the metadata shared_table = True"
    else:
        cause = f"belongs to the asset {owner}, whose rows {name} would {would}"
        remedy = (
            f"if {owner} was renamed to {name}, set the metadata renamed_from = {owner!r} on "
            "it; to read this table, set table_name on it; if both write to it, set shared_table = "
            "True on both"
        )
    return InvalidArgument(
        f"the table {cause}: give {name} a table of its own by the metadata schema or "
        f"table_name; {remedy}. The table property {OWNER_PROPERTY} remembers the asset",
        table=snapshot.store.location.uri,
        version=snapshot.version,
    )


def check_read(snapshot: Snapshot, asset_key: str, options: AssetOptions) -> None:
    """Refuse to read the table of another asset as that of an asset which was never written: the
    keys `a/raw/orders` and `b/raw/orders` mean one location. A table that the metadata names is
    meant.

    Raises:
        InvalidArgument: the table belongs to another asset.
    """
    owner = snapshot.metadata.configuration.get(OWNER_PROPERTY)
    if owner is None or owner in {SHARED, asset_key, *options.renamed_from}:
        return
    if options.shared_table or options.table_name is not None or options.table is not None:
        return
    raise _make_error(asset_key, owner, snapshot, would="read as its own")


def _latest_writer(snapshot: Snapshot) -> str | None:
    """The asset that made the latest commit, if that commit wrote rows."""
    try:
        info = read_commit_info(snapshot.store, snapshot.version)
    except VersionNotFound:
        return None
    writer = info.get("dagsterAsset")
    if info.get("operation") not in _WRITES or not isinstance(writer, str):
        return None
    # The output of an op is not an asset.
    return None if writer.startswith(f"{info.get('dagsterStep')}.") else writer
