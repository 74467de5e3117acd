"""How rows become data files: partitions, sizes, names, encodings, and what an error leaves."""

from __future__ import annotations

import datetime as dt
import json
import random
import threading
import uuid
from collections.abc import Iterator
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dagster_delta.engines.arrow.engine import ArrowEngine
from dagster_delta.engines.plans import WriteSpec
from dagster_delta.errors import (
    ConstraintViolation,
    PartitionMismatch,
    UnsupportedFeature,
)
from dagster_delta.parquet import file_format as file_module
from dagster_delta.parquet import writer
from dagster_delta.parquet.file_format import EncodedRowGroup
from dagster_delta.parquet.writer import split_by_partition, write_data_files
from dagster_delta.protocol.schema import PrimitiveType, StructField, StructType
from dagster_delta.protocol.values.partition_values import decode_path
from dagster_delta.sql.constraint import Constraint
from dagster_delta.storage.file_objects import PendingFile
from dagster_delta.storage.memory_store import MemoryStore
from tests.parquet.data_tables import (
    configuration,
    featured,
    mapped_configuration,
    read,
    schema_of,
    write,
)

ROWS = pa.table({"p": ["a", "b", "a", None], "q": [1, 1, 2, 1], "v": [1, 2, 3, 4]})


def stored_paths(store: MemoryStore) -> set[str]:
    return {each.path for each in store.list_recursive()}


def parquet(store: MemoryStore, path: str) -> pq.ParquetFile:
    return pq.ParquetFile(pa.BufferReader(store.read(path)))


def test_rows_are_split_by_partition_values_and_those_columns_left_out() -> None:
    store = MemoryStore()
    files = write(store, ROWS, configuration(schema_of(ROWS), ["p", "q"])).files
    assert [each.partition_values for each in files] == [
        {"p": "a", "q": "1"},
        {"p": "a", "q": "2"},
        {"p": "b", "q": "1"},
        {"p": None, "q": "1"},
    ]
    assert files[0].path.startswith("p=a/q=1/part-00000-")
    assert files[3].path.startswith("p=__HIVE_DEFAULT_PARTITION__/q=1/")
    assert parquet(store, files[0].path).schema_arrow.names == ["v"]


def test_rows_keep_their_order_within_a_partition() -> None:
    data = pa.table({"p": [i % 3 for i in range(1000)], "v": range(1000)})
    store = MemoryStore()
    config = configuration(schema_of(data), ["p"])
    for file in write(store, data, config).files:
        values = read(store, [file], config).column("v").to_pylist()
        assert values == sorted(values)


def test_null_and_the_empty_string_are_one_partition() -> None:
    data = pa.table({"p": ["", None], "v": [1, 2]})
    (file,) = write(MemoryStore(), data, configuration(schema_of(data), ["p"])).files
    assert file.partition_values == {"p": None}


@pytest.mark.parametrize(
    "value", ["a b", "50%", "ü", "x=y", "a/b", "q?", "#1", "a:b", "%20", "'\""]
)
def test_paths_are_percent_encoded_exactly_once(value: str) -> None:
    data = pa.table({"p": [value], "v": [1]})
    store = MemoryStore()
    config = configuration(schema_of(data), ["p"])
    (file,) = write(store, data, config).files
    assert stored_paths(store) == {decode_path(file.path)}
    assert file.partition_values == {"p": value}
    assert read(store, [file], config).to_pylist() == data.to_pylist()


def test_columns_with_nan_have_no_bounds_in_the_footer() -> None:
    nan = float("nan")
    data = pa.table(
        {
            "f": pa.array([None, nan, 2.0, 1.0], pa.float32()),
            "d": [1.0, 2.0, nan, 3.0],
            "plain": [1.0, 2.0, 3.0, 4.0],
            "s": [{"d": 1.0, "x": [nan]}, None, {"d": nan, "x": [1.0]}, {"d": 0.0, "x": None}],
            "m": pa.array([[("a", 1.0)], [("b", nan)], None, []], pa.map_("string", "double")),
        }
    )
    store = MemoryStore()
    (file,) = write(store, data, configuration(schema_of(data)), row_group_rows=2).files
    footer = parquet(store, file.path).metadata
    bounded = [
        {
            column.path_in_schema
            for column in map(footer.row_group(group).column, range(footer.num_columns))
            if column.statistics is not None and column.statistics.has_min_max
        }
        for group in range(footer.num_row_groups)
    ]
    assert bounded == [
        {"d", "plain", "s.d", "m.key_value.key"},
        {"f", "plain", "s.x.list.element"},
    ]
    stats = json.loads(file.stats or "")
    assert stats["nullCount"] == {"f": 1, "d": 0, "plain": 0, "s": {"d": 1, "x": 2}, "m": 1}
    assert stats["minValues"] == {"f": 1.0, "d": 1.0, "plain": 1.0, "s": {"d": 0.0}}
    assert stats["maxValues"] == {"f": "NaN", "d": "NaN", "plain": 4.0, "s": {"d": "NaN"}}


