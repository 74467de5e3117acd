"""Which assets read which columns of another, as far as definitions and column lineage tell."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from dagster import AssetKey, AssetsDefinition, AssetSpec, DagsterInstance

__all__ = ["downstream_readers"]

_LINEAGE_KEY = "dagster/column_lineage"
_UNKNOWN = "(no column lineage)"


def downstream_readers(
    instance: DagsterInstance, assets: Iterable[Any], key: AssetKey, columns: Sequence[str]
) -> dict[str, tuple[str, ...]]:
    """The assets that depend on an asset, and which of some columns they read.

    The lineage is that of an asset's latest materialisation. Assets without any are told too, as
    they may read every column.

    Args:
        instance: knows the latest materialisations.
        assets: definitions among which to look.
        key: of the asset that is read.
        columns: its columns in question, top-level names.

    Returns:
        The columns by asset key, as `a/b`.
    """
    found: dict[str, tuple[str, ...]] = {}
    wanted = {each.casefold() for each in columns}
    for reader in _direct_readers(assets, key):
        lineage = _lineage(instance, reader)
        if lineage is None:
            found[reader.to_user_string()] = (_UNKNOWN,)
            continue
        read = {
            dep.column_name
            for deps in lineage.deps_by_column.values()
            for dep in deps
            if dep.asset_key == key and dep.column_name.casefold() in wanted
        }
        if read:
            found[reader.to_user_string()] = tuple(sorted(read))
    return found


def _direct_readers(assets: Iterable[Any], key: AssetKey) -> Iterator[AssetKey]:
    for asset in assets:
        specs: Iterable[AssetSpec] = ()
        if isinstance(asset, AssetsDefinition):
            specs = asset.specs
        elif isinstance(asset, AssetSpec):
            specs = (asset,)
        for spec in specs:
            if any(dep.asset_key == key for dep in spec.deps):
                yield spec.key


def _lineage(instance: DagsterInstance, key: AssetKey) -> Any:
    event = instance.get_latest_materialization_event(key)
    materialization = None if event is None else event.asset_materialization
    if materialization is None:
        return None
    value = materialization.metadata.get(_LINEAGE_KEY)
    return None if value is None else value.value
