"""Bounds of the values at one path of a variant column, of which its minimum and maximum are
objects: paths to values.

Spec: Statistics for Variant Columns.
"""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Mapping
from decimal import Decimal
from functools import lru_cache

from dagster_delta.errors import DeltaError
from dagster_delta.protocol.features.deletion_vectors import decode_z85
from dagster_delta.protocol.schema import DataType, DecimalType, PrimitiveType
from dagster_delta.protocol.variant.binary import SingleFloat, decode_joined, decode_variant

# Names that normalized paths spell with escapes are left out, and blanks, which Spark may skip.
_NAME = r"""[^'"?\\\s\x00-\x1f\[\]]+"""
_STEP = rf"""\.([^.'"\\\s\x00-\x1f\[\]]+)|\['({_NAME})'\]|\["({_NAME})"\]"""
_PATH = re.compile(rf"\$(?:{_STEP})*")


def normalize_path(path: str) -> str | None:
    """A path of `variant_get` as the statistics have it, `$['a']['b']`. None if they may spell it
    in another way, or if it leads through an array, of which they say nothing.
    """
    if _PATH.fullmatch(path) is None:
        return None
    return "$" + "".join(f"['{a or b or c}']" for a, b, c in re.findall(_STEP, path))


def bound_at(stored: object, path: str, data_type: DataType) -> object:
    """The bound of the values at a path as the statistics of a column of a type have it, to which
    all of them are cast. None if the cast could change their order, or the bound.

    Args:
        stored: minimum or maximum of the variant column: Z85 text of the JSON, or its two binaries
            of a checkpoint.
        path: as `normalize_path` returns it.
        data_type: that the values are compared in.
    """
    try:
        if isinstance(stored, str):
            bounds = _decode_text(stored)
        elif isinstance(stored, Mapping):
            bounds = decode_variant(stored["metadata"], stored["value"])
        else:
            return None
    except (DeltaError, KeyError, TypeError):
        return None
    found = bounds.get(path) if isinstance(bounds, dict) else None
    if not _fits(found, data_type):
        return None
    return found.isoformat() if isinstance(found, dt.date) else found


@lru_cache(maxsize=1024)
def _decode_text(text: str) -> object:
    return decode_joined(decode_z85(text))


def _fits(bound: object, data_type: DataType) -> bool:
    """Whether a bound is a value of the type, and casts of others to it keep their order."""
    match bound, data_type:
        case bool(), _:
            return False
        case int() | Decimal(), DecimalType() | PrimitiveType(
            "byte" | "short" | "integer" | "long"
        ):
            return isinstance(data_type, DecimalType) or bound == int(bound)
        case int() | Decimal() | float(), PrimitiveType("double"):
            return float(bound) == bound
        case int() | Decimal() | float(), PrimitiveType("float"):
            return SingleFloat.of(float(bound)) == bound
        case str(), PrimitiveType("string"):
            return True
        case dt.datetime(tzinfo=zone), PrimitiveType("timestamp" | "timestamp_ntz" as name):
            return (zone is None) == (name == "timestamp_ntz")
        case dt.datetime(), _:
            return False
        case dt.date(), PrimitiveType("date"):
            return True
    return False
