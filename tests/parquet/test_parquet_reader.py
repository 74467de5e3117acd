"""Data files of any writer become rows of the table's schema."""

from __future__ import annotations

import datetime as dt
import re
import threading
import uuid
from collections.abc import Iterator, Sequence
from decimal import Decimal
from functools import cache
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyroaring import BitMap64

from dagster_delta.errors import (
    CorruptDeletionVector,
    DataFileMissing,
    InvalidArgument,
    InvalidTable,
    MemoryExhausted,
)
from dagster_delta.parquet import data_file_reader, opened_file, reader
from dagster_delta.parquet.data_file_reader import DataFileReader
from dagster_delta.parquet.opened_file import data_files
from dagster_delta.parquet.ordered_prefetch import prefetch_in_order
from dagster_delta.parquet.reader import SMALL_BATCH_ROWS, read_files
from dagster_delta.protocol.actions import AddFile
from dagster_delta.protocol.features.deletion_vectors import (
    deletion_vector_path,
    encode_deletion_vector_file,
)
from dagster_delta.protocol.features.table_configuration import TableConfiguration
from dagster_delta.protocol.schema import (
    ArrayType,
    DataType,
    DecimalType,
    MapType,
    PrimitiveType,
    StructField,
    StructType,
)
from dagster_delta.sql.expressions import parse_expression
from dagster_delta.storage import open_store
from dagster_delta.storage.memory_store import MemoryStore
from dagster_delta.storage.object_store import ObjectStore
from dagster_delta.table.delta_table import DeltaTable
from tests.inline_vectors import encode_inline
from tests.parquet.data_tables import (
    configuration,
    featured,
    live_files,
    mapped_configuration,
    plan_of,
    read,
    schema_of,
    write,
)

LONG = PrimitiveType("long")
STRING = PrimitiveType("string")


def struct(**fields: DataType) -> StructType:
    return StructType(tuple(StructField(name, kind) for name, kind in fields.items()))


def add_file(
    store: ObjectStore, table: pa.Table, path: str = "f.parquet", **options: Any
) -> AddFile:
    """A file as some other writer left it."""
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink, **options)
    data = sink.getvalue().to_pybytes()
    store.put(path, data)
    return AddFile(
        path=path,
        partition_values={},
        size_bytes=len(data),
        modification_time_ms=0,
        data_change=True,
    )


PAGES: dict[str, Any] = {
    "write_page_index": True, "data_page_size": 64, "write_batch_size": 16, "use_dictionary": False,
}  # fmt: skip
"""Options of a file with pages of 16 rows, and their bounds."""


def read_as(table: pa.Table, schema: StructType, **options: Any) -> list[dict[str, Any]]:
    """The rows of one file, read under a table's schema."""
    store = MemoryStore()
    file = add_file(store, table, **options)
    return read(store, [file], configuration(schema)).to_pylist()


def test_columns_are_found_by_name_without_regard_to_case() -> None:
    table = pa.Table.from_arrays([pa.array([1]), pa.array([2]), pa.array([3])], ["A", "a", "B"])
    assert read_as(table.select([1, 2]), struct(a=LONG, b=LONG)) == [{"a": 2, "b": 3}]
    assert read_as(table, struct(b=LONG)) == [{"b": 3}]
    with pytest.raises(InvalidTable, match="several columns called a"):
        read_as(table, struct(a=LONG, b=LONG))


def test_columns_the_file_lacks_are_null_at_every_depth() -> None:
    inner = struct(x=LONG, new=STRING)
    schema = struct(s=inner, l=ArrayType(inner), m=MapType(STRING, inner), new=LONG)
    table = pa.table(
        {
            "s": [{"x": 1}, None],
            "l": [[{"x": 2}, None], None],
            "m": pa.array([[("k", {"x": 3})], []], pa.map_(pa.string(), pa.struct([("x", pa.int64())]))),
        }
    )  # fmt: skip
    assert read_as(table, schema) == [
        {
            "s": {"x": 1, "new": None},
            "l": [{"x": 2, "new": None}, None],
            "m": [("k", {"x": 3, "new": None})],
            "new": None,
        },
        {"s": None, "l": None, "m": [], "new": None},
    ]


def test_columns_the_table_lacks_are_ignored_at_every_depth() -> None:
    table = pa.table({"gone": [1], "s": [{"gone": 1, "x": 2}], "a": [3]})
    assert read_as(table, struct(a=LONG, s=struct(x=LONG))) == [{"a": 3, "s": {"x": 2}}]


