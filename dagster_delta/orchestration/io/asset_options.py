"""Storage options of an asset, parsed once from its metadata and the IO manager's configuration.

Metadata on the asset (or on an op's `Out`) overrides the configuration of the IO manager. Metadata
that the asset puts on its output while it runs is not an option, except for that of a merge. A key
may be plain (`partition_expr`), or in this library's namespace (`delta/partition_expr`). A key that
is similar to an option, or the name that another integration has for it, is an error, so that
typos are noticed.
"""

from __future__ import annotations

import dataclasses
import logging
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from datetime import timedelta
from functools import cache
from typing import Annotated, Any, Literal, Self, TypeAlias, TypeVar, get_args

import msgspec
from dagster import AssetKey, AssetsDefinition, AssetSpec, SourceAsset
from pydantic import BeforeValidator, Field, TypeAdapter, ValidationError

from dagster_delta.errors import InvalidArgument
from dagster_delta.nearest_name import misspelled_name, nearest_name
from dagster_delta.orchestration.io.audits import Audit, audits_of
from dagster_delta.orchestration.io.merge_config import (
    MergeConfig,
    MergeOperationsConfig,
    MergeType,
    find_problem,
)
from dagster_delta.orchestration.metadata_keys import QUERY_KEY
from dagster_delta.storage import resolve_variable
from dagster_delta.table.operations.expectations import Expectation, check_expectations
from dagster_delta.table.programs import known_readers
from dagster_delta.table.spelling import parse_age

WriteMode = Literal[
    "append", "overwrite", "replace_using", "replace_on", "merge", "error", "ignore"
]
SchemaMode = Literal["strict", "widen", "merge", "overwrite"]

NAMESPACE = "delta/"
DEFAULT_SCHEMA = "public"

_OF_OTHERS = (
    "commit_properties delta_merge_options delta_write_options overwrite_schema partition_column "
    "partition_columns partition_expression root_name schema_update_mode storage_options "
    "table_config table_configuration upsert_options write_mode writer_properties"
)
"""Options of earlier releases and other integrations, which have other names here."""

_OF_OTHER_INPUTS = (
    "filter filters partition_expr predicate row_filter schema selected_fields snapshot_id "
    "table_name table_version timestamp timestampAsOf versionAsOf"
)
"""The same for the metadata of an input."""

_LONGEST_RETENTION = timedelta(days=365_000)

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


def check_choice(owner: str, option: str, value: object, choices: object) -> None:
    """Refuse a value that is none of those of a `Literal`: it would silently mean one of them."""
    if value not in get_args(choices):
        allowed = ", ".join(map(repr, get_args(choices)))
        raise InvalidArgument(f"the {option} of {owner} is one of {allowed}, not {value!r}")


def check_keys(owner: str, mode: str, keys: Sequence[str]) -> None:
    """Refuse a merge without keys, and keys in a mode that does not identify rows by them."""
    if (mode == "merge") != bool(keys):
        takes = "keys: the columns that identify its rows" if mode == "merge" else "no keys"
        raise InvalidArgument(f"{owner} with mode {mode!r} takes {takes}")


def names_of(names: str | Collection[str] | None) -> tuple[str, ...]:
    """Names of columns and the like, which may be given as one text."""
    return (names,) if isinstance(names, str) else tuple(names or ())


def _to_names(value: object) -> object:
    """One name as a list of names; keys of assets as `a/b`."""
    names = [value] if isinstance(value, str | AssetKey) else value
    if not isinstance(names, list | tuple):
        return names
    return [name.to_user_string() if isinstance(name, AssetKey) else name for name in names]


def _as_strings(value: object) -> object:
    """Table properties are strings, and their booleans are lower case."""
    if not isinstance(value, Mapping):
        return value
    return {
        str(key): str(item).lower() if isinstance(item, bool) else str(item)
        for key, item in value.items()
    }


def _no_truth(value: object) -> object:
    """True is not a number of rows or commits."""
    return repr(value) if isinstance(value, bool) else value


def _to_texts(value: object) -> object:
    """One value or several as texts, as partition keys are."""
    values = value if isinstance(value, list | tuple) else [value]
    if not values or any(item is None for item in values):
        return None
    return [str(item).lower() if isinstance(item, bool) else str(item) for item in values]


