"""Tables of many columns: every operation takes work in proportion to their number."""

from __future__ import annotations

import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

import dagster_delta
from dagster_delta.parquet import reader
from dagster_delta.parquet.store_assignment import assign_batches
from dagster_delta.protocol.statistics.statistics import StatisticsColumn, project_parsed_statistics
from dagster_delta.protocol.values.arrow_schema import from_arrow_schema
from dagster_delta.storage.memory_store import MemoryStore
from dagster_delta.table.delta_table import DeltaTable

PACKAGE = str(Path(dagster_delta.__file__).parent)
ALL_STATISTICS = {
    "delta.dataSkippingNumIndexedCols": -1,
    "delta.checkpoint.writeStatsAsStruct": True,
}

Operation = Callable[[DeltaTable, pa.Table], object]


def rows_of(num_columns: int, first: int = 0) -> pa.Table:
    values = pa.array(range(first, first + 4), pa.int64())
    return pa.table({f"c{index}": values for index in range(num_columns)})


def merge(table: DeltaTable, rows: pa.Table) -> None:
    source = rows_of(rows.num_columns, first=2)
    builder = table.merge(source, on="t.c0 = s.c0")
    builder.when_matched_update_all().when_not_matched_insert_all().execute()


def add_column(table: DeltaTable, rows: pa.Table) -> None:
    table.alter("ALTER TABLE t ADD COLUMN added INT")
    table.append(rows)


OPERATIONS: dict[str, Operation] = {
    "append": lambda table, rows: table.append(rows),
    "append pandas": lambda table, rows: table.append(rows.to_pandas()),
    "overwrite part": lambda table, rows: table.overwrite(rows.slice(1, 1), where="c0 = 1"),
    "scan": lambda table, _: table.snapshot().scan().to_arrow(),
    "scan where": lambda table, _: table.snapshot().scan(where="c1 > 1 AND c3 < 3").to_arrow(),
    "delete": lambda table, _: table.delete("c0 = 1"),
    "update": lambda table, _: table.update(set={"c1": "c1 + 1"}, where="c0 = 2"),
    "merge": merge,
    "alter": add_column,
    "checkpoint": lambda table, _: table.checkpoint(),
    "optimize": lambda table, _: table.optimize(),
}


def lines_run(operation: Callable[[], object]) -> int:
    """How many lines of the package an operation runs, on all threads."""
    # By thread: two that count together would lose some.
    counted: Counter[int] = Counter()

    def trace(frame: FrameType, event: str, _: object) -> Any:
        if not frame.f_code.co_filename.startswith(PACKAGE):
            return None
        counted[threading.get_ident()] += event == "line"
        return trace

    before = sys.gettrace()
    threading.settrace(trace)
    sys.settrace(trace)
    try:
        operation()
    finally:
        sys.settrace(before)
        threading.settrace(None)
    return counted.total()


def lines_for(operation: Operation, num_columns: int) -> int:
    rows = rows_of(num_columns)
    table = DeltaTable.create("", rows.schema, store=MemoryStore(), properties=ALL_STATISTICS)
    table.append(rows)
    table.append(rows)
    return lines_run(lambda: operation(table, rows))


@pytest.mark.parametrize("name", OPERATIONS)
@pytest.mark.examples(4)
def test_work_is_proportional_to_the_number_of_columns(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Two threads that meet files of the same schema at the same time both plan the read of it.
    monkeypatch.setattr(reader, "_thread_count", lambda _: 1)
    operation = OPERATIONS[name]
    lines_for(operation, 10)
    few, some, many = (lines_for(operation, count) for count in (50, 100, 200))
    # Twice the additional columns: twice the additional lines where work is linear, and four times
    # where it is quadratic.
    assert many - some < 2.2 * (some - few), (few, some, many)


class CountedBatch:
    """A record batch that counts how often all of its columns are taken."""

    times_taken = 0

    def __init__(self, batch: pa.RecordBatch) -> None:
        self._batch = batch
        self.num_rows = batch.num_rows

    def slice(self, offset: int, length: int) -> CountedBatch:
        return CountedBatch(self._batch.slice(offset, length))

    @property
    def columns(self) -> list[pa.Array]:
        CountedBatch.times_taken += 1
        columns: list[pa.Array] = self._batch.columns
        return columns


class CountedRows:
    """A reader of one `CountedBatch`."""

    def __init__(self, rows: pa.Table) -> None:
        self.schema = rows.schema
        self._batches = [CountedBatch(batch) for batch in rows.to_batches()]

    def __iter__(self) -> Iterator[CountedBatch]:
        return iter(self._batches)


def test_the_columns_of_a_batch_are_taken_once_and_not_for_each_of_them() -> None:
    rows: Any = CountedRows(rows_of(50))
    CountedBatch.times_taken = 0
    assert len(list(assign_batches(rows, from_arrow_schema(rows.schema), table="t"))) == 1
    assert CountedBatch.times_taken == 1


def test_a_merge_takes_no_struct_of_all_columns_apart_for_each_of_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    calls: list[object] = []
    kernel = pc.struct_field

    def counted(*arguments: Any, **options: Any) -> Any:
        calls.append(options)
        return kernel(*arguments, **options)

    rows = rows_of(50)
    table = DeltaTable("", store=MemoryStore(), must_exist=False)
    table.append(rows)
    monkeypatch.setattr(pc, "struct_field", counted)
    merge(table, rows)
    assert len(calls) < 25
    assert table.snapshot().scan().to_arrow().sort_by("c0")["c49"].to_pylist() == [0, 1, 2, 3, 4, 5]


def test_parsed_statistics_are_taken_apart_once_and_not_for_each_column(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    names = [f"c{index}" for index in range(50)]
    bounds = dict.fromkeys(names, 1)
    parsed = pa.array([{"numRecords": 1, "minValues": bounds, "maxValues": bounds}])
    calls: list[object] = []
    kernel = pc.struct_field

    def counted(*arguments: Any, **options: Any) -> Any:
        calls.append(options)
        return kernel(*arguments, **options)

    monkeypatch.setattr(pc, "struct_field", counted)
    fields = from_arrow_schema(pa.schema([(name, pa.int64()) for name in names]))
    columns = [StatisticsColumn((field.name,), field.data_type) for field in fields]
    table = project_parsed_statistics(parsed, columns)
    assert table["max.49"].to_pylist() == [1]
    assert not calls


def test_a_field_is_found_by_name_without_looking_at_the_others() -> None:
    class CountedName(str):
        comparisons = 0
        __slots__ = ()

        def __eq__(self, other: object) -> bool:
            CountedName.comparisons += 1
            return str.__eq__(self, other)

        __hash__ = str.__hash__

    schema = from_arrow_schema(pa.schema([(f"c{index}", pa.int64()) for index in range(500)]))
    found = schema.get(CountedName("C499"))
    assert found is not None
    assert found.name == "c499"
    assert CountedName.comparisons < 10
