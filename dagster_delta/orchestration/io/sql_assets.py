"""Assets given as a query in SQL, with the lineage of each of their columns."""

# No `from __future__ import annotations`: Dagster reads the annotations of assets itself.

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from string import Formatter
from typing import Any, Literal, cast

import dagster as dg
import pyarrow as pa

from dagster_delta.engines import REGISTERED, size_bytes
from dagster_delta.engines import run_query as run_query
from dagster_delta.errors import InvalidArgument, UnsupportedExpression
from dagster_delta.orchestration.io.asset_options import AssetReference, asset_key_of, check_choice
from dagster_delta.orchestration.io.run_facts import current_execution
from dagster_delta.orchestration.io.type_handlers import SCAN_INPUT
from dagster_delta.orchestration.known_fields import checked_arguments
from dagster_delta.orchestration.metadata_keys import COLUMNS_READ_KEY, QUERY_KEY, RawMetadata


@checked_arguments(dg.asset)
def delta_sql_asset(
    name: str,
    sql: str,
    upstream: Mapping[str, AssetReference],
    *,
    engine: Literal["arrow", "spark"] = "arrow",
    memory_limit: str = "2GB",
    io_manager_key: str = "io_manager",
    **asset_options: Any,
) -> dg.AssetsDefinition:
    """An asset computed from other assets by a query in SQL.

    The embedded engine runs the query with DuckDB, in DuckDB's SQL, and streams the result into the
    table; the query can read only its upstream tables. Spark runs it in Spark SQL.

    The query names its tables in braces, also if a CTE has the same name; `{{` and `}}` are braces
    of the query itself. Every materialization shows the query, and the upstream columns of each
    column. If they cannot be derived, the log of the run says why.

    Args:
        name: of the asset.
        sql: one query: `SELECT … FROM {flights}`.
        upstream: name in the query to the asset, or its key, which the IO manager loads.
        engine: `arrow` for the embedded engine, or `spark`.
        memory_limit: of DuckDB, such as `2GB`; sorts, joins and aggregates beyond it go to disk.
        io_manager_key: of a DeltaIOManager, which writes the table.
        asset_options: of `dg.asset`: key_prefix, partitions_def, metadata, description, …

    Raises:
        InvalidArgument: the query and its tables do not match, the engine is unknown, or the limit
            is not a size.

    Examples:
        delta_sql_asset(
            "late_carriers",
            "SELECT carrier, avg(arr_delay) AS delay FROM {flights} GROUP BY carrier",
            {"flights": flights},
        )
    """
    check_choice(name, "engine", engine, Literal["arrow", "spark"])
    keys = {table: asset_key_of(asset) for table, asset in upstream.items()}
    query = _fill_in_names(name, sql, {table: table for table in keys})
    shown: RawMetadata = {QUERY_KEY: dg.MetadataValue.md(f"```sql\n{query}\n```")}
    kind: Any = SCAN_INPUT
    if engine == "spark":
        from pyspark.sql import DataFrame as kind  # noqa: N813  of each input
    inputs = {table: dg.AssetIn(key, dagster_type=kind) for table, key in keys.items()}
    given = asset_options.get("ins") or {}
    # The query in the metadata shows whether a materialization is of this query.
    metadata = {**(asset_options.get("metadata") or {}), **shown}
    kinds = {"deltalake", "duckdb" if engine == "arrow" else "spark", "sql"}
    options = {"kinds": kinds, **asset_options, "ins": {**inputs, **given}, "metadata": metadata}
    define = dg.asset(name=name, io_manager_key=io_manager_key, **options)
    compute = _make_compute(name, sql, keys, engine, size_bytes(memory_limit), shown)
    return cast("dg.AssetsDefinition", define(compute))


