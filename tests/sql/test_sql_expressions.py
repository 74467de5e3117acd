"""Expressions: what parses, what is refused, what is pruned, and what survives a trip."""

from __future__ import annotations

import contextlib
import datetime as dt
import pickle

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dagster_delta.errors import DeltaError, InvalidArgument, SchemaMismatch, UnsupportedExpression
from dagster_delta.protocol.schema import (
    DecimalType,
    MapType,
    PrimitiveType,
    StructField,
    StructType,
)
from dagster_delta.protocol.statistics.bounds import bounds_of_partition_values
from dagster_delta.sql.expressions import parse_expression
from dagster_delta.sql.filters import check_repeatable, unsteady_functions
from dagster_delta.sql.skipping import possible_outcomes
from dagster_delta.sql.typed import Call, Column, Literal

LONG, INTEGER, STRING = PrimitiveType("long"), PrimitiveType("integer"), PrimitiveType("string")
TIMESTAMP, BOOLEAN = PrimitiveType("timestamp"), PrimitiveType("boolean")

SCHEMA = StructType(
    (
        StructField("id", LONG),
        StructField("Name", STRING),
        StructField("day", PrimitiveType("date")),
        StructField("at", TIMESTAMP),
        StructField("flag", BOOLEAN),
        StructField("price", DecimalType(10, 2)),
        StructField("x", PrimitiveType("double")),
        StructField("odd name", INTEGER),
        StructField("a`b", INTEGER),
        StructField("s", StructType((StructField("t", StructType((StructField("u", LONG),))),))),
        StructField("m", MapType(STRING, LONG)),
        StructField("v", PrimitiveType("variant")),
        StructField("nothing", PrimitiveType("void")),
        StructField("collated", STRING, metadata={"__COLLATIONS": {"collated": "spark.UTF8_LCASE"}}),
    )
)  # fmt: skip


# Names


def test_columns_are_found_without_regard_to_case() -> None:
    assert parse_expression("NAME = 'x' AND S.T.U > 1", SCHEMA).references == {
        ("Name",),
        ("s", "t", "u"),
    }


def test_backticks_quote_odd_names() -> None:
    expression = parse_expression("`odd name` = `a``b`", SCHEMA)
    assert expression.references == {("odd name",), ("a`b",)}


@pytest.mark.parametrize(
    "sql", ["missing = 1", "s.missing = 1", "s.t.missing IS NULL", "id = nobody"]
)
def test_unknown_columns_are_named(sql: str) -> None:
    with pytest.raises(SchemaMismatch, match="there is no column"):
        parse_expression(sql, SCHEMA)


def test_an_unknown_column_error_lists_the_columns_there_are() -> None:
    with pytest.raises(SchemaMismatch, match="the columns are id, Name, day"):
        parse_expression("nam = 'x'", SCHEMA)


# Grammar


@pytest.mark.parametrize(
    "sql", ["", "id =", "id = = 1", "(id = 1", "id IN ()", "id BETWEEN 1", "'open", "id = 1 garbage here", "CASE WHEN flag END", "NOT", "1Y0 = = id", "id = 99999999999999999999L", "DATE 'soon' = day", "DATE '2024-02-30' = day", "id; drop"],
)  # fmt: skip
def test_text_that_is_no_expression_is_refused(sql: str) -> None:
    with pytest.raises((InvalidArgument, UnsupportedExpression)):
        parse_expression(sql, SCHEMA).check_embeddable()


@pytest.mark.parametrize(
    "sql",
    ["Name LIKE 'a' IS NULL", "id IN (1) IS NULL", "id IN (1) = flag", "id IS NULL IS NULL", "Name LIKE 'a' LIKE 'b'", "flag !IN (true)", "id IS ! NULL", "id IS NOT NOT NULL", "id IS 1",
     "Name LIKE 'a' ESCAPE '!!'", "Name LIKE 'a' ESCAPE ''", "Name LIKE 'a' ESCAPE Name", "Name LIKE ANY ()", "Name LIKE ANY 'a'", "id IN ()", "id IN 1", "id IN (1,)", "id IN (,1)", "(id,)", "f(id,)", "f(,)",
     "m.'k'", "s.1", "1.5.2", "id;", "$id", "@id", "id #c", "{id}", "DATE 2020", "DATE '20240229'", "TIMESTAMP '2020-01-01 01:02Z'", "TIMESTAMP '2020-01-01 01:02+01:00'", "TIMESTAMP '2020-01-01 01:02:03+19:00'", "N'a'", "INT '1'", "CAST(id AS foo)", "CAST(id AS INT(5))", "CAST(id AS DECIMAL(39,0))", "CAST(id AS DECIMAL(5,6))",
     "CAST(id AS `int`)", "id = \uff11", "gr\u00f6\u00dfe = 1", "id)", "id, 1", "[1]"],
)  # fmt: skip
def test_what_the_parser_of_spark_refuses_is_called_wrong_sql(sql: str) -> None:
    with pytest.raises(InvalidArgument, match="not a Spark SQL expression"):
        parse_expression(sql, SCHEMA)


