"""Changes of a table as a whole as actions, one class per kind, and the effect of each.

Spec: CHECK Constraints; Change Metadata (configuration); Clustered Table.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import ClassVar, Literal

import msgspec

from dagster_delta.errors import InvalidArgument, InvalidTable, SchemaChangeRefused
from dagster_delta.evolution.actions import SchemaAction
from dagster_delta.evolution.column_paths import ColumnPath, dotted
from dagster_delta.evolution.column_rules import layout_problem
from dagster_delta.evolution.dependants import (
    CLUSTERING_DOMAIN,
    clustering_columns,
    clustering_domain,
)
from dagster_delta.evolution.plan import SchemaDraft
from dagster_delta.evolution.properties import normalize_properties, unset_properties
from dagster_delta.evolution.required_protocol import upgrade_protocol
from dagster_delta.protocol.features.column_mapping import physical_name
from dagster_delta.protocol.features.table_configuration import TableConfiguration
from dagster_delta.protocol.table_properties import CONSTRAINT_PREFIX
from dagster_delta.sql.expressions import parse_expression
from dagster_delta.sql.table_expressions import check_table_expression

_CONSTRAINT_NAME = re.compile(r"[\w -]+")
_MAX_CLUSTERING_COLUMNS = 4
_UNCLUSTERED = frozenset({"boolean", "binary", "variant", "void"})


class AddConstraint(SchemaAction, frozen=True):
    """Add a named CHECK constraint; existing rows are checked."""

    operation: ClassVar[str] = "ADD CONSTRAINT"
    name: str
    expression: str
    """Spark SQL that must be true for every row."""

    def apply(self, draft: SchemaDraft) -> None:
        """Add the CHECK, if every existing row satisfies it."""
        name = self.name.lower()
        properties = dict(draft.configuration.metadata.configuration)
        if not _CONSTRAINT_NAME.fullmatch(name):
            raise InvalidArgument(
                f"{self.name!r} is not a valid constraint name: use letters and digits"
            )
        if (taken := _find_constraint(properties, name)) is not None:
            raise InvalidArgument(
                f"there is a constraint {name} already ({properties[taken]}); drop it first, or "
                "choose another name"
            )
        expression = parse_expression(self.expression, draft.schema)
        expression.check_filter()
        check_table_expression(self.expression, draft.schema, f"CHECK {name}")
        properties[f"{CONSTRAINT_PREFIX}{name}"] = self.expression
        upgraded = upgrade_protocol(draft.configuration.protocol, ["checkConstraints"])
        metadata = msgspec.structs.replace(draft.configuration.metadata, configuration=properties)
        draft.configuration = TableConfiguration(upgraded, metadata)
        draft.constraints[name] = self.expression
        draft.note(f"add constraint {name}: CHECK ({self.expression})", "validates")


def _find_constraint(properties: dict[str, str], name: str) -> str | None:
    """The key of a constraint, by case-insensitive name."""
    key = f"{CONSTRAINT_PREFIX}{name}".casefold()
    return next((spelled for spelled in properties if spelled.casefold() == key), None)


class DropConstraint(SchemaAction, frozen=True):
    """Drop a CHECK constraint."""

    operation: ClassVar[str] = "DROP CONSTRAINT"
    name: str
    if_exists: bool = False

    def apply(self, draft: SchemaDraft) -> None:
        """Drop the CHECK."""
        properties = dict(draft.configuration.metadata.configuration)
        key = _find_constraint(properties, self.name)
        if key is None and self.if_exists:
            draft.note(f"there is no constraint {self.name}", "nothing")
            return
        if key is None:
            names = draft.configuration.properties.constraints
            raise InvalidArgument(
                f"there is no constraint {self.name}; there are {', '.join(names) or 'none'}"
            )
        sql = properties.pop(key)
        draft.configuration = draft.configuration.with_properties(properties)
        name = key.removeprefix(CONSTRAINT_PREFIX)
        draft.constraints.pop(name, None)
        draft.note(f"drop constraint {name} ({sql})")


class SetProperties(SchemaAction, frozen=True):
    """Set table properties."""

    operation: ClassVar[str] = "SET TBLPROPERTIES"
    properties: Mapping[str, object] = {}

    @property
    def parameters(self) -> Mapping[str, object]:
        """The properties as they are stored."""
        return {"properties": normalize_properties(self.properties)}

    def apply(self, draft: SchemaDraft) -> None:
        """Set the properties, and the protocol that they need."""
        before = draft.configuration
        draft.set_properties(self.properties)
        listed = ", ".join(f"{key} = {value}" for key, value in self.properties.items())
        if draft.configuration == before:
            draft.note(f"{listed}: set already", "nothing")
        else:
            draft.note(f"set {listed}")


class UnsetProperties(SchemaAction, frozen=True):
    """Unset table properties."""

    operation: ClassVar[str] = "UNSET TBLPROPERTIES"
    keys: tuple[str, ...]
    if_exists: bool = False

    def apply(self, draft: SchemaDraft) -> None:
        """Unset the properties; the protocol does not change."""
        before = draft.configuration
        draft.configuration = unset_properties(before, self.keys, if_exists=self.if_exists)
        listed = ", ".join(self.keys)
        if draft.configuration == before:
            draft.note(f"{listed}: not set", "nothing")
        else:
            draft.note(f"unset {listed}")


class SetTableText(SchemaAction, frozen=True):
    """Set the name or the description of the table; None removes it."""

    operation: ClassVar[str] = "UPDATE TABLE METADATA"
    field: Literal["name", "description"]
    text: str | None

    def apply(self, draft: SchemaDraft) -> None:
        """Change or remove the text."""
        metadata = msgspec.structs.replace(draft.configuration.metadata, **{self.field: self.text})
        draft.configuration = TableConfiguration(draft.configuration.protocol, metadata)
        what = f"the {self.field} of the table"
        draft.note(f"set {what} to {self.text!r}" if self.text else f"drop {what}")


class ClusterBy(SchemaAction, frozen=True):
    """Set the clustering columns; an empty list turns clustering off."""

    operation: ClassVar[str] = "CLUSTER BY"
    columns: tuple[ColumnPath, ...]

    def apply(self, draft: SchemaDraft) -> None:
        """Set the clustering columns, for files written or optimised from now on."""
        configuration = draft.configuration
        if configuration.partition_columns and self.columns:
            raise SchemaChangeRefused(
                f"the table is partitioned by {', '.join(configuration.partition_columns)}, and a "
                "table is either partitioned or clustered"
            )
        if len(self.columns) > _MAX_CLUSTERING_COLUMNS:
            raise InvalidArgument(
                f"a table is clustered by up to {_MAX_CLUSTERING_COLUMNS} columns"
            )
        paths = tuple(draft.column(column, "clustered by").path for column in self.columns)
        if len(set(paths)) != len(paths):
            raise InvalidArgument(
                f"CLUSTER BY names a column twice: {', '.join(map(dotted, paths))}"
            )
        if paths == _current_clustering(draft):
            draft.note("the table is clustered that way already", "nothing")
            return
        physical = [_clusterable(configuration, path) for path in paths]
        upgraded = upgrade_protocol(configuration.protocol, ["clustering", "domainMetadata"])
        draft.configuration = TableConfiguration(upgraded, configuration.metadata)
        draft.domains = {**draft.domains, CLUSTERING_DOMAIN: clustering_domain(physical)}
        columns = ", ".join(map(dotted, paths))
        draft.note(f"cluster by {columns}" if columns else "cluster no longer")


def _current_clustering(draft: SchemaDraft) -> tuple[ColumnPath, ...] | None:
    """None if a clustering column was dropped; setting other clustering columns repairs this."""
    try:
        return clustering_columns(draft.configuration, draft.domains)
    except InvalidTable:
        return None


def _clusterable(configuration: TableConfiguration, path: ColumnPath) -> list[str]:
    if problem := layout_problem(configuration, path, unordered=_UNCLUSTERED):
        column = dotted(path)
        raise SchemaChangeRefused(
            f"the table cannot be clustered by column {column}: {problem}", column=column
        )
    mode = configuration.column_mapping_mode
    return [physical_name(field, mode) for field in configuration.schema.fields_along(path)]


class DropFeature(SchemaAction, frozen=True):
    """Drop a table feature; the only action of its statement."""

    name: str
    truncate_history: bool = False

    def apply(self, draft: SchemaDraft) -> None:  # noqa: ARG002
        """Refuse it: dropping a feature is a statement of several commits."""
        raise InvalidArgument(
            f"dropping the feature {self.name} takes several commits, so it has to be the only "
            "action of its statement"
        )
