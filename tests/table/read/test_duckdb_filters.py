"""Filters of DuckDB as Spark SQL: it selects every row that DuckDB wants, and few more."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from dagster_delta.protocol.schema import StructType
from dagster_delta.protocol.values.arrow_schema import from_arrow_schema
from dagster_delta.sql.conditions import to_sql
from dagster_delta.sql.expressions import parse_expression
from dagster_delta.table.read.batch_dataset import BatchDataset, filter_to_condition

COUNT = 12
NUMBERS = [None, *range(-1, COUNT - 2)]
DAY = dt.date(2023, 12, 30)
ROWS = pa.table(
    {
        "id": pa.array(NUMBERS, pa.int64()),
        "small": pa.array(NUMBERS, pa.int8()),
        "text": pa.array([None, "", "a", "b", "it's", "\\", "z", "ä", "a ", "A", "x", "y"]),
        "real": pa.array([None, float("nan"), -0.0, 0.0, 1.5, -1.5, 2, 3, 4, 5, 6, float("inf")]),
        "flag": pa.array([None, *[True, False] * 6][:COUNT]),
        "day": pa.array([DAY + dt.timedelta(i) for i in range(COUNT)]),
        "moment": pa.array([i * 3_600_000_000 for i in range(COUNT)], pa.timestamp("us", tz="UTC")),
        "wall": pa.array([i * -1_500_000 for i in range(COUNT)], pa.timestamp("us")),
        "price": pa.array([Decimal(i) / 4 for i in range(COUNT)], pa.decimal128(12, 2)),
        "deep": pa.array([{"inner": {"n": n}} for n in NUMBERS]),
        "odd `name`": pa.array(NUMBERS, pa.int32()),
    }
)


FIELDS = from_arrow_schema(ROWS.schema)


def converted(expression: Any, exact: StructType = FIELDS) -> str | None:
    """The condition that a filter becomes, as Spark SQL."""
    found = filter_to_condition(expression, ROWS.schema, exact)
    return None if found is None else to_sql(found)


def pushed(condition: str, exact: StructType = FIELDS) -> tuple[Any, str | None]:
    """The filter that DuckDB hands on, and what becomes of it."""
    seen: list[Any] = []

    class Spy(BatchDataset):
        def scanner(self, columns: Any = None, filter: Any = None) -> Any:  # noqa: A002
            seen.append(filter)
            return super().scanner(columns, filter)

    dataset = Spy(ROWS.schema, lambda columns, _: ROWS.select(columns).to_reader(), exact)
    with duckdb.connect() as connection:
        relation = connection.from_arrow(dataset)
        found = relation.filter(condition).aggregate("count(*)").fetchall()
        assert (
            found == connection.from_arrow(ROWS).filter(condition).aggregate("count(*)").fetchall()
        )
    (asked,) = seen
    return asked, None if asked is None else converted(asked, exact)


@pytest.mark.parametrize(
    ("condition", "sql"),
    [
        ("id = 3", "`id` = 3"),
        ("id <> -1", "`id` <> -1"),
        ("small >= -1", "`small` >= -1"),
        ("id IN (1, 2, 7)", "`id` IN (1, 2, 7)"),
        ("id BETWEEN 2 AND 4", "`id` >= 2 AND `id` <= 4"),
        ("id IS NULL", "`id` IS NULL"),
        ("id IS NOT NULL", "`id` IS NOT NULL"),
        ("NOT (id > 3)", "`id` <= 3"),
        ("text = 'it''s'", r"`text` = 'it\'s'"),
        ("text > '\\'", r"`text` > '\\'"),
        ("real < 2", "`real` < 2.0D"),
        ("real = 0", "`real` = 0.0D"),
        ("flag = false", "`flag` = false"),
        ("day > DATE '2024-01-01'", "`day` > DATE '2024-01-01'"),
        (
            "moment <= TIMESTAMPTZ '1970-01-01 03:00:00+00'",
            "`moment` <= TIMESTAMP '1970-01-01 03:00:00Z'",
        ),
        (
            "wall < TIMESTAMP '1969-12-31 23:59:57.5'",
            "`wall` < TIMESTAMP_NTZ '1969-12-31 23:59:57.500000'",
        ),
        ("price > 1.25", "`price` > 1.25BD"),
        ("deep.inner.n = 3", "`deep`.`inner`.`n` = 3"),
        ('"odd `name`" = 3', "`odd ``name``` = 3"),
        ("id > 0 AND text = 'b' AND day < DATE '2024-01-09'", None),
        ("id = 1 OR text IS NULL", "(`id` = 1) OR (`text` IS NULL)"),
    ],
)
def test_a_filter_of_duckdb_becomes_spark_sql(condition: str, sql: str | None) -> None:
    asked, found = pushed(condition)
    assert found is not None
    if sql is not None:
        assert found == sql
    expression = parse_expression(found, from_arrow_schema(ROWS.schema))
    wanted = ROWS.filter(asked)["day"].to_pylist()
    assert wanted
    assert set(wanted) <= set(ROWS.filter(expression.evaluate_filter(ROWS))["day"].to_pylist())


def test_what_has_no_counterpart_is_left_out_of_a_conjunction() -> None:
    assert pushed("id > 3 AND text LIKE '%a'")[1] == "`id` > 3"
    both = (pc.field("id") > 3) & (pc.field("real") < float("inf"))
    assert converted(both) == "`id` > 3"


@pytest.mark.parametrize(
    "expression",
    [
        (pc.field("id") > 3) | (pc.field("real") < float("inf")),
        ~(pc.field("real") > 1),
        pc.field("real") < float("nan"),
        pc.field("id") + 1 > 3,
        pc.field("id") > pc.field("small"),
        pc.field("flag"),
        pc.field("wall") > pa.scalar(2**62, pa.timestamp("us")),
        pc.field("text") == pc.scalar(None),
    ],
)
def test_a_filter_without_counterpart_is_none(expression: Any) -> None:
    assert converted(expression) is None


def test_columns_that_compare_otherwise_are_left_out() -> None:
    exact = StructType((FIELDS.field("id"),))
    assert pushed("text = 'a' AND id >= 1", exact)[1] == "`id` >= 1"
    assert pushed("deep.inner.n = 1", exact)[1] is None
