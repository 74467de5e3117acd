"""Assets that are a query, on both engines."""

from __future__ import annotations

import re
from typing import Any

import dagster as dg
import pyarrow as pa
import pytest

from dagster_delta import DeltaTable, delta_sql_asset
from dagster_delta.errors import DataFileMissing, InvalidArgument
from tests.orchestration.conftest import Lake

FLIGHTS = pa.table({"carrier": ["UA", "UA", "AA"], "arr_delay": [10, 20, 3], "order": [1, 2, 3]})


@pytest.fixture
def flights(lake: Lake, events) -> dg.AssetsDefinition:
    source = events(FLIGHTS, name="flights")
    lake.materialize(source)
    return source


def told(lineage: dg.TableColumnLineage) -> dict[str, list[str]]:
    return {
        column: [f"{dep.asset_key.to_user_string()}.{dep.column_name}" for dep in deps]
        for column, deps in lineage.deps_by_column.items()
    }


def test_a_unit_test_runs_the_query_over_tables_of_its_own():
    asset = delta_sql_asset("worst", "SELECT max(arr_delay) AS m FROM {flights}", {"flights": "f"})
    assert asset(flights=FLIGHTS).value.read_all().to_pylist() == [{"m": 20}]
    assert asset(FLIGHTS.slice(2)).value.read_all().to_pylist() == [{"m": 3}]


@pytest.mark.parametrize("engine", ["arrow", pytest.param("spark", marks=pytest.mark.spark)])
def test_a_query_is_an_asset_that_shows_where_its_columns_come_from(
    lake: Lake, flights, engine, request
) -> None:
    if engine == "spark":
        request.getfixturevalue("spark")
    carriers = dg.AssetSpec("carriers")
    DeltaTable(str(lake.root / "public" / "carriers"), must_exist=False).append(
        pa.table({"carrier": ["UA"], "name": ["United"]})
    )
    asset = delta_sql_asset(
        "delays",
        "SELECT name, avg(arr_delay) AS delay, '{{}}' AS braces, sum(arr_delay) AS total "
        "FROM {flights} JOIN {carriers} USING (carrier) GROUP BY name",
        {"flights": flights, "carriers": carriers},
        engine=engine,
    )
    shown = lake.metadata(lake.materialize(asset, flights, carriers), "delays")
    assert lake.rows("delays") == [{"name": "United", "delay": 15.0, "braces": "{}", "total": 30}]
    assert str(lake.table("delays").snapshot().schema.field("total").data_type) == "long"
    assert told(shown["dagster/column_lineage"]) == {
        "name": ["carriers.name"],
        "delay": ["flights.arr_delay"],
        "total": ["flights.arr_delay"],
    }
    assert "FROM flights JOIN carriers" in shown["delta/query"]
    kind = "duckdb" if engine == "arrow" else "spark"
    assert asset.specs_by_key[dg.AssetKey("delays")].kinds == {"deltalake", kind, "sql"}


@pytest.mark.parametrize(
    ("sql", "upstream"),
    [
        ("SELECT 1", {}),
        ("SELECT * FROM {flight}", {"flights": "flights"}),
        ("SELECT * FROM {flights", {"flights": "flights"}),
        ("SELECT * FROM {a-b}", {"a-b": "flights"}),
        ("SELECT {flights.carrier} FROM {flights}", {"flights": "flights"}),
        ("SELECT {flights.lower} FROM {flights}", {"flights": "flights"}),
        ("SELECT * FROM {flights!r}", {"flights": "flights"}),
        ("SELECT * FROM {flights:>20}", {"flights": "flights"}),
        ("SELECT {'a': 1} AS s FROM {flights}", {"flights": "flights"}),
    ],
)
def test_a_query_that_does_not_fit_its_tables_is_refused_when_it_is_declared(sql, upstream) -> None:
    with pytest.raises(InvalidArgument):
        delta_sql_asset("delays", sql, upstream)


def test_an_engine_that_does_not_exist_is_refused() -> None:
    with pytest.raises(InvalidArgument, match="'duckdb'"):
        delta_sql_asset("delays", "SELECT * FROM {f}", {"f": "flights"}, engine="duckdb")  # type: ignore[arg-type]


def test_a_table_may_be_called_like_a_keyword_of_duckdb(lake: Lake, flights) -> None:
    sql = 'SELECT {order}.carrier, {order}."order" FROM {order} WHERE arr_delay > 5'
    lake.materialize(delta_sql_asset("late", sql, {"order": "flights"}), flights)
    assert lake.column("order", "late") == [1, 2]


