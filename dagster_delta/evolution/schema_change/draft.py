"""A table configuration that changes action by action."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal

import msgspec

from dagster_delta.engines.plans import Constraint
from dagster_delta.errors import SchemaChangeRefused
from dagster_delta.evolution.column_paths import ColumnPath, Place, dotted, find_place, not_null_sql
from dagster_delta.evolution.plan_report import ENABLE_FEATURES, MissingSwitch
from dagster_delta.evolution.properties.changes import set_properties
from dagster_delta.evolution.table_definition import with_schema
from dagster_delta.protocol.features.table_configuration import TableConfiguration
from dagster_delta.protocol.schema import StructType

StepEffect = Literal["nothing", "metadata", "validates", "rewrites", "converts"]
"""The work that a step requires: no change; only the log changes; existing rows are read and
checked; existing files are rewritten in the commit of the change; or they are rewritten in batches,
by the online change of a column."""


@dataclass(frozen=True, slots=True)
class PlannedStep:
    """One step of a change."""

    what: str
    """Text of the step: `add column c (integer)`."""
    effect: StepEffect = "metadata"


@dataclass(slots=True)
class SchemaDraft:
    """The table after the actions so far."""

    configuration: TableConfiguration
    new_name: Callable[[], str]
    """Makes physical column names that were never used before."""
    domains: dict[str, str]
    enable_features: bool = False
    """Whether features that affect other clients of the table may be enabled as needed."""
    table_version: int | None = None
    """The version that makes the change."""
    keeps_files: bool = False
    """Whether existing rows get the defaults of new columns when they are read."""
    is_dry_run: bool = False
    """Whether a feature that may not be enabled is listed in `missing_switches` instead of
    refused."""
    missing_switches: list[MissingSwitch] = field(default_factory=list)
    steps: list[PlannedStep] = field(default_factory=list)
    changed_domains: dict[str, str] = field(default_factory=dict)
    fills: dict[str, str] = field(default_factory=dict)
    """Default by logical name of the new columns whose default existing rows get."""
    existing_defaults: dict[ColumnPath, str] = field(default_factory=dict)
    """The same by path, if existing rows get it when they are read."""
    materializes_defaults: bool = False
    """Whether to write into files the columns whose default their rows get when they are read."""
    defaults: list[str] = field(default_factory=list)
    """Logical names of the columns whose default changes."""
    required: list[ColumnPath] = field(default_factory=list)
    """Fields that must not be null in existing rows."""
    constraints: dict[str, str] = field(default_factory=dict)
    """Spark SQL by name of the new CHECK constraints that existing rows must satisfy."""

    @property
    def schema(self) -> StructType:
        """Current logical schema."""
        return self.configuration.schema

    def column(self, path: ColumnPath, change: str) -> Place:
        """The struct field at a path; `change` is a participle for the message: `dropped`."""
        place = find_place(self.schema, path)
        if place.steps:
            raise SchemaChangeRefused(
                f"{dotted(place.path)} is part of the type of column {dotted(place.field_path)}, "
                f"and cannot be {change} by itself",
                column=dotted(place.path),
            )
        return place

    def note(self, what: str, effect: StepEffect = "metadata") -> None:
        """Record a step."""
        self.steps.append(PlannedStep(what, effect))

    def set_schema(
        self, schema: StructType, *, partition_columns: tuple[str, ...] | None = None
    ) -> None:
        """Set another logical schema. Raises InvalidArgument if it is invalid."""
        self.configuration = with_schema(
            self.configuration,
            schema,
            partition_columns=partition_columns,
            new_name=self.new_name,
        )

    def set_properties(self, properties: Mapping[str, object]) -> None:
        """Set these properties, and the protocol that they need. Raises InvalidArgument."""
        self.configuration = set_properties(self.configuration, properties, new_name=self.new_name)

    def set_raw_properties(self, properties: Mapping[str, str]) -> None:
        """Set exactly these properties, which the caller has validated."""
        metadata = msgspec.structs.replace(
            self.configuration.metadata, configuration=dict(properties)
        )
        self.configuration = TableConfiguration(self.configuration.protocol, metadata)

    def require_column_mapping(self, change: str) -> None:
        """Make sure that columns have physical names separate from their logical names."""
        if self.configuration.column_mapping_mode != "none":
            return
        self._require(
            f"columns can only be {change} where the table maps them",
            "columnMapping",
            "delta.columnMapping.mode",
            "name",
        )
        self.note("map columns by name: every column gets an id, and keeps its name in the files")

    def require_type_widening(self) -> None:
        """Make sure that types may be widened."""
        if self.configuration.type_widening_enabled:
            return
        self._require(
            "types can only be changed where the table allows it",
            "typeWidening",
            "delta.enableTypeWidening",
            "true",
        )
        self.note("enable type widening")

    def _require(self, why: str, switch: str, key: str, value: str) -> None:
        self.check_switch(why, switch, key, value)
        self.set_properties({key: value})

    def check_switch(self, why: str, switch: str, key: str, value: str) -> None:
        """Make sure that a property that a change needs may be set."""
        if not self.enable_features:
            remedy = (
                f"set the table property {key} = {value} first, in the same statement if you like, "
                f"or {ENABLE_FEATURES}"
            )
            self.miss(why, MissingSwitch(switch, remedy))

    def miss(self, why: str, switch: MissingSwitch) -> None:
        """Refuse a change because of a switch that is off; a dry run lists the switch."""
        if not self.is_dry_run:
            raise SchemaChangeRefused(
                f"{why}: {switch.remedy}; readers and writers must support the feature then"
            )
        self.missing_switches.append(switch)

    def checks(self) -> tuple[Constraint, ...]:
        """Conditions that existing rows must satisfy, over the current columns."""
        required = (
            Constraint(f"NOT NULL {dotted(path)}", not_null_sql(path)) for path in self.required
        )
        named = (Constraint(f"CHECK {name}", sql) for name, sql in self.constraints.items())
        return (*required, *named)

    def follow_rename(self, old: ColumnPath, new: ColumnPath) -> None:
        """Rename a column in everything planned so far."""
        if len(old) == 1 and old[0] in self.fills:
            self.fills[new[0]] = self.fills.pop(old[0])
        self.defaults = [new[0] if (default,) == old else default for default in self.defaults]
        self.existing_defaults = {
            (*new, *planned[len(old) :]) if planned[: len(old)] == old else planned: sql
            for planned, sql in self.existing_defaults.items()
        }
        self.required = [
            (*new, *path[len(old) :]) if path[: len(old)] == old else path for path in self.required
        ]

    def forget(self, path: ColumnPath) -> None:
        """Discard everything planned for a dropped column."""
        if len(path) == 1:
            self.fills.pop(path[0], None)
            self.defaults = [default for default in self.defaults if default != path[0]]
        self.existing_defaults = {
            planned: sql
            for planned, sql in self.existing_defaults.items()
            if planned[: len(path)] != path
        }
        self.required = [required for required in self.required if required[: len(path)] != path]
