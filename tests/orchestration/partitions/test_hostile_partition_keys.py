"""Whatever a partition key looks like, exactly its rows are replaced and loaded, on both engines."""

from __future__ import annotations

from datetime import datetime
from typing import Any
from zoneinfo import ZoneInfo

import dagster as dg
import pyarrow as pa
import pytest

from dagster_delta.orchestration.partitions.partitions import DimensionSlice, PartitionSelection
from dagster_delta.orchestration.partitions.predicates import partition_slice
from dagster_delta.orchestration.resources import SparkSessionResource
from dagster_delta.protocol.schema import PrimitiveType, StructField, StructType
from dagster_delta.table.delta_table import DeltaTable

pytestmark = pytest.mark.slow

KEYS = [
    "plain",
    "it's",
    "''",
    "' OR 1 = 1 --",
    "x' OR 'a' = 'a",
    "\\",
    "\\'",
    "back\\slash\\n",
    'quo"te',
    "`tick`",
    "100%",
    "%27",
    "a%2Fb",
    "a/b",
    "..",
    "../..",
    "./x",
    "/abs",
    "p=plain",
    "a=b/c=d",
    "__HIVE_DEFAULT_PARTITION__",
    "null",
    "NULL",
    "a|b",
    "ünï✓😀",
    "e\u0301",
    "\u00e9",
    " ",
    " lead and trail ",
    "a;b--c/*d*/",
    "${x} {y} $z :w ?",
    "1e5",
    "*",
    "[a-b]*",
    "#frag?query",
    "${system:user.home}",
    "C:\\x",
    "s3://bucket/x",
]
HARDER = ["line\nbreak", "tab\tstop", "return\r", "bell\a", "nul\0byte", "\u2028", "\x7f"]
"""Dagster takes no such keys; a table still holds such values."""

ENGINES = ["arrow", pytest.param("spark", marks=pytest.mark.spark)]


@pytest.fixture(params=ENGINES)
def frame_of(request: pytest.FixtureRequest) -> Any:
    """Makes what an asset returns out of rows, so that it is written by one engine."""
    if request.param == "arrow":
        return lambda rows: pa.Table.from_pylist(rows)
    spark = request.getfixturevalue("spark")
    return lambda rows: spark.createDataFrame(pa.Table.from_pylist(rows).to_pandas())


def customers(lake: Any, frame_of: Any, generation: int) -> tuple[Any, Any, list[Any]]:
    definition = dg.DynamicPartitionsDefinition(name="customers")
    lake.instance.add_dynamic_partitions("customers", KEYS)
    loaded: list[Any] = []

    @dg.asset(partitions_def=definition, metadata={"partition_expr": "p"})
    def events(context) -> Any:
        return frame_of([{"p": key, "g": generation} for key in context.partition_keys])

    @dg.asset(partitions_def=definition)
    def reader(events: pa.Table) -> None:
        loaded.extend(events.to_pylist())

    return events, reader, loaded


def test_one_key_at_a_time_is_replaced_and_loaded_alone(lake, frame_of, request):
    options: dict[str, Any] = {}
    if "spark" in request.node.name:
        options = {"spark": SparkSessionResource()}
    events, _, _ = customers(lake, frame_of, 1)
    lake.materialize(events, range_of=(KEYS[0], KEYS[-1]), **options)
    assert lake.column("p") == sorted(KEYS)
    # A run takes a second: the keys that mean most to SQL and to paths.
    chosen = [
        *("' OR 1 = 1 --", "\\'", "a%2Fb", "..", "__HIVE_DEFAULT_PARTITION__"),
        *("a|b", "e\u0301", " lead and trail ", "s3://bucket/x"),
    ]
    if options:
        # Names of directories do not depend on the engine, texts in SQL do.
        chosen = ["' OR 1 = 1 --", "\\'", "__HIVE_DEFAULT_PARTITION__", " lead and trail "]
    for generation, key in enumerate(chosen, 2):
        events, reader, loaded = customers(lake, frame_of, generation)
        before = {row["p"]: row["g"] for row in lake.rows()}
        lake.materialize(events, reader, partition=key, **options)
        assert loaded == [{"p": key, "g": generation}]
        assert {row["p"]: row["g"] for row in lake.rows()} == {**before, key: generation}
        assert len(lake.rows()) == len(KEYS)


def test_a_run_of_a_range_replaces_exactly_its_keys(lake, frame_of):
    events, _, _ = customers(lake, frame_of, 1)
    lake.materialize(events, range_of=(KEYS[0], KEYS[-1]))
    events, reader, loaded = customers(lake, frame_of, 2)
    lake.materialize(events, reader, range_of=(KEYS[3], KEYS[20]))
    expected = {key: 2 if 3 <= index <= 20 else 1 for index, key in enumerate(KEYS)}
    assert {row["p"]: row["g"] for row in lake.rows()} == expected
    assert sorted(row["p"] for row in loaded) == sorted(KEYS[3:21])


