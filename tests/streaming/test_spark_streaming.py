"""Streaming queries over tables, on real sessions: what they read, and what they leave."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyspark
import pytest

from dagster_delta import (
    DeltaTable,
    delta_sink,
    variants_from_json,
    variants_to_json,
)
from dagster_delta.errors import InvalidArgument
from dagster_delta.streaming.sink import DeltaSink
from tests.golden.answers import rows_of, table_path
from tests.sessions import CONNECT_ONLY

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.slow

needs_limits = pytest.mark.skipif(
    pyspark.__version__.split(".") < ["4", "2"], reason="limits of batches need Spark 4.2"
)


def append(uri: str, *ids: int, files: int = 1) -> DeltaTable:
    table = DeltaTable(uri, must_exist=False)
    for at in range(files):
        chosen = ids[at::files]
        table.append(pa.table({"id": pa.array(chosen, pa.int64()), "s": [f"n{n}" for n in chosen]}))
    return table


def sink_to(target: str, **options: Any) -> DeltaSink:
    """A sink whose batches are recorded under the query's own id, where Spark tells it."""
    return delta_sink(target, query_id="mine" if CONNECT_ONLY else None, **options)


def run(
    session: SparkSession, source: str, checkpoint: Path, each_batch: Any, **options: str | int
) -> None:
    """Read all that is there."""
    reader = session.readStream.format("delta_log").options(**options)
    query = (
        reader.load(source)
        .writeStream.option("checkpointLocation", str(checkpoint))
        .trigger(availableNow=True)
        .foreachBatch(each_batch)
        .start()
    )
    query.awaitTermination()


def rows_of_batches(uri: str) -> list[int]:
    """How many rows each commit of a table has added, the first one first."""
    return [int(each.operation_metrics["numOutputRows"]) for each in DeltaTable(uri).history()][
        ::-1
    ]


def ids_in(uri: str) -> list[int]:
    return sorted(DeltaTable(uri).snapshot().scan(["id"]).to_arrow()["id"].to_pylist())


@pytest.mark.parametrize(
    "name",
    [
        "dat__nested_types",
        "golden__data-reader-partition-values",
        "golden__dv-with-columnmapping",
        "golden__table-with-columnmapping-mode-id",
        "golden__type-widening",
        "krs__void-column",
    ],
)
@pytest.mark.usefixtures("golden_tables")
@pytest.mark.examples(3)
def test_a_golden_table_has_the_same_rows_by_name(name: str, registered: SparkSession) -> None:
    frame = registered.read.format("delta_log").load(table_path(name))
    expected = DeltaTable(table_path(name)).snapshot().scan().to_arrow()
    assert rows_of(frame.toArrow()) == rows_of(expected)


def test_a_name_serves_sql_and_time_travel(tmp_path: Path, registered: SparkSession) -> None:
    uri = str(tmp_path / "t")
    append(uri, 1, 2)
    append(uri, 3)
    registered.sql(f"CREATE TEMPORARY VIEW by_name USING delta_log OPTIONS (path '{uri}')")
    assert registered.sql("SELECT sum(id) FROM by_name WHERE id > 1").collect() == [(5,)]
    registered.catalog.dropTempView("by_name")
    then = registered.read.format("delta_log").option("versionAsOf", 0).load(uri)
    assert sorted(row.id for row in then.collect()) == [1, 2]


@needs_limits
def test_batches_are_limited_and_a_restart_goes_on(
    tmp_path: Path, registered: SparkSession
) -> None:
    source, target = str(tmp_path / "source"), str(tmp_path / "target")
    append(source, *range(6), files=3)
    sink = sink_to(target)
    run(registered, source, tmp_path / "c", sink, maxFilesPerTrigger=2)
    assert rows_of_batches(target) == [4, 2]
    append(source, 6, 7)
    run(registered, source, tmp_path / "c", sink)
    assert rows_of_batches(target) == [4, 2, 2]
    assert ids_in(target) == list(range(8))


