"""Online change of a column to any type: the request that actions make, checked and planned.

Spec: none of the protocol's own; the states are in `column_change.states`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import cast

import msgspec

from dagster_delta.errors import DeltaError, InvalidArgument, SchemaChangeRefused
from dagster_delta.evolution.alter.actions import (
    ChangeType,
    DropDefault,
    DropNotNull,
    MoveColumn,
    RenameColumn,
    SchemaAction,
    SetComment,
    SetDefault,
    SetNotNull,
)
from dagster_delta.evolution.alter.type_spelling import parse_type
from dagster_delta.evolution.column_change.plan import ColumnChangePlan, ColumnChangeRequest
from dagster_delta.evolution.column_change.states import (
    OWN_KEYS,
    check_changed_default,
    dependent_conditions,
    published_configuration,
)
from dagster_delta.evolution.column_paths import (
    ColumnPath,
    Place,
    change_type_at,
    dotted,
    find_place,
    is_reached_through_structs,
    not_null_sql,
    quote_path,
    to_path,
    with_nullability,
)
from dagster_delta.evolution.dependants import is_identity, is_mentioned
from dagster_delta.evolution.plan_report import MissingSwitch
from dagster_delta.evolution.schema_change.column_actions import (
    drop_default,
    move_column,
    rename_column,
    set_comment,
    set_default,
)
from dagster_delta.evolution.schema_change.draft import SchemaDraft
from dagster_delta.parquet.shadow_column import ShadowColumn
from dagster_delta.protocol.features.column_change import (
    COLUMN_CHANGE_KEY,
    COLUMN_CHANGE_SWITCH,
    ColumnChange,
    Position,
    published_schema,
)
from dagster_delta.protocol.features.column_mapping import (
    NESTED_IDS_KEY,
    assign_column_mapping,
    field_id,
    map_fields,
)
from dagster_delta.protocol.features.column_values import DEFAULT_KEY, GENERATION_KEY
from dagster_delta.protocol.features.table_configuration import TableConfiguration
from dagster_delta.protocol.features.type_widening import is_widening
from dagster_delta.protocol.schema import (
    ArrayType,
    DataType,
    MapType,
    StructField,
    StructType,
    walk_fields,
)
from dagster_delta.sql.expressions import parse_expression
from dagster_delta.sql.table_expressions import check_table_expression
from dagster_delta.sql.types import VOID, is_primitive, sql_type_name

_MAX_COLUMN_ID = "delta.columnMapping.maxColumnId"
_FIRST = "FIRST"

_SWITCHES = {
    "delta.columnMapping.mode": "columnMapping",
    "delta.feature.domainMetadata": "domainMetadata",
}
"""Names of what properties turn on, if they are others."""
_DEPLOYMENT_SWITCH = "enable_column_change"
_DEPLOYMENT_REMEDY = (
    "set enable_column_change to true on the resource that opens the table (for a table that a job "
    "names by location: pass enable_column_change=True to delta_schema_change_job; for a handle: "
    "pass allow_column_changes=True to DeltaTable)"
)


def plan_column_change(
    configuration: TableConfiguration,
    request: ColumnChangeRequest,
    *,
    change_id: str,
    new_name: Callable[[], str],
    dry_run: bool = False,
) -> ColumnChangePlan:
    """The plan of a change, checked against everything that depends on the column. `change_id` is
    unique among all changes; `new_name` makes physical column names that were never used before. A
    dry run lists switches that are off, instead of refusing.
    """
    _refuse_second_change(configuration)
    path = to_path(request.column)
    place = find_place(configuration.schema, path)
    target = parse_type(request.new_type) if isinstance(request.new_type, str) else request.new_type
    _check_types(place.path, place.data_type, target, request.cast)
    _check_request(request, place, configuration.schema)
    _refuse_bound_column(configuration, place.path)
    draft = SchemaDraft(configuration, new_name, {}, request.enable_features, is_dry_run=dry_run)
    _switch_on(draft, request)
    enabled = _redefinable(draft, request, place)
    shadow, highest = _shadow(enabled, place.path, target, request.nullable, new_name)
    source = enabled.schema.field(place.path[0])
    source_id = field_id(source)
    assert source_id is not None  # noqa: S101  every column of a mapped table has one
    change = ColumnChange(
        id=change_id,
        path=place.path,
        source_id=source_id,
        shadow_schema=StructType((shadow,)).to_json(),
        cast=request.cast,
        on_error=request.on_error,
        position=_position(request.position),
        new_name=request.new_name,
        field_metadata=request.field_metadata,
    )
    change = msgspec.structs.replace(change, checks=tuple(_checks(enabled, change)))
    prepared = _with_mark(enabled, change, highest)
    # This parses the cast and every check, so that errors are found before any writer fills the
    # shadow.
    ShadowColumn(change, enabled.schema, source)
    return ColumnChangePlan(
        change,
        place.data_type,
        target,
        configuration,
        prepared,
        published_configuration(prepared, change),
        tuple(draft.missing_switches),
    )


def _refuse_second_change(configuration: TableConfiguration) -> None:
    running = ColumnChange.of(configuration)
    if running is not None:
        raise SchemaChangeRefused(
            f"column {dotted(running.path)} is being changed to "
            f"{sql_type_name(running.target_type())} already; resume that change, or cancel it "
            "first",
            column=dotted(running.path),
        )


def _check_types(path: ColumnPath, source: DataType, target: DataType, value: str | None) -> None:
    if not is_primitive(source) or not is_primitive(target) or VOID in (source, target):
        raise SchemaChangeRefused(
            f"column {dotted(path)} cannot be changed from {sql_type_name(source)} to "
            f"{sql_type_name(target)}: both have to be atomic types; change what is in a struct, "
            "array or map by its own path",
            column=dotted(path),
        )
    if source == target and value is None:
        raise InvalidArgument(
            f"column {dotted(path)} is of type {sql_type_name(target)} already; say in `cast` how "
            "its values change, or use alter where they do not",
            column=dotted(path),
        )


def _check_request(request: ColumnChangeRequest, place: Place, schema: StructType) -> None:
    column = dotted(place.path)
    if request.on_error not in ("abort", "null"):
        raise InvalidArgument(f"on_error is 'abort' or 'null', not {request.on_error!r}")
    if "key" in place.path[1:] and _leads_into_key(schema, place.path):
        raise SchemaChangeRefused(
            f"{column} is the key of a map, and two keys could become one; change the whole map by "
            "rewriting it",
            column=column,
        )
    if len(place.path) > 1 and (request.cast is not None or request.position is not None):
        raise InvalidArgument(
            f"cast and position apply to top-level columns, and {column} is nested: without them, "
            "change the type; move the field in a statement of its own",
            column=column,
        )
    becomes_required = request.nullable is False and _takes_null(schema, place.path)
    if becomes_required and not is_reached_through_structs(schema, place.path):
        raise SchemaChangeRefused(
            f"column {column} lies in an array or a map and cannot be made NOT NULL", column=column
        )
    keeps_not_null = request.nullable is None and not _takes_null(schema, place.path)
    if request.on_error == "null" and (request.nullable is False or keeps_not_null):
        raise InvalidArgument(
            f"column {column} is NOT NULL, so a value that cannot be converted cannot become null; "
            "pass nullable=True as well",
            column=column,
        )


def _refuse_bound_column(configuration: TableConfiguration, path: ColumnPath) -> None:
    column = dotted(path)
    reason = None
    if path[0] in configuration.partition_columns:
        reason = (
            "the table is partitioned by it: add a column with the new type, fill it by an "
            "update, and rewrite the table partitioned by that"
        )
    elif is_identity(configuration, path):
        reason = "it numbers rows (an identity column), which only BIGINT columns do"
    elif GENERATION_KEY in configuration.schema.field(path[0]).metadata:
        reason = "it is computed from other columns: drop it and add it with another expression"
    if reason is not None:
        raise SchemaChangeRefused(
            f"the type of column {column} cannot be changed: {reason}", column=column
        )


def _switch_on(draft: SchemaDraft, request: ColumnChangeRequest) -> None:
    """Turn on what an online change needs and the table lacks."""
    why = "changing a column online needs {}, off at present"
    if not request.is_allowed:
        draft.miss(
            why.format(_DEPLOYMENT_SWITCH), MissingSwitch(_DEPLOYMENT_SWITCH, _DEPLOYMENT_REMEDY)
        )
    configuration = draft.configuration
    if configuration.properties.enable_column_change is False:
        remedy = (
            "set this table property to true first; it is explicitly set to false, which "
            "enable_features does not override"
        )
        draft.miss(why.format(COLUMN_CHANGE_SWITCH), MissingSwitch(COLUMN_CHANGE_SWITCH, remedy))
    needed = (
        (configuration.properties.enable_column_change is not None, COLUMN_CHANGE_SWITCH, "true"),
        (configuration.column_mapping_mode != "none", "delta.columnMapping.mode", "name"),
        (configuration.supports("domainMetadata"), "delta.feature.domainMetadata", "supported"),
    )
    lacking = {key: value for is_on, key, value in needed if not is_on}
    for key, value in lacking.items():
        switch = _SWITCHES.get(key, key)
        draft.check_switch(why.format(switch), switch, key, value)
    # All at once: one by one, the protocol would list what the first step implies.
    if not configuration.properties.enable_column_change:
        lacking[COLUMN_CHANGE_SWITCH] = "true"
    if lacking:
        draft.set_properties(lacking)


def _redefinable(
    draft: SchemaDraft, request: ColumnChangeRequest, place: Place
) -> TableConfiguration:
    """The table under the protocol that the new definition needs, if actions of their own could
    make what changes beside the type.
    """
    path, enabled = place.path, draft.configuration
    for key, value in request.field_metadata:
        if key != DEFAULT_KEY:
            set_comment(draft, SetComment(path, value))
        elif value is None:
            drop_default(draft, DropDefault(path))
        else:
            set_default(draft, SetDefault(path, value))
            what = f"the default of column {dotted(path)}"
            check_table_expression(value, StructType(()), what, is_default=True)
    position = _position(request.position)
    if position is not None:
        move_column(draft, MoveColumn(path, position))
    if request.new_name is not None:
        rename_column(draft, RenameColumn(path, request.new_name))
    return TableConfiguration(draft.configuration.protocol, enabled.metadata)


def _shadow(
    configuration: TableConfiguration,
    path: ColumnPath,
    target: DataType,
    nullable: bool | None,
    new_name: Callable[[], str],
) -> tuple[StructField, int]:
    """The top-level column after the change, with new physical names at every depth, and the
    highest id.
    """
    source = configuration.schema.field(path[0])
    if any(NESTED_IDS_KEY in field.metadata for _, field in walk_fields(StructType((source,)))):
        raise SchemaChangeRefused(
            f"column {path[0]} holds arrays or maps with ids for Iceberg, which cannot be given "
            "twice; drop icebergCompat first",
            column=path[0],
        )
    retyped = cast("StructType", change_type_at(StructType((source,)), path, lambda _: target))
    if nullable is not None:
        retyped = with_nullability(retyped, path, nullable)
    highest = configuration.properties.column_mapping_max_column_id
    mapped, highest = assign_column_mapping(
        map_fields(retyped, _strip),
        configuration.column_mapping_mode,
        max_column_id=highest,
        new_name=new_name,
    )
    return mapped.fields[0], highest


def _strip(field: StructField) -> StructField:
    kept = {key: value for key, value in field.metadata.items() if key not in OWN_KEYS}
    return replace(field, metadata=kept)


def _takes_null(schema: StructType, path: ColumnPath) -> bool:
    parent = find_place(schema, path[:-1]).data_type if len(path) > 1 else schema
    match parent:
        case StructType():
            return parent.field(path[-1]).nullable
        case ArrayType(_, contains_null) | MapType(_, _, contains_null):
            return contains_null
        case _:
            return True


def _leads_into_key(schema: StructType, path: ColumnPath) -> bool:
    return any(
        step == "key" and isinstance(find_place(schema, path[:index]).data_type, MapType)
        for index, step in enumerate(path)
        if index
    )


def _position(position: str | Position | None) -> Position | None:
    if isinstance(position, str):
        return Position() if position.upper() == _FIRST else Position(position)
    return position


def _checks(configuration: TableConfiguration, change: ColumnChange) -> Iterator[tuple[str, str]]:
    """Conditions that changed rows must satisfy, from the expressions that use the column."""
    old = configuration.schema
    new = published_schema(old, change, moves=False)
    if is_reached_through_structs(new, change.path):
        field = find_place(new, change.path).field
        if not field.nullable:
            yield f"NOT NULL {dotted(change.path)}", not_null_sql(change.path)
    for name, sql in dependent_conditions(configuration, change.path):
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
            yield name, f"{quote_path((column.name,))} <=> ({generation})"
    check_changed_default(old, change)


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


def _with_mark(
    configuration: TableConfiguration, change: ColumnChange, highest: int
) -> TableConfiguration:
    properties = {
        **configuration.metadata.configuration,
        _MAX_COLUMN_ID: str(highest),
        COLUMN_CHANGE_KEY: change.to_json(),
    }
    metadata = msgspec.structs.replace(configuration.metadata, configuration=properties)
    return TableConfiguration(configuration.protocol, metadata)


# The actions of ALTER TABLE that make one online change


def is_online(schema: StructType, action: SchemaAction) -> bool:
    """Whether an action requires an online change: a type that is not wider, or an expression."""
    if not isinstance(action, ChangeType):
        return False
    place = find_place(schema, action.path)
    old, new = place.data_type, action.data_type
    if action.using is not None:
        return True
    if old in (new, VOID) or "key" in place.steps:
        return False
    return is_primitive(old) and is_primitive(new) and not is_widening(old, new)


def online_request(actions: Sequence[SchemaAction]) -> tuple[ColumnChangeRequest, int]:
    """The change that the first action requests, and how many actions it covers.

    Following actions on the same column (NOT NULL, default, comment, position and name) are part of
    the change, and take effect in the same commit.
    """
    change = actions[0]
    assert isinstance(change, ChangeType)  # noqa: S101  the caller has checked is_online
    request = ColumnChangeRequest(change.path, change.data_type, cast=change.using)
    count = 1
    for action in actions[1:]:
        folded = _with(request, change.path, action)
        # After a rename, the column has another name.
        if folded is None or request.new_name is not None:
            break
        request, count = folded, count + 1
    return request, count


def _with(
    request: ColumnChangeRequest, path: ColumnPath, action: SchemaAction
) -> ColumnChangeRequest | None:
    """The request extended by another action on its column; None if the action does not fit."""
    of_column = getattr(action, "path", ())
    if [step.casefold() for step in of_column] != [step.casefold() for step in path]:
        return None
    match action:
        case SetNotNull() | DropNotNull():
            return replace(request, nullable=isinstance(action, DropNotNull))
        case SetDefault(_, expression):
            is_null = expression.strip().casefold() == "null"
            return _with_metadata(request, DEFAULT_KEY, None if is_null else expression)
        case DropDefault():
            return _with_metadata(request, DEFAULT_KEY, None)
        case SetComment(_, comment):
            return _with_metadata(request, "comment", comment or None)
        case MoveColumn(_, position):
            # A field of a struct is moved by a separate commit.
            return replace(request, position=position) if len(path) == 1 else None
        case RenameColumn(_, new_name):
            return replace(request, new_name=new_name)
        case _:
            return None


def _with_metadata(
    request: ColumnChangeRequest, key: str, value: str | None
) -> ColumnChangeRequest:
    given = {**dict(request.field_metadata), key: value}
    return replace(request, field_metadata=tuple(given.items()))
