"""Column types in the SQL of Spark, DuckDB and MySQL."""

from __future__ import annotations

from collections.abc import Callable

from dagster_delta.evolution.cursor import StatementCursor
from dagster_delta.nearest_name import nearest_name
from dagster_delta.protocol.schema import (
    MAX_NESTING,
    ArrayType,
    DataType,
    DecimalType,
    MapType,
    PrimitiveType,
    StructField,
    StructType,
)

_NAMES = {
    "byte": ("TINYINT", "BYTE", "INT1"),
    "short": ("SMALLINT", "SHORT", "INT2", "INT16"),
    "integer": ("INT", "INTEGER", "INT4", "INT32", "SIGNED", "MEDIUMINT"),
    "long": ("BIGINT", "LONG", "INT64"),
    "float": ("FLOAT", "REAL", "FLOAT4", "FLOAT32"),
    "double": ("DOUBLE", "FLOAT8", "FLOAT64"),
    "string": ("STRING", "TEXT", "TINYTEXT", "MEDIUMTEXT", "LONGTEXT", "BPCHAR"),
    "binary": ("BINARY", "BLOB", "BYTEA", "VARBINARY", "LONGBLOB", "MEDIUMBLOB"),
    "boolean": ("BOOLEAN", "BOOL", "LOGICAL"),
    "date": ("DATE",),
    "timestamp_ntz": ("TIMESTAMP_NTZ", "DATETIME"),
    "timestamp": ("TIMESTAMP", "TIMESTAMP_LTZ", "TIMESTAMPTZ"),
    "variant": ("VARIANT",),
}
_PRIMITIVES = {name: PrimitiveType(kind) for kind, names in _NAMES.items() for name in names}

# Unsigned types become the next wider signed type.
_UNSIGNED: dict[str, DataType] = {
    "byte": PrimitiveType("short"),
    "short": PrimitiveType("integer"),
    "integer": PrimitiveType("long"),
    "long": DecimalType(20, 0),
}
_UNSIGNED_NAMES = {
    **dict.fromkeys(("UTINYINT", "UINT8"), _UNSIGNED["byte"]),
    **dict.fromkeys(("USMALLINT", "UINT16"), _UNSIGNED["short"]),
    **dict.fromkeys(("UINTEGER", "UINT32"), _UNSIGNED["integer"]),
    **dict.fromkeys(("UBIGINT", "UINT64"), _UNSIGNED["long"]),
}

_TEXT_WITH_LENGTH = frozenset({"VARCHAR", "CHAR", "CHARACTER", "NVARCHAR", "NCHAR"})

_MAX_PRECISION = 38


def parse_type(sql: str) -> DataType:
    """The type in a text: `BIGINT`, `DECIMAL(10,2)`, `STRUCT<a: INT, b: STRING[]>`, …"""
    cursor = StatementCursor(sql, "a column type")
    data_type = read_type(cursor)
    if not cursor.is_done:
        cursor.fail("expected the end of the type")
    return data_type


def read_type(cursor: StatementCursor) -> DataType:
    """Take the type that comes next."""
    with cursor.one_level_deeper(MAX_NESTING + 1):
        data_type = _read_unsuffixed_type(cursor)
    while cursor.take_operator("["):
        cursor.expect("]")
        data_type = ArrayType(data_type)
    return data_type


def _read_unsuffixed_type(cursor: StatementCursor) -> DataType:
    token = cursor.token
    if token.kind != "word":
        cursor.fail("expected a type")
    word = cursor.next().text.upper()
    if reader := _NESTED.get(word):
        return reader(cursor)
    if word in ("DECIMAL", "DEC", "NUMERIC"):
        return _read_decimal(cursor)
    if word in _TEXT_WITH_LENGTH:
        if cursor.token.is_operator("("):
            cursor.fail(
                "a limit on the length of text is not enforced; write STRING, and add a CHECK on "
                "length(…)"
            )
        return PrimitiveType("string")
    if word in _UNSIGNED_NAMES:
        return _UNSIGNED_NAMES[word]
    found = _PRIMITIVES.get(word)
    if found is None:
        cursor.fail(_explain_unknown_type(word), at=token)
    return _with_suffixes(cursor, word, found)


