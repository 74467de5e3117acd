"""Rows as a dataset that DuckDB reads lazily: only the columns and rows that a query needs."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence

import pyarrow as pa
import pyarrow.dataset as ds

from dagster_delta.errors import DeltaError
from dagster_delta.protocol.schema import StructType
from dagster_delta.sql.arrow_filters import filter_to_condition
from dagster_delta.sql.typed import Typed


class BatchDataset(ds.Dataset):  # type: ignore[misc]  # pyarrow has no types
    """The part of a `pyarrow.dataset.Dataset` that DuckDB calls.

    DuckDB passes its filters only to datasets, and does not repeat them. A reader of batches could
    be read only once, and whole. `read` returns at least these columns of at least the rows that
    satisfy the condition, and is called for every scan. Spark SQL compares `exact_columns` as Arrow
    does.
    """

    # pyarrow's own class has no constructor.
    def __init__(
        self,
        schema: pa.Schema,
        read: Callable[[Sequence[str], Typed | None], pa.RecordBatchReader],
        exact_columns: StructType,
    ) -> None:
        self._schema = schema
        self._read = read
        self._exact_columns = exact_columns
        self.failure: DeltaError | None = None
        """The DeltaError that ended a scan: DuckDB raises it only as text in its own error."""

    @property
    def schema(self) -> pa.Schema:
        """The Arrow schema of the rows."""
        return self._schema

    def scanner(
        self,
        columns: Sequence[str] | None = None,
        filter: pa.Expression | None = None,  # noqa: A002
    ) -> _Scanner:
        """One scan. DuckDB passes these arguments by name."""
        names = self._schema.names if columns is None else list(columns)
        return _Scanner(
            pa.schema([self._schema.field(name) for name in names]),
            self._rows(names, filter),
        )

    def _rows(self, names: Sequence[str], condition: pa.Expression | None) -> Iterator[object]:
        where, needed = None, list(names)
        if condition is not None:
            where = filter_to_condition(condition, self._schema, self._exact_columns)
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
    """The part of a `pyarrow.dataset.Scanner` that DuckDB calls."""

    def __init__(self, schema: pa.Schema, batches: Iterator[object]) -> None:
        self._schema = schema
        self._batches = batches

    def to_reader(self) -> pa.RecordBatchReader:
        return pa.RecordBatchReader.from_batches(self._schema, self._batches)


def _mentioned(condition: str, names: Sequence[str]) -> list[str]:
    """The names that occur in the text of a condition: at least all columns that it uses, which
    Arrow does not list.
    """
    words = set(re.findall(r"\w+", condition))
    return [name for name in names if (name in words if name.isidentifier() else name in condition)]
