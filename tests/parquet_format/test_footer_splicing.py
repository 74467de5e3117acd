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

from dagster_delta.parquet_format import footer_splicing
from dagster_delta.parquet_format.footer_splicing import MAGIC, RowGroupBytes, spliced_end

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


def splice(files: list[bytes], *, has_page_index: bool = False) -> bytes:
    spliced = MAGIC
    parts = []
    for file in files:
        content = RowGroupBytes.of_file(memoryview(file), has_page_index=has_page_index)
        parts.append((content.tail, len(spliced) - len(MAGIC)))
        spliced += content.pages
    return spliced + spliced_end(parts, len(spliced))


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
        {"write_page_index": True},
        {"write_page_index": True, "max_rows_per_page": 3, "use_dictionary": False},
        # Columns without statistics have an offset index alone.
        {"write_page_index": True, "write_statistics": ["text", "flag"]},
        {"write_page_index": True, "write_statistics": False},
    ],
    ids=lambda options: "-".join(options),
)
def test_every_kind_of_footer_is_spliced_whole(options: dict[str, Any]) -> None:
    # More row groups than a short list header counts, and positions of several lengths.
    tables = cut(list(range(10, ROWS, 50)))
    spliced = splice(
        [encode([each], **options) for each in tables],
        has_page_index=options.get("write_page_index", False),
    )
    assert spliced == encode(tables, **options)


def test_the_footer_of_a_single_part_is_kept_without_walking_over_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    file = encode([TABLE])
    monkeypatch.setattr(footer_splicing, "Cursor", None)
    assert splice([file]) == file


def test_bloom_filters_of_each_part_are_found_by_the_footer() -> None:
    tables = cut([300, 600])
    options: dict[str, Any] = {"bloom_filter_options": {"id": True}, "write_page_index": True}
    parts = [encode([each], **options) for each in tables]
    spliced = splice(parts, has_page_index=True)
    groups = pq.ParquetFile(io.BytesIO(spliced)).metadata
    for number, part in enumerate(parts):
        own = pq.ParquetFile(io.BytesIO(part)).metadata.row_group(0).column(0)
        new = groups.row_group(number).column(0)
        assert bloom_bytes(spliced, new) == bloom_bytes(part, own)
    assert pq.read_table(io.BytesIO(spliced)).equals(TABLE)


def bloom_bytes(file: bytes, column: Any) -> bytes:
    assert column.bloom_filter_length > 32
    start = column.bloom_filter_offset
    return file[start : start + column.bloom_filter_length]


def test_parts_may_have_several_row_groups_or_none() -> None:
    tables = cut([100, 200, 300])
    parts = [encode(tables[:2]), encode([]), encode(tables[2:])]
    assert splice(parts) == encode(tables)
