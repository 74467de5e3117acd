"""Plans the conversion of columns to the types of a table, at every depth, before any row is seen.

Reading a data file and storing given rows differ in how fields are found, in what a missing field
holds, and in how single values are cast.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence

import msgspec
import pyarrow as pa

from dagster_delta.nested_arrays import (
    children_of,
    is_list_like,
    plain_array,
    plain_type,
    with_children,
)
from dagster_delta.protocol.schema import ArrayType, DataType, MapType, StructType, inner_parts
from dagster_delta.protocol.values.arrow_schema import to_arrow_type
from dagster_delta.protocol.values.arrow_values import null_scalar

Convert = Callable[[pa.Array], pa.Array]
"""Converts a `pyarrow.Array` of one column, row for row."""
Path = tuple[str, ...]
"""Logical names from the column on, with the steps of `inner_parts`."""


class FieldPlan(msgspec.Struct, frozen=True):
    """How to get one field from the columns beside it."""

    path: Path
    index: int | None
    """Position among the given columns; None if they lack the field."""
    absent: pa.Scalar
    """`pyarrow.Scalar` of rows that lack the field."""
    convert: Convert | None
    is_nullable: bool = True

    def values(self, columns: Sequence[pa.Array], length: int) -> pa.Array:
        """The field of some rows, as a `pyarrow.Array` of the table's type."""
        if self.index is None:
            absent = self.absent
            return pa.repeat(absent, length) if absent.is_valid else pa.nulls(length, absent.type)
        column = columns[self.index]
        return column if self.convert is None else self.convert(column)


class ColumnConversion(ABC):
    """The rules by which columns are converted."""

    @abstractmethod
    def plan_fields(
        self, source: Sequence[pa.Field], target: StructType, path: Path = ()
    ) -> list[FieldPlan]:
        """How to get each field of the target from those of a source."""

    @abstractmethod
    def plan_value(self, source: pa.DataType, target: DataType, path: Path) -> Convert | None:
        """The conversion to a type without inner types; None if the values need none."""

    @abstractmethod
    def mismatch(self, source: pa.DataType, target: DataType, path: Path) -> Exception:
        """The error for a source type that the target type does not take."""

    @abstractmethod
    def check_nulls(self, plan: FieldPlan, values: pa.Array, parent: pa.Array) -> None:
        """Check that values are not null where the field may not be.

        `parent`: the array around them, or the batch.
        """

    def plan(self, source: pa.DataType, target: DataType, path: Path) -> Convert | None:
        """The conversion of a column or an inner value; None if it needs none."""
        plain = plain_type(source)
        convert = self._plan_plain(plain, target, path)
        if plain == source:
            return convert
        return lambda array: convert(plain_array(array)) if convert else plain_array(array)

    def _plan_plain(self, source: pa.DataType, target: DataType, path: Path) -> Convert | None:
        arrow_type = to_arrow_type(target)
        if pa.types.is_null(source):
            return lambda array: pa.nulls(len(array), arrow_type)
        match target:
            case StructType() if pa.types.is_struct(source):
                return self._with_parts(self.plan_fields(list(source), target, path), arrow_type)
            case ArrayType() if is_list_like(source):
                return self._with_parts(
                    self._plan_parts([source.value_type], target, path), arrow_type
                )
            case MapType() if (entry := _entry_types(source)) is not None:
                return self._with_parts(self._plan_parts(entry, target, path), arrow_type)
            case StructType() | ArrayType() | MapType():
                raise self.mismatch(source, target, path)
        return self.plan_value(source, target, path)

    def _plan_parts(
        self, source: Sequence[pa.DataType], target: ArrayType | MapType, path: Path
    ) -> list[FieldPlan]:
        """How to get the elements of arrays, or the keys and values of maps."""
        parts = inner_parts(target)
        last = target.contains_null if isinstance(target, ArrayType) else target.value_contains_null
        return [
            FieldPlan(
                (*path, step),
                index,
                null_scalar(pa.null()),
                self.plan(found, wanted, (*path, step)),
                is_nullable=last and index == len(parts) - 1,
            )
            for index, (found, (step, wanted)) in enumerate(zip(source, parts, strict=True))
        ]

    def _with_parts(self, parts: list[FieldPlan], arrow_type: pa.DataType) -> Convert:
        def convert(array: pa.Array) -> pa.Array:
            found = children_of(array)
            if pa.types.is_map(arrow_type) and not pa.types.is_map(array.type):
                found = plain_array(found[0]).flatten()
            children = [part.values(found, len(array)) for part in parts]
            for part, child in zip(parts, children, strict=True):
                if not part.is_nullable:
                    self.check_nulls(part, child, array)
            return with_children(array, children, arrow_type)

        return convert


def _entry_types(source: pa.DataType) -> list[pa.DataType] | None:
    """Key and value type of a map, or of a list of `{key, value}`, the form of maps in frames
    without a map type.
    """
    if pa.types.is_map(source):
        return [source.key_type, source.item_type]
    entry = plain_type(source.value_type) if is_list_like(source) else source
    if not pa.types.is_struct(entry) or [field.name for field in entry] != ["key", "value"]:
        return None
    return [field.type for field in entry] if is_list_like(source) else None
