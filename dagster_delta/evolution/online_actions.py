"""Which actions of an ALTER TABLE statement form one online change of a column."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from dagster_delta.evolution.alter.actions import (
    ChangeType,
    DropDefault,
    DropNotNull,
    MoveColumn,
    RenameColumn,
    SchemaAction,
    SetComment,
    SetDefault,
    SetNotNull,
)
from dagster_delta.evolution.column_change.plan import ColumnChangeRequest
from dagster_delta.evolution.column_paths import ColumnPath, find_place
from dagster_delta.protocol.features.column_values import DEFAULT_KEY
from dagster_delta.protocol.features.type_widening import is_widening
from dagster_delta.protocol.schema import StructType
from dagster_delta.sql.types import VOID, is_primitive


def is_online(schema: StructType, action: SchemaAction) -> bool:
    """Whether an action requires an online change: a type that is not wider, or an expression."""
    if not isinstance(action, ChangeType):
        return False
    place = find_place(schema, action.path)
    old, new = place.data_type, action.data_type
    if action.using is not None:
        return True
    if old in (new, VOID) or "key" in place.steps:
        return False
    return is_primitive(old) and is_primitive(new) and not is_widening(old, new)


def online_request(actions: Sequence[SchemaAction]) -> tuple[ColumnChangeRequest, int]:
    """The change that the first action requests, and how many actions it covers.

    Following actions on the same column (NOT NULL, default, comment, position and name) are part of
    the change, and take effect in the same commit.
    """
    change = actions[0]
    assert isinstance(change, ChangeType)  # noqa: S101  the caller has checked is_online
    request = ColumnChangeRequest(change.path, change.data_type, cast=change.using)
    count = 1
    for action in actions[1:]:
        folded = _with(request, change.path, action)
        # After a rename, the column has another name.
        if folded is None or request.new_name is not None:
            break
        request, count = folded, count + 1
    return request, count


def _with(
    request: ColumnChangeRequest, path: ColumnPath, action: SchemaAction
) -> ColumnChangeRequest | None:
    """The request extended by another action on its column; None if the action does not fit."""
    of_column = getattr(action, "path", ())
    if [step.casefold() for step in of_column] != [step.casefold() for step in path]:
        return None
    match action:
        case SetNotNull() | DropNotNull():
            return replace(request, nullable=isinstance(action, DropNotNull))
        case SetDefault(_, expression):
            is_null = expression.strip().casefold() == "null"
            return _with_metadata(request, DEFAULT_KEY, None if is_null else expression)
        case DropDefault():
            return _with_metadata(request, DEFAULT_KEY, None)
        case SetComment(_, comment):
            return _with_metadata(request, "comment", comment or None)
        case MoveColumn(_, position):
            # A field of a struct is moved by a separate commit.
            return replace(request, position=position) if len(path) == 1 else None
        case RenameColumn(_, new_name):
            return replace(request, new_name=new_name)
        case _:
            return None


def _with_metadata(
    request: ColumnChangeRequest, key: str, value: str | None
) -> ColumnChangeRequest:
    given = {**dict(request.field_metadata), key: value}
    return replace(request, field_metadata=tuple(given.items()))