def test_an_add_action_tells_size_time_and_that_data_changed() -> None:
    store = MemoryStore()
    spec = WriteSpec(
        location=store.location, configuration=configuration(schema_of(ROWS)), tags={"k": "v"}
    )
    result = write_data_files(
        ROWS.to_batches(),
        spec,
        store,
        clock=lambda: 17,
        new_uuid=lambda: uuid.UUID(int=1),
    )
    (file,) = result.files
    assert file.path == "part-00000-00000000-0000-0000-0000-000000000001-c000.zstd.parquet"
    assert file.size_bytes == result.num_bytes == len(store.read(file.path))
    assert file.modification_time_ms == 17
    assert file.data_change is True
    assert file.tags == {"k": "v"}
    assert result.num_rows == 4


def test_no_rows_make_no_file() -> None:
    store = MemoryStore()
    result = write(store, ROWS.slice(0, 0), configuration(schema_of(ROWS), ["p"]))
    assert result.files == ()
    assert stored_paths(store) == set()


def test_a_file_is_closed_when_it_has_its_size() -> None:
    data = pa.table({"v": [random.Random(i).getrandbits(62) for i in range(10_000)]})
    store = MemoryStore()
    config = configuration(schema_of(data))
    files = write(
        store, _batches(data, 500), config, row_group_rows=1000, target_file_size_bytes=4000
    ).files
    assert len(files) > 1
    assert all(4000 <= each.size_bytes < 20_000 for each in files[:-1])
    assert read(store, files, config).equals(data)


@pytest.mark.parametrize("batch_rows", [1000, 100_000])
@pytest.mark.parametrize("layout", ["plain", "sorted", "partitioned"])
def test_files_have_a_small_size_that_is_asked_for(layout: str, batch_rows: int) -> None:
    draw = random.Random(0)
    numbers = [draw.getrandbits(62) for _ in range(100_000)]
    data = pa.table({"v": numbers, "p": [number % 2 for number in numbers]})
    config = configuration(schema_of(data), ["p"] if layout == "partitioned" else [])
    store, target = MemoryStore(), 100_000
    sort_by = ("v",) if layout == "sorted" else ()
    files = write(
        store, _batches(data, batch_rows), config, target_file_size_bytes=target, sort_by=sort_by
    ).files
    assert 6 <= len(files) <= 20
    assert all(each.size_bytes < 2 * target for each in files)
    found = read(store, files, config)
    if layout == "plain":
        assert found.equals(data)
    assert found.sort_by("v").equals(data.sort_by("v"))


def _batches(data: pa.Table, rows: int) -> pa.RecordBatchReader:
    return pa.RecordBatchReader.from_batches(data.schema, data.to_batches(max_chunksize=rows))


def test_only_some_files_are_open_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    # A worker may open a file before another one has closed those that were to make room.
    monkeypatch.setattr(
        writer.DataFileWriter,
        "_run_task",
        lambda _self, _part, _size, encode, write: write(encode()),
    )
    data = pa.table({"p": [i % 7 for i in range(1000)], "v": range(1000)})
    store = CountingStore()
    config = configuration(schema_of(data), ["p"])
    files = write(
        store, _batches(data, 100), config, max_open_partitions=3, row_group_bytes=2000
    ).files
    assert store.most_open == 3
    got = read(store, files, config).sort_by("v")
    assert got.equals(data)


