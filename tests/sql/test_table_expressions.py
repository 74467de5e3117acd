"""SQL out of a table's metadata is evaluated only if it does nothing but compute."""

from __future__ import annotations

import pytest

from dagster_delta.errors import InvalidArgument, UnsupportedExpression
from dagster_delta.protocol.schema import ArrayType, PrimitiveType, StructField, StructType
from dagster_delta.sql.table_expressions import check_table_expression
from dagster_delta.sql.tokens import without_variables

LONG, STRING = PrimitiveType("long"), PrimitiveType("string")
SCHEMA = StructType(
    (
        StructField("a", LONG),
        StructField("s", STRING),
        StructField("odd name", STRING),
        StructField("items", ArrayType(LONG, contains_null=True)),
        StructField("p", StructType((StructField("x", LONG),))),
        # Names that would let the words of a query pass for columns.
        *(StructField(name, LONG) for name in ("table", "union", "using", "csv", "values")),
    )
)


@pytest.mark.parametrize(
    "sql",
    [
        "a > 0",
        "a > 0 AND (s IS NOT NULL OR `odd name` LIKE 'x%' ESCAPE '!')",
        "a BETWEEN -1 AND 10 -- a comment",
        "/* why */ length(trim(BOTH ' ' FROM s)) <= 10",
        "s IN ('a', 'b') AND s RLIKE '^[a-z]+$'",
        "CAST(a AS DECIMAL(10, 2)) < 5 AND a::string <> ''",
        "CASE WHEN a = 1 THEN true ELSE p.x > 2 END",
        "exists(items, x -> x > 0) AND aggregate(items, 0L, (acc, x) -> acc + x) < 100",
        "a & 1 = 0 AND a ^ 1 > 0",
        "substring(s FROM 1 FOR 2) = 'ab' AND extract(YEAR FROM current_timestamp()) > 2000",
        "s < current_date AND DATE '2020-01-01' < current_date() + INTERVAL 1 DAY",
        "`table` = `union` AND items[0] = 1",
        "s = 'java_method(''a'')' AND s <> '; DROP TABLE x --'",
        "X'00' = CAST(s AS BINARY)",
        "timestampadd(DAY, a, current_timestamp()) > current_timestamp()",
        "a << 2 > 0 AND a >> 1 >= 0",
        "position('x' IN s) > 0",
        "INTERVAL 1 DAY 2 HOURS > INTERVAL 1 YEAR 2 MONTHS",
        "table > 0 AND array_contains(items, values) AND using = union",
        "struct(a AS renamed).renamed > 0",
        "s COLLATE UNICODE_CI_AI = 'x'",
        "to_time(s) > TIME '10:00:00' OR schema_of_json(s) = 'INT'",
    ],
)
def test_what_only_computes_is_let_through(sql: str) -> None:
    check_table_expression(sql, SCHEMA, "CHECK c", table="t")


