"""Deletion vectors in the log itself, which this library reads and never writes."""

from __future__ import annotations

from pyroaring import BitMap64

from dagster_delta.protocol.actions import DeletionVectorDescriptor
from dagster_delta.protocol.features.deletion_vectors import encode_deletion_vector, encode_z85


def encode_inline(bitmap: BitMap64) -> DeletionVectorDescriptor:
    """A descriptor that holds the vector."""
    data = encode_deletion_vector(bitmap)
    return DeletionVectorDescriptor(
        storage_type="i",
        path_or_inline_dv=encode_z85(data),
        size_in_bytes=len(data),
        cardinality=len(bitmap),
    )
