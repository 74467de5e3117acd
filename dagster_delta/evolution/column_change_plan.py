"""The plan of an online change of a column, checked against all that depends on the column."""

from __future__ import annotations

from collections.abc import Iterator
from typing import cast

from msgspec.structs import replace

from dagster_delta.errors import DeltaError, InvalidArgument, SchemaChangeRefused
from dagster_delta.evolution import actions
from dagster_delta.evolution.column_change import (
    check_changed_default,
    conditions_on,
    metadata_of,
    published_configuration,
)
from dagster_delta.evolution.column_change_request import ColumnChangeRequest
from dagster_delta.evolution.column_paths import (
    ColumnPath,
    Place,
    change_type_at,
    dotted,
    find_place,
    is_reached_through_structs,
    not_null_sql,
    with_nullability,
)
from dagster_delta.evolution.dependants import (
    is_identity,
    is_mentioned,
)
from dagster_delta.evolution.plan import ColumnChangePlan, PlannedStep, SchemaDraft
from dagster_delta.evolution.plan_report import MissingSwitch
from dagster_delta.evolution.properties import MAX_COLUMN_ID_KEY, column_names
from dagster_delta.evolution.required_protocol import required_features, upgrade_protocol
from dagster_delta.evolution.value_engine import ValueEngine
from dagster_delta.protocol.features.column_change import (
    COLUMN_CHANGE_KEY,
    COLUMN_CHANGE_SWITCH,
    ColumnChange,
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
    DataType,
    MapType,
    StructField,
    StructType,
    walk_fields,
)
from dagster_delta.sql.expressions import parse_expression
from dagster_delta.sql.typed import quote
from dagster_delta.sql.types import VOID, is_primitive, sql_type_name

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
    enabled, field_metadata = _plan_redefinition(draft, request, place)
    source = enabled.schema.field(place.path[0])
    shadow, highest = _make_shadow(enabled, place.path, request)
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
    change = replace(change, checks=tuple(_collect_checks(enabled, change, values)))
    # This parses the cast and every check: errors are found before any writer fills the shadow.
    values.check_conversion(change, enabled.schema, source)
    marked = {MAX_COLUMN_ID_KEY: str(highest), COLUMN_CHANGE_KEY: change.to_json()}
    prepared = enabled.with_properties({**enabled.metadata.configuration, **marked})
    # The files of the shadow are written before the table shows its type.
    needed = required_features(published_schema(enabled.schema, change), {})
    prepared = replace(prepared, protocol=upgrade_protocol(prepared.protocol, needed))
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


def _plan_redefinition(
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


def _make_shadow(
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
        map_fields(retyped, lambda field: replace(field, metadata=metadata_of(field, own=False))),
        configuration.column_mapping_mode,
        max_column_id=highest,
        new_name=column_names(configuration.metadata.id, highest),
    )
    return mapped.fields[0], highest


def _collect_checks(
    configuration: TableConfiguration, change: ColumnChange, values: ValueEngine
) -> Iterator[tuple[str, str]]:
    """Conditions that changed rows must satisfy, from the expressions that use the column."""
    old = configuration.schema
    new = published_schema(old, change, moves=False)
    is_reached = is_reached_through_structs(new, change.path)
    if is_reached and not find_place(new, change.path).field.nullable:
        yield f"NOT NULL {dotted(change.path)}", not_null_sql(change.path)
    for name, sql in conditions_on(configuration, change.path):
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
    check_changed_default(old, change, values)


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
