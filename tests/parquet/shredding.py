"""Shredding as the specification has writers do it, to see that reading undoes it."""

from __future__ import annotations

import datetime as dt
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from hypothesis import strategies as st

from dagster_delta.protocol.variant import binary
from dagster_delta.protocol.variant.binary import NanosecondTimestamp, decode_names, encode_variant


def is_shredded(path: str) -> bool:
    """Whether a data file below a path holds variants that are split."""
    files = [each for each in Path(path).rglob("*.parquet") if "_delta_log" not in each.parts]
    return any("typed_value" in str(pq.read_schema(each)) for each in files)


@dataclass
class Group:
    """One `value` and `typed_value`: a scalar type, fields, the group of the elements, or neither."""

    typed: Any
    holds_values: bool = False
    """Whether a row has needed the `value`."""

    def arrow_type(self, *besides: Any, lean: bool) -> Any:
        """The struct; a lean one leaves out a `value` that no row needs."""
        fields = list(besides)
        if self.typed is None or self.holds_values or not lean:
            fields.append(pa.field("value", pa.binary()))
        match self.typed:
            case None:
                pass
            case Group():
                element = pa.field("element", self.typed.arrow_type(lean=lean), nullable=False)
                fields.append(pa.field("typed_value", pa.list_(element)))
            case Mapping():
                children = [
                    pa.field(name, each.arrow_type(lean=lean), nullable=False)
                    for name, each in self.typed.items()
                ]
                fields.append(pa.field("typed_value", pa.struct(children)))
            case _:
                fields.append(pa.field("typed_value", self.typed))
        return pa.struct(fields)


def shred(group: Group, values: Sequence[tuple[object] | None], *, lean: bool) -> Any:
    """The shredded column of these variants, each in a tuple; None for a null of the column."""
    rows: list[dict[str, Any] | None] = []
    for each in values:
        if each is None:
            rows.append(None)
        else:
            metadata, _ = encode_variant(each[0])
            ids = decode_names(metadata).ids
            rows.append({"metadata": metadata} | _shred(group, each[0], ids))
    metadata_field = pa.field("metadata", pa.binary(), nullable=False)
    return pa.array(rows, group.arrow_type(metadata_field, lean=lean))


def _shred(group: Group, value: object, ids: Mapping[str, int]) -> dict[str, Any]:
    typed = group.typed
    if isinstance(typed, Mapping) and isinstance(value, dict):
        rest = {name: each for name, each in value.items() if name not in typed}
        fields = {
            name: _shred(each, value[name], ids) if name in value else {}
            for name, each in typed.items()
        }
        return {"value": _encode(group, rest, ids) if rest else None, "typed_value": fields}
    if isinstance(typed, Group) and isinstance(value, list):
        return {"typed_value": [_shred(typed, each, ids) for each in value]}
    if isinstance(typed, pa.DataType) and (fits := SCALARS.get(typed)):
        stored = fits(value)
        if stored is not None:
            return {"typed_value": stored}
    return {"value": _encode(group, value, ids)}


def _encode(group: Group, value: object, ids: Mapping[str, int]) -> bytes:
    group.holds_values = True
    return binary._encode_value(value, ids)


def _integer(bits: int) -> Callable[[object], object]:
    limit = 2 ** (bits - 1)
    return lambda value: value if type(value) is int and -limit <= value < limit else None


def _decimal(precision: int, scale: int) -> Callable[[object], object]:
    def fits(value: object) -> object:
        if not isinstance(value, Decimal):
            return None
        _, digits, exponent = value.as_tuple()
        assert isinstance(exponent, int)
        return value if -exponent == scale and len(digits) <= precision else None

    return fits


def _nanoseconds(*, is_utc: bool) -> Callable[[object], object]:
    return lambda value: (
        value.nanoseconds
        if isinstance(value, NanosecondTimestamp) and value.is_utc == is_utc
        else None
    )


def _exactly(kind: type) -> Callable[[object], object]:
    return lambda value: value if type(value) is kind else None


def _timestamp(*, is_utc: bool) -> Callable[[object], object]:
    return lambda value: (
        value if isinstance(value, dt.datetime) and (value.tzinfo is not None) == is_utc else None
    )


# What is stored for a value of the type; None for a value of another.
SCALARS: dict[Any, Callable[[object], object]] = {
    pa.bool_(): _exactly(bool),
    pa.int8(): _integer(8),
    pa.int16(): _integer(16),
    pa.int32(): _integer(32),
    pa.int64(): _integer(64),
    pa.float64(): _exactly(float),
    pa.decimal128(9, 2): _decimal(9, 2),
    pa.decimal128(18, 18): _decimal(18, 18),
    pa.decimal128(38, 0): _decimal(38, 0),
    pa.date32(): _exactly(dt.date),
    pa.time64("us"): _exactly(dt.time),
    pa.timestamp("us", "UTC"): _timestamp(is_utc=True),
    pa.timestamp("us"): _timestamp(is_utc=False),
    pa.timestamp("ns", "UTC"): _nanoseconds(is_utc=True),
    pa.timestamp("ns"): _nanoseconds(is_utc=False),
    pa.binary(): _exactly(bytes),
    pa.large_binary(): _exactly(bytes),
    pa.binary_view(): _exactly(bytes),
    pa.string(): _exactly(str),
    pa.large_string(): _exactly(str),
    pa.string_view(): _exactly(str),
    pa.binary(16): lambda value: value.bytes if isinstance(value, uuid.UUID) else None,
}


def groups(names: st.SearchStrategy[str]) -> st.SearchStrategy[Group]:
    """Random shredding schemas."""
    leaves = st.builds(Group, st.none() | st.sampled_from(list(SCALARS)))
    return st.recursive(
        leaves,
        lambda inner: st.builds(
            Group, inner | st.dictionaries(names, inner, min_size=1, max_size=4)
        ),
        max_leaves=8,
    )
