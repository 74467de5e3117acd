"""Changes of a table's schema, planned: what the table will say, and what its rows go through.

Nothing here reads or writes anything; `SchemaChangePlan` says what is to be done.

Spec: Change Metadata; Column Mapping; Type Widening; CHECK Constraints; Default Columns.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

from dagster_delta.engines.engine import Constraint
from dagster_delta.errors import InvalidArgument
from dagster_delta.evolution import column_actions, table_actions
from dagster_delta.evolution.column_change_states import refuse_altering_changing_column
from dagster_delta.evolution.column_definition import check_column_values
from dagster_delta.evolution.column_paths import ColumnPath
from dagster_delta.evolution.default_values import check_default_values
from dagster_delta.evolution.feature_drop import plan_feature_drop
from dagster_delta.evolution.lazy_defaults import keep_defaults_in_log, materialize_defaults
from dagster_delta.evolution.plan_report import plan_to_markdown
from dagster_delta.evolution.schema_actions import (
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
from dagster_delta.evolution.schema_draft import PlannedStep, SchemaDraft
from dagster_delta.evolution.schema_history import SchemaChanges, compare_schemas
from dagster_delta.protocol.features.iceberg_compat import check_iceberg_compat
from dagster_delta.protocol.schema import StructType
from dagster_delta.protocol.table_configuration import TableConfiguration

__all__ = ["ExistingRows", "SchemaChangePlan", "plan_dropped_feature", "plan_schema_changes"]

ExistingRows = Literal["rewrite", "lazy", "null"]
"""What existing rows hold in a new column with a default: the default, as their files are written
again; the default, as readers put it there; or null."""


@dataclass(frozen=True, slots=True)
class SchemaChangePlan:
    """What a change of the schema does, before it is done."""

    before: TableConfiguration
    """Protocol and metadata in force."""
    after: TableConfiguration
    """Protocol and metadata once it is done."""
    steps: tuple[PlannedStep, ...]
    """What is done, in the order it was asked for."""
    fills: Mapping[str, str] = field(default_factory=dict)
    """Spark SQL by logical name of a new column that existing files are written again for."""
    existing_defaults: Mapping[ColumnPath, str] = field(default_factory=dict)
    """Spark SQL by path of a new column whose default existing rows get when they are read."""
    materializes_defaults: bool = False
    """Whether files are written again that lack columns whose default they are read with."""
    checks: tuple[Constraint, ...] = ()
    """What every existing row has to satisfy, over the columns of `after`."""
    domains: Mapping[str, str] = field(default_factory=dict)
    """New configuration by name of the metadata domains that change."""
    frees_files_of_feature: bool = False
    """Whether data files that use a feature are written again without it, before it goes."""
    affected_files: int = 0
    """Data files that are written again, where that is known."""
    affected_bytes: int = 0
    """Size of those files in bytes."""

    @property
    def changes_anything(self) -> bool:
        """Whether there is anything to commit."""
        return self.before != self.after or bool(self.domains)

    @property
    def rewrites_data(self) -> bool:
        """Whether existing data files have to be written again."""
        return bool(self.fills) or self.materializes_defaults or self.frees_files_of_feature

    @property
    def validates_rows(self) -> bool:
        """Whether existing rows have to be looked at."""
        return bool(self.checks)

    @property
    def schema_changes(self) -> SchemaChanges:
        """The difference between the two schemas; columns keep their identity when renamed."""
        return compare_schemas(self.before.schema, self.after.schema)

    def __str__(self) -> str:
        return self.to_markdown()

    def to_markdown(self) -> str:
        """The plan for people: steps, what they cost, the protocol and the schema diff."""
        return plan_to_markdown(self)


def plan_schema_changes(
    configuration: TableConfiguration,
    actions: Sequence[SchemaAction],
    *,
    new_name: Callable[[], str],
    existing_rows: ExistingRows = "rewrite",
    enable_features: bool = False,
    domains: Mapping[str, str] | None = None,
    table_version: int | None = None,
    has_rows: bool = True,
    moment: dt.datetime | None = None,
) -> SchemaChangePlan:
    """What the actions do to a table, each on what those before it made.

    Args:
        configuration: protocol and metadata in force.
        actions: at least one.
        new_name: makes physical column names that no other column ever had.
        existing_rows: what existing rows hold in a new column with a default.
        enable_features: whether column mapping and type widening may be turned on where a change
            needs them.
        domains: configuration of the metadata domains in force, by name.
        table_version: the version that will make the change; tables of the preview of type widening
            record it.
        has_rows: whether there may be existing rows.
        moment: what time it is to defaults that existing rows read, with a time zone; by default
            now.

    Raises:
        SchemaChangeRefused: something depends on a column, a type is not wider, or a feature would
            have to be enabled.
        SchemaMismatch: a column is not there.
        InvalidArgument: an action makes no sense.
        UnsupportedExpression: a default that existing rows are to read cannot be computed here.
    """
    if not actions:
        raise InvalidArgument("a schema change has at least one action")
    if existing_rows not in get_args(ExistingRows):
        raise InvalidArgument(
            f"existing_rows is 'rewrite', 'lazy' or 'null', not {existing_rows!r}"
        )
    draft = SchemaDraft(
        configuration,
        new_name,
        dict(domains or {}),
        enable_features,
        table_version,
        keeps_files=existing_rows == "lazy",
    )
    for action in actions:
        _APPLY[type(action)](draft, action)
    if has_rows:
        keep_defaults_in_log(draft, moment or dt.datetime.now(dt.UTC))
    _check_result(configuration, draft)
    fills = draft.fills if existing_rows == "rewrite" else {}
    _note_costs(draft, fills)
    return SchemaChangePlan(
        configuration,
        draft.configuration,
        tuple(draft.steps),
        fills=dict(fills),
        existing_defaults=dict(draft.existing_defaults) if has_rows else {},
        materializes_defaults=draft.materializes_defaults,
        checks=draft.checks(),
        domains=draft.changed_domains,
    )


def plan_dropped_feature(
    configuration: TableConfiguration, action: DropFeature
) -> SchemaChangePlan:
    """What dropping a feature does to a table, in as many commits as it takes.

    Args:
        configuration: protocol and metadata in force.
        action: what is asked for.

    Raises:
        InvalidArgument: the table does not have the feature, or something else needs it.
    """
    drop = plan_feature_drop(configuration, action.name)
    rewrites = drop.files != "none"
    step = PlannedStep(f"drop feature {drop.feature.name}", "rewrites" if rewrites else "metadata")
    return SchemaChangePlan(configuration, drop.final, (step,), frees_files_of_feature=rewrites)


def _check_result(current: TableConfiguration, draft: SchemaDraft) -> None:
    refuse_altering_changing_column(current, draft.configuration)
    check_iceberg_compat(draft.configuration)
    defaults = [draft.schema.field(name) for name in draft.defaults]
    if defaults:
        check_column_values(StructType(tuple(defaults)))
        check_default_values(defaults)


def _note_costs(draft: SchemaDraft, fills: Mapping[str, str]) -> None:
    for column, sql in fills.items():
        draft.note(f"rewrite existing files with {column} = {sql}", "rewrites")


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
    MaterializeDefaults: materialize_defaults,
}
