"""Differences between the schemas of two versions of a table.

Columns with ids are matched by id; others by name.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from dagster_delta.evolution.column_paths import ColumnPath, dotted
from dagster_delta.protocol.features.column_mapping import PHYSICAL_NAME_KEY, field_id
from dagster_delta.protocol.features.column_values import DEFAULT_KEY
from dagster_delta.protocol.schema import ArrayType, DataType, MapType, StructField, StructType


@dataclass(frozen=True, slots=True)
class SchemaChanges:
    """The differences, one line each: `+` added, `-` dropped, `~` changed."""

    added: tuple[ColumnPath, ...]
    """Paths of added columns, in the later schema."""
    dropped: tuple[ColumnPath, ...]
    """Paths of dropped columns, in the earlier schema."""
    changed: tuple[ColumnPath, ...]
    """Paths of columns with another name, type or comment, in the earlier schema."""
    lines: tuple[str, ...]

    def __bool__(self) -> bool:
        return bool(self.lines)

    def __str__(self) -> str:
        return "\n".join(self.lines)


class _Line(NamedTuple):
    sign: str
    path: ColumnPath
    text: str


def compare_schemas(before: StructType, after: StructType) -> SchemaChanges:
    """The differences from an earlier schema to a later one."""
    found = list(_fields(before, after, ()))
    # One column may have several changes.
    paths = {
        sign: tuple(dict.fromkeys(line.path for line in found if line.sign == sign))
        for sign in "+-~"
    }
    lines = tuple(f"{line.sign} {dotted(line.path)}{line.text}" for line in found)
    return SchemaChanges(paths["+"], paths["-"], paths["~"], lines)


def _fields(before: StructType, after: StructType, path: ColumnPath) -> Iterator[_Line]:
    left = list(after)
    kept: list[tuple[StructField, StructField]] = []
    for old in before:
        new = _counterpart(old, left)
        if new is None:
            yield _Line("-", (*path, old.name), f": {old.data_type}")
            continue
        left.remove(new)
        kept.append((old, new))
        yield from _field(old, new, path)
    for field in left:
        yield _Line(
            "+", (*path, field.name), f": {describe_field(field, field.metadata.get(DEFAULT_KEY))}"
        )
    order = [new for _, new in kept]
    if order != [field for field in after if field not in left]:
        yield _Line("~", path or ("columns",), f": in the order {', '.join(after.names)}")


def _counterpart(old: StructField, candidates: list[StructField]) -> StructField | None:
    number = field_id(old)
    if number is not None:
        return next((candidate for candidate in candidates if field_id(candidate) == number), None)
    # If mapping was turned on in between, the old name is now the physical name.
    for candidate in candidates:
        if (
            str(candidate.metadata.get(PHYSICAL_NAME_KEY, candidate.name)).casefold()
            == old.name.casefold()
        ):
            return candidate
    return None


def describe_field(field: StructField, default: object) -> str:
    """Type, nullability and default of a field for people."""
    text = str(field.data_type) + ("" if field.nullable else " NOT NULL")
    return text if default is None else f"{text} DEFAULT {default}"


def _field(old: StructField, new: StructField, path: ColumnPath) -> Iterator[_Line]:
    here = (*path, old.name)
    if old.name != new.name:
        yield _Line("~", here, f": renamed to {dotted((new.name,))}")
    if old.nullable != new.nullable:
        yield _Line("~", here, ": may be null" if new.nullable else ": NOT NULL")
    for key, what in ((DEFAULT_KEY, "default"), ("comment", "comment")):
        before, after = old.metadata.get(key), new.metadata.get(key)
        if before != after:
            yield _Line("~", here, f": {what} {after}" if after is not None else f": no {what}")
    yield from _types(old.data_type, new.data_type, here)


def _types(old: DataType, new: DataType, path: ColumnPath) -> Iterator[_Line]:
    match old, new:
        case StructType(), StructType():
            yield from _fields(old, new, path)
        case ArrayType(), ArrayType():
            yield from _types(old.element_type, new.element_type, (*path, "element"))
            yield from _nulls(old.contains_null, new.contains_null, (*path, "element"))
        case MapType(), MapType():
            yield from _types(old.key_type, new.key_type, (*path, "key"))
            yield from _types(old.value_type, new.value_type, (*path, "value"))
            yield from _nulls(old.value_contains_null, new.value_contains_null, (*path, "value"))
        case _ if old != new:
            yield _Line("~", path, f": {old} → {new}")


def _nulls(old: bool, new: bool, path: ColumnPath) -> Iterator[_Line]:
    if old != new:
        yield _Line("~", path, ": may be null" if new else ": NOT NULL")
