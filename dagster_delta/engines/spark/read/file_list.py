"""The files of a read as a list that Spark takes as it is, instead of looking up each of them.

Spark's streaming file sink keeps a log of the files it wrote, and whoever reads its directory gets
those files with the sizes of the log. A directory with nothing but such a log hands over files that
stand anywhere: in one call instead of one per file, and without a request to the store for each.

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
    """Whether the session reads lists: one whose driver runs beside this process, which writes
    them, and that was not told to ignore them.
    """
    if is_connect(session):
        return False
    return (session_conf(session, _IGNORES_LISTS) or "").strip().casefold() != "true"


def list_files(paths: Sequence[str], sizes: Sequence[int], times_ms: Sequence[int | None]) -> bytes:
    """A list of files. Local files are listed as they stand there: Spark reads no row
    group that begins beyond the size it is told.

    Args:
        paths: see `spark_path`; each once.
        sizes: bytes of each file as the log has them.
        times_ms: when each file was made, as the log has it, in milliseconds since 1970.

    Raises:
        FileNotFoundError: a local file is not there.
    """
    entries = (_entry(*each) for each in zip(paths, sizes, times_ms, strict=True))
    return b"\n".join([b"v1", *entries])


@contextmanager
def list_directory(listed: bytes) -> Iterator[str]:
    """The path of a directory that reads as the files of a list (see `list_files`); it is needed
    until Spark has loaded it.

    Raises:
        OSError: there is no place for it.
    """
    with tempfile.TemporaryDirectory(prefix="delta-files-", ignore_cleanup_errors=True) as made:
        log = Path(made, "_spark_metadata")
        log.mkdir()
        # Under this name it is found whatever interval the session compacts such logs in.
        Path(log, "0.compact").write_bytes(listed)
        # Were the log passed over, the directory would read as no rows at all; so it is an error.
        Path(made, _GUARD).write_bytes(b"no Parquet file")
        yield spark_path(made)


def _entry(path: str, size: int, time_ms: int | None) -> bytes:
    scheme, _, location = path.partition(":")
    if scheme == "file":
        # Tables have many files, and to make a `Path` costs as much as to look.
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
