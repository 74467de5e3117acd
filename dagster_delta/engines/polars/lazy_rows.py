"""A polars LazyFrame over rows that are read while a query runs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

import polars as pl
from polars.io.plugins import register_io_source

from dagster_delta.engines.polars.predicates import to_condition

if TYPE_CHECKING:
    import pyarrow as pa

    from dagster_delta.protocol.schema import StructType

__all__ = ["ReadRows", "lazy_frame"]

ReadRows = Callable[["Sequence[str]", "str | None"], "pa.RecordBatchReader"]
"""Reads at least these columns of at least the rows for which this Spark SQL is true."""


def lazy_frame(schema: pa.Schema, fields: StructType, read: ReadRows) -> pl.LazyFrame:
    """A LazyFrame whose rows are read when a query runs, by each query again.

    Args:
        schema: schema of all columns.
        fields: the columns that Spark SQL may use.
        read: called for every query. It must not read data files by polars, which aborts the
            process over some damaged ones.

    Raises:
        Nothing here; the method that runs the query raises the errors of `read`.
    """

    def frames(
        columns: list[str] | None,
        predicate: pl.Expr | None,
        n_rows: int | None,
        _batch_size: int | None,
    ) -> Iterator[pl.DataFrame]:
        names = schema.names if columns is None else columns
        # A limit applies to the rows before the filter.
        where = None if n_rows is not None else to_condition(predicate, fields)
        found = (pl.DataFrame(batch.select(names)) for batch in read(names, where))
        for frame in found if n_rows is None else _first_rows(found, n_rows):
            yield frame if predicate is None else frame.filter(predicate)

    polars_schema = pl.DataFrame(schema.empty_table()).schema
    # Two reads of one version are the same, so a self-join may read once.
    return register_io_source(frames, schema=polars_schema, is_pure=True)


def _first_rows(frames: Iterator[pl.DataFrame], count: int) -> Iterator[pl.DataFrame]:
    if count == 0:
        return
    for frame in frames:
        yield frame.head(count)
        count -= frame.height
        if count <= 0:
            return