def test_names_may_begin_with_digits() -> None:
    schema = StructType((StructField("1e", LONG), StructField("2nd", LONG)))
    batch = pa.table({"1e": [1, 2], "2nd": [2, 2]})
    assert parse_expression("1e = 2nd", schema).evaluate(batch).to_pylist() == [False, True]


def test_a_syntax_error_shows_where() -> None:
    with pytest.raises(InvalidArgument, match=r"at character 6.*id = ▸"):
        parse_expression("id = ", SCHEMA)


@pytest.mark.parametrize(
    ("sql", "same"),
    [
        ("id = 1 OR flag AND id = 2", "id = 1 OR (flag AND id = 2)"),
        ("NOT id = 1 AND flag", "(NOT (id = 1)) AND flag"),
        ("! id = 1", "NOT (id = 1)"),
        ("id = 1 IS NULL", "(id = 1) IS NULL"),
        ("id = 1 = flag", "(id = 1) = flag"),
        ("flag = id > 1", "(flag = id) > 1"),
        ("flag = flag IN (true)", "(flag = flag) IN (true)"),
        ("id + 1 * 2 = 3", "(id + (1 * 2)) = 3"),
        ("id - 1 - 2 = 3", "((id - 1) - 2) = 3"),
        ("Name || id + 1 = 'x'", "((Name || id) + 1) = 'x'"),
        ("id NOT BETWEEN 1 AND 2 AND flag", "(NOT (id >= 1 AND id <= 2)) AND flag"),
        ("-id % 2 = 1", "((-id) % 2) = 1"),
        ("id /* comment */ = 1 -- more", "id = 1"),
        ("id <> 1", "NOT (id = 1)"),
    ],
)
def test_precedence_is_that_of_spark(sql: str, same: str) -> None:
    assert parse_expression(sql, SCHEMA).typed == parse_expression(same, SCHEMA).typed


def test_depth_is_bounded() -> None:
    for sql in (
        "(" * 5_000 + "id" + ")" * 5_000,
        "-" + " -" * 5_000 + "id = 1",
        "abs(" * 5_000,
        "id" + " + 1" * 5_000,
    ):
        with pytest.raises(InvalidArgument, match="nested too deeply"):
            parse_expression(sql, SCHEMA)


def test_long_chains_are_not_deep() -> None:
    sql = " OR ".join(f"id = {n}" for n in range(2_000))
    expression = parse_expression(sql, SCHEMA)
    assert expression.evaluate(pa.table({"id": [1_999, 2_000]})).to_pylist() == [True, False]


@given(st.text(alphabet="idxNam='\"`()<>=!+-*/%.,[]1 2eLANDORTnotinull\\\n", max_size=40))
def test_any_text_gives_an_expression_or_a_named_error(sql: str) -> None:
    with contextlib.suppress(InvalidArgument, SchemaMismatch):
        possible_outcomes(parse_expression(sql, SCHEMA).typed, {}, 1)


# Refusals


