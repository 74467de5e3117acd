"""Conditions that written rows must satisfy."""

from __future__ import annotations

import msgspec


class Constraint(msgspec.Struct, frozen=True):
    """A predicate that every written row must satisfy (null counts as a violation)."""

    name: str
    """Its name in an error: `NOT NULL c`, `invariant c`, `CHECK name`, `replaceWhere`."""
    sql: str
    """Spark SQL over logical columns."""
    null_passes: bool = False
    """Whether an unknown result passes, as for a partition predicate on null."""
    is_partition: bool = False
    """Whether a violation is a `PartitionMismatch` rather than a `ConstraintViolation`."""
    is_slice: bool = False
    """Whether the name is that of a slice of the table, in which the rows are."""
