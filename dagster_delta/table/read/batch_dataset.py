"""Rows as a dataset that DuckDB reads lazily: only the columns and rows that its query needs."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Sequence

import pyarrow as pa
import pyarrow.dataset as ds

from dagster_delta.engines.expressions.arrow_filters import filter_to_sql
from dagster_delta.errors import DeltaError

__all__ = ["BatchDataset"]


class BatchDataset(ds.Dataset):  # type: ignore[misc]  # pyarrow has no types
    """What DuckDB asks of a `pyarrow.dataset.Dataset`, and no more of one.

    DuckDB hands its filters to datasets alone, and leaves out what a dataset has filtered. A reader
    of batches would be read once, and whole.

    Args:
        schema: of the rows.
        read: the rows with at least these columns for which at least this Spark SQL is true; called
            for every scan.
        exact_columns: columns that Spark SQL compares as Arrow does.
    """

    # pyarrow's own has no constructor.
    def __init__(
        self,
        schema: pa.Schema,
        read: Callable[[Sequence[str], str | None], pa.RecordBatchReader],
        exact_columns: Collection[str],
    ) -> None:
        self._schema = schema
        self._read = read
        self._exact_columns = exact_columns
        self.failure: DeltaError | None = None
        """The error of ours that ended a scan: DuckDB raises it as text in an error of its own."""

    @property
    def schema(self) -> pa.Schema:
        """The Arrow schema of the rows."""
        return self._schema

    def scanner(
        self,
        columns: Sequence[str] | None = None,
        filter: pa.Expression | None = None,  # noqa: A002
    ) -> _Scanner:
        """One scan. DuckDB calls it by these names.

        Args:
            columns: of the result, in this order; None for all.
            filter: a `pyarrow.compute.Expression`; rows for which it is true are the result.
        """
        names = self._schema.names if columns is None else list(columns)
        return _Scanner(
            pa.schema([self._schema.field(name) for name in names]),
            self._rows(names, filter),
        )

    def _rows(self, names: Sequence[str], condition: pa.Expression | None) -> Iterator[object]:
        where, needed = None, list(names)
        if condition is not None:
            where = filter_to_sql(condition, self._schema, self._exact_columns)
            needed += _mentioned(str(condition), [n for n in self._schema.names if n not in names])
        try:
            for batch in self._read(needed, where):
                if condition is None:
                    yield batch.select(names)
                    continue
                yield from pa.table(batch).filter(condition).select(names).to_batches()
        except DeltaError as error:
            self.failure = error
            raise


class _Scanner:
    """What DuckDB asks of a `pyarrow.dataset.Scanner`."""

    def __init__(self, schema: pa.Schema, batches: Iterator[object]) -> None:
        self._schema = schema
        self._batches = batches

    def to_reader(self) -> pa.RecordBatchReader:
        return pa.RecordBatchReader.from_batches(self._schema, self._batches)


def _mentioned(condition: str, names: Sequence[str]) -> list[str]:
    """The names that occur in the text of a condition: at least all columns that it is about,
    which Arrow does not list.
    """
    words = set(re.findall(r"\w+", condition))
    return [name for name in names if (name in words if name.isidentifier() else name in condition)]
