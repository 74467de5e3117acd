"""The files of a read as a list that Spark takes as it is, instead of looking up each of them.

Spark's streaming file sink keeps a log of the files it wrote, and whoever reads its directory gets
those files with the sizes of the log. A directory with nothing but such a log hands over files that
stand anywhere: in one call instead of one per file, and without a request to the store for each.

Spark: `FileStreamSinkLog`, version 1; `MetadataLogFileIndex`.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from dagster_delta.engines.spark.file_keys import spark_metadata_path, spark_path
from dagster_delta.engines.spark.session import is_connect, session_conf

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["file_list", "takes_lists"]

_IGNORES_LISTS = "spark.sql.streaming.fileStreamSink.ignoreMetadata"
_GUARD = "spark-did-not-take-the-list-of-files.parquet"


def takes_lists(session: SparkSession) -> bool:
    """Whether the session reads lists: one whose driver runs beside this process, which writes
    them, and that was not told to ignore them.
    """
    return not is_connect(session) and session_conf(session, _IGNORES_LISTS) != "true"


@contextmanager
def file_list(paths: Sequence[str], sizes: Sequence[int]) -> Iterator[str]:
    """The path of a directory that reads as the files; it is needed until Spark has loaded it.

    Args:
        paths: see `spark_path`; each once.
        sizes: bytes of each file as the log has them. Of local files the real size is taken: Spark
            reads no row group that stands beyond the size it is told.

    Raises:
        FileNotFoundError: a local file is not there.
    """
    with tempfile.TemporaryDirectory(prefix="delta-files-") as directory:
        log = Path(directory, "_spark_metadata")
        log.mkdir()
        entries = (_entry(path, size) for path, size in zip(paths, sizes, strict=True))
        Path(log, "0").write_text("\n".join(["v1", *entries]), encoding="utf-8")
        # Were the log passed over, the directory would read as no rows at all; so it is an error.
        Path(directory, _GUARD).write_bytes(b"no Parquet file")
        yield spark_path(directory)


def _entry(path: str, size: int) -> str:
    scheme, _, location = path.partition(":")
    return json.dumps(
        {
            "path": spark_metadata_path(path),
            # Tables have many files, and to make a `Path` costs as much as to look.
            "size": os.stat(location).st_size if scheme == "file" else size,  # noqa: PTH116
            "isDir": False,
            "modificationTime": 0,
            "blockReplication": 1,
            "blockSize": 128 * 1024 * 1024,
            "action": "add",
        },
        ensure_ascii=False,
    )
