"""Hypothesis strategies for Delta types and for Arrow tables of them, extremes included."""

from __future__ import annotations

import datetime as dt
from decimal import Context, Decimal
from typing import Any

import pyarrow as pa
from hypothesis import strategies as st

from dagster_delta.protocol.schema import (
    ArrayType,
    DataType,
    DecimalType,
    MapType,
    PrimitiveType,
    StructField,
    StructType,
)
from dagster_delta.protocol.values.arrow_schema import to_arrow_schema

_EXACT = Context(prec=40)
_INTEGER_BITS = {"byte": 8, "short": 16, "integer": 32, "long": 64}

PRIMITIVES: st.SearchStrategy[DataType] = st.sampled_from(
    [
        *(PrimitiveType(name) for name in _INTEGER_BITS),
        *(
            PrimitiveType(name)
            for name in (
                "string",
                "float",
                "double",
                "boolean",
                "binary",
                "date",
                "timestamp",
                "timestamp_ntz",
            )
        ),
        DecimalType(1, 0),
        DecimalType(9, 2),
        DecimalType(18, 18),
        DecimalType(38, 10),
    ]
)

_NAMES = st.sampled_from(["a", "b", "Ä ö", "with.dot", "with space", "c`d", "e=f", "100%"])


def _structs(children: st.SearchStrategy[DataType]) -> st.SearchStrategy[StructType]:
    return st.lists(
        st.tuples(_NAMES, children), min_size=1, max_size=3, unique_by=lambda each: each[0]
    ).map(lambda pairs: StructType(tuple(StructField(name, kind) for name, kind in pairs)))


DATA_TYPES: st.SearchStrategy[DataType] = st.recursive(
    PRIMITIVES,
    lambda children: st.one_of(
        children.map(ArrayType),
        st.tuples(PRIMITIVES.filter(lambda kind: not _is_float(kind)), children).map(
            lambda pair: MapType(*pair)
        ),
        _structs(children),
    ),
    max_leaves=4,
)


def _is_float(data_type: DataType) -> bool:
    return data_type in (PrimitiveType("float"), PrimitiveType("double"))


def values(data_type: DataType) -> st.SearchStrategy[Any]:
    """Python values of a type as Arrow takes them, null included."""
    return st.none() | _non_null(data_type)


def _non_null(data_type: DataType) -> st.SearchStrategy[Any]:
    match data_type:
        case DecimalType(precision, scale):
            bound = 10**precision - 1
            return st.integers(-bound, bound).map(lambda n: Decimal(n).scaleb(-scale, _EXACT))
        case ArrayType(element_type):
            return st.lists(values(element_type), max_size=3)
        case MapType(key_type, value_type):
            return st.lists(
                st.tuples(_non_null(key_type), values(value_type)),
                max_size=3,
                unique_by=lambda each: repr(each[0]),
            )
        case StructType(fields):
            return st.fixed_dictionaries({each.name: values(each.data_type) for each in fields})
        case PrimitiveType(name) if name in _INTEGER_BITS:
            bits = _INTEGER_BITS[name]
            return st.integers(-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)
        case PrimitiveType(name):
            return _OTHERS[name]
    raise AssertionError(data_type)


_OTHERS: dict[str, st.SearchStrategy[Any]] = {
    "string": st.text(max_size=50),
    "float": st.floats(width=32),
    "double": st.floats(),
    "boolean": st.booleans(),
    "binary": st.binary(max_size=5),
    "date": st.dates(),
    "timestamp": st.datetimes(timezones=st.just(dt.UTC)),
    "timestamp_ntz": st.datetimes(),
}


@st.composite
def tables(draw: st.DrawFn, types: st.SearchStrategy[DataType] = DATA_TYPES) -> Any:
    """A Delta schema and a `pyarrow.Table` of its Arrow form."""
    kinds = draw(st.lists(types, min_size=1, max_size=3))
    schema = StructType(
        tuple(StructField(f"column {index}", kind) for index, kind in enumerate(kinds))
    )
    count = draw(st.integers(1, 8))
    columns = [draw(st.lists(values(kind), min_size=count, max_size=count)) for kind in kinds]
    arrow = to_arrow_schema(schema)
    arrays = [pa.array(each, field.type) for each, field in zip(columns, arrow, strict=True)]
    return schema, pa.Table.from_arrays(arrays, schema=arrow)
