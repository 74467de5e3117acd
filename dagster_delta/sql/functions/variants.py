"""SQL functions of variants, computed in Python as in Spark; uses that differ are refused.

Spec: Variant Data Type. Spark SQL: parse_json, variant_get.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from decimal import Decimal
from typing import Any

import pyarrow as pa

from dagster_delta.errors import InvalidArgument, UnsupportedExpression
from dagster_delta.protocol.values.arrow_schema import VARIANT_STORAGE
from dagster_delta.protocol.variant.json import json_of_variant, variant_of_json
from dagster_delta.protocol.variant.variant import SingleFloat, decode_variant, encode_variant
from dagster_delta.sql.casts import duckdb_type
from dagster_delta.sql.functions.nested import VariantPath, parse_path
from dagster_delta.sql.text_conversion import PythonFunction
from dagster_delta.sql.types import VARIANT

_DUCKDB_VARIANT = duckdb_type(VARIANT)

_BITS = {"byte": 8, "short": 16, "integer": 32, "long": 64}


def _parse_json(texts: pa.Array) -> pa.Array:
    return pa.array([_stored(text, variant_of_json) for text in texts.to_pylist()], VARIANT_STORAGE)


def _try_parse_json(texts: pa.Array) -> pa.Array:
    return pa.array([_tried(text) for text in texts.to_pylist()], VARIANT_STORAGE)


def _tried(text: str | None) -> dict[str, bytes] | None:
    try:
        return _stored(text, variant_of_json)
    except InvalidArgument as error:
        if "Extra data" in str(error):
            # Spark uses the first value and ignores the rest.
            raise
        return None


def _stored(
    value: Any,  # noqa: ANN401
    encode: Callable[[Any], tuple[bytes, bytes]],
) -> dict[str, bytes] | None:
    metadata, content = (None, None) if value is None else encode(value)
    return None if metadata is None or content is None else {"value": content, "metadata": metadata}


def _getter(
    arrow_type: pa.DataType, *, tries: bool
) -> Callable[[pa.Array, pa.Array, pa.Array], pa.Array]:
    def get(variants: pa.Array, paths: pa.Array, kinds: pa.Array) -> pa.Array:
        if not len(variants):
            return pa.nulls(0, arrow_type)
        path, kind = parse_path(paths[0].as_py()), kinds[0].as_py()
        found = [_get(variant, path, kind, tries=tries) for variant in variants.to_pylist()]
        return pa.array(found, arrow_type)

    return get


def _get(
    variant: Mapping[str, bytes] | None, path: VariantPath, kind: str, *, tries: bool
) -> object:
    if variant is None:
        return None
    value = decode_variant(variant["metadata"], variant["value"])
    for step in path:
        is_there = (
            isinstance(value, dict) and step in value
            if isinstance(step, str)
            else isinstance(value, list) and step < len(value)
        )
        if not is_there:
            return None
        value = value[step]  # type: ignore[index]
    if kind == "variant":
        metadata, content = encode_variant(value)
        return {"value": content, "metadata": metadata}
    return None if value is None else _cast(value, kind, tries=tries)


def _cast(value: object, kind: str, *, tries: bool) -> object:
    match kind, value:
        case "string", str():
            return value
        case "string", bool() | int() | dict() | list():
            return json_of_variant(*encode_variant(value))
        case ("boolean", bool()) | ("double", float()):
            return value
        case "double", int() | Decimal() if not isinstance(value, bool):
            return float(value)
        case (("byte" | "short" | "integer" | "long"), int()) if not isinstance(value, bool):
            bound = 1 << _BITS[kind] - 1
            if -bound <= value < bound:
                return value
            return _nothing(value, kind, tries=tries)
        case _, dict() | list():
            return _nothing(value, kind, tries=tries)
    named = "float" if isinstance(value, SingleFloat) else type(value).__name__
    raise UnsupportedExpression(
        f"a variant holds a value of type {named}, which is cast to {kind} by Spark alone: use the "
        "Spark engine"
    )


def _nothing(value: object, kind: str, *, tries: bool) -> object:
    if tries:
        return None
    raise InvalidArgument(f"{_shown(value)} in a variant does not fit the type {kind}")


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:80]}…"


def _functions() -> Iterator[PythonFunction]:
    yield "parse_json", _parse_json, ["VARCHAR"], _DUCKDB_VARIANT
    yield "try_parse_json", _try_parse_json, ["VARCHAR"], _DUCKDB_VARIANT
    results = {
        "boolean": ("BOOLEAN", pa.bool_()),
        "long": ("BIGINT", pa.int64()),
        "double": ("DOUBLE", pa.float64()),
        "string": ("VARCHAR", pa.string()),
        "variant": (_DUCKDB_VARIANT, VARIANT_STORAGE),
    }
    inputs = [_DUCKDB_VARIANT, "VARCHAR", "VARCHAR"]
    for kind, (result, arrow_type) in results.items():
        for prefix in ("", "try_"):
            compute = _getter(arrow_type, tries=bool(prefix))
            yield f"{prefix}variant_get_{kind}", compute, inputs, result


FUNCTIONS_OF_VARIANTS = tuple(_functions())
"""What the SQL of variants calls."""
