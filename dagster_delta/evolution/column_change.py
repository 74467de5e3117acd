"""The online change of a column to any type: its states.

| From | Commit | To | What holds then |
|---|---|---|---|
| none | begin: sets the mark | changing | writers of this library fill the shadow column too |
| changing | batch: rewrites files with the shadow | changing | readers see the old column |
| changing | publish, once every live file has the shadow | none | readers see the new column |
| changing | cancel: removes the mark | none | the column never changed |

The mark, a table property, and the tags of data files are all that a process needs to go on: see
`protocol.features.column_change`. Old versions stay readable, as their files have the old column.
`column_change_request` is what a caller asks for, `column_change_plan` the beginning.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from msgspec.structs import replace

from dagster_delta.errors import DeltaError, InvalidArgument, SchemaChangeRefused
from dagster_delta.evolution.column_paths import (
    ColumnPath,
    change_field,
    change_type_at,
    dotted,
    find_place,
)
from dagster_delta.evolution.dependants import (
    CLUSTERING_DOMAIN,
    clustering_columns,
    clustering_domain,
    declared_conditions,
    follow_column,
    is_mentioned,
)
from dagster_delta.evolution.properties import MAX_COLUMN_ID_KEY
from dagster_delta.evolution.value_engine import ValueEngine
from dagster_delta.protocol.actions import AddFile, DomainMetadata, Metadata, Protocol
from dagster_delta.protocol.features.column_change import (
    COLUMN_CHANGE_KEY,
    ColumnChange,
    is_filled,
    published_schema,
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
from dagster_delta.protocol.features.type_widening import TYPE_CHANGES_KEY
from dagster_delta.protocol.schema import (
    StructField,
    StructType,
    fold_name,
)
from dagster_delta.sql.expressions import parse_expression

_OWN_KEYS = (ID_KEY, PHYSICAL_NAME_KEY, NESTED_IDS_KEY, TYPE_CHANGES_KEY, EXISTING_DEFAULT_KEY)
"""Field metadata that belongs to the physical column and is not copied to its successor."""


def refuse_altering_changing_column(
    current: TableConfiguration, planned: TableConfiguration
) -> None:
    """Make sure that a schema change does not touch a column in an online change."""
    change = ColumnChange.of(planned)
    if change is None:
        return
    old, new = (change.source(table.schema) for table in (current, planned))
    is_other = (old and old.without("comment")) != (new and new.without("comment"))
    if is_other or _describe_alteration(planned, change) is not None:
        raise SchemaChangeRefused(
            f"the type of column {dotted(change.path)} is being changed, and until that is "
            "finished the column cannot be changed in other ways; resume or cancel the change "
            "first",
            column=dotted(change.path),
        )


def check_unaltered(
    configuration: TableConfiguration, change: ColumnChange, values: ValueEngine
) -> None:
    """Refuse to go on if another writer altered the column so that the shadow no longer fits it:
    it was dropped or retyped, or got a new constraint or default.
    """
    found = _describe_alteration(configuration, change)
    if found is None:
        try:
            check_changed_default(configuration.schema, change, values)
        except SchemaChangeRefused as error:
            found = f"got a default that does not go with the new type ({error.message})"
    if found is not None:
        raise SchemaChangeRefused(
            f"column {dotted(change.path)} {found} while its type was being changed; cancel the "
            "change and begin it again",
            column=dotted(change.path),
        )


def _describe_alteration(configuration: TableConfiguration, change: ColumnChange) -> str | None:
    """How the column was altered since the change began; None if it was not."""
    schema, path, name = configuration.schema, change.path, change.new_name
    source = change.source(schema)
    if source is None:
        return "was dropped or replaced"
    if source.name != path[0]:
        return f"was renamed to {source.name}"
    retyped = change_type_at(StructType((source,)), path, lambda _: change.target_type())
    if str(retyped) != str(StructType((change.shadow,))):
        return "was altered"
    if name is not None and fold_name(name) != fold_name(path[-1]):
        parent = find_place(schema, path[:-1]).data_type if path[1:] else schema
        if isinstance(parent, StructType) and parent.get(name) is not None:
            return f"lost its new name, {name}, to another column"
    if change.cast is not None:
        try:
            _ = parse_expression(change.cast, schema).typed
        except DeltaError as error:
            return f"is converted by a cast that does not fit any more ({error.message})"
    known = dict(change.checks)
    added = [name for name, _ in conditions_on(configuration, path) if name not in known]
    return f"got {', '.join(added)}" if added else None


def survives_column_change(mine: Metadata, concurrent: Metadata, adds: Iterable[AddFile]) -> bool:
    """Whether a write planned under one metadata may commit under another that differs only by a
    step of a column change for which the write is prepared.

    Before the beginning and after a cancellation, any file is allowed. At the end every file must
    hold the shadow, which readers use from then on.
    """
    if COLUMN_CHANGE_KEY in concurrent.configuration:
        began = COLUMN_CHANGE_KEY not in mine.configuration
        unmarked = concurrent.without(COLUMN_CHANGE_KEY, MAX_COLUMN_ID_KEY)
        return began and unmarked == mine.without(MAX_COLUMN_ID_KEY)
    if concurrent == mine.without(COLUMN_CHANGE_KEY):
        return True
    # The protocol does not affect the new metadata.
    old = TableConfiguration(Protocol(min_reader_version=1, min_writer_version=2), mine)
    change = ColumnChange.of(old)
    if change is None or change.source(old.schema) is None:
        return False
    is_prepared = all(is_filled(add.tags, change.id) for add in adds)
    return is_prepared and concurrent == published_configuration(old, change).metadata


def conditions_on(configuration: TableConfiguration, path: ColumnPath) -> Iterator[tuple[str, str]]:
    """Names and SQL of the CHECK constraints and invariants that use a column."""
    for name, sql in declared_conditions(configuration):
        if is_mentioned(path, sql, configuration.schema):
            yield name, sql


def check_changed_default(schema: StructType, change: ColumnChange, values: ValueEngine) -> None:
    """Make sure that the column's default, if any, is a value of the new type."""
    source = change.source(schema)
    assert source is not None  # noqa: S101  the caller has found it
    default = {**source.metadata, **dict(change.field_metadata)}.get(DEFAULT_KEY)
    if not isinstance(default, str):
        return
    after = StructField(source.name, change.shadow.data_type, metadata={DEFAULT_KEY: default})
    try:
        values.check_default(after)
    except InvalidArgument as error:
        raise SchemaChangeRefused(
            f"the default of {source.name} ({default}) is not compatible with the new type: "
            f"{error.message}; drop it first and add it again after the change",
            column=source.name,
        ) from error


