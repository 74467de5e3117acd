"""Hypothesis strategies for schemas, shared by the tests of the protocol."""

from __future__ import annotations

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

PARTITIONABLE_NAMES = (
    "string",
    "long",
    "integer",
    "short",
    "byte",
    "float",
    "double",
    "boolean",
    "binary",
    "date",
    "timestamp",
    "timestamp_ntz",
)

decimals: st.SearchStrategy[DecimalType] = st.integers(1, 38).flatmap(
    lambda precision: st.builds(DecimalType, st.just(precision), st.integers(0, precision))
)

partition_types: st.SearchStrategy[DataType] = st.one_of(
    st.sampled_from(PARTITIONABLE_NAMES).map(PrimitiveType), decimals
)

names = st.text(st.characters(codec="utf-8", exclude_categories=["Cs", "Cc"]), min_size=1)


def struct_types(children: st.SearchStrategy[DataType]) -> st.SearchStrategy[StructType]:
    fields = st.builds(
        StructField,
        names,
        children,
        st.booleans(),
        st.dictionaries(st.just("comment"), st.text(max_size=5)),
    )
    unique = st.lists(fields, min_size=1, max_size=4, unique_by=lambda each: each.name.casefold())
    return unique.map(lambda each: StructType(tuple(each)))


data_types: st.SearchStrategy[DataType] = st.recursive(
    partition_types,
    lambda children: st.one_of(
        st.builds(ArrayType, children, st.booleans()),
        st.builds(MapType, children, children, st.booleans()),
        struct_types(children),
    ),
    max_leaves=6,
)

schemas: st.SearchStrategy[StructType] = struct_types(data_types)
