"""Changes of columns, and of a table as a whole, as actions, one class per kind, and the effect of
each on its table.

Spec: Column Mapping; Type Widening; Default Columns; Schema Serialization Format; CHECK
Constraints; Change Metadata (configuration); Clustered Table.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import ClassVar, Literal

import msgspec
from msgspec.structs import replace

from dagster_delta.errors import (
    InvalidArgument,
    InvalidTable,
    SchemaChangeRefused,
    SchemaMismatch,
)
from dagster_delta.evolution.column_paths import (
    ColumnPath,
    Place,
    change_field,
    change_struct,
    dotted,
    find_place,
    is_reached_through_structs,
    with_nullability,
)
from dagster_delta.evolution.column_rules import layout_problem
from dagster_delta.evolution.dependants import (
    CLUSTERING_DOMAIN,
    clustering_columns,
    clustering_domain,
    expression_dependants,
    follow_column,
    is_identity,
    placement_dependants,
    refuse_dependants,
)
from dagster_delta.evolution.merge_schema import records_versions, widened_field
from dagster_delta.evolution.plan import SchemaDraft
from dagster_delta.evolution.plan_report import describe_field
from dagster_delta.evolution.properties import normalize_properties, unset_properties
from dagster_delta.evolution.required_protocol import upgrade_protocol
from dagster_delta.protocol.features.column_change import Position
from dagster_delta.protocol.features.column_mapping import physical_name
from dagster_delta.protocol.features.column_values import DEFAULT_KEY, GENERATION_KEY
from dagster_delta.protocol.features.table_configuration import TableConfiguration
from dagster_delta.protocol.features.text_limits import TEXT_LIMIT_KEY
from dagster_delta.protocol.schema import DataType, StructField, StructType, fold_name
from dagster_delta.protocol.table_properties import CONSTRAINT_PREFIX
from dagster_delta.sql.expressions import parse_expression
from dagster_delta.sql.table_expressions import check_table_expression
from dagster_delta.sql.types import STRING, VOID

_CONSTRAINT_NAME = re.compile(r"[\w -]+")
_MAX_CLUSTERING_COLUMNS = 4
_UNCLUSTERED = frozenset({"boolean", "binary", "variant", "void"})


class SchemaAction(msgspec.Struct, frozen=True):
    """One change of a schema."""

    operation: ClassVar[str] = "CHANGE COLUMN"
    """Its name in other engines."""

    @property
    def parameters(self) -> Mapping[str, object]:
        """What the history of a table says of it beside the steps."""
        return {}

    def apply(self, draft: SchemaDraft) -> None:
        """Apply the change to the table as the actions before it leave it."""
        raise NotImplementedError


class AddColumn(SchemaAction, frozen=True):
    """Add a column, or a field of a struct."""

    operation: ClassVar[str] = "ADD COLUMNS"
    path: ColumnPath
    """Path of the struct, then the new name."""
    data_type: DataType
    nullable: bool = True
    default: str | None = None
    """Spark SQL for rows that have no value; top-level columns only."""
    comment: str | None = None
    position: Position | None = None
    """None puts it last."""
    if_not_exists: bool = False

    def apply(self, draft: SchemaDraft) -> None:
        """Add the field, null in existing rows unless they get its default."""
        parent = find_place(draft.schema, self.path[:-1]).path if self.path[1:] else ()
        path = (*parent, self.path[-1])
        column = dotted(path)
        if (taken := _find_optional_place(draft, path)) is not None:
            if not self.if_not_exists:
                raise _describe_taken_name(taken)
            draft.note(f"there is a column {dotted(taken.path)} already", "nothing")
            return
        self._check_new(draft, path)
        default = default_of(self.default)
        metadata: dict[str, object] = {}
        if self.comment is not None:
            metadata["comment"] = self.comment
        if default is not None and len(path) == 1:
            metadata[DEFAULT_KEY] = default
        field = StructField(path[-1], self.data_type, self.nullable, metadata)
        draft.set_schema(
            change_struct(
                draft.schema,
                parent,
                lambda struct: _insert_field(struct, field, self.position, column),
            )
        )
        fills = default is not None and draft.existing_rows == "rewrite"
        draft.note(
            f"add column {column} ({describe_field(field, default)})",
            "rewrites" if fills else "metadata",
        )
        if not self.nullable:
            draft.work["not_null", path] = ""
        if default is not None:
            draft.work["lazy" if draft.existing_rows == "lazy" else "fill", path] = default
            if len(path) == 1:
                draft.work["default", path] = default

    def _check_new(self, draft: SchemaDraft, path: ColumnPath) -> None:
        column = dotted(path)
        is_reached = is_reached_through_structs(draft.schema, path)
        if (
            self.default is not None
            and len(path) > 1
            and not (draft.existing_rows == "lazy" and is_reached)
        ):
            raise InvalidArgument(
                f"field {column} cannot have a default: only whole columns have one; a field of a "
                'struct can have one for existing rows alone, with existing_rows="lazy"',
                column=column,
            )
        if not self.nullable and not is_reached:
            raise InvalidArgument(
                f"field {column} lies in an array or a map and cannot be NOT NULL: existing "
                "elements have none",
                column=column,
            )


def _find_optional_place(draft: SchemaDraft, path: ColumnPath) -> Place | None:
    try:
        return find_place(draft.schema, path)
    except SchemaMismatch:
        return None


def _describe_taken_name(place: Place) -> InvalidArgument:
    column = dotted(place.path)
    return InvalidArgument(
        f"there is a column {column} already; choose another name", column=column
    )


def default_of(sql: str | None) -> str | None:
    """The default; None for the literal NULL, which is none."""
    return None if sql is None or sql.strip().casefold() == "null" else sql


class DropColumn(SchemaAction, frozen=True):
    """Drop a column or field. Data files keep it, and readers ignore it."""

    operation: ClassVar[str] = "DROP COLUMNS"
    path: ColumnPath
    if_exists: bool = False

    def apply(self, draft: SchemaDraft) -> None:
        """Drop the field; its id and its physical name are never reused."""
        if self.if_exists and _find_optional_place(draft, self.path) is None:
            draft.note(f"there is no column {dotted(self.path)}", "nothing")
            return
        place = draft.column(self.path, "dropped")
        path = place.path
        configuration = draft.configuration
        dependants = [
            *placement_dependants(configuration, path, draft.domains),
            *expression_dependants(configuration, path, with_own=False),
        ]
        refuse_dependants(path, "dropped", dependants)
        siblings = draft.schema if len(path) == 1 else find_place(draft.schema, path[:-1]).data_type
        if isinstance(siblings, StructType) and len(siblings) == 1:
            what = "the table" if len(path) == 1 else f"struct {dotted(path[:-1])}"
            raise SchemaChangeRefused(
                f"column {dotted(path)} cannot be dropped, as {what} has no other; drop the whole "
                "instead",
                column=dotted(path),
            )
        draft.require_column_mapping("dropped")
        draft.configuration = follow_column(draft.configuration, path, None)
        draft.set_schema(
            change_struct(
                draft.schema,
                path[:-1],
                lambda struct: StructType(tuple(f for f in struct if f.name != path[-1])),
            )
        )
        draft.follow(path, None)
        draft.note(f"drop column {dotted(path)} ({place.data_type})")


class RenameColumn(SchemaAction, frozen=True):
    """Rename a column or field, in the same position."""

    operation: ClassVar[str] = "RENAME COLUMN"
    path: ColumnPath
    new_name: str

    def apply(self, draft: SchemaDraft) -> None:
        """Change the logical name; the physical name stays."""
        path = draft.column(self.path, "renamed").path
        new_path = (*path[:-1], self.new_name)
        if new_path == path:
            draft.note(f"column {dotted(path)} has that name already", "nothing")
            return
        taken = _find_optional_place(draft, new_path)
        if taken is not None and taken.path != path:
            raise _describe_taken_name(taken)
        refuse_dependants(path, "renamed", list(expression_dependants(draft.configuration, path)))
        draft.require_column_mapping("renamed")
        draft.configuration = follow_column(draft.configuration, path, new_path)
        schema = change_field(draft.schema, path, lambda field: replace(field, name=self.new_name))
        partition_columns = tuple(
            self.new_name if (name,) == path else name
            for name in draft.configuration.partition_columns
        )
        draft.set_schema(schema, partition_columns=partition_columns)
        draft.follow(path, new_path)
        draft.note(f"rename column {dotted(path)} to {dotted((self.new_name,))}")


class ChangeType(SchemaAction, frozen=True):
    """Change the type of a column, field, array element, map key or map value."""

    path: ColumnPath
    data_type: DataType
    using: str | None = None
    """Spark SQL over the row for the new value; None: CAST of the value."""

    def apply(self, draft: SchemaDraft) -> None:
        """Widen the type and record the change in the field; files keep their type."""
        place = find_place(draft.schema, self.path)
        column = dotted(place.path)
        version = draft.table_version if records_versions(draft.configuration) else None
        field = widened_field(place, self.data_type, version)
        if field == place.field:
            unlimited = field.without(TEXT_LIMIT_KEY)
            if place.steps or field.data_type != STRING or unlimited == field:
                draft.note(f"column {column} is of type {place.data_type} already", "nothing")
                return
            draft.set_schema(change_field(draft.schema, place.field_path, lambda _: unlimited))
            draft.note(f"lift the limit on the length of column {column}")
            return
        _refuse_type_dependants(draft, place)
        if place.data_type != VOID:
            draft.require_type_widening()
        draft.set_schema(change_field(draft.schema, place.field_path, lambda _: field))
        draft.note(f"widen column {column} from {place.data_type} to {self.data_type}")


def _refuse_type_dependants(draft: SchemaDraft, place: Place) -> None:
    path = place.field_path
    dependants = list(expression_dependants(draft.configuration, path))
    if is_identity(draft.configuration, path):
        dependants.append("its identity, which counts in 64-bit integers")
    refuse_dependants(path, f"changed from {place.data_type}", dependants)


class SetNullable(SchemaAction, frozen=True):
    """Make a column NOT NULL, or a column, array element or map value nullable."""

    path: ColumnPath
    nullable: bool

    def apply(self, draft: SchemaDraft) -> None:
        """Say whether it may be null; existing rows are checked if it may not."""
        place = find_place(draft.schema, self.path)
        column = dotted(place.path)
        if self.nullable and place.steps[-1:] == ("key",):
            raise SchemaChangeRefused(
                f"{column} is a map key, and keys are never null", column=column
            )
        schema = with_nullability(draft.schema, place.path, self.nullable)
        if schema == draft.schema:
            how = "nullable" if self.nullable else "NOT NULL"
            draft.note(f"column {column} is {how} already", "nothing")
            return
        if not self.nullable and not is_reached_through_structs(schema, place.path):
            raise SchemaChangeRefused(
                f"column {column} lies in an array or a map and cannot be made NOT NULL",
                column=column,
            )
        draft.set_schema(schema)
        if self.nullable:
            draft.work.pop(("not_null", place.path), None)
            draft.note(f"drop NOT NULL from column {column}")
        else:
            draft.work["not_null", place.path] = ""
            draft.note(f"set NOT NULL on column {column}", "validates")


class SetDefault(SchemaAction, frozen=True):
    """Set the default for rows written from now on; None removes it."""

    path: ColumnPath
    expression: str | None
    """Spark SQL."""

    def apply(self, draft: SchemaDraft) -> None:
        """Set or remove the default; existing rows keep their values."""
        default = default_of(self.expression)
        change = "without a default" if default is None else "given a default"
        place = draft.column(self.path, change)
        column = dotted(place.path)
        if default is not None:
            self._check_new(draft, place)
            draft.work["default", place.path] = default
            draft.note(f"set the default of column {column} to {default}, for future rows")
        elif DEFAULT_KEY in place.field.metadata:
            draft.work.pop(("default", place.path), None)
            draft.note(f"drop the default of column {column}")
        else:
            draft.note(f"column {column} has no default", "nothing")
            return
        _set_metadata(draft, place, DEFAULT_KEY, default)

    def _check_new(self, draft: SchemaDraft, place: Place) -> None:
        column = dotted(place.path)
        if len(place.path) > 1:
            raise SchemaChangeRefused(
                f"field {column} cannot have a default: only whole columns have one", column=column
            )
        if GENERATION_KEY in place.field.metadata or is_identity(draft.configuration, place.path):
            raise SchemaChangeRefused(
                f"column {column} cannot have a default: its values are computed by the writers",
                column=column,
            )


def _set_metadata(draft: SchemaDraft, place: Place, key: str, value: str | None) -> None:
    field = place.field.without(key)
    if value is not None:
        field = replace(field, metadata={**field.metadata, key: value})
    draft.set_schema(change_field(draft.schema, place.path, lambda _: field))


class SetComment(SchemaAction, frozen=True):
    """Set the comment of a column; None removes it."""

    path: ColumnPath
    comment: str | None

    def apply(self, draft: SchemaDraft) -> None:
        """Change or remove the comment."""
        place = draft.column(self.path, "commented on")
        _set_metadata(draft, place, "comment", self.comment or None)
        verb = "set the comment on" if self.comment else "drop the comment of"
        draft.note(f"{verb} column {dotted(place.path)}")


class MoveColumn(SchemaAction, frozen=True):
    """Move a field within its struct."""

    path: ColumnPath
    position: Position

    def apply(self, draft: SchemaDraft) -> None:
        """Move the field among its siblings."""
        place = draft.column(self.path, "moved")
        column = dotted(place.path)
        after = self.position.after
        if after is not None and fold_name(after) == fold_name(place.path[-1]):
            raise InvalidArgument(f"column {column} cannot be placed after itself", column=column)

        def moved(parent: StructType) -> StructType:
            rest = StructType(tuple(field for field in parent if field.name != place.path[-1]))
            return _insert_field(rest, place.field, self.position, column)

        draft.set_schema(change_struct(draft.schema, place.path[:-1], moved))
        where = "first" if after is None else f"after {after}"
        draft.note(f"move column {column} {where}")


def _insert_field(
    parent: StructType, field: StructField, position: Position | None, column: str
) -> StructType:
    fields = list(parent)
    fields.insert(len(fields) if position is None else _index_of(parent, position, column), field)
    return StructType(tuple(fields))


def _index_of(parent: StructType, position: Position, column: str) -> int:
    if position.after is None:
        return 0
    before = parent.get(position.after)
    if before is None:
        raise SchemaMismatch(
            f"column {column} cannot be placed after {position.after}, which is not on the same "
            f"level; the columns there are {', '.join(parent.names)}",
            column=column,
        )
    return parent.fields.index(before) + 1


# The table as a whole


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
    key = fold_name(f"{CONSTRAINT_PREFIX}{name}")
    return next((spelled for spelled in properties if fold_name(spelled) == key), None)


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
        physical = [_resolve_clustering_path(configuration, path) for path in paths]
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


def _resolve_clustering_path(configuration: TableConfiguration, path: ColumnPath) -> list[str]:
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
