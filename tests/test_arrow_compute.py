"""Functions of Arrow that get their wrapper one by one, beside those of `pyarrow.compute`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pyarrow.compute
import pytest

import dagster_delta.arrow_compute as pc

NUMBERS = pa.array([3, None, 1, 3])
TEXTS = pa.array(["ab", None, "b"])

CALLS: dict[str, Callable[[Any], Any]] = {
    "without options": lambda module: module.add(NUMBERS, 1),
    "with a keyword's name": lambda module: module.and_(pa.array([True, None]), True),
    "with any number of values": lambda module: module.coalesce(NUMBERS, NUMBERS, 7),
    "of any number of values with options": lambda module: module.max_element_wise(
        NUMBERS, 2, skip_nulls=False
    ),
    "with options by name": lambda module: module.is_in(NUMBERS, value_set=pa.array([3])),
    "with options by position": lambda module: module.match_substring(TEXTS, "a"),
    "with options as one": lambda module: module.sum(
        NUMBERS, options=module.ScalarAggregateOptions(skip_nulls=False)
    ),
    "with a memory pool": lambda module: module.take(
        NUMBERS, pa.array([2]), memory_pool=pa.system_memory_pool()
    ),
    "of a table": lambda module: module.filter(
        pa.table({"n": NUMBERS}), pa.array([True, None, False, True])
    ),
    "defined by pyarrow.compute alone": lambda module: module.top_k_unstable(NUMBERS, 2),
    "with other arguments there": lambda module: module.index(NUMBERS, 1),
    "cast": lambda module: module.cast(NUMBERS, pa.int8()),
    "unsafe cast": lambda module: module.cast(pa.scalar(1.5), pa.int8(), safe=False),
    "cast with options": lambda module: module.cast(
        pa.array([1.5]), options=module.CastOptions.unsafe(pa.int8())
    ),
    "fill_null": lambda module: module.fill_null(NUMBERS, 7),
    "fill_null with another type": lambda module: module.fill_null(
        NUMBERS, pa.scalar(7, pa.int8())
    ),
}
"""Calls of a function by a property of the function or of the call."""


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_a_function_returns_what_pyarrow_compute_returns(call: Callable[[Any], Any]) -> None:
    assert call(pc).equals(call(pyarrow.compute))


@pytest.mark.parametrize(
    ("call", "error"),
    [
        (lambda module: module.cast(pa.array([1.5]), pa.int8()), pa.ArrowInvalid),
        (lambda module: module.add(NUMBERS), (TypeError, pa.ArrowInvalid)),
        (lambda module: module.add(NUMBERS, 1, 2), (TypeError, pa.ArrowInvalid)),
        (lambda module: module.add(NUMBERS, 1, skip_nulls=True), TypeError),
        (lambda module: module.sum(NUMBERS, no_such_option=True), TypeError),
        (lambda module: module.no_such_function(NUMBERS), AttributeError),
    ],
)
def test_a_wrong_call_fails(
    call: Callable[[Any], Any], error: type[Exception] | tuple[type[Exception], ...]
) -> None:
    for module in (pc, pyarrow.compute):
        with pytest.raises(error):
            call(module)


def test_no_function_is_hidden_by_another_name_of_the_module() -> None:
    names = set(pyarrow.compute.list_functions()) - {"index", "random"}
    wrapped = {name for name in names if hasattr(pyarrow.compute, name)}
    assert {name for name in wrapped if getattr(pc, name).__module__ != pc.__name__} == set()
