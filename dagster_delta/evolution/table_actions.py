"""The effect of changes of constraints, properties and clustering on the configuration of a table.

Spec: CHECK Constraints; Change Metadata (configuration); Clustered Table.
"""

from __future__ import annotations

import re

import msgspec

from dagster_delta.errors import InvalidArgument, InvalidTable, SchemaChangeRefused
from dagster_delta.evolution import actions
from dagster_delta.evolution.column_paths import ColumnPath, dotted
from dagster_delta.evolution.dependants import (
    CLUSTERING_DOMAIN,
    clustering_columns,
    clustering_text,
)
from dagster_delta.evolution.plan import SchemaDraft
from dagster_delta.evolution.properties import unset_properties
from dagster_delta.evolution.required_protocol import upgrade_protocol
from dagster_delta.protocol.checkpoint.structs import statistics_columns
from dagster_delta.protocol.features.column_mapping import physical_name
from dagster_delta.protocol.features.table_configuration import TableConfiguration
from dagster_delta.protocol.schema import ArrayType, MapType, PrimitiveType, StructType
from dagster_delta.protocol.table_properties import CONSTRAINT_PREFIX
from dagster_delta.sql.expressions import parse_expression
from dagster_delta.sql.table_expressions import check_table_expression

_CONSTRAINT_NAME = re.compile(r"[\w -]+")
_MAX_CLUSTERING_COLUMNS = 4


def add_constraint(draft: SchemaDraft, action: actions.AddConstraint) -> None:
    """Add a CHECK on every row, if every existing row satisfies it."""
    name = action.name.lower()
    properties = dict(draft.configuration.metadata.configuration)
    if not _CONSTRAINT_NAME.fullmatch(name):
        raise InvalidArgument(
            f"{action.name!r} is not a valid constraint name: use letters and digits"
        )
    if (taken := _find_constraint(properties, name)) is not None:
        raise InvalidArgument(
            f"there is a constraint {name} already ({properties[taken]}); drop it first, or choose "
            "another name"
        )
    expression = parse_expression(action.expression, draft.schema)
    expression.check_filter()
    check_table_expression(action.expression, draft.schema, f"CHECK {name}")
    properties[f"{CONSTRAINT_PREFIX}{name}"] = action.expression
    upgraded = upgrade_protocol(draft.configuration.protocol, ["checkConstraints"])
    metadata = msgspec.structs.replace(draft.configuration.metadata, configuration=properties)
    draft.configuration = TableConfiguration(upgraded, metadata)
    draft.constraints[name] = action.expression
    draft.note(f"add constraint {name}: CHECK ({action.expression})", "validates")


def _find_constraint(properties: dict[str, str], name: str) -> str | None:
    """The key of a constraint, by case-insensitive name."""
    key = f"{CONSTRAINT_PREFIX}{name}".casefold()
    return next((spelled for spelled in properties if spelled.casefold() == key), None)


def drop_constraint(draft: SchemaDraft, action: actions.DropConstraint) -> None:
    """Drop a CHECK constraint."""
    properties = dict(draft.configuration.metadata.configuration)
    key = _find_constraint(properties, action.name)
    if key is None and action.if_exists:
        draft.note(f"there is no constraint {action.name}", "nothing")
        return
    if key is None:
        names = draft.configuration.properties.constraints
        raise InvalidArgument(
            f"there is no constraint {action.name}; there are {', '.join(names) or 'none'}"
        )
    sql = properties.pop(key)
    draft.configuration = draft.configuration.with_properties(properties)
    name = key.removeprefix(CONSTRAINT_PREFIX)
    draft.constraints.pop(name, None)
    draft.note(f"drop constraint {name} ({sql})")


def change_properties(draft: SchemaDraft, action: actions.SetProperties) -> None:
    """Set table properties."""
    before = draft.configuration
    draft.set_properties(action.properties)
    listed = ", ".join(f"{key} = {value}" for key, value in action.properties.items())
    if draft.configuration == before:
        draft.note(f"{listed}: set already", "nothing")
    else:
        draft.note(f"set {listed}")


def drop_properties(draft: SchemaDraft, action: actions.UnsetProperties) -> None:
    """Unset table properties."""
    before = draft.configuration
    draft.configuration = unset_properties(before, action.keys, if_exists=action.if_exists)
    listed = ", ".join(action.keys)
    if draft.configuration == before:
        draft.note(f"{listed}: not set", "nothing")
    else:
        draft.note(f"unset {listed}")


def set_table_comment(draft: SchemaDraft, action: actions.SetTableComment) -> None:
    """Set the description of the table."""
    metadata = msgspec.structs.replace(draft.configuration.metadata, description=action.comment)
    draft.configuration = TableConfiguration(draft.configuration.protocol, metadata)
    draft.note("set the description of the table" if action.comment else "drop the description")


def cluster_by(draft: SchemaDraft, action: actions.ClusterBy) -> None:
    """Set the clustering columns, for files written or optimised from now on."""
    configuration = draft.configuration
    if configuration.partition_columns and action.columns:
        raise SchemaChangeRefused(
            f"the table is partitioned by {', '.join(configuration.partition_columns)}, and a "
            "table is either partitioned or clustered"
        )
    if len(action.columns) > _MAX_CLUSTERING_COLUMNS:
        raise InvalidArgument(f"a table is clustered by up to {_MAX_CLUSTERING_COLUMNS} columns")
    paths = tuple(draft.column(column, "clustered by").path for column in action.columns)
    if len(set(paths)) != len(paths):
        raise InvalidArgument(f"CLUSTER BY names a column twice: {', '.join(map(dotted, paths))}")
    if paths == _current_clustering(draft):
        draft.note("the table is clustered that way already", "nothing")
        return
    physical = [_clusterable(configuration, path) for path in paths]
    upgraded = upgrade_protocol(configuration.protocol, ["clustering", "domainMetadata"])
    draft.configuration = TableConfiguration(upgraded, configuration.metadata)
    text = clustering_text(physical)
    draft.changed_domains[CLUSTERING_DOMAIN] = text
    draft.domains = {**draft.domains, CLUSTERING_DOMAIN: text}
    columns = ", ".join(map(dotted, paths))
    draft.note(f"cluster by {columns}" if columns else "cluster no longer")


def _current_clustering(draft: SchemaDraft) -> tuple[ColumnPath, ...] | None:
    """None if a clustering column was dropped; setting other clustering columns repairs this."""
    try:
        return clustering_columns(draft.configuration, draft.domains)
    except InvalidTable:
        return None


def _clusterable(configuration: TableConfiguration, path: ColumnPath) -> list[str]:
    column = dotted(path)
    fields = configuration.schema.fields_along(path)
    if len(fields) < len(path):
        raise SchemaChangeRefused(
            f"column {column} lies in an array or a map, by which nothing is clustered",
            column=column,
        )
    level = fields[-1].data_type
    physical = [physical_name(field, configuration.column_mapping_mode) for field in fields]
    if isinstance(level, StructType | ArrayType | MapType) or level in (
        PrimitiveType("boolean"),
        PrimitiveType("binary"),
        PrimitiveType("variant"),
    ):
        raise SchemaChangeRefused(
            f"column {column} is of type {level}, by which nothing is clustered", column=column
        )
    if tuple(physical) not in {column.path for column in statistics_columns(configuration)}:
        # Spec: writers MUST write per-file statistics on the clustering columns.
        raise SchemaChangeRefused(
            f"column {column} has no statistics, which clustering needs; move it to the front, or "
            "add it to delta.dataSkippingStatsColumns",
            column=column,
        )
    return physical