def _make_compute(
    name: str,
    sql: str,
    keys: Mapping[str, dg.AssetKey],
    engine: Literal["arrow", "spark"],
    memory_bytes: int,
    shown: RawMetadata,
) -> Callable[..., Any]:
    """The function of the asset; it takes its inputs by the names of their tables."""
    dialect: Literal["duckdb", "spark"] = "duckdb" if engine == "arrow" else "spark"
    qualified = _qualified_query(name, sql, keys, '"' if engine == "arrow" else "`")

    def compute(**tables: Any) -> dg.Output[Any]:
        if engine == "arrow":
            rows = run_query(qualified, tables, name=name, memory_bytes=memory_bytes)
            names = rows.schema.names
        else:
            rows = next(iter(tables.values())).sparkSession.sql(sql, **tables)
            names = rows.columns
        columns = {
            table: given.column_names if isinstance(given, pa.Table) else given.columns
            for table, given in tables.items()
        }
        lineage = _derive_lineage(qualified, keys, columns, names, dialect)
        return dg.Output(rows, metadata=shown | lineage)

    kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
    signature = inspect.Signature([inspect.Parameter(table, kind) for table in keys])
    compute.__signature__ = signature  # type: ignore[attr-defined]
    return compute


def _fill_in_names(name: str, sql: str, names: Mapping[str, str]) -> str:
    if not names:
        raise InvalidArgument(f"{name} has no upstream asset to query")
    if odd := [table for table in names if not table.isidentifier() or table == "context"]:
        raise InvalidArgument(
            f"the query of {name} has the table name {odd[0]!r}, which is not allowed: use "
            "letters, digits and underscores"
        )
    advice = "write {{ and }} for braces that belong to the query, and {table}.column for a column"
    try:
        parts = list(Formatter().parse(sql))
    except ValueError as error:
        raise InvalidArgument(f"the braces of the query of {name}: {error}; {advice}") from error
    for _, field, spec, conversion in parts:
        if field is not None and (field not in names or spec or conversion):
            found = f"{field}{f'!{conversion}' if conversion else ''}{f':{spec}' if spec else ''}"
            raise InvalidArgument(
                f"the query of {name} has {found!r} in braces, which is none of its tables "
                f"{', '.join(names)}: {advice}"
            )
    return sql.format_map(names)


def _qualified_query(name: str, sql: str, tables: Iterable[str], quote: str) -> str:
    """The query with its tables qualified by the schema of registered tables, so that no CTE hides
    them.
    """
    quoted = {table: f"{quote}{table}{quote}" for table in tables}
    names = {table: f"{REGISTERED}.{identifier}" for table, identifier in quoted.items()}
    query = _fill_in_names(name, sql, names)
    for identifier in quoted.values():
        # `{flights}.carrier` and `{flights}.*`: DuckDB refuses a star after a qualified name.
        query = query.replace(f"{REGISTERED}.{identifier}.", f"{identifier}.")
    return query


def _derive_lineage(
    query: str,
    keys: Mapping[str, dg.AssetKey],
    columns: Mapping[str, Sequence[str]],
    result: Sequence[str],
    dialect: Literal["spark", "duckdb"],
) -> RawMetadata:
    # Only a run parses the query.
    from dagster_delta.orchestration.io.column_lineage import (
        UpstreamColumns,
        sql_column_lineage,
        sql_columns_read,
    )

    tables = {table: UpstreamColumns(key, columns[table]) for table, key in keys.items()}
    found: RawMetadata = {}
    try:
        lineage = sql_column_lineage(query, tables, result, dialect=dialect)
        found["dagster/column_lineage"] = dg.MetadataValue.column_lineage(lineage)
        read = sql_columns_read(query, tables, dialect=dialect)
    except UnsupportedExpression as error:
        execution = current_execution()
        if execution is not None:
            execution.log.warning(str(error))
        return found
    found[COLUMNS_READ_KEY] = {
        upstream.asset_key.to_user_string(): {
            "read": sorted(read.get(upstream.asset_key, ())),
            "of": list(upstream.columns),
        }
        for upstream in tables.values()
    }
    return found