def _to_expectations(value: object) -> tuple[Expectation, ...]:
    """Expectations, which metadata in YAML has as mappings; each has the name of an asset check."""
    items: Sequence[Any] = value if isinstance(value, list | tuple) else [value]
    keys = {field.name for field in msgspec.structs.fields(Expectation)}
    found: list[Any] = []
    for item in items:
        known = item
        if isinstance(item, Mapping):
            if set(item) - keys or {"name", "condition"} - set(item):
                raise ValueError("an expectation has name, condition and, if needed, on_violation")
            known = Expectation(**item)
        found.append(known)
    for known in check_expectations(found):
        if not re.fullmatch(r"\w+", known.name, re.ASCII):
            raise ValueError(
                f"the name {known.name!r} is that of an asset check too: use letters, digits and "
                "underscores"
            )
    return tuple(found)


def _to_retention(value: object) -> object:
    """The rules of retention, which are a mapping in metadata."""
    if not isinstance(value, Mapping):
        return value
    if set(value) - {one.name for one in fields(Retention)}:
        raise ValueError("retention has column with older_than, deleted_partitions, or both")
    return Retention(**value)


def _to_audits(value: object) -> tuple[Audit, ...]:
    items: Sequence[Any] = value if isinstance(value, list | tuple) else [value]
    return audits_of(items)


_Count = Annotated[int, BeforeValidator(_no_truth)]
_Names = Annotated[tuple[str, ...], BeforeValidator(_to_names)]
_Values = Annotated[tuple[str, ...], BeforeValidator(_to_texts)]
_Strings = Annotated[Mapping[str, str], BeforeValidator(_as_strings)]


@dataclass(frozen=True, slots=True)
class Retention:
    """Which rows of an asset's table maintenance may delete."""

    column: str | None = None
    """Column of type date, timestamp or timestamp_ntz."""
    older_than: str | None = None
    """Age from which rows go, by their value of the column: `90 days`."""
    deleted_partitions: bool = False
    """Whether rows go whose key Dagster no longer has among its dynamic partitions."""

    def __post_init__(self) -> None:
        if (self.column is None) != (self.older_than is None):
            raise ValueError("retention has both column and older_than, or none of them")
        if self.older_than is not None:
            if not timedelta() < parse_age(self.older_than) <= _LONGEST_RETENTION:
                raise ValueError("older_than is longer than nothing, and at most 1,000 years")
        elif self.deleted_partitions is not True:
            raise ValueError("retention has column with older_than, deleted_partitions, or both")


