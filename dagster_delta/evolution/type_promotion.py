"""Widening of a column's type, at any depth, with the change recorded.

Spec: Type Widening (writer requirements); Type Change Metadata.
"""

from __future__ import annotations

import msgspec

from dagster_delta.errors import SchemaChangeRefused
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
    StructField,
    StructType,
    inner_parts,
    inner_types,
    with_inner_types,
)
from dagster_delta.sql.types import VOID

_PREVIEW_FEATURE = "typeWidening-preview"


def records_versions(configuration: TableConfiguration) -> bool:
    """Whether type changes record their version, as tables of the preview feature do."""
    listed = configuration.protocol.writer_features or ()
    return _PREVIEW_FEATURE in listed and "typeWidening" not in listed


class Promotion(msgspec.Struct, frozen=True):
    """Widens types in one table."""

    table_version: int | None = None
    """Version that makes the change, which tables of the preview feature record."""

    def promote(self, place: Place, new_type: DataType) -> StructField:
        """The nearest struct field with the type at the place widened.

        A struct, array or map may be given as a whole: the types in it widen one by one.
        Nullability does not change.
        """
        changes: list[TypeChange] = []
        promoted = change_type_at(
            place.field.data_type,
            place.steps,
            lambda old: self._promote_type(old, new_type, place.field_path, place.steps, changes),
        )
        return record_type_changes(place.field, promoted, changes)

    def _promote_type(
        self,
        old: DataType,
        new: DataType,
        path: ColumnPath,
        done: ColumnPath,
        changes: list[TypeChange],
    ) -> DataType:
        match old, new:
            case StructType(), StructType():
                return self._promote_struct(old, new, (*path, *done))
            case (ArrayType(), ArrayType()) | (MapType(), MapType()):
                promoted = [
                    self._promote_type(inner, wider, path, (*done, step), changes)
                    for (step, inner), wider in zip(inner_parts(old), inner_types(new), strict=True)
                ]
                return with_inner_types(old, promoted)
            case _ if old == new:
                return old
            case _ if old == VOID:
                # Spec: Void Type. Any other type may follow, and no feature is needed.
                return new
            case _:
                if not is_widening(old, new):
                    raise self._refusal(old, new, path, done)
                changes.append(TypeChange(old, new, ".".join(done) or None, self.table_version))
                return new

    def _promote_struct(self, old: StructType, new: StructType, path: ColumnPath) -> StructType:
        theirs = {field.name.casefold(): field for field in new}
        if theirs.keys() != {field.name.casefold() for field in old}:
            raise SchemaChangeRefused(
                f"the new type of column {dotted(path)} has other fields than {old}; add, drop and "
                "rename fields by their own statements",
                column=dotted(path),
            )
        return StructType(
            tuple(
                self._promote_field(field, theirs[field.name.casefold()], (*path, field.name))
                for field in old
            )
        )

    def _promote_field(self, old: StructField, new: StructField, path: ColumnPath) -> StructField:
        changes: list[TypeChange] = []
        promoted = self._promote_type(old.data_type, new.data_type, path, (), changes)
        return record_type_changes(old, promoted, changes)

    def _refusal(
        self, old: DataType, new: DataType, path: ColumnPath, done: ColumnPath
    ) -> SchemaChangeRefused:
        wider = describe_wider_types(old)
        allowed = f"{old} can be widened to {wider}" if wider else f"{old} cannot be widened"
        column = dotted((*path, *done))
        return SchemaChangeRefused(
            f"column {column} cannot be changed from {old} to {new}, which cannot represent all "
            f"its values exactly; {allowed}, and change_column converts atomic types, except keys "
            "of maps, by rewriting the data files online",
            column=column,
        )
