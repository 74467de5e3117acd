"""The same engine over Spark Connect, beside a classic session or without one."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyspark
import pytest

from dagster_delta import Column, Identity, delta_sink, register_delta_log, ship_package
from dagster_delta.engines.spark.engine import SparkEngine
from dagster_delta.engines.spark.log_planner import MAX_COLLECTED_FILES, MAX_DRIVER_FILES
from dagster_delta.engines.spark.schema import to_spark_schema
from dagster_delta.engines.spark.session import is_connect
from dagster_delta.errors import ConstraintViolation, InvalidCast
from dagster_delta.table.delta_table import DeltaTable
from tests.engines.test_spark_reading import table_with_vectors
from tests.engines.test_spark_writing import EVERY_TYPE_SQL, PARTITION_SQL, frame_rows
from tests.golden.answers import rows_of, table_path

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SERVER = "org.apache.spark.sql.connect.service.SparkConnectServer"


@pytest.fixture(scope="session")
def connect_session(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """A session of a Connect server that runs in a process of its own."""
    pytest.importorskip("grpc_status", reason="Spark Connect needs the extra 'connect'")
    from pyspark.sql.connect.session import SparkSession as ConnectSession

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    log = tmp_path_factory.mktemp("connect") / "server.log"
    with log.open("wb") as output:
        server = subprocess.Popen(
            server_command(port),
            env={**os.environ, "PYSPARK_PYTHON": sys.executable},
            stdout=output,
            stderr=subprocess.STDOUT,
        )
    try:
        await_port(port, server, log)
        session: Any = ConnectSession.builder.remote(f"sc://127.0.0.1:{port}").create()
        yield session
        session.stop()
    finally:
        server.terminate()
        server.wait(timeout=60)


def server_command(port: int) -> list[str]:
    import pyspark

    settings = {
        "spark.connect.grpc.binding.address": "127.0.0.1",
        "spark.connect.grpc.binding.port": str(port),
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1",
        "spark.log.level": "ERROR",
        "spark.sql.session.timeZone": "America/Los_Angeles",
        "spark.sql.shuffle.partitions": "2",
        "spark.ui.enabled": "false",
    }
    submit = Path(pyspark.__file__).parent / "bin" / "spark-submit"
    options = [each for pair in settings.items() for each in ("--conf", "=".join(pair))]
    return [str(submit), "--master", "local[2]", "--class", SERVER, *options, "spark-internal"]


def await_port(port: int, server: subprocess.Popen[bytes], log: Path) -> None:
    for _ in range(600):
        if server.poll() is not None:
            pytest.skip(f"no Connect server: {log.read_text(errors='replace')[-500:]}")
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.2)
    pytest.skip("the Connect server does not answer")


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
def test_a_golden_table_has_the_same_rows(name: str, connect_session: SparkSession) -> None:
    snapshot = DeltaTable(table_path(name)).snapshot()
    frame = snapshot.scan().to_spark(connect_session)
    assert is_connect(frame)
    assert frame.schema.simpleString() == to_spark_schema(snapshot.schema).simpleString()
    assert rows_of(frame.toArrow()) == rows_of(snapshot.scan().to_arrow())


def test_deleted_rows_are_gone(tmp_path: Path, connect_session: SparkSession) -> None:
    table = table_with_vectors(str(tmp_path), [70_000, 10], [{0, 65_536}, set()])
    frame = table.snapshot().scan(where="id < 3 OR id > 65534").to_spark(connect_session)
    found = sorted((row.p, row.id) for row in frame.where("id < 65540").collect())
    assert found == [("file 0", n) for n in (1, 2, 65_535, 65_537, 65_538, 65_539)] + [
        ("file 1", n) for n in (0, 1, 2)
    ]


def test_every_type_arrives_unchanged(tmp_path: Path, connect_session: SparkSession) -> None:
    frame = connect_session.sql(EVERY_TYPE_SQL)
    table = DeltaTable(str(tmp_path), must_exist=False)
    table.append(frame)
    assert rows_of(table.snapshot().scan().to_arrow()) == frame_rows(frame)


def test_partitions_are_brought_together(tmp_path: Path, connect_session: SparkSession) -> None:
    frame = connect_session.sql(PARTITION_SQL)
    table = DeltaTable(str(tmp_path), must_exist=False)
    table.append(frame, partition_by=["p", "d"])
    assert table.snapshot().num_files == 7 * 3
    expected = frame.selectExpr("id", "NULLIF(p, '') AS p", "d", "x").toArrow()
    assert rows_of(table.snapshot().scan().to_arrow()) == rows_of(expected)


def test_errors_in_the_data_keep_their_class(tmp_path: Path, connect_session: SparkSession) -> None:
    table = DeltaTable(str(tmp_path), must_exist=False)
    table.append(connect_session.sql("SELECT CAST(1 AS INT) AS i"))
    with pytest.raises(InvalidCast, match="do not fit"):
        table.append(connect_session.sql("SELECT 30000000000 AS i"))
    with pytest.raises(ConstraintViolation) as caught:
        table.overwrite(connect_session.sql("SELECT 7 AS i"), where="i = 1")
    assert any("7" in each for each in caught.value.examples)


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
        assert query.awaitTermination(45)

    run("first")
    written = DeltaTable(target)
    expected = [0, 1, 2, 10, 11, 12, 20, 21, 22]
    assert sorted(written.snapshot().scan().to_arrow()["id"].to_pylist()) == expected
    # Under a name that was used before, batches with numbers that were used before are there.
    run("second")
    assert DeltaTable(target).version() == written.version()


@pytest.mark.parametrize("vectors", ["true", "false"])
def test_rows_change_over_connect(
    vectors: str, tmp_path: Path, connect_session: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dagster_delta.engines.active_spark_session", lambda: connect_session)
    table = DeltaTable(str(tmp_path / "t"), must_exist=False)
    frame = connect_session.range(30).selectExpr("id", "concat('v', id) AS v", "id % 2 AS p")
    feed = {"delta.enableDeletionVectors": vectors, "delta.enableChangeDataFeed": "true"}
    table.append(frame, partition_by=["p"], properties=feed)
    assert table.delete("id % 10 = 3", engine="spark").metrics["numDeletedRows"] == 3
    assert table.update({"v": "upper(v)"}, "id > 25", engine="spark").metrics["numUpdatedRows"] == 4
    source = connect_session.range(28, 34).selectExpr("id", "'new' AS v", "0L AS p", "1 AS w")
    merge = table.merge(source, "t.id = s.id", schema_mode="merge")
    merge.when_matched_update_all().when_not_matched_insert_all()
    merge.when_not_matched_by_source_delete("t.id < 5")
    assert is_connect(source)
    metrics = merge.execute().metrics
    assert [metrics[f"numTargetRows{each}"] for each in ("Updated", "Inserted", "Deleted")] == [
        2,
        4,
        4,
    ]
    rows = table.snapshot().scan().to_arrow().to_pylist()
    assert {row["id"]: row["v"] for row in rows if row["id"] > 24} == {
        25: "v25",
        26: "V26",
        27: "V27",
        **dict.fromkeys(range(28, 34), "new"),
    }
    assert table.changes(3).to_arrow().num_rows == 2 * 2 + 4 + 4


@pytest.mark.parametrize("collected", ["100", "0"], ids=["files_come", "files_stay"])
def test_a_log_is_replayed_by_the_server(
    tmp_path: Path, connect_session: SparkSession, collected: str
) -> None:
    table = table_with_vectors(str(tmp_path / "t"), [40, 50, 60], [{1, 2}, set(), {7}])
    table.checkpoint()
    table.append(pa.table({"id": range(100, 110), "p": ["later"] * 10}))
    table.delete("p = 'file 1'")
    connect_session.conf.set(MAX_DRIVER_FILES, "0")
    connect_session.conf.set(MAX_COLLECTED_FILES, collected)
    try:
        for where in (None, "id > 45", "p = 'file 0'"):
            scan = DeltaTable(table.uri).snapshot().scan(where=where)
            found = scan.to_spark(connect_session).toArrow()
            assert rows_of(found) == rows_of(scan.to_arrow())
    finally:
        connect_session.conf.unset(MAX_DRIVER_FILES)
        connect_session.conf.unset(MAX_COLLECTED_FILES)


@pytest.fixture
def active(connect_session: SparkSession, monkeypatch: pytest.MonkeyPatch) -> SparkSession:
    """The session of the server, as if it were the only one of this process."""
    monkeypatch.setattr("dagster_delta.engines.active_spark_session", lambda: connect_session)
    return connect_session


def rows_by_id(table: DeltaTable, *columns: str) -> list[tuple[Any, ...]]:
    found = table.snapshot().scan(columns=["id", *columns]).to_arrow().to_pylist()
    return sorted(tuple(row.values()) for row in found)


def test_rows_are_replaced_over_connect(tmp_path: Path, active: SparkSession) -> None:
    table = DeltaTable(str(tmp_path / "t"), must_exist=False)
    rows = active.range(6).selectExpr("id", "id % 3 AS p")
    table.append(rows, partition_by=["p"])
    table.overwrite(active.sql("SELECT 10L AS id, 1L AS p"), where="p = 1")
    table.overwrite(active.sql("SELECT 20L AS id, 2L AS p"), where="dynamic")
    assert rows_by_id(table) == [(0,), (3,), (10,), (20,)]
    # What is replaced is read meanwhile.
    read = table.snapshot().scan().to_spark(active)
    table.overwrite(read.selectExpr("id + 1 AS id", "p", "'x' AS s"), schema_mode="overwrite")
    assert rows_by_id(table, "s") == [(1, "x"), (4, "x"), (11, "x"), (21, "x")]
    once = ("nightly", 1)
    for _ in range(2):
        table.append(active.sql("SELECT 30L AS id, 0L AS p, 'y' AS s"), idempotency=once)
    assert [row for row in rows_by_id(table) if row == (30,)] == [(30,)]


def test_values_are_filled_in_over_connect(tmp_path: Path, active: SparkSession) -> None:
    columns = [
        Column("id", "BIGINT", identity=Identity(start=5)),
        Column("v", "INT"),
        Column("w", "INT", generated_as="v * 2"),
        Column("s", "STRING", default="'new'"),
    ]
    table = DeltaTable.create(str(tmp_path / "t"), columns)
    table.append(active.sql("SELECT CAST(id AS INT) AS v FROM range(3)").repartition(1))
    found = table.snapshot().scan(columns=["v", "w", "s"]).to_arrow().to_pylist()
    assert sorted(tuple(row.values()) for row in found) == [(n, 2 * n, "new") for n in range(3)]
    numbers = [row[0] for row in rows_by_id(table)]
    assert len(set(numbers)) == 3
    assert min(numbers) >= 5
    table.alter("ADD CONSTRAINT few CHECK (v < 3)")
    with pytest.raises(ConstraintViolation, match="few"):
        table.append(active.sql("SELECT 3 AS v"))


def test_columns_change_over_connect(tmp_path: Path, active: SparkSession) -> None:
    table = DeltaTable(str(tmp_path / "t"), must_exist=False)
    for start in (0, 10):
        frame = active.range(start, start + 3)
        table.append(frame.selectExpr("id", "CAST(id AS STRING) AS v"))
    table.alter("ADD COLUMN state STRING DEFAULT 'old'", engine="spark", enable_features=True)
    table.change_column("v", "DECIMAL(10,2)", engine="spark", enable_features=True)
    table.alter("RENAME COLUMN v TO price", enable_features=True)
    expected = [(n, Decimal(n), "old") for n in (0, 1, 2, 10, 11, 12)]
    assert rows_by_id(table, "price", "state") == expected
    frame = table.snapshot().scan(where="price > 10.5").to_spark(active)
    assert sorted(row.id for row in frame.collect()) == [11, 12]


@pytest.mark.parametrize("zorder_by", [[], ["v", "id"]])
def test_files_are_written_together_over_connect(
    zorder_by: list[str], tmp_path: Path, active: SparkSession
) -> None:
    table = DeltaTable(str(tmp_path / "t"), must_exist=False)
    vectors = {"delta.enableDeletionVectors": "true"}
    for start in (0, 10, 20):
        frame = active.range(start, start + 10).selectExpr("id", "id % 3 AS v")
        table.append(frame, properties=vectors)
    table.delete("id % 10 = 4", engine="spark")
    before = rows_by_id(table, "v")
    table.optimize(engine="spark", zorder_by=zorder_by)
    assert table.snapshot().num_files == 1
    assert rows_by_id(table, "v") == before
    assert len(before) == 27


def test_changes_and_rows_are_read_by_name_over_connect(
    tmp_path: Path, active: SparkSession
) -> None:
    table = DeltaTable(str(tmp_path / "t"), must_exist=False)
    table.append(active.range(4), properties={"delta.enableChangeDataFeed": "true"})
    table.delete("id = 2", engine="spark")
    changes = table.changes(starting_version=0).to_spark(active)
    assert is_connect(changes)
    assert sorted((row.id, row._change_type) for row in changes.collect()) == [
        (0, "insert"),
        (1, "insert"),
        (2, "delete"),
        (2, "insert"),
        (3, "insert"),
    ]
    register_delta_log(active)
    reader = active.read.format("delta_log")
    assert sorted(row.id for row in reader.load(table.uri).collect()) == [0, 1, 3]
    first = reader.option("versionAsOf", 0).load(table.uri)
    assert first.count() == 4


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
    assert rows_by_id(table) == [(0,), (1,), (2,)]
