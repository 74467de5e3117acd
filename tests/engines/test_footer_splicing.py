"""Files put together from row groups that were encoded apart. Spec: Parquet's file format."""

from __future__ import annotations

import io
from itertools import pairwise
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dagster_delta.engines.parquet.write import footer_splicing
from dagster_delta.engines.parquet.write.column_splicing import (
    ColumnBytes,
    FooterBytes,
    is_movable,
    joined_columns,
)
from dagster_delta.engines.parquet.write.footer_splicing import MAGIC, RowGroupBytes, spliced_footer

ROWS = 900
TABLE = pa.table(
    {
        "id": pa.array(range(ROWS)),
        "text": pa.array([None if i % 7 == 0 else f"text {i % 50}" for i in range(ROWS)]),
        "flag": pa.array([i % 2 == 0 for i in range(ROWS)]),
        "nested": pa.array(
            [{"list": [i, None][: i % 3], "inner": {"x": i / 3}} for i in range(ROWS)]
        ),
        "map": pa.array(
            [[(f"k{i}", i)] * (i % 4) for i in range(ROWS)], pa.map_(pa.string(), pa.int64())
        ),
        "nothing": pa.nulls(ROWS, pa.int32()),
    }
)


def encode(tables: list[Any], **options: Any) -> bytes:
    """A file with a row group per table, by the writer of Arrow alone."""
    sink = io.BytesIO()
    with pq.ParquetWriter(sink, TABLE.schema, **options) as writer:
        for each in tables:
            writer.write_table(each, row_group_size=max(1, each.num_rows))
    return sink.getvalue()


def splice(files: list[bytes]) -> bytes:
    spliced = MAGIC
    parts = []
    for file in files:
        content = RowGroupBytes.of_file(memoryview(file))
        parts.append((content.footer, len(spliced) - len(MAGIC)))
        spliced += b"".join(content.pages)
    return spliced + spliced_footer(parts)


def cut(at: list[int]) -> list[Any]:
    edges = sorted({0, *at, ROWS})
    return [TABLE.slice(start, end - start) for start, end in pairwise(edges)]


@given(at=st.lists(st.integers(1, ROWS - 1), max_size=20))
def test_a_spliced_file_is_byte_for_byte_what_one_writer_makes(at: list[int]) -> None:
    tables = cut(at)
    assert splice([encode([each]) for each in tables]) == encode(tables)


@pytest.mark.parametrize(
    "options",
    [
        {"use_dictionary": False, "compression": "none"},
        {"use_dictionary": ["text"], "column_encoding": {"id": "DELTA_BINARY_PACKED"}},
        {"compression": "zstd", "store_schema": False},
        {"write_statistics": False, "data_page_version": "2.0"},
        {"sorting_columns": [pq.SortingColumn(0)], "write_page_checksum": True},
    ],
    ids=lambda options: "-".join(options),
)
def test_every_kind_of_footer_is_spliced_whole(options: dict[str, Any]) -> None:
    # More row groups than a short list header counts, and positions of several lengths.
    tables = cut(list(range(10, ROWS, 50)))
    assert splice([encode([each], **options) for each in tables]) == encode(tables, **options)


def test_the_footer_of_a_single_part_is_kept_without_walking_over_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    file = encode([TABLE])
    monkeypatch.setattr(footer_splicing, "Cursor", None)
    assert splice([file]) == file


def test_parts_may_have_several_row_groups_or_none() -> None:
    tables = cut([100, 200, 300])
    parts = [encode(tables[:2]), encode([]), encode(tables[2:])]
    assert splice(parts) == encode(tables)


def columns_of(file: bytes) -> list[ColumnBytes]:
    """The columns of the only row group of a file."""
    metadata = pq.read_metadata(pa.BufferReader(file)).row_group(0)
    (chunks,) = FooterBytes.parse(RowGroupBytes.of_file(memoryview(file)).footer).row_groups
    found = []
    for index, chunk in enumerate(chunks):
        column = metadata.column(index)
        start = column.dictionary_page_offset or column.data_page_offset
        found.append(ColumnBytes(file[start : start + column.total_compressed_size], chunk, start))
    return found


@pytest.mark.parametrize(
    "options",
    [{}, {"compression": "zstd", "store_schema": False}, {"use_dictionary": False}],
    ids=["defaults", "zstd", "plain"],
)
def test_columns_encoded_apart_make_the_row_group_of_one_writer(options: dict[str, Any]) -> None:
    columns = []
    for name in TABLE.schema.names:
        sink = io.BytesIO()
        pq.write_table(TABLE.select([name]), sink, row_group_size=ROWS, **options)
        columns += columns_of(sink.getvalue())
    model = RowGroupBytes.of_file(memoryview(encode([], **options))).footer
    joined = joined_columns(model, columns, ROWS)
    whole = RowGroupBytes.of_file(memoryview(encode([TABLE], **options)))
    assert b"".join(joined.pages) == b"".join(whole.pages)
    assert joined.footer == whole.footer
    assert joined.read_metadata().row_group(0).num_rows == ROWS


def movable(file: bytes) -> list[bool]:
    schema = pq.read_metadata(pa.BufferReader(file)).schema
    chunks = [each.metadata for each in columns_of(file)]
    return [is_movable(chunk, schema.column(index)) for index, chunk in enumerate(chunks)]


def test_chunks_that_speak_of_more_than_their_pages_are_told_apart() -> None:
    assert all(movable(encode([TABLE])))
    assert not any(movable(encode([TABLE], write_page_index=True)))
    assert movable(encode([TABLE], bloom_filter_options={"id": {}}))[:2] == [False, True]


def test_chunks_that_arrow_may_read_otherwise_are_not_moved() -> None:
    sink = io.BytesIO()
    pq.write_table(pa.table({"v": pa.array([0x01020304], pa.int32())}), sink, compression="zstd")
    column = pq.read_metadata(sink).schema.column(0)
    (chunk,) = (each.metadata for each in columns_of(sink.getvalue()))
    assert is_movable(chunk, column)
    edits = {
        "a bound that is too short": ("18 04 04030201", "18 03 030201"),
        "a codec that is unknown": ("0176 15 0c", "0176 15 20"),
        "elements of another type": ("19 18 0176", "19 19 0176"),
        "a field out of order": ("0176 15 0c", "0176 05 02 0c"),
        "an unknown field": ("19 18 0176", "19 18 0176 01 40"),
    }
    for name, (old, new) in edits.items():
        damaged = chunk.replace(bytes.fromhex(old), bytes.fromhex(new))
        assert damaged != chunk, name
        assert not is_movable(damaged, column), name
    assert not is_movable(chunk[:-1], column)
    assert not is_movable(chunk + b"\0", column)


def test_the_footer_of_an_open_file_is_found() -> None:
    file = encode(cut([300, 500]))
    found = FooterBytes.of_handle(pa.BufferReader(file))
    assert found == FooterBytes.parse(RowGroupBytes.of_file(memoryview(file)).footer)
    assert found is not None
    assert [len(each) for each in found.row_groups] == [8] * 3
    assert FooterBytes.of_handle(pa.BufferReader(file[:-4] + b"PARE")) is None