@pytest.mark.parametrize(
    ("sql", "named"),
    [
        ("java_method('java.lang.Math', 'abs', a) > 0", "java_method"),
        ("a > 0 OR reflect('java.lang.Math', 'abs', a) > 0", "reflect"),
        ("try_reflect('java.lang.Math', 'abs', a) > 0", "try_reflect"),
        ("`java_method`('java.lang.Math', 'abs', a) > 0", "java_method"),
        ("JAVA_METHOD /* x */ ('java.lang.Math', 'abs', a) > 0", "JAVA_METHOD"),
        ("builtin.abs(a) > 0", "abs"),
        ("system.builtin.java_method('a', 'b') > 0", "system"),
        ("p.java_method('a', 'b') > 0", "java_method"),
        ("IDENTIFIER('java_method')('java.lang.Math', 'abs', a) > 0", "IDENTIFIER"),
        ("exists(items, x -> java_method('a', 'b', x) > 0)", "java_method"),
        ("input_file_name() <> ''", "input_file_name"),
        ("monotonically_increasing_id() > a", "monotonically_increasing_id"),
        ("rand() < 0.5", "rand"),
        ("uuid() <> s", "uuid"),
        ("my_udf(a) > 0", "my_udf"),
        ("from_avro(s, 'x') IS NOT NULL", "from_avro"),
        ("from_protobuf(s, 'm', '/etc/passwd') IS NOT NULL", "from_protobuf"),
        ("xpath_string(s, 'a') = 'x'", "xpath_string"),
        ("read_files('/etc') > 0", "read_files"),
        ("sum(a) OVER (ORDER BY a) > 0", "sum"),
        ("a > (SELECT count(*) FROM csv.`/etc/passwd`)", "SELECT"),
        ("a IN (SELECT 1)", "SELECT"),
        ("EXISTS (SELECT 1)", "SELECT"),
        ("a > (TABLE csv)", "TABLE"),
        ("a > (FROM csv.`/etc/passwd`)", "subquery"),
        ("a > (VALUES 1 UNION ALL FROM csv)", "VALUES"),
        ("a > (VALUES -1 |> UNION ALL TABLE csv)", "VALUES"),
        ("a IN (VALUES (1))", "VALUES"),
        ("a > (MAP a USING 'cat')", "USING"),
        ("a > (MAP (a) USING 'cat')", "USING"),
        ("a > (WITH x AS (SELECT 1) SELECT * FROM x)", "WITH"),
        ("secret_variable = s", "secret_variable"),
        ("a > 0; DROP TABLE x", ";"),
        ("a > :parameter", ":"),
        ("a > ?", "?"),
        ("a > $$1$$", "$"),
        ('"java_method"(a) > 0', "call"),
        # Spark and a reader that knows comments a little less well see different texts here.
        ("a > 0 /* /* */ ' */ AND java_method('a', 'b') > 0 -- '", "cannot be read"),
        ("a > 0 -- \\\n' \n AND java_method('a', 'b') > 0 -- '", "java_method"),
        ("s = r'\\' OR java_method('a', 'b') > 0 -- '", "java_method"),
        ("a > 0 /*+ hint */", "cannot be read"),
        ("a >", "cannot be read"),
        ("a) > 0 OR (a > 1", "cannot be read"),
        ("1 + " * 5000 + "a > 0", "cannot be read"),
        ("(" * 5000 + "a" + ")" * 5000 + " > 0", "brackets"),
        ("exists(items, x -> " + "(" * 5000 + "x" + ")" * 5000 + " > 0)", "brackets"),
    ],
    ids=lambda value: value[:40],
)
def test_what_does_more_than_compute_is_refused_by_name(sql: str, named: str) -> None:
    with pytest.raises(UnsupportedExpression) as caught:
        check_table_expression(sql, SCHEMA, "CHECK c", table="t")
    assert named in str(caught.value).partition(") ")[2] or named in str(caught.value)
    assert "CHECK c" in str(caught.value)
    assert len(str(caught.value)) < 25_000


def test_a_default_may_be_made_by_chance_and_by_the_session() -> None:
    for sql in ("uuid()", "rand()", "current_timestamp()", "current_user", "'x'", "NULL"):
        check_table_expression(sql, StructType(()), "the default of a", is_default=True)
    for sql in ("input_file_name()", "java_method('a', 'b')", "(SELECT 1)", "a"):
        with pytest.raises(UnsupportedExpression, match="the default of a"):
            check_table_expression(sql, StructType(()), "the default of a", is_default=True)


@pytest.mark.parametrize(
    ("sql", "spelled"),
    [
        ("a = 'x'", "a = 'x'"),
        ("s = '${env:HOME}'", "s = '$' '{env:HOME}'"),
        ('s = "a${x}b${y}"', 's = "a$" "{x}b$" "{y}"'),
        ("s = r'\\${x}'", "s = r'\\$' r'{x}'"),
        ("s = 'it''s $${x}'", "s = 'it''s $$' '{x}'"),
        ("a > 0 /* ${x} */ -- ${y}", "a > 0 /* $ {x} */ -- $ {y}"),
    ],
)
def test_no_variable_is_left_for_spark_to_replace(sql: str, spelled: str) -> None:
    assert without_variables(sql) == spelled


def test_a_variable_outside_of_texts_is_no_sql() -> None:
    with pytest.raises(InvalidArgument, match="cannot read"):
        without_variables("a > ${x}")


def test_a_name_that_looks_like_a_variable_is_refused_for_spark() -> None:
    with pytest.raises(UnsupportedExpression, match="rename"):
        without_variables("`${env:HOME}` IS NOT NULL")
