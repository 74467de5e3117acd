"""Column types as several engines spell them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dagster_delta.errors import InvalidArgument
from dagster_delta.evolution.type_spelling import parse_type
from dagster_delta.protocol.schema import (
    ArrayType,
    DataType,
    DecimalType,
    MapType,
    PrimitiveType,
    StructField,
    StructType,
)

SPELLINGS = {
    "byte": ("TINYINT", "byte", "INT1", "TINYINT(1)"),
    "short": ("SMALLINT", "int16", "UTINYINT", "uint8", "TINYINT UNSIGNED"),
    "integer": ("INT", "INTEGER", "int32", "MEDIUMINT", "USMALLINT", "uint16", "INT(11)"),
    "long": ("BIGINT", "LONG", "int64", "UINTEGER", "uint32", "INT UNSIGNED ZEROFILL"),
    "decimal(20,0)": ("UBIGINT", "uint64", "BIGINT(20) UNSIGNED", "DECIMAL(20)"),
    "decimal(10,0)": ("DECIMAL", "NUMERIC", "dec"),
    "decimal(12,4)": ("DECIMAL(12, 4)", "NUMERIC(12,4)"),
    "float": ("FLOAT", "REAL", "FLOAT4"),
    "double": ("DOUBLE", "DOUBLE PRECISION", "FLOAT8"),
    "string": ("STRING", "TEXT", "VARCHAR", "LONGTEXT"),
    "binary": ("BINARY", "BLOB", "BYTEA"),
    "boolean": ("BOOLEAN", "bool"),
    "timestamp": ("TIMESTAMP", "TIMESTAMPTZ", "TIMESTAMP WITH TIME ZONE", "TIMESTAMP_LTZ"),
    "timestamp_ntz": ("TIMESTAMP_NTZ", "DATETIME", "TIMESTAMP WITHOUT TIME ZONE"),
    "array<integer>": ("ARRAY<INT>", "INT[]", "LIST(INT)"),
    "array<array<integer>>": ("INT[][]", "ARRAY<ARRAY<INT>>"),
    "map<string,array<long>>": ("MAP<STRING, ARRAY<BIGINT>>", "MAP(VARCHAR, BIGINT[])"),
    "struct<a:integer,b c:string>": ("STRUCT<a: INT, `b c`: STRING>", 'STRUCT(a INT, "b c" TEXT)'),
}


@pytest.mark.parametrize(
    ("sql", "spelled"), [(sql, name) for name, all_ in SPELLINGS.items() for sql in all_]
)
def test_a_type_is_known_under_every_name(sql: str, spelled: str) -> None:
    assert str(parse_type(sql)) == spelled


def test_fields_keep_what_is_said_about_them() -> None:
    parsed = parse_type("STRUCT<a: INT NOT NULL COMMENT 'why', b: STRING>")
    assert isinstance(parsed, StructType)
    first, second = parsed
    assert (first.nullable, first.comment) == (False, "why")
    assert (second.nullable, second.comment) == (True, None)


@pytest.mark.parametrize("sql", ["", "INT INT", "HUGEINT", "ARRAY<>", "INT[3]", "MAP<INT>", "'x'"])
def test_what_is_no_type_is_refused(sql: str) -> None:
    with pytest.raises(InvalidArgument, match="not a column type"):
        parse_type(sql)


@pytest.mark.parametrize(
    ("sql", "hint"),
    [
        ("bignt", "did you mean BIGINT?"),
        ("pa.int64()", "the types are STRING, BOOLEAN"),
        ("list<item: string>", "no type ITEM"),
        ("timestamp[us]", "expected ']', not 'us'"),
        ("array", "expected '<', and the text ends"),
    ],
)
def test_a_type_of_another_library_says_what_to_write(sql: str, hint: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        parse_type(sql)
    assert hint in str(caught.value)


PRIMITIVES: st.SearchStrategy[DataType] = st.sampled_from(
    ["string", "long", "integer", "double", "date", "timestamp_ntz", "binary"]
).map(PrimitiveType) | st.builds(DecimalType, st.integers(10, 38), st.integers(0, 10))


def nested(children: st.SearchStrategy[DataType]) -> st.SearchStrategy[DataType]:
    fields = st.dictionaries(st.sampled_from(["a", "b c", "d.e", "`"]), children, min_size=1)
    return (
        children.map(ArrayType)
        | st.builds(MapType, children, children)
        | fields.map(lambda each: StructType(tuple(StructField(k, v) for k, v in each.items())))
    )


def spell(data_type: DataType) -> str:
    match data_type:
        case ArrayType(element_type):
            return f"ARRAY<{spell(element_type)}>"
        case MapType(key_type, value_type):
            return f"MAP<{spell(key_type)},{spell(value_type)}>"
        case StructType(fields):
            inner = (
                f"`{each.name.replace('`', '``')}`: {spell(each.data_type)}" for each in fields
            )
            return f"STRUCT<{','.join(inner)}>"
        case _:
            return str(data_type)


@given(st.recursive(PRIMITIVES, nested, max_leaves=6))
def test_any_type_is_read_as_it_was_spelled(data_type: DataType) -> None:
    assert parse_type(spell(data_type)) == data_type
