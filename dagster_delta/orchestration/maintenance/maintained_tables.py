"""The tables of a maintenance job, and how their locations follow from assets."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from enum import Enum
from keyword import iskeyword
from typing import Any, TypeVar

import dagster as dg
import msgspec
from msgspec.structs import replace
from pydantic import Field, create_model

from dagster_delta.errors import InvalidArgument, TableNotFound
from dagster_delta.orchestration.branches import (
    LocationContext,
    branches_of_location,
    describe_refusal,
    protect_production,
)
from dagster_delta.orchestration.io.asset_options import AssetOptions, read_asset_options
from dagster_delta.orchestration.io.io_manager import DeltaIOManager, delta_io_manager
from dagster_delta.orchestration.metadata_keys import first_names
from dagster_delta.orchestration.resources import SparkSessionResource, spark_session_of
from dagster_delta.orchestration.storage_options import GivenStorage, plain_options
from dagster_delta.orchestration.table_metadata import IO_MANAGER_KEY, declared_location
from dagster_delta.table.delta_table import DeltaTable

_DEFAULT_IO_MANAGER = "io_manager"
_MAX_NAMED = 30


_RESERVED = (
    "arg_dict bool conf config context dict float input input_arg_dict int meta output "
    "output_arg_dict select_tables str type"
)
"""Names that Dagster does not accept for a step, and that of the step that selects the tables."""

_C = TypeVar("_C", bound=dg.Config)

Asset = dg.AssetsDefinition | dg.AssetSpec | dg.SourceAsset


def delta_table_pool(table: dg.AssetKey | str | Sequence[str]) -> str:
    """The concurrency pool of the steps that change one table; set its limit to 1 in the
    deployment.

    Maintenance jobs use it automatically. An asset declared with it never runs while its table is
    being maintained: `@dg.asset(pool=delta_table_pool("flights"))`.

    Args:
        table: key of the asset, or name of a table that is not an asset.
    """
    name = dg.AssetKey.from_coercible(table).to_user_string()
    return "delta/" + "_".join(name.split())


class MaintainedTable(msgspec.Struct, frozen=True):
    """One table of a job, not opened yet."""

    name: str
    """Its name in the job: the asset key as `a/b`, or a name given by the user."""
    asset_key: dg.AssetKey | None = None
    metadata: Mapping[str, object] = msgspec.field(default_factory=dict)
    """Definition metadata of the asset."""
    io_manager_key: str | None = None
    """Resource that gives the location of the asset; None if `uri` is set."""
    uri: str | None = None
    storage_options: GivenStorage | None = None
    allow_column_changes: bool = False
    """Whether online column changes may begin, if no resource decides it."""
    partitions_def: dg.PartitionsDefinition[Any] | None = None
    is_observable: bool = False
    """Whether automation conditions react to observations of the asset, not to materializations."""

    # Storage options may hold secrets.
    def __repr__(self) -> str:
        return f"MaintainedTable({self.name!r})"

    @property
    def op_name(self) -> str:
        """Name of the step that maintains it."""
        name = "".join(char if char.isascii() and char.isalnum() else "_" for char in self.name)
        return f"{name}_" if name in _RESERVED.split() or iskeyword(name) else name

    @property
    def pool(self) -> str:
        """Concurrency pool of the steps that change it."""
        return delta_table_pool(self.asset_key or self.name)

    def open(self, resources: object) -> DeltaTable | None:
        """The table, or None if the asset was never materialized."""
        if self.uri is None and self.asset_key is not None:
            return self._find_io_manager(resources).table_of(self.asset_key, self.metadata)
        options, allowed = plain_options(self.storage_options), self.allow_column_changes
        try:
            return DeltaTable(str(self.uri), storage_options=options, allow_column_changes=allowed)
        except TableNotFound:
            if self.asset_key is None:
                raise
            return None

    def open_to_write(self, context: dg.OpExecutionContext) -> DeltaTable | None:
        """The same. A table given by location refuses writes if the code location has a branch,
        unless it is in the branch.
        """
        table = self.open(context.resources)
        if table is not None and self.uri is not None:
            protect_production(context, table)
        return table

    def table_name(self, resources: object) -> str | None:
        """`schema.table` in the layout of the IO manager, or the name in its catalog; None for a
        table given by location.
        """
        if self.uri is not None or self.asset_key is None:
            return None
        return self._find_io_manager(resources).table_name(self.asset_key, self.metadata)

    def read_options(self, resources: object) -> AssetOptions:
        """The options of the asset: its metadata, over those of its IO manager if it has one."""
        if self.uri is not None or self.asset_key is None:
            return read_asset_options(self.metadata, AssetOptions(), asset=self.name)
        return self._find_io_manager(resources).asset_options(self.asset_key, self.metadata)

    def start_spark(self, resources: object, key: str | None) -> None:
        """Start the Spark session for the table, if it does not run yet: that of the
        SparkSessionResource with a key; else the session that loads the asset, or that of the
        process if the table is given by location.
        """
        owner: object = SparkSessionResource()
        if key is not None:
            owner = getattr(resources, key)
        elif self.uri is None:
            owner = self._find_io_manager(resources)
        spark_session_of(owner)

    def _find_io_manager(self, resources: object) -> DeltaIOManager:
        key = self.io_manager_key or _DEFAULT_IO_MANAGER
        return delta_io_manager(resources, key, asset=self.name)


def maintained_tables(
    assets: Iterable[Asset],
    selection: dg.AssetSelection | None,
    tables: Mapping[str, str] | None,
    storage_options: GivenStorage | None,
) -> tuple[MaintainedTable, ...]:
    """The tables of a job."""
    # An iterator gives them once.
    assets = tuple(assets)
    found = [table for asset in assets for table in tables_of_asset(asset, storage_options)]
    if selection is not None:
        definitions = [
            dg.AssetsDefinition(specs=[asset]) if isinstance(asset, dg.AssetSpec) else asset
            for asset in assets
        ]
        chosen = selection.resolve(definitions)
        found = [table for table in found if table.asset_key in chosen]
    found += [
        MaintainedTable(name, uri=uri, storage_options=storage_options)
        for name, uri in (tables or {}).items()
    ]
    names = [table.op_name for table in found]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise InvalidArgument(
            f"several tables of the job map to the same op name: {', '.join(twice)}"
        )
    if not found:
        raise InvalidArgument(
            "the job has no tables: give it assets, a selection that finds some, or tables by name "
            "and location"
        )
    return tuple(found)


def split_by_branch(
    tables: Iterable[MaintainedTable], context: LocationContext
) -> tuple[list[MaintainedTable], list[str]]:
    """The tables that the code location may write, and why the other ones are left alone: they
    were given by location, and a resource has a branch that they are not in.
    """
    tables = list(tables)
    branches = branches_of_location(context) if any(table.uri for table in tables) else []
    refused = {
        table.name: reason
        for table in tables
        if table.uri is not None and (reason := describe_refusal(branches, table.uri)) is not None
    }
    names = first_names(list(refused), _MAX_NAMED)
    notes = [f"{names} not maintained: {reason}" for reason in dict.fromkeys(refused.values())]
    return [table for table in tables if table.name not in refused], notes


def named_tables(tables: Sequence[MaintainedTable]) -> str:
    """The names of tables as text."""
    return first_names([table.name for table in tables], _MAX_NAMED)


def config_naming_tables(
    config: type[_C], field_name: str, tables: Sequence[MaintainedTable], /, **defaults: object
) -> type[_C]:
    """The config, with other defaults, whose field for names of tables is a choice that the
    Launchpad offers and checks. A field for one name is the only table, or required.
    """
    # Dagster's error for another value shows only the name of the enum. mypy wants a literal name.
    make_enum: Any = Enum
    names = {table.name: table.name for table in tables}
    choice: Any = make_enum(f"table of the job ({named_tables(tables)})", names, type=str)
    asked = config.model_fields[field_name]
    if asked.annotation is not str:
        choice = list[choice]
    elif len(tables) == 1:
        defaults[field_name] = choice(tables[0].name)
    described = f"{asked.description} There are: {named_tables(tables)}."
    default = defaults.pop(field_name, ...)
    named = {field_name: (choice, Field(default=default, description=described))}
    return config_with_defaults(config, defaults, **named)


def config_with_defaults(
    config: type[_C], defaults: Mapping[str, object], **fields: Any
) -> type[_C]:
    """The config with other defaults, and with other fields."""
    own: dict[str, Any] = {
        name: (field.annotation, Field(default=defaults[name], description=field.description))
        for name, field in config.model_fields.items()
        if name in defaults
    }
    return create_model(config.__name__, __base__=config, **{**own, **fields})


def tables_of_asset(
    asset: Asset, storage_options: GivenStorage | None
) -> Iterable[MaintainedTable]:
    """The tables of an asset, of several for a multi-asset."""
    definition = asset if isinstance(asset, dg.AssetsDefinition) else None
    for spec in asset.specs if isinstance(asset, dg.AssetsDefinition) else (asset,):
        metadata = {
            name: getattr(value, "value", value) for name, value in (spec.metadata or {}).items()
        }
        table = MaintainedTable(
            spec.key.to_user_string(),
            spec.key,
            metadata,
            partitions_def=spec.partitions_def,
            is_observable=not isinstance(asset, dg.AssetSpec) and asset.is_observable,
        )
        if (uri := declared_location(metadata)) is not None:
            yield replace(table, uri=uri, storage_options=storage_options)
            continue
        manager = metadata.get(IO_MANAGER_KEY) or _DEFAULT_IO_MANAGER
        if definition is not None and definition.is_materializable:
            manager = definition.get_io_manager_key_for_asset_key(spec.key)
        elif isinstance(asset, dg.SourceAsset):
            manager = asset.get_io_manager_key()
        yield replace(table, io_manager_key=str(manager))
