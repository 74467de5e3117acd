"""A table and a Spark session, to ask for in any asset or op."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import dagster as dg
import pyarrow as pa
import pytest
from pyspark.sql import DataFrame

from dagster_delta.errors import (
    InvalidArgument,
    SchemaChangeRefused,
    TableAlreadyExists,
    TableNotFound,
)
from dagster_delta.orchestration.io.io_manager import DeltaIOManager
from dagster_delta.orchestration.maintenance.jobs import delta_maintenance_job
from dagster_delta.orchestration.resources import DeltaTableResource, SparkSessionResource
from dagster_delta.table.delta_table import DeltaTable
from tests.orchestration.conftest import QUIET

ROWS = pa.table({"id": [1, 2]})


@pytest.mark.parametrize(
    ("resource", "options", "message"),
    [
        (DeltaIOManager, {}, "has the root_uri under which its tables are stored"),
        (DeltaIOManager, {"root_uri": None}, "root_uri\n  Input should be a valid string"),
        (DeltaIOManager, {"root_uri": Path("lake")}, "root_uri\n  Input should be a valid string"),
        (DeltaTableResource, {"uri": Path("lake")}, "uri\n  Input should be a valid string"),
        (DeltaIOManager, {"root_url": "lake"}, "did you mean 'root_uri'?"),
    ],
)
def test_a_location_that_is_missing_or_no_text_is_refused_by_name(resource, options, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        resource(**options)


def test_a_table_is_created_and_opened_in_an_asset(tmp_path):
    seen = []

    @dg.asset
    def writer(table: DeltaTableResource) -> None:
        assert not table.exists()
        table.create(ROWS.schema, properties={"custom.team": "x"}, description="numbers")
        table.table().append(ROWS)

    @dg.asset(deps=[writer])
    def reader(table: DeltaTableResource) -> None:
        seen.extend(table.table().snapshot().scan().to_arrow()["id"].to_pylist())
        assert table.table(version=0).snapshot().num_records == 0

    resource = DeltaTableResource(root_uri=str(tmp_path), schema="raw", name="numbers")
    result = dg.materialize([writer, reader], resources={"table": resource}, run_config=QUIET)
    assert result.success
    assert sorted(seen) == [1, 2]
    assert (tmp_path / "raw" / "numbers" / "_delta_log").is_dir()


def test_a_table_that_is_not_there_is_an_error_when_it_is_opened(tmp_path):
    resource = DeltaTableResource(uri=str(tmp_path / "none"))
    with pytest.raises(TableNotFound):
        resource.table()


def test_a_table_that_is_there_is_not_created_again(tmp_path):
    resource = DeltaTableResource(uri=str(tmp_path / "t"))
    resource.create(ROWS.schema)
    with pytest.raises(TableAlreadyExists):
        resource.create(ROWS.schema)
    assert resource.create(ROWS.schema, mode="ignore").version() == 0


def test_readers_of_a_resource_become_a_property_of_its_table(tmp_path):
    resource = DeltaTableResource(uri=str(tmp_path / "t"), readers=["chdb", "duckdb"])
    created = resource.create(ROWS.schema)
    assert created.metadata().configuration["dagsterDelta.readers"] == "chdb,DuckDB"
    with pytest.raises(SchemaChangeRefused, match="chdb"):
        resource.table().set_properties({"delta.enableDeletionVectors": "true"})
    other = DeltaTableResource(uri=str(tmp_path / "t"), readers=["polars"])
    written = other.writable_table()
    assert written.metadata().configuration["dagsterDelta.readers"] == "polars"
    assert other.writable_table().version() == written.version()
    with pytest.raises(InvalidArgument, match="polar is not a program"):
        DeltaTableResource(uri=str(tmp_path / "t"), readers=["polar"])


def test_the_switch_for_column_changes_is_for_handles_and_leaves_new_tables_plain(tmp_path):
    off = DeltaTableResource(uri=str(tmp_path / "t"))
    on = DeltaTableResource(uri=str(tmp_path / "t"), enable_column_change=True)
    created = on.create(ROWS.schema, properties={"custom.team": "x"})
    assert created.append(ROWS).version == 1
    assert created.protocol().min_reader_version == 1
    with pytest.raises(SchemaChangeRefused, match="enable_features"):
        on.table().change_column("id", "STRING")
    with pytest.raises(SchemaChangeRefused, match="enable_column_change"):
        off.table().change_column("id", "STRING", enable_features=True)
    on.table().change_column("id", "STRING", enable_features=True)
    assert on.table().snapshot().scan().to_arrow()["id"].to_pylist() == ["1", "2"]


@pytest.mark.parametrize(
    ("fields", "uri"),
    [
        ({"uri": "s3://b/t"}, "s3://b/t"),
        ({"root_uri": "s3://b/", "name": "t"}, "s3://b/t"),
        ({"root_uri": "s3://b", "schema": "raw", "name": "t"}, "s3://b/raw/t"),
    ],
)
def test_the_location_of_a_table(fields, uri):
    assert DeltaTableResource(**fields).table_uri == uri


@pytest.mark.parametrize("fields", [{}, {"root_uri": "s3://b"}, {"name": "t"}])
def test_a_table_without_location_says_what_to_set(fields):
    with pytest.raises(InvalidArgument, match="root_uri and name"):
        _ = DeltaTableResource(**fields).table_uri


def test_a_resource_can_be_pinned_to_a_version(tmp_path):
    resource = DeltaTableResource(uri=str(tmp_path / "t"), version=0)
    resource.create(ROWS.schema).append(ROWS)
    assert resource.table().version() == 0


@pytest.mark.parametrize("master", ["local[x]", "local[4,2]"])
def test_a_local_master_takes_a_number_of_threads(master):
    with pytest.raises(InvalidArgument, match="number of threads"):
        _ = SparkSessionResource(master=master).session


def test_the_token_of_a_connect_url_is_not_shown():
    assert "hush" not in repr(SparkSessionResource(remote="sc://host:15002/;token=hush"))


def test_connect_without_its_packages_says_what_to_install(monkeypatch):
    def missing(*_, **__):
        raise ImportError("grpcio >= 1.48.1 must be installed")

    monkeypatch.setattr("pyspark.sql.SparkSession.Builder.getOrCreate", missing)
    with pytest.raises(InvalidArgument, match=r"dagster-delta-protocol\[connect\]"):
        _ = SparkSessionResource(remote="sc://host:15002").session


@pytest.mark.spark
def test_the_session_that_runs_already_is_the_session(spark):
    assert SparkSessionResource().session is spark
    assert SparkSessionResource(master="local[2]").session is spark


@pytest.fixture
def foreign(spark):
    """The session as somebody else has set it up, as on a cluster; set back afterwards."""
    theirs = {"spark.sql.shuffle.partitions": "7", "spark.sql.session.timeZone": "Asia/Tokyo"}
    before = {name: spark.conf.get(name) for name in theirs}
    for name, value in theirs.items():
        spark.conf.set(name, value)
    yield spark, theirs
    for name, value in before.items():
        spark.conf.set(name, value)


@pytest.mark.spark
def test_a_session_that_somebody_else_started_keeps_its_settings_and_runs_on(foreign, tmp_path):
    session, theirs = foreign

    @dg.asset
    def numbers() -> DataFrame:
        return session.range(3)

    @dg.asset
    def more(numbers: DataFrame, spark: SparkSessionResource) -> DataFrame:
        return numbers.union(spark.session.range(2))

    resources = {
        "io_manager": DeltaIOManager(root_uri=str(tmp_path)),
        "spark": SparkSessionResource(conf={"spark.sql.ansi.enabled": "true"}),
    }
    assert dg.materialize([numbers, more], resources=resources, run_config=QUIET).success
    assert {name: session.conf.get(name) for name in theirs} == theirs
    assert session.range(1).count() == 1
    assert SparkSessionResource(conf={"spark.sql.shuffle.partitions": "5"}).session is session
    assert session.conf.get("spark.sql.shuffle.partitions") == "5"


@pytest.mark.classic("dagster-pyspark makes classic sessions only")
@pytest.mark.parametrize("kind", ["PySparkResource", "LazyPySparkResource"])
def test_a_resource_of_dagster_pyspark_is_taken_for_the_session(spark, tmp_path, kind):
    theirs = pytest.importorskip(
        "dagster_pyspark", reason="dagster-pyspark is not installed", exc_type=ImportError
    )
    pyspark = getattr(theirs, kind)(spark_config={"spark": {"sql": {"ansi": {"enabled": "true"}}}})

    @dg.asset
    def numbers(pyspark: dg.ResourceParam[Any]) -> DataFrame:
        return pyspark.spark_session.range(3)

    @dg.asset(ins={"numbers": dg.AssetIn(dagster_type=theirs.DataFrame)})
    def more(numbers) -> DataFrame:
        assert numbers.sparkSession is spark
        return numbers.where("id > 0")

    manager = DeltaIOManager(root_uri=str(tmp_path), spark=pyspark)
    maintained = delta_maintenance_job(assets=[numbers, more], spark="pyspark")
    definitions = dg.Definitions(
        [numbers, more],
        jobs=[maintained, dg.define_asset_job("all")],
        resources={"io_manager": manager, "pyspark": pyspark},
    )
    assert definitions.resolve_job_def("all").execute_in_process(run_config=QUIET).success
    assert DeltaTable(str(tmp_path / "public" / "more")).snapshot().num_records == 2
    by_spark = {"optimize": {"engine": "spark"}}
    job = definitions.resolve_job_def(maintained.name)
    assert job.execute_in_process(run_config=by_spark).success


def test_a_resource_without_a_session_says_so(tmp_path):
    class Other(dg.ConfigurableResource[Any]):
        """Has nothing to do with Spark."""

    manager = DeltaIOManager(root_uri=str(tmp_path), spark=Other())
    with pytest.raises(InvalidArgument, match=r"Other.*has no spark_session"):
        _ = manager.spark_session


KILLED = """
import os, signal, subprocess
from dagster_delta import SparkSessionResource
from dagster_delta.errors import SparkSessionLost
from dagster_delta.orchestration.spark_progress import watch_spark

