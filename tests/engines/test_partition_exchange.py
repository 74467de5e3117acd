"""Rows that are packed by one task and written by another are the rows that one task would write."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dagster_delta.engines.plans import WriteResult, WriteSpec
from dagster_delta.engines.spark.executor_reports import decode_reports
from dagster_delta.engines.spark.write.tasks import (
    PackTask,
    UnpackTask,
    WriteDetail,
    WriteTask,
    result_of,
    slice_size_bytes,
)
from dagster_delta.errors import DeltaError, InvalidCast, StorageFailure
from dagster_delta.protocol.schema import ArrayType, PrimitiveType, StructField, StructType
from dagster_delta.storage import open_store
from tests.engines.data_tables import configuration, read

SCHEMA = StructType(
    (
        StructField("id", PrimitiveType("long")),
        StructField("p", PrimitiveType("string")),
        StructField("x", PrimitiveType("double")),
        StructField("l", ArrayType(PrimitiveType("long"))),
    )
)
MANY = 120_000


def rows_of_task(first: int, sizes: dict[str, int]) -> Any:
    """Rows of some partitions, in turn as far as they reach."""
    names = [name for name, size in sizes.items() for _ in range(size)]
    random.Random(first).shuffle(names)
    ids = np.arange(first, first + len(names))
    return pa.record_batch(
        {
            "id": pa.array(ids),
            "p": pa.array(names),
            "x": pa.array(np.where(ids % 50_001 == 7, np.nan, ids / 2)),
            "l": pa.array([None if each % 4 == 0 else [each] for each in ids.tolist()]),
        }
    )


def exchanged(
    tasks: list[Any], spec: WriteSpec, *, shuffled: bool = True
) -> tuple[WriteResult, DeltaError | None]:
    pack = PackTask(WriteTask(spec, tuple(SCHEMA.names)), slice_bytes=4096)
    packs = [pa.Table.from_batches(list(pack(iter([each])))) for each in tasks]
    everything = pa.concat_tables(packs)
    if shuffled:
        order = np.random.default_rng(0).permutation(everything.num_rows)
        everything = everything.take(pa.array(order))
    reports = UnpackTask(spec)(iter(everything.to_batches(max_chunksize=100)))
    rows = [row for batch in reports for row in batch.to_pylist()]
    decoded = decode_reports([(each["kind"], each["payload"]) for each in rows], WriteDetail)
    return result_of(decoded), decoded.error


def spec_of(root: Path, **options: Any) -> WriteSpec:
    return WriteSpec(
        location=open_store(str(root)).location,
        configuration=configuration(SCHEMA, ["p"]),
        **options,
    )


@pytest.mark.parametrize("options", [{}, {"sort_by": ("id",)}], ids=["plain", "sorted"])
def test_each_partition_is_one_file_of_all_its_rows(
    tmp_path: Path, options: dict[str, Any]
) -> None:
    tasks = [
        rows_of_task(0, {"much": MANY, "few": 3, "b/c=": 10}),
        rows_of_task(1_000_000, {"much": MANY, "few": 2}),
    ]
    spec = spec_of(tmp_path, **options)
    result, error = exchanged(tasks, spec)
    assert error is None
    assert result.num_rows == 2 * MANY + 15
    assert sorted(str(each.partition_values["p"]) for each in result.files) == [
        "b/c=", "few", "much"
    ]  # fmt: skip
    found = read(open_store(str(tmp_path)), result.files, spec.configuration).sort_by("id")
    expected = pa.Table.from_batches(tasks).sort_by("id")
    assert found["id"].equals(expected["id"])
    assert found["p"].equals(expected["p"])
    assert found["l"].to_pylist() == expected["l"].to_pylist()


def test_row_groups_are_encoded_before_they_travel_and_keep_their_statistics(
    tmp_path: Path,
) -> None:
    tasks = [rows_of_task(0, {"much": MANY}), rows_of_task(1_000_000, {"much": MANY})]
    result, _ = exchanged(tasks, spec_of(tmp_path))
    [file] = result.files
    assert pq.read_metadata(next(tmp_path.glob("**/*.parquet"))).num_row_groups == 2
    stats = msgspec.json.decode(file.stats or "")
    assert stats["numRecords"] == 2 * MANY
    assert stats["minValues"]["id"] == 0
    assert stats["maxValues"]["id"] == 1_000_000 + MANY - 1
    assert stats["nullCount"]["l"] == 2 * MANY // 4
    # Of a column with NaN nobody may skip by the largest number.
    assert "x" not in stats["maxValues"]


def test_an_error_of_a_task_that_packs_is_reported_beside_what_the_others_wrote(
    tmp_path: Path,
) -> None:
    wrong = pa.record_batch({"id": [2.0**70], "p": ["a"], "x": [1.0], "l": [[1]]})
    result, error = exchanged([wrong, rows_of_task(0, {"a": 10})], spec_of(tmp_path))
    assert isinstance(error, InvalidCast)
    assert result.num_rows == 10


def test_a_lost_slice_is_noticed_and_nothing_is_left(tmp_path: Path) -> None:
    spec = spec_of(tmp_path)
    pack = PackTask(WriteTask(spec, tuple(SCHEMA.names)), slice_bytes=4096)
    packs = pa.Table.from_batches(list(pack(iter([rows_of_task(0, {"a": 9_000})]))))
    with pytest.raises(StorageFailure, match="lost"):
        list(UnpackTask(spec)(iter(packs.slice(0, packs.num_rows - 1).to_batches())))
    assert not list(tmp_path.glob("**/*.parquet"))


@pytest.mark.parametrize(
    ("max_records", "size"),
    [(-1, 1 << 20), (1, 1 << 20), (512, 128 << 10), (10_000, 6_710), (10**9, 4096)],
)
def test_slices_are_shorter_where_spark_hands_over_more_of_them(
    max_records: int, size: int
) -> None:
    assert slice_size_bytes(max_records) == size
