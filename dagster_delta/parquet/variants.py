"""Converts Python values and JSON text to columns of variants, and back.

Spec: Variant Data Type.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import cast

import numpy as np
import pyarrow as pa

from dagster_delta.errors import InvalidArgument
from dagster_delta.protocol.values.arrow_schema import VARIANT_STORAGE, is_variant_storage
from dagster_delta.protocol.variant.json import json_of_variant, variant_of_json
from dagster_delta.protocol.variant.variant import decode_variant, encode_variant


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
    return _encoded(values, encode_variant)


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

    return _encoded(texts, encode)


def variants_to_python(variants: pa.StructArray) -> list[object]:
    """A column of variants as Python values: dicts, lists and scalars, None for null.

    Args:
        variants: a column of a scan, `pyarrow.Array` or `pyarrow.ChunkedArray`.

    Raises:
        InvalidArgument: it is not a column of variants.
        InvalidTable, UnsupportedFeature: a variant is damaged, or has no Python value.
    """
    return _decoded(variants, decode_variant)


def variants_to_json(variants: pa.ChunkedArray) -> list[str | None]:
    """A column of variants as compact JSON strings, as by Spark's `to_json` in UTC.

    Args:
        variants: as for `variants_to_python`.

    Raises:
        InvalidArgument, InvalidTable, UnsupportedFeature: as `variants_to_python` does.
    """
    return cast("list[str | None]", _decoded(variants, json_of_variant))


def _encoded(
    values: Iterable[object], encode: Callable[[object], tuple[bytes, bytes]]
) -> pa.StructArray:
    if isinstance(values, str | bytes):
        raise InvalidArgument("a column is made from a list of values: wrap a single one in a list")
    contents: list[bytes | None] = []
    names: list[bytes | None] = []
    for row, given in enumerate(values):
        each = given.as_py() if isinstance(given, pa.Scalar) else given
        try:
            metadata, value = (None, None) if _is_missing(each) else encode(each)
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


def _decoded(
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
