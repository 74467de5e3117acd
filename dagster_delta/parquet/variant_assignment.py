"""Prepares values for a column of variants: encoded ones are checked, simple ones encoded.

Spec: Variant Data Type; Parquet, Variant Binary Encoding. Spark SQL: ANSI store assignment.
"""

from __future__ import annotations

from collections.abc import Callable

import pyarrow as pa
import pyarrow.compute as pc

from dagster_delta.errors import InvalidArgument, InvalidCast
from dagster_delta.parquet.variant_binaries import describe_malformed, first_malformed
from dagster_delta.parquet.variants import variants_from_python
from dagster_delta.protocol.variant.variant import SingleFloat

_Convert = Callable[[pa.Array], pa.Array]


def encoded_variants(*, table: str, column: str) -> _Convert:
    """A function that checks the variants of one column, batch by batch."""
    seen = 0

    def check(array: pa.StructArray) -> pa.StructArray:
        nonlocal seen
        value, metadata = array.field("value"), array.field("metadata")
        rows = None
        if array.null_count:
            rows = pc.indices_nonzero(pc.is_valid(array))
            value, metadata = value.take(rows), metadata.take(rows)
        if value.null_count or metadata.null_count:
            position = pc.indices_nonzero(pc.or_(pc.is_null(value), pc.is_null(metadata)))[0]
            found, flaw = position.as_py(), "its value or its dictionary of names is null"
        else:
            malformed = first_malformed(metadata, value)
            if malformed is None:
                seen += len(array)
                return array
            found = malformed
            flaw = describe_malformed(metadata[found].as_py(), value[found].as_py())
        row = seen + (found if rows is None else rows[found].as_py())
        raise InvalidCast(
            f"column {column} cannot store the variant in row {row}: {flaw}; encode it again with "
            "variants_from_python or variants_from_json",
            table=table,
            column=column,
            examples=(repr(value[found].as_py())[:80],),
        )

    return check


def variant_cast(source: pa.DataType) -> _Convert:
    """A function that encodes simple values, as Spark's CAST does: text is a string, not JSON."""
    if pa.types.is_nested(source) or pa.types.is_duration(source) or pa.types.is_interval(source):
        message = f"{source} is not a simple value"
        raise TypeError(message)
    if pa.types.is_date64(source):
        return lambda array: _encoded(array.cast(pa.date32()))
    if pa.types.is_timestamp(source):
        target = pa.timestamp("us", "UTC" if source.tz else None)
        return lambda array: _encoded(array.cast(target))
    if pa.types.is_float32(source) or pa.types.is_float16(source):
        return lambda array: _encoded(array, SingleFloat)
    return _encoded


def _encoded(array: pa.Array, wrap: Callable[[str], object] | None = None) -> pa.StructArray:
    try:
        values = array.to_pylist()
        if wrap is not None:
            values = [None if value is None else wrap(value) for value in values]
        return variants_from_python(values)
    except (InvalidArgument, ValueError, OverflowError) as error:
        # Python's dates have a smaller range of years than Spark's.
        raise pa.ArrowInvalid(str(error)) from error
