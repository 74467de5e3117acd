"""Assets that take and return DuckDB relations."""

from __future__ import annotations

from typing import Any

import dagster as dg
import duckdb
import pyarrow as pa

from dagster_delta import delta_change_feed_asset
from tests.orchestration.conftest import Lake

FLIGHTS = pa.table({"id": [1, 2, 3], "carrier": ["UA", "AA", "UA"], "delay": [5, 70, 90]})


def test_relations_come_from_tables_and_become_tables(lake: Lake, events) -> None:
    @dg.asset
    def late(flights: duckdb.DuckDBPyRelation) -> duckdb.DuckDBPyRelation:
        return flights.filter("delay > 60")

    @dg.asset(ins={"late": dg.AssetIn(metadata={"columns": ["carrier"]})})
    def counts(late: duckdb.DuckDBPyRelation, flights: duckdb.DuckDBPyRelation):
        return duckdb.sql(
            "SELECT carrier, count(*) AS n, sum(id) AS ids FROM late JOIN flights USING (carrier) "
            "GROUP BY carrier"
        )

    result = lake.materialize(events(FLIGHTS, name="flights"), late, counts)
    assert lake.rows("counts") == [
        {"carrier": "AA", "n": 1, "ids": 2},
        {"carrier": "UA", "n": 2, "ids": 4},
    ]
    facts = lake.metadata(result, "counts")["delta/input/late"]
    assert facts["loaded_as"] == "duckdb.DuckDBPyRelation"


def test_a_relation_reads_the_partitions_of_the_run(lake: Lake, events) -> None:
    options: dict[str, Any] = {
        "partitions_def": dg.StaticPartitionsDefinition(["AA", "UA"]),
        "metadata": {"partition_expr": "carrier"},
    }
    flights = events(
        lambda context: FLIGHTS.filter(
            pa.compute.field("carrier").isin(list(context.partition_keys))
        ),
        name="flights",
        **options,
    )

    @dg.asset(**options)
    def late(flights: duckdb.DuckDBPyRelation):
        return flights.filter("delay > 0")

    lake.materialize(flights, partition="AA")
    lake.materialize(flights, late, partition="UA")
    assert lake.column("id", "late") == [1, 3]


def test_changes_come_as_a_relation(lake: Lake, events) -> None:
    @delta_change_feed_asset("flights", keys="id")
    def late(changes: duckdb.DuckDBPyRelation) -> duckdb.DuckDBPyRelation:
        return changes.filter("delay > 60")

    lake.materialize(events(FLIGHTS, name="flights"), late)
    assert lake.column("id", "late") == [2, 3]


def test_a_default_load_type_is_duckdb(lake: Lake, events) -> None:
    @dg.asset
    def late(flights):
        return flights.filter("delay > 60")

    lake.materialize(events(FLIGHTS, name="flights"), late, default_load_type="duckdb")
    assert lake.column("id", "late") == [2, 3]
