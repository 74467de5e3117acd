"""Spark SQL expressions over the columns of a table: parsed once, used by every engine.

One text has three uses: file skipping by bounds and exact evaluation over Arrow, both of the typed
tree, and Spark, which gets the text unchanged.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import pyarrow as pa

from dagster_delta.cached_property import cached_property
from dagster_delta.errors import InvalidArgument, UnsupportedExpression
from dagster_delta.protocol.schema import DataType, StructType
from dagster_delta.sql.evaluator import Evaluator, as_type
from dagster_delta.sql.time_zone import UTC
from dagster_delta.sql.typed import Column, Refused, Typed, walk
from dagster_delta.sql.types import BOOLEAN, VOID, sql_type_name


def parse_expression(sql: str, schema: StructType, zone: str = UTC) -> SqlExpression:
    """Parse a Spark SQL text as an expression over the columns of a schema.

    Column names are case-insensitive, as in Spark; `a.b` is a field of a struct; backticks quote
    names with special characters.

    `zone`: time zone of the statement, in which it reads and converts times.

    Raises:
        InvalidArgument: the text is not an expression; the message shows where.
        SchemaMismatch: it names a column that does not exist.
    """
    expression = SqlExpression(sql, schema, zone=zone)
    _ = expression.typed  # Report problems here, before the first batch.
    return expression


@dataclass(frozen=True)
class SqlExpression:
    """A Spark SQL expression; made by `parse_expression`, or by `conditions.to_expression`. Pickles
    as its text and schema.
    """

    sql: str
    """The text, for Spark."""
    schema: StructType
    """Logical schema that its names are found in."""
    known: Typed | None = field(default=None, compare=False, repr=False)
    """The typed tree, of an expression that is made without parsing its text."""
    zone: str = UTC
    """Time zone in which both engines evaluate it."""

    def __reduce__(self) -> tuple[object, ...]:
        return SqlExpression, (self.sql, self.schema, None, self.zone)

    def in_zone(self, zone: str) -> SqlExpression:
        """The same text in a statement of another time zone."""
        return self if zone == self.zone else SqlExpression(self.sql, self.schema, zone=zone)

    @cached_property
    def typed(self) -> Typed:
        """The typed tree.

        Raises:
            InvalidArgument, SchemaMismatch: as `parse_expression` does.
        """
        if self.known is not None:
            return self.known
        # The grammar and the functions are imported for the first expression, not by every write.
        from dagster_delta.sql.analysis import typed_tree

        return typed_tree(self.sql, self.schema, self.zone)

    @property
    def data_type(self) -> DataType | None:
        """Type of the result; None if only Spark knows."""
        return self.typed.data_type

    @cached_property
    def references(self) -> frozenset[tuple[str, ...]]:
        """Logical paths of the columns it reads."""
        return frozenset(node.path for node in walk(self.typed) if isinstance(node, Column))

    def evaluate(self, rows: pa.RecordBatch | pa.Table) -> pa.Array:
        """The value of each row, as one `pa.Array` of the Arrow type of its `data_type`.

        `rows`: with at least the columns it names.

        Raises:
            InvalidArgument: it fails on a value.
            UnsupportedExpression: as `check_embeddable` does.
        """
        try:
            return self._make_evaluator.of_batch(rows)
        except InvalidArgument as error:
            # A text of several lines was composed here, of what a caller wrote.
            if "\n" not in self.sql:
                error.message = error.message.replace(
                    "the expression fails", f"{self.sql!r} fails", 1
                )
            raise

    def evaluate_filter(self, rows: pa.RecordBatch | pa.Table) -> pa.BooleanArray:
        """Where a condition is true: one value per row, with nulls as in SQL. Raises as
        `check_filter` and `evaluate` do.
        """
        self.check_filter()
        return as_type(self.evaluate(rows), pa.bool_())

    @cached_property
    def _make_evaluator(self) -> Evaluator:
        found = Evaluator(self.typed)
        if not found.is_compiled:
            self.check_embeddable()
        return found

    def check_filter(self) -> None:
        """Check that it is boolean.

        Raises:
            InvalidArgument: it is of another type.
        """
        data_type = self.data_type
        if data_type is not None and data_type not in (BOOLEAN, VOID):
            raise InvalidArgument(
                f"a filter must be a condition, and {self.sql!r} is a value of type "
                f"{sql_type_name(data_type)}: compare it with something"
            )

    def check_embeddable(self) -> None:
        """Check that the embedded engine computes it exactly as Spark does.

        Raises:
            UnsupportedExpression: it holds a construct outside the whitelist.
        """
        for node in walk(self.typed):
            if isinstance(node, Refused):
                raise UnsupportedExpression(
                    f"the embedded engine cannot evaluate {self.sql!r} exactly as Spark would, "
                    f"because of {node.construct}: {node.remedy}"
                )
