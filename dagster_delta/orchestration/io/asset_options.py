"""Storage options of an asset, parsed once from its metadata and the IO manager's configuration.

Metadata on the asset (or on an op's `Out`) overrides the configuration of the IO manager. Metadata
that the asset puts on its output while it runs is no option. A key may be plain, as in the other
Delta integrations (`partition_expr`), or in this library's namespace (`delta/partition_expr`). A
key that is similar to an option, or an option of another integration, is an error, so that typos
are noticed.
"""

from __future__ import annotations

import difflib
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, partial
from typing import Any, Literal, TypeAlias, TypeVar

from dagster import AssetKey, AssetsDefinition, AssetSpec, MetadataValue, SourceAsset

from dagster_delta.errors import InvalidArgument
from dagster_delta.orchestration.io.merge_config import (
    MergeConfig,
    MergeOperationsConfig,
    parse_merge,
)
from dagster_delta.orchestration.io.option_values import (
    ASSET_KEY_LIST,
    BOOLEAN,
    COMMIT_PROPERTIES,
    COUNT,
    EXPRESSION,
    NAMES,
    SAMPLE_SIZE,
    STRING_MAPPING,
    TEXT,
    VERSION,
    WRITER_PROPERTIES,
    ValueKind,
    one_of,
)
from dagster_delta.orchestration.metadata_keys import QUERY_KEY

WriteMode = Literal["append", "overwrite", "merge", "error", "ignore"]
SchemaMode = Literal["strict", "widen", "merge", "overwrite"]

_REPLACED = 'use overwrite with schema_mode="overwrite", which gives the table the new schema too'
EARLIER_MODES = {
    "create_or_replace": _REPLACED,
    "delete_insert": "use overwrite, which replaces the partitions of the run, or merge",
    "replace": _REPLACED,
    "upsert": "use merge with merge_config",
}
"""Modes of earlier integrations to their replacement."""

NAMESPACE = "delta/"
DEFAULT_SCHEMA = "public"

ASSET_KEYS = {
    "mode": "mode",
    "schema_mode": "schema_mode",
    "overwrite_schema": "overwrite_schema",
    "partition_expr": "partition_expr",
    "partition_by": "partition_by",
    "cluster_by": "cluster_by",
    "sort_by": "sort_by",
    "schema": "schema",
    "table_name": "table_name",
    "table": "table_name",
    "root_name": "table_name",
    "table_configuration": "properties",
    "table_properties": "properties",
    "custom_metadata": "custom_metadata",
    "commit_properties": "commit_properties",
    "show_history": "history",
    "sample_rows": "sample_rows",
    "masked_columns": "masked_columns",
    "writer_properties": "writer_properties",
    "merge_config": "merge",
    "merge_predicate": "merge_predicate",
    "merge_operations_config": "merge_operations",
    "renamed_from": "renamed_from",
    "shared_table": "shared_table",
}
"""Metadata key to option; several keys for one option are the spellings of earlier integrations."""

_FOREIGN_KEYS = {
    "write_mode": "it is 'mode' here",
    "upsert_options": "use 'mode': 'merge' with 'merge_config' here",
    "schema_update_mode": "it is 'schema_mode' here",
    "partition_spec_update_mode": "name the partition columns of a new table in 'partition_by'",
    "delta_write_options": "use 'schema_mode', 'partition_by' and 'table_configuration' here",
    "delta_merge_options": "use 'mode': 'merge' with 'merge_config' here",
    "partition_columns": "it is 'partition_by' here",
    "partition_expression": "it is 'partition_expr' here",
    "partition_column": "it is 'partition_by' here, or 'partition_expr' for Dagster's partitions",
    "table_config": "on an asset it is 'table_configuration'",
    "table_properties": "it is 'table_configuration' here",
    "storage_options": "they are an option of the DeltaIOManager, for all of its tables",
    "writer_engine": "leave it out, what an asset returns picks the engine",
}
"""Metadata key of another integration to its replacement here."""

_FIXED_OPTIONS = frozenset({"partition_expr", "schema", "table_name"})
"""Options that readers of the table use too."""

INPUT_KEYS = {
    "columns": "columns",
    "where": "where",
    "predicate": "where",
    "version": "version",
    "table_version": "version",
}
"""The same for the metadata of an input."""