@pytest.mark.parametrize(
    ("sql", "construct"),
    [
        ("soundex(Name) = 'x'", "the function soundex"),
        ("id & 1 = 1", "outside its grammar"),
        ("price / 2 > 1", "decimal division"),
        ("m[1] = 1", r"\[\] of map<string,long> and int"),
        ("exists(m, (k, v) -> v > 1)", "exists"),
        ("id = (SELECT 1)", "a subquery"),
        ("id IN (SELECT 1)", "a subquery"),
        ("current_date() = day", "current_date"),
        ("current_date = day", "current_date"),
        ("`User` = Name", "User"),
        ("day > INTERVAL '1' DAY + day", "outside its grammar"),
        ("INTERVAL 1 DAY 2 HOURS > INTERVAL 1 DAY", "outside its grammar"),
        ("position('x' IN 'axb') > 0", "this form of the function position"),
        ("1 << 2 > 0", "outside its grammar"),
        ("8 >> 2 > 0", "outside its grammar"),
        ("try_cast(Name AS int) = 1", "try_cast"),
        ("collated = 'x'", "collation spark.UTF8_LCASE"),
        ("collated LIKE 'x%'", "collation"),
        ("upper(collated) = 'X'", "collation"),
        ("m = m", "map"),
        ("Name LIKE day", "LIKE"),
        ("Name LIKE 'a\\\\b'", "LIKE pattern"),
        ("x = ceil(x)", "ceil of double"),
        ("substring(Name, -1, 1) = 'x'", "substring"),
        ("CAST(x AS string) = '1'", "CAST"),
        ("id = 'x'", "CAST|conversion"),
    ],
)
def test_what_is_not_proved_is_refused_by_name(sql: str, construct: str) -> None:
    expression = parse_expression(sql, SCHEMA)
    if sql == "id = 'x'":
        with pytest.raises(InvalidArgument):
            expression.evaluate(pa.table({"id": [1]}))
        return
    with pytest.raises(UnsupportedExpression, match=construct) as caught:
        expression.check_embeddable()
    assert "use the Spark engine" in str(caught.value)


@pytest.mark.parametrize(
    "sql", ["datediff(MONTH, day, day) = 1", "dateadd(MONTH, 1, day) = day", "ceil(x, 1) = 1", "soundex(1) = 'x'",
            "equal_null(id)", "equal_null(id, id, id)", "date_part('year') = 1", "upper() = 'A'", "substring(Name) = 'A'", "nvl(id) = 1", "sum(id) = 1", "row_number() = 1", "explode(m) = 1", "size(id) = 1",
            "upper(m) = 'x'", "year(flag) = 1", "NOT id", "id AND flag", "m > 1", "flag IN (id)", "coalesce(id, m) = 1", "if(flag, 1, m) = 1", "CASE WHEN id THEN 1 END = 1", "id + flag > 1",
            "at + 1 > at", "CAST(m AS int) = 1", "CAST(day AS int) = 1", "CAST(id AS date) = day", "Name.x = 1", "id['x'] = 1", "flag OR upper(upper()) = 'x'"]
)  # fmt: skip
def test_what_only_spark_computes_or_refuses_is_left_to_it(sql: str) -> None:
    with pytest.raises(UnsupportedExpression, match="use the Spark engine"):
        parse_expression(sql, SCHEMA).check_embeddable()


def test_an_unknown_function_is_asked_to_be_corrected() -> None:
    expression = parse_expression("uper(Name) = 'A'", SCHEMA)
    with pytest.raises(UnsupportedExpression, match="did you mean upper") as caught:
        expression.check_embeddable()
    assert "correct its name" in str(caught.value)


def test_a_whole_query_is_no_expression() -> None:
    with pytest.raises(InvalidArgument, match="not a Spark SQL expression"):
        parse_expression("SELECT id", SCHEMA)


@pytest.mark.parametrize("sql", ["in()", "in(id)", "and()", "or(flag)"])
def test_a_call_of_an_operator_with_too_few_operands_is_refused(sql: str) -> None:
    with pytest.raises((InvalidArgument, UnsupportedExpression)):
        parse_expression(sql, SCHEMA).check_embeddable()


def test_a_collated_column_can_be_tested_for_null() -> None:
    parse_expression("collated IS NOT NULL", SCHEMA).check_embeddable()


def test_a_filter_has_to_be_a_condition() -> None:
    with pytest.raises(InvalidArgument, match="a value of type bigint"):
        parse_expression("id + 1", SCHEMA).check_filter()
    parse_expression("NULL", SCHEMA).check_filter()


# Pruning


