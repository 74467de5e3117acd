"""The online change of a column to any type: its request, its plan, and its states.

| From | Commit | To | What holds then |
|---|---|---|---|
| none | begin: sets the mark | changing | writers of this library fill the shadow column too |
| changing | batch: rewrites files with the shadow | changing | readers see the old column |
| changing | publish, once every live file has the shadow | none | readers see the new column |
| changing | cancel: removes the mark | none | the column never changed |

The mark, a table property, and the tags of data files are all that a process needs to go on: see
`protocol.features.column_change`. Old versions stay readable, as their files have the old column.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TypeVar, cast

import msgspec
from msgspec.structs import replace

from dagster_delta.errors import DeltaError, InvalidArgument, SchemaChangeRefused
from dagster_delta.evolution import actions
from dagster_delta.evolution.column_paths import (
    ColumnPath,
    Place,
    change_field,
    change_type_at,
    dotted,
    find_place,
    is_reached_through_structs,
    not_null_sql,
    with_nullability,
)
from dagster_delta.evolution.dependants import (
    CLUSTERING_DOMAIN,
    clustering_columns,
    clustering_domain,
    declared_conditions,
    follow_column,
    is_identity,
    is_mentioned,
)
from dagster_delta.evolution.plan import ColumnChangePlan, PlannedStep, SchemaDraft
from dagster_delta.evolution.plan_report import MissingSwitch
from dagster_delta.evolution.properties import MAX_COLUMN_ID_KEY, column_names
from dagster_delta.evolution.value_engine import ValueEngine
from dagster_delta.protocol.actions import AddFile, DomainMetadata, Metadata, Protocol
from dagster_delta.protocol.features.column_change import (
    COLUMN_CHANGE_KEY,
    COLUMN_CHANGE_SWITCH,
    ColumnChange,
    OnError,
    is_filled,
    published_schema,
)
from dagster_delta.protocol.features.column_mapping import (
    ID_KEY,
    NESTED_IDS_KEY,
    PHYSICAL_NAME_KEY,
    assign_column_mapping,
    field_id,
    map_fields,
    physical_name,
)
from dagster_delta.protocol.features.column_values import DEFAULT_KEY, GENERATION_KEY
from dagster_delta.protocol.features.existing_defaults import EXISTING_DEFAULT_KEY
from dagster_delta.protocol.features.table_configuration import TableConfiguration
from dagster_delta.protocol.features.type_widening import TYPE_CHANGES_KEY, is_widening
from dagster_delta.protocol.schema import (
    DataType,
    MapType,
    StructField,
    StructType,
    fold_name,
    walk_fields,
)
from dagster_delta.sql.expressions import parse_expression
from dagster_delta.sql.typed import quote
from dagster_delta.sql.types import VOID, is_primitive, sql_type_name

_OWN_KEYS = (ID_KEY, PHYSICAL_NAME_KEY, NESTED_IDS_KEY, TYPE_CHANGES_KEY, EXISTING_DEFAULT_KEY)
"""Field metadata that belongs to the physical column and is not copied to its successor."""
_REDEFINING = (
    actions.SetNullable,
    actions.SetDefault,
    actions.SetComment,
    actions.MoveColumn,
    actions.RenameColumn,
)
_Action = TypeVar("_Action", bound=actions.SchemaAction)
_DEPLOYMENT_SWITCH = "enable_column_change"
_DEPLOYMENT_REMEDY = (
    "set enable_column_change to true on the resource that opens the table (for a table that a job "
    "names by location: pass enable_column_change=True to delta_schema_change_job; for a handle: "
    "pass allow_column_changes=True to DeltaTable)"
)


class ColumnChangeRequest(msgspec.Struct, frozen=True):
    """The request of a caller."""

    column: ColumnPath
    """Path of the column, or of a field, `element` or `value` in it."""
    new_type: DataType
    """Any atomic type."""
    cast: str | None = None
    """Spark SQL over the row for the new value of a top-level column; None: CAST."""
    on_error: OnError = "abort"
    enable_features: bool = False
    """Whether missing features and properties may be turned on for the change."""
    is_allowed: bool = True
    """Whether the table handle allows online column changes."""
    redefinitions: tuple[actions.SchemaAction, ...] = ()
    """What else the change does to the column, in the same commit: whether it may be null, its
    default, its comment, its position, and last its name."""

    def last(self, kind: type[_Action]) -> _Action | None:
        """The last redefinition of a kind."""
        found = (action for action in reversed(self.redefinitions) if isinstance(action, kind))
        return next(found, None)


# Begin


def plan_column_change(
    configuration: TableConfiguration,
    request: ColumnChangeRequest,
    *,
    change_id: str,
    values: ValueEngine,
    dry_run: bool = False,
) -> ColumnChangePlan:
    """The plan of a change, checked against everything that depends on the column. `change_id` is
    unique among all changes. A dry run lists switches that are off, instead of refusing.
    """
    running = ColumnChange.of(configuration)
    if running is not None:
        raise SchemaChangeRefused(
            f"column {dotted(running.path)} is being changed to "
            f"{sql_type_name(running.target_type())} already; resume that change, or cancel it "
            "first",
            column=dotted(running.path),
        )
    place = find_place(configuration.schema, request.column)
    _check_types(place, request)
    _check_request(request, place, configuration.schema)
    _refuse_bound_column(configuration, place.path)
    draft = SchemaDraft(configuration, enable_features=request.enable_features, dry_run=dry_run)
    _switch_on(draft, request)
    enabled, field_metadata = _redefinition(draft, request, place)
    source = enabled.schema.field(place.path[0])
    shadow, highest = _shadow(enabled, place.path, request)
    source_id = field_id(source)
    assert source_id is not None  # noqa: S101  every column of a mapped table has one
    moved, renamed = request.last(actions.MoveColumn), request.last(actions.RenameColumn)
    change = ColumnChange(
        id=change_id,
        path=place.path,
        source_id=source_id,
        shadow_schema=StructType((shadow,)).to_json(),
        cast=request.cast,
        on_error=request.on_error,
        position=None if moved is None else moved.position,
        new_name=None if renamed is None else renamed.new_name,
        field_metadata=field_metadata,
    )
    change = msgspec.structs.replace(change, checks=tuple(_checks(enabled, change, values)))
    # This parses the cast and every check: errors are found before any writer fills the shadow.
    values.check_conversion(change, enabled.schema, source)
    marked = {MAX_COLUMN_ID_KEY: str(highest), COLUMN_CHANGE_KEY: change.to_json()}
    prepared = enabled.with_properties({**enabled.metadata.configuration, **marked})
    old, new = sql_type_name(place.data_type), sql_type_name(request.new_type)
    naming = f", renamed to {dotted((change.new_name,))}" if change.new_name else ""
    summary = f"change column {dotted(change.path)} from {old} to {new} online{naming}"
    return ColumnChangePlan(
        configuration,
        published_configuration(prepared, change),
        (PlannedStep(summary, "converts"),),
        missing_switches=tuple(draft.missing_switches),
        change=change,
        from_type=place.data_type,
        to_type=request.new_type,
        prepared=prepared,
    )


def _check_types(place: Place, request: ColumnChangeRequest) -> None:
    source, target, column = place.data_type, request.new_type, dotted(place.path)
    if not is_primitive(source) or not is_primitive(target) or VOID in (source, target):
        raise SchemaChangeRefused(
            f"column {column} cannot be changed from {sql_type_name(source)} to "
            f"{sql_type_name(target)}: both have to be atomic types; change what is in a struct, "
            "array or map by its own path",
            column=column,
        )
    if source == target and request.cast is None:
        raise InvalidArgument(
            f"column {column} is of type {sql_type_name(target)} already; say in `cast` how "
            "its values change, or use alter where they do not",
            column=column,
        )


def _check_request(request: ColumnChangeRequest, place: Place, schema: StructType) -> None:
    path, column = place.path, dotted(place.path)
    if request.on_error not in ("abort", "null"):
        raise InvalidArgument(f"on_error is 'abort' or 'null', not {request.on_error!r}")
    if any(
        step == "key" and isinstance(find_place(schema, path[:index]).data_type, MapType)
        for index, step in enumerate(path)
        if index
    ):
        raise SchemaChangeRefused(
            f"{column} is the key of a map, and two keys could become one; change the whole map by "
            "rewriting it",
            column=column,
        )
    moves = request.last(actions.MoveColumn) is not None
    if len(path) > 1 and (request.cast is not None or moves):
        raise InvalidArgument(
            f"cast and position apply to top-level columns, and {column} is nested: without them, "
            "change the type; move the field in a statement of its own",
            column=column,
        )
    redefined = request.last(actions.SetNullable)
    takes_null = with_nullability(schema, path, nullable=True) == schema
    stays_nullable = takes_null if redefined is None else redefined.nullable
    if request.on_error == "null" and not stays_nullable:
        raise InvalidArgument(
            f"column {column} is NOT NULL, so a value that cannot be converted cannot become null; "
            "pass nullable=True as well",
            column=column,
        )


def _refuse_bound_column(configuration: TableConfiguration, path: ColumnPath) -> None:
    if path[0] in configuration.partition_columns:
        reason = (
            "the table is partitioned by it: add a column with the new type, fill it by an "
            "update, and rewrite the table partitioned by that"
        )
    elif is_identity(configuration, path):
        reason = "it numbers rows (an identity column), which only BIGINT columns do"
    elif GENERATION_KEY in configuration.schema.field(path[0]).metadata:
        reason = "it is computed from other columns: drop it and add it with another expression"
    else:
        return
    raise SchemaChangeRefused(
        f"the type of column {dotted(path)} cannot be changed: {reason}", column=dotted(path)
    )


def _switch_on(draft: SchemaDraft, request: ColumnChangeRequest) -> None:
    """Turn on what an online change needs and the table lacks."""
    why = "changing a column online needs {}, off at present"
    configuration = draft.configuration
    switch = configuration.properties.enable_column_change
    if not request.is_allowed:
        missing = MissingSwitch(_DEPLOYMENT_SWITCH, _DEPLOYMENT_REMEDY)
        draft.miss(why.format(_DEPLOYMENT_SWITCH), missing)
    if switch is False:
        remedy = (
            "set this table property to true first; it is explicitly set to false, which "
            "enable_features does not override"
        )
        draft.miss(why.format(COLUMN_CHANGE_SWITCH), MissingSwitch(COLUMN_CHANGE_SWITCH, remedy))
        draft.set_properties({COLUMN_CHANGE_SWITCH: "true"})
    if switch is None:
        key = COLUMN_CHANGE_SWITCH
        draft.turn_on(why.format(key), key, key, "true")
    if configuration.column_mapping_mode == "none":
        key = "delta.columnMapping.mode"
        draft.turn_on(why.format("columnMapping"), "columnMapping", key, "name")


def _redefinition(
    draft: SchemaDraft, request: ColumnChangeRequest, place: Place
) -> tuple[TableConfiguration, tuple[tuple[str, str | None], ...]]:
    """The table under the protocol that the redefined column needs, and the metadata that its field
    gets: what actions of their own would make of it.
    """
    enabled = draft.configuration
    for action in request.redefinitions:
        action.apply(draft)
    renamed = request.last(actions.RenameColumn)
    path = place.path if renamed is None else (*place.path[:-1], renamed.new_name)
    old, new = place.field.metadata, find_place(draft.schema, path).field.metadata
    changed = tuple(
        (key, cast("str | None", new.get(key)))
        for key in ("comment", DEFAULT_KEY)
        if new.get(key) != old.get(key)
    )
    return TableConfiguration(draft.configuration.protocol, enabled.metadata), changed


def _shadow(
    configuration: TableConfiguration, path: ColumnPath, request: ColumnChangeRequest
) -> tuple[StructField, int]:
    """The top-level column after the change, with new physical names at every depth, and the
    highest id.
    """
    source = StructType((configuration.schema.field(path[0]),))
    if any(NESTED_IDS_KEY in field.metadata for _, field in walk_fields(source)):
        raise SchemaChangeRefused(
            f"column {path[0]} holds arrays or maps with ids for Iceberg, which cannot be given "
            "twice; drop icebergCompat first",
            column=path[0],
        )
    retyped = cast("StructType", change_type_at(source, path, lambda _: request.new_type))
    if (redefined := request.last(actions.SetNullable)) is not None:
        retyped = with_nullability(retyped, path, redefined.nullable)
    highest = configuration.properties.column_mapping_max_column_id
    mapped, highest = assign_column_mapping(
        map_fields(retyped, lambda field: replace(field, metadata=_metadata(field, own=False))),
        configuration.column_mapping_mode,
        max_column_id=highest,
        new_name=column_names(configuration.metadata.id, highest),
    )
    return mapped.fields[0], highest


def _metadata(field: StructField, *, own: bool) -> dict[str, object]:
    """The metadata of the physical column, or all other metadata."""
    return {key: value for key, value in field.metadata.items() if (key in _OWN_KEYS) is own}


def _checks(
    configuration: TableConfiguration, change: ColumnChange, values: ValueEngine
) -> Iterator[tuple[str, str]]:
    """Conditions that changed rows must satisfy, from the expressions that use the column."""
    old = configuration.schema
    new = published_schema(old, change, moves=False)
    is_reached = is_reached_through_structs(new, change.path)
    if is_reached and not find_place(new, change.path).field.nullable:
        yield f"NOT NULL {dotted(change.path)}", not_null_sql(change.path)
    for name, sql in _conditions(configuration, change.path):
        _check_fits(name, sql, new)
        yield name, sql
    for column in old:
        generation = column.metadata.get(GENERATION_KEY)
        if isinstance(generation, str) and is_mentioned(change.path, generation, old):
            name = f"the generated column {column.name}"
            found = _check_fits(name, generation, new)
            if found != column.data_type:
                why = f"it gives {found} then, not {column.data_type}"
                raise _does_not_fit(name, generation, why)
            yield name, f"{quote(column.name)} <=> ({generation})"
    _check_default(old, change, values)


def _conditions(configuration: TableConfiguration, path: ColumnPath) -> Iterator[tuple[str, str]]:
    """Names and SQL of the CHECK constraints and invariants that use a column."""
    for name, sql in declared_conditions(configuration):
        if is_mentioned(path, sql, configuration.schema):
            yield name, sql


def _check_fits(name: str, sql: str, schema: StructType) -> DataType | None:
    try:
        expression = parse_expression(sql, schema)
        expression.check_embeddable()
    except DeltaError as error:
        # Every writer checks it during the change, in both engines.
        why = error.message.removesuffix(": use the Spark engine")
        raise _does_not_fit(name, sql, why) from error
    return expression.data_type


def _does_not_fit(name: str, sql: str, why: str) -> SchemaChangeRefused:
    return SchemaChangeRefused(
        f"{name} ({sql}) is not compatible with the new type: {why}; drop it first and add it "
        "again after the change"
    )


def _check_default(schema: StructType, change: ColumnChange, values: ValueEngine) -> None:
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


# Changing


def refuse_altering_changing_column(
    current: TableConfiguration, planned: TableConfiguration
) -> None:
    """Make sure that a schema change does not touch a column in an online change."""
    change = ColumnChange.of(planned)
    if change is None:
        return
    old, new = (change.source(table.schema) for table in (current, planned))
    is_other = (old and old.without("comment")) != (new and new.without("comment"))
    if is_other or _alteration(planned, change) is not None:
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
    found = _alteration(configuration, change)
    if found is None:
        try:
            _check_default(configuration.schema, change, values)
        except SchemaChangeRefused as error:
            found = f"got a default that does not go with the new type ({error.message})"
    if found is not None:
        raise SchemaChangeRefused(
            f"column {dotted(change.path)} {found} while its type was being changed; cancel the "
            "change and begin it again",
            column=dotted(change.path),
        )


def _alteration(configuration: TableConfiguration, change: ColumnChange) -> str | None:
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
    added = [name for name, _ in _conditions(configuration, path) if name not in known]
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


# Publish and cancel


def published_configuration(
    configuration: TableConfiguration, change: ColumnChange
) -> TableConfiguration:
    """Protocol and metadata in which the shadow replaces the column, without the mark.

    Comments and defaults that the column got during the change are copied to it.
    """
    schema = published_schema(configuration.schema, change)
    source = change.source(configuration.schema)
    assert source is not None  # noqa: S101  published_schema checks it
    kept = {**_metadata(source, own=False), **_metadata(change.shadow, own=True)}
    schema = change_field(schema, change.path[:1], lambda field: replace(field, metadata=kept))
    published = cancelled_configuration(configuration)
    if change.new_name is not None or change.field_metadata:
        schema = change_field(schema, change.path, lambda field: _redefined(field, change))
    if change.new_name is not None:
        new_path = (*change.path[:-1], change.new_name)
        published = follow_column(published, change.path, new_path)
    return published.with_schema(schema)


def _redefined(field: StructField, change: ColumnChange) -> StructField:
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


# The actions of ALTER TABLE that make one online change


def is_online(schema: StructType, action: actions.ChangeType) -> bool:
    """Whether an action requires an online change: a type that is not wider, or an expression."""
    place = find_place(schema, action.path)
    old, new = place.data_type, action.data_type
    if action.using is not None:
        return True
    if old in (new, VOID) or "key" in place.steps:
        return False
    return is_primitive(old) and is_primitive(new) and not is_widening(old, new)


def online_request(
    change: actions.ChangeType, following: Sequence[actions.SchemaAction]
) -> tuple[ColumnChangeRequest, int]:
    """The change that an action requests, and how many of the following actions it covers.

    Those on the same column (NOT NULL, default, comment, position and name) are part of the change,
    and take effect in the same commit.
    """
    also: list[actions.SchemaAction] = []
    for action in following:
        # After a rename, the column has another name.
        is_renamed = any(isinstance(earlier, actions.RenameColumn) for earlier in also)
        if is_renamed or not _redefines(action, change.path):
            break
        also.append(action)
    request = ColumnChangeRequest(
        change.path, change.data_type, change.using, redefinitions=tuple(also)
    )
    return request, len(also)


def _redefines(action: actions.SchemaAction, path: ColumnPath) -> bool:
    """Whether an action changes a column beside its type. A field of a struct is moved by a
    separate commit.
    """
    if not isinstance(action, _REDEFINING) or (
        isinstance(action, actions.MoveColumn) and len(path) > 1
    ):
        return False
    return [fold_name(step) for step in action.path] == [fold_name(step) for step in path]
