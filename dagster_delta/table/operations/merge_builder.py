"""The clauses of a MERGE, called one after another, with the names of Delta Lake."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Literal, Self

from dagster_delta.engines.statements.merge_clauses import ClauseKind, ClauseText
from dagster_delta.table.transaction.transaction import CommitResult


class MergeBuilder:
    """Collects the clauses of a MERGE; `execute` runs it. Created by `DeltaTable.merge`.

    The first `when_matched` clause whose condition is true applies to a row of the table that
    matches a row of the source. The first such `when_not_matched_by_source` clause applies to a row
    of the table without a match. The first such `when_not_matched` clause inserts a row of the
    source without a match. If no clause applies, the row is unchanged, or not inserted. Conditions
    and values are Spark SQL, and the value `DEFAULT` is the column's default, or null.
    """

    def __init__(self, execute: Callable[[tuple[ClauseText, ...]], CommitResult]) -> None:
        self._execute = execute
        self._clauses: list[ClauseText] = []

    def when_matched_update(
        self,
        set: Mapping[str, str],  # noqa: A002  as SQL calls it
        condition: str | None = None,
    ) -> Self:
        """Give matched rows new values: Spark SQL by column, over both sides."""
        return self._add("matched", "update", condition, set)

    def when_matched_update_all(self, condition: str | None = None) -> Self:
        """Give matched rows the values of the source, which must have every column of the table. If
        the merge may change the schema, only columns of the source are set, and new ones are added.
        """
        return self._add("matched", "update", condition)

    def when_matched_delete(self, condition: str | None = None) -> Self:
        """Remove matched rows."""
        return self._add("matched", "delete", condition)

    def when_not_matched_insert(
        self, values: Mapping[str, str], condition: str | None = None
    ) -> Self:
        """Insert rows of the source without a match: Spark SQL by column, over the source; other
        columns get their default, a generated or identity value, or null.
        """
        return self._add("not_matched", "insert", condition, values)

    def when_not_matched_insert_all(self, condition: str | None = None) -> Self:
        """Insert rows of the source without a match: every column of the table except those that
        are filled automatically. If the merge may change the schema, every column of the source,
        and new ones are added to the table.
        """
        return self._add("not_matched", "insert", condition)

    def when_not_matched_by_source_update(
        self,
        set: Mapping[str, str],  # noqa: A002  as SQL calls it
        condition: str | None = None,
    ) -> Self:
        """Change rows without a match in the source: Spark SQL by column, over the table."""
        return self._add("not_matched_by_source", "update", condition, set)

    def when_not_matched_by_source_delete(self, condition: str | None = None) -> Self:
        """Remove rows without a match in the source."""
        return self._add("not_matched_by_source", "delete", condition)

    def add(self, clause: ClauseText) -> Self:
        """Add one clause, for callers that build clauses themselves."""
        self._clauses.append(clause)
        return self

    def execute(self) -> CommitResult:
        """Run the MERGE as one commit. If nothing changes, there is no commit, and `skipped` is
        true.

        Raises:
            ConstraintViolation: several rows of the source would change one row of the table (only
                a single `when_matched_delete` without a condition allows that), or a new row
                breaks NOT NULL, an invariant or a CHECK.
            InvalidCast: a new value does not fit the type of its column.
            SchemaMismatch: a column is not in the schema; or, for an `_all` clause, the source
                lacks a column of the table.
            InvalidArgument: there is no clause, a clause can never apply, or an expression is
                ambiguous or fails on a value.
            UnsupportedExpression: the embedded engine cannot evaluate an expression exactly as
                Spark would, and there is no Spark session.
            UnsupportedFeature, ConditionalPutUnsupported: the table cannot be written, or is
                append-only.
            TableNotFound: the table does not exist.
            CommitConflict, CommitStateUnknown: the commit failed, or may have failed.
        """
        return self._execute(tuple(self._clauses))

    def _add(
        self,
        kind: ClauseKind,
        action: Literal["update", "delete", "insert"],
        condition: str | None,
        values: Mapping[str, str] | None = None,
    ) -> Self:
        return self.add(ClauseText(kind, action, condition, values))