class CountingStore(MemoryStore):
    """Counts the files that are open for writing at the same time."""

    most_open = 0

    def __init__(self) -> None:
        super().__init__()
        self._sinks: list[Any] = []

    def open_output(self, path: str) -> Any:
        sink = super().open_output(path)
        self._sinks.append(sink)
        self.most_open = max(self.most_open, sum(not each.closed for each in self._sinks))
        return sink


def test_what_waits_in_all_partitions_is_bounded() -> None:
    written_early: list[int] = []
    data = pa.table({"p": [i % 5 for i in range(20_000)], "v": range(20_000)})
    store = MemoryStore()

    def batches() -> Iterator[pa.RecordBatch]:
        for batch in data.to_batches(max_chunksize=1000):
            yield batch
            written_early.append(len(stored_paths(store)))

    config = configuration(schema_of(data), ["p"])
    reader = pa.RecordBatchReader.from_batches(data.schema, batches())
    files = write(store, reader, config, buffer_bytes=20_000, target_file_size_bytes=1).files
    assert written_early[-1] > 5
    assert read(store, files, config).num_rows == 20_000


def test_rows_of_many_batches_and_partitions_become_one_file_each() -> None:
    data = pa.table({"p": [i % 500 for i in range(20_000)], "v": range(20_000)})
    store = MemoryStore()
    config = configuration(schema_of(data), ["p"])
    files = write(store, _batches(data, 700), config, buffer_bytes=2_000_000).files
    assert [each.partition_values["p"] for each in files] == [str(p) for p in range(500)]
    assert [json.loads(each.stats or "")["maxValues"]["v"] for each in files] == [
        19_500 + p for p in range(500)
    ]
    values = read(store, files, config).column("v").to_pylist()
    assert values == [v for p in range(500) for v in range(p, 20_000, 500)]


def test_a_large_batch_is_not_copied_to_be_split_with_a_small_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    num_rows: list[int] = []

    def split(batch: pa.RecordBatch, *others: Any, **options: Any) -> Any:
        num_rows.append(batch.num_rows)
        return split_by_partition(batch, *others, **options)

    monkeypatch.setattr(writer, "split_by_partition", split)
    data = pa.table({"p": [i % 2 for i in range(6010)], "v": range(6010)})
    batches = [data.to_batches()[0].slice(*part) for part in [(0, 1), (1, 1), (2, 6000), (6002, 8)]]
    store = MemoryStore()
    config = configuration(schema_of(data), ["p"])
    reader = pa.RecordBatchReader.from_batches(data.schema, batches)
    files = write(store, reader, config, row_group_bytes=50_000).files
    assert num_rows == [2, 6000, 8]
    assert read(store, files, config).sort_by("v").equals(data)


def test_texts_of_many_chunks_are_sampled_up_to_a_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file_module, "_SAMPLE_BYTES", 1000)
    joined: list[int] = []

    def count(values: pa.Array) -> bool:
        joined.append(len(values))
        return False

    monkeypatch.setattr(file_module, "_pays_as_dictionary", count)
    data = pa.table({"v": ["x" * 96] * 100})
    write(MemoryStore(), _batches(data, 10), configuration(schema_of(data)))
    assert joined == [10]