_FOREIGN_INPUT_KEYS = {
    "timestamp": "give the 'version' of that time, which history() of a DeltaTable shows",
    "timestampAsOf": "give the 'version' of that time, which history() of a DeltaTable shows",
    "versionAsOf": "it is 'version' here",
    **{
        key: "it belongs on the asset that is read, and every reader goes by it"
        for key, option in ASSET_KEYS.items()
        if option in _FIXED_OPTIONS
    },
    "filter": "it is 'where' here",
    "filters": "write Spark SQL in 'where' here",
    "row_filter": "write Spark SQL in 'where' here",
    "selected_fields": "it is 'columns' here",
    "snapshot_id": "it is 'version' here",
}

_LOG = logging.getLogger(__name__)

T = TypeVar("T")

AssetReference: TypeAlias = (
    AssetKey | AssetSpec | AssetsDefinition | SourceAsset | str | Sequence[str]
)
"""An asset, or its key in any form."""


def asset_key_of(asset: AssetReference) -> AssetKey:
    """The key of an asset, of its spec, or of a value that Dagster converts to a key."""
    if isinstance(asset, AssetsDefinition | AssetSpec | SourceAsset):
        return asset.key
    return AssetKey.from_coercible(asset)


@dataclass(frozen=True, slots=True)
class AssetOptions:
    """Where and how one asset is stored."""

    mode: WriteMode = "overwrite"
    schema_mode: SchemaMode = "strict"
    schema: str | None = None
    """Directory between the root and the table; None: the asset's key prefix, else `public`."""
    table_name: str | None = None
    """Name of the table's directory; None: the last part of the asset key."""
    partition_expr: str | Mapping[str, str] | None = None
    """Column that holds the Dagster partition, or one per dimension."""
    partition_by: tuple[str, ...] | None = None
    """Physical partition columns of a new table; None: the columns of `partition_expr` with one
    value per Dagster partition. Empty: not partitioned."""
    cluster_by: tuple[str, ...] | None = None
    """Columns by which OPTIMIZE clusters the rows of a new table, instead of partition columns."""
    sort_by: tuple[str, ...] | None = None
    """Columns by which the rows of each file are sorted."""
    properties: Mapping[str, str] = field(default_factory=dict)
    """Table properties of a new table."""
    custom_metadata: Mapping[str, str] = field(default_factory=dict)
    """Added to the commitInfo of every commit."""
    merge: MergeConfig | None = None
    """Configuration of the mode `merge`."""
    history: int = 0
    """Number of latest commits that every materialisation shows; it reads one file per commit."""
    sample_rows: int = 0
    """Number of written rows that every materialisation shows, 100 at most."""
    masked_columns: tuple[str, ...] = ()
    """Columns whose values are hidden in sample rows and in failing rows of checks."""
    renamed_from: tuple[str, ...] = ()
    """Earlier keys of the asset, as `a/b`: its table may belong to one of them."""
    shared_table: bool = False
    """Whether several assets write the table intentionally."""

    def table_uri(self, root_uri: str, asset_key: AssetKey | None, output_name: str) -> str:
        """`<root>/<schema>/<table>`, the same location as in earlier Delta IO managers. An empty
        root, which would mean the root of the file system, is refused.
        """
        if not root_uri.strip():
            raise InvalidArgument(
                "root_uri of the DeltaIOManager is empty: set it to the location that holds the "
                "tables, and the environment variable that it comes from, if it does"
            )
        root = root_uri.rstrip("/")
        schema, table = self.table_path(asset_key, output_name)
        return f"{root}/{schema}/{table}" if schema else f"{root}/{table}"

    def table_path(self, asset_key: AssetKey | None, output_name: str) -> tuple[str, str]:
        """Schema (empty for none) and name of the table."""
        path = asset_key.path if asset_key is not None else [output_name]
        schema = self.schema
        if schema is None:
            schema = path[-2] if len(path) > 1 else DEFAULT_SCHEMA
        name = self.table_name or path[-1]
        if ".." in f"{schema}/{name}".split("/"):
            raise InvalidArgument(
                f"the table {schema}/{name} of {'/'.join(path)} is not below root_uri: write "
                "schema and table_name without '..'"
            )
        return schema, name


