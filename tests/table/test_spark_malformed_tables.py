"""Malformed tables on the Spark engine: the same errors as on the embedded one."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from dagster_delta.errors import CorruptDeletionVector
from dagster_delta.table.delta_table import DeltaTable
from tests.table.logs import PROTOCOL
from tests.table.test_malformed_tables import (
    ADD,
    METADATA,
    fifo,
    stored_vector,
    table_of,
    vector_table,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


STATS = '{"numRecords":3}'


@pytest.mark.parametrize("kind", ["i", "u", "p"])
def test_a_vector_that_removes_rows_beyond_its_file_is_corrupt(
    spark: SparkSession, tmp_path: Path, kind: str
) -> None:
    root = tmp_path / "t"
    uri = vector_table(root, stored_vector(root, [0, 3], kind), stats=STATS)
    with pytest.raises(CorruptDeletionVector, match="row 3, counted from 0") as caught:
        DeltaTable(uri).snapshot().scan().to_spark(spark)
    assert caught.value.table == uri
    assert caught.value.file == "a.parquet"


@pytest.mark.parametrize("kind", ["i", "u", "p"])
def test_a_cardinality_that_is_not_that_of_the_vector_is_corrupt(
    spark: SparkSession, tmp_path: Path, kind: str
) -> None:
    root = tmp_path / "t"
    vector = {**stored_vector(root, [0, 2], kind), "cardinality": 1}
    uri = vector_table(root, vector, stats=STATS)
    with pytest.raises(CorruptDeletionVector, match="the log says 1") as caught:
        DeltaTable(uri).snapshot().scan().to_spark(spark)
    assert caught.value.table == uri


def test_a_named_pipe_is_not_read(spark: SparkSession, tmp_path: Path) -> None:
    uri = table_of(tmp_path / "t", PROTOCOL, METADATA, ADD)
    fifo(tmp_path / "t" / "a.parquet")
    rows = DeltaTable(uri).snapshot().scan().to_spark(spark)
    with pytest.raises(Exception, match="not a regular file"):
        rows.collect()
