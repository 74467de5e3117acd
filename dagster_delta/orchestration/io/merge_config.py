"""Configuration of merges by the IO manager, as in other Delta integrations for Dagster.

A type names a common merge; `custom` lists its clauses. Clauses of a kind are tried in the order of
`MergeOperationsConfig`, clauses with a predicate first: a clause without one takes all remaining
rows.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from dagster import Config
from pydantic import Field, field_validator

from dagster_delta.engines import ClauseText
from dagster_delta.errors import InvalidArgument
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
    auto_cdc = "auto_cdc"
    """The rows are change events, see `DeltaTable.apply_changes`."""
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
        description="upsert, update_only, deduplicate_insert, replace_delete_unmatched, auto_cdc "
        "or custom.",
    )
    skip_unchanged: bool = Field(
        default=True,
        description="Whether matched rows are left as they are if all their new values equal the "
        "old ones. The type auto_cdc always does so.",
    )
    # An attribute `keys` would make a mapping of it, for `dict`.
    key_columns: list[str] | None = Field(
        default=None,
        alias="keys",
        description="For the type auto_cdc, in place of a predicate: columns that identify a row.",
    )
    sequence_by: list[str] | None = Field(
        default=None,
        description="For auto_cdc: the column of the events that orders those of a key, or Spark "
        "SQL over an event, as in coalesce(updated, created); several order one after another.",
    )
    stored_as_scd_type: int | None = Field(
        default=None,
        description="For auto_cdc: 1 (default) keeps the newest row of each key, 2 a row for each "
        "state, with __START_AT and __END_AT.",
    )
    apply_as_deletes: str | None = Field(
        default=None, description="For auto_cdc: Spark SQL of an event that deletes its key."
    )
    apply_as_truncates: str | None = Field(
        default=None, description="For auto_cdc, type 1: Spark SQL of an event that deletes all."
    )
    ignore_null_updates: bool | None = Field(
        default=None, description="For auto_cdc: whether a null leaves the column as it is."
    )
    column_list: list[str] | None = Field(
        default=None, description="For auto_cdc: the columns that the table has. Default: all."
    )
    except_column_list: list[str] | None = Field(
        default=None, description="For auto_cdc: the columns that the table does not have."
    )
    track_history_column_list: list[str] | None = Field(
        default=None, description="For auto_cdc, type 2: columns whose changes begin a row."
    )
    track_history_except_column_list: list[str] | None = Field(
        default=None, description="For auto_cdc, type 2: columns whose changes begin no row."
    )
    start_at: str | None = Field(
        default=None, description="For auto_cdc, type 2: name of the column __START_AT."
    )
    end_at: str | None = Field(
        default=None, description="For auto_cdc, type 2: name of the column __END_AT."
    )
    on_equal_sequence: str | None = Field(
        default=None,
        description="For auto_cdc: whether two differing events of one key and sequence fail, or "
        "the last one counts.",
    )
    forget_before: str | None = Field(
        default=None,
        description="For auto_cdc: Spark SQL of the sequence before which remembered events are "
        "forgotten.",
    )
    from_snapshots: bool | None = Field(
        default=None,
        description="For auto_cdc: whether the rows are whole snapshots of the source, one for "
        "each sequence.",
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

    @field_validator("sequence_by", mode="before")
    @classmethod
    def _as_list(cls, value: object) -> object:
        """One column may be given as text."""
        return [value] if isinstance(value, str) else value


AUTO_CDC_FIELDS = [
    "keys",
    "sequence_by",
    "stored_as_scd_type",
    "apply_as_deletes",
    "apply_as_truncates",
    "ignore_null_updates",
    "column_list",
    "except_column_list",
    "track_history_column_list",
    "track_history_except_column_list",
    "start_at",
    "end_at",
    "on_equal_sequence",
    "forget_before",
    "from_snapshots",
]
"""The fields of a merge of type auto_cdc: arguments of `DeltaTable.apply_changes`."""


def find_problem(config: MergeConfig, *, asset: str) -> str | None:
    """What contradicts the type of a merge. Raises InvalidArgument for its change events."""
    is_custom = config.merge_type is MergeType.custom
    given = [name for name in AUTO_CDC_FIELDS if _value_of(config, name) is not None]
    if config.merge_type is MergeType.auto_cdc:
        try:
            cdc_options(config)
        except InvalidArgument as error:
            error.message = f"{asset} has a merge of type auto_cdc: {error.message}"
            raise
        if config.predicate:
            return "a merge of type auto_cdc has keys instead of a predicate: leave that out"
    elif given:
        return f"{given[0]} is for the merge_type auto_cdc, not {config.merge_type.value!r}"
    elif not config.predicate:
        return (
            'there is no predicate: set merge_config={"merge_type": "upsert", "predicate": '
            '"t.id = s.id"} on the IO manager or in the metadata, or the metadata merge_predicate'
        )
    if is_custom != (config.merge_operations_config is not None):
        return (
            f"the merge_type {config.merge_type.value!r} with {'no' if is_custom else 'a'} "
            "merge_operations_config: the type custom needs one, and no other type takes it"
        )
    return None


def _value_of(config: MergeConfig, name: str) -> Any:  # noqa: ANN401  a value of any field
    return getattr(config, "key_columns" if name == "keys" else name)


def cdc_options(config: MergeConfig) -> dict[str, Any]:
    """The arguments of `DeltaTable.apply_changes`. Raises InvalidArgument if they contradict."""
    # Imported late: few assets follow change events.
    from dagster_delta.table.operations.change_rules import CdcOptions

    values = {name: _value_of(config, name) for name in AUTO_CDC_FIELDS}
    given = {name: value for name, value in values.items() if value is not None}
    CdcOptions(**{"keys": (), "sequence_by": (), **given})
    return given


def change_events_config(
    metadata: Mapping[str, Any], *, asset: str, **defaults: object
) -> MergeConfig:
    """The merge of type auto_cdc in the metadata of an asset whose mode is `auto_cdc`."""
    found = metadata.get("merge_config") or {}
    fields = (
        found if isinstance(found, Mapping) else found.model_dump(exclude_unset=True, by_alias=True)
    )
    config = MergeConfig(**{"merge_type": MergeType.auto_cdc, **defaults, **fields})
    if config.merge_type is not MergeType.auto_cdc:
        raise InvalidArgument(
            f"{asset} has the mode auto_cdc, and its merge_config the merge_type "
            f"{config.merge_type.value!r}: leave that out"
        )
    cdc_options(config)
    return config


def sql_texts(config: MergeConfig) -> Iterator[str | None]:
    """The Spark SQL in a configuration."""
    yield from (config.predicate, config.apply_as_deletes, config.apply_as_truncates)
    yield config.forget_before
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
