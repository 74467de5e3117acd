"""Reading row changes on Spark: as rows of files whose unselected rows are hidden.

Spec: Add CDC File (Reader Requirements for AddCDCFile); Deletion Vectors.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import reduce
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
from pyroaring import BitMap64

from dagster_delta.engines.footers import count_file_rows
from dagster_delta.engines.plans import ChangeFileSet, ReadPlan
from dagster_delta.engines.spark.read.reader import read_frame
from dagster_delta.parquet.deletion_vectors import DeletionVectorLoader
from dagster_delta.parquet.opened_file import file_rows
from dagster_delta.protocol.actions import DeletionVectorDescriptor
from dagster_delta.protocol.features.change_data import CHANGE_TYPE_COLUMN
from dagster_delta.protocol.features.deletion_vectors import encode_inline
from dagster_delta.protocol.log.replay import DELETION_VECTOR_TYPE
from dagster_delta.protocol.statistics.statistics import parse_statistics_json
from dagster_delta.protocol.values.arrow_columns import column_of, string_column
from dagster_delta.protocol.values.partition_values import decode_path
from dagster_delta.storage.object_store import ObjectStore

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_LOADING_THREADS = 16


def read_changes(
    session: SparkSession,
    store: ObjectStore,
    sets: Sequence[ChangeFileSet],
    columns: Sequence[str],
) -> DataFrame:
    """The changed rows of all sets, in no order. Raises as `Engine.read_changes` says."""
    plans = [plan for changes in sets for plan in _read_plans(changes, store, tuple(columns))]
    wanted = [plan for plan in plans if plan.files.num_rows] or plans[:1]
    frames = [read_frame(session, plan) for plan in wanted]
    return reduce(lambda left, right: left.union(right), frames)


def _read_plans(
    changes: ChangeFileSet, store: ObjectStore, columns: tuple[str, ...]
) -> Iterator[ReadPlan]:
    files = _with_plain_vectors(changes.files, store)
    version = pc.max(changes.files["commit_version"]).as_py() or 0
    # A file added and removed within the range occurs twice, but Spark reads a file only once
    # per scan.
    left = _are_deletes(files)
    for part in (files.filter(pc.invert(left)), files.filter(left)):
        yield ReadPlan(
            store=store,
            version=version,
            configuration=changes.configuration,
            files=part,
            columns=columns,
            where=changes.where,
        )


def _are_deletes(files: pa.Table) -> pa.ChunkedArray:
    """Which files are of deleted rows: a `pa.BooleanArray`."""
    key = string_column([CHANGE_TYPE_COLUMN])[0]
    deleted = string_column(["delete"])
    chunks = files["partition_values"].chunks
    types = pa.chunked_array([pc.map_lookup(chunk, key, "last") for chunk in chunks], pa.string())
    return pc.is_in(types, value_set=deleted)


def _with_plain_vectors(files: pa.Table, store: ObjectStore) -> pa.Table:
    """The same files without selections: deletion vectors hide what is not selected instead."""
    whole = files.filter(pc.is_null(files["selection"]))
    partial = files.filter(pc.is_valid(files["selection"]))
    if not partial.num_rows:
        return whole
    hidden, stats = _hide_unselected(partial, store)
    for name, column in (("deletion_vector", hidden), ("stats", stats)):
        partial = partial.set_column(files.schema.get_field_index(name), name, column)
    shown = pc.is_valid(partial["deletion_vector"])
    return pa.concat_tables([whole, partial.filter(shown)])


def _hide_unselected(files: pa.Table, store: ObjectStore) -> tuple[pa.StructArray, pa.StringArray]:
    """Per file a vector of the unselected rows (no vector if there are none), and statistics with
    the number of rows, which readers of vectors need.
    """
    loader = DeletionVectorLoader(store)
    counts = parse_statistics_json(files["stats"], ())["num_records"].to_pylist()

    def hide(row: dict[str, Any], known: int | None) -> tuple[DeletionVectorDescriptor | None, int]:
        path = decode_path(row["path"])
        selected = loader.load(DeletionVectorDescriptor(**row["selection"]), data_file=path)
        if row["deletion_vector"] is not None:
            vector = DeletionVectorDescriptor(**row["deletion_vector"])
            selected = selected - loader.load(vector, data_file=path)
        if not selected:
            return None, 0
        count = count_file_rows(store, path) if known is None else known
        hidden = BitMap64()
        hidden.add_range(0, count)
        return encode_inline(hidden - selected), count

    with ThreadPoolExecutor(_LOADING_THREADS) as pool:
        found = list(pool.map(hide, file_rows(files), counts))
    stats = [f'{{"numRecords":{count}}}' for _, count in found]
    return column_of([vector for vector, _ in found], DELETION_VECTOR_TYPE), string_column(stats)
