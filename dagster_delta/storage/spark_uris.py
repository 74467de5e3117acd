"""How Spark spells the URI of a file, which other programs compare as text."""

from __future__ import annotations

import posixpath
import re

from dagster_delta.storage.locations import scheme_of, strip_file_scheme

# The characters below U+0080 that java.net.URI encodes in a path.
_ILLEGAL = re.compile(r"[^A-Za-z0-9_\-!.~'()*,;:$&+=/@\x80-\U0010ffff]")


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


def spark_metadata_path(path: str) -> str:
    """The `_metadata.file_path` of a file that was opened as `path` (see `spark_path`)."""
    return _ILLEGAL.sub(lambda found: f"%{ord(found[0]):02X}", path)