def test_many_row_groups_are_encoded_by_workers_in_order() -> None:
    data = pa.table({"p": [i // 5000 % 2 for i in range(20_000)], "v": range(20_000)})
    store = MemoryStore()
    config = configuration(schema_of(data), ["p"])
    files = write(store, _batches(data, 1000), config, row_group_bytes=8000).files
    assert [each.partition_values["p"] for each in files] == ["0", "1"]
    values = read(store, files, config).column("v").to_pylist()
    assert values == [v for p in (0, 1) for v in range(20_000) if v // 5000 % 2 == p]


def test_row_groups_of_one_file_stand_in_the_order_of_their_rows(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    encode = EncodedRowGroup.of_rows
    second_is_done = threading.Event()

    def encode_second_first(rows: Any, *others: Any) -> EncodedRowGroup:
        first = rows["v"][0].as_py()
        if first == 2000:
            assert second_is_done.wait(10)
        group = encode(rows, *others)
        if first == 3000:
            second_is_done.set()
        return group

    monkeypatch.setattr(EncodedRowGroup, "of_rows", encode_second_first)
    data = pa.table({"v": range(20_000)})
    store = MemoryStore()
    config = configuration(schema_of(data))
    [file] = write(store, _batches(data, 1000), config, row_group_bytes=8000).files
    stored = parquet(store, decode_path(file.path))
    assert stored.read()["v"].to_pylist() == list(range(20_000))
    assert stored.num_row_groups == 20
    assert file.size_bytes == len(store.read(decode_path(file.path)))
    assert file.stats == (
        '{"numRecords":20000,"minValues":{"v":0},"maxValues":{"v":19999},"nullCount":{"v":0}}'
    )


def test_rows_of_each_file_are_sorted_where_asked() -> None:
    data = pa.table({"p": ["a", "b"] * 50, "v": list(range(100, 0, -1))})
    store = MemoryStore()
    config = configuration(schema_of(data), ["p"])
    for file in write(store, data, config, sort_by=("v",)).files:
        values = read(store, [file], config).column("v").to_pylist()
        assert values == sorted(values)


def test_mapped_columns_have_physical_names_and_ids() -> None:
    data = pa.table({"p": ["a"], "s": [{"x": 1, "y": [{"z": 2}]}]})
    store = MemoryStore()
    config = mapped_configuration(schema_of(data), "name", ["p"])
    (file,) = write(store, data, config).files
    assert file.partition_values == {"col-1": "a"}
    directory, _, name = file.path.partition("/")
    assert len(directory) == 2
    assert name.startswith("part-")
    field = parquet(store, file.path).schema_arrow.field(0)
    assert (field.name, field.metadata[b"PARQUET:field_id"]) == ("col-2", b"2")
    assert [each.name for each in field.type] == ["col-3", "col-4"]
    assert field.type.field("col-3").metadata[b"PARQUET:field_id"] == b"3"
    assert field.type.field("col-4").type.value_type[0].name == "col-5"


def test_random_prefixes_spread_the_files_where_asked() -> None:
    properties = {"delta.randomizeFilePrefixes": "true", "delta.randomPrefixLength": "5"}
    config = configuration(schema_of(ROWS), ["p"], properties)
    for file in write(MemoryStore(), ROWS, config).files:
        assert len(file.path.partition("/")[0]) == 5


def test_partition_columns_stand_in_the_files_where_a_feature_asks_for_it() -> None:
    store = MemoryStore()
    config = configuration(schema_of(ROWS), ["p"], protocol=featured("materializePartitionColumns"))
    file = write(store, ROWS, config).files[0]
    assert parquet(store, file.path).schema_arrow.names == ["p", "q", "v"]
    assert read(store, [file], config).column_names == ["p", "q", "v"]
    assert '"p"' not in (file.stats or "")


def test_void_columns_are_not_written_and_read_back_as_null() -> None:
    schema = StructType(
        (StructField("v", PrimitiveType("long")), StructField("n", PrimitiveType("void")))
    )
    store = MemoryStore()
    config = configuration(schema)
    (file,) = write(store, pa.table({"v": [1]}), config).files
    assert parquet(store, file.path).schema_arrow.names == ["v"]
    assert read(store, [file], config).to_pylist() == [{"v": 1, "n": None}]


def test_a_struct_of_nothing_but_void_is_refused() -> None:
    inner = StructType((StructField("n", PrimitiveType("void")),))
    config = configuration(StructType((StructField("s", inner),)))
    with pytest.raises(UnsupportedFeature) as caught:
        write(MemoryStore(), pa.table({"s": pa.nulls(1)}), config)
    assert caught.value.column == "s"


def test_times_are_stored_as_adjusted_microseconds_and_never_as_int96() -> None:
    data = pa.table(
        {
            "t": pa.array([0], pa.timestamp("us", "UTC")),
            "n": pa.array([0], pa.timestamp("us")),
            "d": pa.array([Decimal("1.5")], pa.decimal128(9, 1)),
        }
    )
    store = MemoryStore()
    (file,) = write(store, data, configuration(schema_of(data))).files
    columns = parquet(store, file.path).schema
    assert [columns.column(i).physical_type for i in range(3)] == ["INT64", "INT64", "INT32"]
    assert [str(columns.column(i).logical_type).split(",")[0] for i in range(2)] == [
        "Timestamp(isAdjustedToUTC=true",
        "Timestamp(isAdjustedToUTC=false",
    ]


@pytest.mark.parametrize(
    ("codec", "stored", "ending"),
    [
        ("zstd", "ZSTD", ".zstd.parquet"),
        ("snappy", "SNAPPY", ".snappy.parquet"),
        ("gzip", "GZIP", ".gz.parquet"),
        ("uncompressed", "UNCOMPRESSED", "-c000.parquet"),
        ("lz4_raw", "LZ4", ".lz4.parquet"),
    ],
)
def test_the_codec_is_the_one_the_table_asks_for(codec: str, stored: str, ending: str) -> None:
    store = MemoryStore()
    data = pa.table({"s": ["x" * 1000] * 10})
    config = configuration(schema_of(data), (), {"delta.parquet.compression.codec": codec})
    (file,) = write(store, data, config).files
    assert file.path.endswith(ending)
    assert parquet(store, file.path).metadata.row_group(0).column(0).compression == stored


def test_values_that_repeat_get_a_dictionary_and_the_rest_does_not() -> None:
    count = 5000
    data = pa.table(
        {
            "few": ["red", "green"] * (count // 2),
            "many": [f"name {i}" for i in range(count)],
            "id": range(count),
            "t": pa.array(range(count), pa.timestamp("us")),
            "x": [i / 7 for i in range(count)],
            "l": [[i % 3, i % 2] for i in range(count)],
            "m": pa.array([[("k", i)] for i in range(count)], pa.map_(pa.string(), pa.int64())),
        }
    )
    store = MemoryStore()
    (file,) = write(store, data, configuration(schema_of(data))).files
    group = parquet(store, file.path).metadata.row_group(0)
    encodings = {
        group.column(i).path_in_schema: set(group.column(i).encodings)
        for i in range(group.num_columns)
    }
    dictionaries = {path for path, found in encodings.items() if "RLE_DICTIONARY" in found}
    packed = {path for path, found in encodings.items() if "DELTA_BINARY_PACKED" in found}
    assert dictionaries == {"few", "l.list.element", "m.key_value.key"}
    assert packed == {"id", "t", "m.key_value.value"}


def test_columns_with_minus_zero_have_no_dictionary() -> None:
    floats, nested = pa.array([-0.0, None] * 9, pa.float32()), [[0.0, -0.0], None] * 9
    data = pa.table({"f": floats, "x.y": [0.0, -0.0] * 9, "zero": [0.0, 1.0] * 9, "l": nested})
    store = MemoryStore()
    (file,) = write(store, data, configuration(schema_of(data))).files
    group = parquet(store, file.path).metadata.row_group(0)
    columns = [group.column(n) for n in range(group.num_columns)]
    assert [column.path_in_schema for column in columns if column.has_dictionary_page] == ["zero"]


def test_the_first_rows_choose_the_encodings_of_all_partitions() -> None:
    # One partition without values, and one with a single value, choose nothing for the others.
    values = [None] * 50 + [1] * 50 + list(range(500))
    data = pa.table({"p": [i // 50 for i in range(600)], "v": pa.array(values, pa.int64())})
    store = MemoryStore()
    for file in write(store, data, configuration(schema_of(data), ["p"])).files:
        column = parquet(store, file.path).metadata.row_group(0).column(0)
        assert "DELTA_BINARY_PACKED" in column.encodings


def test_numbers_that_follow_nulls_are_packed() -> None:
    data = pa.table({"v": pa.array([None] * 70_000 + list(range(1000)), pa.int64())})
    store = MemoryStore()
    (file,) = write(store, data, configuration(schema_of(data))).files
    column = parquet(store, file.path).metadata.row_group(0).column(0)
    assert "DELTA_BINARY_PACKED" in column.encodings


class BrokenSource(Exception):
    pass


def _breaking(data: pa.Table, rows: int, after: int) -> pa.RecordBatchReader:
    def batches() -> Iterator[pa.RecordBatch]:
        for number, batch in enumerate(data.to_batches(max_chunksize=rows)):
            if number == after:
                raise BrokenSource
            yield batch

    return pa.RecordBatchReader.from_batches(data.schema, batches())


def test_an_encoder_that_fails_leaves_no_file_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    encode = EncodedRowGroup.of_rows

    def encode_some(rows: Any, *others: Any) -> EncodedRowGroup:
        if rows["v"][0].as_py() == 12_000:
            raise BrokenSource
        return encode(rows, *others)

    monkeypatch.setattr(EncodedRowGroup, "of_rows", encode_some)
    data = pa.table({"v": range(20_000)})
    store = MemoryStore()
    with pytest.raises(BrokenSource):
        write(
            store,
            _batches(data, 1000),
            configuration(schema_of(data)),
            row_group_bytes=8000,
            target_file_size_bytes=3000,
        )
    assert stored_paths(store) == set()


@pytest.mark.parametrize("row_group_bytes", [1000, 10_000_000])
def test_an_error_leaves_no_file_behind(row_group_bytes: int) -> None:
    data = pa.table({"p": [i % 3 for i in range(5000)], "v": range(5000)})
    store = MemoryStore()
    config = configuration(schema_of(data), ["p"])
    bounds: dict[str, Any] = {"row_group_rows": 100, "target_file_size_bytes": 500}
    source = _breaking(data, 100, after=40)
    with pytest.raises(BrokenSource):
        write(store, source, config, row_group_bytes=row_group_bytes, **bounds)
    assert stored_paths(store) == set()


def test_files_that_cannot_be_given_up_do_not_hide_the_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    given_up: list[PendingFile] = []

    def refuse(file: PendingFile) -> None:
        given_up.append(file)
        raise ValueError

    monkeypatch.setattr(PendingFile, "discard", refuse)
    data = pa.table({"p": [i % 3 for i in range(5000)], "v": range(5000)})
    source = _breaking(data, 100, after=40)
    with pytest.raises(BrokenSource):
        write(MemoryStore(), source, configuration(schema_of(data), ["p"]), row_group_bytes=1000)
    assert len(set(map(id, given_up))) == 3


def test_a_store_that_fails_leaves_no_file_behind() -> None:
    class FailingStore(MemoryStore):
        def put(self, path: str, data: bytes) -> None:
            if path.startswith("p=2"):
                raise BrokenSource
            super().put(path, data)

    data = pa.table({"p": [i // 1000 for i in range(5000)], "v": range(5000)})
    store = FailingStore()
    config = configuration(schema_of(data), ["p"])
    with pytest.raises(BrokenSource):
        write(store, _batches(data, 500), config, row_group_bytes=1000)
    assert stored_paths(store) == set()


def test_rows_that_break_a_constraint_are_refused_with_examples() -> None:
    store = MemoryStore()
    check = Constraint("CHECK positive", "v > 1")
    with pytest.raises(ConstraintViolation, match="positive") as caught:
        write(store, ROWS, configuration(schema_of(ROWS)), constraints=(check,))
    assert caught.value.examples == ("{'p': 'a', 'q': 1, 'v': 1}",)
    assert stored_paths(store) == set()


def test_an_unknown_result_breaks_a_check_and_passes_where_it_may() -> None:
    config = configuration(schema_of(ROWS))
    with pytest.raises(ConstraintViolation):
        write(MemoryStore(), ROWS, config, constraints=(Constraint("CHECK p", "p <> 'z'"),))
    lenient = Constraint("CHECK p", "p <> 'z'", null_passes=True)
    assert write(MemoryStore(), ROWS, config, constraints=(lenient,)).num_rows == 4


def test_rows_outside_the_partition_being_written_are_a_mismatch() -> None:
    data = pa.table({"day": [dt.date(2020, 1, 1), dt.date(2020, 1, 2)]})
    only = Constraint("replaceWhere", "day = DATE '2020-01-01'", is_partition=True)
    with pytest.raises(PartitionMismatch) as caught:
        write(MemoryStore(), data, configuration(schema_of(data)), constraints=(only,))
    assert "2020, 1, 2" in caught.value.examples[0]


def test_batches_that_conform_are_written_without_an_engine() -> None:
    schema = schema_of(ROWS)
    store = MemoryStore()
    config = configuration(schema, ["p"])
    spec = WriteSpec(location=store.location, configuration=config)
    result = write_data_files(iter(ROWS.to_batches()), spec, store)
    assert read(store, result.files, config).num_rows == 4


def test_the_schema_of_a_value_is_known_before_it_is_written() -> None:
    assert ArrowEngine().schema_of(ROWS) == schema_of(ROWS)
    assert ArrowEngine().schema_of(ROWS.to_batches()[0]) == schema_of(ROWS)
