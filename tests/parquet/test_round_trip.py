"""Whatever is written is read back: by us in any mapping mode, and by another implementation."""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Iterator
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dagster_delta.protocol.schema import DecimalType, PrimitiveType, StructType
from dagster_delta.storage import open_store
from dagster_delta.storage.memory_store import MemoryStore
from tests.parquet.data_tables import commit, configuration, mapped_configuration, read, write
from tests.parquet.delta_values import PRIMITIVES, tables

pytestmark = pytest.mark.slow


def rows(table: pa.Table) -> list[str]:
    """Rows as text, in which NaN equals NaN and -0.0 differs from 0.0."""
    return [repr(row) for row in table.to_pylist()]


@settings(max_examples=150, deadline=None)
@given(tables(), st.sampled_from(["none", "name", "id"]))
def test_rows_of_every_type_are_read_back_as_written(drawn: Any, mode: Any) -> None:
    schema, table = drawn
    config = configuration(schema) if mode == "none" else mapped_configuration(schema, mode)
    store = MemoryStore()
    result = write(store, table, config)
    got = read(store, result.files, config)
    assert got.schema == table.schema
    assert rows(got) == rows(table)
    assert result.num_rows == table.num_rows


@settings(max_examples=100, deadline=None)
@given(tables(PRIMITIVES.filter(lambda kind: kind != PrimitiveType("binary"))))
def test_partition_values_of_every_type_are_read_back(drawn: Any) -> None:
    schema, table = drawn
    config = configuration(schema, schema.names[:-1])
    store = MemoryStore()
    if len(schema) == 1:
        return
    files = write(store, table, config).files
    got = read(store, files, config)
    assert sorted(rows(got)) == sorted(rows(_without_empty_values(table, schema.names[:-1])))


def _without_empty_values(table: pa.Table, partition_by: tuple[str, ...]) -> pa.Table:
    """Spec: an empty string, as a partition value, is null."""
    arrays = []
    for field, column in zip(table.schema, table.columns, strict=True):
        values = column.to_pylist()
        if field.name in partition_by:
            values = [None if each in ("", b"") else each for each in values]
        arrays.append(pa.array(values, field.type))
    return pa.Table.from_arrays(arrays, schema=table.schema)


@settings(max_examples=100, deadline=None)
@given(tables())
def test_statistics_bound_the_rows(drawn: Any) -> None:
    schema, table = drawn
    config = configuration(schema)
    (file,) = write(MemoryStore(), table, config).files
    stats = json.loads(file.stats or "", parse_float=Decimal)
    assert stats["numRecords"] == table.num_rows
    leaves = dict(_leaves(schema, table.to_pylist(), ()))
    for path, (kind, values) in leaves.items():
        present = [each for each in values if each is not None]
        assert _at(stats["nullCount"], path) == len(values) - len(present)
        lowest, highest = _at(stats["minValues"], path), _at(stats["maxValues"], path)
        if lowest is not None:
            assert all(_parse(kind, lowest) <= each for each in present if each == each)
        if highest is not None:
            assert all(each <= _parse(kind, highest, is_max=True) for each in present)
        if _is_ordered(kind) and present:
            assert lowest is not None, path


def _leaves(
    schema: StructType, values: list[Any], path: tuple[str, ...]
) -> Iterator[tuple[tuple[str, ...], tuple[Any, list[Any]]]]:
    for each in schema:
        column = [None if row is None else row[each.name] for row in values]
        if isinstance(each.data_type, StructType):
            yield from _leaves(each.data_type, column, (*path, each.name))
        else:
            yield (*path, each.name), (each.data_type, column)


def _at(tree: Any, path: tuple[str, ...]) -> Any:
    for name in path:
        tree = tree.get(name) if isinstance(tree, dict) else None
    return tree


def _is_ordered(kind: Any) -> bool:
    """Whether a column of the type always has a minimum."""
    names = ("byte", "short", "integer", "long", "string", "date", "timestamp", "timestamp_ntz")
    return isinstance(kind, DecimalType) or kind in map(PrimitiveType, names)


def _parse(kind: Any, bound: Any, *, is_max: bool = False) -> Any:
    """A bound as the readers of statistics take it: times are truncated to milliseconds."""
    more = dt.timedelta(milliseconds=1 if is_max else 0)
    match kind:
        case PrimitiveType("date"):
            return dt.date.fromisoformat(bound)
        case PrimitiveType("timestamp" | "timestamp_ntz"):
            value = dt.datetime.fromisoformat(bound)
            limit = dt.datetime.max.replace(tzinfo=value.tzinfo)
            return limit if is_max and limit - value < more else value + more
        case PrimitiveType("float" | "double"):
            return float(bound)
    return bound


@settings(max_examples=25, deadline=None)
@given(drawn=tables())
def test_another_implementation_reads_the_same_rows(
    tmp_path_factory: pytest.TempPathFactory, drawn: Any
) -> None:
    deltalake = pytest.importorskip("deltalake")
    schema, table = drawn
    store = open_store(str(tmp_path_factory.mktemp("table")))
    config = configuration(schema)
    commit(store, config, write(store, table, config).files)
    reader = deltalake.QueryBuilder().register("t", deltalake.DeltaTable(store.location.uri))
    got = pa.table(reader.execute("SELECT * FROM t").read_all())
    assert rows(got.cast(table.schema)) == rows(table)
