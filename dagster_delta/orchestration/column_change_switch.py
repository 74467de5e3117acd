"""The switch of a deployment: whether columns of its tables may change their type online.

A change begins only where two agree: the resource that opens the table, and the table itself by its
property. What has begun may be resumed and cancelled whatever they say by then.
"""

from __future__ import annotations

from dagster_delta.protocol.features.column_change import COLUMN_CHANGE_SWITCH

__all__ = ["COLUMN_CHANGE_DESCRIPTION", "NEW_TABLE_PROPERTIES"]

COLUMN_CHANGE_DESCRIPTION = (
    "Whether column types may be changed online. If true, new tables get the property "
    f"{COLUMN_CHANGE_SWITCH} and the features it needs, column mapping and metadata "
    "domains; clients without these can no longer read or write them. Existing tables are "
    "unaffected until that property is set, or a change is started with enable_features."
)

NEW_TABLE_PROPERTIES = {COLUMN_CHANGE_SWITCH: "true"}
"""What a table gets that is created while the switch is on."""
