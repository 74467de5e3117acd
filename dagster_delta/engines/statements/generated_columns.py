"""Generated columns in a statement: which ones to compute, and the constraints on given ones.

Spec: Generated Columns.
"""

from __future__ import annotations

from collections.abc import Collection

from msgspec.structs import replace

from dagster_delta.engines.plans import Constraint
from dagster_delta.protocol.features.column_values import (
    ColumnExpression,
    ColumnValues,
    updated_values,
)
from dagster_delta.protocol.features.table_configuration import TableConfiguration
from dagster_delta.sql.expressions import parse_expression
from dagster_delta.sql.tokens import quote


def generation_constraints(values: ColumnValues) -> tuple[Constraint, ...]:
    """The constraints on generated columns that the data contain."""
    # Spec: (<value> <=> <generation expression>) IS TRUE.
    return tuple(
        Constraint(
            f"GENERATED {column.column}", f"{quote(column.column)} <=> {_parenthesised(column)}"
        )
        for column in values.verified
    )


def _parenthesised(column: ColumnExpression) -> str:
    # A line break ends a comment at the end of the text.
    return f"({column.sql}\n)" if "--" in column.sql else f"({column.sql})"


def changed_values(configuration: TableConfiguration, assigned: Collection[str]) -> ColumnValues:
    """How to complete rows of a table that get new values in some columns: as `updated_values`,
    without generated columns that read none of them.

    `assigned`: logical names of the top-level columns that change, in whole or in part.

    Raises:
        InvalidArgument: an identity column is assigned.
        SchemaMismatch: a generated column is computed from a column that does not exist.
        InvalidTable, UnsupportedFeature: of the schema.
    """
    values = updated_values(configuration, assigned)
    if not values.generated:
        return values
    schema = configuration.schema
    changed = {schema.field(name).name for name in assigned}
    affected = tuple(
        column
        for column in values.generated
        if changed.intersection(path[0] for path in parse_expression(column.sql, schema).references)
    )
    return replace(values, generated=affected)
