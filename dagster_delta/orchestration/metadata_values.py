"""Values that Dagster converts to metadata; `dagster` itself exports no type for them."""

from __future__ import annotations

from typing import Any, TypeAlias

from dagster import AssetKey, MetadataValue, TableColumnLineage, TableSchema

RawMetadataValue: TypeAlias = (
    MetadataValue[Any]
    | TableSchema
    | TableColumnLineage
    | AssetKey
    | dict[str, Any]
    | list[Any]
    | str
    | float
    | int
    | bool
    | None
)

RawMetadata: TypeAlias = dict[str, RawMetadataValue]
"""Metadata by key, as `add_output_metadata` and the events of Dagster take it."""
