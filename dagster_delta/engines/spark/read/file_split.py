"""Which files of a scan Spark reads itself, and which the Arrow engine reads."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dagster_delta.engines.footers import may_lack
from dagster_delta.engines.plans import ReadPlan
from dagster_delta.engines.spark.read.file_keys import is_misread_by_spark
from dagster_delta.engines.spark.read.row_positions import CHUNK_ROWS
from dagster_delta.protocol.schema import StructType
from dagster_delta.protocol.statistics.statistics import parse_statistics_json
from dagster_delta.protocol.values.partition_values import decode_path
from dagster_delta.storage.locations import spark_path

if TYPE_CHECKING:
    from numpy.typing import NDArray

MAX_BROADCAST_BYTES = 256 * 1024 * 1024
"""Deletion vectors larger than this on every executor are applied file by file."""


SPARK_PATH = "spark_path"
"""Column of a table of files: see `spark_path`."""


def split_files(
    plan: ReadPlan, columns: StructType, *, native: bool
) -> tuple[pa.Table, pa.Table, pa.Table]:
    """The files of a plan, with `SPARK_PATH`, by the way they are read: by Spark alone, by Spark
    with their deletion vectors beside it, and by the Arrow engine.

    `columns`: those whose defaults Spark does not fill in where a file lacks them.
    `native`: whether Spark can read the table's files at all.
    """
    files, mode = plan.files, plan.configuration.column_mapping_mode
    paths = np.array(
        [
            spark_path(plan.store.resolve_uri(decode_path(file)))
            for file in files["path"].to_pylist()
        ],
        dtype=object,
    )
    vectors = _has_vector(files)
    by_arrow = np.ones(len(paths), bool)
    if native:
        lacking = may_lack(files, columns, mode).to_numpy(zero_copy_only=False)
        by_arrow = _misread(paths) | _without_bytes(paths) | lacking
        if "selection" in files.column_names:
            by_arrow |= pc.is_valid(files["selection"]).to_numpy()
    if _broadcast_bytes(files.filter(pa.array(vectors & ~by_arrow))) > MAX_BROADCAST_BYTES:
        by_arrow |= vectors
    files = files.append_column(SPARK_PATH, pa.array(paths, pa.string()))
    plain, with_vectors, rest = (
        files.filter(pa.array(mask))
        for mask in (~vectors & ~by_arrow, vectors & ~by_arrow, by_arrow)
    )
    return plain, with_vectors, rest


def _has_vector(files: pa.Table) -> NDArray[np.bool_]:
    vectors = files["deletion_vector"].combine_chunks()
    present = pc.and_(pc.is_valid(vectors), pc.is_valid(pc.struct_field(vectors, "storage_type")))
    flags: NDArray[np.bool_] = present.to_numpy(zero_copy_only=False).astype(bool)
    return flags


def _misread(paths: NDArray[np.object_]) -> NDArray[np.bool_]:
    """Files whose name Spark misreads, and repeated files, which it would read twice."""
    seen: set[str] = set()
    flags = np.zeros(len(paths), bool)
    for index, path in enumerate(paths):
        flags[index] = path in seen or is_misread_by_spark(path)
        seen.add(path)
    return flags


def _without_bytes(paths: NDArray[np.object_]) -> NDArray[np.bool_]:
    """Empty local files, as left by a machine that crashed before syncing them to disk.

    Spark would silently return no rows for them; the Arrow engine refuses them.
    """
    return np.array([path.startswith("file:") and _is_empty(path[5:]) for path in paths], bool)


def _is_empty(path: str) -> bool:
    try:
        # Tables have many files, and creating a `Path` costs as much as the lookup.
        return os.stat(path).st_size == 0  # noqa: PTH116
    except OSError:
        # Spark reports a missing file itself.
        return False


def _broadcast_bytes(files: pa.Table) -> int:
    """The most that the deletion vectors of files take when they are broadcast."""
    vectors = files["deletion_vector"].combine_chunks()
    deleted = pc.struct_field(vectors, "cardinality").to_pylist()
    num_rows = parse_statistics_json(files["stats"], ())["num_records"].to_pylist()
    return sum(
        min(count, count if rows is None else -(-rows // CHUNK_ROWS)) * CHUNK_ROWS // 8
        for count, rows in zip(deleted, num_rows, strict=True)
    )
