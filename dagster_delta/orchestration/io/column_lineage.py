"""Which upstream columns a column is computed from, derived from the text of a query or from column
names.

For a DataFrame it cannot be derived: its analysed plan is not a public API of Spark, and Spark
Connect does not have it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Literal

import msgspec
from dagster import AssetKey, TableColumnDep, TableColumnLineage
from sqlglot import exp, parse_one
from sqlglot.errors import SqlglotError
from sqlglot.lineage import Node, lineage
from sqlglot.optimizer.qualify import qualify
from sqlglot.optimizer.scope import build_scope, traverse_scope

from dagster_delta.engines import REGISTERED
from dagster_delta.errors import UnsupportedExpression


class UpstreamColumns(msgspec.Struct, frozen=True):
    """An upstream asset and its columns."""

    asset_key: AssetKey
    columns: Sequence[str]


@contextmanager
def _translate_errors() -> Iterator[None]:
    try:
        yield
    except (SqlglotError, ValueError) as error:
        raise UnsupportedExpression(
            f"the columns that the query reads cannot be derived from it: {error}"
        ) from error


@_translate_errors()
def sql_column_lineage(
    sql: str,
    tables: Mapping[str, UpstreamColumns],
    columns: Sequence[str] | None = None,
    *,
    dialect: Literal["spark", "duckdb"] = "spark",
) -> TableColumnLineage:
    """The column lineage of a query: for each of its columns, the upstream columns it is computed
    from.

    Columns that only filter, join or group, constants and row counts are excluded.

    Args:
        sql: a query.
        tables: name in the query to the upstream asset.
        columns: of the result, in order; by default as named by the query.
        dialect: SQL dialect of the query.

    Raises:
        UnsupportedExpression: the query cannot be analysed, or uses other tables.

    Examples:
        sql_column_lineage(
            "SELECT id, price * rate AS euros FROM orders JOIN rates USING (currency)",
            {"orders": UpstreamColumns(ORDERS, orders.columns), "rates": …},
        )
    """
    query, qualified, schema = _qualify_query(sql, tables, dialect)
    written = query.named_selects
    names = qualified.named_selects
    if columns is None:
        # Qualified names are lower-cased; with a star there are no other names.
        columns = written if len(written) == len(names) and "*" not in written else names
    if len(columns) != len(names):
        raise UnsupportedExpression(
            f"the query has {len(names)} columns, and its result {len(columns)}"
        )
    if len(set(names)) < len(names):
        raise UnsupportedExpression("two columns of the query have the same name: rename one")
    scope = build_scope(qualified)
    deps = {}
    for column, name in zip(columns, names, strict=True):
        root = lineage(name, qualified, schema, dialect=dialect, scope=scope)
        if found := set(_find_sources(root, tables)):
            deps[column] = sorted(found, key=lambda dep: (dep.asset_key.path, dep.column_name))
    return TableColumnLineage(deps)


@_translate_errors()
def sql_columns_read(
    sql: str, tables: Mapping[str, UpstreamColumns], *, dialect: Literal["spark", "duckdb"]
) -> dict[AssetKey, set[str]]:
    """By upstream asset: its columns that a query names anywhere, filters and joins included.

    Raises:
        UnsupportedExpression: the query cannot be analysed, or reads columns without their names.
    """
    read: dict[AssetKey, set[str]] = {}
    query, qualified, _ = _qualify_query(sql, tables, dialect)
    unseen = {id(column) for column in qualified.find_all(exp.Column)}
    for scope in traverse_scope(qualified):
        for column in scope.columns:
            unseen.discard(id(column))
            source = scope.sources.get(column.table)
            if isinstance(source, exp.Table):
                for dep in _find_column(column.name, source, tables):
                    read.setdefault(dep.asset_key, set()).add(dep.column_name)
    # `* EXCLUDE (a)` needs a, and the star of COUNT(*) no column.
    unseen |= {id(star) for star in query.find_all(exp.Star) if any(star.args.values())}
    stars = {type(star.parent) for star in qualified.find_all(exp.Star)} - {exp.Count}
    if unseen or stars or qualified.find(exp.Columns, exp.Pivot, exp.TableColumn):
        raise UnsupportedExpression("the query reads columns that it does not name")
    return read


def _qualify_query(
    sql: str, tables: Mapping[str, UpstreamColumns], dialect: str
) -> tuple[exp.Query, Any, dict[str, object]]:
    """A query, the same with qualified names, and the schema of its tables."""
    catalog, database = REGISTERED.split(".")
    # Types do not affect lineage.
    columns = {
        name.lower(): dict.fromkeys(table.columns, "string") for name, table in tables.items()
    }
    schema: dict[str, object] = {catalog: {database: columns}}
    query = parse_one(sql, dialect=dialect)
    if not isinstance(query, exp.Query):
        raise UnsupportedExpression("column lineage is derived from a query: SELECT …")
    qualified = qualify(query.copy(), schema=schema, dialect=dialect, catalog=catalog, db=database)
    return query, qualified, schema


def _find_sources(root: Node, tables: Mapping[str, UpstreamColumns]) -> Iterator[TableColumnDep]:
    for node in root.walk():
        if not node.downstream and isinstance(node.expression, exp.Table):
            yield from _find_column(exp.to_column(node.name).name, node.expression, tables)


def _find_column(
    column: str, source: exp.Table, tables: Mapping[str, UpstreamColumns]
) -> Iterator[TableColumnDep]:
    """The column of an upstream table that a name in a query means, if it is one."""
    table = {name.lower(): table for name, table in tables.items()}.get(source.name.lower())
    if table is None:
        raise UnsupportedExpression(
            f"the query reads {source.name}, which is not one of its upstream tables: "
            f"{', '.join(tables)}"
        )
    for known in table.columns:
        if known.lower() == column.lower():
            yield TableColumnDep(table.asset_key, known)