@needs_limits
@pytest.mark.classic("a query of Connect runs its function in a process of its own")
def test_a_sink_that_fails_before_or_after_its_commit_loses_and_doubles_nothing(
    tmp_path: Path, registered: SparkSession
) -> None:
    source, target = str(tmp_path / "source"), str(tmp_path / "target")
    append(source, *range(6), files=3)
    sink = delta_sink(target)
    failures = {(0, "before"), (1, "after")}

    def fragile(frame: DataFrame, batch_id: int) -> None:
        for when in ("before", "after"):
            if when == "after":
                sink(frame, batch_id)
            if (batch_id, when) in failures:
                failures.remove((batch_id, when))
                raise RuntimeError(f"failed {when} the commit of batch {batch_id}")

    for more in (6, 7):
        with pytest.raises(Exception, match="the commit of batch"):
            run(registered, source, tmp_path / "c", fragile, maxFilesPerTrigger=1)
        append(source, more).optimize()
    run(registered, source, tmp_path / "c", fragile, maxFilesPerTrigger=1)
    assert not failures
    assert Counter(ids_in(target)) == Counter(range(8))
    assert DeltaTable(target).version() == 4


KILLED = """
import os, signal, sys
from dagster_delta import delta_sink, register_delta_log
from dagster_delta.engines.spark.session.session import local_spark_session

source, target, checkpoint = sys.argv[1:]
spark = local_spark_session("killed", {"spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1"})
register_delta_log(spark)
sink = delta_sink(target)

def deadly(frame, batch_id):
    sink(frame, batch_id)
    if batch_id == 1:
        os.kill(spark.sparkContext._gateway.proc.pid, signal.SIGKILL)
        os.kill(os.getpid(), signal.SIGKILL)

(
    spark.readStream.format("delta_log").option("maxFilesPerTrigger", 1).load(source)
    .writeStream.option("checkpointLocation", checkpoint).foreachBatch(deadly)
    .trigger(availableNow=True).start().awaitTermination()
)
"""


@needs_limits
@pytest.mark.classic("a query of Connect runs its function in a process of its own")
@pytest.mark.exhaustive
def test_a_killed_query_that_is_started_again_loses_and_doubles_nothing(
    tmp_path: Path, registered: SparkSession
) -> None:
    source, target, checkpoint = (str(tmp_path / each) for each in ("source", "target", "c"))
    append(source, *range(8), files=4)
    killed = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(KILLED), source, target, checkpoint],
        env={**os.environ, "PYSPARK_PYTHON": sys.executable},
        capture_output=True,
        timeout=300,
        check=False,
    )
    assert killed.returncode == -9, killed.stderr.decode()[-2000:]
    # The commit of batch 1 is there, and Spark does not know.
    assert DeltaTable(target).version() == 1
    assert not (Path(checkpoint) / "commits" / "1").exists()
    run(registered, source, Path(checkpoint), delta_sink(target), maxFilesPerTrigger=1)
    assert Counter(ids_in(target)) == Counter(range(8))
    assert DeltaTable(target).version() == 3


def test_a_new_column_stops_the_query_and_a_restart_brings_it(
    tmp_path: Path, registered: SparkSession
) -> None:
    source, target = str(tmp_path / "source"), str(tmp_path / "target")
    append(source, 1)
    sink = sink_to(target, schema_mode="merge")

    def widening(frame: DataFrame, batch_id: int) -> None:
        sink(frame, batch_id)
        if batch_id == 0:
            rows = pa.table({"id": [2], "s": ["x"], "new": [0.5]})
            DeltaTable(source).append(rows, schema_mode="merge")

    query = (
        registered.readStream.format("delta_log")
        .load(source)
        .writeStream.option("checkpointLocation", str(tmp_path / "c"))
        .foreachBatch(widening)
        .start()
    )
    with pytest.raises(Exception, match="schema of the table changed at version 1: start"):
        query.awaitTermination(600)
    run(registered, source, tmp_path / "c", sink)
    rows = DeltaTable(target).snapshot().scan(["id", "new"]).to_arrow().to_pylist()
    assert sorted((row["id"], row["new"]) for row in rows) == [(1, None), (2, 0.5)]