@pytest.mark.parametrize("engine", ["arrow", pytest.param("spark", marks=pytest.mark.spark)])
def test_a_cte_with_the_name_of_a_table_does_not_replace_the_table(
    lake: Lake, flights, engine, request
) -> None:
    if engine == "spark":
        request.getfixturevalue("spark")
    sql = (
        "WITH flights AS (SELECT carrier, arr_delay + 1 AS late FROM {flights} WHERE carrier = 'AA'"
        "), delays AS (SELECT sum(arr_delay) AS delay FROM {flights}) "
        "SELECT flights.late, delays.delay FROM flights, delays"
    )
    shown = lake.metadata(
        lake.materialize(
            delta_sql_asset("late", sql, {"flights": flights}, engine=engine), flights
        ),
        "late",
    )
    assert lake.rows("late") == [{"late": 4, "delay": 33}]
    assert told(shown["dagster/column_lineage"]) == {
        "late": ["flights.arr_delay"],
        "delay": ["flights.arr_delay"],
    }


def test_a_query_may_name_its_tables_in_every_place_of_sql(lake: Lake, flights) -> None:
    sql = (
        "SELECT {flights}.*, flights.carrier AS a, f.carrier AS b FROM {flights} "
        'JOIN {flights} AS f ON {flights}."order" = f."order" '
        "WHERE EXISTS (SELECT 1 FROM flights AS g WHERE g.carrier = {flights}.carrier)"
    )
    shown = lake.metadata(
        lake.materialize(delta_sql_asset("late", sql, {"flights": flights}), flights), "late"
    )
    assert sorted(lake.column("order", "late")) == [1, 2, 3]
    lineage = told(shown["dagster/column_lineage"])
    assert lineage["arr_delay"] == ["flights.arr_delay"]
    assert lineage["a"] == lineage["b"] == ["flights.carrier"]


def test_a_query_reads_and_writes_the_partitions_of_the_run(lake: Lake, events) -> None:
    options: dict[str, Any] = {
        "partitions_def": dg.StaticPartitionsDefinition(["AA", "UA"]),
        "metadata": {"partition_expr": "carrier"},
    }
    flights = events(
        lambda context: FLIGHTS.filter(pa.compute.field("carrier") == context.partition_key),
        name="flights",
        **options,
    )
    late = delta_sql_asset("late", "SELECT * FROM {flights}", {"flights": flights}, **options)
    lake.materialize(flights, partition="AA")
    lake.materialize(flights, late, partition="UA")
    assert lake.column("arr_delay", "late") == [10, 20]


REFUSED = [
    ("SELECT date_add(current_date(), nosuch(1)) FROM {flights}", 'nosuch.*engine="spark"'),
    ("SELECT nothing FROM {flights}", 'nothing.*engine="spark"'),
    ("SELECT * FROM planes, {flights}", "planes"),
    ("SELECT * FROM {flights}; SELECT 1", "one SELECT"),
    ("DROP VIEW {flights}", "one SELECT"),
    ("COPY {flights} TO '/tmp/copied.csv'", "one SELECT"),
    ("SELECT * FROM read_csv('/etc/passwd'), {flights}", "upstream tables alone"),
    ("SELECT getenv('HOME') AS home FROM {flights}", "getenv"),
    ("SELECT CAST(carrier AS INT) AS c FROM {flights}", "failed.*Could not convert"),
]


def test_a_query_that_duckdb_refuses_says_why(lake: Lake, flights) -> None:
    for sql, problem in REFUSED:
        error = lake.fail(delta_sql_asset("late", sql, {"flights": flights}), flights)
        assert isinstance(error, InvalidArgument), sql
        assert str(error).startswith("the query of late "), sql
        assert re.search(problem, str(error), re.DOTALL), sql
    assert not (lake.root / "public" / "late").exists()


def test_a_table_that_cannot_be_read_is_named(lake: Lake, flights) -> None:
    for file in (lake.root / "public" / "flights").glob("*.parquet"):
        file.unlink()
    spec = dg.AssetSpec("flights")
    asset = delta_sql_asset("late", "SELECT * FROM {flights}", {"flights": spec})
    assert isinstance(lake.fail(asset, spec), DataFileMissing)


def test_a_query_has_no_more_memory_than_it_is_given(lake: Lake, events) -> None:
    source = events(pa.table({"id": range(2_000_000)}), name="numbers")
    sql = "SELECT list(id ORDER BY hash(id)) AS ids FROM {numbers}"
    asset = delta_sql_asset("late", sql, {"numbers": source}, memory_limit="20MB")
    assert "within memory_limit" in str(lake.fail(source, asset))


def test_a_memory_limit_that_is_no_size_is_no_definition(flights) -> None:
    with pytest.raises(InvalidArgument, match="a size such as '2GB', not 'lots'"):
        delta_sql_asset(
            "late", "SELECT * FROM {flights}", {"flights": flights}, memory_limit="lots"
        )


def test_a_query_without_result_is_an_empty_table(lake: Lake, flights) -> None:
    sql = "SELECT *, now() AS moment FROM {flights} WHERE arr_delay > 100"
    lake.materialize(delta_sql_asset("late", sql, {"flights": flights}), flights)
    assert lake.rows("late") == []
    assert str(lake.table("late").snapshot().schema.field("moment").data_type) == "timestamp"