# Three files of one row each.
FILES = pa.table(
    {
        "id": pa.array([1, 5, None], pa.int64()),
        "Name": ["a_b", "b", None],
        "day": [dt.date(2024, 2, 29), dt.date(2024, 3, 1), None],
        "at": pa.array(
            [dt.datetime(2024, 1, 1, 5), dt.datetime(2024, 1, 2), None], pa.timestamp("us", "UTC")
        ),
        "flag": [True, False, None],
        "odd name": pa.array([1, 5, None], pa.int32()),
        "s.t.u": pa.array([1, 5, None], pa.int64()),
    }
)


def outcomes(sql: str, zone: str = "UTC") -> str:
    """What a filter may be in each of the files: true, false or null, by initials."""
    known = {}
    for name, column in zip(FILES.column_names, FILES.columns, strict=True):
        path = tuple(name.split("."))
        data_type = SCHEMA.fields_along(path)[-1].data_type
        known[path] = bounds_of_partition_values(column.combine_chunks(), data_type)
    found = possible_outcomes(parse_expression(sql, SCHEMA, zone).typed, known, FILES.num_rows)
    masks = {"t": found.true, "f": found.false, "n": found.null}
    return " ".join(
        "".join(initial for initial, mask in masks.items() if mask[row].as_py())
        for row in range(FILES.num_rows)
    )


@pytest.mark.parametrize(
    ("sql", "expected"),
    [
        ("id = 5", "f t n"),
        ("4 < id", "f t n"),
        ("id <=> NULL", "f f t"),
        ("id <=> 5", "f t f"),
        ("id = NULL", "n n n"),
        ("id IN (1, NULL, 2)", "t n n"),
        ("flag", "t f n"),
        ("NOT flag", "f t n"),
        ("(id = 1) IS TRUE", "t f f"),
        ("coalesce(id = 1, FALSE)", "t f f"),
        ("coalesce(id = 1, TRUE)", "t f t"),
        ("(id = 1) IS FALSE", "f t f"),
        ("s.t.u >= 2", "f t n"),
        ("`odd name` = 5L", "f t n"),
        ("day = '2024-02-29'", "t f n"),
        ("Name LIKE 'a%'", "t f n"),
        ("Name LIKE 'a\\_b'", "t f n"),
        ("Name LIKE 'a_b'", "tfn f fn"),
        ("startswith(Name, 'a')", "t f n"),
        ("soundex(Name) = 'x' AND id = 1", "tfn f fn"),
        ("id = 1 OR contains(Name, 'x')", "t tfn n"),
        ("collated = 'x'", "tfn tfn tfn"),
        ("to_date(at) = DATE '2024-01-01'", "t f n"),
    ],
)
def test_filters_are_decided_by_bounds(sql: str, expected: str) -> None:
    assert outcomes(sql) == expected


@pytest.mark.parametrize(
    "sql",
    ["at > day", "to_date(at) = day", "hour(at) = 1",
     "at + INTERVAL 1 MONTH > TIMESTAMP '2024-01-01 00:00:00Z'", "at - INTERVAL 2 DAYS > TIMESTAMP '2024-01-01 00:00:00Z'", "at + INTERVAL 24 HOURS > TIMESTAMP '2024-01-01 00:00:00Z'"],
)  # fmt: skip
@pytest.mark.parametrize("zone", ["America/New_York", "+01:00", "Nowhere/Known"])
def test_columns_that_are_converted_outside_utc_prune_nothing(sql: str, zone: str) -> None:
    assert outcomes(sql, zone).startswith("tfn tfn ")


@pytest.mark.parametrize(
    ("constant", "expected"),
    [
        ("TIMESTAMP '2024-01-01'", "2024-01-01T05:00"),
        ("'2024-01-01 00:00:00'", "2024-01-01T05:00"),
        ("DATE '2024-01-01'", "2024-01-01T05:00"),
        ("TIMESTAMP_NTZ '2024-01-01 00:00:00'", "2024-01-01T05:00"),
        ("TIMESTAMP '2024-01-01 00:00:00+01:00'", "2023-12-31T23:00"),
        ("TIMESTAMP '2024-01-01 00:00:00+01:00' - INTERVAL 23 HOURS", "2023-12-31T00:00"),
        ("TIMESTAMP '2024-03-31 02:00:00Z' - INTERVAL 1 MONTH", "2024-03-01T03:00"),
        ("TIMESTAMP '2024-03-10 02:00:00Z' + INTERVAL 1 DAY", "2024-03-11T01:00"),
        # A clock skips the first, and shows the second twice.
        ("TIMESTAMP '2024-03-10 02:30:00'", "2024-03-10T07:30"),
        ("TIMESTAMP '2024-11-03 01:30:00'", "2024-11-03T05:30"),
    ],
)
def test_constants_are_read_in_the_zone_of_the_statement(constant: str, expected: str) -> None:
    found = parse_expression(f"at = {constant}", SCHEMA, "America/New_York")
    moment = dt.datetime.fromisoformat(expected).replace(tzinfo=dt.UTC)
    is_written = "INTERVAL" not in constant
    compared = Column(("at",), TIMESTAMP), Literal(moment, TIMESTAMP, is_written)
    assert found.typed == Call("=", compared, BOOLEAN)
    assert pickle.loads(pickle.dumps(found)).typed == found.typed


