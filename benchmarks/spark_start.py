"""Starting a Spark session and counting, with the archive of its classes and without.

The memory in the table is that of Python; the JVM is a process of its own.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from benchmarks.harness import Case, main


def _archive(directory: Path, size: int) -> None:
    from dagster_delta.engines.spark.class_archive import make_class_archive

    os.environ["XDG_CACHE_HOME"] = str(directory)
    if make_class_archive() is None:
        raise SystemExit("no archive is made for this Java or this Spark")


def _session(*, class_archive: bool) -> Callable[[Path, int], Callable[[], object]]:
    def peer(directory: Path, size: int) -> Callable[[], object]:
        import pyspark.sql

        from dagster_delta.engines.spark.session.session import local_spark_session

        assert pyspark.__version__
        os.environ["XDG_CACHE_HOME"] = str(directory)

        def run() -> object:
            return local_spark_session("start", class_archive=class_archive).range(size).count()

        return run

    return peer


CASES = {
    "session": Case(
        "start a session and count {size} rows",
        1000,
        _archive,
        {"ours": _session(class_archive=True), "no archive": _session(class_archive=False)},
        rounds=5,
    )
}

if __spec__ is not None:
    main(__name__, __spec__.name, CASES)
