"""The key of an asset given in any form."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

from dagster import AssetKey, AssetsDefinition, AssetSpec, SourceAsset

AssetReference: TypeAlias = (
    AssetKey | AssetSpec | AssetsDefinition | SourceAsset | str | Sequence[str]
)
"""An asset, or its key in any form."""


def asset_key_of(asset: AssetReference) -> AssetKey:
    """The key of an asset, of its spec, or of a value that Dagster converts to a key."""
    if isinstance(asset, AssetsDefinition | AssetSpec | SourceAsset):
        return asset.key
    return AssetKey.from_coercible(asset)
