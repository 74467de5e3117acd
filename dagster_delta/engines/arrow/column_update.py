"""New values for some columns of the matching rows, if the rest of the rows is not needed.

Spec: Generated Columns; Column Invariants; CHECK Constraints.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import msgspec
import pyarrow as pa
from pyroaring import BitMap64

from dagster_delta.engines.parquet.read.data_file_reader import DataFileReader
from dagster_delta.engines.parquet.read.opened_file import OpenedFile
from dagster_delta.engines.plans import RowRewrite
from dagster_delta.engines.rows.row_update import row_update
from dagster_delta.errors import ConstraintViolation
from dagster_delta.protocol.features.deletion_vectors import deleted_row_mask
from dagster_delta.protocol.features.row_tracking import carried_columns
from dagster_delta.protocol.values.arrow_schema import to_arrow_schema
from dagster_delta.sql.expressions import parse_expression

__all__ = ["ColumnUpdate", "FileUpdate"]


class ColumnUpdate:
    """Computes the columns that an update changes; may be used by several threads.

    Args:
        rewrite: assigns values.

    Raises:
        UnsupportedExpression, InvalidArgument, SchemaMismatch: of an assignment, a constraint or a
            generated column.
    """

    def __init__(self, rewrite: RowRewrite) -> None:
        source, spec = rewrite.source, rewrite.data
        configuration = source.configuration
        self._update = row_update(
            rewrite.assignments,
            spec.values,
            configuration.schema,
            spec.constraints,
            table=spec.location.uri,
        )
        self.columns = frozenset(self._update.columns)
        """Logical names of the top-level columns that change."""
        self._schema = to_arrow_schema(configuration.schema)
        needed = _needed_columns(rewrite)
        names = [name for name in configuration.schema.names if name in needed]
        self._reader = DataFileReader(source.store, configuration, names, with_positions=True)
        self._row_reader = DataFileReader(source.store, configuration, self._schema.names)

    @classmethod
    def of(cls, rewrite: RowRewrite) -> ColumnUpdate | None:
        """The update of a rewrite, None if other columns change too, or if more of a row is
        needed than its new values.
        """
        configuration = rewrite.source.configuration
        if not rewrite.assignments or rewrite.change_data is not None:
            return None
        if carried_columns(configuration) is not None:
            return None
        update = cls(rewrite)
        # Rows would have to move to another file.
        return None if update.columns & set(configuration.partition_columns) else update

    def values(self, opened: OpenedFile, group: int, matches: BitMap64) -> pa.RecordBatch:
        """The matching rows of a row group in order, as a `pyarrow.RecordBatch` of all columns, of
        which only the changed ones are used.

        Args:
            opened: the file.
            group: index of the row group.
            matches: indexes in the file of the matching rows.

        Raises:
            InvalidCast, ConstraintViolation, InvalidArgument: a new value cannot be stored in its
                column, or cannot be computed.
        """
        chosen = replace(opened, file=msgspec.structs.replace(opened.file, selected=matches))
        try:
            return self._changed(self._reader.read_group(chosen, group))
        except ConstraintViolation:
            # The error shows all columns of a row that violates a constraint.
            self._changed(self._row_reader.read_group(chosen, group))
            raise

    def _changed(self, batches: Iterable[pa.RecordBatch]) -> pa.RecordBatch:
        rows = pa.Table.from_batches(map(self._rows, batches), self._schema)
        (batch,) = rows.combine_chunks().to_batches()
        return self._update.apply(batch)

    def _rows(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Rows of the table; columns that were not read are null, as they are not used."""
        there = set(batch.schema.names)
        arrays = [
            batch.column(each.name) if each.name in there else pa.nulls(batch.num_rows, each.type)
            for each in self._schema
        ]
        return pa.RecordBatch.from_arrays(arrays, schema=self._schema)


class FileUpdate(msgspec.Struct, frozen=True):
    """A `RowGroupChange` of the matching rows of one file."""

    update: ColumnUpdate
    matches: BitMap64
    """Indexes of rows, all of them live."""

    @property
    def columns(self) -> frozenset[str]:
        """Logical names of the top-level columns that change."""
        return self.update.columns

    def num_matches(self, opened: OpenedFile, group: int) -> int:
        """Rows of a row group that change."""
        start, end = opened.first_rows[group], opened.first_rows[group + 1]
        return int(self.matches.range_cardinality(start, end))

    def marks(self, opened: OpenedFile, group: int) -> pa.BooleanArray:
        """Which of the live rows of a row group change: a `pyarrow.BooleanArray`."""
        start, end = opened.first_rows[group], opened.first_rows[group + 1]
        marks = deleted_row_mask(self.matches, start, end - start)
        live = opened.wanted_rows(start, end - start)
        return marks if live is None else marks.filter(live)

    def values(self, opened: OpenedFile, group: int) -> pa.RecordBatch:
        """The rows of a row group that change, with their new values. Raises as
        `ColumnUpdate.values` does.
        """
        return self.update.values(opened, group, self.matches)


def _needed_columns(rewrite: RowRewrite) -> set[str]:
    """Top-level columns from which new values are computed or checked."""
    schema = rewrite.source.configuration.schema
    spec = rewrite.data
    needed = {each.column[0] for each in rewrite.assignments if len(each.column) > 1}
    for each in rewrite.assignments:
        needed |= _roots(each.value.references)
    for sql in (
        *(each.sql for each in spec.constraints),
        *(each.sql for each in spec.values.generated),
    ):
        needed |= _roots(parse_expression(sql, schema).references)
    return needed


def _roots(paths: Iterable[tuple[str, ...]]) -> set[str]:
    return {path[0] for path in paths}
