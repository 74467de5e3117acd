"""Properties that are computed once: instances do not wait for each other."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from io import BytesIO
from threading import Barrier
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dagster_delta.cached_property import cached_property
from dagster_delta.protocol.checkpoint.reader import CheckpointPart

# Only a test that fails waits that long.
DEADLOCK_S = 60


class _Counted:
    """Its property says how often it was computed."""

    def __init__(self, before: Callable[[], object] = int) -> None:
        self.computed = 0
        self._before = before

    @cached_property
    def value(self) -> list[int]:
        """What is kept."""
        self._before()
        self.computed += 1
        return [self.computed]


def test_a_value_is_computed_once() -> None:
    counted = _Counted()
    assert counted.value is counted.value
    assert counted.computed == 1
    assert _Counted().value is not counted.value


def test_the_class_gives_the_property_with_its_docstring() -> None:
    assert isinstance(_Counted.value, cached_property)
    assert _Counted.value.__doc__ == "What is kept."


def test_what_raises_is_computed_again() -> None:
    failures = [ValueError("once")]

    def fail_once() -> None:
        if failures:
            raise failures.pop()

    counted = _Counted(fail_once)
    with pytest.raises(ValueError, match="once"):
        _ = counted.value
    assert counted.value == [1]


def test_threads_that_ask_one_instance_get_the_same_value() -> None:
    both = Barrier(2)
    counted = _Counted(lambda: both.wait(DEADLOCK_S))
    with ThreadPoolExecutor(2) as pool:
        first, second = pool.map(lambda _: counted.value, range(2))
    assert first is second is counted.value


def test_two_instances_compute_at_the_same_time() -> None:
    # Neither gets past the barrier before the other one has come to it.
    both = Barrier(2)
    instances = [_Counted(lambda: both.wait(DEADLOCK_S)) for _ in range(2)]
    with ThreadPoolExecutor(2) as pool:
        assert list(pool.map(lambda each: each.value, instances)) == [[1], [1]]


def test_footers_of_two_checkpoints_are_read_at_the_same_time() -> None:
    both, file = Barrier(2), BytesIO()
    pq.write_table(pa.table({"x": [1]}), file)

    def open_slowly() -> Any:
        both.wait(DEADLOCK_S)
        return pa.BufferReader(file.getvalue())

    parts = [CheckpointPart(open_slowly, f"{n}.checkpoint.parquet") for n in range(2)]
    with ThreadPoolExecutor(2) as pool:
        assert [schema.names for schema in pool.map(lambda part: part.schema, parts)] == [["x"]] * 2
