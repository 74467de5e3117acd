"""The request of an online change of a column: by a caller, or by actions of ALTER TABLE."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

import msgspec

from dagster_delta.evolution import actions
from dagster_delta.evolution.column_paths import (
    ColumnPath,
    find_place,
)
from dagster_delta.protocol.features.column_change import (
    OnError,
)
from dagster_delta.protocol.features.type_widening import is_widening
from dagster_delta.protocol.schema import (
    DataType,
    StructType,
    fold_name,
)
from dagster_delta.sql.types import VOID, is_primitive

_REDEFINING = (
    actions.SetNullable,
    actions.SetDefault,
    actions.SetComment,
    actions.MoveColumn,
    actions.RenameColumn,
)
_Action = TypeVar("_Action", bound=actions.SchemaAction)


class ColumnChangeRequest(msgspec.Struct, frozen=True):
    """The request of a caller."""

    column: ColumnPath
    """Path of the column, or of a field, `element` or `value` in it."""
    new_type: DataType
    """Any atomic type."""
    cast: str | None = None
    """Spark SQL over the row for the new value of a top-level column; None: CAST."""
    on_error: OnError = "abort"
    enable_features: bool = False
    """Whether missing features and properties may be turned on for the change."""
    is_allowed: bool = True
    """Whether the table handle allows online column changes."""
    redefinitions: tuple[actions.SchemaAction, ...] = ()
    """What else the change does to the column, in the same commit: whether it may be null, its
    default, its comment, its position, and last its name."""
    force: bool = False
    """Whether readers that the table names may give wrong rows of it after the change."""

    def last(self, kind: type[_Action]) -> _Action | None:
        """The last redefinition of a kind."""
        found = (action for action in reversed(self.redefinitions) if isinstance(action, kind))
        return next(found, None)


def is_online(schema: StructType, action: actions.ChangeType) -> bool:
    """Whether an action requires an online change: a type that is not wider, or an expression."""
    place = find_place(schema, action.path)
    old, new = place.data_type, action.data_type
    if action.using is not None:
        return True
    if old in (new, VOID) or "key" in place.steps:
        return False
    return is_primitive(old) and is_primitive(new) and not is_widening(old, new)


def online_request(
    change: actions.ChangeType, following: Sequence[actions.SchemaAction]
) -> tuple[ColumnChangeRequest, int]:
    """The change that an action requests, and how many of the following actions it covers.

    Those on the same column (NOT NULL, default, comment, position and name) are part of the change,
    and take effect in the same commit.
    """
    also: list[actions.SchemaAction] = []
    for action in following:
        # After a rename, the column has another name.
        is_renamed = any(isinstance(earlier, actions.RenameColumn) for earlier in also)
        if is_renamed or not _redefines_column(action, change.path):
            break
        also.append(action)
    request = ColumnChangeRequest(
        change.path, change.data_type, change.using, redefinitions=tuple(also)
    )
    return request, len(also)


def _redefines_column(action: actions.SchemaAction, path: ColumnPath) -> bool:
    """Whether an action changes a column beside its type. A field of a struct is moved by a
    separate commit.
    """
    if not isinstance(action, _REDEFINING) or (
        isinstance(action, actions.MoveColumn) and len(path) > 1
    ):
        return False
    return [fold_name(step) for step in action.path] == [fold_name(step) for step in path]
