"""The files of a read as a list that Spark accepts without looking up each of them.

Spark's streaming file sink keeps a log of the files it wrote; a reader of its directory gets those
files with the sizes in the log. A directory with only such a log can list files at any location: in
one call instead of one per file, and without a request to the store for each.

Spark: `FileStreamSinkLog`, version 1; `MetadataLogFileIndex`.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from dagster_delta.engines.spark.session.session import is_connect, session_conf
from dagster_delta.storage.spark_uris import spark_metadata_path, spark_path

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["list_directory", "list_files", "takes_lists"]

_IGNORES_LISTS = "spark.sql.streaming.fileStreamSink.ignoreMetadata"
_ENCODER = msgspec.json.Encoder()
_GUARD = "spark-did-not-take-the-list-of-files.parquet"


def takes_lists(session: SparkSession) -> bool:
    """Whether the session reads lists: its driver runs on this machine, where they are written, and
    its settings do not ignore them.
    """
    if is_connect(session):
        return False
    return (session_conf(session, _IGNORES_LISTS) or "").strip().casefold() != "true"


def list_files(paths: Sequence[str], sizes: Sequence[int], times_ms: Sequence[int | None]) -> bytes:
    """A list of files. Local files get their actual size: Spark reads no row group that begins
    beyond the listed size.

    Args:
        paths: see `spark_path`; each once.
        sizes: bytes of each file as the log has them.
        times_ms: when each file was made, as the log has it, in milliseconds since 1970.

    Raises:
        FileNotFoundError: a local file does not exist.
    """
    entries = (_entry(*each) for each in zip(paths, sizes, times_ms, strict=True))
    return b"\n".join([b"v1", *entries])


@contextmanager
def list_directory(listed: bytes) -> Iterator[str]:
    """The path of a directory that reads as the files of a list (see `list_files`); it must exist
    until Spark has loaded it.

    Raises:
        OSError: the directory cannot be written.
    """
    with tempfile.TemporaryDirectory(prefix="delta-files-", ignore_cleanup_errors=True) as made:
        log = Path(made, "_spark_metadata")
        log.mkdir()
        # This name is found with any compaction interval of the session.
        Path(log, "0.compact").write_bytes(listed)
        # If Spark ignored the log, the directory would read as no rows; this makes it an error.
        Path(made, _GUARD).write_bytes(b"no Parquet file")
        yield spark_path(made)


def _entry(path: str, size: int, time_ms: int | None) -> bytes:
    scheme, _, location = path.partition(":")
    if scheme == "file":
        # Tables have many files, and creating a `Path` costs as much as the lookup.
        found = os.stat(location)  # noqa: PTH116
        size, time_ms = found.st_size, found.st_mtime_ns // 1_000_000
    return _ENCODER.encode(
        {
            "path": spark_metadata_path(path),
            "size": size,
            "isDir": False,
            "modificationTime": time_ms or 0,
            "blockReplication": 1,
            "blockSize": 128 * 1024 * 1024,
            "action": "add",
        }
    )
