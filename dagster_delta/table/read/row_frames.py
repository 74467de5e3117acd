"""One stream of rows in several forms: Arrow, pandas, polars, DuckDB."""

from __future__ import annotations

import importlib
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

from dagster_delta.errors import InvalidArgument
from dagster_delta.protocol.schema import StructType

if TYPE_CHECKING:
    from types import ModuleType

    import duckdb
    import pandas as pd
    import polars as pl
    import pyarrow as pa

    from dagster_delta.table.read.batch_dataset import BatchDataset


class RowFrames(ABC):
    """Rows that can be read batch by batch, and so as a whole."""

    @abstractmethod
    def to_batches(self) -> pa.RecordBatchReader:
        """The rows as a `pa.RecordBatchReader`."""

    def to_arrow(self) -> pa.Table:
        """The rows as a `pa.Table`. Raises as `to_batches` does."""
        return self.to_batches().read_all()

    def to_pandas(self) -> pd.DataFrame:
        """The rows as a pandas frame. Raises as `to_batches` does."""
        frame: pd.DataFrame = self.to_arrow().to_pandas()
        return frame

    def to_polars(self) -> pl.DataFrame:
        """The rows as a polars frame.

        Raises:
            InvalidArgument: polars is not installed; and as `to_batches` does.
        """
        frame: pl.DataFrame = require("polars").from_arrow(self.to_arrow())
        return frame

    def to_duckdb(
        self, connection: duckdb.DuckDBPyConnection | None = None
    ) -> duckdb.DuckDBPyRelation:
        """The rows as a lazy DuckDB relation, read batch by batch each time it is computed.

        A `Scan` reads the columns that the query needs, and skips files and row groups by filters
        that DuckDB passes on: comparisons of columns with constants.

        Args:
            connection: the connection that computes it; relations are joined on one connection
                only. By default the one of `duckdb.sql`, whose queries name relations by their
                variables.

        Raises:
            As `to_batches` does; a later error is a `duckdb.Error` with the message.
        """
        import duckdb

        if connection is None:
            connection = duckdb.default_connection()
        return connection.from_arrow(self.duckdb_dataset())

    def duckdb_dataset(self) -> BatchDataset:
        """A dataset that only DuckDB can read: `connection.register("name", …)` makes a view of it.
        Raises as `to_batches` does.
        """
        from dagster_delta.table.read.batch_dataset import BatchDataset

        return BatchDataset(
            self.to_batches().schema, lambda _columns, _where: self.to_batches(), StructType(())
        )

    def to_polars_lazy(self) -> pl.LazyFrame:
        """The rows as a polars LazyFrame: batches are read while a query runs, in bounded memory,
        and again by each query.

        Raises:
            InvalidArgument: polars is not installed. The query raises the errors of `to_batches`.
        """
        require("polars")
        from dagster_delta.engines.polars import lazy_frame

        # Without fields, no part of a filter is converted.
        return lazy_frame(
            self.to_batches().schema, StructType(()), lambda _columns, _where: self.to_batches()
        )


def require(module: str) -> ModuleType:
    """A module of an optional dependency.

    Raises:
        InvalidArgument: the module is not installed.
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise InvalidArgument(
            f"{module} is not installed: pip install 'dagster-delta-protocol[{module}]', "
            "or use to_arrow()"
        ) from error
