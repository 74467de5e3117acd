"""Paths and hashes as Spark and Java compute them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dagster_delta.engines.spark.read.file_keys import file_keys, is_misread_by_spark
from dagster_delta.protocol.values.partition_values import encode_uri
from dagster_delta.storage.locations import spark_path

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def test_keys_are_those_of_spark(spark: SparkSession) -> None:
    from pyspark.sql import functions

    # Every length around the strides of the hash, in characters of one to four bytes.
    paths = ["abé%中 /=😀"[n % 9 :] * (n // 4) + "x" * (n % 7) for n in range(150)]
    rows = spark.createDataFrame([(path,) for path in paths], "p string")
    expected = rows.select(functions.xxhash64("p")).collect()
    assert file_keys(paths).tolist() == [row[0] for row in expected]


@given(st.lists(st.text(max_size=80)))
def test_the_key_of_a_path_does_not_depend_on_the_others(paths: list[str]) -> None:
    alone = [file_keys([path])[0] for path in paths]
    assert file_keys(paths).tolist() == alone


def test_paths_are_those_that_spark_reports(tmp_path: Path, spark: SparkSession) -> None:
    codes = [*range(1, 0xB0), 0x1680, *range(0x2000, 0x2070), 0x3000, 0xFEFF]
    names = [
        *(f"x{chr(code)}y.parquet" for code in codes if chr(code) != "/"),
        "é中😀.parquet",
        "e\u0301.parquet",
        "a%20b.parquet",
        " x.parquet",
    ]
    paths = [spark_path(f"file://{tmp_path}/{name}") for name in names]
    read = [
        (name, path)
        for name, path in zip(names, paths, strict=True)
        if not is_misread_by_spark(path)
    ]
    assert len(names) - len(read) == len("{}[]*?\\:")
    for name, _ in read:
        pq.write_table(pa.table({"a": [1]}), tmp_path / name)
    frame = spark.read.option("__globPaths__", "false").schema("a long")
    rows = frame.parquet(*[path for _, path in read]).select("_metadata.file_path").collect()
    assert sorted(row.file_path for row in rows) == sorted(encode_uri(path) for _, path in read)


@pytest.mark.parametrize(
    ("uri", "path"),
    [
        ("file:///a b/c", "file:/a b/c"),
        ("file:/a//b/./c", "file:/a/b/c"),
        ("/a/../b", "file:/b"),
        ("s3://bucket/a//b", "s3a://bucket/a//b"),
        ("s3a://bucket/a", "s3a://bucket/a"),
        ("hdfs://host:8020/a", "hdfs://host:8020/a"),
    ],
)
def test_uris_become_paths_that_hadoop_takes(uri: str, path: str) -> None:
    assert spark_path(uri) == path


@pytest.mark.parametrize(
    "path", ["file:/t/_a", "file:/t/.a", "file:/t/a:b", "s3a://b/t//a", "file:/t[1]/a"]
)  # fmt: skip
def test_paths_that_spark_misreads_are_known(path: str) -> None:
    assert is_misread_by_spark(path)


@pytest.mark.parametrize(
    "path", ["file:/t/p=_a/x", "s3a://b/t/a b%20=é.parquet", "hdfs://host:8020/_hidden/.too/a"]
)
def test_paths_that_spark_reads_are_left_to_it(path: str) -> None:
    assert not is_misread_by_spark(path)
