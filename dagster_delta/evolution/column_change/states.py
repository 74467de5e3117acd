"""The states of an online column change, each left by one commit of metadata.

    none -> prepared            the mark is set: from now on writers of this library fill the shadow
    prepared -> reorganising    older files are rewritten with the shadow
    reorganising -> public      the shadow replaces the column, and the mark is removed
    any -> none                 cancelled: the mark is removed, the column never changed for readers

Old versions stay readable: their files still have the old column.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace

import msgspec

from dagster_delta.errors import DeltaError, InvalidArgument, SchemaChangeRefused
from dagster_delta.evolution.column_paths import ColumnPath, change_field, dotted, find_place
from dagster_delta.evolution.default_values import check_default_values
from dagster_delta.evolution.dependants import CLUSTERING_DOMAIN, follow_column, is_mentioned
from dagster_delta.protocol.actions import AddFile, Metadata, Protocol
from dagster_delta.protocol.features.column_change import (
    COLUMN_CHANGE_KEY,
    ColumnChange,
    is_filled,
    published_schema,
    without_mark,
)
from dagster_delta.protocol.features.column_mapping import (
    ID_KEY,
    NESTED_IDS_KEY,
    PHYSICAL_NAME_KEY,
    physical_name,
)
from dagster_delta.protocol.features.column_values import DEFAULT_KEY
from dagster_delta.protocol.features.existing_defaults import EXISTING_DEFAULT_KEY
from dagster_delta.protocol.features.table_configuration import TableConfiguration
from dagster_delta.protocol.schema import ArrayType, DataType, MapType, StructField, StructType
from dagster_delta.sql.expressions import parse_expression

OWN_KEYS = (
    ID_KEY,
    PHYSICAL_NAME_KEY,
    NESTED_IDS_KEY,
    "delta.typeChanges",
    EXISTING_DEFAULT_KEY,
)
"""Field metadata that belongs to the physical column and is not copied to its successor."""

_MAX_COLUMN_ID = "delta.columnMapping.maxColumnId"


def dependent_conditions(
    configuration: TableConfiguration, path: ColumnPath
) -> Iterator[tuple[str, str]]:
    """Names and SQL of the CHECK constraints and invariants that use a column."""
    conditions = [(f"invariant {column}", sql) for column, sql in configuration.invariants]
    if configuration.supports("checkConstraints"):
        named = configuration.properties.constraints
        conditions += [(f"CHECK {name}", sql) for name, sql in named.items()]
    for name, sql in conditions:
        if is_mentioned(path, sql, configuration.schema):
            yield name, sql


def published_configuration(
    configuration: TableConfiguration, change: ColumnChange
) -> TableConfiguration:
    """Protocol and metadata in which the shadow replaces the column, without the mark.

    Comments and defaults that the column got during the change are copied to it.
    """
    schema = published_schema(configuration.schema, change)
    source = change.source(configuration.schema)
    assert source is not None  # noqa: S101  published_schema checks it
    said = {key: value for key, value in source.metadata.items() if key not in OWN_KEYS}
    own = {key: value for key, value in change.shadow.metadata.items() if key in OWN_KEYS}
    final = replace(change.shadow, name=source.name, metadata={**said, **own})
    final = _redefined(final, change)
    fields = tuple(final if field == change.shadow else field for field in schema)
    metadata = without_mark(configuration.metadata)
    if change.new_name is not None:
        new_path = (*change.path[:-1], change.new_name)
        properties = follow_column(
            TableConfiguration(configuration.protocol, metadata), change.path, new_path
        )
        metadata = msgspec.structs.replace(metadata, configuration=dict(properties))
    metadata = msgspec.structs.replace(metadata, schema_string=StructType(fields).to_json())
    return TableConfiguration(configuration.protocol, metadata)


def _redefined(column: StructField, change: ColumnChange) -> StructField:
    if change.new_name is None and not change.field_metadata:
        return column
    return change_field(
        StructType((column,)),
        change.path,
        lambda field: replace(
            field,
            name=change.new_name or field.name,
            metadata={
                key: value
                for key, value in {**field.metadata, **dict(change.field_metadata)}.items()
                if value is not None
            },
        ),
    ).fields[0]


def cancelled_configuration(configuration: TableConfiguration) -> TableConfiguration:
    """Protocol and metadata without the mark."""
    return TableConfiguration(configuration.protocol, without_mark(configuration.metadata))


def check_unaltered(configuration: TableConfiguration, change: ColumnChange) -> None:
    """Refuse to go on if the column no longer matches the shadow: it was altered or dropped, or got
    a new constraint.
    """
    found = _alteration(configuration, change) or _unfit_default(configuration, change)
    if found is not None:
        raise SchemaChangeRefused(
            f"column {dotted(change.path)} {found} while its type was being changed; cancel the "
            "change and begin it again",
            column=dotted(change.path),
        )


def refuse_altering_changing_column(
    current: TableConfiguration, planned: TableConfiguration
) -> None:
    """Make sure that a schema change does not touch a column in an online change."""
    change = ColumnChange.of(planned)
    if change is None:
        return
    is_other = _facets(change.source(current.schema)) != _facets(change.source(planned.schema))
    if is_other or _alteration(planned, change) is not None:
        raise SchemaChangeRefused(
            f"the type of column {dotted(change.path)} is being changed, and until that is "
            "finished the column cannot be changed in other ways; resume or cancel the change "
            "first",
            column=dotted(change.path),
        )


def _facets(source: StructField | None) -> tuple[object, ...]:
    if source is None:
        return ()
    said = {key: value for key, value in source.metadata.items() if key != "comment"}
    return source.name, source.data_type, source.nullable, said


def _unfit_default(configuration: TableConfiguration, change: ColumnChange) -> str | None:
    """Whether the column got a default during the change that does not fit the new type."""
    try:
        check_changed_default(configuration.schema, change)
    except SchemaChangeRefused as error:
        return f"got a default that does not go with the new type ({error.message})"
    return None


def check_changed_default(schema: StructType, change: ColumnChange) -> None:
    """Make sure that the column's default, if any, is a value of the new type."""
    source = change.source(schema)
    given = dict(change.field_metadata)
    default = None if source is None else source.metadata.get(DEFAULT_KEY)
    default = given.get(DEFAULT_KEY, default)
    if source is None or not isinstance(default, str):
        return
    after = StructField(source.name, change.shadow.data_type, metadata={DEFAULT_KEY: default})
    try:
        check_default_values([after])
    except InvalidArgument as error:
        raise SchemaChangeRefused(
            f"the default of {source.name} ({default}) is not compatible with the new type: "
            f"{error.message}; drop it first and add it again after the change",
            column=source.name,
        ) from error