@pytest.mark.parametrize(
    ("array", "target", "value"),
    [
        (pa.array([7], pa.int8()), PrimitiveType("short"), 7),
        (pa.array([7], pa.int8()), LONG, 7),
        (pa.array([7], pa.int32()), PrimitiveType("double"), 7.0),
        (pa.array([7], pa.int32()), DecimalType(12, 2), Decimal("7.00")),
        (pa.array([2**62], pa.int64()), DecimalType(22, 2), Decimal(2**62)),
        (pa.array([0.5], pa.float32()), PrimitiveType("double"), 0.5),
        (pa.array([Decimal("1.5")], pa.decimal128(3, 1)), DecimalType(10, 4), Decimal("1.5000")),
        (pa.array([dt.date(2020, 1, 2)]), PrimitiveType("timestamp_ntz"), dt.datetime(2020, 1, 2)),
        (pa.array([7], pa.int64()), PrimitiveType("byte"), 7),
        (pa.array([0], pa.timestamp("ms")), PrimitiveType("timestamp"), dt.datetime(1970, 1, 1, tzinfo=dt.UTC)),
        (pa.array([-1000], pa.timestamp("ns")), PrimitiveType("timestamp_ntz"), dt.datetime(1969, 12, 31, 23, 59, 59, 999999)),
        (pa.array([200], pa.uint8()), PrimitiveType("short"), 200),
        (pa.array([60_000], pa.uint16()), PrimitiveType("integer"), 60_000),
        (pa.array([4_000_000_000], pa.uint32()), LONG, 4_000_000_000),
        (pa.array([4_000_000_000], pa.uint32()), PrimitiveType("double"), 4e9),
        (pa.array([2**63 + 5], pa.uint64()), DecimalType(20, 0), Decimal(2**63 + 5)),
        (pa.array([7], pa.uint64()), PrimitiveType("byte"), 7),
        (pa.array(["a"], pa.large_string()), STRING, "a"),
        (pa.array([b"a"]), STRING, "a"),
        (pa.array(["a"]), PrimitiveType("binary"), b"a"),
        (pa.array([b"ab"], pa.binary(2)), PrimitiveType("binary"), b"ab"),
        (pa.array(["a", ]).dictionary_encode(), STRING, "a"),
        (pa.array([[1]], pa.large_list(pa.int32())), ArrayType(LONG), [1]),
    ],
)  # fmt: skip
def test_other_and_narrower_types_are_read_as_the_tables(
    array: pa.Array, target: DataType, value: Any
) -> None:
    assert read_as(pa.table({"c": array}), struct(c=target)) == [{"c": value}]
    nested = pa.array([[{"v": array[0].as_py()}]], pa.list_(pa.struct([("v", array.type)])))
    (row,) = read_as(pa.table({"c": nested}), struct(c=ArrayType(struct(v=target))))
    assert row == {"c": [{"v": value}]}


@pytest.mark.parametrize(
    ("array", "target"),
    [
        (pa.array([1], pa.int64()), PrimitiveType("double")),
        (pa.array([1], pa.uint64()), PrimitiveType("double")),
        (pa.array([1], pa.int8()), PrimitiveType("float")),
        (pa.array([1.0]), PrimitiveType("float")),
        (pa.array([1.0]), LONG),
        (pa.array([Decimal("1.50")]), DecimalType(3, 1)),
        (pa.array([Decimal("1.5")]), PrimitiveType("double")),
        (pa.array([dt.date(2020, 1, 1)]), PrimitiveType("timestamp")),
        (pa.array([0], pa.timestamp("us")), PrimitiveType("date")),
        # Of these, some values fit.
        (pa.array([1], pa.timestamp("ns")), PrimitiveType("timestamp")),
        (pa.array([1], pa.timestamp("ns", "UTC")), PrimitiveType("timestamp_ntz")),
        (pa.array([300], pa.int64()), PrimitiveType("byte")),
        (pa.array([200], pa.uint8()), PrimitiveType("byte")),
        (pa.array([2**63], pa.uint64()), LONG),
        (pa.array([1000], pa.int64()), DecimalType(3, 0)),
        (pa.array([Decimal("12.50")]), DecimalType(3, 2)),
    ],
    ids=str,
)
def test_a_file_whose_type_loses_a_part_in_that_of_the_column_is_named(
    array: pa.Array, target: DataType
) -> None:
    for values, type_ in ((array, target), (pa.array([[array[0]]], pa.list_(array.type)), ArrayType(target))):  # fmt: skip
        with pytest.raises(InvalidTable, match=f"where column c.* is of type {re.escape(str(target))}") as found:  # fmt: skip
            read_as(pa.table({"c": values}), struct(c=type_))
        assert found.value.file == "f.parquet"