def test_changes_stream_with_deletion_vectors(tmp_path: Path, registered: SparkSession) -> None:
    source, target = str(tmp_path / "source"), str(tmp_path / "target")
    properties = {"delta.enableDeletionVectors": "true", "delta.enableChangeDataFeed": "true"}
    table = DeltaTable(source, must_exist=False)
    table.append(pa.table({"id": pa.array(range(50), pa.int64())}), properties=properties)
    table.delete("id < 3")
    table.update(set={"id": "-id"}, where="id = 7")

    def keep(frame: DataFrame, batch_id: int) -> None:
        sink_to(target)(frame.withColumnsRenamed({"_change_type": "change"}), batch_id)

    run(registered, source, tmp_path / "c", keep, readChangeFeed="true", startingVersion=0)
    found = DeltaTable(target).snapshot().scan(["id", "change", "_commit_version"]).to_arrow()
    expected = table.changes(0, columns=["id", "_change_type", "_commit_version"]).to_arrow()
    assert rows_of(found) == rows_of(expected.rename_columns(found.schema.names))


@needs_limits
def test_a_complete_result_replaces_the_one_before(
    tmp_path: Path, registered: SparkSession
) -> None:
    source, target = str(tmp_path / "source"), str(tmp_path / "target")
    append(source, *range(6), files=2)
    (
        registered.readStream.format("delta_log")
        .option("maxFilesPerTrigger", 1)
        .load(source)
        .groupBy()
        .count()
        .writeStream.outputMode("complete")
        .option("checkpointLocation", str(tmp_path / "c"))
        .foreachBatch(sink_to(target, mode="overwrite"))
        .trigger(availableNow=True)
        .start()
        .awaitTermination()
    )
    assert DeltaTable(target).snapshot().scan().to_arrow().to_pylist() == [{"count": 6}]


def test_an_option_that_is_misspelt_is_refused(tmp_path: Path, registered: SparkSession) -> None:
    append(str(tmp_path), 1)
    reader = registered.readStream.format("delta_log").option("ignoreDelete", "true")
    with pytest.raises(Exception, match="no option 'ignoredelete'"):
        # Connect asks the source only now.
        _ = reader.load(str(tmp_path)).schema


def test_a_stream_written_by_name_is_referred_to_the_sink(
    tmp_path: Path, registered: SparkSession
) -> None:
    source = str(tmp_path / "source")
    append(source, 1)
    with pytest.raises(Exception, match=r"foreachBatch\(delta_sink\(location\)\)"):
        (
            registered.readStream.format("delta_log")
            .load(source)
            .writeStream.format("delta_log")
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start(str(tmp_path / "target"))
            .awaitTermination()
        )


def test_a_sink_outside_of_a_query_asks_for_an_id(tmp_path: Path, registered: SparkSession) -> None:
    with pytest.raises(InvalidArgument, match="query_id"):
        delta_sink(str(tmp_path))(registered.range(1), 0)
    with pytest.raises(InvalidArgument, match="not empty"):
        delta_sink(str(tmp_path), query_id=" ")
    sink = delta_sink(str(tmp_path), query_id="mine")
    sink(registered.range(1), 0)
    sink(registered.range(1), 0)
    assert ids_in(str(tmp_path)) == [0]


def test_variants_go_through_a_stream(tmp_path: Path, registered: SparkSession) -> None:
    uri, target = str(tmp_path / "source"), str(tmp_path / "target")
    texts = ['{"a": [1, null]}', None]
    table = DeltaTable(uri, must_exist=False)
    table.append(pa.table({"id": [1, 2], "v": variants_from_json(texts)}))
    run(registered, uri, tmp_path / "checkpoint", sink_to(target))
    found = DeltaTable(target).snapshot().scan().to_arrow().sort_by("id")
    assert variants_to_json(found["v"]) == ['{"a":[1,null]}', None]


def test_a_missing_file_is_one_of_the_table_that_is_read(
    tmp_path: Path, registered: SparkSession
) -> None:
    source, target = str(tmp_path / "source"), str(tmp_path / "target")
    append(source, 1)
    append(target, 2)
    (missing,) = (tmp_path / "source").glob("*.parquet")
    missing.unlink()
    with pytest.raises(Exception, match="DataFileMissing") as caught:
        run(registered, source, tmp_path / "checkpoint", sink_to(target))
    assert f"[table {source}, file {missing.name}]" in str(caught.value)
    assert f"[table {target}" not in str(caught.value)
