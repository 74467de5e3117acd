"""Expressions over batches: what they give, and what the embedded engine keeps from them."""

from __future__ import annotations

import datetime as dt
import math
import subprocess
import sys
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dagster_delta import variants_from_json, variants_to_json
from dagster_delta.errors import InvalidArgument, UnsupportedExpression
from dagster_delta.protocol.schema import PrimitiveType, StructField, StructType
from dagster_delta.protocol.values.arrow_schema import from_arrow_schema
from dagster_delta.sql.expressions import parse_expression

STRING = PrimitiveType("string")

SCHEMA = StructType(
    (
        StructField("id", PrimitiveType("long")),
        StructField("Name", STRING),
        StructField("nothing", PrimitiveType("void")),
    )
)


def test_columns_of_any_type_pass_through_a_filter_untouched() -> None:
    batch = pa.record_batch(
        {
            "id": [1, 2, 3],
            "odd": pa.array([[{"a": 1}], None, []], pa.list_(pa.struct({"a": pa.int8()}))),
            "dictionary": pa.array(["x", "y", "x"]).dictionary_encode(),
            "nothing": pa.nulls(3),
        }
    )
    for sql in ("id > 1", "id * 1 > 1"):
        kept = batch.filter(parse_expression(sql, SCHEMA).evaluate_filter(batch))
        assert kept.equals(batch.slice(1))


def test_dictionaries_and_large_types_are_read_as_what_they_hold() -> None:
    table = pa.table({"Name": pa.array(["a", "b", None], pa.large_string())})
    encoded = pa.table({"Name": pa.array(["a", "b", None]).dictionary_encode()})
    for sql in ("Name = 'b'", "Name LIKE 'b%'", "Name IN ('b')", "concat(Name, '') = 'b'"):
        for each in (table, encoded):
            found = parse_expression(sql, SCHEMA).evaluate(each).to_pylist()
            assert found == [False, True, None]


def test_expressions_without_columns_give_one_value_per_row() -> None:
    table = pa.table({"id": [1, 2, 3]})
    assert parse_expression("1 + 1", SCHEMA).evaluate(table).to_pylist() == [2, 2, 2]
    assert parse_expression("true", SCHEMA).evaluate(table).to_pylist() == [True] * 3
    assert parse_expression("NULL", SCHEMA).evaluate_filter(table).to_pylist() == [None] * 3


def test_empty_tables_give_empty_results() -> None:
    table = pa.table({"id": pa.array([], pa.int64())})
    for sql in ("id = 1", "id + 1 = 2"):
        result = parse_expression(sql, SCHEMA).evaluate(table)
        assert result.type == pa.bool_()
        assert len(result) == 0


def test_void_columns_are_null() -> None:
    table = pa.table({"nothing": pa.nulls(2), "id": [1, 2]})
    assert parse_expression("nothing IS NULL", SCHEMA).evaluate(table).to_pylist() == [True, True]
    assert parse_expression("nothing = id", SCHEMA).evaluate(table).to_pylist() == [None, None]


def test_a_failing_value_is_an_error_that_shows_the_reason() -> None:
    with pytest.raises(InvalidArgument, match="division by zero"):
        parse_expression("1 / id > 0", SCHEMA).evaluate(pa.table({"id": [1, 0]}))


def test_hostile_names_and_texts_stay_data() -> None:
    name = "x\"; DROP TABLE batch; --'"
    schema = StructType((StructField(name, STRING),))
    quoted = "`" + name + "`"
    table = pa.table({name: ["a'); SELECT * FROM read_csv('/etc/passwd'); --", "b"]})
    sql = f"concat({quoted}, '') = 'a\\'); SELECT * FROM read_csv(\\'/etc/passwd\\'); --'"
    assert parse_expression(sql, schema).evaluate(table).to_pylist() == [True, False]


def test_a_constant_of_more_digits_than_a_context_of_python_has_fits_its_decimal() -> None:
    digits = "9" * 30
    expression = parse_expression(f"CAST({digits}.0BD AS DECIMAL(30, 0))", SCHEMA)
    assert expression.evaluate(pa.table({"id": [1]})).to_pylist() == [Decimal(digits)]


