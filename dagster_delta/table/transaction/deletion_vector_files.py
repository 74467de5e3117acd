"""Stores new deletion vectors together in a few files.

Spec: Deletion Vectors; Deletion Vector File Storage Format.
"""

from __future__ import annotations

import random
import string
import uuid
from collections.abc import Iterator, Sequence

import msgspec
from pyroaring import BitMap64

from dagster_delta.protocol.actions import DeletionVectorDescriptor
from dagster_delta.protocol.features.deletion_vectors import (
    deletion_vector_path,
    encode_deletion_vector,
    encode_deletion_vector_file,
)
from dagster_delta.protocol.features.table_configuration import TableConfiguration
from dagster_delta.storage.object_store import ObjectStore
from dagster_delta.storage.unreferenced_files import CreatedFiles

FILE_BYTES = 32 * 1024 * 1024


class StoredVectors(msgspec.Struct, frozen=True):
    """Deletion vectors that the log may refer to."""

    descriptors: tuple[DeletionVectorDescriptor, ...]
    """One per vector, in order."""
    paths: tuple[str, ...]
    """The files that were created for them, relative to the table root."""


def store_deletion_vectors(
    store: ObjectStore,
    configuration: TableConfiguration,
    vectors: Sequence[BitMap64],
    *,
    file_bytes: int = FILE_BYTES,
) -> StoredVectors:
    """Descriptors of new deletion vectors, stored in files.

    There is one bitmap of row indexes per data file. A file is closed when it reaches `file_bytes`.
    If the store fails, files that were created are deleted as far as it allows.
    """
    descriptors: list[DeletionVectorDescriptor] = []
    with CreatedFiles(store) as created:
        # VACUUM of delta-spark fails on vectors in the log itself, so even small ones get a file.
        for together in _share_out(vectors, file_bytes):
            data, made = encode_deletion_vector_file(
                together, file_id=uuid.uuid4(), prefix=_prefix(configuration)
            )
            path = deletion_vector_path(made[0])
            created.add([path])
            store.put(path, data)
            descriptors += made
    return StoredVectors(tuple(descriptors), created.paths)


def _share_out(vectors: Sequence[BitMap64], file_bytes: int) -> Iterator[list[BitMap64]]:
    together: list[BitMap64] = []
    total = 0
    for vector in vectors:
        together.append(vector)
        total += len(encode_deletion_vector(vector))
        if total >= file_bytes:
            yield together
            together, total = [], 0
    if together:
        yield together


def _prefix(configuration: TableConfiguration) -> str:
    properties = configuration.properties
    if not properties.randomize_file_prefixes:
        return ""
    letters = random.choices(  # noqa: S311 - no secret depends on it
        string.ascii_letters + string.digits, k=properties.random_prefix_length
    )
    return "".join(letters)
