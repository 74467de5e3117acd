"""Streams from tables whose commits Unity Catalog takes, and into them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from dagster_delta import DeltaTable, delta_sink, register_delta_log
from dagster_delta.catalogs import UnityCatalog
from dagster_delta.storage import StoreLocation
from tests.catalogs.unity_server import Fault, Refusal, UnityServer

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

SOURCE, TARGET = "main.shop.orders", "main.shop.copies"
SCHEMA = pa.schema({"id": pa.int64()})

pytestmark = pytest.mark.slow


def create_tables(catalog: UnityCatalog) -> list[StoreLocation]:
    found = []
    for name in (SOURCE, TARGET):
        new = catalog.new_table(name)
        DeltaTable.create(new.uri, SCHEMA, storage_options=new.options)
        found.append(catalog.resolve(name))
    return found


def open_table(location: StoreLocation) -> DeltaTable:
    return DeltaTable(location.uri, storage_options=location.options)


def ids_of(location: StoreLocation) -> list[int]:
    return sorted(open_table(location).snapshot().scan(["id"]).to_arrow()["id"].to_pylist())


def append(location: StoreLocation, *ids: int) -> None:
    open_table(location).append(pa.table({"id": ids}, SCHEMA))


def run(spark: SparkSession, source: StoreLocation, checkpoint: Path, each_batch: object) -> None:
    """Read all that is there."""
    register_delta_log(spark)
    options = {f"storage.{name}": str(value) for name, value in source.options.items()}
    query = (
        spark.readStream.format("delta_log")
        .options(**options)
        .option("maxFilesPerTrigger", 1)
        .load(source.uri)
        .writeStream.option("checkpointLocation", str(checkpoint))
        .trigger(availableNow=True)
        .foreachBatch(each_batch)  # type: ignore[arg-type]
        .start()
    )
    query.awaitTermination()


def test_stream_reads_commits_that_are_not_published_and_writes_each_batch_once(
    spark: SparkSession, server: UnityServer, catalog: UnityCatalog, tmp_path: Path
) -> None:
    source, target = create_tables(catalog)
    busy = Refusal(429, "", "busy")
    reports = Fault("POST", "/tables/orders", "answer", "latest-backfilled", busy, times=99)
    server.faults.append(reports)
    append(source, 1)
    append(source, 2)
    assert server.find(SOURCE).commits
    sink = delta_sink(target.uri, query_id="copy", storage_options=target.options)

    def die_after(rows: DataFrame, batch: int) -> None:
        sink(rows, batch)
        if batch == 1:
            raise RuntimeError("the driver ended after the commit")

    with pytest.raises(Exception, match="the driver ended"):
        run(spark, source, tmp_path / "checkpoint", die_after)
    assert ids_of(target) == [1, 2]
    append(source, 3)
    run(spark, source, tmp_path / "checkpoint", sink)
    assert ids_of(target) == [1, 2, 3]
    reports.times = 0
    append(source, 4)
    run(spark, source, tmp_path / "checkpoint", sink)
    assert ids_of(target) == [1, 2, 3, 4]


def test_sink_waits_for_a_catalog_with_a_full_backlog(
    spark: SparkSession, server: UnityServer, catalog: UnityCatalog, tmp_path: Path
) -> None:
    source, target = create_tables(catalog)
    for number in range(4):
        append(source, number)
    server.max_unpublished = 1
    away = Refusal(500, "", "away")
    server.faults.append(Fault("POST", "/tables/copies", "answer", "latest-backfilled", away, 2))
    sink = delta_sink(target.uri, query_id="copy", storage_options=target.options)
    run(spark, source, tmp_path / "checkpoint", sink)
    assert ids_of(target) == [0, 1, 2, 3]
