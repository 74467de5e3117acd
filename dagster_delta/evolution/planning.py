"""Planning of schema changes: the new configuration, and the work on existing rows and files.

No I/O here; `SchemaChangePlan` and `FeatureDrop` describe the work.

Writer features are dropped immediately. For reader/writer features, old versions of the table still
use the feature: a client without support must not read the log from before the drop, so checkpoints
are written in between, which clean-up may delete only completely (`checkpointProtection`).

Spec: Change Metadata; Column Mapping; Type Widening; CHECK Constraints; Default Columns; Table
Features; Checkpoint Protection; Deletion Vectors; Row Tracking; In-Commit Timestamps.
Not part of the protocol: defaults that existing rows get when they are read, see
`protocol.features.existing_defaults`.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from functools import partial
from typing import Literal, get_args

from dagster_delta.errors import InvalidArgument, UnsupportedExpression
from dagster_delta.evolution.actions import SchemaAction
from dagster_delta.evolution.column_change import refuse_altering_changing_column
from dagster_delta.evolution.column_definition import check_column_values
from dagster_delta.evolution.column_paths import (
    ColumnPath,
    change_field,
    dotted,
    find_place,
    not_null_sql,
)
from dagster_delta.evolution.column_rules import check_column_names
from dagster_delta.evolution.plan import ExistingRows, PlannedStep, SchemaChangePlan, SchemaDraft
from dagster_delta.evolution.required_protocol import (
    dependent_features,
    downgrade_protocol,
    required_features,
    upgrade_protocol,
)
from dagster_delta.evolution.table_definition import without_metadata
from dagster_delta.evolution.value_engine import ValueEngine
from dagster_delta.protocol.features.existing_defaults import (
    EXISTING_DEFAULT_KEY,
    EXISTING_DEFAULTS_FEATURE,
    is_default_type,
    with_existing_default,
)
from dagster_delta.protocol.features.iceberg_compat import check_iceberg_compat
from dagster_delta.protocol.features.registry import TableFeature, find_feature
from dagster_delta.protocol.features.row_tracking import ROW_TRACKING_DOMAIN
from dagster_delta.protocol.features.table_configuration import TableConfiguration
from dagster_delta.protocol.features.type_widening import TYPE_CHANGES_KEY
from dagster_delta.protocol.log.commit_writer import IN_COMMIT_TIMESTAMP_START_KEYS
from dagster_delta.protocol.schema import StructField, StructType
from dagster_delta.protocol.table_properties import CONSTRAINT_PREFIX
from dagster_delta.sql.constraint import Constraint
from dagster_delta.sql.filters import at_moment


def plan_schema_changes(
    draft: SchemaDraft, wanted: Sequence[SchemaAction], values: ValueEngine
) -> SchemaChangePlan:
    """The plan of the actions, each applied to the result of the previous ones."""
    if not wanted:
        raise InvalidArgument("a schema change has at least one action")
    if draft.existing_rows not in get_args(ExistingRows):
        raise InvalidArgument(
            f"existing_rows is 'rewrite', 'lazy' or 'null', not {draft.existing_rows!r}"
        )
    before, before_domains = draft.configuration, draft.domains
    for action in wanted:
        action.apply(draft)
    lazy = draft.work_of("lazy") if draft.has_rows else {}
    for path, sql in lazy.items():
        _keep_default_in_log(draft, path, sql, values)
    refuse_altering_changing_column(before, draft.configuration)
    check_iceberg_compat(draft.configuration)
    defaults = tuple(draft.schema.field(path[0]) for path in draft.work_of("default"))
    if defaults:
        check_column_values(StructType(defaults), values)
    fills = draft.work_of("fill") if draft.existing_rows == "rewrite" else {}
    not_null = (
        Constraint(f"NOT NULL {dotted(path)}", not_null_sql(path))
        for path in draft.work_of("not_null")
    )
    named = (Constraint(f"CHECK {name}", sql) for name, sql in draft.constraints.items())
    plan = SchemaChangePlan(
        before,
        draft.configuration,
        tuple(draft.steps),
        fills={path[0]: sql for path, sql in fills.items()},
        existing_defaults=lazy,
        checks=(*not_null, *named),
        domains=dict(draft.domains.items() - before_domains.items()),
        missing_switches=tuple(draft.missing_switches),
    )
    # An added column may be dropped by the same statement.
    return plan if plan.rewrites_data else plan.without_rewrite()


def _keep_default_in_log(
    draft: SchemaDraft, path: ColumnPath, sql: str, values: ValueEngine
) -> None:
    """Record in the log the default value of a new column for existing rows."""
    moment = draft.moment or dt.datetime.now(dt.UTC)
    field = find_place(draft.schema, path).field
    _check_lazy_default(path, field)
    try:
        value = values.compute_default(field, at_moment(sql, moment), draft.find_zone())
    except UnsupportedExpression as error:
        raise UnsupportedExpression(
            f"the default of column {dotted(path)} is computed once, here, for existing rows to "
            f"read, and that is not possible: {error.message}; write a literal, or pass "
            'existing_rows="rewrite" with engine="spark"',
            column=dotted(path),
        ) from None
    if value is None:
        return
    draft.set_schema(change_field(draft.schema, path, partial(with_existing_default, value=value)))
    # Existing rows have the default there, which is not null.
    draft.work.pop(("not_null", path), None)
    draft.note(f"existing rows read {dotted(path)} as {sql}; their files are not rewritten")


def _check_lazy_default(path: ColumnPath, field: StructField) -> None:
    column = dotted(path)
    if not is_default_type(field.data_type):
        raise InvalidArgument(
            f"the default of column {column} is of type {field.data_type}, and existing rows can "
            'get one of an atomic type only when they are read; pass existing_rows="rewrite"',
            column=column,
        )


FilesToRewrite = Literal["none", "deletion_vectors", "widened_types", "without_defaults", "all"]
"""Which data files must be rewritten before a feature can be dropped."""


class FeatureDrop(SchemaChangePlan, frozen=True, kw_only=True):
    """The plan to drop a feature from a table, in one or more commits; `after` is without it."""

    feature: TableFeature
    prepared: TableConfiguration
    """The table without use of the feature, under the old protocol."""
    files: FilesToRewrite
    """Files that `prepared` rewrites."""

    @property
    def needs_protected_history(self) -> bool:
        """Whether clients without the feature cannot read old versions."""
        return self.feature.is_reader_feature

    def with_protected_checkpoints(self) -> TableConfiguration:
        """`after`, plus the feature that protects the checkpoints before the drop."""
        protocol = upgrade_protocol(self.after.protocol, ["checkpointProtection"])
        return TableConfiguration(protocol, self.after.metadata)

    def removes_domain(self, name: str) -> bool:
        """Whether a metadata domain is removed with the feature."""
        removed = _DOMAINS.get(self.feature.name, ())
        return removed is None or name in removed


def plan_feature_drop(configuration: TableConfiguration, name: str) -> FeatureDrop:
    """The plan to drop a feature from a table."""
    feature = find_feature(name)
    if feature is None or feature.name not in configuration.features:
        raise InvalidArgument(
            f"the table does not have the feature {name}; it has "
            f"{', '.join(sorted(configuration.features)) or 'none'}"
        )
    dependents = sorted(dependent_features(feature.name) & configuration.features)
    if dependents:
        raise InvalidArgument(
            f"the feature {feature.name} cannot be dropped while the table has "
            f"{', '.join(dependents)}, which depends on it; drop that first"
        )
    if feature.name not in _TRACES:
        raise InvalidArgument(
            f"the feature {feature.name} ({feature.description}) cannot be dropped; copy the rows "
            "to a new table without it"
        )
    _check_unused(configuration, feature.name)
    prepared = _without_traces(configuration, feature.name)
    if feature.name == "columnMapping":
        check_column_names(prepared.schema, "none")
        refuse_altering_changing_column(configuration, prepared)
    protocol = downgrade_protocol(configuration.protocol, feature.name)
    files = _FILES.get(feature.name, "none")
    rewrites = files != "none"
    step = PlannedStep(f"drop feature {feature.name}", "rewrites" if rewrites else "metadata")
    return FeatureDrop(
        configuration,
        TableConfiguration(protocol, prepared.metadata),
        (step,),
        frees_files_of_feature=rewrites,
        feature=feature,
        prepared=prepared,
        files=files,
    )


def _check_unused(configuration: TableConfiguration, feature: str) -> None:
    """Refuse if the schema or a constraint needs the feature."""
    if feature == "invariants" and configuration.not_null_columns:
        column = ".".join(configuration.not_null_columns[0])
        raise InvalidArgument(
            f"the feature invariants cannot be dropped while column {column} is NOT NULL; drop "
            "that first",
            column=column,
        )
    advice, properties = _IF_UNUSED.get(feature), configuration.metadata.configuration
    constraints = {key: sql for key, sql in properties.items() if key.startswith(CONSTRAINT_PREFIX)}
    if advice is not None and feature in required_features(configuration.schema, constraints):
        raise InvalidArgument(
            f"the feature {feature} cannot be dropped while the table uses it; {advice}"
        )


def _without_traces(configuration: TableConfiguration, feature: str) -> TableConfiguration:
    traces, properties = _TRACES[feature], configuration.metadata.configuration
    # Other properties are those of users, whatever their names.
    kept = {
        key: value
        for key, value in properties.items()
        if not (key.startswith("delta.") and key.startswith(traces))
    }
    schema = without_metadata(configuration.schema, traces)
    return configuration.with_properties(kept).with_schema(schema)


_TRACES = {
    "appendOnly": ("delta.appendOnly",),
    "invariants": (),
    "checkConstraints": (),
    "changeDataFeed": ("delta.enableChangeDataFeed",),
    "generatedColumns": ("delta.generationExpression",),
    "columnMapping": ("delta.columnMapping.",),
    "identityColumns": ("delta.identity.",),
    "deletionVectors": ("delta.enableDeletionVectors",),
    "rowTracking": ("delta.enableRowTracking", "delta.rowTracking"),
    "domainMetadata": (),
    "timestampNtz": (),
    "typeWidening": ("delta.enableTypeWidening", TYPE_CHANGES_KEY),
    "v2Checkpoint": ("delta.checkpointPolicy",),
    "vacuumProtocolCheck": (),
    "inCommitTimestamp": ("delta.enableInCommitTimestamps", *IN_COMMIT_TIMESTAMP_START_KEYS),
    "clustering": (),
    "allowColumnDefaults": ("CURRENT_DEFAULT",),
    "icebergCompatV1": ("delta.enableIcebergCompatV1",),
    "icebergCompatV2": ("delta.enableIcebergCompatV2",),
    "variantType": (),
    "materializePartitionColumns": ("delta.enableMaterializePartitionColumnsFeature",),
    "variantShredding": ("delta.enableVariantShredding",),
    "checkpointProtection": ("delta.requireCheckpointProtectionBeforeVersion",),
    EXISTING_DEFAULTS_FEATURE: (EXISTING_DEFAULT_KEY,),
}
"""By feature that can be dropped: how the keys of properties and of field metadata begin that go
with it."""

_IF_UNUSED = {
    "invariants": "it cannot be taken from columns that have one",
    "checkConstraints": "drop its CHECK constraints first",
    "timestampNtz": "drop its columns without a time zone first",
    "variantType": "drop its columns that hold variants first",
}
"""By feature that can be dropped only if nothing needs it: what has to be done first."""

_FILES: dict[str, FilesToRewrite] = {
    "columnMapping": "all",
    "deletionVectors": "deletion_vectors",
    "typeWidening": "widened_types",
    "variantShredding": "all",
    EXISTING_DEFAULTS_FEATURE: "without_defaults",
}

_DOMAINS: dict[str, frozenset[str] | None] = {
    "rowTracking": frozenset({ROW_TRACKING_DOMAIN}),
    "clustering": frozenset({"delta.clustering"}),
    "domainMetadata": None,
}
