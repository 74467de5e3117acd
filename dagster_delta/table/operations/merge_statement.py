"""A MERGE as its caller describes it.

Spec: Transaction Identifiers.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping
from typing import Literal

import msgspec
from msgspec.structs import replace

from dagster_delta.engines.plans import Constraint
from dagster_delta.engines.statements.merge_clauses import ClauseKind, ClauseText
from dagster_delta.errors import InvalidArgument
from dagster_delta.evolution.table_definition import TableDefinition
from dagster_delta.protocol.schema import StructType
from dagster_delta.sql.filters import at_statement
from dagster_delta.table.transaction.app_transactions import ApplicationRecord
from dagster_delta.table.transaction.retries import ConflictRetries
from dagster_delta.table.transaction.transaction import AppTransaction

MergeSchemaMode = Literal["strict", "merge"]


class MergeStatement(msgspec.Struct, frozen=True):
    """Options of the caller."""

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
    """Application id and version; the merge is done at most once with them."""
    check: str | None = None
    """Spark SQL that every new row must satisfy."""
    progress: tuple[AppTransaction, ...] = ()
    """`txn` actions to record with the merge, each only if the table has the expected version."""
    engine: str | None = None
    """`arrow` or `spark`; None: chosen by the source and the expressions."""
    schema_mode: MergeSchemaMode = "strict"
    """Whether columns of the source that the table lacks are added to it."""
    retries: ConflictRetries = msgspec.field(default_factory=ConflictRetries)
    """Limits of the attempts."""
    memory_limit: int | str | None = None
    """Of the embedded engine; None: the default."""
    creates: TableDefinition | None = None
    """The table to create if there is none."""

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
        """The `txn` actions to record. Raises InvalidArgument for an invalid one."""
        return ApplicationRecord(self.idempotency, self.progress)

    @property
    def constraints(self) -> list[Constraint]:
        """What new rows must satisfy in addition to the constraints of the table."""
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
        """The statement with the current time replaced by a fixed value."""

        def dated(sql: str) -> str:
            return at_statement(sql, schema, moment) if isinstance(sql, str) else sql

        clauses = tuple(
            replace(
                clause,
                condition=None if clause.condition is None else dated(clause.condition),
                values=None
                if clause.values is None
                else {name: dated(value) for name, value in clause.values.items()},
            )
            for clause in self.clauses
        )
        return replace(self, on=dated(self.on), clauses=clauses)

    def _predicates(self, kind: ClauseKind) -> list[dict[str, str]]:
        return [
            {
                **({"predicate": clause.condition} if clause.condition else {}),
                "actionType": clause.action,
            }
            for clause in self.clauses
            if clause.kind == kind
        ]
