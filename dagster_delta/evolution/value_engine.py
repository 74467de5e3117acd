"""The port through which planning has values computed: evolution knows no engine."""

from __future__ import annotations

from typing import Protocol

from dagster_delta.protocol.features.column_change import ColumnChange
from dagster_delta.protocol.schema import StructField, StructType


class ValueEngine(Protocol):
    """Computes values of one row, and checks that values can be computed."""

    def check_default(self, field: StructField) -> None:
        """Refuse a default that no row could use, or that does more than compute a value.

        A default that only Spark can compute is accepted, unless its type cannot be stored in the
        column: a write that uses it checks the value.
        """

    def compute_default(self, field: StructField, sql: str, zone: str) -> object:
        """The value of a default, Spark SQL without columns, as from Arrow's `as_py`, in a
        statement of a time zone; UnsupportedExpression if only Spark can compute it.
        """

    def check_conversion(
        self, change: ColumnChange, schema: StructType, source: StructField
    ) -> None:
        """Refuse an online change whose cast or checks writers cannot compute.

        `source`: the top-level column that changes, or that has the changing field.
        """
