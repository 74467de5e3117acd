"""How Spark spells the URI of a file, which other programs compare as text."""

from __future__ import annotations

import posixpath

from dagster_delta.storage.locations import scheme_of, strip_file_scheme


def spark_path(uri: str) -> str:
    """A decoded absolute URI in the form that Spark's file systems expect."""
    scheme = scheme_of(uri)
    if scheme in {None, "file"}:
        path = uri if scheme is None else strip_file_scheme(uri)
        return "file:" + posixpath.normpath(path)
    if scheme in {"s3", "s3n"}:
        # Hadoop has one S3 client, and its scheme is s3a.
        return "s3a" + uri[len(scheme) :]
    return uri
