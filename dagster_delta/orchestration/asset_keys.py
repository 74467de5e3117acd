"""The key of an asset given in any form."""

from __future__ import annotations

from typing import Any

from dagster import AssetKey, AssetsDefinition, AssetSpec, SourceAsset

__all__ = ["asset_key_of"]


def asset_key_of(asset: Any) -> AssetKey:
    """The key of an asset, of its spec, or of a value that Dagster converts to a key."""
    if isinstance(asset, AssetsDefinition | AssetSpec | SourceAsset):
        return asset.key
    return AssetKey.from_coercible(asset)
