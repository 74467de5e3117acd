"""The embedded engine refuses expressions that make texts of gigabytes, and names the limit."""

from __future__ import annotations

import duckdb
import pyarrow as pa
import pytest

from dagster_delta.engines.expressions import duckdb_sql
from dagster_delta.engines.expressions.evaluation import evaluate as evaluate_expression
from dagster_delta.engines.expressions.memory_bounds import MAX_ROW_BYTES, longest_value
from dagster_delta.errors import UnsupportedExpression
from dagster_delta.protocol.schema import ArrayType, PrimitiveType, StructField, StructType
from dagster_delta.sql.expressions import parse_expression

STRING = PrimitiveType("string")
SCHEMA = StructType((StructField("s", STRING), StructField("tags", ArrayType(STRING, True))))


def evaluate(sql: str, *texts: str | None) -> list[object]:
    rows = pa.table({"s": texts, "tags": [[text] for text in texts]}, schema=ROWS)
    found: list[object] = evaluate_expression(parse_expression(sql, SCHEMA), rows).to_pylist()
    return found


def evaluate_alone(sql: str, *texts: str | None) -> list[object]:
    evaluator = duckdb_sql.DuckDbEvaluator(parse_expression(sql, SCHEMA).typed)
    column = pa.chunked_array([pa.array(texts, pa.string())])
    found: list[object] = evaluator.evaluate({("s",): column}, len(texts)).to_pylist()
    return found


ROWS = pa.schema({"s": pa.string(), "tags": pa.list_(pa.string())})


@pytest.mark.parametrize(
    ("sql", "name"),
    [
        ("length(lpad(s, 2147483647, 'x')) > 0", "lpad"),
        ("length(rpad(s, 2147483647)) > 0", "rpad"),
        ("length(repeat('x', 2147483647)) > 0", "repeat"),
        ("length(repeat(repeat(repeat('x', 10000), 10000), 10000)) > 0", "repeat"),
        ("length(replace(repeat('x', 100000), 'x', repeat('y', 100000))) > 0", "replace"),
        ("length(concat(repeat('x', 200000000), repeat('x', 200000000))) > 0", "[|][|]"),
    ],
)
def test_constants_that_make_huge_texts_are_refused_for_a_table_without_rows(
    sql: str, name: str
) -> None:
    with pytest.raises(UnsupportedExpression, match=f"^{name} makes.*{MAX_ROW_BYTES} bytes"):
        evaluate(sql)


@pytest.mark.parametrize(
    "sql",
    [
        "length(repeat(s, 300000)) > 0",
        "length(repeat(tags[0], 300000)) > 0",
        "length(replace(s, 'x', repeat('y', 300000))) > 0",
        f"length(regexp_replace(s, 'x', '{'y' * 300_000}')) > 0",
        "length(concat_ws(repeat(',', 100000), s, s, repeat(s, 299000))) > 0",
    ],
)
def test_long_values_that_become_huge_texts_are_refused(sql: str) -> None:
    assert evaluate(sql, "x" * 10) == [True]
    with pytest.raises(UnsupportedExpression, match=f"embedded engine is {MAX_ROW_BYTES}"):
        evaluate(sql, "x", "x" * 1000)


def test_rows_whose_texts_grow_are_computed_a_few_at_a_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(duckdb_sql, "MAX_ROW_BYTES", 10_000)
    texts = [*map(str, range(1000)), None, "é"]
    expected = [None if text is None else text * 30 for text in texts]
    assert evaluate_alone("repeat(s, 30)", *texts) == expected
    assert evaluate_alone("length(lpad(s, 30, 'é')) = 30", *texts) == [
        None if text is None else True for text in texts
    ]


def test_a_result_that_grows_beyond_the_limit_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(duckdb_sql, "MAX_ROW_BYTES", 10_000)
    monkeypatch.setattr(duckdb_sql, "_MAX_RESULT_BYTES", 100_000)
    with pytest.raises(UnsupportedExpression, match=r"1000 rows .* more than 100000 bytes"):
        evaluate_alone("repeat(s, 1000)", *["x"] * 1000)


def test_an_engine_without_memory_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise duckdb.OutOfMemoryException("Out of Memory Error: failed to allocate")

    monkeypatch.setattr(duckdb_sql.DuckDbEvaluator, "_result", fail)
    with pytest.raises(UnsupportedExpression, match="no memory for the expression"):
        evaluate("upper(s)", "a")


@pytest.mark.parametrize(
    ("values", "least"),
    [
        (pa.array(["a", None, "éé"]), 4),
        (pa.array([], pa.string()), 0),
        (pa.array([["a"], ["bb", "cc"], None]), 4),
        (pa.array([{"x": "abc"}, None]), 3),
        (pa.array([[("k", "vv")], []], pa.map_(pa.string(), pa.string())), 3),
        (pa.array([["long" * 100], ["a", "b"]]).slice(1), 2),
    ],
)
def test_the_longest_value_is_not_underestimated(values: pa.Array, least: int) -> None:
    assert longest_value(values) >= least
