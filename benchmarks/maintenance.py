"""OPTIMIZE of many small files, VACUUM among many, and CONVERT, against `deltalake` and, where a
third peer is named, delta-spark.
"""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.harness import Case, linked_copy, main, ours, theirs

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROWS_PER_FILE = 2_000
FILES_PER_COMMIT = 1_000
_ZORDER = ["id", "name"]


def prepare(directory: Path, size: int) -> None:
    """A table of `size` small files, ten a commit."""
    import numpy as np
    import pyarrow as pa

    from dagster_delta import DeltaTable

    rng = np.random.default_rng(0)
    table = DeltaTable(str(directory / "table"), must_exist=False)
    for first in range(0, size, 10):
        ids = np.arange(first, first + 10).repeat(ROWS_PER_FILE)
        rows = pa.table(
            {
                "id": rng.integers(0, 2**40, len(ids)),
                "price": rng.random(len(ids)),
                "name": pa.array(ids).cast(pa.string()),
                "file": pa.array(ids),
            }
        )
        # One file per partition, so that a commit makes ten of them.
        table.append(rows, partition_by=["file"])


def prepare_flat(directory: Path, size: int) -> None:
    """A table of `size` small files in one partition."""
    import numpy as np
    import pyarrow as pa

    from dagster_delta import DeltaTable

    rng = np.random.default_rng(0)
    table = DeltaTable(str(directory / "table"), must_exist=False)
    for part in range(size):
        rows = pa.table(
            {
                "id": rng.integers(0, 2**40, ROWS_PER_FILE),
                "price": rng.random(ROWS_PER_FILE),
                "name": [f"name {each % 50} of {part}" for each in range(ROWS_PER_FILE)],
            }
        )
        table.append(rows)


def prepare_garbage(directory: Path, size: int) -> None:
    """As `prepare`, with as many files that nothing refers to."""
    prepare(directory, size)
    for number, path in enumerate((directory / "table").glob("file=*")):
        (path / f"part-{number:05d}-garbage.parquet").write_bytes(b"x")


