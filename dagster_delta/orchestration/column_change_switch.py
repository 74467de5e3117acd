"""The switch of a deployment: whether columns of its tables may change their type online.

A change begins only where two agree: the resource that opens the table, and the table itself by its
property. What has begun may be resumed and cancelled whatever they say by then.
"""

from __future__ import annotations

from dagster_delta.protocol.column_change import COLUMN_CHANGE_SWITCH

__all__ = ["COLUMN_CHANGE_DESCRIPTION", "NEW_TABLE_PROPERTIES"]

COLUMN_CHANGE_DESCRIPTION = (
    "Whether columns may change to any type while their table is in use. On, new tables get the "
    f"property {COLUMN_CHANGE_SWITCH} and what it takes, column mapping and metadata domains, "
    "without which other clients no longer read or write them. Tables that are there already keep "
    "what they say: that property, or enable_features with the change, turns it on for one."
)

NEW_TABLE_PROPERTIES = {COLUMN_CHANGE_SWITCH: "true"}
"""What a table gets that is created while the switch is on."""
