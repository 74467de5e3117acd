"""What is particular to Spark Connect; the conformance suite has what is the same everywhere."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyspark
import pytest

from dagster_delta import delta_sink, register_delta_log, ship_package
from dagster_delta.engines.spark.engine import SparkEngine
from dagster_delta.table.delta_table import DeltaTable

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.mark.classic("it is about two kinds at once")
def test_a_classic_session_works_beside_it(
    tmp_path: Path, connect_session: SparkSession, spark: SparkSession
) -> None:
    table = DeltaTable(str(tmp_path), must_exist=False)
    table.append(spark.range(3))
    table.append(connect_session.range(3, 6))
    for session in (spark, connect_session):
        frame = SparkEngine(session).read(table.snapshot().scan().plan())
        assert sorted(row.id for row in frame.collect()) == list(range(6))


@pytest.mark.skipif(
    pyspark.__version__.split(".") < ["4", "2"], reason="limits of batches need Spark 4.2"
)
def test_a_stream_lands_once_in_its_sink(tmp_path: Path, connect_session: SparkSession) -> None:
    source, target = str(tmp_path / "source"), str(tmp_path / "target")
    table = DeltaTable(source, must_exist=False)
    for start in (0, 10, 20):
        table.append(connect_session.range(start, start + 3))
    register_delta_log(connect_session)

    def run(checkpoint: str) -> None:
        rows = connect_session.readStream.format("delta_log").option("maxFilesPerTrigger", 2)
        query = (
            rows.load(source)
            .writeStream.option("checkpointLocation", str(tmp_path / checkpoint))
            .foreachBatch(delta_sink(target, query_id="copy"))
            .trigger(availableNow=True)
            .start()
        )
        assert query.awaitTermination(600)

    run("first")
    written = DeltaTable(target)
    expected = [0, 1, 2, 10, 11, 12, 20, 21, 22]
    assert sorted(written.snapshot().scan().to_arrow()["id"].to_pylist()) == expected
    # Under a name that was used before, batches with numbers that were used before are there.
    run("second")
    assert DeltaTable(target).version() == written.version()


@pytest.fixture
def active(connect_session: SparkSession, monkeypatch: pytest.MonkeyPatch) -> SparkSession:
    """The session of the server, as if it were the only one of this process."""
    monkeypatch.setattr(
        "dagster_delta.engines.spark.session.active_session.active_spark_session",
        lambda: connect_session,
    )
    return connect_session


def test_a_connect_session_takes_the_package(tmp_path: Path, active: SparkSession) -> None:
    ship_package(active)
    ship_package(active)

    def paths(batches: Any) -> Any:
        for _ in batches:
            yield pa.RecordBatch.from_pydict({"path": sys.path})

    rows = active.range(1).coalesce(1).mapInArrow(paths, "path string").collect()
    assert len([row for row in rows if "/dagster_delta-" in row.path]) == 1
    table = DeltaTable(str(tmp_path / "t"), must_exist=False)
    table.append(active.range(3))
    assert sorted(table.snapshot().scan().to_arrow()["id"].to_pylist()) == [0, 1, 2]