def prepare_log(directory: Path, size: int) -> None:
    """The log of `size` files, a thousand a commit, which each next commit has removed: all but the
    last thousand, a month ago. The files themselves are not there.
    """
    import pyarrow as pa

    from dagster_delta import DeltaTable

    table = directory / "table"
    DeltaTable.create(str(table), pa.schema([("id", pa.int64())]))
    then = int(time.time()) - 30 * 24 * 3600
    before: list[str] = []
    for version in range(1, size // FILES_PER_COMMIT + 1):
        paths = [f"part-{version:05d}-{each:05d}.parquet" for each in range(FILES_PER_COMMIT)]
        actions: list[object] = [{"commitInfo": {"timestamp": then * 1000}}]
        actions += [_added(each, then * 1000) for each in paths]
        actions += [_removed(each, then * 1000) for each in before]
        log_file = table / "_delta_log" / f"{version:020d}.json"
        log_file.write_text("\n".join(map(json.dumps, actions)))
        before = paths
    for log_file in (table / "_delta_log").glob("*.json"):
        os.utime(log_file, (then, then))


def prepare_half(directory: Path, size: int) -> None:
    """`size` files, a thousand a directory, of which every other one is in the log, and the first
    two of the log are gone.
    """
    import pyarrow as pa

    from dagster_delta import DeltaTable

    table = directory / "table"
    DeltaTable.create(str(table), pa.schema([("id", pa.int64())]))
    for version in range(1, size // FILES_PER_COMMIT + 1):
        (table / str(version)).mkdir()
        paths = [f"{version}/part-{each:05d}.parquet" for each in range(FILES_PER_COMMIT)]
        for path in paths:
            (table / path).write_bytes(b"x")
            os.utime(table / path, (1, 1))
        actions = [{"commitInfo": {"timestamp": 1}}, *(_added(path, 1) for path in paths[::2])]
        log_file = table / "_delta_log" / f"{version:020d}.json"
        log_file.write_text("\n".join(map(json.dumps, actions)))
    for number in (0, 2):
        (table / "1" / f"part-{number:05d}.parquet").unlink()
    DeltaTable(str(table)).checkpoint()


def _added(path: str, time_ms: int) -> dict[str, object]:
    return {
        "add": {
            "path": path,
            "partitionValues": {},
            "size": 1000,
            "modificationTime": time_ms,
            "dataChange": True,
        }
    }


def _removed(path: str, time_ms: int) -> dict[str, object]:
    return {
        "remove": {
            "path": path,
            "deletionTimestamp": time_ms,
            "dataChange": True,
            "extendedFileMetadata": True,
            "partitionValues": {},
            "size": 1000,
        }
    }


def _at_most(count: int) -> int:
    # A dry run of delta-spark names no more.
    return min(count, 1000)


def spark_session() -> SparkSession:
    """A session of delta-spark that lists directories in two tasks, not in 10,000."""
    from benchmarks._delta_spark import FEW_PARTITIONS, delta_spark_session

    few = {"spark.sql.sources.parallelPartitionDiscovery.parallelism": "2"}
    return delta_spark_session(settings=FEW_PARTITIONS | few)


def spark_lite(directory: Path, _: int) -> Callable[[], object]:
    session, uri = spark_session(), str(directory / "table")
    return lambda: _at_most(session.sql(f"VACUUM delta.`{uri}` LITE DRY RUN").count())


def prepare_parquet(directory: Path, size: int) -> None:
    """`size` Parquet files of a hundred rows each, in ten directories of one partition column."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    rows = pa.table({"id": range(100), "name": [f"name {each}" for each in range(100)]})
    pq.write_table(rows, directory / "rows.parquet")
    for number in range(size):
        part = directory / "table" / f"day={number % 10}"
        part.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(directory / "rows.parquet", part / f"{number:06d}.parquet")


def our_convert(directory: Path, _: int) -> Callable[[], object]:
    from dagster_delta import DeltaTable

    uri = linked_copy(directory / "table")
    return lambda: DeltaTable.convert(uri).snapshot().num_files


def their_convert(directory: Path, _: int) -> Callable[[], object]:
    import deltalake
    from deltalake.schema import PrimitiveType

    day = deltalake.Field("day", PrimitiveType("integer"))
    uri, days = linked_copy(directory / "table"), deltalake.Schema([day])

    def convert() -> int:
        deltalake.convert_to_deltalake(uri, partition_by=days, partition_strategy="hive")
        return len(deltalake.DeltaTable(uri).file_uris())

    return convert


def spark_convert(directory: Path, _: int) -> Callable[[], object]:
    session, uri = spark_session(), linked_copy(directory / "table")

    def convert() -> int:
        session.sql(f"CONVERT TO DELTA parquet.`{uri}` PARTITIONED BY (day INT)")
        return int(session.sql(f"DESCRIBE DETAIL delta.`{uri}`").collect()[0]["numFiles"])

    return convert


CASES = {
    "optimize": Case(
        "optimize {size} small files",
        1_000,
        prepare_flat,
        {
            "ours": ours(lambda table: table.optimize().metrics["numRemovedFiles"], copied=True),
            "deltalake": theirs(
                lambda table: table.optimize.compact()["numFilesRemoved"], copied=True
            ),
        },
    ),
    "zorder": Case(
        "Z-order {size} small files by two columns",
        1_000,
        prepare_flat,
        {
            "ours": ours(
                lambda table: table.optimize(zorder_by=_ZORDER).metrics["numRemovedFiles"],
                copied=True,
            ),
            "deltalake": theirs(
                lambda table: table.optimize.z_order(_ZORDER)["numFilesRemoved"], copied=True
            ),
        },
    ),
    "vacuum": Case(
        "find the garbage beside {size} files, dry run",
        5_000,
        prepare_garbage,
        {
            "ours": ours(lambda table: table.vacuum(0, enforce_retention=False).num_files),
            "deltalake": theirs(
                lambda table: len(
                    table.vacuum(0, dry_run=True, enforce_retention_duration=False, full=True)
                )
            ),
        },
    ),
    "full": Case(
        "find the garbage among {size} files, dry run",
        200_000,
        prepare_half,
        {
            "ours": ours(lambda table: table.vacuum().num_files),
            "deltalake": theirs(lambda table: len(table.vacuum(dry_run=True, full=True))),
        },
    ),
    "fsck": Case(
        "find the lost files of a table beside garbage, {size} files, dry run",
        200_000,
        prepare_half,
        {
            "ours": ours(lambda table: table.fsck(dry_run=True).files.num_rows),
            "deltalake": theirs(lambda table: len(table.repair(dry_run=True)["files_removed"])),
        },
    ),
    "lite": Case(
        "VACUUM LITE over a log of {size} files, dry run",
        1_000_000,
        prepare_log,
        {
            "ours": ours(lambda table: _at_most(table.vacuum(lite=True).num_files)),
            "deltalake": theirs(lambda table: _at_most(len(table.vacuum(dry_run=True)))),
            "delta-spark": spark_lite,
        },
        rounds=1,
    ),
    "convert": Case(
        "CONVERT {size} Parquet files",
        10_000,
        prepare_parquet,
        {"ours": our_convert, "deltalake": their_convert, "delta-spark": spark_convert},
    ),
}

main(__name__, __spec__.name if __spec__ else "", CASES)
