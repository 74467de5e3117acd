"""The lengths of VARCHAR(n) and CHAR(n), which Spark declares for columns of type string.

If a column has such a text anywhere in its type, Spark keeps the whole type as SQL in the metadata
of the column: `struct<a:varchar(2),b:int>`. Spark cannot read it if a field that it names was
dropped, so it is updated here with every change of the column.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import msgspec
from msgspec.structs import replace

from dagster_delta.protocol.features.column_mapping import PHYSICAL_NAME_KEY
from dagster_delta.protocol.schema import (
    ArrayType,
    DataType,
    DecimalType,
    MapType,
    PrimitiveType,
    StructField,
    StructType,
    inner_types,
    is_same_kind,
    with_inner_types,
)

TEXT_LIMIT_KEY = "__CHAR_VARCHAR_TYPE_STRING"
"""Field metadata in which Spark keeps the declared type."""

_STRING = PrimitiveType("string")
_LIMITED = re.compile(r"(?:var)?char\(([0-9]+)\)", re.IGNORECASE)
_PADDED = re.compile(r"char\(([0-9]+)\)", re.IGNORECASE)
_TOKEN = re.compile(r"`(?:[^`]|``)*`|[^<>,:(`]+(?:\([^)]*\))?|[<>,:]")
_SPARK_NAMES = {"long": "bigint", "integer": "int", "short": "smallint", "byte": "tinyint"}


class TextLimit(msgspec.Struct, frozen=True):
    """The maximum length of a text that is reached through structs."""

    path: tuple[str, ...]
    """Logical names."""
    declared: str
    """In Spark's spelling: `varchar(3)`."""
    length: int
    """In characters."""


def text_limits(schema: StructType) -> Iterator[TextLimit]:
    """The limits of columns and of fields of structs; not of fields in arrays and maps."""
    for field in schema:
        declared = _parse_declared_type(field)
        if declared is not None:
            yield from _find_limits((field.name,), declared, field.data_type)


def _find_limits(
    path: tuple[str, ...], declared: DataType, actual: DataType
) -> Iterator[TextLimit]:
    match declared, actual:
        case PrimitiveType(name), PrimitiveType("string"):
            if (found := _LIMITED.fullmatch(name)) is not None:
                yield TextLimit(path, name, int(found[1]))
        case StructType(), StructType():
            for field in actual:
                inner = declared.get(field.name)
                if inner is not None:
                    yield from _find_limits((*path, field.name), inner.data_type, field.data_type)


def padded_type(field: StructField) -> DataType | None:
    """The declared type of a column with a CHAR(n) anywhere in it, which readers pad with blanks;
    `char_length` of its parts gives the length. None if there is nothing to pad.
    """
    text = field.metadata.get(TEXT_LIMIT_KEY)
    if not isinstance(text, str) or not re.search(r"\bchar\(", text, re.IGNORECASE):
        return None
    return _parse_declared_type(field)


def char_length(declared: DataType | None) -> int | None:
    """The length that a text of a declared type is padded to; None if it is not padded."""
    if not isinstance(declared, PrimitiveType):
        return None
    found = _PADDED.fullmatch(declared.name)
    return None if found is None else int(found[1])


def char_paths(schema: StructType) -> frozenset[tuple[str, ...]]:
    """Logical paths of the CHAR(n) that are reached through structs. Their values in the log and in
    footers are not padded.
    """
    return frozenset(
        limit.path for limit in text_limits(schema) if _PADDED.fullmatch(limit.declared) is not None
    )


def with_followed_limits(schema: StructType, before: StructType) -> StructType:
    """The schema with declared types that match its columns again."""
    if not any(TEXT_LIMIT_KEY in field.metadata for field in schema):
        return schema
    old = {_identity_of(field): field for field in before}
    return StructType(tuple(_follow_type(field, old.get(_identity_of(field))) for field in schema))