def published_configuration(
    configuration: TableConfiguration, change: ColumnChange
) -> TableConfiguration:
    """Protocol and metadata in which the shadow replaces the column, without the mark.

    Comments and defaults that the column got during the change are copied to it.
    """
    schema = published_schema(configuration.schema, change)
    source = change.source(configuration.schema)
    assert source is not None  # noqa: S101  published_schema checks it
    kept = {**metadata_of(source, own=False), **metadata_of(change.shadow, own=True)}
    schema = change_field(schema, change.path[:1], lambda field: replace(field, metadata=kept))
    published = cancelled_configuration(configuration)
    if change.new_name is not None or change.field_metadata:
        schema = change_field(schema, change.path, lambda field: _redefine_field(field, change))
    if change.new_name is not None:
        new_path = (*change.path[:-1], change.new_name)
        published = follow_column(published, change.path, new_path)
    return published.with_schema(schema)


def _redefine_field(field: StructField, change: ColumnChange) -> StructField:
    metadata = {**field.metadata, **dict(change.field_metadata)}
    kept = {key: value for key, value in metadata.items() if value is not None}
    return replace(field, name=change.new_name or field.name, metadata=kept)


def published_clustering(
    configuration: TableConfiguration, change: ColumnChange, domains: Mapping[str, DomainMetadata]
) -> DomainMetadata | None:
    """The clustering domain with the shadow's physical names; None if it does not change."""
    source, domain = change.source(configuration.schema), domains.get(CLUSTERING_DOMAIN)
    if source is None or domain is None or physical_name(source) not in domain.configuration:
        return None
    columns = clustering_columns(configuration, domains)
    schema = published_schema(configuration.schema, change, moves=False)
    return clustering_domain(map(physical_name, schema.fields_along(path)) for path in columns)


def cancelled_configuration(configuration: TableConfiguration) -> TableConfiguration:
    """Protocol and metadata without the mark."""
    return TableConfiguration(
        configuration.protocol, configuration.metadata.without(COLUMN_CHANGE_KEY)
    )


def metadata_of(field: StructField, *, own: bool) -> dict[str, object]:
    """The metadata of the physical column, or all other metadata."""
    return {key: value for key, value in field.metadata.items() if (key in _OWN_KEYS) is own}