@dataclass(frozen=True, slots=True)
class AssetOptions:
    """Where and how one asset is stored."""

    mode: WriteMode = "overwrite"
    schema_mode: SchemaMode = "strict"
    schema: str | None = None
    """Directory between the root and the table; None: the asset's key prefix, else `public`."""
    table_name: str | None = None
    """Name of the table's directory; None: the last part of the asset key."""
    table: Annotated[str, Field(min_length=1)] | None = None
    """Name of the table in the catalog, as `catalog.schema.table`; None: by the schema and the
    asset key."""
    location: Annotated[str, Field(min_length=1)] | None = None
    """Location of a new table of the catalog, which then does not manage it."""
    partition_expr: Annotated[str, Field(min_length=1)] | Mapping[str, str] | None = None
    """Column that holds the Dagster partition, or one per dimension."""
    partition_by: _Names | None = None
    """Physical partition columns of a new table; None: the columns of `partition_expr` with one
    value per Dagster partition. Empty: not partitioned."""
    cluster_by: _Names | None = None
    """Columns by which OPTIMIZE clusters the rows of a new table, instead of partition columns."""
    sort_by: _Names | None = None
    """Columns by which the rows of each file are sorted."""
    table_properties: _Strings = field(default_factory=dict)
    """Table properties of a new table."""
    readers: _Names | None = None
    """Other programs that read the table: a change after which one of them gives wrong rows without
    an error is refused. None: those that the table names."""
    custom_metadata: _Strings = field(default_factory=dict)
    """Added to the commitInfo of every commit."""
    merge_config: MergeConfig | None = None
    """Configuration of the mode `merge`."""
    replace_using: _Names | None = None
    """Columns for the mode `replace_using`: rows of the table that equal a new row in them are
    replaced."""
    replace_on: str | None = None
    """Spark SQL over the table `t` and the new rows `s` for the mode `replace_on`: rows of the
    table that satisfy it with a new row are replaced."""
    expectations: Annotated[tuple[Any, ...], BeforeValidator(_to_expectations)] = ()
    """What is expected of the rows, each an `Expectation`; in YAML a mapping of its fields."""
    audits: Annotated[tuple[Any, ...], BeforeValidator(_to_audits)] = ()
    """What judges the rows and the table before the commit: functions, or `Audit`s."""
    retention: Annotated[Retention | None, BeforeValidator(_to_retention)] = None
    """Which rows maintenance may delete, in metadata a mapping of the fields of `Retention`."""
    show_history: Annotated[_Count, Field(ge=0)] = 0
    """Number of latest commits that every materialization shows; it reads one file per commit."""
    update_descriptions: bool = False
    """Whether each write makes the description of the table and the comments of its columns those
    of the asset, the columns by its metadata `dagster/column_schema`. New tables have the first in
    any case."""
    sample_rows: Annotated[_Count, Field(ge=0, le=100)] = 0
    """Number of written rows that every materialization shows, 100 at most."""
    column_statistics: bool = False
    """Whether every materialization shows what the log knows of each column's values."""
    masked_columns: _Names = ()
    """Columns whose values are hidden in sample rows, statistics and failing rows of checks."""
    renamed_from: _Names = ()
    """Earlier keys of the asset, as `a/b`: its table may belong to one of them."""
    shared_table: bool = False
    """Whether several assets write the table intentionally."""
    owned_rows: Mapping[str, _Values] | None = None
    """The rows of a shared table that the asset owns: by column, the value or the values that they
    have. Empty: every row, of its partitions if it has some."""

    def with_values(self, **values: Any) -> Self:
        """The options with some of them replaced."""
        return dataclasses.replace(self, **values)

    def table_uri(self, root_uri: str, asset_key: AssetKey | None, output_name: str) -> str:
        """`<root>/<schema>/<table>`, the same location as in earlier Delta IO managers. An empty
        root, which would mean the root of the file system, is refused.
        """
        if not root_uri.strip():
            raise InvalidArgument(
                "root_uri of the DeltaIOManager is empty: set it to the location that holds the "
                "tables, and the environment variable that it comes from, if it does"
            )
        root = resolve_variable(root_uri).rstrip("/")
        schema, table = self.table_path(asset_key, output_name)
        return f"{root}/{schema}/{table}" if schema else f"{root}/{table}"

    def check_no_catalog(self, *, asset: str) -> None:
        """Refuse the options of a table in a catalog, for an IO manager without one."""
        for option in ("table", "location"):
            if getattr(self, option) is not None:
                raise InvalidArgument(
                    f"asset {asset} has the metadata {option}, and its DeltaIOManager has no "
                    "catalog: give it one, or name the table by schema and table_name below "
                    f"root_uri. If it is a note of your own, write it as 'team/{option}'"
                )

    def catalog_name(self, name_parts: int, asset_key: AssetKey | None, output_name: str) -> str:
        """Name of the table in a catalog: the option `table`; else the schema and the name of the
        asset; else the last parts of the asset key.

        Args:
            name_parts: number of parts of a name in the catalog.
            asset_key: of the asset; None for the output of an op.
            output_name: names what is stored in errors.

        Raises:
            InvalidArgument: parts of the name are missing.
        """
        path = [""] if asset_key is None else asset_key.path
        last = self.table_name or path[-1]
        if self.table is not None:
            parts = self.table.split(".")
        elif not last:
            raise InvalidArgument(
                f"{output_name} is the value of an op, which has no table of its own in a catalog: "
                "name one by table in the metadata of its Out, or give it another IO manager"
            )
        else:
            above = self.schema.split(".") if self.schema else path[:-1]
            # More of a key is a prefix; more of a schema is a mistake.
            parts = [*(above if self.schema else above[1 - name_parts :]), last]
        if len(parts) != name_parts or not all(parts) or "." in last:
            full = "catalog.schema.table" if name_parts == 3 else "database.table"
            raise InvalidArgument(
                f"the table of {output_name} is {'.'.join(parts)!r}, and a name in the catalog has "
                f"{name_parts} parts ({full}): write it in the metadata table, give the asset a "
                f"key of {name_parts} parts, or the DeltaIOManager the first of them as its schema"
            )
        return ".".join(parts)

    def qualified_name(self, asset_key: AssetKey | None, output_name: str) -> str:
        """`schema.table`, or only the name of the table if the schema is empty."""
        return ".".join(filter(None, self.table_path(asset_key, output_name)))

    def table_path(self, asset_key: AssetKey | None, output_name: str) -> tuple[str, str]:
        """Schema (empty for none) and name of the table."""
        path = asset_key.path if asset_key is not None else [output_name]
        schema = self.schema
        if schema is None:
            schema = path[-2] if len(path) > 1 else DEFAULT_SCHEMA
        name = self.table_name or path[-1]
        # Before a run, an EnvVar cannot be formatted; its methods return its name.
        if ".." in (*schema.split("/"), *name.split("/")):
            raise InvalidArgument(
                f"the table {schema}/{name} of {'/'.join(path)} is not below root_uri: write "
                "schema and table_name without '..'"
            )
        return schema, name