def test_map_keys_and_values_are_widened() -> None:
    table = pa.table({"m": pa.array([[(1, 2.5)]], pa.map_(pa.int8(), pa.float32()))})
    assert read_as(table, struct(m=MapType(LONG, PrimitiveType("double")))) == [{"m": [(1, 2.5)]}]


def test_int96_times_are_exact_far_outside_the_range_of_nanoseconds() -> None:
    moments = [dt.datetime(1, 1, 2, tzinfo=dt.UTC), dt.datetime(9999, 12, 31, 23, tzinfo=dt.UTC)]
    table = pa.table({"t": pa.array(moments, pa.timestamp("us", "UTC"))})
    rows = read_as(
        table, struct(t=PrimitiveType("timestamp")), use_deprecated_int96_timestamps=True
    )
    assert [row["t"] for row in rows] == moments


@pytest.mark.parametrize(
    ("array", "target"),
    [
        (pa.array(["1"]), LONG),
        (pa.array([1.5]), LONG),
        (pa.array([1.5]), PrimitiveType("float")),
        (pa.array([dt.date(2020, 1, 1)]), PrimitiveType("timestamp")),
        (pa.array([1]), PrimitiveType("timestamp")),
        (pa.array([1]), ArrayType(LONG)),
        (pa.array([[1]]), LONG),
        (pa.array([Decimal("1.55")]), DecimalType(3, 1)),
        (pa.array([300]), PrimitiveType("byte")),
    ],
)
def test_a_file_that_was_not_written_for_the_schema_is_refused_by_name(
    array: pa.Array, target: DataType
) -> None:
    with pytest.raises(InvalidTable) as caught:
        read_as(pa.table({"c": array}), struct(c=target))
    assert caught.value.file == "f.parquet"


def test_physical_names_count_at_every_depth_and_logical_ones_do_not() -> None:
    config = mapped_configuration(struct(a=LONG, s=struct(b=LONG)), "name")
    table = pa.table({"col-1": [1], "a": [9], "col-2": [{"col-3": 2, "b": 9}]})
    store = MemoryStore()
    file = add_file(store, table)
    assert read(store, [file], config).to_pylist() == [{"a": 1, "s": {"b": 2}}]


def _with_id(name: str, kind: pa.DataType, number: int) -> pa.Field:
    return pa.field(name, kind, metadata={b"PARQUET:field_id": str(number).encode()})


def test_ids_count_at_every_depth_and_names_do_not() -> None:
    config = mapped_configuration(struct(a=LONG, s=struct(b=LONG, c=LONG)), "id")
    nested = pa.struct([_with_id("col-5", pa.int64(), 3), _with_id("col-3", pa.int64(), 77)])
    schema = pa.schema([_with_id("y", nested, 2), _with_id("x", pa.int64(), 1)])
    table = pa.Table.from_pylist([{"y": {"col-5": 2, "col-3": 9}, "x": 1}], schema)
    store = MemoryStore()
    file = add_file(store, table)
    assert read(store, [file], config).to_pylist() == [{"a": 1, "s": {"b": 2, "c": None}}]


def test_a_file_without_ids_is_refused_where_columns_are_mapped_by_id() -> None:
    config = mapped_configuration(struct(a=LONG), "id")
    store = MemoryStore()
    file = add_file(store, pa.table({"col-1": [1]}))
    with pytest.raises(InvalidTable, match="field ids"):
        read(store, [file], config)


def test_partition_values_come_from_the_log() -> None:
    schema = struct(p=PrimitiveType("date"), a=LONG, q=STRING)
    store = MemoryStore()
    table = pa.table({"a": [1, 2], "q": ["in the file", "in the file"]})
    file = replace_struct(add_file(store, table), partition_values={"p": "2020-01-02", "q": None})
    got = read(store, [file], configuration(schema, ["p", "q"]))
    assert got.to_pylist() == [
        {"p": dt.date(2020, 1, 2), "a": 1, "q": None},
        {"p": dt.date(2020, 1, 2), "a": 2, "q": None},
    ]


@pytest.mark.parametrize("is_indexed", [False, True])
def test_bounds_of_a_column_in_the_file_do_not_count_for_a_partition_column(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_indexed: bool
) -> None:
    monkeypatch.setattr(data_file_reader, "_FEW_ROWS", 0)
    store = open_store(str(tmp_path))
    rows = pa.table({"n": range(400), "q": [f"{n:03}" for n in range(400)]})
    size = 400 if is_indexed else 100
    added = add_file(store, rows, row_group_size=size, **PAGES)
    file = replace_struct(added, partition_values={"q": "250"})
    config = configuration(schema_of(rows), ["q"])
    where = parse_expression("q = '250' AND n < 20", config.schema)
    assert read(store, [file], config, ["n"], where)["n"].to_pylist() == list(range(20))


