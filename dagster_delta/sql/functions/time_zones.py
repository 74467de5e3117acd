"""Which expressions depend on the session's time zone."""

from __future__ import annotations

from dagster_delta.sql.casts import cast_depends_on_time_zone
from dagster_delta.sql.functions.dates import TIME_ZONE_FUNCTIONS
from dagster_delta.sql.literals import moves_local_days
from dagster_delta.sql.typed import Call, Cast, Literal, Typed, walk
from dagster_delta.sql.types import TIMESTAMP


def depends_on_time_zone(expression: Typed) -> bool:
    """Whether some part of the expression depends on the session's time zone."""
    return any(map(_is_zoned, walk(expression)))


def _is_zoned(node: Typed) -> bool:
    if isinstance(node, Cast) and node.child.data_type is not None:
        return cast_depends_on_time_zone(node.child.data_type, node.data_type)
    if isinstance(node, Call) and node.name == "interval shift":
        amounts = (each.value for each in node.arguments[1:] if isinstance(each, Literal))
        return node.data_type == TIMESTAMP and moves_local_days(*(int(str(n)) for n in amounts))
    if isinstance(node, Call) and node.name in TIME_ZONE_FUNCTIONS:
        return any(each.data_type == TIMESTAMP for each in node.arguments)
    return isinstance(node, Literal) and node.depends_on_time_zone
