"""What the UI shows of the tables of assets before any run: location, kind and columns."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from inspect import signature

import dagster as dg

from dagster_delta.orchestration.io.io_manager import DeltaIOManager
from dagster_delta.orchestration.metadata_values import RawMetadataValue
from dagster_delta.orchestration.table_metadata import (
    DELTA_KIND,
    IO_MANAGER_KEY,
    columns_from_log,
    definition_metadata,
)

__all__ = ["with_tables"]

_log = logging.getLogger(__name__)

# Opening a table waits for storage, not for the CPU.
_TABLES_AT_ONCE = 16


def with_tables(
    definitions: dg.Definitions, keys: Iterable[dg.AssetKey], *, columns: bool
) -> dg.Definitions:
    """The definitions, in which assets have the location of their table and the Delta kind.

    What an asset declares itself is kept.
    """
    by_manager: dict[str, list[dg.AssetSpec]] = {}
    for key in keys:
        asset = definitions.resolve_assets_def(key)
        manager_key = asset.get_io_manager_key_for_asset_key(key)
        by_manager.setdefault(manager_key, []).append(asset.get_asset_spec(key))
    found: dict[dg.AssetKey, Mapping[str, RawMetadataValue]] = {}
    for manager_key, specs in by_manager.items():
        manager = (definitions.resources or {})[manager_key]
        tables = _metadata_by_key(manager, specs, columns=columns)
        for spec in specs:
            found[spec.key] = {**tables.get(spec.key, {}), IO_MANAGER_KEY: manager_key}

    def described(spec: dg.AssetSpec) -> dg.AssetSpec:
        if spec.key not in found:
            return spec
        missing = {k: value for k, value in found[spec.key].items() if k not in spec.metadata}
        return spec.merge_attributes(metadata=missing, kinds={DELTA_KIND})

    assets = definitions.assets or ()
    mapped = [
        next(iter(dg.map_asset_specs(described, [asset])))
        if isinstance(asset, dg.AssetsDefinition | dg.AssetSpec)
        else asset
        for asset in assets
    ]
    # `Definitions.map_asset_specs` is a preview, and refuses source assets.
    given = {name: getattr(definitions, name) for name in signature(dg.Definitions).parameters}
    return dg.Definitions(**{**given, "assets": mapped})


def _metadata_by_key(
    manager: DeltaIOManager, specs: Sequence[dg.AssetSpec], *, columns: bool
) -> dict[dg.AssetKey, Mapping[str, RawMetadataValue]]:
    def metadata(spec: dg.AssetSpec) -> Mapping[str, RawMetadataValue]:
        uri = resolved.asset_table_uri(spec.key, spec.metadata)
        options = resolved.storage_options.to_options()
        return definition_metadata(
            uri,
            table_name=resolved.asset_table_name(spec.key, spec.metadata),
            column_schema=columns_from_log(uri, options, spec.key) if columns else None,
        )

    try:
        with (
            manager.process_config_and_initialize_cm() as resolved,
            ThreadPoolExecutor(_TABLES_AT_ONCE) as threads,
        ):
            found = threads.map(metadata, specs)
            return {spec.key: each for spec, each in zip(specs, found, strict=True)}
    except dg.DagsterInvalidConfigError:
        # An environment variable may be set only where runs are executed.
        _log.info("the location of the tables is not known here, and is shown by the first run")
        return {}
