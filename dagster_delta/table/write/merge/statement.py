"""A MERGE as its caller asks for it.

Spec: Transaction Identifiers.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

from dagster_delta.engines.plans import Constraint
from dagster_delta.engines.statements.merge_clauses import ClauseKind, ClauseText
from dagster_delta.errors import InvalidArgument
from dagster_delta.protocol.schema import StructType
from dagster_delta.sql.moments import at_statement
from dagster_delta.table.write.app_transactions import ApplicationRecord
from dagster_delta.table.write.conflict_retries import ConflictRetries
from dagster_delta.table.write.transaction import AppTransaction

__all__ = ["MergeSchemaMode", "MergeStatement"]

MergeSchemaMode = Literal["strict", "merge"]


@dataclass(frozen=True, slots=True)
class MergeStatement:
    """What a caller asks for."""

    source: object
    """Rows, in any form that an append takes."""
    on: str
    """Spark SQL over both sides."""
    target_alias: str
    source_alias: str
    clauses: tuple[ClauseText, ...]
    commit_info: Mapping[str, object] | None = None
    """Recorded in the commitInfo."""
    idempotency: tuple[str, int] | None = None
    """Application id and version under which the merge is done at most once."""
    check: str | None = None
    """Spark SQL that every new row has to satisfy."""
    progress: tuple[AppTransaction, ...] = ()
    """Applications that get on with the merge, and only from where they stood."""
    engine: str | None = None
    """`arrow` or `spark`; None lets source and expressions decide."""
    schema_mode: MergeSchemaMode = "strict"
    """Whether columns of the source that the table lacks are added to it."""
    retries: ConflictRetries = field(default_factory=ConflictRetries)
    """Limits of the attempts."""

    def __post_init__(self) -> None:
        if self.schema_mode not in ("strict", "merge"):
            raise InvalidArgument(
                f"the schema_mode of a merge is 'strict' or 'merge', not {self.schema_mode!r}"
            )

    @property
    def evolves(self) -> bool:
        """Whether columns may be added to the table."""
        return self.schema_mode == "merge"

    @property
    def record(self) -> ApplicationRecord:
        """What the commit says of applications. Raises InvalidArgument for one that is none."""
        return ApplicationRecord(self.idempotency, self.progress)

    @property
    def constraints(self) -> list[Constraint]:
        """What new rows have to satisfy besides the constraints of the table."""
        return [] if self.check is None else [Constraint("check", self.check, is_partition=True)]

    @property
    def parameters(self) -> dict[str, object]:
        """Operation parameters for the commitInfo."""
        return {
            "predicate": [self.on],
            "matchedPredicates": self._predicates("matched"),
            "notMatchedPredicates": self._predicates("not_matched"),
            "notMatchedBySourcePredicates": self._predicates("not_matched_by_source"),
        }

    def at_moment(self, schema: StructType, moment: dt.datetime) -> MergeStatement:
        """The statement with its time in it, wherever an expression asks for the time.

        Args:
            schema: what its expressions may name.
            moment: when it began, with a time zone.

        Raises:
            InvalidArgument: an expression cannot be read.
        """

        def dated(sql: str) -> str:
            return at_statement(sql, schema, moment) if isinstance(sql, str) else sql

        clauses = tuple(
            replace(
                each,
                condition=None if each.condition is None else dated(each.condition),
                values=None
                if each.values is None
                else {name: dated(value) for name, value in each.values.items()},
            )
            for each in self.clauses
        )
        return replace(self, on=dated(self.on), clauses=clauses)

    def _predicates(self, kind: ClauseKind) -> list[dict[str, str]]:
        return [
            {**({"predicate": each.condition} if each.condition else {}), "actionType": each.action}
            for each in self.clauses
            if each.kind == kind
        ]