def replace_struct(file: AddFile, **changes: Any) -> AddFile:
    return msgspec.structs.replace(file, **changes)


def test_only_the_wanted_columns_come_in_the_wanted_order() -> None:
    data = pa.table({"a": [1], "b": [2], "c": [3]})
    store = MemoryStore()
    config = configuration(schema_of(data), ["b"])
    files = write(store, data, config).files
    assert read(store, files, config, ["c", "b"]).to_pylist() == [{"c": 3, "b": 2}]


def test_rows_are_counted_without_any_column() -> None:
    data = pa.table({"a": range(100), "p": [i % 2 for i in range(100)]})
    store = MemoryStore()
    config = configuration(schema_of(data), ["p"])
    files = write(store, data, config).files
    assert read(store, files, config, []).num_rows == 100
    where = parse_expression("a >= 90", config.schema)
    assert read(store, files, config, [], where).num_rows == 10


def test_no_files_give_the_schema_and_no_rows() -> None:
    config = configuration(struct(a=LONG, s=struct(b=STRING)))
    got = read(MemoryStore(), [], config)
    assert got.num_rows == 0
    assert got.schema.names == ["a", "s"]


def test_a_file_that_is_not_there_is_named() -> None:
    file = AddFile(
        path="p=a%20b/x.parquet", partition_values={}, size_bytes=9, modification_time_ms=0, data_change=True
    )  # fmt: skip
    with pytest.raises(DataFileMissing) as caught:
        read(MemoryStore(), [file], configuration(struct(a=LONG)))
    assert caught.value.file == "p=a b/x.parquet"


@pytest.mark.parametrize("size", [0, 3, 40, -1])
def test_a_broken_file_is_named(tmp_path: Path, size: int) -> None:
    store = open_store(str(tmp_path))
    data = pa.table({"a": range(1000)})
    config = configuration(schema_of(data))
    (file,) = write(store, data, config).files
    content = bytearray(store.read(file.path))
    if size < 0:
        content[50:200] = bytes(150)
    store.put(file.path, bytes(content if size < 0 else content[:size]))
    with pytest.raises(InvalidTable, match="cannot be read") as caught:
        read(store, [file], config)
    assert caught.value.file == file.path


def test_absolute_uris_are_read_where_they_point(tmp_path: Path) -> None:
    data = pa.table({"a": [1, 2]})
    elsewhere = open_store(str(tmp_path / "with space"))
    config = configuration(schema_of(data))
    (file,) = write(elsewhere, data, config).files
    uri = (tmp_path / "with space" / file.path).as_uri()
    assert "%20" in uri
    clone = open_store(str(tmp_path / "clone"))
    assert read(clone, [replace_struct(file, path=uri)], config).equals(data)


def test_a_variant_is_read_as_its_storage() -> None:
    table = pa.table({"v": [{"metadata": b"m", "value": b"v"}, None]})
    rows = read_as(table, struct(v=PrimitiveType("variant")))
    assert rows == [{"v": {"value": b"v", "metadata": b"m"}}, {"v": None}]


# Deletion vectors


def numbered(store: MemoryStore, rows: int, group: int = 10) -> tuple[AddFile, TableConfiguration]:
    """A file of rows 0, 1, 2, … in several row groups."""
    data = pa.table({"n": range(rows), "s": [f"row {i}" for i in range(rows)]})
    config = configuration(schema_of(data), protocol=featured("deletionVectors"))
    (file,) = write(store, data, config, row_group_rows=group).files
    return file, config


def test_rows_of_an_inline_deletion_vector_are_left_out() -> None:
    store = MemoryStore()
    file, config = numbered(store, 35)
    deleted = BitMap64([0, 9, 10, 11, 34, *range(20, 30)])
    file = replace_struct(file, deletion_vector=encode_inline(deleted))
    assert read(store, [file], config).column("n").to_pylist() == [
        n for n in range(35) if n not in deleted
    ]
    assert read(store, [file], config, []).num_rows == 20