def test_the_embedded_engine_has_no_way_out() -> None:
    import duckdb

    from dagster_delta.sql.duckdb_sql import _borrow_connection

    with (
        _borrow_connection(with_python=False) as plain,
        _borrow_connection(with_python=True) as python,
    ):
        connections = (plain, python)
    for sql in ("SELECT * FROM read_text('/etc/hostname')", "COPY (SELECT 1) TO '/tmp/out.csv'", "INSTALL httpfs", "SET enable_external_access = true", "ATTACH '/tmp/x.db'"):  # fmt: skip
        for connection in connections:
            with pytest.raises(duckdb.Error):
                connection.execute(sql)


def test_simple_filters_and_values_need_no_sql_engine() -> None:
    code = (
        "import sys, pyarrow as pa\n"
        "from dagster_delta.sql.expressions import parse_expression\n"
        "from dagster_delta.protocol.schema import *\n"
        "schema = StructType((StructField('a', PrimitiveType('long')), StructField('s', PrimitiveType('string'))))\n"
        "e = parse_expression(\"a > 1 AND s LIKE 'x%' OR a IN (1, 2) AND s IS NOT NULL\", schema)\n"
        "assert e.evaluate_filter(pa.record_batch({'a': [1, 2], 's': ['y', None]})).to_pylist() == [True, None]\n"
        "rows = pa.record_batch({'a': [1, None], 's': ['y', None]})\n"
        "assert parse_expression(\"'x'\", schema).evaluate(rows).to_pylist() == ['x', 'x']\n"
        "assert not {'duckdb', 'sqlglot', 'polars'} & set(sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


# Both ways of evaluation agree

_VALUES: dict[str, st.SearchStrategy[Any]] = {
    "id": st.integers(-2, 2),
    "Name": st.sampled_from(["", "a", "ab", "b%", "é"]),
    "day": st.dates(dt.date(2023, 12, 30), dt.date(2024, 1, 3)),
    "flag": st.booleans(),
    "x": st.sampled_from([-1.0, -0.0, 0.0, 1.5, math.nan, math.inf]),
    "at": st.datetimes(dt.datetime(2023, 12, 31), dt.datetime(2024, 1, 2)).map(
        lambda each: each.replace(tzinfo=dt.UTC)
    ),
}
_COLUMN_TYPES = {
    "id": pa.int64(),
    "Name": pa.string(),
    "day": pa.date32(),
    "flag": pa.bool_(),
    "x": pa.float64(),
    "at": pa.timestamp("us", "UTC"),
}
_LEAVES = st.sampled_from(
    [
        "id = 1", "id < 0", "id >= 1L", "id <=> NULL", "id <=> 2", "id IN (1, 2)", "id NOT IN (1, NULL)", "id IS NULL", "id > 0.5", "0 = id",
        "Name = 'a'", "Name < 'b'", "Name LIKE 'a%'", "Name LIKE '%b'", "Name IN ('a', NULL)", "endswith(Name, '%')",
        "day = '2024-01-01'", "day > DATE '2023-12-31'", "flag", "flag IS TRUE", "flag = false", "x > 1", "x >= 1.5", "x < 2", "x = 0", "x <> 1.5D", "x <= 0D",
        "at >= '2024-01-01'", "at < TIMESTAMP '2024-01-01 12:00:00'",
    ]
)  # fmt: skip
_FILTERS = st.recursive(
    _LEAVES,
    lambda inner: st.one_of(
        inner.map(lambda each: f"NOT ({each})"),
        st.tuples(inner, inner).map(lambda pair: f"({pair[0]}) AND ({pair[1]})"),
        st.tuples(inner, inner).map(lambda pair: f"({pair[0]}) OR ({pair[1]})"),
    ),
    max_leaves=4,
)


@given(st.data(), _FILTERS)
def test_kernels_and_sql_engine_agree(data: st.DataObject, sql: str) -> None:
    from dagster_delta.sql.duckdb_sql import DuckDbEvaluator
    from dagster_delta.sql.evaluator import compile_value

    count = data.draw(st.integers(1, 5))
    table = pa.table(
        {
            name: pa.array(
                data.draw(st.lists(st.none() | values, min_size=count, max_size=count)),
                _COLUMN_TYPES[name],
            )
            for name, values in _VALUES.items()
        }
    )
    expression = parse_expression(sql, from_arrow_schema(table.schema))
    assert compile_value(expression.typed) is not None
    columns: dict[tuple[str, ...], Any] = {
        (name,): table.column(name) for name in table.column_names
    }
    by_sql = DuckDbEvaluator(expression.typed).evaluate(columns, count)
    assert repr(expression.evaluate(table).to_pylist()) == repr(by_sql.to_pylist())


@pytest.mark.skipif(sys.platform == "win32", reason="processes are not forked there")
def test_a_forked_process_has_engines_of_its_own() -> None:
    script = """
import os
import pyarrow as pa
from dagster_delta.sql.expressions import parse_expression
from dagster_delta.protocol.values.arrow_schema import from_arrow_schema

table = pa.table({"j": ["7"]})

def check():
    for sql in ("concat(j, j) <> j", "CAST(j AS INT) = 7"):
        expression = parse_expression(sql, from_arrow_schema(table.schema))
        assert expression.evaluate(table).to_pylist() == [True]

check()
child = os.fork()
if child == 0:
    check()
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
check()
"""
    nowhere = subprocess.DEVNULL
    done = subprocess.run(
        [sys.executable, "-c", script], stdout=nowhere, stderr=nowhere, timeout=60
    )
    assert done.returncode == 0


@pytest.mark.parametrize("arrow_type", [pa.date32(), pa.timestamp("us", "UTC"), pa.timestamp("us")])
def test_the_ends_of_the_range_of_dates_and_times_are_not_read_as_infinite(
    arrow_type: pa.DataType,
) -> None:
    # DuckDB has a function for days of infinite ones: null.
    greatest = 2**31 - 1 if arrow_type == pa.date32() else 2**63 - 1
    numbers = pa.int32() if arrow_type == pa.date32() else pa.int64()
    for number in (greatest, -greatest):
        table = pa.table({"x": pa.array([number, 0, None], numbers).cast(arrow_type)})
        schema = from_arrow_schema(table.schema)

        def computed(sql: str) -> list[Any]:
            return parse_expression(sql, schema).evaluate(table).to_pylist()  # noqa: B023

        assert computed("coalesce(x, x) > DATE '1980-01-01'") == [number > 0, False, None]
        for sql in ("year(x)", "trunc(x, 'month')", "month(coalesce(x, x)) > 5", "hour(x)"):
            with pytest.raises(InvalidArgument, match="at the end of their range"):
                computed(sql)
        other = "timestamp" if arrow_type == pa.date32() else "date"
        with pytest.raises(InvalidArgument, match="at the end of their range"):
            computed(f"cast(x as {other})")


def test_variants_are_passed_on_and_their_functions_are_refused_by_name() -> None:
    table = pa.table({"id": [1, 2, 3], "v": variants_from_json(["1", None, '{"a": 2}'])})
    schema = from_arrow_schema(table.schema)
    for sql, wanted in (
        ("v IS NULL", [False, True, False]),
        ("coalesce(v, NULL)", ["1", None, '{"a":2}']),
        ("CASE WHEN id > 2 THEN v END", [None, None, '{"a":2}']),
    ):
        found = parse_expression(sql, schema).evaluate(table)
        assert (variants_to_json(found) if sql[0] != "v" else found.to_pylist()) == wanted
    for name in ("parse_json('1')", "variant_get(v, '$.a', 'int')", "is_variant_null(v)"):
        with pytest.raises(UnsupportedExpression, match=f"function {name.partition('(')[0]}"):
            parse_expression(name, schema).check_embeddable()


@pytest.mark.parametrize(
    ("seconds", "precision", "scale", "micros"),
    [
        ("999999999999.999999", 18, 6, 999_999_999_999_999_999),
        ("-1.500000999999", 38, 18, -1_500_000),
        ("0.1", 38, 38, 100_000),
        ("1600000000.5", 38, 28, 1_600_000_000_500_000),
    ],
)
def test_decimals_of_every_scale_are_seconds_of_a_timestamp(
    seconds: str, precision: int, scale: int, micros: int
) -> None:
    data = pa.table({"v": pa.array([Decimal(seconds)], pa.decimal128(precision, scale))})
    cast = parse_expression("CAST(v AS timestamp)", from_arrow_schema(data.schema))
    assert cast.evaluate(data).cast(pa.int64()).to_pylist() == [micros]


@pytest.mark.parametrize("narrower", ["INT", "SMALLINT", "TINYINT"])
def test_a_number_too_large_for_a_narrower_type_is_refused_in_a_comparison(narrower: str) -> None:
    table = pa.table({"id": [5, 2**32 + 5]})
    condition = parse_expression(f"CAST(id AS {narrower}) = 5", SCHEMA)
    assert condition.evaluate(table.slice(0, 1)).to_pylist() == [True]
    with pytest.raises(InvalidArgument, match="fails on a value"):
        condition.evaluate(table)
