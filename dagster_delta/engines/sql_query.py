"""Queries in the SQL of DuckDB over given tables alone: no file, network or variable."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Protocol

import pyarrow as pa

from dagster_delta.engines.data_input import to_reader
from dagster_delta.errors import InvalidArgument
from dagster_delta.sql.duckdb_sql import REGISTERED as REGISTERED
from dagster_delta.sql.duckdb_sql import open_database
from dagster_delta.storage.scratch import scratch_directory


class QueriedRows(Protocol):
    """Rows that a query reads by parts, such as a scan."""

    def duckdb_dataset(self) -> object:
        """A dataset that DuckDB reads; its `failure` is the error that ended a read, if any."""


def run_query(
    sql: str, tables: Mapping[str, QueriedRows | pa.Table], *, name: str, memory_bytes: int
) -> pa.RecordBatchReader:
    """The result of a query in DuckDB's SQL as a `pa.RecordBatchReader`, computed while it is
    consumed.

    Columns and filters of the query are pushed down into the scans. HUGEINT (the type of integer
    sums) becomes BIGINT, and timestamps are in UTC. Sorts, joins and aggregates beyond
    `memory_bytes` go to disk. What DuckDB refuses is an error here; a value that fails, while
    reading.

    `tables`: by the name under which the query reads them.
    """
    import duckdb

    datasets = {
        table: rows if isinstance(rows, pa.Table) else rows.duckdb_dataset()
        for table, rows in tables.items()
    }
    with ExitStack() as stack:
        stack.enter_context(_errors_of_query(name, datasets))
        directory = stack.enter_context(scratch_directory("query-"))
        # It reads registered inputs only: no files, network or variables.
        connection = stack.enter_context(open_database(directory, memory_bytes))
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
def _errors_of_query(name: str, datasets: Mapping[str, object]) -> Iterator[None]:
    """An error of DuckDB as that of the failed input, or as an error of this library."""
    import duckdb

    try:
        yield
    except duckdb.Error as error:
        for dataset in datasets.values():
            if (failure := getattr(dataset, "failure", None)) is not None:
                raise failure from None
        raise InvalidArgument(
            f"the query of {name} failed: {str(error).strip()}\nIt is in the SQL of DuckDB, and "
            "reads its upstream tables alone, within memory_limit; "
            'engine="spark" runs one in Spark SQL'
        ) from error