def _follow_type(field: StructField, old: StructField | None) -> StructField:
    declared = _parse_declared_type(field)
    if declared is None or (old is not None and old.data_type == field.data_type):
        return field
    before = field.data_type if old is None else old.data_type
    followed = _align_limits(declared, before, field.data_type)
    text = _spell_type(followed)
    if not _LIMITED.search(text):
        return field.without(TEXT_LIMIT_KEY)
    return replace(field, metadata={**field.metadata, TEXT_LIMIT_KEY: text})


def _align_limits(declared: DataType, old: DataType, new: DataType) -> DataType:
    """The new type with the limits that were declared for its parts."""
    match declared, old, new:
        case PrimitiveType(name), PrimitiveType("string"), PrimitiveType("string"):
            return declared if _LIMITED.fullmatch(name) else _STRING
        case StructType(), StructType(), StructType(fields):
            known = {_identity_of(field): field for field in old}
            aligned = (_align_field(declared, known.get(_identity_of(f)), f) for f in fields)
            return StructType(tuple(aligned))
        case _ if is_same_kind(declared, old) and is_same_kind(old, new):
            parts = zip(*map(inner_types, (declared, old, new)), strict=True)
            return with_inner_types(new, [_align_limits(*part) for part in parts])
    return new


def _align_field(declared: StructType, old: StructField | None, new: StructField) -> StructField:
    inner = None if old is None else declared.get(old.name)
    if old is None or inner is None:
        return StructField(new.name, new.data_type)
    return StructField(new.name, _align_limits(inner.data_type, old.data_type, new.data_type))


def _identity_of(field: StructField) -> object:
    """What identifies a field across a rename: the name itself if columns are not mapped."""
    return field.metadata.get(PHYSICAL_NAME_KEY, field.name)


def _spell_type(data_type: DataType) -> str:
    match data_type:
        case StructType(fields):
            inner = (
                f"{_quote_name(field.name)}:{_spell_type(field.data_type)}" for field in fields
            )
            return f"struct<{','.join(inner)}>"
        case ArrayType(element_type):
            return f"array<{_spell_type(element_type)}>"
        case MapType(key_type, value_type):
            return f"map<{_spell_type(key_type)},{_spell_type(value_type)}>"
        case PrimitiveType(name):
            return _SPARK_NAMES.get(name, name)
        case DecimalType():
            return str(data_type)


def _quote_name(name: str) -> str:
    return name if re.fullmatch(r"\w+", name) else f"`{name.replace('`', '``')}`"


def _parse_declared_type(field: StructField) -> DataType | None:
    """The type that Spark declared for a column, with `varchar(3)` and the like for names; None if
    it did not, or if the text cannot be parsed.
    """
    text = field.metadata.get(TEXT_LIMIT_KEY)
    if not isinstance(text, str):
        return None
    tokens = _TOKEN.findall(text)
    if "".join(tokens) != text:
        return None
    tokens.reverse()
    try:
        declared = _read_type(tokens)
    except (IndexError, ValueError):
        return None
    return None if tokens else declared


def _read_type(tokens: list[str]) -> DataType:
    word = tokens.pop()
    if not tokens or tokens[-1] != "<":
        return PrimitiveType(word.strip())
    tokens.pop()
    match word.strip().casefold():
        case "array":
            found: DataType = ArrayType(_read_type(tokens))
        case "map":
            key = _read_type(tokens)
            _expect_token(tokens, ",")
            found = MapType(key, _read_type(tokens))
        case "struct":
            found = StructType(tuple(_read_fields(tokens)))
        case _:
            raise ValueError(word)
    _expect_token(tokens, ">")
    return found


def _read_fields(tokens: list[str]) -> Iterator[StructField]:
    while tokens[-1] != ">":
        name = tokens.pop()
        _expect_token(tokens, ":")
        if name.startswith("`"):
            name = name[1:-1].replace("``", "`")
        yield StructField(name, _read_type(tokens))
        if tokens[-1] == ",":
            tokens.pop()


def _expect_token(tokens: list[str], token: str) -> None:
    if tokens.pop() != token:
        raise ValueError(token)