def test_an_empty_key_writes_nothing(lake, frame_of):
    definition = dg.StaticPartitionsDefinition(["", "a"])

    @dg.asset(partitions_def=definition, metadata={"partition_expr": "p"})
    def events(context) -> Any:
        return frame_of([{"p": context.partition_key, "g": 1}])

    lake.materialize(events, partition="a")
    # Dagster takes an empty key for none.
    assert "partition" in str(lake.fail(events, partition=""))
    assert lake.rows() == [{"p": "a", "g": 1}]


@pytest.mark.parametrize("partitioned", [True, False])
def test_values_that_no_key_can_be_are_selected_alone(tmp_path, frame_of, partitioned, request):
    values = [*KEYS, *HARDER]
    # A write on Spark takes a second.
    chosen = HARDER[::2] if "spark" in request.node.name else HARDER
    table = DeltaTable(tmp_path / "t", must_exist=False)
    table.append(
        frame_of([{"p": value, "g": 1} for value in values]),
        partition_by=["p"] if partitioned else None,
    )
    schema = StructType(
        (StructField("p", PrimitiveType("string")), StructField("g", PrimitiveType("long")))
    )
    for value in chosen:
        selection = PartitionSelection((value,), ((DimensionSlice("p", (value,)),),))
        where = partition_slice(lambda _, found=selection: found, (), asset="a").sql(schema)
        table.overwrite(frame_of([{"p": value, "g": 2}]), where=where)
        found = table.snapshot().scan(where=where).to_arrow().to_pylist()
        assert found == [{"p": value, "g": 2}]
    rows = table.snapshot().scan().to_arrow().to_pylist()
    assert {row["p"]: row["g"] for row in rows} == {v: 2 if v in chosen else 1 for v in values}
    assert len(rows) == len(values)


@pytest.mark.spark
def test_spark_reads_each_value_back_as_it_is(tmp_path, spark):
    table = DeltaTable(tmp_path / "t", must_exist=False)
    values = [*KEYS, *HARDER]
    table.append(pa.table({"p": values, "g": list(range(len(values)))}), partition_by=["p"])
    rows = table.snapshot().scan().to_spark(spark).collect()
    assert {row["p"]: row["g"] for row in rows} == {v: g for g, v in enumerate(values)}


def test_the_dimensions_of_a_multi_partition_are_told_apart(lake, frame_of):
    grid = dg.MultiPartitionsDefinition(
        {
            "a": dg.StaticPartitionsDefinition(["it's", "x' OR 'a", "%27", ".."]),
            "b": dg.StaticPartitionsDefinition(["\\", "`", "p/q", "it's"]),
        }
    )
    expr = {"a": "c", "b": "d"}

    def asset(generation: int) -> Any:
        @dg.asset(partitions_def=grid, metadata={"partition_expr": expr})
        def events(context) -> Any:
            keys = [dg.MultiPartitionKey(key.keys_by_dimension) for key in context.partition_keys]
            rows = [key.keys_by_dimension for key in keys]
            return frame_of([{"c": row["a"], "d": row["b"], "g": generation} for row in rows])

        return events

    lake.materialize(asset(1), range_of=("it's|\\", "..|it's"))
    assert len(lake.rows()) == 16
    lake.materialize(asset(2), partition="x' OR 'a|p/q")
    assert [row for row in lake.rows() if row["g"] == 2] == [{"c": "x' OR 'a", "d": "p/q", "g": 2}]
    assert len(lake.rows()) == 16


@pytest.mark.parametrize("zone", ["Europe/Berlin", "Asia/Kathmandu", "America/St_Johns"])
@pytest.mark.examples(2)
def test_a_day_of_another_time_zone_is_replaced_alone(lake, frame_of, zone):
    # The clocks of Berlin and St. John's change within these days.
    days = dg.DailyPartitionsDefinition("2024-03-09", end_date="2024-04-02", timezone=zone)

    def asset(generation: int) -> Any:
        @dg.asset(partitions_def=days, metadata={"partition_expr": "at"})
        def events(context) -> Any:
            starts = [datetime.fromisoformat(key) for key in context.partition_keys]
            at = [
                start.replace(hour=hour, tzinfo=ZoneInfo(zone))
                for start in starts
                for hour in (0, 23)
            ]
            return frame_of([{"at": each, "g": generation} for each in at])

        return events

    lake.materialize(asset(1), range_of=("2024-03-09", "2024-04-01"))
    for day in ("2024-03-10", "2024-03-31"):
        lake.materialize(asset(2), partition=day)
    replaced = {
        row["at"].astimezone(ZoneInfo(zone)).date().isoformat()
        for row in lake.rows()
        if row["g"] == 2
    }
    assert replaced == {"2024-03-10", "2024-03-31"}
    assert len(lake.rows()) == 48
