"""Planning of schema changes: the new configuration, and the work on existing rows.

No I/O here; `SchemaChangePlan` describes the work.

Spec: Change Metadata; Column Mapping; Type Widening; CHECK Constraints; Default Columns.
Not part of the protocol: defaults that existing rows get when they are read, see
`protocol.features.existing_defaults`.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from functools import partial
from typing import get_args

from dagster_delta.engines.plans import Constraint
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
from dagster_delta.evolution.default_values import compute_default
from dagster_delta.evolution.plan import ExistingRows, SchemaChangePlan, SchemaDraft
from dagster_delta.protocol.features.existing_defaults import (
    is_default_type,
    with_existing_default,
)
from dagster_delta.protocol.features.iceberg_compat import check_iceberg_compat
from dagster_delta.protocol.schema import StructField, StructType
from dagster_delta.sql.filters import at_moment


def plan_schema_changes(draft: SchemaDraft, wanted: Sequence[SchemaAction]) -> SchemaChangePlan:
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
        _keep_default_in_log(draft, path, sql)
    refuse_altering_changing_column(before, draft.configuration)
    check_iceberg_compat(draft.configuration)
    defaults = tuple(draft.schema.field(path[0]) for path in draft.work_of("default"))
    if defaults:
        check_column_values(StructType(defaults))
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


def _keep_default_in_log(draft: SchemaDraft, path: ColumnPath, sql: str) -> None:
    """Record in the log the default value of a new column for existing rows."""
    moment = draft.moment or dt.datetime.now(dt.UTC)
    field = find_place(draft.schema, path).field
    value = _lazy_default(path, field, at_moment(sql, moment), draft.find_zone())
    if value is None:
        return
    draft.set_schema(change_field(draft.schema, path, partial(with_existing_default, value=value)))
    # Existing rows have the default there, which is not null.
    draft.work.pop(("not_null", path), None)
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
