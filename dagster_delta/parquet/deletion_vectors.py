"""Loads the deletion vectors of a scan, each file of vectors once.

Spec: Deletion Vectors.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterable

from pyroaring import BitMap64

from dagster_delta.errors import FILE_MISSING, CorruptDeletionVector, DataFileMissing
from dagster_delta.protocol.actions import DeletionVectorDescriptor
from dagster_delta.protocol.features.deletion_vectors import (
    check_rows_in_file,
    deletion_vector_path,
    deletion_vector_range,
    parse_inline,
    read_from_file_bytes,
)
from dagster_delta.storage.object_store import ObjectStore


class DeletionVectorLoader:
    """Loads vectors from one store; may be used by several threads.

    `expected`: vectors that will be loaded. A file with several of them is read whole, and kept
    until the last one is loaded.
    """

    def __init__(
        self, store: ObjectStore, expected: Iterable[DeletionVectorDescriptor] = ()
    ) -> None:
        self._store = store
        stored = (vector for vector in expected if vector.storage_type != "i")
        counts = Counter(deletion_vector_path(vector) for vector in stored)
        self._shared = {path: _SharedFile(uses) for path, uses in counts.items() if uses > 1}

    def load(
        self, descriptor: DeletionVectorDescriptor, *, data_file: str, num_rows: int | None = None
    ) -> BitMap64:
        """The indexes of the rows that are deleted from a data file.

        `num_rows`: rows of the data file, including deleted ones; None if unknown.

        Raises:
            CorruptDeletionVector: the vector fails its checks, or removes rows that the data file
                does not have.
            DataFileMissing: the file of vectors does not exist.
        """
        try:
            is_inline = descriptor.storage_type == "i"
            found = parse_inline(descriptor) if is_inline else self._load_stored(descriptor)
            if num_rows is not None:
                check_rows_in_file(found, num_rows)
        except CorruptDeletionVector as error:
            error.table = error.table or self._store.location.uri
            error.file = error.file or data_file
            error.message += (
                ": which rows are deleted is lost; restore the file from a copy, or restore the "
                "table to an older version"
            )
            raise
        return found

    def _load_stored(self, descriptor: DeletionVectorDescriptor) -> BitMap64:
        path = deletion_vector_path(descriptor)
        offset, length = deletion_vector_range(descriptor)
        try:
            shared = self._shared.get(path)
            if shared is None:
                data = self._store.read_range(path, offset, length)
            else:
                data = self._read_shared_file(path, shared)[offset : offset + length]
        except FileNotFoundError as error:
            table = self._store.location.uri
            raise DataFileMissing(FILE_MISSING, table=table, file=path) from error
        return read_from_file_bytes(data, descriptor)

    def _read_shared_file(self, path: str, shared: _SharedFile) -> bytes:
        with shared.lock:
            data = shared.data if shared.data is not None else self._store.read(path)
            shared.uses -= 1
            shared.data = data if shared.uses > 0 else None
        return data


class _SharedFile:
    """A file of vectors that several data files use."""

    __slots__ = ("data", "lock", "uses")

    def __init__(self, uses: int) -> None:
        self.lock = threading.Lock()
        self.data: bytes | None = None
        self.uses = uses
