"""Counts the memory that a read of a checkpoint keeps: a few bytes of Parquet can list millions of
files, or repeat one long path millions of times.
"""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from dagster_delta.errors import UnsupportedFeature

CHECKPOINT_BYTES_VARIABLE = "DAGSTER_DELTA_MAX_CHECKPOINT_BYTES"
"""Environment variable: memory that the decoded columns of one Parquet file may take."""

# A file of 16 MiB or more is decoded in batches of the usual size. The batches of a smaller file
# would hold so many of its rows that the limit is noticed too late.
_FILE_BYTES_PER_ROW = 256
_FEWEST_ROWS = 1024


def rows_at_once(rows: int, size_bytes: int) -> int:
    """Rows to decode together."""
    return min(rows, max(_FEWEST_ROWS, size_bytes // _FILE_BYTES_PER_ROW))


class KeptBytes:
    """Adds up the arrays that one read of a file, or of several, keeps.

    Beyond the limit, in bytes, it raises UnsupportedFeature.
    """

    def __init__(self, limit: int | None, path: str, *, size_bytes: int, num_rows: int) -> None:
        self.limit = limit
        self.path = path
        self.size_bytes = size_bytes
        self.num_rows = num_rows
        self._kept = 0

    @classmethod
    def of_all(cls, parts: Sequence[KeptBytes]) -> KeptBytes:
        """What is kept of several files together, named after the first one."""
        limits = [part.limit for part in parts if part.limit is not None]
        return cls(
            sum(limits) if limits else None,
            parts[0].path if parts else "",
            size_bytes=sum(part.size_bytes for part in parts),
            num_rows=sum(part.num_rows for part in parts),
        )

    def add(self, arrays: Sequence[pa.Table | pa.Array]) -> None:
        """Count `pa.Array`s or `pa.Table`s."""
        if self.limit is None:
            return
        self._kept += sum(array.nbytes for array in arrays)
        if self._kept > self.limit:
            raise UnsupportedFeature(
                f"The {self.num_rows} rows of the checkpoint take more than {self.limit} bytes "
                f"of memory, and the file has {self.size_bytes} bytes: it is damaged or hostile, "
                f"or {CHECKPOINT_BYTES_VARIABLE} has to be set to a larger number of bytes",
                file=self.path,
            )
