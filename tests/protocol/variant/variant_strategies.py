"""Hypothesis strategies for the values of variants, shared with the tests of the engines."""

from __future__ import annotations

import datetime as dt
import uuid
from decimal import Decimal

from hypothesis import strategies as st

from dagster_delta.protocol.variant.binary import NanosecondTimestamp

LONGS = st.integers(-(2**63), 2**63 - 1)
# UTF-8 has no half of a surrogate pair.
TEXTS = st.text(st.characters(codec="utf-8"), max_size=80)
NAMES = st.sampled_from(["a", "b", "c", "é", "\uffff", "\U0001f600", ""])

DECIMALS = st.builds(
    lambda unscaled, scale: Decimal(f"{unscaled}E-{scale}"),
    st.integers(-(10**38) + 1, 10**38 - 1) | st.integers(-1000, 1000),
    st.integers(0, 38),
)
# Spark has no type for these.
BEYOND_SPARK: st.SearchStrategy[object] = st.one_of(
    st.times(),
    st.builds(uuid.UUID, int=st.integers(0, 2**128 - 1)),
    st.builds(NanosecondTimestamp, LONGS, st.booleans()),
)
SPARK_SCALARS: st.SearchStrategy[object] = st.one_of(
    st.none(),
    st.booleans(),
    LONGS,
    st.integers(-200, 200),
    st.floats(allow_nan=False),
    DECIMALS,
    TEXTS,
    st.binary(max_size=80),
    st.dates(),
    st.datetimes(),
    st.datetimes(timezones=st.just(dt.UTC)),
)


def nested(scalars: st.SearchStrategy[object]) -> st.SearchStrategy[object]:
    """Those, and arrays and objects of them."""
    return st.recursive(
        scalars,
        lambda inner: (
            st.lists(inner, max_size=4)
            | st.dictionaries(NAMES, inner, max_size=4)
            | st.dictionaries(TEXTS, inner, max_size=3)
        ),
        max_leaves=12,
    )


VARIANTS = nested(SPARK_SCALARS | BEYOND_SPARK)
SPARK_VARIANTS = nested(SPARK_SCALARS)


def canonical(value: object) -> object:
    """A form in which values are equal where variants are: True is not 1, and 1.0 is not 1."""
    match value:
        case dict():
            return ("object", sorted((name, canonical(each)) for name, each in value.items()))
        case list():
            return ("array", [canonical(each) for each in value])
        case float():
            return ("float", value.hex())
    return (type(value).__name__, value)