@pytest.mark.parametrize("where", [None, "n <> 1", "s <> 'b'"])
def test_rows_of_a_file_that_declares_views_are_left_out(where: str | None) -> None:
    """Writers of the arrow-rs family declare string_view; Arrow has no kernel to filter it."""
    text, data = pa.string_view(), pa.binary_view()
    types: dict[str, pa.DataType] = {
        "s": text,
        "b": data,
        "o": pa.struct([("s", text)]),
        "l": pa.list_(text),
        "m": pa.map_(text, data),
    }
    rows = [
        {"n": n, "s": s, "b": s.encode(), "o": {"s": s}, "l": [s, None], "m": [(s, s.encode())]}
        for n, s in enumerate("abc")
    ]
    rows += [{"n": 3, "s": "d", "b": None, "o": None, "l": None, "m": None}]
    table = pa.Table.from_pylist(rows, pa.schema({"n": pa.int64(), **types}))
    store = MemoryStore()
    file = add_file(store, table)
    config = configuration(schema_of(table), protocol=featured("deletionVectors"))
    expression = None if where is None else parse_expression(where, config.schema)
    if expression is None:
        file = replace_struct(file, deletion_vector=encode_inline(BitMap64([1])))
    found = read(store, [file], config, where=expression).to_pylist()
    assert found == [row for row in rows if row["n"] != 1]


@settings(max_examples=50, deadline=None)
@given(st.sets(st.integers(0, 99)), st.integers(0, 99), st.integers(1, 40))
def test_positions_are_right_when_row_groups_are_skipped(
    deleted: set[int], bound: int, group: int
) -> None:
    store = MemoryStore()
    file, config = numbered(store, 100, group)
    if deleted:
        file = replace_struct(file, deletion_vector=encode_inline(BitMap64(deleted)))
    where = parse_expression(f"n >= {bound}", config.schema)
    got = read(store, [file], config, ["s"], where).column("s").to_pylist()
    assert got == [f"row {n}" for n in range(bound, 100) if n not in deleted]


def test_a_file_of_several_vectors_is_read_once() -> None:
    store = CountingStore()
    file, config = numbered(store, 20)
    bitmaps = [BitMap64([1]), BitMap64([2, 3]), BitMap64([19])]
    blob, vectors = encode_deletion_vector_file(bitmaps, file_id=uuid.UUID(int=7))
    store.put(deletion_vector_path(vectors[0]), blob)
    files = [replace_struct(file, deletion_vector=each) for each in vectors]
    got = read(store, files, config).column("n").to_pylist()
    assert got == [n for bitmap in bitmaps for n in range(20) if n not in bitmap]
    assert store.reads == [deletion_vector_path(vectors[0])]
    assert store.range_reads == []


class CountingStore(MemoryStore):
    """Remembers how files of deletion vectors were read."""

    def __init__(self) -> None:
        super().__init__()
        self.reads: list[str] = []
        self.range_reads: list[str] = []

    def read(self, path: str) -> bytes:
        if path.endswith(".bin"):
            self.reads.append(path)
        return super().read(path)

    def read_range(self, path: str, offset: int, length: int) -> bytes:
        if path.endswith(".bin"):
            self.range_reads.append(path)
        return super().read_range(path, offset, length)


def test_a_single_vector_is_read_by_its_range() -> None:
    store = CountingStore()
    file, config = numbered(store, 20)
    blob, (vector, _) = encode_deletion_vector_file(
        [BitMap64([1]), BitMap64([2])], file_id=uuid.UUID(int=7), prefix="ab"
    )
    store.put(deletion_vector_path(vector), blob)
    file = replace_struct(file, deletion_vector=vector)
    assert read(store, [file], config).num_rows == 19
    assert store.range_reads == [deletion_vector_path(vector)]


def test_a_broken_deletion_vector_is_named() -> None:
    store = MemoryStore()
    file, config = numbered(store, 20)
    blob, (vector,) = encode_deletion_vector_file([BitMap64([1])], file_id=uuid.UUID(int=7))
    store.put(deletion_vector_path(vector), blob[:-1] + bytes([blob[-1] ^ 1]))
    with pytest.raises(CorruptDeletionVector) as caught:
        read(store, [replace_struct(file, deletion_vector=vector)], config)
    assert caught.value.file == deletion_vector_path(vector)


def test_a_broken_inline_vector_names_the_data_file() -> None:
    store = MemoryStore()
    file, config = numbered(store, 20)
    vector = msgspec.structs.replace(encode_inline(BitMap64([1])), cardinality=2)
    with pytest.raises(CorruptDeletionVector) as caught:
        read(store, [replace_struct(file, deletion_vector=vector)], config)
    assert caught.value.file == file.path