frame = SparkSessionResource(master="local[1]").session.range(5)
children = subprocess.run(
    ["ps", "--ppid", str(os.getpid()), "-o", "pid=,comm="], capture_output=True, text=True
).stdout.splitlines()
(jvm,) = [int(each.split()[0]) for each in children if "java" in each]
os.kill(jvm, signal.SIGKILL)
os.waitpid(jvm, 0)
for attempt in ("work", "session"):
    try:
        if attempt == "session":
            SparkSessionResource().session
        with watch_spark(frame, None):
            frame.count()
    except SparkSessionLost as error:
        print(attempt, error)
"""


@pytest.mark.spark
@pytest.mark.exhaustive
def test_a_killed_jvm_is_named_instead_of_a_refused_connection():
    done = subprocess.run(
        [sys.executable, "-c", KILLED], capture_output=True, text=True, check=False, timeout=120
    )
    said = [each.partition(" ") for each in done.stdout.splitlines()]
    assert [each[0] for each in said] == ["work", "session"], done.stderr[-2000:]
    assert all("multiprocess_executor" in each[2] for each in said)


@pytest.mark.spark
def test_settings_that_come_too_late_are_named_once_without_their_values(spark, caplog):
    late = {"spark.executor.memory": "7g", "spark.jars": "hush.jar"}
    live = {"spark.sql.shuffle.partitions": spark.conf.get("spark.sql.shuffle.partitions")}
    resource = SparkSessionResource(master="local[3]", conf=late | live)
    for _ in range(2):
        assert resource.session is spark
    said = [each.getMessage() for each in caplog.records if "takes no effect" in each.message]
    assert sorted(each.partition(" ")[0] for each in said) == [
        "spark.executor.memory",
        "spark.jars",
        "spark.master",
    ]
    assert not any("hush" in each for each in said)


@pytest.mark.spark
def test_assets_and_resources_of_one_process_share_a_session(spark, tmp_path):
    seen = []

    @dg.asset
    def first(one: SparkSessionResource) -> None:
        seen.append(one.session)

    @dg.asset(deps=[first])
    def second(other: SparkSessionResource) -> None:
        seen.append(other.session)

    resources = {"one": SparkSessionResource(), "other": SparkSessionResource(app_name="other")}
    assert dg.materialize([first, second], resources=resources, run_config=QUIET).success
    assert seen == [spark, spark]
    assert DeltaIOManager(root_uri=str(tmp_path)).spark_session is spark


@pytest.mark.spark
def test_the_workers_of_an_unactivated_environment_run_our_interpreter(spark):
    @dg.asset
    def workers(spark: SparkSessionResource) -> str:
        def interpreter(batches):
            for _ in batches:
                yield pa.RecordBatch.from_pydict({"python": [sys.executable]})

        frame = spark.session.range(1).mapInArrow(interpreter, "python string")
        return frame.collect()[0]["python"]

    result = dg.materialize(
        [workers], resources={"spark": SparkSessionResource()}, run_config=QUIET
    )
    assert result.output_for_node("workers") == sys.executable


def test_a_server_that_the_environment_names_is_used_as_spark_itself_would(monkeypatch):
    monkeypatch.setenv("SPARK_REMOTE", "sc://host:15002")
    monkeypatch.setattr("dagster_delta.engines.spark.session.session.running_session", lambda: None)
    monkeypatch.setattr("pyspark.sql.SparkSession.Builder.getOrCreate", lambda builder: builder)
    options = SparkSessionResource().session._options
    assert options["spark.remote"] == "sc://host:15002"
    assert "spark.master" not in options


def test_a_session_of_ones_own_is_handed_in_by_overriding(monkeypatch):
    class Own(SparkSessionResource):
        def create_session(self):
            return "a session"

    assert Own().session == "a session"
