"""Stores new deletion vectors: small ones in the log itself, the others together in a few files.

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
    encode_inline,
)
from dagster_delta.protocol.features.table_configuration import TableConfiguration
from dagster_delta.storage.object_store import ObjectStore
from dagster_delta.storage.unreferenced_files import CreatedFiles

INLINE_BYTES = 128
"""Vectors of up to this size are stored in the log: every reader of the table reads them there, so
they must be hardly longer than a reference to a file."""
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
    """Descriptors of new deletion vectors; vectors that are too long for the log are stored in
    files.

    There is one bitmap of row indexes per data file. A file is closed when it reaches `file_bytes`.
    If the store fails, files that were created are deleted as far as it allows.
    """
    sizes = [len(encode_deletion_vector(each)) for each in vectors]
    descriptors = {
        position: encode_inline(vector)
        for position, (vector, size) in enumerate(zip(vectors, sizes, strict=True))
        if size <= INLINE_BYTES
    }
    with CreatedFiles(store) as created:
        for positions in _share_out(sizes, file_bytes):
            data, made = encode_deletion_vector_file(
                [vectors[each] for each in positions],
                file_id=uuid.uuid4(),
                prefix=_prefix(configuration),
            )
            path = deletion_vector_path(made[0])
            created.add([path])
            store.put(path, data)
            descriptors.update(zip(positions, made, strict=True))
    return StoredVectors(tuple(descriptors[each] for each in range(len(vectors))), created.paths)


def _share_out(sizes: Sequence[int], file_bytes: int) -> Iterator[list[int]]:
    together: list[int] = []
    total = 0
    for position, size in enumerate(sizes):
        if size <= INLINE_BYTES:
            continue
        together.append(position)
        total += size
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