def _alteration(configuration: TableConfiguration, change: ColumnChange) -> str | None:
    """How the column was altered since the change began; None if it was not."""
    source = change.source(configuration.schema)
    if source is None:
        return "was dropped or replaced"
    if source.name != change.path[0]:
        return f"was renamed to {source.name}"
    if not _same_but_for(source.data_type, change.shadow.data_type, change.path[1:]):
        return "was altered"
    if _name_is_taken(configuration.schema, change):
        return f"lost its new name, {change.new_name}, to another column"
    if change.cast is not None:
        try:
            _ = parse_expression(change.cast, configuration.schema).typed
        except DeltaError as error:
            return f"is converted by a cast that does not fit any more ({error.message})"
    known = {name for name, _ in change.checks}
    added = [
        name for name, _ in dependent_conditions(configuration, change.path) if name not in known
    ]
    return f"got {', '.join(added)}" if added else None


def _name_is_taken(schema: StructType, change: ColumnChange) -> bool:
    """Whether a sibling has the new name of the column; the column itself may have it."""
    if change.new_name is None or change.new_name.casefold() == change.path[-1].casefold():
        return False
    parent = find_place(schema, change.path[:-1]).data_type if change.path[1:] else schema
    return isinstance(parent, StructType) and parent.get(change.new_name) is not None


def _same_but_for(source: DataType, shadow: DataType, path: ColumnPath | None) -> bool:
    """Whether two types have the same fields, except the type at a path (None: no exception)."""
    below = path[1:] if path else None
    match source, shadow:
        case StructType(old), StructType(new):
            return [field.name for field in old] == [field.name for field in new] and all(
                _same_but_for(
                    one.data_type, other.data_type, below if path and path[0] == one.name else None
                )
                for one, other in zip(old, new, strict=True)
            )
        case ArrayType(one), ArrayType(other):
            return _same_but_for(one, other, below)
        case MapType(one_key, one), MapType(other_key, other):
            return _same_but_for(one_key, other_key, None) and _same_but_for(one, other, below)
        case _:
            return path == () or source == shadow


def published_clustering(
    configuration: TableConfiguration, change: ColumnChange, domains: Mapping[str, str]
) -> str | None:
    """The clustering domain with the shadow's physical names; None if it does not change."""
    text = domains.get(CLUSTERING_DOMAIN)
    source = change.source(configuration.schema)
    if not text or source is None:
        return None
    decoded = msgspec.json.decode(text)
    columns = decoded.get("clusteringColumns", [])
    decoded["clusteringColumns"] = [_moved(column, source, change.shadow) for column in columns]
    if decoded["clusteringColumns"] == columns:
        return None
    return msgspec.json.encode(decoded).decode()


def _moved(physical: list[str], source: StructField, shadow: StructField) -> list[str]:
    if physical[0] != physical_name(source):
        return physical
    moved, old, new = [physical_name(shadow)], source.data_type, shadow.data_type
    for step in physical[1:]:
        assert isinstance(old, StructType) and isinstance(new, StructType)  # noqa: S101, PT018
        position = [physical_name(field) for field in old].index(step)
        moved.append(physical_name(new.fields[position]))
        old, new = old.fields[position].data_type, new.fields[position].data_type
    return moved


def survives_column_change(mine: Metadata, concurrent: Metadata, adds: Iterable[AddFile]) -> bool:
    """Whether a write planned under one metadata may commit under another that differs only by a
    step of a column change for which the write is prepared.

    Before the beginning and after a cancellation, any file is allowed. At the end every file must
    hold the shadow, which readers use from then on.
    """
    running = mine.configuration.get(COLUMN_CHANGE_KEY)
    if COLUMN_CHANGE_KEY in concurrent.configuration:
        return running is None and _without_ids(without_mark(concurrent)) == _without_ids(mine)
    if running is None:
        return False
    if concurrent == without_mark(mine):
        return True
    change = msgspec.json.decode(running, type=ColumnChange)
    if not all(is_filled(add.tags, change.id) for add in adds):
        return False
    return concurrent == _published_metadata(mine, change)


def _published_metadata(metadata: Metadata, change: ColumnChange) -> Metadata | None:
    # The protocol does not affect the new metadata.
    configuration = TableConfiguration(
        Protocol(min_reader_version=1, min_writer_version=2), metadata
    )
    if change.source(configuration.schema) is None:
        return None
    return published_configuration(configuration, change).metadata


def _without_ids(metadata: Metadata) -> Metadata:
    kept = {key: value for key, value in metadata.configuration.items() if key != _MAX_COLUMN_ID}
    return msgspec.structs.replace(metadata, configuration=kept)
