"""Columns of variants: from Python values, JSON text and plain columns, and back.

Spec: Variant Data Type; Parquet, Variant Binary Encoding. Spark SQL: ANSI store assignment.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import Any, cast

import numpy as np
import pyarrow as pa

from dagster_delta.errors import DeltaError, InvalidArgument, InvalidCast
from dagster_delta.protocol.values.arrow_schema import VARIANT_STORAGE, is_variant_storage
from dagster_delta.protocol.variant.binary import (
    SingleFloat,
    check_variant,
    decode_variant,
    encode_variant,
)
from dagster_delta.protocol.variant.json import json_of_variant, variant_of_json

_Convert = Callable[[pa.Array], pa.Array]


def variants_from_python(values: Iterable[object]) -> pa.StructArray:
    """A column of variants encoded from Python values, to append to a column of type `variant`.

    Args:
        values: mappings of strings, lists, tuples, str, int, float, bool, `Decimal`, bytes, dates,
            times, datetimes, `UUID`s. None is a null of the column, not a null inside a variant.

    Returns:
        A `pyarrow.StructArray`, which a new table also stores as a `variant` column.

    Raises:
        InvalidArgument: the variant encoding has no type for a value.
    """
    return _encode_column(values, encode_variant)


def variants_from_json(texts: Iterable[str | None]) -> pa.StructArray:
    """A column of variants parsed from JSON strings, as by Spark's `parse_json`.

    Args:
        texts: JSON, or None for a null of the column; a pyarrow array, a pandas Series or any
            iterable.

    Returns:
        As `variants_from_python`.

    Raises:
        InvalidArgument: a text is not JSON; the message shows where.
    """

    def encode(text: object) -> tuple[bytes, bytes]:
        if not isinstance(text, str):
            raise InvalidArgument(
                f"JSON has to be a string, and {text!r} is of type {type(text).__name__}"
            )
        return variant_of_json(text)

    return _encode_column(texts, encode)


def variants_to_python(variants: pa.StructArray) -> list[object]:
    """A column of variants as Python values: dicts, lists and scalars, None for null.

    Args:
        variants: a column of a scan, `pyarrow.Array` or `pyarrow.ChunkedArray`.

    Raises:
        InvalidArgument: it is not a column of variants.
        InvalidTable, UnsupportedFeature: a variant is damaged, or has no Python value.
    """
    return _decode_column(variants, decode_variant)


def variants_to_json(variants: pa.ChunkedArray) -> list[str | None]:
    """A column of variants as compact JSON strings, as by Spark's `to_json` in UTC.

    Args:
        variants: as for `variants_to_python`.

    Raises:
        InvalidArgument, InvalidTable, UnsupportedFeature: as `variants_to_python` does.
    """
    return cast("list[str | None]", _decode_column(variants, json_of_variant))


def _encode_column(
    values: Iterable[object], encode: Callable[[object], tuple[bytes, bytes]]
) -> pa.StructArray:
    if isinstance(values, str | bytes):
        raise InvalidArgument("a column is made from a list of values: wrap a single one in a list")
    contents: list[bytes | None] = []
    names: list[bytes | None] = []
    for row, given in enumerate(values):
        plain = given.as_py() if isinstance(given, pa.Scalar) else given
        try:
            metadata, value = (None, None) if _is_missing(plain) else encode(plain)
        except InvalidArgument as error:
            raise InvalidArgument(f"row {row}: {error}") from error
        contents.append(value)
        names.append(metadata)
    return pa.StructArray.from_arrays(
        [pa.array(contents, pa.binary()), pa.array(names, pa.binary())],
        fields=list(VARIANT_STORAGE),
        mask=pa.array(np.array([content is None for content in contents], dtype=bool)),
    )


def _is_missing(value: object) -> bool:
    # pandas has its own nulls; do not import it to check.
    return value is None or type(value).__name__ in ("NAType", "NaTType")


def _decode_column(
    variants: pa.Array | pa.ChunkedArray, decode: Callable[[bytes, bytes], object]
) -> list[object]:
    if not is_variant_storage(variants.type):
        raise InvalidArgument(
            f"a column of variants is a struct of value and metadata, and this is {variants.type}"
        )
    return [
        None if variant is None else decode(variant["metadata"], variant["value"])
        for variant in variants.to_pylist()
    ]


def variant_check(*, table: str, column: str, is_trusted: bool) -> _Convert:
    """A function that checks the variants of one column, batch by batch.

    `is_trusted`: whether they were encoded or stored by an engine, so that only nulls are looked
    for: to check every value takes as long as to decode it.
    """
    seen = 0

    def check(array: pa.StructArray) -> pa.StructArray:
        nonlocal seen
        for row, variant in enumerate(() if _is_sound(array, is_trusted) else array.to_pylist()):
            flaw = None if variant is None else _find_flaw(variant["metadata"], variant["value"])
            if flaw is not None:
                raise InvalidCast(
                    f"column {column} cannot store the variant in row {seen + row}: {flaw}; encode "
                    "it again with variants_from_python or variants_from_json",
                    table=table,
                    column=column,
                    examples=(repr(variant["value"]),),
                )
        seen += len(array)
        return array.cast(VARIANT_STORAGE)

    return check


def _is_sound(array: pa.StructArray, is_trusted: bool) -> bool:
    return is_trusted and all(part.null_count == array.null_count for part in array.flatten())


def _find_flaw(metadata: bytes | None, value: bytes | None) -> str | None:
    """The problem of a variant, as a clause; None if it has none."""
    if metadata is None or value is None:
        return "its value or its dictionary of names is null"
    if max(len(metadata), len(value)) > _MAX_BYTES:
        return f"its value or its dictionary of names has more than {_MAX_BYTES} bytes"
    try:
        check_variant(metadata, value)
    except DeltaError as error:
        # The remedy in that error is for tables, but these are values of a user.
        return re.split(r"; |: read ", error.message.removeprefix("a variant is damaged: "))[0]
    return None


_MAX_BYTES = 128 * 1024 * 1024
"""Bytes of a value, and of a dictionary of names, that Spark reads at most."""


def variant_cast(source: pa.DataType) -> _Convert:
    """A function that encodes simple values, as Spark's CAST does: text is a string, not JSON."""
    if pa.types.is_nested(source) or pa.types.is_duration(source) or pa.types.is_interval(source):
        raise TypeError(f"{source} is not a simple value")
    if pa.types.is_date64(source):
        return lambda array: _encoded_simple(array.cast(pa.date32()))
    if pa.types.is_timestamp(source):
        target = pa.timestamp("us", "UTC" if source.tz else None)
        return lambda array: _encoded_simple(array.cast(target))
    if pa.types.is_float32(source) or pa.types.is_float16(source):
        return lambda array: _encoded_simple(array, SingleFloat)
    return _encoded_simple


def _encoded_simple(
    array: pa.Array, wrap: Callable[[Any], object] = lambda value: value
) -> pa.StructArray:
    try:
        values = [None if value is None else wrap(value) for value in array.to_pylist()]
        return variants_from_python(values)
    except (InvalidArgument, ValueError, OverflowError) as error:
        # Python's dates have a smaller range of years than Spark's.
        raise pa.ArrowInvalid(str(error)) from error
