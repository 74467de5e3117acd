"""Logical paths of columns: spelling, lookup, and changes of a schema at a path.

A path steps into structs by field names, into arrays by `element`, into maps by `key` and `value`.
Names match as Delta matches them, case-insensitively.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import TypeAlias, cast

import msgspec
from msgspec.structs import replace

from dagster_delta.errors import InvalidArgument, SchemaMismatch
from dagster_delta.protocol.schema import (
    ArrayType,
    DataType,
    MapType,
    StructField,
    StructType,
    fold_name,
    inner_parts,
    with_inner_types,
)
from dagster_delta.protocol.table_properties import parse_column_paths
from dagster_delta.sql.typed import quote, quote_path

ColumnPath: TypeAlias = tuple[str, ...]

_PLAIN_NAME = re.compile(r"[^\W\d]\w*")


class Place(msgspec.Struct, frozen=True):
    """The result of resolving a path."""

    path: ColumnPath
    """The path in the schema's spelling."""
    data_type: DataType
    """Type at the path."""
    field_path: ColumnPath
    """Path of the nearest struct field; equal to `path` unless steps follow."""
    field: StructField
    """The struct field at `field_path`."""
    steps: ColumnPath
    """Steps from the field to the place: `element`, `key` and `value`."""


def to_path(column: str | Sequence[str]) -> ColumnPath:
    """The path that a caller gives: `a.b`, with special names in backticks, or a list of names."""
    if not isinstance(column, str):
        path = tuple(column)
        if not path or not all(isinstance(step, str) and step for step in path):
            raise InvalidArgument(f"{column!r} is not the path of a column")
        return path
    paths = parse_column_paths(column)
    if len(paths) != 1:
        raise InvalidArgument(
            f"{column!r} is not the path of one column; separate nested names with dots, and quote "
            "names that contain dots, commas or spaces with backticks"
        )
    return paths[0]


def dotted(path: ColumnPath) -> str:
    """The path for people: joined by dots, special names in backticks."""
    return ".".join(step if _PLAIN_NAME.fullmatch(step) else quote(step) for step in path)


def not_null_sql(path: ColumnPath) -> str:
    """Spark SQL that is true for rows in which a field reached through structs is not null."""
    required = f"{quote_path(path)} IS NOT NULL"
    # A nested field is required only if its struct is not null.
    return f"{quote_path(path[:-1])} IS NULL OR {required}" if len(path) > 1 else required


def find_place(schema: StructType, path: ColumnPath) -> Place:
    """The place at a path; SchemaMismatch, with the existing names, if there is none."""
    node: DataType = schema
    found: list[str] = []
    field: StructField | None = None
    field_length = 0
    for step in path:
        name, node, here = _find_next_place(node, step, path, found)
        found.append(name)
        if here is not None:
            field, field_length = here, len(found)
    if field is None:
        raise SchemaMismatch("the path of a column is empty")
    spelled = tuple(found)
    return Place(spelled, node, spelled[:field_length], field, spelled[field_length:])


def _find_next_place(
    node: DataType, step: str, path: ColumnPath, found: Sequence[str]
) -> tuple[str, DataType, StructField | None]:
    """Name, type and field (if it is one) of the next place."""
    field = node.get(step) if isinstance(node, StructType) else None
    if field is not None:
        return field.name, field.data_type, field
    parts = dict(inner_parts(node))
    if not isinstance(node, StructType) and fold_name(step) in parts:
        return fold_name(step), parts[fold_name(step)], None
    column = dotted(path)
    where = f"in {dotted(tuple(found))} there" if found else "the columns"
    there = f"{where} are {', '.join(parts)}" if parts else f"{dotted(tuple(found))} is of {node}"
    raise SchemaMismatch(f"there is no column {column}; {there}", column=column)


def is_reached_through_structs(schema: StructType, path: ColumnPath) -> bool:
    """Whether the path ends at a field and passes no array and no map."""
    above = schema.fields_along(path[:-1])
    innermost = above[-1].data_type if above else schema
    return len(above) == len(path) - 1 and isinstance(innermost, StructType)


def change_field(
    schema: StructType, path: ColumnPath, change: Callable[[StructField], StructField]
) -> StructType:
    """The schema with `change` applied to the struct field at a path, in the schema's spelling."""

    def change_one(parent: StructType) -> StructType:
        return StructType(
            tuple(change(field) if field.name == path[-1] else field for field in parent)
        )

    return change_struct(schema, path[:-1], change_one)


def change_struct(
    schema: StructType, path: ColumnPath, change: Callable[[StructType], StructType]
) -> StructType:
    """The schema with `change` applied to the struct at a path, in the schema's spelling; an empty
    path is the schema itself.
    """

    def change_one(node: DataType) -> DataType:
        if isinstance(node, StructType):
            return change(node)
        raise SchemaMismatch(
            f"{dotted(path)} is of type {node}, and only a struct has fields", column=dotted(path)
        )

    return cast("StructType", change_type_at(schema, path, change_one))


def change_type_at(
    node: DataType, path: ColumnPath, change: Callable[[DataType], DataType]
) -> DataType:
    """The type with `change` applied to the type at a path below it, which has to exist."""
    if not path:
        return change(node)
    step, below = path[0], path[1:]
    parts = inner_parts(node)
    if not parts:
        raise SchemaMismatch(f"there is no {step} in {node}", column=dotted(path))
    changed = [
        change_type_at(inner, below, change) if name == step else inner for name, inner in parts
    ]
    return with_inner_types(node, changed)


def with_nullability(schema: StructType, path: ColumnPath, nullable: bool) -> StructType:
    """The schema in which a field, array element or map value may be null, or not."""

    def change(parent: DataType) -> DataType:
        match parent:
            case StructType():
                return change_field(
                    parent, path[-1:], lambda field: replace(field, nullable=nullable)
                )
            case ArrayType():
                return replace(parent, contains_null=nullable)
            case MapType():
                return replace(parent, value_contains_null=nullable)
            case _:
                return parent

    return cast("StructType", change_type_at(schema, path[:-1], change))