def test_a_missing_deletion_vector_file_is_named() -> None:
    store = MemoryStore()
    file, config = numbered(store, 20)
    _, (vector,) = encode_deletion_vector_file([BitMap64([1])], file_id=uuid.UUID(int=7))
    with pytest.raises(DataFileMissing) as caught:
        read(store, [replace_struct(file, deletion_vector=vector)], config)
    assert caught.value.file == deletion_vector_path(vector)


# Filters


FILTERED = pa.table(
    {
        "p": [i % 3 for i in range(300)],
        "n": range(300),
        "x": [None if i % 7 == 0 else float("nan") if i % 11 == 0 else i / 10 for i in range(300)],
        "s": [f"s{i:03}" for i in range(300)],
        "d": pa.array([Decimal(i) / 4 for i in range(300)], pa.decimal128(20, 2)),
        "t": pa.array([i * 1_000_003 for i in range(300)], pa.timestamp("us", "UTC")),
        "z": [{"a": i, "b": f"b{i}"} for i in range(300)],
    }
)


@cache
def filtered(mode: Any) -> tuple[MemoryStore, TableConfiguration, Sequence[AddFile]]:
    """The rows above in files of many row groups, written once."""
    schema = schema_of(FILTERED)
    config = (
        configuration(schema, ["p"])
        if mode == "none"
        else mapped_configuration(schema, mode, ["p"])
    )
    store = MemoryStore()
    return store, config, write(store, FILTERED, config, row_group_rows=16).files


@pytest.mark.parametrize(
    ("sql", "keep"),
    [
        ("n = 123", lambda row: row["n"] == 123),
        ("n > 250 AND p = 1", lambda row: row["n"] > 250 and row["p"] == 1),
        ("p = 2", lambda row: row["p"] == 2),
        ("x > 28.05", lambda row: row["x"] is not None and not row["x"] <= 28.05),
        ("x IS NULL", lambda row: row["x"] is None),
        ("s < 's010' OR s = 's299'", lambda row: row["s"] < "s010" or row["s"] == "s299"),
        ("d >= 74.25", lambda row: row["d"] >= Decimal("74.25")),
        ("t < TIMESTAMP '1970-01-01 00:00:05Z'", lambda row: row["t"].second < 5 and row["t"].minute == 0),
        ("z.a = 7", lambda row: row["z"]["a"] == 7),
        ("n = 1000", lambda _: False),
        ("1 = 1", lambda _: True),
    ],
)  # fmt: skip
@pytest.mark.parametrize("columns", [["n"], ["s", "p"], ["z", "x", "n"], []])
@pytest.mark.parametrize("mode", ["none", "id"])
def test_a_filter_keeps_exactly_its_rows(
    monkeypatch: pytest.MonkeyPatch, sql: str, keep: Any, columns: list[str], mode: Any
) -> None:
    monkeypatch.setattr(opened_file, "BATCH_ROWS", 5)
    store, config, files = filtered(mode)
    got = read(store, files, config, columns, parse_expression(sql, config.schema))
    kept = [row for row in FILTERED.to_pylist() if keep(row)]
    assert got.num_rows == len(kept)
    expected = sorted(repr({name: row[name] for name in columns}) for row in kept)
    assert got.schema.names == columns
    if columns:
        assert sorted(repr(row) for row in got.to_pylist()) == expected


@pytest.mark.parametrize("condition", ["n BETWEEN 31 AND 45", "n BETWEEN abs(-31) AND 40 + 5"])
def test_row_groups_that_cannot_match_are_not_decoded(
    monkeypatch: pytest.MonkeyPatch, condition: str
) -> None:
    store = MemoryStore()
    file, config = numbered(store, 100)
    decoded: list[int] = []
    original = opened_file.OpenedFile.decode

    def recording(self: Any, group: int, columns: list[int]) -> Iterator[Any]:
        decoded.append(group)
        return original(self, group, columns)

    monkeypatch.setattr(opened_file.OpenedFile, "decode", recording)
    where = parse_expression(condition, config.schema)
    assert read(store, [file], config, ["n"], where).num_rows == 15
    assert decoded == [3, 4]