def _explain_unknown_type(word: str) -> str:
    if word == "INT8":
        # Eight bytes in DuckDB, eight bits in DuckLake and Arrow.
        return "INT8 is ambiguous (8 bits or 8 bytes); write TINYINT or BIGINT"
    near = nearest_name(word, [*_PRIMITIVES, *_NESTED, "DECIMAL"])
    hint = f"did you mean {near}?" if near else f"the types are {_TYPES}"
    return f"Delta tables have no type {word}; {hint}"


_TYPES = (
    "STRING, BOOLEAN, TINYINT, SMALLINT, INT, BIGINT, FLOAT, DOUBLE, DECIMAL(p,s), DATE, "
    "TIMESTAMP, TIMESTAMP_NTZ, BINARY, VARIANT, ARRAY<…>, MAP<…,…> and STRUCT<name: …>"
)


def _with_suffixes(cursor: StatementCursor, word: str, found: PrimitiveType) -> DataType:
    if found.name in _UNSIGNED:
        if cursor.take_operator("("):
            cursor.integer("the display width")
            cursor.expect(")")
        if cursor.take_word("UNSIGNED"):
            cursor.take_word("ZEROFILL")
            return _UNSIGNED[found.name]
        cursor.take_word("SIGNED")
    if word == "DOUBLE":
        cursor.take_word("PRECISION")
    if word == "TIMESTAMP":
        if cursor.take_words("WITHOUT", "TIME", "ZONE"):
            return PrimitiveType("timestamp_ntz")
        cursor.take_words("WITH", "TIME", "ZONE")
        cursor.take_words("WITH", "LOCAL", "TIME", "ZONE")
    return found


def _read_decimal(cursor: StatementCursor) -> DecimalType:
    token = cursor.token
    precision, scale = 10, 0
    if cursor.take_operator("("):
        precision = cursor.integer("the number of digits")
        if cursor.take_operator(","):
            scale = cursor.integer("the number of digits after the point")
        cursor.expect(")")
    if not (1 <= precision <= _MAX_PRECISION and 0 <= scale <= precision):
        cursor.fail(
            f"decimals have 1 to {_MAX_PRECISION} digits, no more after the point", at=token
        )
    return DecimalType(precision, scale)


def _take_opening_bracket(cursor: StatementCursor) -> str:
    """Take the bracket that opens the parameters; returns the one that closes them."""
    if cursor.take_operator("("):
        return ")"
    cursor.expect("<")
    return ">"


def _read_array(cursor: StatementCursor) -> DataType:
    closing = _take_opening_bracket(cursor)
    element = read_type(cursor)
    cursor.expect(closing)
    return ArrayType(element)


def _read_map(cursor: StatementCursor) -> DataType:
    closing = _take_opening_bracket(cursor)
    key = read_type(cursor)
    cursor.expect(",")
    value = read_type(cursor)
    cursor.expect(closing)
    return MapType(key, value)


def _read_struct(cursor: StatementCursor) -> DataType:
    closing = _take_opening_bracket(cursor)
    fields = [_read_field(cursor)]
    while cursor.take_operator(","):
        fields.append(_read_field(cursor))
    cursor.expect(closing)
    return StructType(tuple(fields))


def _read_field(cursor: StatementCursor) -> StructField:
    name = cursor.name("the name of a field")
    cursor.take_operator(":")
    data_type = read_type(cursor)
    nullable = not cursor.take_words("NOT", "NULL")
    comment = cursor.string("the comment") if cursor.take_word("COMMENT") else None
    metadata: dict[str, object] = {} if comment is None else {"comment": comment}
    return StructField(name, data_type, nullable, metadata)


_NESTED: dict[str, Callable[[StatementCursor], DataType]] = {
    "ARRAY": _read_array,
    "LIST": _read_array,
    "MAP": _read_map,
    "STRUCT": _read_struct,
    "ROW": _read_struct,
}
