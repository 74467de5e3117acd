"""A local session needs a Java that Spark runs on, and says so; functions follow the session."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from dagster_delta.engines.spark.engine import SparkEngine
from dagster_delta.engines.spark.session import active_session
from dagster_delta.engines.spark.session.session import (
    check_java,
    frame_of,
    functions_of,
    is_connect,
    local_spark_session,
    session_conf,
    ship_package,
    with_nullable_parts,
)
from dagster_delta.errors import InvalidArgument
from dagster_delta.table.delta_table import DeltaTable

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def fake_java(home: Path, banner: str) -> None:
    java = home / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.write_text(f"#!/bin/sh\necho '{banner}' >&2\n")
    java.chmod(0o755)


@pytest.mark.parametrize(
    "banner",
    [
        'openjdk version "17.0.15" 2025-04-15',
        'openjdk version "21" 2023-09-19',
        'java version "25-ea"',
    ],
)
def test_a_new_enough_java_is_accepted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, banner: str
) -> None:
    fake_java(tmp_path, banner)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    check_java()


@pytest.mark.parametrize(
    ("banner", "version"),
    [('java version "1.8.0_402"', "is 8"), ('openjdk version "11.0.2"', "is 11")],
)
def test_an_old_java_is_refused_with_the_mend(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, banner: str, version: str
) -> None:
    fake_java(tmp_path, banner)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(InvalidArgument, match="install a Java runtime") as caught:
        check_java()
    assert version in caught.value.message


def test_a_missing_java_is_said_to_be_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(InvalidArgument, match="none on the PATH"):
        check_java()
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(InvalidArgument, match="JAVA_HOME"):
        check_java()


@pytest.mark.classic("it is about the JVM of this process")
def test_a_local_session_counts_in_utc_and_runs_this_python(spark: SparkSession) -> None:
    assert local_spark_session("again") is spark
    assert active_session.session_time_zone(spark) == "UTC"
    assert not is_connect(spark)
    assert functions_of(spark).__name__ == "pyspark.sql.functions"
    assert os.environ["PYSPARK_PYTHON"] == sys.executable
    assert spark.conf.get("spark.sql.parquet.outputTimestampType") == "TIMESTAMP_MICROS"


def test_a_setting_that_nobody_has_set_has_the_default_of_spark(spark: SparkSession) -> None:
    assert session_conf(spark, "spark.sql.sources.parallelPartitionDiscovery.threshold") == "32"
    assert session_conf(spark, "spark.sql.no.such.setting") is None


@pytest.mark.classic("it is about the JVM of this process")
def test_many_files_are_found_without_a_spark_job(spark: SparkSession, tmp_path: Path) -> None:
    table = DeltaTable(str(tmp_path), must_exist=False)
    for at in range(33):
        table.append(pa.table({"id": [at]}))
    context = spark.sparkContext
    context.setJobGroup("many-files", "the jobs of this test")
    try:
        frame = table.snapshot().scan().to_spark(spark)
        assert context.statusTracker().getJobIdsForGroup("many-files") == []
        assert frame.count() == 33
    finally:
        context.setLocalProperty("spark.jobGroup.id", None)  # type: ignore[arg-type]


def test_another_thread_finds_the_session(spark: SparkSession) -> None:
    with ThreadPoolExecutor(1) as pool:
        found = pool.submit(active_session.active_spark_session).result()
    assert found is spark


def test_reading_without_any_session_says_what_to_pass(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = DeltaTable(str(tmp_path), must_exist=False)
    table.append(pa.table({"id": [1]}))
    # Other tests of this process may have left sessions of either kind.
    monkeypatch.setattr(active_session, "active_spark_session", lambda: None)
    with pytest.raises(InvalidArgument, match="to_spark"):
        SparkEngine().read(table.snapshot().scan().plan())


def test_a_frame_has_the_rows_behind_a_chunk_without_any(spark: SparkSession) -> None:
    empty = pa.array([], pa.int64())
    rows = pa.table({"k": pa.chunked_array([pa.array([1, 2]), empty, pa.array([3])])})
    assert frame_of(spark, rows, "k long").count() == 3


def test_rows_merged_from_a_table_with_an_empty_chunk_are_all_there(
    spark: SparkSession, tmp_path: Path
) -> None:
    table = DeltaTable(str(tmp_path / "t"), must_exist=False)
    table.append(pa.table({"k": pa.array([1], pa.int64())}))
    empty = pa.array([], pa.int64())
    source = pa.table({"k": pa.chunked_array([pa.array([1, 2]), empty, pa.array([3])])})
    merge = table.merge(source, "t.k = s.k", engine="spark")
    merge.when_not_matched_insert_all().execute()
    assert sorted(table.snapshot().scan().to_arrow()["k"].to_pylist()) == [1, 2, 3]


def test_a_null_struct_with_a_field_that_is_not_nullable_becomes_arrow(spark: SparkSession) -> None:
    frame = spark.sql(
        "SELECT IF(id = 0, named_struct('a', named_struct('b', id)), NULL) AS s, array(id) AS n "
        "FROM range(2)"
    )
    rows = with_nullable_parts(frame).toArrow()
    assert rows.to_pydict() == {"s": [{"a": {"b": 0}}, None], "n": [[0], [1]]}


SHIPPED_WRITER = """
import sys

sys.path.insert(0, sys.argv[1])

import pyarrow as pa

import dagster_delta
from dagster_delta import DeltaTable

assert dagster_delta.__file__.startswith(sys.argv[1]), dagster_delta.__file__
rows = pa.table({"id": [1]})
table = DeltaTable.create(sys.argv[2], rows.schema)
table.set_properties({"dagsterDelta.readers": "polars,DuckDB"})
table.append(rows)
table.add_column("wide", "int")
print(table.snapshot().scan().to_arrow().num_rows)
"""


def test_what_is_sent_to_workers_has_the_data_that_writes_read(tmp_path: Path) -> None:
    class Session:
        def addArtifacts(self, path: str, *, pyfile: bool) -> None:  # noqa: N802 - Spark's name
            assert pyfile
            shutil.copy(path, tmp_path / "sent.zip")

    ship_package(Session())  # type: ignore[arg-type]
    done = subprocess.run(
        [sys.executable, "-c", SHIPPED_WRITER, tmp_path / "sent.zip", tmp_path / "t"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == "1\n"
