"""Differences between the columns of data and of a table; how types follow data or a statement.

Spec: Column Metadata; Type Widening (writer requirements).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator

import msgspec

from dagster_delta.errors import SchemaChangeRefused, SchemaMismatch
from dagster_delta.evolution.column_paths import ColumnPath, Place, change_type_at, dotted
from dagster_delta.protocol.features.table_configuration import TableConfiguration
from dagster_delta.protocol.features.type_widening import (
    TypeChange,
    describe_wider_types,
    is_widening,
    record_type_changes,
)
from dagster_delta.protocol.schema import (
    ArrayType,
    DataType,
    MapType,
    PrimitiveType,
    StructField,
    StructType,
    fold_name,
    inner_parts,
    inner_types,
    is_same_kind,
    nullable_field,
    paired_fields,
    walk_fields,
    with_inner_types,
)

_INTEGERS = frozenset({"byte", "short", "integer", "long"})
_TIMESTAMP_NTZ = PrimitiveType("timestamp_ntz")


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
    pairs = paired_fields(table, data, _folded_name, _folded_name)
    return SchemaDiff(
        tuple(
            ColumnDifference(
                path,
                None if ours is None else ours.data_type,
                None if theirs is None else theirs.data_type,
            )
            for path, ours, theirs in pairs
            if ours is None or theirs is None or _types_differ(ours.data_type, theirs.data_type)
        )
    )


def _folded_name(field: StructField) -> str:
    return fold_name(field.name)


def _types_differ(table: DataType, data: DataType) -> bool:
    """Whether types differ beyond their parts, which are compared one by one."""
    return not is_same_kind(table, data) and table != data


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
            f"the data has columns that the table lacks ({_join_columns(diff.added)}); drop them, "
            "rename the columns of the table first if they have other names there (ALTER TABLE … "
            f"RENAME COLUMN), or pass {option} to add them to the table:\n{diff}",
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
            f"the data lacks NOT NULL columns ({_join_columns(required)}); add them",
            column=required[0].column,
        )


def _join_columns(differences: tuple[ColumnDifference, ...] | list[ColumnDifference]) -> str:
    return ", ".join(difference.column for difference in differences)


def widenable_columns(table: StructType, data: StructType) -> tuple[ColumnDifference, ...]:
    """The columns that a write may give the wider type of the data, if the table lets it."""
    return tuple(
        difference
        for difference in diff_schemas(table, data).retyped
        if difference.table_type is not None
        and difference.data_type is not None
        and _widens_by_write(difference.table_type, difference.data_type)
    )


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
    _check_required(table, diff_schemas(table, data).missing, filled)

    def widens(old: DataType, new: DataType) -> bool:
        is_allowed = widen_types and (widen_dates or new != _TIMESTAMP_NTZ)
        return is_allowed and _widens_by_write(old, new)

    # A column of no type gets that of the first data, as in the reference implementation.
    merge = _TypeMerge(widens, table_version, first_type=_nullable_type)
    fixed = frozenset(fold_name(name) for name in fixed_columns)
    fields = []
    for field in table:
        theirs = None if fold_name(field.name) in fixed else data.get(field.name)
        fields.append(merge.merge_field(field, theirs) if theirs else field)
    return StructType((*fields, *_new_fields(table, data)))


def _new_fields(table: StructType, data: StructType) -> Iterator[StructField]:
    for field in data:
        if table.get(field.name) is None:
            yield nullable_field(field, ("comment",))


def _nullable_type(data_type: DataType) -> DataType:
    return nullable_field(StructField("", data_type), ()).data_type


class _TypeMerge(msgspec.Struct, frozen=True):
    """Gives a table other types, at any depth, and records each change in its field."""

    widens: Callable[[DataType, DataType], bool]
    """Whether a type becomes another one."""
    table_version: int | None = None
    first_type: Callable[[DataType], DataType] = lambda new: new
    """The type of a column that has had none."""

    def merge_field(self, old: StructField, new: StructField) -> StructField:
        """The field with its new type."""
        changes: list[TypeChange] = []
        merged = self.merge_types(old.data_type, new.data_type, (), changes)
        return record_type_changes(old, merged, changes)

    def merge_types(
        self, old: DataType, new: DataType, steps: ColumnPath, changes: list[TypeChange]
    ) -> DataType:
        """The new type. Changes below the nearest struct field, to which `steps` lead back, are
        appended to `changes`.
        """
        match old, new:
            case PrimitiveType("void"), _:
                # Spec: Void Type. It has no values, so that any type may follow.
                return self.first_type(new)
            case StructType(), StructType():
                fields = []
                for field in old:
                    theirs = new.get(field.name)
                    fields.append(self.merge_field(field, theirs) if theirs else field)
                return StructType((*fields, *_new_fields(old, new)))
            case (ArrayType(), ArrayType()) | (MapType(), MapType()):
                parts = zip(inner_parts(old), inner_types(new), strict=True)
                merged = [
                    self.merge_types(inner, other, (*steps, step), changes)
                    for (step, inner), other in parts
                ]
                return with_inner_types(old, merged)
            case _ if old != new and self.widens(old, new):
                changes.append(TypeChange(old, new, ".".join(steps) or None, self.table_version))
                return new
            case _:
                return old


def _widens_by_write(old: DataType, new: DataType) -> bool:
    """Whether a write may widen a type. An integer never becomes a double or a decimal by a write:
    that requires an ALTER.
    """
    if isinstance(old, PrimitiveType) and old.name in _INTEGERS:
        return isinstance(new, PrimitiveType) and new.name in _INTEGERS and is_widening(old, new)
    return is_widening(old, new)


def widened_field(place: Place, new_type: DataType, table_version: int | None) -> StructField:
    """The nearest struct field with the type at the place changed by a statement, to a wider one;
    any other is a SchemaChangeRefused.

    A struct, array or map may be given as a whole: the types in it widen one by one. Nullability
    does not change.
    """
    one, other = (StructType((StructField("", kind),)) for kind in (place.data_type, new_type))
    for difference in diff_schemas(one, other).differences:
        _check_wider(place, difference)
    merge, changes = _TypeMerge(is_widening, table_version), list[TypeChange]()
    widened = change_type_at(
        place.field.data_type,
        place.steps,
        lambda old: merge.merge_types(old, new_type, place.steps, changes),
    )
    return record_type_changes(place.field, widened, changes)


def _check_wider(place: Place, difference: ColumnDifference) -> None:
    path, old, new = (
        (*place.path, *difference.path[1:]),
        difference.table_type,
        difference.data_type,
    )
    if old is None or new is None:
        column = dotted(path[:-1])
        raise SchemaChangeRefused(
            f"the new type of column {column} has other fields than {place.data_type}; add, drop "
            "and rename fields by their own statements",
            column=column,
        )
    if old == PrimitiveType("void") or is_widening(old, new):
        return
    wider = describe_wider_types(old)
    allowed = f"{old} can be widened to {wider}" if wider else f"{old} cannot be widened"
    raise SchemaChangeRefused(
        f"column {dotted(path)} cannot be changed from {old} to {new}, which cannot represent "
        f"all its values exactly; {allowed}, and change_column converts atomic types, except "
        "keys of maps, by rewriting the data files online",
        column=dotted(path),
    )


def records_versions(configuration: TableConfiguration) -> bool:
    """Whether type changes record their version, as tables of the preview feature do."""
    listed = configuration.protocol.writer_features or ()
    return "typeWidening-preview" in listed and "typeWidening" not in listed