@dataclass(frozen=True, slots=True)
class _AssetMetadata(AssetOptions):
    """The options, and the keys that replace parts of one of them."""

    merge_predicate: str | None = None
    merge_operations_config: MergeOperationsConfig | None = None


@dataclass(frozen=True, slots=True)
class InputOptions:
    """Read options of one input, from the metadata of its `AssetIn` or `In`."""

    columns: _Names | None = None
    where: str | None = None
    """Spark SQL that the rows satisfy."""
    version: Annotated[_Count, Field(ge=0)] | None = None
    """Version to read; None: the latest."""


ASSET_KEYS = frozenset(option.name for option in fields(_AssetMetadata))
INPUT_KEYS = frozenset(option.name for option in fields(InputOptions))
_MERGE = ("merge_config", "merge_predicate", "merge_operations_config")
MERGE_KEYS = frozenset(prefix + key for key in _MERGE for prefix in ("", NAMESPACE))
"""Metadata of a merge, which a run may also put on its output."""
_ASSET_METADATA = TypeAdapter(_AssetMetadata)
_INPUT_METADATA = TypeAdapter(InputOptions)


def read_asset_options(
    metadata: Mapping[str, object], defaults: AssetOptions, *, asset: str
) -> AssetOptions:
    """The options of one asset: its metadata over the defaults."""
    owner = f"asset {asset}"
    found = _find_options(metadata, ASSET_KEYS, _OF_OTHERS, owner)
    parsed = _parse_options(_ASSET_METADATA, found, owner)
    if parsed.readers is not None:
        known_readers(parsed.readers)
    given: dict[str, Any] = {
        option.name: getattr(parsed, option.name)
        for option in fields(AssetOptions)
        if option.name in found
    }
    for name in {"table_properties", "custom_metadata"} & given.keys():
        given[name] = {**getattr(defaults, name), **given[name]}
    merge = {
        "predicate": parsed.merge_predicate,
        "merge_operations_config": parsed.merge_operations_config,
    }
    if replaced := {name: value for name, value in merge.items() if value is not None}:
        config = parsed.merge_config or defaults.merge_config or MergeConfig()
        given["merge_config"] = config.model_copy(update=replaced)
    options = defaults.with_values(**given)
    names = {known.name for known in options.expectations}
    if both := names.intersection(audit.check_name for audit in options.audits):
        raise InvalidArgument(
            f"{owner} has an expectation and an audit of the name {min(both)!r}, which is that of "
            "one asset check"
        )
    return options


def read_input_options(metadata: Mapping[str, object], owner: str) -> InputOptions:
    """The options of one input; `owner` names it in errors."""
    found = _find_options(metadata, INPUT_KEYS, _OF_OTHER_INPUTS, owner)
    return _parse_options(_INPUT_METADATA, found, owner)


def check_merge(options: AssetOptions, metadata: Iterable[str], *, asset: str) -> None:
    """Refuse merge metadata on an asset with another mode, which would replace its table, and
    options that a merge cannot follow.
    """
    config, unused = options.merge_config or MergeConfig(), MERGE_KEYS.intersection(metadata)
    if options.mode != "merge":
        if unused:
            raise InvalidArgument(
                f"the metadata of asset {asset} has {min(unused)!r}, and its mode is "
                f"{options.mode!r}, which does not merge: set 'mode': 'merge', or leave "
                f"{min(unused)!r} out"
            )
        return
    problem = find_problem(config, asset=asset)
    if problem is None and options.schema_mode == "overwrite":
        problem = (
            "its schema_mode overwrite would drop columns of existing rows: use schema_mode merge "
            "or strict"
        )
    elif problem is None and options.sort_by:
        problem = "a merge does not support sort_by: omit it, and Z-order the table with OPTIMIZE"
    if problem is not None:
        raise InvalidArgument(f"{asset} has mode merge, and {problem}")


