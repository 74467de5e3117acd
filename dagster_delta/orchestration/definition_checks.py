"""Checks of a code location's assets before any of them runs, and what the UI shows of them."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from inspect import signature

import dagster as dg
import msgspec

from dagster_delta.errors import InvalidArgument
from dagster_delta.nearest_name import misspelled_name
from dagster_delta.orchestration.catalogs import CatalogResource
from dagster_delta.orchestration.incremental.change_feed_assets import ChangeFeedConfig
from dagster_delta.orchestration.io.asset_options import (
    ASSET_KEYS,
    AssetOptions,
    check_mode,
    check_shared,
    read_input_options,
)
from dagster_delta.orchestration.io.io_manager import DeltaIOManager
from dagster_delta.orchestration.io.merge_config import sql_texts
from dagster_delta.orchestration.metadata_keys import RawMetadataValue
from dagster_delta.orchestration.partitions.partitions import select_partitions
from dagster_delta.orchestration.sensors.observations import check_freshness_policy
from dagster_delta.orchestration.table_metadata import (
    DELTA_KIND,
    IO_MANAGER_KEY,
    PLACED_KEY,
    check_stored_location,
    columns_from_log,
    definition_metadata,
)
from dagster_delta.storage import canonical_uri, local_root, scheme_of
from dagster_delta.table.spelling import check_syntax

_log = logging.getLogger(__name__)

# Options whose names are words that a user may have for something else.
_COMMON = frozenset({"mode", "schema", "table_name"})

# Opening a table waits for storage, not for the CPU.
_TABLES_AT_ONCE = 16


def check_definitions(definitions: dg.Definitions, *, columns: bool = False) -> dg.Definitions:
    """The definitions, after checking every asset that a DeltaIOManager stores.

    Unknown and misspelled metadata keys, wrong values, a missing `partition_expr` and assets with
    one table are errors at load time instead of after an asset was computed. So are misspelled keys
    and wrong values of the inputs of assets and of asset checks. Assets that return no value to
    store (`-> None`, `MaterializeResult` without a type) are not stored.

    The UI shows the location of each table and the kind Delta Lake before the first run. Storage is
    accessed only for `columns`.

    Args:
        definitions: with the assets and their resources.
        columns: whether the UI shows the columns of existing tables too: loading then opens each
            table. A table that cannot be opened is logged as a warning.

    Raises:
        InvalidArgument: the metadata of an asset or input is invalid, or the tables of two assets
            are at one location or inside each other, or an observed table has a freshness policy,
            which Dagster never evaluates.

    Examples:
        defs = check_definitions(
            dg.Definitions(assets=[orders], resources={"io_manager": DeltaIOManager(…)})
        )
    """
    _check_freshness_policies(definitions)
    stored = list(_stored_assets(definitions))
    _check_inputs(definitions)
    _check_locations([(asset, _check_options(asset)) for asset in stored])
    return _with_tables(definitions, stored, columns=columns)


def _check_freshness_policies(definitions: dg.Definitions) -> None:
    for asset in definitions.assets or ():
        if isinstance(asset, dg.AssetsDefinition) and asset.is_observable:
            for spec in asset.specs:
                if DELTA_KIND in spec.kinds:
                    check_freshness_policy(spec.key, spec.freshness_policy)


class _StoredAsset(msgspec.Struct, frozen=True):
    key: dg.AssetKey
    definition: dg.AssetsDefinition
    manager_key: str
    manager: DeltaIOManager

    @property
    def name(self) -> str:
        return self.key.to_user_string()


def _stored_assets(definitions: dg.Definitions) -> Iterator[_StoredAsset]:
    """The assets that a DeltaIOManager stores. An asset without an IO manager is refused if it has
    options of one, or if the name of one is misspelled: Dagster would store its value in files of
    its own.
    """
    resources = definitions.resources or {}
    named = [name for name, found in resources.items() if isinstance(found, DeltaIOManager)]
    for key in sorted(definitions.resolve_all_asset_keys()) if named else ():
        definition = definitions.resolve_assets_def(key)
        if not (definition.is_executable and _returns_value(definition, key)):
            continue
        manager_key = definition.get_io_manager_key_for_asset_key(key)
        manager = resources.get(manager_key)
        given = sorted(ASSET_KEYS & (definition.metadata_by_key.get(key) or {}).keys() - _COMMON)
        meant = misspelled_name(manager_key, named)
        if manager_key not in resources and (given or meant):
            other = meant or named[0]
            why = f"has the option {given[0]}" if given else "returns a value"
            raise InvalidArgument(
                f"asset {key.to_user_string()} {why}, and there is no resource {manager_key!r} for "
                f"it: give the DeltaIOManager that name instead of {other!r}, or the asset "
                f"io_manager_key={other!r}"
            )
        if isinstance(manager, DeltaIOManager) and definition.is_materializable:
            yield _StoredAsset(key, definition, manager_key, manager)


def _returns_value(definition: dg.AssetsDefinition, key: dg.AssetKey) -> bool:
    name = definition.get_output_name_for_asset_key(key)
    if definition.node_def.output_def_named(name).dagster_type.kind.name == "NOTHING":
        return False
    # Dagster does not distinguish a MaterializeResult without a type of its value from other
    # values; only the function's annotation does.
    annotation = getattr(_find_function(definition), "__annotations__", {}).get("return")
    return re.search(r"MaterializeResult(?!\[)", str(annotation)) is None


def _find_function(definition: dg.AssetsDefinition) -> object:
    return getattr(getattr(definition.node_def, "compute_fn", None), "decorated_fn", None)


def _check_options(asset: _StoredAsset) -> AssetOptions:
    metadata = asset.definition.metadata_by_key[asset.key]
    options = asset.manager.asset_options(asset.key, metadata)
    partitions_def = asset.definition.get_asset_spec(asset.key).partitions_def
    if partitions_def is not None:
        # No keys: they are not needed to check that the columns fit the dimensions.
        select_partitions(partitions_def, (), options.partition_expr, asset=asset.name)
    if not _applies_changes(asset.definition):
        check_mode(options, metadata, asset=asset.name)
        check_shared(options, asset=asset.name)
    if options.merge_config is not None:
        _check_sql(sql_texts(options.merge_config), f"the merge of asset {asset.name}")
    for option in ("partition_by", "cluster_by"):
        names = [name.lower() for name in getattr(options, option) or ()]
        if twice := [name for name in names if names.count(name) > 1]:
            raise InvalidArgument(f"{option} of asset {asset.name} names {twice[0]!r} twice")
    if options.partition_by and options.cluster_by:
        raise InvalidArgument(
            f"asset {asset.name} has partition_by and cluster_by: a table is either partitioned or "
            "clustered; leave one out"
        )
    return options


def _check_sql(texts: Iterable[str | None], owner: str) -> None:
    """Refuse what is not Spark SQL; Spark may know what is outside of the grammar known here."""
    for text in filter(None, texts):
        try:
            check_syntax(text)
        except InvalidArgument as error:
            raise InvalidArgument(f"{owner}: {error.message}") from error


def _applies_changes(definition: dg.AssetsDefinition) -> bool:
    """Whether the asset is incremental: it then merges or appends, and ignores its `mode`."""
    annotations = getattr(_find_function(definition), "__annotations__", {}).values()
    return any(
        isinstance(annotation, type) and issubclass(annotation, ChangeFeedConfig)
        for annotation in annotations
    )


def _check_inputs(definitions: dg.Definitions) -> None:
    """Refuse metadata of inputs of assets and of checks that a DeltaIOManager cannot parse when it
    loads them.
    """
    resources = definitions.resources or {}
    known = {
        key: definitions.resolve_assets_def(key) for key in definitions.resolve_all_asset_keys()
    }
    for definition in dict.fromkeys((*known.values(), *(definitions.asset_checks or ()))):
        for given in definition.node_def.input_defs if definition.is_executable else ():
            key = definition.keys_by_input_name.get(given.name)
            if key not in known:
                continue
            manager = given.input_manager_key or known[key].get_io_manager_key_for_asset_key(key)
            if isinstance(resources.get(manager), DeltaIOManager):
                owner = f"the input {given.name!r} of {definition.node_def.name}"
                _check_sql(
                    [read_input_options(given.metadata or {}, owner).where], f"where of {owner}"
                )


def _check_locations(assets: list[tuple[_StoredAsset, AssetOptions]]) -> None:
    found: dict[tuple[str, ...], tuple[_StoredAsset, AssetOptions]] = {}
    for asset, options in assets:
        path = _find_path(asset, options)
        if path in found and not (options.shared_table and found[path][1].shared_table):
            raise InvalidArgument(
                f"the assets {found[path][0].name} and {asset.name} have one table, "
                f"{'/'.join(path[-2:])} below root_uri, and would replace each other's rows: give "
                "one of them another by the metadata schema or table_name; if both are to write "
                "it, set shared_table = True on both; one that returns nothing to be stored is "
                "annotated with -> None"
            )
        found[path] = (asset, options)
    for path, (inner, _) in found.items():
        for end in range(1, len(path)):
            if path[:end] in found:
                raise InvalidArgument(
                    f"the table of {inner.name} lies inside the table of "
                    f"{found[path[:end]][0].name}, whose VACUUM would delete its files: give one "
                    "of them another place by the metadata schema or table_name"
                )


def _find_path(asset: _StoredAsset, options: AssetOptions) -> tuple[str, ...]:
    """Directories of the table; an environment variable is identified by its name."""
    manager = asset.manager
    if isinstance(manager.catalog, CatalogResource):
        name_parts = manager.catalog.name_parts
        return ("catalog", *options.catalog_name(name_parts, asset.key, asset.name).split("."))
    parts = (_plain_root(manager.root_uri), *options.table_path(asset.key, asset.name))
    # An EnvVar cannot be formatted before a run; its methods return its name.
    return tuple(step for part in parts for step in part.rstrip("/").split("/") if step)


def _plain_root(root_uri: str) -> str:
    """One spelling for all that name the same root: `lake`, `./lake`, `file:///…/lake`."""
    if type(root_uri) is not str:
        return root_uri
    scheme = scheme_of(root_uri)
    if scheme in (None, "file"):
        return local_root(root_uri)
    return canonical_uri(f"{scheme}:{root_uri.partition(':')[2]}")


def _with_tables(
    definitions: dg.Definitions, stored: Sequence[_StoredAsset], *, columns: bool
) -> dg.Definitions:
    """The definitions, in which assets have the location of their table and the Delta kind, beside
    what they declare themselves.
    """
    found: dict[dg.AssetKey, Mapping[str, RawMetadataValue]] = {}
    for manager_key in {asset.manager_key for asset in stored}:
        of_manager = [asset for asset in stored if asset.manager_key == manager_key]
        found |= _metadata_by_key(of_manager, columns=columns)

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
    assets: Sequence[_StoredAsset], *, columns: bool
) -> dict[dg.AssetKey, Mapping[str, RawMetadataValue]]:
    """Metadata of assets with one IO manager."""
    known = dict.fromkeys((IO_MANAGER_KEY, PLACED_KEY), assets[0].manager_key)

    def metadata(asset: _StoredAsset) -> Mapping[str, RawMetadataValue]:
        given = asset.definition.metadata_by_key[asset.key]
        stored = {k: value for k, value in given.items() if k != "dagster/uri"}
        uri = resolved.production_uri(asset.key, stored)
        check_stored_location(given, uri, asset=asset.name)
        storage_options = resolved.options_to_open(uri)
        table = definition_metadata(
            uri,
            table_name=resolved.table_name(asset.key, given),
            column_schema=columns_from_log(uri, storage_options, asset.key) if columns else None,
        )
        return {**table, **known}

    try:
        with (
            assets[0].manager.process_config_and_initialize_cm() as resolved,
            ThreadPoolExecutor(_TABLES_AT_ONCE) as threads,
        ):
            found = threads.map(metadata, assets)
            return {asset.key: table for asset, table in zip(assets, found, strict=True)}
    except dg.DagsterInvalidConfigError:
        # An environment variable may be set only where runs are executed.
        _log.info("the location of the tables is not known here, and is shown by the first run")
        return {asset.key: known for asset in assets}
