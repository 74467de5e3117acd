"""Defaults of new columns that existing rows get when they are read, without rewriting files.

Spec: not part of the protocol; see `protocol.existing_defaults`.
"""

from __future__ import annotations

import datetime as dt
from functools import partial

from dagster_delta.errors import InvalidArgument, UnsupportedExpression
from dagster_delta.evolution.alter.actions import MaterializeDefaults
from dagster_delta.evolution.column_paths import ColumnPath, change_field, dotted, find_place
from dagster_delta.evolution.default_values import compute_default
from dagster_delta.evolution.schema_change.draft import SchemaDraft
from dagster_delta.protocol.features.existing_defaults import (
    fields_with_existing_default,
    is_default_type,
    with_existing_default,
    without_existing_defaults,
)
from dagster_delta.protocol.schema import StructField
from dagster_delta.sql.filters import at_moment


def keep_defaults_in_log(draft: SchemaDraft, moment: dt.datetime) -> None:
    """Record in the log the default values of new columns for existing rows, computed at a moment,
    which has a time zone.
    """
    for path, sql in draft.existing_defaults.items():
        field = find_place(draft.schema, path).field
        value = _compute(path, field, at_moment(sql, moment))
        if value is None:
            continue
        draft.set_schema(
            change_field(draft.schema, path, partial(with_existing_default, value=value))
        )
        # Existing rows have the default there, which is not null.
        draft.required = [each for each in draft.required if each != path]
        draft.note(f"existing rows read {dotted(path)} as {sql}; their files are not rewritten")


def materialize_defaults(draft: SchemaDraft, _action: MaterializeDefaults) -> None:
    """Write into files the values that their rows got from the log so far. Raises nothing."""
    columns = [dotted(path) for path, _ in fields_with_existing_default(draft.schema)]
    if not columns:
        draft.note("no row has a lazy default", "nothing")
        return
    draft.set_schema(without_existing_defaults(draft.schema))
    draft.materializes_defaults = True
    draft.note(f"rewrite files that lack {', '.join(columns)}", "rewrites")


def _compute(path: ColumnPath, field: StructField, sql: str) -> object:
    column = dotted(path)
    if not is_default_type(field.data_type):
        raise InvalidArgument(
            f"the default of column {column} is of type {field.data_type}, and existing rows can "
            'get one of an atomic type only when they are read; pass existing_rows="rewrite"',
            column=column,
        )
    try:
        return compute_default(field, sql)
    except UnsupportedExpression as error:
        raise UnsupportedExpression(
            f"the default of column {column} is computed once, here, for existing rows to read, "
            f"and that is not possible: {error.message}; write a literal, or pass existing_rows="
            '"rewrite" with engine="spark"',
            column=column,
        ) from None
