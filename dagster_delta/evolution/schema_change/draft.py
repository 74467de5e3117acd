"""A table configuration on its way from one version to the next, action by action."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal

import msgspec

from dagster_delta.engines.plans import Constraint
from dagster_delta.errors import SchemaChangeRefused
from dagster_delta.evolution.column_paths import (
    ColumnPath,
    Place,
    dotted,
    find_place,
    not_null_sql,
)
from dagster_delta.evolution.missing_switch import ENABLE_FEATURES, MissingSwitch
from dagster_delta.evolution.properties.changes import set_properties
from dagster_delta.evolution.table_definition import with_schema
from dagster_delta.protocol.features.table_configuration import TableConfiguration
from dagster_delta.protocol.schema import StructType

__all__ = ["PlannedStep", "SchemaDraft", "StepEffect"]

StepEffect = Literal["nothing", "metadata", "validates", "rewrites", "converts"]
"""What a step asks of the data: nothing changes at all; the log alone changes; existing rows are
read to see whether they fit; existing files are written again, in the commit of the change; or they
are written again in batches, by the online change of a column."""


@dataclass(frozen=True, slots=True)
class PlannedStep:
    """One thing that a change does."""

    what: str
    """As a clause: `add column c (integer)`."""
    effect: StepEffect = "metadata"


@dataclass(slots=True)
class SchemaDraft:
    """What the actions so far make of a table.

    Args:
        configuration: protocol and metadata, as they are and as they become.
        new_name: makes physical column names that no other column ever had.
        domains: configuration of the metadata domains in force, by name.
        enable_features: whether features that change how other clients see the table may be
            enabled as needed.
        table_version: the version that makes the change.
        keeps_files: whether existing rows get the defaults of new columns when they are read.
    """

    configuration: TableConfiguration
    new_name: Callable[[], str]
    domains: dict[str, str]
    enable_features: bool = False
    table_version: int | None = None
    keeps_files: bool = False
    is_dry_run: bool = False
    """Whether a feature that may not be enabled is noted in `missing_switches`, not refused."""
    missing_switches: list[MissingSwitch] = field(default_factory=list)
    steps: list[PlannedStep] = field(default_factory=list)
    changed_domains: dict[str, str] = field(default_factory=dict)
    fills: dict[str, str] = field(default_factory=dict)
    """Default by logical name of the new column whose default existing rows are to get."""
    existing_defaults: dict[ColumnPath, str] = field(default_factory=dict)
    """The same by path where existing rows get it when they are read."""
    materializes_defaults: bool = False
    """Whether files get the columns whose default their rows take when they are read."""
    defaults: list[str] = field(default_factory=list)
    """Logical names of the columns that get another default."""
    required: list[ColumnPath] = field(default_factory=list)
    """Fields that existing rows must not have null."""
    constraints: dict[str, str] = field(default_factory=dict)
    """Spark SQL by name of the new CHECK constraint that existing rows have to satisfy."""

    @property
    def schema(self) -> StructType:
        """Logical schema as it is now."""
        return self.configuration.schema

    def place(self, path: ColumnPath) -> Place:
        """What a path leads to. Raises SchemaMismatch where that is nothing."""
        return find_place(self.schema, path)

    def column(self, path: ColumnPath, change: str) -> Place:
        """The struct field that a path leads to.

        Args:
            path: as the caller spells it.
            change: participle for the message: `dropped`.

        Raises:
            SchemaMismatch: the path leads to nothing.
            SchemaChangeRefused: it leads into an array or a map, to no field.
        """
        place = self.place(path)
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
        """Go on under another logical schema. Raises InvalidArgument where it makes no sense."""
        self.configuration = with_schema(
            self.configuration,
            schema,
            partition_columns=partition_columns,
            new_name=self.new_name,
        )

    def set_properties(self, properties: Mapping[str, object]) -> None:
        """Go on with these properties, under the protocol they need. Raises InvalidArgument."""
        self.configuration = set_properties(self.configuration, properties, new_name=self.new_name)

    def set_raw_properties(self, properties: Mapping[str, str]) -> None:
        """Go on with exactly these properties, which the caller knows to make sense."""
        metadata = msgspec.structs.replace(
            self.configuration.metadata, configuration=dict(properties)
        )
        self.configuration = TableConfiguration(self.configuration.protocol, metadata)

    def require_column_mapping(self, change: str) -> None:
        """Make sure that columns have names in files apart from their logical ones.

        Raises:
            SchemaChangeRefused: they do not, and features may not be enabled.
        """
        if self.configuration.column_mapping_mode != "none":
            return
        self._refuse_unless_enabling(
            f"columns can only be {change} where the table maps them",
            "columnMapping",
            "delta.columnMapping.mode = name",
        )
        self.set_properties({"delta.columnMapping.mode": "name"})
        self.note("map columns by name: every column gets an id, and keeps its name in the files")

    def require_type_widening(self) -> None:
        """Make sure that types may be widened.

        Raises:
            SchemaChangeRefused: they may not, and features may not be enabled.
        """
        if self.configuration.type_widening_enabled:
            return
        self._refuse_unless_enabling(
            "types can only be changed where the table allows it",
            "typeWidening",
            "delta.enableTypeWidening = true",
        )
        self.set_properties({"delta.enableTypeWidening": "true"})
        self.note("enable type widening")

    def _refuse_unless_enabling(self, why: str, feature: str, setting: str) -> None:
        if self.enable_features:
            return
        switch = MissingSwitch(
            feature,
            f"set the table property {setting} first, in the same statement if you like, or "
            f"{ENABLE_FEATURES}",
        )
        if not self.is_dry_run:
            raise SchemaChangeRefused(
                f"{why}: {switch.remedy}; readers and writers must support the feature then"
            )
        self.missing_switches.append(switch)

    def checks(self) -> tuple[Constraint, ...]:
        """What existing rows have to satisfy, over the columns as they are now."""
        required = (
            Constraint(f"NOT NULL {dotted(each)}", not_null_sql(each)) for each in self.required
        )
        named = (Constraint(f"CHECK {name}", sql) for name, sql in self.constraints.items())
        return (*required, *named)

    def follow_rename(self, old: ColumnPath, new: ColumnPath) -> None:
        """Let what was planned for a column go on under its new name."""
        if len(old) == 1 and old[0] in self.fills:
            self.fills[new[0]] = self.fills.pop(old[0])
        self.defaults = [new[0] if (each,) == old else each for each in self.defaults]
        self.existing_defaults = {
            (*new, *each[len(old) :]) if each[: len(old)] == old else each: sql
            for each, sql in self.existing_defaults.items()
        }
        self.required = [
            (*new, *each[len(old) :]) if each[: len(old)] == old else each for each in self.required
        ]

    def forget(self, path: ColumnPath) -> None:
        """Drop what was planned for a column that goes."""
        if len(path) == 1:
            self.fills.pop(path[0], None)
            self.defaults = [each for each in self.defaults if each != path[0]]
        self.existing_defaults = {
            each: sql for each, sql in self.existing_defaults.items() if each[: len(path)] != path
        }
        self.required = [each for each in self.required if each[: len(path)] != path]
