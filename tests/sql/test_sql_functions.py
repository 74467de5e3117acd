"""What the embedded engine refuses, and what it makes of the time of a statement."""

from __future__ import annotations

import datetime as dt

import pyarrow as pa
import pytest

from dagster_delta.errors import InvalidArgument, UnsupportedExpression
from dagster_delta.protocol.schema import PrimitiveType, StructField, StructType
from dagster_delta.sql.expressions import SqlExpression, parse_expression
from dagster_delta.sql.filters import at_moment
from dagster_delta.sql.typed import Literal, walk
from dagster_delta.storage.memory_store import MemoryStore
from dagster_delta.table.delta_table import DeltaTable

SCHEMA = StructType(
    (
        StructField("s", PrimitiveType("string")),
        StructField("t", PrimitiveType("timestamp")),
        StructField("day", PrimitiveType("date")),
        StructField("current_date", PrimitiveType("date")),
    )
)
NOON = dt.datetime(2024, 3, 31, 12, tzinfo=dt.UTC)


@pytest.mark.parametrize(
    "sql",
    [
        "regexp_replace(s, 'b', 'x')",
        *(
            f"s RLIKE r'{pattern}'"
            for pattern in (
                *(
                    "(?i)a",
                    "(?=a)",
                    "(?!a)",
                    "(?<=a)",
                    "(?<n>a)",
                    r"(a)\1",
                    "a*+",
                    "a{2}+",
                    "a{2}{3}",
                ),
                *(
                    "[a&&b]",
                    "[[:alpha:]]",
                    "[a[b]]",
                    "[]a]",
                    "[^]",
                    "[z-a]",
                    "[!-/]",
                    "[a-z",
                    "[a-\\d]",
                ),
                *(r"\p{L}", r"\bq", r"\Aa", r"a\Z", r"\x41", r"\u0041", r"\h", r"\Qa\E", r"\_"),
                *("a{", "a{,2}", "}", "]", "(a", "a)", "*", "+a", "a**", "^*", "|*", "(a{40}){40}"),
            )
        ),
        *("s RLIKE s", "day RLIKE 'a'", "s ILIKE 'É'", "s ILIKE s", "s ILIKE 'ab' ESCAPE 'a'"),
        *("greatest(s, 1)", "least(day)", "unix_timestamp(s)", "unix_timestamp(t, 'yyyy')"),
        *("add_months(day, 1L)", "add_months(s, 1)", "last_day(s)"),
        "repeat(s, 2)",
        "replace(s, 'b', 'xx')",
        "replace(s, 'b', s)",
        "t + INTERVAL 1 MONTH 2 DAYS",
        "day + INTERVAL 0 HOURS",
        "t + INTERVAL 1.5 SECONDS",
        "s + INTERVAL 1 DAY",
        "right(s, -1)",
    ],
)
def test_what_the_embedded_engine_does_not_compute_is_refused(sql: str) -> None:
    with pytest.raises(UnsupportedExpression, match="use the Spark engine"):
        parse_expression(sql, SCHEMA).check_embeddable()


@pytest.mark.parametrize(
    "sql",
    [
        *("day = 2024-01-02", "2024-01-02 <= day", "t < 2024-01-02", "day IN (2024-01-02)"),
        *("day BETWEEN 2024-01-01 AND 2024-01-31", "NOT day <=> 20240102"),
    ],
)
def test_a_date_without_quotes_is_refused_with_its_spelling(sql: str) -> None:
    with pytest.raises(UnsupportedExpression, match="write a date in quotes, as DATE '2024-01-02'"):
        parse_expression(sql, SCHEMA).check_embeddable()


@pytest.mark.parametrize(
    ("sql", "expected"),
    [
        ("t < now()", "t < TIMESTAMP '2024-03-31 12:00:00+00:00'"),
        ("t < current_timestamp", "t < TIMESTAMP '2024-03-31 12:00:00+00:00'"),
        (
            "day = current_date( ) -- today",
            "day = CAST(TIMESTAMP '2024-03-31 12:00:00+00:00' AS DATE) -- today",
        ),
        ("day = current_date", "day = current_date"),
        ("s = 'now()' AND x.now = `now`", "s = 'now()' AND x.now = `now`"),
    ],
)
def test_the_time_of_a_statement_stands_in_its_text(sql: str, expected: str) -> None:
    assert at_moment(sql, NOON, SCHEMA) == expected


def test_moments_that_are_moved_skip_files() -> None:
    sql = at_moment("day >= current_date() - INTERVAL 1 MONTH", NOON, SCHEMA)
    expression = parse_expression(sql, SCHEMA)
    assert constants(expression) == [dt.date(2024, 2, 29)]
    # It is the next day already.
    assert constants(expression.in_zone("Pacific/Kiritimati")) == [dt.date(2024, 3, 1)]


def constants(expression: SqlExpression) -> list[object]:
    return [node.value for node in walk(expression.typed) if isinstance(node, Literal)]


def test_statements_know_what_time_it_is() -> None:
    now = dt.datetime.now(dt.UTC)
    times = pa.array([now - dt.timedelta(days=each) for each in (1, 40)], pa.timestamp("us", "UTC"))
    rows = pa.table({"id": [1, 2], "t": times, "day": times.cast(pa.date32())})
    table = DeltaTable("memory://t", store=MemoryStore(), must_exist=False)
    table.append(rows, partition_by=["day"])
    old = "t < current_timestamp() - INTERVAL 30 DAYS"
    assert table.snapshot().scan(where=old).to_arrow()["id"].to_pylist() == [2]
    table.update({"t": "now()"}, where=old)
    assert table.snapshot().scan(where=old).to_arrow().num_rows == 0
    merge = table.merge(rows.select(["id"]), "t.id = s.id AND t.day < current_date() - 30")
    merge.when_matched_delete("t.t <= now()").execute()
    assert table.snapshot().scan().to_arrow()["id"].to_pylist() == [1]
    table.delete("day < current_date")
    assert table.snapshot().num_records == 0


def test_a_text_with_line_ends_is_left_to_spark_where_a_pattern_asks_for_the_end() -> None:
    expression = parse_expression("s RLIKE 'b$'", SCHEMA)
    assert expression.evaluate(pa.table({"s": ["ab", "bc", None]})).to_pylist() == [
        True,
        False,
        None,
    ]
    with pytest.raises(InvalidArgument, match="use the Spark engine"):
        expression.evaluate(pa.table({"s": ["ab\n"]}))