@dataclass(frozen=True, slots=True)
class InputOptions:
    """Read options of one input, from the metadata of its `AssetIn` or `In`."""

    columns: tuple[str, ...] | None = None
    """Columns to read; None: all."""
    where: str | None = None
    """Spark SQL filter, in addition to the partitions being read."""
    version: int | None = None
    """Table version to read; None: the latest."""


def read_asset_options(
    metadata: Mapping[str, object],
    defaults: AssetOptions,
    *,
    asset: str | None,
) -> AssetOptions:
    """The options of one asset: its metadata over the defaults of the IO manager.

    `asset` is its name for messages, None for the IO manager's own configuration.
    """
    owner = "the DeltaIOManager" if asset is None else f"asset {asset}"
    found = _options(metadata, ASSET_KEYS, owner)
    _check_plain_keys(metadata, ASSET_KEYS, _FOREIGN_KEYS, found, owner)
    reader = _Reader(found, owner)
    none: Mapping[str, str] = {}
    files = reader.read("writer_properties", WRITER_PROPERTIES, none)
    properties = reader.read("properties", STRING_MAPPING, none)
    commit = reader.read("commit_properties", COMMIT_PROPERTIES, none)
    custom_metadata = reader.read("custom_metadata", STRING_MAPPING, none)
    schema_mode = reader.read("schema_mode", _SCHEMA_MODE, defaults.schema_mode)
    masked = reader.read("masked_columns", NAMES, defaults.masked_columns or None)
    if reader.read("overwrite_schema", BOOLEAN, default=False):
        schema_mode = "overwrite"
    return AssetOptions(
        mode=reader.read("mode", _WRITE_MODE, defaults.mode),
        schema_mode=schema_mode,
        schema=reader.read("schema", TEXT, defaults.schema),
        table_name=reader.read("table_name", TEXT, defaults.table_name),
        partition_expr=reader.read("partition_expr", EXPRESSION, defaults.partition_expr),
        partition_by=reader.read("partition_by", NAMES, defaults.partition_by),
        cluster_by=reader.read("cluster_by", NAMES, defaults.cluster_by),
        sort_by=reader.read("sort_by", NAMES, defaults.sort_by),
        properties={**defaults.properties, **files, **properties},
        custom_metadata={**defaults.custom_metadata, **commit, **custom_metadata},
        merge=_merge(reader, defaults.merge),
        history=reader.read("history", COUNT, defaults.history),
        sample_rows=reader.read("sample_rows", SAMPLE_SIZE, defaults.sample_rows),
        masked_columns=masked or (),
        renamed_from=reader.read("renamed_from", ASSET_KEY_LIST, ()),
        shared_table=reader.read("shared_table", BOOLEAN, default=False),
    )


def _merge(reader: _Reader, default: MergeConfig | None) -> MergeConfig | None:
    merge = reader.read("merge", _MERGE, default)
    changes: dict[str, object] = {
        "predicate": reader.read("merge_predicate", TEXT, None),
        "merge_operations_config": reader.read("merge_operations", _MERGE_OPERATIONS, None),
    }
    changes = {name: value for name, value in changes.items() if value is not None}
    if not changes:
        return merge
    return (merge or MergeConfig()).model_copy(update=changes)


def read_input_options(
    metadata: Mapping[str, object], defaults: InputOptions, *, asset: str
) -> InputOptions:
    """The options of one input."""
    owner = f"asset {asset}"
    found = _options(metadata, INPUT_KEYS, owner)
    _check_plain_keys(metadata, INPUT_KEYS, _FOREIGN_INPUT_KEYS, found, owner)
    reader = _Reader(found, owner)
    return InputOptions(
        columns=reader.read("columns", NAMES, defaults.columns),
        where=reader.read("where", TEXT, defaults.where),
        version=reader.read("version", VERSION, defaults.version),
    )


