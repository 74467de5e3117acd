"""Variants that are split into columns say what they said, whatever they are."""

from __future__ import annotations

from decimal import Decimal
from fractions import Fraction
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dagster_delta import variants_from_json, variants_from_python, variants_to_python
from dagster_delta.engines.parquet.read.variant_reassembly import VariantReassembly
from dagster_delta.engines.parquet.write.variant_shredding import VariantShredding
from dagster_delta.protocol.values.arrow_schema import VARIANT_STORAGE
from tests.protocol.variant_strategies import VARIANTS, canonical

ROWS = st.lists(st.none() | st.tuples(VARIANTS), min_size=1, max_size=8)


def column(values: list[Any]) -> pa.Table:
    return pa.table({"v": variants_from_python(values)})


def inferred(rows: pa.Table) -> VariantShredding:
    shredding = VariantShredding.infer(rows)
    assert shredding is not None
    return shredding


def shredded_type(texts: list[str]) -> Any:
    return inferred(pa.table({"v": variants_from_json(texts)})).arrow_schema.field("v").type


def typed(data_type: Any, *path: str) -> Any:
    """The type of the typed column at a path, or None where the path has none."""
    for name in path:
        data_type = data_type.field("typed_value").type
        data_type = data_type.value_type if name == "[]" else data_type.field(name).type
    names = [each.name for each in data_type]
    return data_type.field("typed_value").type if "typed_value" in names else None


def reassembled(stored: pa.Table) -> list[object]:
    array = stored["v"].combine_chunks()
    array = array.chunk(0) if isinstance(array, pa.ChunkedArray) else array
    array.validate(full=True)
    return variants_to_python(VariantReassembly.plan(array.type, "v").apply(array))


def numbers_alike(value: object) -> object:
    """A value in which exact numbers are equal whatever their type."""
    match value:
        case bool():
            return value
        case int() | Decimal():
            return Fraction(value)
        case list():
            return [numbers_alike(each) for each in value]
        case dict():
            return {name: numbers_alike(each) for name, each in value.items()}
    return value


def same(values: list[Any]) -> list[object]:
    return [canonical(numbers_alike(each)) for each in values]


@given(st.data())
def test_any_values_come_back(data: st.DataObject) -> None:
    sample = [each[0] if each else None for each in data.draw(ROWS)]
    shredding = VariantShredding.infer(column(sample))
    others = [each[0] if each else None for each in data.draw(ROWS)]
    for values in (sample, others, others + sample):
        if shredding is not None:
            assert same(reassembled(shredding.apply(column(values)))) == same(values)


def test_frequent_fields_get_a_column_of_the_type_that_most_values_have() -> None:
    texts = [
        f'{{"n": {each}, "s": "x", "mixed": {each if each % 3 else chr(34) + chr(34)}, '
        f'"list": [1.5, 20], "sub": {{"deep": true}}' + (', "rare": 1}' if each == 7 else "}")
        for each in range(20)
    ]
    found = shredded_type(texts)
    assert typed(found, "n") == typed(found, "mixed") == pa.int64()
    assert typed(found, "s") == pa.string()
    assert typed(found, "list", "[]") == pa.decimal128(18, 1)
    assert typed(found, "sub", "deep") == pa.bool_()
    assert {each.name for each in typed(found)} == {"n", "s", "mixed", "list", "sub"}


def test_a_field_whose_values_are_of_no_one_type_gets_a_column_without_a_type() -> None:
    found = shredded_type([f'{{"x": {each}}}' for each in ("1", '"a"', "true", "[]")])
    assert typed(found, "x") is None
    assert [each.name for each in typed(found)] == ["x"]


def test_fields_that_no_row_of_the_sample_had_stay_in_the_rest() -> None:
    shredding = inferred(column([{"a": 1}]))
    assert reassembled(shredding.apply(pa.table({"v": variants_from_json(["null"])}))) == [None]
    values: list[Any] = [{"a": 2, "b": {"c": [None]}, "0": "first"}, "text", None, {"b": 1}]
    stored = shredding.apply(column(values))
    assert reassembled(stored) == values
    assert [each["value"] is None for each in stored["v"].to_pylist() if each] == [False] * 3


@pytest.mark.parametrize(
    ("texts", "expected"),
    [
        (["1", "2.5", "3.25"], pa.decimal128(18, 2)),
        (["1", "2", "30000000000"], pa.int64()),
        (["0.12345678901234567", "1000.5"], pa.decimal128(38, 17)),
        (["1e20", "2e300"], pa.float64()),
    ],
)
def test_exact_numbers_share_a_column(texts: list[str], expected: Any) -> None:
    assert typed(shredded_type(texts)) == expected


def test_variants_that_share_nothing_are_not_split() -> None:
    assert VariantShredding.infer(column([1, "a", None])) is None
    assert VariantShredding.infer(column([None, None])) is None


def test_no_more_columns_than_a_file_may_have() -> None:
    value = {f"f{each:03}": {"x": each} for each in range(200)}
    shredding = inferred(column([value, value]))
    table = shredding.apply(column([value, {"other": 1}]))
    assert reassembled(table) == [value, {"other": 1}]
    assert len(typed(shredding.arrow_schema.field("v").type)) == 100


def test_a_damaged_variant_is_left_as_it_is() -> None:
    whole = column([{"a": 1}])
    metadata = whole["v"].chunk(0).field("metadata").to_pylist()[0]
    damaged = [
        {"metadata": metadata, "value": b"\x02\x01\x07"},
        {"metadata": b"", "value": b"\x00"},
    ]
    rows = pa.table({"v": pa.array([*whole["v"].to_pylist(), *damaged], VARIANT_STORAGE)})
    stored = inferred(whole).apply(rows)["v"].to_pylist()
    assert [(each["metadata"], each["value"]) for each in stored[1:]] == [
        (each["metadata"], each["value"]) for each in damaged
    ]
