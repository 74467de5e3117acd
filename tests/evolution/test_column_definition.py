"""Declaring columns: what stands in the schema, which protocol it takes, what is refused."""

from __future__ import annotations

import pytest

from dagster_delta import Column, DeltaTable, Identity
from dagster_delta.errors import InvalidArgument
from dagster_delta.protocol.schema import DecimalType, PrimitiveType, StructField, StructType
from dagster_delta.storage.memory_store import MemoryStore


def create(*columns: Column | StructField) -> DeltaTable:
    store = MemoryStore()
    return DeltaTable.create(store.location.uri, columns, store=store)


def test_types_are_taken_as_sql() -> None:
    table = create(
        Column("price", "DECIMAL(10,2)", nullable=False, comment="net"), Column("n", "INT")
    )
    price, number = table.schema()
    assert (price.data_type, price.nullable, price.comment) == (DecimalType(10, 2), False, "net")
    assert number.data_type == PrimitiveType("integer")


@pytest.mark.parametrize(
    ("column", "protocol"),
    [
        (Column("c", "BIGINT", generated_as="a + 1"), (1, 4, None)),
        (Column("c", "BIGINT", identity=Identity(start=5, step=-5)), (1, 6, None)),
        (Column("c", "BIGINT", default="1"), (1, 7, ("allowColumnDefaults",))),
    ],
)
def test_the_protocol_is_the_lowest_that_knows_the_feature(
    column: Column, protocol: tuple[int, int, tuple[str, ...] | None]
) -> None:
    found = create(Column("a", "BIGINT"), column).protocol()
    assert (found.min_reader_version, found.min_writer_version, found.writer_features) == protocol


def test_what_is_declared_stands_in_the_schema() -> None:
    schema = create(
        Column("id", "BIGINT", identity=Identity(step=2, allow_explicit_insert=True)),
        Column("ts", "TIMESTAMP", default="current_timestamp()"),
        Column("day", "DATE", generated_as="CAST(ts AS DATE)"),
    ).schema()
    assert dict(schema.field("id").metadata) == {
        "delta.identity.start": 1,
        "delta.identity.step": 2,
        "delta.identity.allowExplicitInsert": True,
    }
    assert schema.field("ts").metadata == {"CURRENT_DEFAULT": "current_timestamp()"}
    assert schema.field("day").metadata == {"delta.generationExpression": "CAST(ts AS DATE)"}


def test_a_table_made_like_another_starts_its_sequence_anew() -> None:
    metadata = {
        "delta.identity.start": 1,
        "delta.identity.step": 1,
        "delta.identity.highWaterMark": 80,
    }
    table = create(StructField("id", PrimitiveType("long"), True, metadata), Column("a", "INT"))
    assert "delta.identity.highWaterMark" not in table.schema().field("id").metadata


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ([Column("c", "INT", generated_as="a")], "of type long: cast it"),
        ([Column("c", "BIGINT", generated_as="b + 1")], "no column b"),
        ([Column("c", "BIGINT", generated_as="c + 1")], "no column c"),
        ([Column("c", "BIGINT", generated_as="a +")], "a \\+"),
        ([Column("c", "DOUBLE", generated_as="rand()")], "rand"),
        ([Column("c", "TIMESTAMP", generated_as="current_timestamp()")], "current_timestamp"),
        (
            [
                Column("c", "BIGINT", generated_as="a"),
                Column("d", "BIGINT", generated_as="c"),
            ],
            "not generated themselves",
        ),
        ([Column("c", "BIGINT", default="a")], "has no columns"),
        ([Column("c", "BIGINT", default="'")], "'"),
        ([Column("c", "BIGINT", default="'x'")], "is not a value of type long"),
        ([Column("c", "TINYINT", default="300")], "is not a value of type byte"),
        ([Column("c", "INT", identity=Identity())], "BIGINT"),
        (
            [
                StructField(
                    "s",
                    StructType(
                        (StructField("x", PrimitiveType("long"), True, {"CURRENT_DEFAULT": "1"}),)
                    ),
                )
            ],
            "inside another column",
        ),
        ([StructField("c", PrimitiveType("long"), True, {"CURRENT_DEFAULT": 1})], "Spark SQL"),
    ],
)
def test_a_column_that_no_row_could_be_written_with_is_refused(
    columns: list[Column | StructField], message: str
) -> None:
    with pytest.raises(InvalidArgument, match=message):
        create(Column("a", "BIGINT"), *columns)


def test_an_expression_that_only_spark_computes_may_be_declared() -> None:
    table = create(Column("a", "STRING"), Column("c", "STRING", generated_as="soundex(a)"))
    assert table.schema().field("c").metadata["delta.generationExpression"] == "soundex(a)"


def test_values_come_from_one_place() -> None:
    with pytest.raises(InvalidArgument, match="one of them"):
        Column("c", "BIGINT", default="1", identity=Identity())
    with pytest.raises(InvalidArgument, match="may not be 0"):
        Identity(step=0)
    with pytest.raises(InvalidArgument, match="64-bit"):
        Identity(start=2**63)
