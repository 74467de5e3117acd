"""Configuration of merges by the IO manager, as in other Delta integrations for Dagster.

A type names a common merge; `custom` lists its clauses. Clauses of a kind are tried in the order of
`MergeOperationsConfig`, clauses with a predicate first: a clause without one takes all remaining
rows.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from dagster import Config
from pydantic import Field

from dagster_delta.engines import ClauseText
from dagster_delta.orchestration.known_fields import KnownFieldsOnly
from dagster_delta.protocol.schema import fold_name
from dagster_delta.table.spelling import quote

if TYPE_CHECKING:
    from dagster_delta.table.operations.merge import MergeBuilder


class MergeType(StrEnum):
    """What happens to matched and unmatched rows."""

    deduplicate_insert = "deduplicate_insert"
    """Unmatched rows are inserted; matched rows do not change."""
    update_only = "update_only"
    """Matched rows are updated; unmatched rows are ignored."""
    upsert = "upsert"
    """Matched rows are updated, the others are inserted."""
    replace_delete_unmatched = "replace_and_delete_unmatched"
    """Matched rows are updated, unmatched rows of the table are deleted, and nothing is
    inserted."""
    custom = "custom"
    """Fields of `merge_operations_config`."""

    @classmethod
    def _missing_(cls, value: object) -> MergeType | None:
        return cls.__members__.get(str(value))


class OperationConfig(KnownFieldsOnly, Config):
    """A clause that only has a condition."""

    predicate: str | None = Field(
        default=None,
        description="Spark SQL over both aliases. Default: the clause applies to every such row.",
    )


class OperationAllConfig(OperationConfig):
    """A clause that sets every column of the source."""

    except_cols: list[str] | None = Field(default=None, description="Columns to leave unchanged.")


class OperationWithUpdatesConfig(OperationConfig):
    """A clause that sets columns by expression."""

    updates: dict[str, str] = Field(description="Column of the table to Spark SQL expression.")


class MergeOperationsConfig(KnownFieldsOnly, Config):
    """The clauses of a merge of type `custom`; each kind may occur several times."""

    when_matched_update: list[OperationWithUpdatesConfig] | None = None
    when_matched_update_all: list[OperationAllConfig] | None = None
    when_matched_delete: list[OperationConfig] | None = None
    when_not_matched_insert: list[OperationWithUpdatesConfig] | None = None
    when_not_matched_insert_all: list[OperationAllConfig] | None = None
    when_not_matched_by_source_update: list[OperationWithUpdatesConfig] | None = None
    when_not_matched_by_source_delete: list[OperationConfig] | None = None


class MergeConfig(KnownFieldsOnly, Config):
    """Configuration of the mode `merge`."""

    merge_type: MergeType = Field(
        default=MergeType.upsert,
        description="upsert, update_only, deduplicate_insert, replace_delete_unmatched or custom.",
    )
    predicate: str | None = Field(
        default=None,
        description="Spark SQL condition under which a row of the table and a row of the asset "
        "match, such as 't.id = s.id'. The metadata `merge_predicate` overrides it.",
    )
    source_alias: str = Field(default="s", description="Alias of the asset's rows in expressions.")
    target_alias: str = Field(default="t", description="Alias of the table in expressions.")
    merge_operations_config: MergeOperationsConfig | None = Field(
        default=None,
        description="The clauses of a merge of type custom. The metadata "
        "`merge_operations_config` overrides them.",
    )


def sql_texts(config: MergeConfig) -> Iterator[str | None]:
    """The Spark SQL in a configuration."""
    yield config.predicate
    for _, clauses in config.merge_operations_config or ():
        for clause in clauses or ():
            yield clause.predicate
            yield from getattr(clause, "updates", {}).values()


def match_on(keys: Iterable[str]) -> str:
    """The condition that rows of the table `t` and the source `s` have the same keys. Nulls are
    keys like others: otherwise every run would add a row with a null key again.
    """
    return " AND ".join(f"t.{key} <=> s.{key}" for key in map(quote, keys))


def add_clauses(
    builder: MergeBuilder,
    config: MergeConfig,
    *,
    source_columns: Sequence[str],
) -> MergeBuilder:
    """A merge with the clauses of the configuration."""
    operations = config.merge_operations_config or _OPERATIONS[config.merge_type]
    found = list(_in_order(operations, config.source_alias, source_columns))
    # A clause without condition hides the clauses after it.
    for clause in sorted(found, key=lambda clause: clause.condition is None):
        builder = builder.add(clause)
    return builder.with_unique_keys() if _updates_all(found) else builder


def _updates_all(clauses: Iterable[ClauseText]) -> bool:
    """Whether every match is updated: two new rows of one key would fail the next run."""
    return any(
        clause.kind == "matched" and clause.action == "update" and clause.condition is None
        for clause in clauses
    )


_EVERY = [OperationAllConfig()]

_OPERATIONS = {
    MergeType.deduplicate_insert: MergeOperationsConfig(when_not_matched_insert_all=_EVERY),
    MergeType.update_only: MergeOperationsConfig(when_matched_update_all=_EVERY),
    MergeType.upsert: MergeOperationsConfig(
        when_matched_update_all=_EVERY, when_not_matched_insert_all=_EVERY
    ),
    MergeType.replace_delete_unmatched: MergeOperationsConfig(
        when_matched_update_all=_EVERY,
        when_not_matched_by_source_delete=[OperationConfig()],
    ),
}


_CLAUSE = re.compile(r"when_(\w*matched\w*?)_(update|delete|insert)")


def _in_order(
    operations: MergeOperationsConfig, source: str, columns: Sequence[str]
) -> Iterator[ClauseText]:
    for name, clauses in operations:
        words: Any = _CLAUSE.findall(name)
        ((kind, action),) = words
        for clause in clauses or ():
            values = getattr(clause, "updates", None)
            if left_out := {fold_name(name) for name in getattr(clause, "except_cols", None) or ()}:
                quoted = [quote(name) for name in columns if fold_name(name) not in left_out]
                values = {name: f"{quote(source)}.{name}" for name in quoted}
            yield ClauseText(kind, action, clause.predicate, values)