@pytest.mark.parametrize(
    ("condition", "expected", "num_decoded"),
    [
        ("n BETWEEN 100 AND 105", range(100, 106), 32),
        ("n IN (20, 900)", [20, 900], 64),
        ("n = 5 AND s = 's0005'", [5], 32),
        ("s >= 's0990'", range(990, 1000), 48),
        ("n = 2000", [], 0),
        ("n < 30 AND s > 's0600'", [], 0),
        ("z.a = 40", [40], 32),
        ("x IS NULL AND n < 40", range(16, 40), 128),
        ("scattered = 7", [1], 224),
        # All pages: bounds do not rule out NaN, and rule out few pages of the other.
        ("x > 1e9", [999], 1000),
        ("n > 100", range(101, 1000), 1000),
    ],
)
def test_pages_that_cannot_match_are_not_decoded(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    condition: str,
    expected: Sequence[int],
    num_decoded: int,
) -> None:
    monkeypatch.setattr(data_file_reader, "_FEW_ROWS", 0)
    monkeypatch.setattr(opened_file, "_BLOCK_ROWS", 1)
    decoded: list[int] = []
    original = opened_file.split_by_bytes

    def recording(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        decoded.append(batch.num_rows)
        return original(batch)

    store = open_store(str(tmp_path))
    numbers = range(1000)
    rows = pa.table(
        {
            "n": numbers,
            "s": [f"s{n:04}" for n in numbers],
            "x": [None if 16 <= n < 64 else float(n) for n in range(999)] + [float("nan")],
            "z": [{"a": n} for n in numbers],
            "scattered": [n * 7 % 1000 for n in numbers],
        }
    )
    file = add_file(store, rows, **PAGES)
    config = configuration(schema_of(rows))
    where = parse_expression(condition, config.schema)
    monkeypatch.setattr(opened_file, "split_by_bytes", recording)
    columns = sorted({path[0] for path in where.references})
    found = read(store, [file], config, columns, where)
    names = "z" if columns == ["z"] else columns[0]
    known = rows.take(pa.array(expected, pa.int64()))[names].to_pylist()
    assert repr(found[names].to_pylist()) == repr(known)
    # Rows of wanted pages are counted as decoded, and once more as found in them.
    assert sum(decoded) == num_decoded


def test_other_columns_are_decoded_only_where_a_row_has_passed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    store = MemoryStore()
    file, config = numbered(store, 100)
    decoded: list[tuple[int, list[int]]] = []
    original = opened_file.OpenedFile.decode

    def recording(self: Any, group: int, columns: list[int]) -> Iterator[Any]:
        decoded.append((group, columns))
        return original(self, group, columns)

    monkeypatch.setattr(opened_file.OpenedFile, "decode", recording)
    # A remainder says nothing to bounds, so every row group is looked at.
    where = parse_expression("n % 100 = 55", config.schema)
    assert read(store, [file], config, ["s"], where).to_pylist() == [{"s": "row 55"}]
    assert [group for group, columns in decoded if columns == [1]] == [5]


def test_a_filter_does_not_fail_on_a_deleted_value() -> None:
    store = MemoryStore()
    file, config = numbered(store, 20)
    where = parse_expression("100 / n > 9", config.schema)
    with pytest.raises(InvalidArgument):
        read(store, [file], config, ["n"], where)
    file = replace_struct(file, deletion_vector=encode_inline(BitMap64([0, 4])))
    kept = [n for n in range(1, 12) if n != 4]
    assert read(store, [file], config, ["n"], where).column("n").to_pylist() == kept
    assert read(store, [file], config, ["s"], where).to_pylist() == [
        {"s": f"row {n}"} for n in kept
    ]


def test_repetitive_text_is_read_like_any_other() -> None:
    data = pa.table(
        {
            "colour": [("red", "green", None)[i % 3] for i in range(2000)],
            "bytes": [(b"a", b"\xff")[i % 2] for i in range(2000)],
            "s": [{"colour": ("red", "green")[i % 2]} for i in range(2000)],
        }
    )
    store = MemoryStore()
    config = configuration(schema_of(data))
    files = write(store, data, config).files
    got = read(store, files, config)
    assert got.schema.equals(data.schema)
    assert got.equals(data)


# Order and resources


def many_files(
    store: MemoryStore, count: int, rows: int, **bounds: Any
) -> tuple[Sequence[AddFile], TableConfiguration]:
    data = pa.table({"p": [i // rows for i in range(count * rows)], "n": range(count * rows)})
    config = configuration(schema_of(data), ["p"])
    return write(store, data, config, **bounds).files, config


def test_rows_come_in_the_order_of_the_files(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(opened_file, "BATCH_ROWS", 7)
    store = MemoryStore()
    files, config = many_files(store, 20, 50, row_group_rows=20)
    monkeypatch.setattr(data_file_reader, "SPLIT_FILE_BYTES", 1)
    reader = DataFileReader(store, config, ["n"])
    sources = list(reader.sources(data_files(live_files(files))))
    assert len(sources) == 60
    batches = prefetch_in_order(iter(sources), threads=3, max_buffered_bytes=500)
    assert pa.Table.from_batches(batches)["n"].to_pylist() == list(range(1000))


def test_small_files_are_put_together_into_few_batches() -> None:
    store = MemoryStore()
    files, config = many_files(store, 50, 3)
    batches = read_files(plan_of(store, files, config, ["n", "p"]))
    assert [each.num_rows for each in batches] == [150]


def test_a_reader_that_is_dropped_stops_its_workers() -> None:
    store = MemoryStore()
    files, config = many_files(store, 20, SMALL_BATCH_ROWS)
    before = threading.active_count()
    batches = read_files(plan_of(store, files, config, ["n"]))
    assert next(batches).num_rows == SMALL_BATCH_ROWS
    batches.close()  # type: ignore[attr-defined]
    assert threading.active_count() == before


@pytest.mark.parametrize(("num_batches", "threads"), [(1, 0), (2, 0), (5, 2)])
def test_a_row_group_alone_needs_no_thread_for_its_first_batches(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, num_batches: int, threads: int
) -> None:
    monkeypatch.setattr(reader, "_LITTLE_BYTES", 0)
    monkeypatch.setattr(reader, "_thread_count", lambda _: 2)
    monkeypatch.setattr(opened_file, "BATCH_ROWS", SMALL_BATCH_ROWS)
    started: list[str] = []
    start = threading.Thread.start

    def counted(thread: threading.Thread) -> None:
        started.append(thread.name)
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", counted)
    numbers = range(num_batches * SMALL_BATCH_ROWS)
    table = DeltaTable.create(str(tmp_path / "t"), pa.schema({"n": pa.int64()}))
    table.append(pa.table({"n": numbers}))
    started.clear()
    batches = list(table.snapshot().scan().to_batches())
    assert pa.Table.from_batches(batches)["n"].to_pylist() == list(numbers)
    assert len([name for name in started if name.startswith("delta-read")]) == threads


def test_an_error_in_one_file_comes_after_the_rows_before_it() -> None:
    store = MemoryStore()
    files, config = many_files(store, 3, SMALL_BATCH_ROWS)
    store.delete([files[1].path])
    batches = read_files(plan_of(store, files, config, ["n"]))
    assert next(batches).column("n").to_pylist() == list(range(SMALL_BATCH_ROWS))
    with pytest.raises(DataFileMissing):
        next(batches)


def test_a_lack_of_memory_is_not_taken_for_damage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise pa.ArrowMemoryError("malloc of size 33554432 failed")

    table = DeltaTable(tmp_path, must_exist=False)
    table.append(pa.table({"id": [1, 2]}))
    monkeypatch.setattr(opened_file.OpenedFile, "decode", fail)
    with pytest.raises(MemoryExhausted, match="malloc of size 33554432 failed") as caught:
        table.snapshot().scan().to_arrow()
    assert isinstance(caught.value, MemoryError)
    assert caught.value.table == table.uri
    assert caught.value.file == table.snapshot().files()["path"][0].as_py()


def test_a_footer_that_contradicts_itself_about_a_type_is_damage(tmp_path: Path) -> None:
    rows = pa.table({"s": ["a", "b", "c", "d"]})
    table = DeltaTable(tmp_path, must_exist=False)
    table.append(rows)
    file = tmp_path / table.snapshot().files()["path"][0].as_py()
    pq.write_table(rows, file, row_group_size=2)
    whole = file.read_bytes()
    damaged = whole.replace(b"\x15\x0c\x19", b"\x15\x08\x19")
    assert damaged != whole
    file.write_bytes(damaged)
    with pytest.raises(InvalidTable, match="holds BYTE_ARRAY, and that it holds FLOAT"):
        table.snapshot().scan(where="s = 'b'").to_arrow()


def test_a_few_small_local_files_are_read_and_rewritten_without_threads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = DeltaTable(tmp_path, must_exist=False)
    for number in range(3):
        table.append(pa.table({"id": [number, number + 10]}))
    monkeypatch.setattr(reader, "prefetch_in_order", lambda *_, **__: pytest.fail("threads"))
    assert table.snapshot().scan().to_arrow()["id"].to_pylist() == [0, 10, 1, 11, 2, 12]
    assert not list(
        reader.read_files(plan_of(table.store, [], table.snapshot().configuration, ["id"]))
    )
    assert table.delete("id = 1").metrics["numDeletedRows"] == 1
    assert table.update({"id": "id + 1"}, "id = 2").metrics["numUpdatedRows"] == 1
    assert sorted(table.snapshot().scan().to_arrow()["id"].to_pylist()) == [0, 3, 10, 11, 12]
