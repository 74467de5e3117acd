"""Differences between the columns of data and of a table."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from dagster_delta.protocol.schema import ArrayType, DataType, MapType, StructType


class ColumnDifference(msgspec.Struct, frozen=True):
    """One column that differs between table and data, at any depth."""

    path: tuple[str, ...]
    """Logical path; steps into arrays and maps are `element`, `key` and `value`."""
    table_type: DataType | None
    """Type in the table, None if the table lacks the column."""
    data_type: DataType | None
    """Type in the data, None if the data lack the column."""

    @property
    def column(self) -> str:
        """The path, dotted."""
        return ".".join(self.path)

    def __str__(self) -> str:
        if self.table_type is None:
            return f"+ {self.column}: {self.data_type}"
        if self.data_type is None:
            return f"- {self.column}: {self.table_type}"
        return f"~ {self.column}: {self.table_type} in the table, {self.data_type} in the data"


class SchemaDiff(msgspec.Struct, frozen=True):
    """All differences, in the order of the table's columns, then of the data's."""

    differences: tuple[ColumnDifference, ...]

    @property
    def added(self) -> tuple[ColumnDifference, ...]:
        """Columns that only the data have; the fields of an added struct are not listed
        separately.
        """
        return tuple(each for each in self.differences if each.table_type is None)

    @property
    def missing(self) -> tuple[ColumnDifference, ...]:
        """Columns that only the table has."""
        return tuple(each for each in self.differences if each.data_type is None)

    @property
    def retyped(self) -> tuple[ColumnDifference, ...]:
        """Columns that both have with different types."""
        return tuple(
            each
            for each in self.differences
            if each.table_type is not None and each.data_type is not None
        )

    def __bool__(self) -> bool:
        return bool(self.differences)

    def __str__(self) -> str:
        return "\n".join(str(each) for each in self.differences)


def diff_schemas(table: StructType, data: StructType) -> SchemaDiff:
    """The differences between the schema of a table and the schema of data to write.

    Names match as Delta matches them, case-insensitively. Nullability and metadata are ignored:
    nulls are checked per row, and metadata belongs to the table.
    """
    return SchemaDiff(tuple(_differences(table, data, ())))


def _differences(
    table: DataType, data: DataType, path: tuple[str, ...]
) -> Iterator[ColumnDifference]:
    match table, data:
        case StructType(), StructType():
            yield from _field_differences(table, data, path)
        case ArrayType(table_element), ArrayType(data_element):
            yield from _differences(table_element, data_element, (*path, "element"))
        case MapType(table_key, table_value), MapType(data_key, data_value):
            yield from _differences(table_key, data_key, (*path, "key"))
            yield from _differences(table_value, data_value, (*path, "value"))
        case _ if table != data:
            yield ColumnDifference(path, table, data)


def _field_differences(
    table: StructType, data: StructType, path: tuple[str, ...]
) -> Iterator[ColumnDifference]:
    for field in table:
        here = (*path, field.name)
        theirs = data.get(field.name)
        if theirs is None:
            yield ColumnDifference(here, field.data_type, None)
        else:
            yield from _differences(field.data_type, theirs.data_type, here)
    for field in data:
        if table.get(field.name) is None:
            yield ColumnDifference((*path, field.name), None, field.data_type)