def _options(
    metadata: Mapping[str, object], known: Mapping[str, str], owner: str
) -> dict[str, tuple[str, Any]]:
    """Option name to (the key it came from, its plain value)."""
    found: dict[str, tuple[str, Any]] = {}
    for key, raw in metadata.items():
        option = known.get(key.removeprefix(NAMESPACE))
        if option is None:
            if key.startswith(NAMESPACE) and key != QUERY_KEY:
                raise _unknown_key(key, known, owner)
            continue
        value = raw.value if isinstance(raw, MetadataValue) else raw
        if value is None:
            continue
        if option in found and found[option][1] != value:
            raise InvalidArgument(
                f"the metadata of {owner} has different values for {found[option][0]!r} and "
                f"{key!r}, which are the same option; keep one of them"
            )
        found[option] = (key, value)
    return found


def _check_plain_keys(
    metadata: Mapping[str, object],
    known: Mapping[str, str],
    foreign: Mapping[str, str],
    found: Mapping[str, object],
    owner: str,
) -> None:
    """Refuse keys that resemble an option, and log other unknown keys once."""
    for key in metadata:
        if key in known or "/" in key:
            continue
        meant = next((each for each in known if _is_misspelled(key, each)), None)
        if key in foreign:
            hint = f"{foreign[key]}."
        elif meant is not None and known[meant] not in found:
            hint = f"did you mean {meant!r}?"
        else:
            note_foreign_key(key, owner)
            continue
        raise InvalidArgument(
            f"the metadata of {owner} has the key {key!r}, which is no option: {hint} If it is a "
            f"note of your own, give it a namespace, as in 'team/{key}'"
        )


_WORDS = frozenset({"code", "model", "node"})

_SHORT_WORDS = frozenset({"table", "schema", "version", "where"})
"""Options whose names are similar to too many other words."""


def _is_misspelled(key: str, option: str) -> bool:
    """Whether a key differs from an option only by one letter, or by case and underscores. Another
    word is not similar: `model` is not `mode`.
    """
    plain, meant = (each.lower().replace("_", "") for each in (key, option))
    if plain == meant:
        return True
    if option in _SHORT_WORDS or key in _WORDS or abs(len(plain) - len(meant)) > 1:
        return False
    start = next((at for at, (a, b) in enumerate(zip(plain, meant, strict=False)) if a != b), None)
    if start is None:
        return True
    rest, other = plain[start:], meant[start:]
    return rest[1:] == other or rest == other[1:] or rest[1:] == other[1:]


@cache
def note_foreign_key(key: str, owner: str) -> None:
    """Log once that a metadata key has no effect on how a table is written or read."""
    _LOG.warning(
        "the metadata %r of %s is no option of the DeltaIOManager and changes nothing about its "
        "table; a key with a namespace, such as 'team/%s', is not looked at",
        key,
        owner,
        key,
    )


def _unknown_key(key: str, known: Mapping[str, str], owner: str) -> InvalidArgument:
    spellings = [NAMESPACE + each for each in known]
    close = difflib.get_close_matches(key, spellings, n=1)
    hint = f"did you mean {close[0]!r}?" if close else f"known are {', '.join(spellings)}"
    return InvalidArgument(f"the metadata of {owner} has the unknown key {key!r}; {hint}")


class _Reader:
    def __init__(self, options: Mapping[str, tuple[str, Any]], owner: str) -> None:
        self._options = options
        self._owner = owner

    def read(self, option: str, kind: ValueKind[T], default: T) -> T:
        if option not in self._options:
            return default
        key, value = self._options[option]
        parsed = kind.parse(value)
        if parsed is None:
            hint = EARLIER_MODES.get(str(value)) if option == "mode" else None
            raise InvalidArgument(
                f"{key!r} of {self._owner} is {value!r}, and takes {kind.expected}"
                f"{'' if hint is None else f': {hint}'}"
            )
        return parsed


_WRITE_MODE: ValueKind[WriteMode] = one_of(WriteMode)
_SCHEMA_MODE: ValueKind[SchemaMode] = one_of(SchemaMode)
_MERGE: ValueKind[MergeConfig | None] = ValueKind(
    "a MergeConfig, or a mapping like it", partial(parse_merge, MergeConfig)
)
_MERGE_OPERATIONS: ValueKind[MergeOperationsConfig | None] = ValueKind(
    "a MergeOperationsConfig, or a mapping like it", partial(parse_merge, MergeOperationsConfig)
)
