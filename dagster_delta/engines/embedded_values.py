"""The values that plans of schema changes need, computed by the embedded engine."""

from __future__ import annotations

from dagster_delta.protocol.features.column_change import ColumnChange
from dagster_delta.protocol.schema import StructField, StructType


class EmbeddedValues:
    """`ValueEngine` of the embedded engine; see there. What computes is imported when it is used,
    as few plans need it.
    """

    def check_default(self, field: StructField) -> None:
        """Refuse a default that no row could use."""
        from dagster_delta.engines.statements.default_values import check_default_value

        check_default_value(field)

    def compute_default(self, field: StructField, sql: str, zone: str) -> object:
        """The value of a default in a statement of a time zone."""
        from dagster_delta.engines.statements.default_values import compute_default

        return compute_default(field, sql, zone)

    def check_conversion(
        self, change: ColumnChange, schema: StructType, source: StructField
    ) -> None:
        """Refuse an online change whose cast or checks writers cannot compute."""
        from dagster_delta.parquet.shadow_column import ShadowColumn

        ShadowColumn(change, schema, source)


EMBEDDED_VALUES = EmbeddedValues()
