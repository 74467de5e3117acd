"""Columns that a MERGE adds to its table: columns of the source that the table lacks.

Spec: Column Metadata; Type Widening (writer requirements).
"""

from __future__ import annotations

from collections.abc import Iterable

from dagster_delta.engines.statements.merge_clauses import ClauseText
from dagster_delta.protocol.features.table_configuration import TableConfiguration
from dagster_delta.protocol.schema import StructField, StructType
from dagster_delta.sql.tokens import tokenize
from dagster_delta.table.write.merge.statement import MergeStatement
from dagster_delta.table.write.planning import grown_configuration

_Path = tuple[str, ...]


def merged_configuration(
    current: TableConfiguration, source: StructType, statement: MergeStatement
) -> TableConfiguration:
    """Protocol and metadata after the MERGE: unchanged if it adds no column.

    A clause that takes every column adds all columns of the source; other clauses add the columns
    that they assign, if the source has a column with that name.
    """
    if not statement.evolves:
        return current
    # Rows without a match in the source cannot get a column from it.
    writing = [
        each
        for each in statement.clauses
        if each.action != "delete" and each.kind != "not_matched_by_source"
    ]
    if any(each.values is None for each in writing):
        wanted: StructType | None = source
    else:
        wanted = _narrowed(source, list(_assigned_paths(writing, statement.target_alias)))
    if wanted is None:
        return current
    # A merge need not have every column: columns that an insert omits are checked with its rows.
    return grown_configuration(current, wanted, filled=current.schema.names)


def _assigned_paths(clauses: Iterable[ClauseText], alias: str) -> Iterable[_Path]:
    for clause in clauses:
        for name in clause.values or ():
            tokens = [each for each in tokenize(name) if each.kind in ("word", "quoted")]
            path = tuple(each.text for each in tokens)
            yield path[1:] if len(path) > 1 and path[0].casefold() == alias.casefold() else path


def _narrowed(source: StructType, paths: Iterable[_Path]) -> StructType | None:
    """The part of a schema that contains some paths; None if it contains none of them."""
    listed = [each for each in paths if each]
    fields = []
    for field in source:
        below = [path[1:] for path in listed if path[0].casefold() == field.name.casefold()]
        if () in below:
            fields.append(field)
        elif below and isinstance(field.data_type, StructType):
            inner = _narrowed(field.data_type, below)
            if inner is not None:
                fields.append(StructField(field.name, inner, field.nullable, field.metadata))
    return StructType(tuple(fields)) if fields else None