def test_a_zone_that_python_does_not_know_is_left_to_spark() -> None:
    expression = parse_expression("at > '2024-01-01'", SCHEMA, "Nowhere/Known")
    assert outcomes(expression.sql, "Nowhere/Known") == "tfn tfn tfn"
    with pytest.raises(UnsupportedExpression, match="use the Spark engine"):
        expression.check_embeddable()
    parse_expression(
        "at > TIMESTAMP '2024-01-01 00:00:00Z'", SCHEMA, "Nowhere/Known"
    ).check_embeddable()


def test_expressions_survive_pickling() -> None:
    expression = parse_expression("id > 1 AND Name = 'x'", SCHEMA)
    copy = pickle.loads(pickle.dumps(expression))
    assert copy == expression
    assert copy.typed == expression.typed


@pytest.mark.parametrize(
    "sql", ["v = v", "v <> 1", "NULL < v", "v <=> NULL", "v IN (1)", "v BETWEEN 1 AND 2"]
)
def test_variants_are_not_compared(sql: str) -> None:
    with pytest.raises(InvalidArgument, match="variants cannot be compared"):
        parse_expression(sql, SCHEMA)


@pytest.mark.parametrize(
    "sql",
    [
        "LIKE(s) is null",
        "LIKE() is null",
        "ilike(s) is null",
        "dec .1.5BD < 2",
        "map( X'f'",
        "s :: Xunhex(",
        "date_trunc( + when bin( / distinct current_user",
        "l = " + "1" * 5000,
        "l = " + "1" * 5000 + "L",
        "dec = 1e99999999999999999999BD",
        "s = 'a\ud800'",
        "NOT " * 5000 + "b",
        "(" * 5000,
        "-" * 500 + "1",
    ],
)
def test_a_text_that_no_parser_takes_is_refused(sql: str) -> None:
    def parse() -> None:
        parse_expression(sql, SCHEMA).check_embeddable()

    with pytest.raises(DeltaError) as caught:
        parse()
    str(caught.value).encode()


NAMED_AS_FUNCTIONS = StructType(
    (
        StructField("user", LONG),
        StructField("Rand", LONG),
        StructField("s", StructType((StructField("now", LONG), StructField("rand", LONG)))),
    )
)


@pytest.mark.parametrize(
    ("sql", "functions"),
    [
        ("user = 1 AND rand > `RAND`", []),
        ("s.now = s.rand", []),
        ("s.now < now()", ["now"]),
        ("Rand = 1 AND rand () < 0.5", ["rand"]),
        ("session_user = 'x' AND user = 1", ["session_user"]),
    ],
)
def test_functions_are_told_from_columns(sql: str, functions: list[str]) -> None:
    expression = parse_expression(sql, NAMED_AS_FUNCTIONS)
    assert unsteady_functions(expression) == functions
    if "rand" in functions:
        with pytest.raises(InvalidArgument, match="rand"):
            check_repeatable(expression, "the condition")
    else:
        check_repeatable(expression, "the condition")


@pytest.mark.parametrize(
    ("sql", "expected"),
    [("5", "decimal(6,2)"), ("floor(5)", "decimal(23,2)"), ("positive(5)", "decimal(13,2)")],
)
def test_a_computed_constant_beside_a_decimal_counts_by_its_type(sql: str, expected: str) -> None:
    schema = StructType((StructField("d", DecimalType(5, 2)),))
    assert str(parse_expression(f"d + {sql}", schema).data_type) == expected
