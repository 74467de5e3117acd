"""Differences between the columns of data and of a table, and the schema change by a write.

Spec: Column Metadata; Type Widening (writer requirements).
"""

from __future__ import annotations

from collections.abc import Collection, Iterator

import msgspec

from dagster_delta.errors import SchemaMismatch
from dagster_delta.protocol.features.type_widening import (
    TypeChange,
    is_widening,
    record_type_changes,
)
from dagster_delta.protocol.schema import (
    ArrayType,
    DataType,
    DecimalType,
    MapType,
    PrimitiveType,
    StructField,
    StructType,
    inner_parts,
    inner_types,
    nullable_field,
    walk_fields,
    with_inner_types,
)

_INTEGERS = frozenset({"byte", "short", "integer", "long"})


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
        return tuple(difference for difference in self.differences if difference.table_type is None)

    @property
    def missing(self) -> tuple[ColumnDifference, ...]:
        """Columns that only the table has."""
        return tuple(difference for difference in self.differences if difference.data_type is None)

    @property
    def retyped(self) -> tuple[ColumnDifference, ...]:
        """Columns that both have with different types."""
        return tuple(
            difference
            for difference in self.differences
            if difference.table_type is not None and difference.data_type is not None
        )

    def __bool__(self) -> bool:
        return bool(self.differences)

    def __str__(self) -> str:
        return "\n".join(str(difference) for difference in self.differences)


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
        case (ArrayType(), ArrayType()) | (MapType(), MapType()):
            theirs = inner_types(data)
            for (step, ours), their in zip(inner_parts(table), theirs, strict=True):
                yield from _differences(ours, their, (*path, step))
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


def check_strict(
    table: StructType, data: StructType, *, option: str, filled: Collection[str] = ()
) -> None:
    """Refuse data with columns that the table lacks, or without a column that it requires and that
    is not `filled`. `option` is the argument that allows the change, for the message.

    Types are not compared: writes cast values by ANSI store assignment.
    """
    diff = diff_schemas(table, data)
    if diff.added:
        raise SchemaMismatch(
            f"the data has columns that the table lacks ({_names(diff.added)}); drop them, rename "
            "the columns of the table first if they have other names there (ALTER TABLE … RENAME "
            f"COLUMN), or pass {option} to add them to the table:\n{diff}",
            column=diff.added[0].column,
        )
    _check_required(table, diff.missing, filled)


def _check_required(
    table: StructType, missing: tuple[ColumnDifference, ...], filled: Collection[str]
) -> None:
    fields = dict(walk_fields(table)) if missing else {}
    required = [
        difference
        for difference in missing
        if not fields[difference.path].nullable and difference.path[0] not in filled
    ]
    if required:
        raise SchemaMismatch(
            f"the data lacks NOT NULL columns ({_names(required)}); add them",
            column=required[0].column,
        )


def _names(differences: tuple[ColumnDifference, ...] | list[ColumnDifference]) -> str:
    return ", ".join(difference.column for difference in differences)


def widenable_columns(table: StructType, data: StructType) -> tuple[ColumnDifference, ...]:
    """The columns that a write may give the wider type of the data, if the table lets it."""
    widening = _Widening(enabled=True, to_timestamp_ntz=True)
    return tuple(
        difference
        for difference in diff_schemas(table, data).retyped
        if difference.table_type is not None
        and difference.data_type is not None
        and widening.applies(difference.table_type, difference.data_type)
    )


class _Widening(msgspec.Struct, frozen=True):
    enabled: bool
    to_timestamp_ntz: bool
    table_version: int | None = None

    def applies(self, table: DataType, data: DataType) -> bool:
        if not self.enabled or not is_widening(table, data):
            return False
        match table, data:
            case PrimitiveType(source), PrimitiveType(target):
                if source in _INTEGERS:
                    # A write never changes an integer to a double: that requires an ALTER.
                    return target in _INTEGERS
                return target != "timestamp_ntz" or self.to_timestamp_ntz
            case DecimalType(), DecimalType():
                return True
            case _:
                return False


def merge_schemas(
    table: StructType,
    data: StructType,
    *,
    fixed_columns: Collection[str] = (),
    filled: Collection[str] = (),
    widen_types: bool = False,
    widen_dates: bool = False,
    table_version: int | None = None,
) -> StructType:
    """The table's schema plus the columns of the data that it lacks.

    New columns come last in their struct, nullable, with their comment as their only metadata; they
    have no ids yet if the table maps its columns. Columns that the data lack are kept; those that
    are NOT NULL have to be `filled`.

    Types widen to those of the data with `widen_types` (integers, float to double, decimals) and
    `widen_dates` (dates to timestamps without a zone), except in `fixed_columns`, from which
    something is computed. Each change is recorded in the field, with `table_version` if the table
    records it.
    """
    diff = diff_schemas(table, data)
    _check_required(table, diff.missing, filled)
    for difference in diff.added:
        if difference.data_type is not None:
            _check_typed(difference.data_type, difference.column)
    widening = _Widening(widen_types, widen_dates, table_version)
    fixed = frozenset(name.casefold() for name in fixed_columns)
    fields = []
    for field in table:
        theirs = data.get(field.name)
        frozen = field.name.casefold() in fixed
        fields.append(field if theirs is None or frozen else _merge_field(field, theirs, widening))
    return StructType((*fields, *_new_fields(table, data)))


def _new_fields(table: StructType, data: StructType) -> Iterator[StructField]:
    for field in data:
        if table.get(field.name) is None:
            yield nullable_field(field, ("comment",))


def _merge_field(table: StructField, data: StructField, widening: _Widening) -> StructField:
    changes: list[TypeChange] = []
    merged = _merge_types(table.data_type, data.data_type, widening, (), changes)
    return record_type_changes(table, merged, changes)


def _merge_types(
    table: DataType,
    data: DataType,
    widening: _Widening,
    path: tuple[str, ...],
    changes: list[TypeChange],
) -> DataType:
    """The merged type; type changes below the nearest struct field are appended to `changes`."""
    match table, data:
        case PrimitiveType("void"), _:
            # It has no values: the first data decide the type, as in the reference implementation.
            return nullable_field(StructField("", data), ()).data_type
        case StructType(), StructType():
            fields = []
            for field in table:
                theirs = data.get(field.name)
                fields.append(field if theirs is None else _merge_field(field, theirs, widening))
            return StructType((*fields, *_new_fields(table, data)))
        case (ArrayType(), ArrayType()) | (MapType(), MapType()):
            merged = [
                _merge_types(ours, their, widening, (*path, step), changes)
                for (step, ours), their in zip(inner_parts(table), inner_types(data), strict=True)
            ]
            return with_inner_types(table, merged)
        case _ if widening.applies(table, data):
            changes.append(TypeChange(table, data, ".".join(path) or None, widening.table_version))
            return data
        case _:
            return table


def _check_typed(data_type: DataType, column: str) -> None:
    if data_type == PrimitiveType("void"):
        raise SchemaMismatch(
            f"column {column} contains only nulls and has no type; cast it to a type, or drop it",
            column=column,
        )
    for step, inner in inner_parts(data_type):
        _check_typed(inner, f"{column}.{step}")
