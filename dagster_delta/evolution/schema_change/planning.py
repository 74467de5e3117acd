"""Planning of schema changes: the new configuration, and the work on existing rows.

No I/O here; `SchemaChangePlan` describes the work.

Spec: Change Metadata; Column Mapping; Type Widening; CHECK Constraints; Default Columns.
Not part of the protocol: defaults that existing rows get when they are read, see
`protocol.features.existing_defaults`.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, get_args

import msgspec

from dagster_delta.errors import InvalidArgument, UnsupportedExpression
from dagster_delta.evolution.alter.actions import (
    AddColumn,
    AddConstraint,
    ChangeType,
    ClusterBy,
    DropColumn,
    DropConstraint,
    DropDefault,
    DropFeature,
    DropNotNull,
    MaterializeDefaults,
    MoveColumn,
    RenameColumn,
    SchemaAction,
    SetComment,
    SetDefault,
    SetNotNull,
    SetProperties,
    SetTableComment,
    UnsetProperties,
)
from dagster_delta.evolution.column_change.states import refuse_altering_changing_column
from dagster_delta.evolution.column_definition import check_column_values
from dagster_delta.evolution.column_paths import ColumnPath, change_field, dotted, find_place
from dagster_delta.evolution.default_values import compute_default
from dagster_delta.evolution.schema_change import column_actions, table_actions
from dagster_delta.evolution.schema_change.draft import PlannedStep, SchemaDraft
from dagster_delta.evolution.schema_change.feature_drop import plan_feature_drop
from dagster_delta.evolution.schema_change.plan import ExistingRows, SchemaChangePlan
from dagster_delta.protocol.features.existing_defaults import (
    fields_with_existing_default,
    is_default_type,
    with_existing_default,
    without_existing_defaults,
)
from dagster_delta.protocol.features.iceberg_compat import check_iceberg_compat
from dagster_delta.protocol.features.table_configuration import TableConfiguration
from dagster_delta.protocol.schema import StructField, StructType
from dagster_delta.sql.filters import at_moment
from dagster_delta.sql.time_zone import UTC


class PlanningOptions(msgspec.Struct, frozen=True, kw_only=True):
    """What a caller allows, and what a plan needs to know of the table beside its configuration."""

    existing_rows: ExistingRows = "rewrite"
    enable_features: bool = False
    """Whether column mapping and type widening may be turned on."""
    dry_run: bool = False
    """Whether what may not be turned on is listed as a missing switch, instead of refused."""
    domains: Mapping[str, str] = {}
    """The metadata domains in force, by name."""
    table_version: int | None = None
    """The version that makes the change, which tables of the preview of type widening record."""
    has_rows: bool = True
    moment: dt.datetime | None = None
    """When defaults that existing rows read are computed; None: now."""
    find_zone: Callable[[], str] = lambda: UTC
    """Gives the time zone in which they are computed."""


def plan_schema_changes(
    configuration: TableConfiguration,
    actions: Sequence[SchemaAction],
    options: PlanningOptions,
    *,
    new_name: Callable[[], str],
) -> SchemaChangePlan:
    """The plan of the actions, each applied to the result of the previous ones."""
    existing_rows = options.existing_rows
    if not actions:
        raise InvalidArgument("a schema change has at least one action")
    if existing_rows not in get_args(ExistingRows):
        raise InvalidArgument(
            f"existing_rows is 'rewrite', 'lazy' or 'null', not {existing_rows!r}"
        )
    draft = SchemaDraft(
        configuration,
        new_name,
        dict(options.domains),
        options.enable_features,
        options.table_version,
        keeps_files=existing_rows == "lazy",
        is_dry_run=options.dry_run,
    )
    for action in actions:
        _APPLY[type(action)](draft, action)
    if options.has_rows:
        moment = options.moment or dt.datetime.now(dt.UTC)
        _keep_defaults_in_log(draft, moment, options.find_zone)
    _check_result(configuration, draft)
    fills = draft.fills if existing_rows == "rewrite" else {}
    for column, sql in fills.items():
        draft.note(f"rewrite existing files with {column} = {sql}", "rewrites")
    return SchemaChangePlan(
        configuration,
        draft.configuration,
        tuple(draft.steps),
        fills=dict(fills),
        existing_defaults=dict(draft.existing_defaults) if options.has_rows else {},
        materializes_defaults=draft.materializes_defaults,
        checks=draft.checks(),
        domains=draft.changed_domains,
        missing_switches=tuple(draft.missing_switches),
    )


def plan_dropped_feature(
    configuration: TableConfiguration, action: DropFeature
) -> SchemaChangePlan:
    """The plan to drop a feature, in one or more commits."""
    drop = plan_feature_drop(configuration, action.name)
    rewrites = drop.files != "none"
    step = PlannedStep(f"drop feature {drop.feature.name}", "rewrites" if rewrites else "metadata")
    return SchemaChangePlan(configuration, drop.final, (step,), frees_files_of_feature=rewrites)


def _keep_defaults_in_log(
    draft: SchemaDraft, moment: dt.datetime, find_zone: Callable[[], str]
) -> None:
    """Record in the log the default values of new columns for existing rows, computed at a moment
    in a time zone.
    """
    for path, sql in draft.existing_defaults.items():
        field = find_place(draft.schema, path).field
        value = _lazy_default(path, field, at_moment(sql, moment), find_zone())
        if value is None:
            continue
        draft.set_schema(
            change_field(draft.schema, path, partial(with_existing_default, value=value))
        )
        # Existing rows have the default there, which is not null.
        draft.required = [required for required in draft.required if required != path]
        draft.note(f"existing rows read {dotted(path)} as {sql}; their files are not rewritten")


def _lazy_default(path: ColumnPath, field: StructField, sql: str, zone: str) -> object:
    column = dotted(path)
    if not is_default_type(field.data_type):
        raise InvalidArgument(
            f"the default of column {column} is of type {field.data_type}, and existing rows can "
            'get one of an atomic type only when they are read; pass existing_rows="rewrite"',
            column=column,
        )
    try:
        return compute_default(field, sql, zone)
    except UnsupportedExpression as error:
        raise UnsupportedExpression(
            f"the default of column {column} is computed once, here, for existing rows to read, "
            f"and that is not possible: {error.message}; write a literal, or pass existing_rows="
            '"rewrite" with engine="spark"',
            column=column,
        ) from None


def _check_result(current: TableConfiguration, draft: SchemaDraft) -> None:
    refuse_altering_changing_column(current, draft.configuration)
    check_iceberg_compat(draft.configuration)
    defaults = [draft.schema.field(name) for name in draft.defaults]
    if defaults:
        check_column_values(StructType(tuple(defaults)))


def _materialize_defaults(draft: SchemaDraft, _action: MaterializeDefaults) -> None:
    """Write into files the values that their rows got from the log so far."""
    columns = [dotted(path) for path, _ in fields_with_existing_default(draft.schema)]
    if not columns:
        draft.note("no row has a lazy default", "nothing")
        return
    draft.set_schema(without_existing_defaults(draft.schema))
    draft.materializes_defaults = True
    draft.note(f"rewrite files that lack {', '.join(columns)}", "rewrites")


def _drop_feature(_draft: SchemaDraft, action: DropFeature) -> None:
    raise InvalidArgument(
        f"dropping the feature {action.name} takes several commits, so it has to be the only "
        "action of its statement"
    )


_APPLY: Mapping[type[object], Callable[[SchemaDraft, Any], None]] = {
    AddColumn: column_actions.add_column,
    DropColumn: column_actions.drop_column,
    RenameColumn: column_actions.rename_column,
    ChangeType: column_actions.change_type,
    SetNotNull: column_actions.set_not_null,
    DropNotNull: column_actions.drop_not_null,
    SetDefault: column_actions.set_default,
    DropDefault: column_actions.drop_default,
    SetComment: column_actions.set_comment,
    MoveColumn: column_actions.move_column,
    AddConstraint: table_actions.add_constraint,
    DropConstraint: table_actions.drop_constraint,
    SetProperties: table_actions.change_properties,
    UnsetProperties: table_actions.drop_properties,
    SetTableComment: table_actions.set_table_comment,
    ClusterBy: table_actions.cluster_by,
    DropFeature: _drop_feature,
    MaterializeDefaults: _materialize_defaults,
}
