"""A Connect server that is not Spark: it has no `_metadata`, and shows a missing file as no rows."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from dagster_delta import DeltaTable
from dagster_delta.engines.spark.session.session import is_apache_spark
from tests.sessions import ON_SAIL, sail_server

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.slow

ROWS = pa.table({"id": [1, 2, 3, 4], "v": ["a", None, "c", "d"], "p": ["x", "y", "x", "y"]})


@pytest.fixture(scope="module")
def sail_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with sail_server(tmp_path_factory.mktemp("sail")) as url:
        yield url


@pytest.fixture(scope="module")
def sail(sail_url: str) -> Iterator[SparkSession]:
    from pyspark.sql.connect.session import SparkSession as ConnectSession

    # The builder of all sessions would make this process one of Connect alone.
    session: SparkSession = ConnectSession.builder.remote(sail_url).create()  # type: ignore[assignment]
    yield session
    session.stop()


@pytest.fixture(autouse=True)
def only_session(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """No other session for the library to find."""
    if "sail" in request.fixturenames:
        session = request.getfixturevalue("sail")
        monkeypatch.setattr(
            "dagster_delta.engines.spark.session.active_session.active_spark_session",
            lambda: session,
        )


@pytest.fixture
def table(tmp_path: Path) -> DeltaTable:
    properties = {"delta.enableDeletionVectors": "true", "delta.enableRowTracking": "true"}
    uri = str(tmp_path / "table")
    return DeltaTable.create(uri, ROWS.schema, partition_by=["p"], properties=properties)


def ids(session: SparkSession, table: DeltaTable, where: str | None = None) -> list[int]:
    rows = table.snapshot().scan(["id"], where).to_spark(session)
    return sorted(row.id for row in rows.collect())


def test_rows_come_back_with_their_partitions_and_without_those_deleted(
    sail: SparkSession, table: DeltaTable
) -> None:
    table.append(sail.createDataFrame(ROWS))
    rows = table.snapshot().scan().to_spark(sail).orderBy("id").toArrow()
    assert rows.to_pylist() == ROWS.to_pylist()
    table.delete("id = 2", engine="spark")
    assert ids(sail, table) == [1, 3, 4]
    assert ids(sail, table, "p = 'y'") == [4]
    assert table.snapshot().scan([]).to_spark(sail).count() == 3


def test_rows_are_changed_and_merged(sail: SparkSession, table: DeltaTable) -> None:
    table.append(sail.createDataFrame(ROWS))
    table.update({"v": "'new'"}, "id = 4", engine="spark")
    source = sail.createDataFrame(pa.table({"id": [1, 9], "v": ["m", "n"], "p": ["x", "z"]}))
    merge = table.merge(source, on="t.id = s.id").when_matched_update_all()
    merge.when_not_matched_insert_all().execute()
    found = table.snapshot().scan().to_arrow().sort_by("id").to_pylist()
    values = [(1, "m"), (2, None), (3, "c"), (4, "new"), (9, "n")]
    assert [(row["id"], row["v"]) for row in found] == values


def test_a_missing_file_is_an_error_and_not_no_rows(sail: SparkSession, table: DeltaTable) -> None:
    table.append(sail.createDataFrame(ROWS))
    for file in Path(table.uri).rglob("*.parquet"):
        file.unlink()
    with pytest.raises(Exception, match="DataFileMissing"):
        ids(sail, table)


def test_the_server_is_told_apart_from_spark(sail: SparkSession) -> None:
    assert not is_apache_spark(sail)


@pytest.mark.skipif(ON_SAIL, reason="the session is one of Sail")
def test_sessions_of_spark_are_known(spark: SparkSession, connect_session: SparkSession) -> None:
    assert is_apache_spark(spark)
    assert is_apache_spark(connect_session)


PIPELINE = """
import sys

import dagster as dg
from pyspark.sql import DataFrame
from pyspark.sql.functions import sum

from dagster_delta import DeltaIOManager, DeltaTable, SparkSessionResource

root, server = sys.argv[1:]
spark = SparkSessionResource(remote=server)


@dg.asset
def numbers(spark: SparkSessionResource) -> DataFrame:
    return spark.session.range(0, 4)


@dg.asset
def totals(numbers: DataFrame) -> DataFrame:
    return numbers.selectExpr("id % 2 AS parity", "id").groupBy("parity").agg(sum("id").alias("total"))


resources = {"io_manager": DeltaIOManager(root_uri=root, spark=spark), "spark": spark}
for _ in range(2):
    assert dg.materialize([numbers, totals], resources=resources).success
found = DeltaTable(f"{root}/public/totals").snapshot().scan().to_arrow()
assert sorted(tuple(row.values()) for row in found.to_pylist()) == [(0, 2), (1, 4)], found
"""


def test_assets_run_without_java(sail_url: str, tmp_path: Path) -> None:
    script = tmp_path / "pipeline.py"
    script.write_text(PIPELINE)
    done = subprocess.run(
        [sys.executable, str(script), str(tmp_path / "lake"), sail_url],
        env={**os.environ, "PATH": "", "JAVA_HOME": ""},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-3000:]
