"""Encodes row groups that another process writes to files.

Spec: Data Files.
"""

from __future__ import annotations

import pyarrow as pa

from dagster_delta.engines.parquet.write.encodings import choose_encodings
from dagster_delta.engines.parquet.write.file import EncodedRowGroup, FileFormat
from dagster_delta.engines.plans import WriteSpec
from dagster_delta.protocol.features.column_change import COLUMN_CHANGE_KEY

__all__ = ["RowGroupEncoder"]

MIN_ROWS = 100_000
MIN_BYTES = 8 * 1024 * 1024
"""Arrow bytes that are enough for a row group, even with few rows."""


class RowGroupEncoder:
    """Encodes rows separately from their file.

    Args:
        spec: how files are written; the writer of the row groups must use the same.

    Raises:
        UnsupportedFeature: a column type cannot be written.
    """

    def __init__(self, spec: WriteSpec) -> None:
        self._format = FileFormat.of(spec)
        properties = spec.configuration.metadata.configuration
        # Files are sorted as a whole, and the writer fills in a changing column's shadow. The
        # rows of a file decide how its variants are split.
        self._is_possible = not (
            spec.sort_by or COLUMN_CHANGE_KEY in properties or self._format.may_shred
        )

    def encode(self, rows: pa.RecordBatch) -> EncodedRowGroup | None:
        """Rows of one partition as a row group; None if they should be joined with others.

        Args:
            rows: rows with all columns of the table, under logical names.
        """
        is_enough = rows.num_rows >= MIN_ROWS or rows.nbytes >= MIN_BYTES
        if not (self._is_possible and is_enough):
            return None
        table = pa.Table.from_batches([self._format.file_rows(rows)])
        return EncodedRowGroup.of_rows(table, self._format, choose_encodings(table))
