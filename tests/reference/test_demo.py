"""The demo, run as a user runs it, and its tables read by the reference implementation."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from dagster_delta import DeltaTable
from tests.golden.answers import rows_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = [pytest.mark.delta_spark, pytest.mark.exhaustive]

ROOT = Path(__file__).parents[2]
TABLES = {
    "raw/flights": 336_776,
    "raw/weather": 26_115,
    "raw/planes": 3_322,
    "raw/airports": 1_458,
    "refined/flights_enriched": 336_776,
    "reports/carrier_delays": 16,
    "reports/daily_traffic": 1_095,
}


def test_delta_spark_reads_every_table_of_the_demo(
    delta_spark: SparkSession, tmp_path: Path
) -> None:
    lake, home = tmp_path / "lake", tmp_path / "home"
    home.mkdir()
    done = subprocess.run(
        [sys.executable, str(ROOT / "examples" / "flights" / "demo.py")],
        env={
            **os.environ,
            "PYTHONPATH": str(ROOT),
            "DAGSTER_DELTA_DEMO_ROOT": str(lake),
            "DAGSTER_HOME": str(home),
        },
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    for name, count in TABLES.items():
        ours = DeltaTable(lake / name).snapshot()
        theirs = delta_spark.read.format("delta").load(str(lake / name))
        assert ours.num_records == theirs.count() == count, name
        if count < 50_000:
            table = ours.scan().to_arrow()
            assert rows_of(theirs.toArrow().cast(table.schema)) == rows_of(table), name
        else:
            assert hash_of(ours.scan().to_spark(delta_spark)) == hash_of(theirs), name


def hash_of(rows: DataFrame) -> Any:
    """A number that the same rows have in every order."""
    columns = ", ".join(f"`{each}`" for each in sorted(rows.columns))
    return rows.selectExpr(f"sum(cast(xxhash64({columns}) AS DECIMAL(38, 0)))").collect()
