"""Files as a store lists them, as an Arrow table."""

from __future__ import annotations

from collections.abc import Iterable

import pyarrow as pa

from dagster_delta.protocol.values.arrow_columns import integer_column, string_column
from dagster_delta.storage.object_store import ObjectMeta

LISTED_FILE_SCHEMA = pa.schema(
    [("path", pa.string()), ("size_bytes", pa.int64()), ("modified_ms", pa.int64())]
)
"""Columns of a table of listed files; paths are decoded and relative to the root."""


def listed_files(files: Iterable[ObjectMeta]) -> pa.Table:
    """The files as a table of LISTED_FILE_SCHEMA, in their order. Raises nothing."""
    found = list(files)
    columns = [
        string_column([each.path for each in found]),
        integer_column([each.size_bytes for each in found]),
        integer_column([each.modified_ms for each in found]),
    ]
    return pa.Table.from_arrays(columns, schema=LISTED_FILE_SCHEMA)
