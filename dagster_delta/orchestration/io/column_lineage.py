"""Which upstream columns a column is computed from, derived from the text of a query or from column
names.

For a DataFrame it cannot be derived: its analysed plan is not a public API of Spark, and Spark
Connect does not have it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from dagster import AssetKey, TableColumnDep, TableColumnLineage

from dagster_delta.errors import UnsupportedExpression

if TYPE_CHECKING:
    from sqlglot.lineage import Node

REGISTERED = "temp.main"
"""The DuckDB schema of a query's registered upstream tables: a name qualified by it is never a
CTE."""


@dataclass(frozen=True, slots=True)
class UpstreamColumns:
    """An upstream asset and its columns."""

    asset_key: AssetKey
    columns: Sequence[str]


def column_lineage_by_name(columns: Sequence[str], upstream: UpstreamColumns) -> TableColumnLineage:
    """Lineage of every column of a table from the upstream column with the same name, if there is
    one.
    """
    known = {each.lower(): each for each in upstream.columns}
    return TableColumnLineage(
        {
            column: [TableColumnDep(upstream.asset_key, known[column.lower()])]
            for column in columns
            if column.lower() in known
        }
    )


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
    from sqlglot.errors import SqlglotError

    try:
        return _lineage(sql, tables, columns, dialect)
    except (SqlglotError, ValueError) as error:
        raise UnsupportedExpression(
            f"the column lineage cannot be derived from the query: {error}"
        ) from error


def _lineage(
    sql: str, tables: Mapping[str, UpstreamColumns], columns: Sequence[str] | None, dialect: str
) -> TableColumnLineage:
    from sqlglot import exp, parse_one
    from sqlglot.lineage import lineage
    from sqlglot.optimizer.qualify import qualify
    from sqlglot.optimizer.scope import build_scope

    catalog, database = REGISTERED.split(".")
    upstream = {name.lower(): each for name, each in tables.items()}
    # Types do not affect lineage.
    schema: dict[str, object] = {
        catalog: {
            database: {
                name: dict.fromkeys(each.columns, "string") for name, each in upstream.items()
            }
        }
    }
    query = parse_one(sql, dialect=dialect)
    if not isinstance(query, exp.Query):
        raise UnsupportedExpression("column lineage is derived from a query: SELECT …")
    written = query.named_selects
    qualified: Any = qualify(
        query.copy(), schema=schema, dialect=dialect, catalog=catalog, db=database
    )
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
        if found := set(_sources(root, upstream)):
            deps[column] = sorted(found, key=lambda each: (each.asset_key.path, each.column_name))
    return TableColumnLineage(deps)


def _sources(root: Node, upstream: Mapping[str, UpstreamColumns]) -> Iterator[TableColumnDep]:
    from sqlglot import exp

    for node in root.walk():
        if node.downstream or not isinstance(node.expression, exp.Table):
            continue
        table = upstream.get(node.expression.name.lower())
        if table is None:
            raise UnsupportedExpression(
                f"the query reads {node.expression.name}, which is not one of its upstream tables: "
                f"{', '.join(upstream)}"
            )
        name = exp.to_column(node.name).name.lower()
        for column in table.columns:
            if column.lower() == name:
                yield TableColumnDep(table.asset_key, column)
