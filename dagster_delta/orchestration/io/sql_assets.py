"""Assets given as Spark SQL, with the lineage of each of their columns."""

# No `from __future__ import annotations`: Dagster reads the annotations of assets itself.

import inspect
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, cast

import dagster as dg

from dagster_delta.errors import InvalidArgument, UnsupportedExpression
from dagster_delta.orchestration.asset_keys import asset_key_of
from dagster_delta.orchestration.io.asset_options import AssetOptions, read_asset_options
from dagster_delta.orchestration.io.column_lineage import UpstreamColumns, sql_column_lineage

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["delta_sql_asset"]


def delta_sql_asset(
    name: str,
    sql: str,
    upstream: Mapping[str, Any],
    *,
    io_manager_key: str = "io_manager",
    **asset_options: Any,
) -> dg.AssetsDefinition:
    """An asset computed from other assets by a query that Spark runs.

    The query names its tables in braces, as `SparkSession.sql` has it; a brace of its own is
    doubled. Every materialisation shows the query, and from which upstream columns the values of
    each column come. Where that cannot be told, the log of the run says why.

    Args:
        name: of the asset.
        sql: a query in Spark SQL: `SELECT … FROM {flights}`.
        upstream: name in the query to the asset, or its key, that the IO manager loads for it.
        io_manager_key: of a DeltaIOManager, which writes the table.
        asset_options: of `dg.asset`: key_prefix, partitions_def, metadata, description, …

    Raises:
        InvalidArgument: the query and its tables do not fit.

    Examples:
        delta_sql_asset(
            "late_carriers",
            "SELECT carrier, avg(arr_delay) AS delay FROM {flights} GROUP BY carrier",
            {"flights": flights},
        )
    """
    from pyspark.sql import DataFrame

    keys = {table: asset_key_of(asset) for table, asset in upstream.items()}
    query = _query(name, sql, keys)
    options = {"kinds": {"deltalake", "spark", "sql"}, **asset_options}
    read_asset_options(options.get("metadata") or {}, AssetOptions(), asset=name)
    ins = dict(options.pop("ins", None) or {})
    options["ins"] = {table: dg.AssetIn(key) for table, key in keys.items()} | ins

    def compute(context: dg.AssetExecutionContext, **frames: Any) -> Any:
        session = next(iter(frames.values())).sparkSession
        result = session.sql(sql, **frames)
        metadata = {"delta/query": dg.MetadataValue.md(f"```sql\n{query}\n```")}
        return dg.Output(result, metadata=metadata | _lineage(context, query, keys, frames, result))

    parameters = [
        inspect.Parameter("context", inspect.Parameter.POSITIONAL_OR_KEYWORD),
        *(
            inspect.Parameter(each, inspect.Parameter.POSITIONAL_OR_KEYWORD, annotation=DataFrame)
            for each in keys
        ),
    ]
    compute.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    compute.__annotations__ = {each.name: DataFrame for each in parameters[1:]}
    define = dg.asset(name=name, io_manager_key=io_manager_key, **options)
    return cast("dg.AssetsDefinition", define(compute))


def _query(name: str, sql: str, keys: Mapping[str, dg.AssetKey]) -> str:
    """The query with plain names of its tables."""
    if not keys:
        raise InvalidArgument(f"{name} has no upstream asset for Spark to query")
    if odd := [each for each in keys if not each.isidentifier() or each == "context"]:
        raise InvalidArgument(
            f"the query of {name} has the table name {odd[0]!r}, which is not allowed: use "
            "letters, digits and underscores"
        )
    try:
        return sql.format_map({each: each for each in keys})
    except (KeyError, ValueError, IndexError) as error:
        raise InvalidArgument(
            f"the query of {name} has braces around {error}, which is none of its tables "
            f"{', '.join(keys)}; a brace of its own is doubled"
        ) from error


def _lineage(
    context: dg.AssetExecutionContext,
    query: str,
    keys: Mapping[str, dg.AssetKey],
    frames: Mapping[str, "DataFrame"],
    result: "DataFrame",
) -> dict[str, Any]:
    tables = {name: UpstreamColumns(key, frames[name].columns) for name, key in keys.items()}
    try:
        lineage = sql_column_lineage(query, tables, result.columns)
    except UnsupportedExpression as error:
        context.log.warning(str(error))
        return {}
    return {"dagster/column_lineage": dg.MetadataValue.column_lineage(lineage)}