def check_mode(options: AssetOptions, metadata: Collection[str], *, asset: str) -> None:
    """Refuse options that the mode of an asset cannot follow, and a mode without its options."""
    check_merge(options, metadata, asset=asset)
    for mode, example in (("replace_using", ["day", "shop"]), ("replace_on", "t.day <=> s.day")):
        is_given = bool(getattr(options, mode))
        if is_given != (options.mode == mode):
            problem = f"has the metadata {mode}, and its mode is {options.mode!r}"
            if not is_given:
                problem = f"has the mode {mode!r}, and does not say which rows are replaced"
            raise InvalidArgument(
                f"asset {asset} {problem}: its metadata are "
                f"{{'mode': {mode!r}, {mode!r}: {example!r}}}, both or none of them"
            )
    if options.mode.startswith("replace_") and options.schema_mode == "overwrite":
        raise InvalidArgument(
            f"{asset} has mode {options.mode}, and its schema_mode overwrite would drop columns of "
            "existing rows: use schema_mode merge or strict"
        )


def check_shared(options: AssetOptions, *, asset: str) -> None:
    """Refuse to replace or delete rows of a shared table without knowing which are the asset's."""
    config = options.merge_config or MergeConfig()
    deletes = config.merge_type is MergeType.replace_delete_unmatched or any(
        clauses and name.startswith("when_not_matched_by_source")
        for name, clauses in config.merge_operations_config or ()
    )
    removes = options.mode in ("overwrite", "replace_using", "replace_on")
    removes = removes or (options.mode == "merge" and deletes)
    if options.shared_table and removes and options.owned_rows is None:
        raise InvalidArgument(
            f"asset {asset} shares its table, and its run replaces or deletes rows, which may be "
            "of the other assets: name its own in the metadata owned_rows, such as "
            "{'source': 'web'}; owned_rows = {} means that each row, of its partitions if it has "
            "some, is its own"
        )


def _find_options(
    metadata: Mapping[str, object], known: frozenset[str], foreign: str, owner: str
) -> dict[str, object]:
    """Option name to its plain value; refuses keys that resemble an option."""
    plain = {
        key.removeprefix(NAMESPACE): resolve_variable(getattr(raw, "value", raw))
        for key, raw in metadata.items()
    }
    found = {key: value for key, value in plain.items() if key in known and value is not None}
    for key in metadata:
        name = key.removeprefix(NAMESPACE)
        if name in known or key == QUERY_KEY or ("/" in name):
            continue
        meant = misspelled_name(name, known)
        if name == "where":
            hint = "it is an option of an input: put it into the metadata of its AssetIn."
        elif name in foreign.split():
            hint = "docs/migration.md says what takes its place."
        elif key.startswith(NAMESPACE):
            near = nearest_name(name, known)
            hint = f"did you mean {near!r}?" if near else f"it takes {', '.join(sorted(known))}."
        elif meant and meant not in found and not _is_another_word(name, meant):
            hint = f"did you mean {meant!r}?"
        else:
            note_foreign_key(key, owner)
            continue
        raise InvalidArgument(
            f"the metadata of {owner} has the key {key!r}, which is not an option: {hint} If it is "
            f"a note of your own, give it a namespace, as in 'team/{name}'"
        )
    return found


def _is_another_word(name: str, option: str) -> bool:
    """Whether a key goes on where a short option ends, as `model` and `schemas` do, or is only the
    first word of one, as `partition` is; `stable` is no `table`.
    """
    is_longer = len(option) < 7 and (name.startswith(option) or name == "stable")
    return is_longer or (option.startswith(name) and len(option) > len(name) + 1)


def _parse_options(kind: TypeAdapter[T], found: Mapping[str, object], owner: str) -> T:
    try:
        return kind.validate_python(found)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        key = ".".join(str(step) for step in first["loc"] if isinstance(step, str | int))
        raise InvalidArgument(f"{key!r} of {owner} is {first['input']!r}: {first['msg']}") from None


@cache
def note_foreign_key(key: str, owner: str) -> None:
    """Log once that a metadata key has no effect on how a table is written or read."""
    _LOG.warning(
        "the metadata %r of %s is not an option of the DeltaIOManager and changes nothing about "
        "its table; a key with a namespace, such as 'team/%s', is not looked at",
        key,
        owner,
        key,
    )
