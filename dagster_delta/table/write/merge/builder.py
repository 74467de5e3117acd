"""The clauses of a MERGE, called one after the other, as the users of Delta know them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Literal, Self

from dagster_delta.engines.statements.merge_clauses import ClauseKind, ClauseText
from dagster_delta.table.peer_names import renamed
from dagster_delta.table.write.transaction import CommitResult

__all__ = ["MergeBuilder"]

_CONDITION_KEYWORDS = {"predicate": "condition"}
_UPDATE_KEYWORDS = {"updates": "set", "predicate": "condition"}


class MergeBuilder:
    """A MERGE that is being described; `execute` does it. Made by `DeltaTable.merge`.

    A row of the table that matches a row of the source gets what the first `when_matched` clause
    whose condition is true says; one that matches none, what the first `when_not_matched_by_source`
    clause says. A row of the source that matches none is inserted by the first `when_not_matched`
    clause. Where no clause applies, nothing happens. Conditions and values are Spark SQL, and the
    value `DEFAULT` is the column's default, or null.
    """

    def __init__(self, execute: Callable[[tuple[ClauseText, ...]], CommitResult]) -> None:
        self._execute = execute
        self._clauses: list[ClauseText] = []

    @renamed(_UPDATE_KEYWORDS)
    def when_matched_update(
        self,
        set: Mapping[str, str],  # noqa: A002  as SQL calls it
        condition: str | None = None,
    ) -> Self:
        """Give matched rows new values: Spark SQL by column, over both sides."""
        return self._add("matched", "update", condition, set)

    @renamed(_CONDITION_KEYWORDS)
    def when_matched_update_all(self, condition: str | None = None) -> Self:
        """Give matched rows the values of the source, which has every column of the table; where
        the merge may change the schema, those that it has, and new ones are added to the table.
        """
        return self._add("matched", "update", condition)

    @renamed(_CONDITION_KEYWORDS)
    def when_matched_delete(self, condition: str | None = None) -> Self:
        """Remove matched rows."""
        return self._add("matched", "delete", condition)

    @renamed({"updates": "values", "predicate": "condition"})
    def when_not_matched_insert(
        self, values: Mapping[str, str], condition: str | None = None
    ) -> Self:
        """Insert rows of the source that match none: Spark SQL by column, over the source; the
        other columns take their default, are computed or numbered, or are null.
        """
        return self._add("not_matched", "insert", condition, values)

    @renamed(_CONDITION_KEYWORDS)
    def when_not_matched_insert_all(self, condition: str | None = None) -> Self:
        """Insert rows of the source that match none: every column of the table but those that are
        filled; where the merge may change the schema, those that the source has, and new ones are
        added to the table.
        """
        return self._add("not_matched", "insert", condition)

    @renamed(_UPDATE_KEYWORDS)
    def when_not_matched_by_source_update(
        self,
        set: Mapping[str, str],  # noqa: A002  as SQL calls it
        condition: str | None = None,
    ) -> Self:
        """Give rows that no row of the source matches new values: Spark SQL by column, over the
        table.
        """
        return self._add("not_matched_by_source", "update", condition, set)

    @renamed(_CONDITION_KEYWORDS)
    def when_not_matched_by_source_delete(self, condition: str | None = None) -> Self:
        """Remove rows that no row of the source matches."""
        return self._add("not_matched_by_source", "delete", condition)

    def add(self, clause: ClauseText) -> Self:
        """Take one more clause, as a caller has it that makes them by itself."""
        self._clauses.append(clause)
        return self

    def execute(self) -> CommitResult:
        """Do it, as one commit. Where nothing changes there is none, and `skipped` is true.

        Raises:
            ConstraintViolation: several rows of the source would change one row of the table (only
                a single `when_matched_delete` without a condition allows that), or a new row
                breaks NOT NULL, an invariant or a CHECK.
            InvalidCast: a new value does not fit the type of its column.
            SchemaMismatch: a column is not there; or, of an `_all` clause, the source lacks one of
                the table's.
            InvalidArgument: there is no clause, one can never be reached, or an expression is
                ambiguous or fails on a value.
            UnsupportedExpression: the embedded engine cannot evaluate one exactly as Spark would,
                and there is no Spark session.
            UnsupportedFeature, ConditionalPutUnsupported: the table cannot be written, or is
                append-only.
            TableNotFound: there is no table.
            CommitConflict, CommitStateUnknown: the commit did not, or may not have, landed.
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
