"""Tasks on Spark's executors that read data files or a log: names of files in, Arrow batches out.
Nothing here needs Spark.

An executor must be able to import this package and pyarrow.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
import pyarrow as pa

from dagster_delta.engines.arrow.engine import ArrowEngine
from dagster_delta.engines.plans import ReadPlan
from dagster_delta.parquet.data_file_reader import (
    FILE_ORDINAL,
    ROW_INDEX,
)
from dagster_delta.parquet.opened_file import data_files
from dagster_delta.parquet.reader import plan_reader, read_ahead
from dagster_delta.protocol.log.change_data import CHANGE_FILE_SCHEMA
from dagster_delta.protocol.log.replay import LIVE_FILE_SCHEMA

if TYPE_CHECKING:
    from numpy.typing import NDArray


def encode_table(table: pa.Table) -> bytes:
    """A `pa.Table`, such as the files of a plan, as bytes."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return bytes(sink.getvalue())


def decode_table(data: bytes) -> pa.Table:
    """The `pa.Table` that `encode_table` encoded."""
    return pa.ipc.open_stream(data).read_all()


FILE_SCHEMA = pa.schema(
    [
        *(
            LIVE_FILE_SCHEMA.field(name)
            for name in ("path", "size_bytes", "partition_values", "deletion_vector")
        ),
        CHANGE_FILE_SCHEMA.field("selection"),
    ]
)
"""Input of a read task: one file per row; live files have no `selection`."""
KEY_FIELD = pa.field("key", pa.int64())
"""The column after them if the rows have positions, see `keys_of_files`."""


def listed_files(files: pa.Table) -> pa.Table:
    """A `pa.Table` of files with the columns of `FILE_SCHEMA` alone."""
    schema = pa.schema([field for field in FILE_SCHEMA if field.name in files.column_names])
    return files.select(schema.names).cast(schema)


class ReadTask(msgspec.Struct, frozen=True):
    """Reads data files with the Arrow engine."""

    plan: ReadPlan
    """Without files. Its filter is applied early; Spark applies it to all rows later."""
    with_positions: bool = False
    """Whether the key of the file and the index of the row follow the columns."""

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """The live rows of the files in batches of `FILE_SCHEMA`."""
        for batch in batches:
            files = listed_files(pa.Table.from_batches([batch]))
            plan = msgspec.structs.replace(self.plan, files=files)
            if self.with_positions:
                keys = np.from_dlpack(batch.column(KEY_FIELD.name))
                yield from _read_with_positions(plan, keys)
            else:
                yield from ArrowEngine().read(plan)


def _read_with_positions(plan: ReadPlan, keys: NDArray[Any]) -> Iterator[pa.RecordBatch]:
    reader = plan_reader(plan, plan.columns, where=plan.where)
    fields = [pa.field("file", pa.int64()), pa.field("row", pa.int64())]
    schema = pa.schema([*list(reader.schema)[:-2], *fields])
    for batch in read_ahead(plan.store, reader.sources(data_files(plan.files))):
        files = pa.array(keys[np.from_dlpack(batch.column(FILE_ORDINAL))])
        columns = [*batch.columns[:-2], files, batch.column(ROW_INDEX)]
        yield pa.RecordBatch.from_arrays(columns, schema=schema)
