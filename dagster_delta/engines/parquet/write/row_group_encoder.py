"""Encoding row groups in one process that another puts into files.

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
"""Arrow bytes of rows that make a row group, however few they are."""


class RowGroupEncoder:
    """Encodes rows apart from the file that they will stand in.

    Args:
        spec: how files are written; the writer that takes the row groups follows the same.

    Raises:
        UnsupportedFeature: a column type cannot be written.
    """

    def __init__(self, spec: WriteSpec) -> None:
        self._format = FileFormat.of(spec)
        properties = spec.configuration.metadata.configuration
        # A file is sorted as a whole, and what a changing column needs is filled in by the writer.
        # How variants are split is decided by the rows of a file.
        self._is_possible = not (
            spec.sort_by or COLUMN_CHANGE_KEY in properties or self._format.may_shred
        )

    def encode(self, rows: pa.RecordBatch) -> EncodedRowGroup | None:
        """Rows of one partition as a row group, or None where they had better be joined by others.

        Args:
            rows: has all columns of the table, under logical names.
        """
        is_enough = rows.num_rows >= MIN_ROWS or rows.nbytes >= MIN_BYTES
        if not (self._is_possible and is_enough):
            return None
        table = pa.Table.from_batches([self._format.file_rows(rows)])
        return EncodedRowGroup.of_rows(table, self._format, choose_encodings(table))
