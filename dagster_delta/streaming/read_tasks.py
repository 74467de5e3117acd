"""The work of one task of a Spark job: it reads some files of a batch.

Spec: Data Files; Deletion Vectors.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from msgspec.structs import replace

from dagster_delta.engines import embedded_engine
from dagster_delta.engines.plans import ChangeFileSet
from dagster_delta.engines.values.nested_arrays import rename_nested
from dagster_delta.storage import StoreLocation, open_store
from dagster_delta.table.log.reader import located

MIN_TASK_BYTES = 4 * 1024 * 1024
MAX_TASK_BYTES = 64 * 1024 * 1024
_TASKS_WANTED = 64


@dataclass(frozen=True, slots=True)
class ReadFiles:
    """Reads files on an executor. Picklable."""

    location: StoreLocation
    changes: ChangeFileSet
    columns: tuple[str, ...]
    """Logical columns, in order."""

    def read(self, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        """The live rows of the files, with an Arrow schema of the same columns.

        Raises:
            DataFileMissing, CorruptDeletionVector, InvalidTable, StorageFailure.
        """
        store = open_store(self.location.uri, self.location.options)
        # A query that writes the rows to another table would take it for an error of that table.
        with located(store):
            for batch in embedded_engine().read_changes(store, [self.changes], self.columns):
                columns = [
                    # Spark's variants have required parts, and no cast creates them for a null.
                    each if each.type == field.type else rename_nested(each, field.type)
                    for each, field in zip(batch.columns, schema, strict=True)
                ]
                yield pa.RecordBatch.from_arrays(columns, schema=schema)


def split_into_tasks(
    location: StoreLocation, sets: Sequence[ChangeFileSet], columns: tuple[str, ...]
) -> list[ReadFiles]:
    """The files of a batch divided into tasks of about equal size, with neighbours together."""
    return [
        ReadFiles(location, replace(changes, files=files), columns)
        for changes in sets
        for files in _split(changes.files)
    ]


def _split(files: pa.Table) -> Iterator[pa.Table]:
    sizes = pc.fill_null(files["size_bytes"], 0).to_numpy()
    ends = np.cumsum(sizes)
    target = min(max(int(ends[-1]) // _TASKS_WANTED, MIN_TASK_BYTES), MAX_TASK_BYTES)
    # A file belongs to the task in whose share of the bytes it begins.
    tasks = (ends - sizes) // target
    starts = np.flatnonzero(np.diff(tasks, prepend=-1))
    for start, stop in zip(starts, [*starts[1:], len(tasks)], strict=True):
        # Slices of one buffer would be pickled with all of it.
        yield files.take(pa.array(np.arange(start, stop)))
