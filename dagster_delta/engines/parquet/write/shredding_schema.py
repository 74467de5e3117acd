"""Chooses the parts of the variants of a file that get a column, from a sample of the values.

A part gets one if a tenth of the rows have it. Its column takes the most frequent type of its
values; values that do not fit stay encoded beside it. The number of columns is bounded.

Spec: Parquet, Variant Shredding (Shredded Value Types).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias

import msgspec
import numpy as np
import pyarrow as pa

from dagster_delta.engines.parquet.write.encoded_variants import (
    EncodedVariants,
    Kind,
    Parts,
    Places,
)

if TYPE_CHECKING:
    from numpy.typing import NDArray

SAMPLE_ROWS = 4096
"""Rows from which a schema is inferred."""
MAX_COLUMNS = 300
"""Maximum Parquet columns for the variants of one file, as in Spark."""
MAX_DEPTH = 20
_LEAST_SHARE = 10
"""A field gets a column if one in this many rows has it, as in Spark."""
_SMALL_DIGITS, _MOST_DIGITS = 18, 38


class ShreddedGroup(msgspec.Struct, frozen=True):
    """One `value` and `typed_value`: of the variant, of a field, or of the elements of an array."""

    typed: Typed
    """None if there is no `typed_value`."""

    def fields(self) -> list[pa.Field]:
        """The `pyarrow.Field`s of the struct."""
        value = pa.field("value", pa.binary())
        typed = _arrow_type(self.typed)
        return [value] if typed is None else [value, pa.field("typed_value", typed)]

    @property
    def arrow_type(self) -> pa.DataType:
        """`pyarrow.StructType` of a field or an element."""
        return pa.struct(self.fields())


Typed: TypeAlias = "pa.DataType | tuple[tuple[str, ShreddedGroup], ...] | ShreddedGroup | None"
"""The Arrow type of a scalar, the fields of an object by name, or the group of the elements."""


def _arrow_type(typed: Typed) -> pa.DataType | None:
    match typed:
        case ShreddedGroup():
            # Spec: elements and fields are required, and missing if both their parts are null.
            return pa.list_(pa.field("element", typed.arrow_type, nullable=False))
        case tuple():
            return pa.struct(
                [pa.field(name, each.arrow_type, nullable=False) for name, each in typed]
            )
    return typed


class Budget(msgspec.Struct):
    """Number of columns still available to the variants of a file."""

    columns: int = MAX_COLUMNS

    def take(self) -> bool:
        """Use one column; False if none is left."""
        self.columns -= 1
        return self.columns >= 0


def infer_group(variants: EncodedVariants, budget: Budget) -> ShreddedGroup:
    """How a column of variants is split.

    `budget`: budget of columns, which this reduces.
    """
    start = np.where(variants.is_whole, variants.root.start, -1)
    return _Inference(variants, budget).group(Places(start, variants.root.row), 0)


class _Inference(msgspec.Struct, frozen=True):
    variants: EncodedVariants
    budget: Budget

    def group(self, places: Places, depth: int) -> ShreddedGroup:
        """The group for the values at one place."""
        if depth > MAX_DEPTH or not self.budget.take():
            return ShreddedGroup(None)
        kinds = self.variants.kinds(places)
        count = np.bincount(kinds, minlength=len(Kind))
        # Nulls do not indicate the type of the other values.
        count[[Kind.MISSING, Kind.NULL]] = 0
        num_values = int(count.sum())
        if count[Kind.DECIMAL]:
            # Spec: exact numbers are equal across types, and JSON has only numbers.
            count[Kind.DECIMAL] += count[Kind.INTEGER]
            count[Kind.INTEGER] = 0
        kind = Kind(int(count.argmax()))
        if not num_values or 2 * count[kind] <= num_values:
            return ShreddedGroup(None)
        return ShreddedGroup(self._typed(kind, kinds, places, depth))

    def _typed(
        self, kind: Kind, kinds: NDArray[np.signedinteger[Any]], places: Places, depth: int
    ) -> Typed:
        if kind == Kind.OBJECT:
            slots = np.flatnonzero(kinds == kind)
            num_rows = int((kinds != Kind.MISSING).sum())
            return self._fields(self.variants.parts(places, slots), len(places), num_rows, depth)
        if kind == Kind.ARRAY:
            parts = self.variants.parts(places, np.flatnonzero(kinds == kind))
            if not len(parts.start):
                return None
            element = self.group(Places(parts.start, parts.row), depth + 1)
            return None if element.typed is None else element
        if kind == Kind.OTHER or not self.budget.take():
            return None
        if kind == Kind.DECIMAL:
            is_number = (kinds == Kind.DECIMAL) | (kinds == Kind.INTEGER)
            return self._decimal(places.start[is_number])
        return _SCALARS[kind]

    def _fields(self, parts: Parts, num_slots: int, num_rows: int, depth: int) -> Typed:
        names, counts = np.unique(parts.name, return_counts=True)
        kept = counts * _LEAST_SHARE >= num_rows
        names, counts = names[kept], counts[kept]
        # The most frequent ones come first, as there may not be columns for all.
        order = sorted(
            zip(names.tolist(), counts.tolist(), strict=True),
            key=lambda each: (-each[1], self.variants.names[each[0]]),
        )
        found: list[tuple[str, ShreddedGroup]] = []
        for name, _ in order:
            if self.budget.columns <= 0:
                break
            group = self.group(parts.of_name(name, num_slots), depth + 1)
            found.append((self.variants.names[name], group))
        return tuple(sorted(found, key=lambda each: each[0])) or None

    def _decimal(self, start: NDArray[np.int64]) -> pa.DataType:
        """The decimal that holds all numbers at some positions, or as many of their digits as
        possible.
        """
        unscaled, scales, is_wide = self.variants.exact_numbers(start)
        scale = int(scales.max())
        if is_wide.any():
            return pa.decimal128(_MOST_DIGITS, scale)
        digits = scale
        for each in np.unique(scales).tolist():
            found = unscaled[scales == each]
            largest = max(abs(int(found.min())), abs(int(found.max())))
            digits = max(digits, len(str(largest)) + scale - each)
        return pa.decimal128(_SMALL_DIGITS if digits <= _SMALL_DIGITS else _MOST_DIGITS, scale)


_SCALARS = {
    Kind.BOOLEAN: pa.bool_(),
    # Wider than the values, so that larger ones fit too; the encoded size is the same.
    Kind.INTEGER: pa.int64(),
    Kind.FLOAT: pa.float32(),
    Kind.DOUBLE: pa.float64(),
    Kind.DATE: pa.date32(),
    Kind.TIMESTAMP: pa.timestamp("us", tz="UTC"),
    Kind.TIMESTAMP_NTZ: pa.timestamp("us"),
    Kind.BINARY: pa.binary(),
    Kind.STRING: pa.string(),
}
