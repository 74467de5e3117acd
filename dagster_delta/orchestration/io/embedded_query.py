"""A query over Delta tables, computed in this process by a DuckDB that can access only these
tables.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING

import pyarrow as pa

from dagster_delta.errors import InvalidArgument
from dagster_delta.storage.scratch_directory import scratch_directory

if TYPE_CHECKING:
    import duckdb

    from dagster_delta.table.read.batch_dataset import BatchDataset
    from dagster_delta.table.read.scan import Scan

_FOR_SPARK = 'the query is in the SQL of DuckDB; engine="spark" runs one in Spark SQL'


def run_query(
    sql: str, tables: Mapping[str, Scan | pa.Table], *, name: str, memory_bytes: int
) -> pa.RecordBatchReader:
    """The result of a query in DuckDB's SQL as a `pa.RecordBatchReader`, computed while it is
    consumed.

    Columns and filters of the query are pushed down into the scans. HUGEINT (the type of integer
    sums) becomes BIGINT, and timestamps are in UTC. Sorts, joins and aggregates beyond
    `memory_bytes` go to disk. What DuckDB refuses is an error here; a value that fails, while
    reading.
    """
    import duckdb

    from dagster_delta.parquet.data_input import to_reader

    datasets = {
        table: scan if isinstance(scan, pa.Table) else scan.duckdb_dataset()
        for table, scan in tables.items()
    }
    with ExitStack() as stack:
        stack.enter_context(_errors_of_query(name, datasets))
        connection = stack.enter_context(sealed_connection(memory_bytes))
        for table, dataset in datasets.items():
            connection.register(table, dataset)
        statements = connection.extract_statements(sql)
        if [statement.type for statement in statements] != [duckdb.StatementType.SELECT]:
            raise InvalidArgument(f"the query of {name} has to be one SELECT: {sql!r}")
        reader = to_reader(connection.sql(sql))
        # The connection closes when the result is read to its end.
        resources = stack.pop_all()
    return pa.RecordBatchReader.from_batches(reader.schema, _until_closed(reader, resources))


def _until_closed(reader: pa.RecordBatchReader, resources: ExitStack) -> Iterator[object]:
    with resources:
        yield from reader


@contextmanager
def sealed_connection(memory_bytes: int) -> Iterator[duckdb.DuckDBPyConnection]:
    """A DuckDB that reads registered inputs only: no files, network or variables."""
    import duckdb

    from dagster_delta.sql.duckdb_sql import SEALED_CONFIG

    with scratch_directory("query-") as directory:
        limits = {"temp_directory": directory, "memory_limit": f"{memory_bytes}B"}
        with duckdb.connect(":memory:", config={**SEALED_CONFIG, **limits}) as connection:
            connection.execute("SET TimeZone = 'UTC'")
            connection.execute("SET lock_configuration = true")
            yield connection


@contextmanager
def _errors_of_query(name: str, datasets: Mapping[str, BatchDataset | pa.Table]) -> Iterator[None]:
    """An error of DuckDB, converted to the error of the failed input or to an error of this
    library.
    """
    import duckdb

    try:
        yield
    except duckdb.Error as error:
        for dataset in datasets.values():
            failure = getattr(dataset, "failure", None)
            if failure is not None:
                raise failure from None
        raise InvalidArgument(f"the query of {name} {_problem(error)}") from error


def _problem(error: duckdb.Error) -> str:
    import duckdb

    text = str(error).strip()
    match error:
        case duckdb.CatalogException() | duckdb.BinderException() | duckdb.ParserException():
            return f"is refused: {text}\n{_FOR_SPARK}"
        case duckdb.PermissionException():
            return f"may read its upstream tables and nothing else: {text}"
        case duckdb.OutOfMemoryException():
            return f'needs more memory: {text}\nset memory_limit, or engine="spark"'
    return f"fails: {text}"
