"""The deployment's switch for online type changes of columns.

A change begins only if both allow it: the resource that opens the table, and the property of the
table. A change that has begun may be resumed and cancelled in any case.
"""

from __future__ import annotations

from dagster_delta.protocol.features.column_change import COLUMN_CHANGE_SWITCH

COLUMN_CHANGE_DESCRIPTION = (
    "Whether column types may be changed online. If true, new tables get the property "
    "dagsterDelta.enableColumnChange and the features it needs, column mapping and metadata "
    "domains; clients without these can no longer read or write them. Existing tables are "
    "unaffected until that property is set, or a change is started with enable_features."
)

NEW_TABLE_PROPERTIES = {COLUMN_CHANGE_SWITCH: "true"}
"""Properties of a table that is created while the switch is on."""
