"""SQL of variants in the embedded engine: what it computes is what Spark computes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from dagster_delta import Column, DeltaTable, variants_from_json, variants_to_json
from dagster_delta.errors import InvalidArgument, UnsupportedExpression
from dagster_delta.protocol.schema import PrimitiveType, StructField, StructType
from dagster_delta.sql.evaluation import evaluate
from dagster_delta.sql.expressions import parse_expression

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SCHEMA = StructType(
    tuple(
        StructField(name, PrimitiveType(kind))
        for name, kind in (("id", "long"), ("t", "string"), ("v", "variant"))
    )
)
TEXTS = [
    None,
    "null",
    "true",
    "300",
    "-5",
    "9223372036854775807",
    "1.50",
    "1.5e10",
    '"12"',
    '{"a": 1, "b": {"c": [10, {"d": "x"}]}, "é.x": null, "n": null}',
    '[1, "two", [3.25], {"a": false}]',
    "{",
]
KINDS = ("boolean", "tinyint", "smallint", "int", "bigint", "double", "string", "variant")
PATHS = ("$", "$.a", "$.n", "$.b.c[0]", "$['b'].c[1].d", "$[1]", "$[2][0]", "$[9]", "$.b")
EXPRESSIONS = [
    "try_parse_json(t)",
    "is_variant_null(v)",
    "v IS NULL",
    "coalesce(v, try_parse_json('[0]'))",
    "CASE WHEN id > 4 THEN v END",
    "if(id > 4, v, NULL)",
    "try_variant_get(v, '$.a', 'int') > 0 OR id < 3",
    "try_variant_get(v, '$.b')",
    *(f"try_variant_get(v, '$', '{kind}')" for kind in KINDS),
    *(f'try_variant_get(v, "{path}", \'{kind}\')' for path in PATHS[1:] for kind in ("int", "string", "variant")),
]  # fmt: skip


def embedded(sql: str, row: dict[str, Any]) -> Any:
    """The value of one row, or None beside a mark where the embedded engine refuses it."""
    batch = pa.record_batch(
        {
            "id": pa.array([row["id"]], pa.int64()),
            "t": pa.array([row["t"]], pa.string()),
            "v": pa.array([row["v"]], variants_from_json([]).type),
        }
    )
    try:
        found = evaluate(parse_expression(sql, SCHEMA), batch)
    except UnsupportedExpression:
        return ("refused", None)
    return variants_to_json(found)[0] if pa.types.is_struct(found.type) else found[0].as_py()


@pytest.mark.classic("Spark is the judge, with the same functions on every kind of session")
def test_what_is_computed_is_what_spark_computes(spark: SparkSession) -> None:
    rows = []
    for index, text in enumerate(TEXTS):
        variant = None if text == "{" else variants_from_json([text])[0].as_py()
        rows.append({"id": index, "t": text, "v": variant})
    frame = spark.createDataFrame([(each["id"], each["t"]) for each in rows], "id long, t string")
    frame = frame.selectExpr("id", "t", "try_parse_json(t) v").selectExpr(*EXPRESSIONS_AS_TEXT)
    num_computed = 0
    for row, theirs in zip(rows, frame.collect(), strict=True):
        for sql, wanted in zip(EXPRESSIONS, theirs, strict=True):
            ours = embedded(sql, row)
            if ours == ("refused", None):
                continue
            num_computed += 1
            assert (sql, row["t"], ours) == (sql, row["t"], wanted)
    # Few are refused: casts of text, fractions and truth values to other types.
    assert num_computed > 0.9 * len(rows) * len(EXPRESSIONS)


def _as_text(sql: str) -> str:
    is_variant = (
        "'variant'" in sql or "coalesce" in sql or "THEN v" in sql or ", v, " in sql
        or sql in ("try_parse_json(t)", "try_variant_get(v, '$.b')")
    )  # fmt: skip
    return f"to_json({sql}) c" if is_variant else f"{sql} c"


EXPRESSIONS_AS_TEXT = [f"{_as_text(sql)}{index}" for index, sql in enumerate(EXPRESSIONS)]


@pytest.mark.parametrize(
    ("sql", "said"),
    [
        ("parse_json('{')", "is no JSON"),
        ("variant_get(parse_json('[1]'), '$', 'int')", "does not fit the type integer"),
        (
            "variant_get(parse_json('300'), '$', 'tinyint')",
            "300 in a variant does not fit the type byte",
        ),
    ],
)
def test_a_value_that_does_not_fit_is_an_error(sql: str, said: str, spark: SparkSession) -> None:
    with pytest.raises(InvalidArgument, match=said):
        evaluate(parse_expression(sql, SCHEMA), pa.table({"id": [1]}))
    with pytest.raises(Exception, match=r"MALFORMED_RECORD_IN_PARSING|INVALID_VARIANT_CAST"):
        spark.sql(f"SELECT {sql}").collect()


@pytest.mark.parametrize(
    ("sql", "construct"),
    [
        ("variant_get(v, '$.a', 'date')", "as date"),
        ("variant_get(v, 'a', 'int')", "the path 'a'"),
        ("variant_get(v, t, 'int')", "not a constant"),
        ("greatest(v, v)", "the function greatest"),
    ],
)
def test_what_is_not_proved_is_refused_by_name(sql: str, construct: str) -> None:
    with pytest.raises(UnsupportedExpression, match=construct):
        parse_expression(sql, SCHEMA).check_embeddable()


def test_statements_use_variants() -> None:
    columns = [Column("id", "long"), Column("v", "variant", default="parse_json('{\"n\": 0}')")]
    table = DeltaTable.create("memory://variant-sql", columns, mode="replace")
    table.append(pa.table({"id": [1, 2]}))
    table.append(pa.table({"id": [3, 4], "v": variants_from_json(['{"n": 3}', "null"])}))
    table.update({"v": """parse_json('{"n": 9}')"""}, "variant_get(v, '$.n', 'int') = 3")
    table.delete("is_variant_null(v)")
    source = pa.table({"id": [2, 7], "text": ['"new"', "[]"]})
    merge = table.merge(source, "t.id = s.id")
    merge.when_matched_update({"v": "parse_json(s.text)"}).when_not_matched_insert(
        {"id": "s.id", "v": "coalesce(parse_json(s.text), parse_json('1'))"}
    ).execute()
    found = table.snapshot().scan().to_arrow().sort_by("id")
    assert found["id"].to_pylist() == [1, 2, 3, 7]
    assert variants_to_json(found["v"]) == ['{"n":0}', '"new"', '{"n":9}', "[]"]
    kept = table.snapshot().scan(where="variant_get(v, '$.n', 'int') > 5").to_arrow()
    assert kept["id"].to_pylist() == [3]
