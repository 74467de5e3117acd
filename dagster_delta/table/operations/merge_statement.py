"""A MERGE as its caller describes it: its clauses and options, and the columns that the table has
after it, which are decided from the schemas alone.

Spec: Type Widening (writer requirements).
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Collection, Iterable
from typing import Literal, get_args

from msgspec.structs import replace

from dagster_delta.engines.statements.merge_clauses import ClauseKind, ClauseText
from dagster_delta.errors import InvalidArgument
from dagster_delta.evolution.merge_schema import check_strict
from dagster_delta.evolution.table_definition import TableDefinition
from dagster_delta.protocol.features.table_configuration import TableConfiguration
from dagster_delta.protocol.schema import (
    DataType,
    StructField,
    StructType,
    fold_name,
    inner_types,
    is_same_kind,
    with_inner_types,
)
from dagster_delta.sql.filters import at_moment
from dagster_delta.sql.tokens import tokenize
from dagster_delta.table.operations.write_planning import check_widening, grown_configuration
from dagster_delta.table.transaction.retries import StatementOptions

_Path = tuple[str, ...]

MergeSchemaMode = Literal["strict", "widen", "merge"]


class MergeStatement(StatementOptions, frozen=True):
    """A MERGE as its caller describes it."""

    source: object
    """Rows, in any form that an append takes."""
    on: str
    """Spark SQL over both sides."""
    target_alias: str = "t"
    source_alias: str = "s"
    clauses: tuple[ClauseText, ...] = ()
    schema_mode: MergeSchemaMode = "strict"
    """Whether columns get wider types of the source, or new ones of it are added."""
    memory_limit: int | str | None = None
    """Of the embedded engine; None: the default."""
    creates: TableDefinition | None = None
    """The table to create if there is none."""
    ignored_columns: Collection[str] | None = None
    """The columns of the source that the table may lack unless they are added to it; None: all."""
    unique_keys: bool = False
    """Whether several new rows of one key are refused, as several matches of one row are."""
    skip_unchanged: bool = False
    """Whether rows are left as they are whose new values equal the old ones."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.schema_mode not in get_args(MergeSchemaMode):
            raise InvalidArgument(
                "the schema_mode of a merge is 'strict', 'widen' or 'merge', not "
                f"{self.schema_mode!r}"
            )

    @property
    def evolves(self) -> bool:
        """Whether the schema of the table may change, so that the source may lack columns."""
        return self.schema_mode != "strict"

    @property
    def parameters(self) -> dict[str, object]:
        """Operation parameters for the commitInfo."""
        return {
            "predicate": [self.on],
            "matchedPredicates": self._list_predicates("matched"),
            "notMatchedPredicates": self._list_predicates("not_matched"),
            "notMatchedBySourcePredicates": self._list_predicates("not_matched_by_source"),
        }

    def at_moment(self, schema: StructType, moment: dt.datetime) -> MergeStatement:
        """The statement with the current time replaced by a fixed value."""

        def dated(sql: str) -> str:
            return at_moment(sql, moment, schema) if isinstance(sql, str) else sql

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

    def kept_within(self, schema: StructType) -> MergeStatement:
        """The statement, which neither matches nor changes rows of the table outside of its slice,
        and whose new rows are in it.
        """
        if self.within is None:
            return self
        of_target = self.within.sql(schema, alias=self.target_alias)
        clauses = tuple(
            replace(
                clause,
                condition=of_target
                if clause.condition is None
                else f"({clause.condition}\n) AND ({of_target})",
            )
            if clause.kind == "not_matched_by_source"
            else clause
            for clause in self.clauses
        )
        # A condition may end with a comment, here and above.
        return replace(self, on=f"({self.on}\n) AND ({of_target})", clauses=clauses)

    def _list_predicates(self, kind: ClauseKind) -> list[dict[str, str]]:
        return [
            {
                **({"predicate": clause.condition} if clause.condition else {}),
                "actionType": clause.action,
            }
            for clause in self.clauses
            if clause.kind == kind
        ]


def merged_configuration(
    current: TableConfiguration, source: StructType, statement: MergeStatement
) -> TableConfiguration:
    """Protocol and metadata after the MERGE: unchanged if it adds no column.

    A clause that takes every column adds all columns of the source; other clauses add the columns
    that they assign, if the source has a column with that name.
    """
    ignored = statement.ignored_columns
    if statement.schema_mode != "merge" and ignored is not None:
        given = StructType(tuple(field for field in source if field.name not in ignored))
        known = current.schema
        check_strict(known, given, option='schema_mode "merge"', filled=known.names)
    if not statement.evolves:
        return current
    if statement.schema_mode == "widen":
        source = _known_fields(source, current.schema)
    # Rows without a match in the source cannot get a column from it.
    writing = [
        clause
        for clause in statement.clauses
        if clause.action != "delete" and clause.kind != "not_matched_by_source"
    ]
    if any(clause.values is None for clause in writing):
        wanted: StructType | None = source
    else:
        wanted = _narrow_schema(source, list(_assigned_paths(writing, statement.target_alias)))
    if wanted is None:
        return current
    if statement.schema_mode == "widen":
        check_widening(current, wanted)
    # A merge need not have every column: columns that an insert omits are checked with its rows.
    return grown_configuration(current, wanted, filled=current.schema.names)


def _assigned_paths(clauses: Iterable[ClauseText], alias: str) -> Iterable[_Path]:
    for clause in clauses:
        for name in clause.values or ():
            tokens = [token for token in tokenize(name) if token.kind in ("word", "quoted")]
            path = tuple(token.text for token in tokens)
            yield path[1:] if len(path) > 1 and fold_name(path[0]) == fold_name(alias) else path


def _known_fields(source: StructType, table: StructType) -> StructType:
    """The fields of the source that the table has, at every depth."""
    pairs = [(field, table.get(field.name)) for field in source]
    return StructType(
        tuple(
            StructField(field.name, _known_type(field.data_type, ours.data_type), field.nullable)
            for field, ours in pairs
            if ours is not None
        )
    )


def _known_type(source: DataType, table: DataType) -> DataType:
    if isinstance(source, StructType) and isinstance(table, StructType):
        return _known_fields(source, table)
    if not is_same_kind(source, table):
        return source
    pairs = zip(inner_types(source), inner_types(table), strict=True)
    return with_inner_types(source, [_known_type(*types) for types in pairs])


def _narrow_schema(source: StructType, paths: Iterable[_Path]) -> StructType | None:
    """The part of a schema that contains some paths; None if it contains none of them."""
    listed = [path for path in paths if path]
    fields = []
    for field in source:
        below = [path[1:] for path in listed if fold_name(path[0]) == fold_name(field.name)]
        if () in below:
            fields.append(field)
        elif below and isinstance(field.data_type, StructType):
            inner = _narrow_schema(field.data_type, below)
            if inner is not None:
                fields.append(StructField(field.name, inner, field.nullable, field.metadata))
    return StructType(tuple(fields)) if fields else None
