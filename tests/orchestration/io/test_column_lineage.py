"""Lineage of columns: told by queries and by names, and by nothing else."""

from __future__ import annotations

from typing import Any

import dagster as dg
import pyarrow as pa
import pytest

from dagster_delta import delta_change_feed_asset, sql_column_lineage
from dagster_delta.errors import UnsupportedExpression
from dagster_delta.orchestration.io.column_lineage import (
    UpstreamColumns,
    sql_columns_read,
)

ORDERS = UpstreamColumns(dg.AssetKey(["raw", "orders"]), ["Id", "price", "currency", "cust.name"])
RATES = UpstreamColumns(dg.AssetKey("rates"), ["currency", "rate"])
TABLES = {"orders": ORDERS, "Rates": RATES}


def told(lineage: dg.TableColumnLineage) -> dict[str, list[str]]:
    return {
        column: [f"{each.asset_key.to_user_string()}.{each.column_name}" for each in deps]
        for column, deps in lineage.deps_by_column.items()
    }


@pytest.mark.parametrize(
    ("sql", "expected"),
    [
        (
            "SELECT id, price * rate AS Euros, count(*) AS n, 1 AS one "
            "FROM orders JOIN rates USING (currency) GROUP BY ALL",
            {"id": ["raw/orders.Id"], "Euros": ["rates.rate", "raw/orders.price"]},
        ),
        (
            "SELECT * FROM rates",
            {"currency": ["rates.currency"], "rate": ["rates.rate"]},
        ),
        (
            "WITH best AS (SELECT currency AS c, max(price) AS p FROM orders GROUP BY currency) "
            "SELECT best.p FROM best JOIN rates ON rates.currency = best.c WHERE rate > 1",
            {"p": ["raw/orders.price"]},
        ),
        (
            "SELECT currency FROM orders UNION ALL SELECT currency FROM rates",
            {"currency": ["rates.currency", "raw/orders.currency"]},
        ),
        (
            "SELECT `cust.name`, explode(array(price)) AS each FROM orders",
            {"cust.name": ["raw/orders.cust.name"], "each": ["raw/orders.price"]},
        ),
        (
            "SELECT (SELECT max(rate) FROM rates) AS top FROM orders",
            {"top": ["rates.rate"]},
        ),
    ],
)
def test_a_query_tells_where_the_values_of_its_columns_come_from(sql, expected) -> None:
    assert told(sql_column_lineage(sql, TABLES)) == expected


def test_columns_go_by_the_names_of_the_result() -> None:
    lineage = sql_column_lineage("SELECT price + 1 FROM orders", TABLES, ["(price + 1)"])
    assert told(lineage) == {"(price + 1)": ["raw/orders.price"]}


@pytest.mark.parametrize(
    ("sql", "columns"),
    [
        ("SELECT nothing FROM orders", None),
        ("SELECT a FROM elsewhere", None),
        ("SELEC price FROM orders", None),
        ("DROP TABLE orders", None),
        ("SELECT price FROM orders", ["price", "more"]),
        ("SELECT o.price, p.price FROM orders o, orders p", None),
    ],
)
def test_what_a_query_does_not_tell_is_not_guessed(sql, columns) -> None:
    with pytest.raises(UnsupportedExpression):
        sql_column_lineage(sql, TABLES, columns)


@pytest.mark.parametrize(
    ("sql", "expected"),
    [
        ("SELECT count(*) AS n FROM orders WHERE price > 1", {"raw/orders": {"price"}}),
        (
            "SELECT rate FROM orders JOIN rates USING (currency) ORDER BY id",
            {"raw/orders": {"Id", "currency"}, "rates": {"currency", "rate"}},
        ),
        (
            "SELECT (SELECT max(rate) FROM rates r WHERE r.currency = o.currency) m FROM orders o",
            {"raw/orders": {"currency"}, "rates": {"currency", "rate"}},
        ),
        (
            "WITH r AS (SELECT * FROM rates) SELECT r.rate FROM r",
            {"rates": {"currency", "rate"}},
        ),
    ],
)
def test_columns_that_only_filter_join_or_sort_are_read(sql, expected) -> None:
    read = sql_columns_read(sql, TABLES, dialect="duckdb")
    assert {key.to_user_string(): columns for key, columns in read.items()} == expected


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT COLUMNS('r.*') FROM rates",
        "SELECT rates FROM rates",
        "SELECT count(rates.*) FROM rates",
        "SELECT * EXCLUDE (rate) FROM rates",
        "SELECT * FROM (PIVOT rates ON currency USING max(rate))",
    ],
)
def test_columns_that_a_query_reads_without_their_names_are_not_guessed(sql) -> None:
    with pytest.raises(UnsupportedExpression):
        sql_columns_read(sql, TABLES, dialect="duckdb")


def late(lineage: bool = True, **options):
    @delta_change_feed_asset("events", keys="id", lineage=lineage, **options)
    def late_events(changes: pa.Table) -> pa.Table:
        return changes.append_column("minutes", changes["delay"])

    return late_events


def test_an_incremental_asset_keeps_the_columns_of_its_upstream(lake, events) -> None:
    source = events(
        pa.table({"id": [1], "delay": [5]}),
        metadata={"table_properties": {"delta.enableChangeDataFeed": "true"}},
    )
    lake.materialize(source)
    shown = lake.metadata(lake.materialize(late(), source), "late_events")
    assert told(shown["dagster/column_lineage"]) == {
        "id": ["events.id"],
        "delay": ["events.delay"],
    }


def test_an_incremental_asset_whose_columns_mean_something_else_shows_none(lake, events) -> None:
    source = events(pa.table({"id": [1], "delay": [5]}))
    lake.materialize(source)
    shown = lake.metadata(lake.materialize(late(lineage=False), source), "late_events")
    assert "dagster/column_lineage" not in shown


def test_an_incremental_asset_may_tell_better(lake, events) -> None:
    own = dg.TableColumnLineage({"id": [dg.TableColumnDep(dg.AssetKey("events"), "delay")]})

    @delta_change_feed_asset("events", keys="id")
    def late_events(changes: pa.Table) -> Any:
        return dg.Output(changes, metadata={"dagster/column_lineage": own})

    source = events(pa.table({"id": [1], "delay": [5]}))
    lake.materialize(source)
    shown = lake.metadata(lake.materialize(late_events, source), "late_events")
    assert told(shown["dagster/column_lineage"]) == {"id": ["events.delay"]}
