"""Online change of a column to any type: checks and plans a request.

Spec: none of the protocol's own; the states are in `column_change.states`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import cast

import msgspec

from dagster_delta.errors import DeltaError, InvalidArgument, SchemaChangeRefused
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
from dagster_delta.evolution.dependants import (
    expression_dependants,
    is_identity,
    is_mentioned,
    refuse_dependants,
)
from dagster_delta.evolution.plan_report import ENABLE_FEATURES, MissingSwitch
from dagster_delta.evolution.properties.changes import set_properties
from dagster_delta.evolution.properties.required_protocol import upgrade_protocol
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
from dagster_delta.protocol.schema import (
    ArrayType,
    DataType,
    MapType,
    StructField,
    StructType,
    walk_fields,
)
from dagster_delta.sql.expressions import parse_expression
from dagster_delta.sql.types import VOID, is_primitive, sql_type_name

_MAPPING_MODE = "delta.columnMapping.mode"
_MAX_COLUMN_ID = "delta.columnMapping.maxColumnId"
_FIRST = "FIRST"

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
    _check_redefinition(configuration, request, place)
    _refuse_bound_column(configuration, place.path)
    missing = tuple(_missing_switches(configuration, request))
    if missing and not dry_run:
        raise _refusal(request, missing, _lacking(configuration))
    enabled = _enabled(configuration, request, new_name)
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
        missing,
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
    position = _position(request.position)
    if position is not None and position.after is not None:
        neighbour = schema.field(position.after)
        if neighbour.name == place.path[0]:
            raise InvalidArgument(f"column {column} cannot be placed after itself", column=column)
    keeps_not_null = request.nullable is None and not _takes_null(schema, place.path)
    if request.on_error == "null" and (request.nullable is False or keeps_not_null):
        raise InvalidArgument(
            f"column {column} is NOT NULL, so a value that cannot be converted cannot become null; "
            "pass nullable=True as well",
            column=column,
        )


def _check_redefinition(
    configuration: TableConfiguration, request: ColumnChangeRequest, place: Place
) -> None:
    column = dotted(place.path)
    given = dict(request.field_metadata)
    if place.steps and (request.new_name is not None or given):
        raise SchemaChangeRefused(
            f"{column} is part of the type of column {dotted(place.field_path)}, and has no name, "
            "default or comment of its own",
            column=column,
        )
    if len(place.path) > 1 and DEFAULT_KEY in given:
        raise SchemaChangeRefused(
            f"field {column} cannot have a default: only whole columns have one", column=column
        )
    if request.new_name is None or request.new_name == place.path[-1]:
        return
    schema = configuration.schema
    parent = find_place(schema, place.path[:-1]).data_type if place.path[1:] else schema
    taken = parent.get(request.new_name) if isinstance(parent, StructType) else None
    if taken is not None and taken != place.field:
        raise InvalidArgument(
            f"there is a column {dotted((*place.path[:-1], taken.name))} already; choose another "
            "name",
            column=column,
        )
    dependants = list(expression_dependants(configuration, place.path))
    refuse_dependants(place.path, "renamed", dependants)


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


def _missing_switches(
    configuration: TableConfiguration, request: ColumnChangeRequest
) -> Iterator[MissingSwitch]:
    if not request.is_allowed:
        yield MissingSwitch(_DEPLOYMENT_SWITCH, _DEPLOYMENT_REMEDY)
    lacking = _lacking(configuration)
    if configuration.properties.enable_column_change is False:
        del lacking[COLUMN_CHANGE_SWITCH]
        yield MissingSwitch(
            COLUMN_CHANGE_SWITCH,
            "set this table property to true first; it is explicitly set to false, which "
            "enable_features does not override",
        )
    if not request.enable_features:
        for name, setting in lacking.items():
            yield MissingSwitch(
                name, f"set the table property {setting} first, or {ENABLE_FEATURES}"
            )


def _lacking(configuration: TableConfiguration) -> dict[str, str]:
    """The settings that an online change needs and the table lacks, by the name of what they turn
    on.
    """
    lacking = {}
    if not configuration.properties.enable_column_change:
        lacking[COLUMN_CHANGE_SWITCH] = f"{COLUMN_CHANGE_SWITCH} = true"
    if configuration.column_mapping_mode == "none":
        lacking["columnMapping"] = f"{_MAPPING_MODE} = name"
    if not configuration.supports("domainMetadata"):
        lacking["domainMetadata"] = "delta.feature.domainMetadata = supported"
    return lacking


def _refusal(
    request: ColumnChangeRequest,
    missing: tuple[MissingSwitch, ...],
    lacking: Mapping[str, str],
) -> SchemaChangeRefused:
    needed = ", ".join(switch.name for switch in missing)
    remedies = [switch.remedy for switch in missing if ENABLE_FEATURES not in switch.remedy]
    if len(remedies) < len(missing):
        settings = ", ".join(lacking[each.name] for each in missing if each.name in lacking)
        remedies.append(f"{ENABLE_FEATURES}, or set {settings} on the table first")
    return SchemaChangeRefused(
        f"changing a column online needs {needed}, off at present: {'; '.join(remedies)}; clients "
        "that do not support the table's features can no longer read or write it then",
        column=dotted(to_path(request.column)),
    )


def _enabled(
    configuration: TableConfiguration,
    request: ColumnChangeRequest,
    new_name: Callable[[], str],
) -> TableConfiguration:
    wanted: dict[str, object] = {}
    lacking = _lacking(configuration)
    if lacking:
        wanted = {COLUMN_CHANGE_SWITCH: "true", "delta.feature.domainMetadata": "supported"}
    if "columnMapping" in lacking:
        wanted[_MAPPING_MODE] = "name"
    enabled = set_properties(configuration, wanted, new_name=new_name) if wanted else configuration
    if dict(request.field_metadata).get(DEFAULT_KEY) is None:
        return enabled
    protocol = upgrade_protocol(enabled.protocol, ["allowColumnDefaults"])
    return TableConfiguration(protocol, enabled.metadata)


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
    if any(NESTED_IDS_KEY in each.metadata for _, each in walk_fields(StructType((source,)))):
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
    kept = {key: each for key, each in field.metadata.items() if key not in OWN_KEYS}
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
