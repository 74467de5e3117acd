"""Fixtures that more than one layer needs: the golden tables and the shared Spark session."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import settings

from tests.reference.jars import resolve_jars

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

GOLDEN_TABLES = Path(
    os.environ.get("GOLDEN_TABLES", Path(__file__).parents[2] / "shared" / "tables")
)

# A deadline is an assertion on time: it fails on a busy machine and says nothing about the code.
settings.register_profile("untimed", deadline=None)
settings.load_profile("untimed")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the tests that need Spark by the sessions they ask for."""
    for item in items:
        if {"spark", "delta_spark", "connect_session"}.intersection(
            getattr(item, "fixturenames", ())
        ):
            item.add_marker(pytest.mark.spark)


@pytest.fixture(scope="session")
def golden_tables() -> Path:
    """The directory of real tables, or a skip that says what to set."""
    if not GOLDEN_TABLES.is_dir():
        pytest.skip(f"no golden tables at {GOLDEN_TABLES}: set GOLDEN_TABLES to their directory")
    return GOLDEN_TABLES


def _java_is_there() -> bool:
    home = os.environ.get("JAVA_HOME")
    java = shutil.which("java", path=f"{home}/bin" if home else None)
    return (
        java is not None and subprocess.run([java, "-version"], capture_output=True).returncode == 0
    )


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """One classic local session per process, with delta-spark's JARs where they are."""
    if not _java_is_there():
        pytest.skip("Spark needs Java 17 or newer, and there is none")
    from dagster_delta.engines.spark.session import local_spark_session

    jars, _ = resolve_jars()
    conf = {
        "spark.driver.memory": "3g",
        "spark.sql.warehouse.dir": str(tmp_path_factory.mktemp("warehouse")),
        "spark.sql.shuffle.partitions": "2",
        "spark.databricks.delta.snapshotPartitions": "2",
        "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
        # The tables of tests are small: to compile a query costs more than to interpret it.
        "spark.sql.codegen.wholeStage": "false",
        "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    }
    if jars:
        conf |= {
            "spark.jars": ",".join(jars),
            "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
            "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
        }
    session = local_spark_session("tests", conf, cores=2)
    yield session
    session.stop()


@pytest.fixture(scope="session")
def delta_spark(spark: SparkSession) -> SparkSession:
    """The shared session as the reference implementation: `format("delta")` works in it."""
    jars, why = resolve_jars()
    if not jars:
        pytest.skip(why)
    return spark
