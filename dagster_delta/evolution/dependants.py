"""Parts of a table that depend on a column: partitioning, constraints, computed columns,
clustering, statistics.

Spec: CHECK Constraints; Column Invariants; Generated Columns; Clustered Table.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TypedDict

import msgspec

from dagster_delta.errors import DeltaError, InvalidTable, SchemaChangeRefused
from dagster_delta.evolution.column_paths import ColumnPath, dotted
from dagster_delta.protocol.actions import DomainMetadata
from dagster_delta.protocol.features.column_mapping import physical_name
from dagster_delta.protocol.features.column_values import GENERATION_KEY, IDENTITY_PREFIX
from dagster_delta.protocol.features.table_configuration import TableConfiguration
from dagster_delta.protocol.schema import StructType, fold_name, walk_fields
from dagster_delta.protocol.wire_values import DECODING_ERRORS
from dagster_delta.sql.expressions import parse_expression
from dagster_delta.sql.tokens import tokenize

CLUSTERING_DOMAIN = "delta.clustering"
"""Metadata domain of the clustering columns. Spec: Clustered Table."""

_STATS_COLUMNS_KEY = "delta.dataSkippingStatsColumns"


class _Clustering(TypedDict, total=False):
    clusteringColumns: list[list[str]]


def expression_dependants(
    configuration: TableConfiguration, path: ColumnPath, *, with_own: bool = True
) -> Iterator[str]:
    """The expressions that use a column, each as part of a message; `with_own` includes those of
    the column itself, which are dropped with it. The path is in the schema's spelling.
    """
    schema = configuration.schema
    for name, sql in _find_check_constraints(configuration).items():
        if is_mentioned(path, sql, schema):
            yield f"the CHECK constraint {name} ({sql})"
    for owner, sql in _find_invariants(configuration):
        if (with_own or owner[: len(path)] != path) and is_mentioned(path, sql, schema):
            yield f"the invariant of column {dotted(owner)} ({sql})"
    for column, sql in _find_generated_columns(configuration):
        if column == path[0]:
            if with_own:
                yield f"its own generation expression ({sql})"
        elif is_mentioned(path, sql, schema):
            yield f"the generated column {column} ({sql})"


def declared_conditions(configuration: TableConfiguration) -> Iterator[tuple[str, str]]:
    """Names and Spark SQL of the conditions on rows that the metadata declare."""
    for column, sql in configuration.invariants:
        yield f"invariant {column}", sql
    for name, sql in _find_check_constraints(configuration).items():
        yield f"CHECK {name}", sql


def columns_of_expressions(configuration: TableConfiguration) -> frozenset[str]:
    """Logical names of the top-level columns that an expression uses or computes."""
    return frozenset(
        field.name
        for field in configuration.schema
        if any(True for _ in expression_dependants(configuration, (field.name,)))
    )


def placement_dependants(
    configuration: TableConfiguration, path: ColumnPath, domains: Mapping[str, DomainMetadata]
) -> Iterator[str]:
    """Partitioning and clustering that use a column, each as part of a message. The path is in the
    schema's spelling; the domains are those of the table, by name.
    """
    if path[0] in configuration.partition_columns:
        yield f"the partitioning by {', '.join(configuration.partition_columns)}"
    for clustered in clustering_columns(configuration, domains):
        if clustered[: len(path)] == path:
            yield f"the clustering by {dotted(clustered)}"


def refuse_dependants(path: ColumnPath, change: str, dependants: Sequence[str]) -> None:
    """Make sure that nothing depends on a column."""
    if dependants:
        raise SchemaChangeRefused(
            f"column {dotted(path)} cannot be {change}, because of {'; '.join(dependants)}; change "
            "or drop that first",
            column=dotted(path),
        )


def is_mentioned(path: ColumnPath, sql: str, schema: StructType) -> bool:
    """Whether an expression uses a column, a part of it or a struct that contains it."""
    try:
        references = parse_expression(sql, schema).references
    except DeltaError:
        # An expression of another engine: any word may be the column.
        return _is_word_of(path[0], sql)
    return any(path[: len(reference)] == reference[: len(path)] for reference in references)


def _is_word_of(name: str, sql: str) -> bool:
    try:
        tokens = tokenize(sql)
    except DeltaError:
        return True
    words = (token.text for token in tokens if token.kind in ("word", "quoted"))
    return any(fold_name(word) == fold_name(name) for word in words)


def _find_check_constraints(configuration: TableConfiguration) -> Mapping[str, str]:
    # Spec: CHECK constraints apply if the protocol supports them.
    if not configuration.supports("checkConstraints"):
        return {}
    return configuration.properties.constraints


def _find_invariants(configuration: TableConfiguration) -> Iterator[tuple[ColumnPath, str]]:
    by_column = dict(configuration.invariants)
    for path, _ in walk_fields(configuration.schema):
        if sql := by_column.get(".".join(path)):
            yield path, sql


def _find_generated_columns(configuration: TableConfiguration) -> Iterator[tuple[str, str]]:
    for field in configuration.schema:
        sql = field.metadata.get(GENERATION_KEY)
        if isinstance(sql, str):
            yield field.name, sql


def is_identity(configuration: TableConfiguration, path: ColumnPath) -> bool:
    """Whether a column is an identity column."""
    field = configuration.schema.field(path[0])
    return any(key.startswith(IDENTITY_PREFIX) for key in field.metadata)


def clustering_columns(
    configuration: TableConfiguration, domains: Mapping[str, DomainMetadata]
) -> tuple[ColumnPath, ...]:
    """Logical paths of the clustering columns; none if the table is not clustered."""
    domain = domains.get(CLUSTERING_DOMAIN)
    if domain is None or not domain.configuration:
        return ()
    try:
        decoded = msgspec.json.decode(domain.configuration, type=_Clustering)
    except DECODING_ERRORS as error:
        raise InvalidTable(
            f"the metadata domain {CLUSTERING_DOMAIN} cannot be parsed ({error}); restore an older "
            "version of the table"
        ) from error
    return tuple(
        _logical_path(configuration, tuple(physical))
        for physical in decoded.get("clusteringColumns", [])
    )


def clustering_domain(columns: Iterable[Iterable[str]]) -> DomainMetadata:
    """The metadata domain of clustering columns, which are given by physical names."""
    listed = [list(column) for column in columns]
    text = msgspec.json.encode({"clusteringColumns": listed, "domainName": CLUSTERING_DOMAIN})
    return DomainMetadata(domain=CLUSTERING_DOMAIN, configuration=text.decode(), removed=False)


def _logical_path(configuration: TableConfiguration, physical: ColumnPath) -> ColumnPath:
    level: object = configuration.schema
    path: list[str] = []
    mode = configuration.column_mapping_mode
    for step in physical:
        fields = level if isinstance(level, StructType) else ()
        found = next((field for field in fields if physical_name(field, mode) == step), None)
        if found is None:
            raise InvalidTable(
                f"the table is clustered by {'.'.join(physical)}, which is not a column of it; "
                "restore an older version of the table"
            )
        path.append(found.name)
        level = found.data_type
    return tuple(path)


def follow_column(
    configuration: TableConfiguration, path: ColumnPath, new_path: ColumnPath | None
) -> TableConfiguration:
    """The configuration, with the list of columns with statistics updated for a column that gets
    another path, or is dropped.
    """
    named = configuration.properties.data_skipping_stats_columns
    if named is None:
        return configuration
    folded = tuple(fold_name(step) for step in path)
    changed: list[ColumnPath] = []
    for column in named:
        if tuple(fold_name(step) for step in column[: len(path)]) != folded:
            changed.append(column)
        elif new_path is not None:
            changed.append((*new_path, *column[len(path) :]))
    if tuple(changed) == named:
        return configuration
    listed = {_STATS_COLUMNS_KEY: ",".join(map(dotted, changed))}
    return configuration.with_properties({**configuration.metadata.configuration, **listed})
