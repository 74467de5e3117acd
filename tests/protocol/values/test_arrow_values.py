"""Arrow values made from Python ones."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dagster_delta.protocol.schema import DataType, DecimalType, PrimitiveType
from dagster_delta.protocol.values.arrow_schema import to_arrow_type
from dagster_delta.protocol.values.arrow_values import array_of, every, null_scalar, scalar_of

_VALUES: dict[DataType, st.SearchStrategy[Any]] = {
    PrimitiveType("byte"): st.integers(-(2**7), 2**7 - 1),
    PrimitiveType("short"): st.integers(-(2**15), 2**15 - 1),
    PrimitiveType("integer"): st.integers(-(2**31), 2**31 - 1),
    PrimitiveType("long"): st.integers(-(2**63), 2**63 - 1),
    PrimitiveType("float"): st.floats(width=32, allow_nan=False),
    PrimitiveType("double"): st.floats(allow_nan=False),
    PrimitiveType("boolean"): st.booleans(),
    PrimitiveType("string"): st.text(),
    PrimitiveType("binary"): st.binary(),
    PrimitiveType("date"): st.dates(),
    PrimitiveType("timestamp"): st.datetimes(timezones=st.just(dt.UTC)),
    PrimitiveType("timestamp_ntz"): st.datetimes(),
    DecimalType(38, 10): st.decimals(
        min_value=-(10**27), max_value=10**27, places=10, allow_nan=False
    ),
}


@given(st.data())
def test_arrays_hold_the_values(data: st.DataObject) -> None:
    data_type = data.draw(st.sampled_from(list(_VALUES)))
    values = data.draw(st.lists(st.none() | _VALUES[data_type], max_size=5))
    found = array_of(values, data_type)
    assert found.type == to_arrow_type(data_type)
    assert found.equals(pa.array(values, to_arrow_type(data_type)))


@pytest.mark.parametrize(
    ("value", "data_type"),
    [
        (128, PrimitiveType("byte")),
        (2**31, PrimitiveType("integer")),
        (2**63, PrimitiveType("long")),
        (Decimal("1.234"), DecimalType(5, 2)),
        (Decimal(1000), DecimalType(5, 2)),
        ("x", PrimitiveType("long")),
    ],
)
def test_a_value_that_does_not_fit_is_refused(value: object, data_type: DataType) -> None:
    with pytest.raises((ValueError, OverflowError, TypeError, pa.ArrowException)):
        array_of([value], data_type)


def test_a_timestamp_with_an_offset_is_an_instant() -> None:
    zone = dt.timezone(dt.timedelta(hours=2))
    found = scalar_of(dt.datetime(2024, 1, 1, 2, tzinfo=zone), PrimitiveType("timestamp"))
    assert found.as_py() == dt.datetime(2024, 1, 1, tzinfo=dt.UTC)


def test_constants_repeat() -> None:
    assert every(True, 2).to_pylist() == [True, True]
    assert every(False, 0).to_pylist() == []
    assert null_scalar(pa.string()).as_py() is None
