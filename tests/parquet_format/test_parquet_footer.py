"""Footers over which Arrow's Python classes end the process. Spec: Parquet's file format."""

from __future__ import annotations

import io
import random
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dagster_delta import DeltaTable
from dagster_delta.errors import CorruptLog, InvalidTable
from dagster_delta.parquet_format.footer import (
    ChunkBounds,
    ChunkStatistics,
    read_footer,
)
from dagster_delta.protocol.checkpoint.reader import CheckpointPart
from tests.table.logs import PROTOCOL, add_file, checkpoint_bytes, metadata

ROWS = pa.table({"id": pa.array([0x01020304, None, 3, 0x05060708], pa.int32())})


def parquet_file(rows: pa.Table, **options: object) -> bytes:
    sink = io.BytesIO()
    pq.write_table(rows, sink, compression="none", **options)
    return sink.getvalue()


def edited(file: bytes, edit: Callable[[bytes], bytes]) -> bytes:
    """The file with another footer."""
    start = len(file) - 8 - int.from_bytes(file[-8:-4], "little")
    footer = edit(file[start:-8])
    return b"".join((file[:start], footer, len(footer).to_bytes(4, "little"), file[-4:]))


def replaced(file: bytes, old: bytes, new: bytes) -> bytes:
    damaged = edited(file, lambda footer: footer.replace(old, new))
    assert damaged != file
    return damaged


def table_with(path: Path, damage: Callable[[bytes], bytes]) -> DeltaTable:
    """A table of one data file of two row groups, of another writer, and damaged."""
    table = DeltaTable(path, must_exist=False)
    table.append(ROWS)
    file = path / table.snapshot().files()["path"][0].as_py()
    file.write_bytes(damage(parquet_file(ROWS, row_group_size=2)))
    return table


def with_short_histogram(file: bytes) -> bytes:
    # How many values have definition level 0 and 1.
    return replaced(file, bytes.fromhex("1926 0202 00"), bytes.fromhex("1916 02 00"))


def with_short_bound(file: bytes) -> bytes:
    return replaced(file, bytes.fromhex("1804 04030201"), bytes.fromhex("1803 030201"))


def test_arrow_ends_the_process_over_these_footers(tmp_path: Path) -> None:
    """Where it no longer does, the checks can go."""
    calls = (
        (with_short_histogram, "", b"histogram size mismatch"),
        (with_short_bound, ".statistics", b"Unexpected end of stream"),
    )
    for damage, call, message in calls:
        file = tmp_path / "damaged.parquet"
        file.write_bytes(damage(parquet_file(ROWS, row_group_size=2)))
        script = f"""
            import pyarrow.parquet as pq
            pq.read_metadata({str(file)!r}).row_group(0).column(0){call}
        """
        ended = subprocess.run(
            [sys.executable, "-c", textwrap.dedent(script)], capture_output=True, check=False
        )
        assert ended.returncode < 0
        assert message in ended.stderr


def test_size_statistics_of_a_wrong_length_are_damage(tmp_path: Path) -> None:
    table = table_with(tmp_path, with_short_histogram)
    for where in (None, "id = 3"):
        with pytest.raises(InvalidTable, match="histogram size mismatch"):
            table.snapshot().scan(where=where).to_arrow()
    with pytest.raises(InvalidTable, match="histogram size mismatch"):
        table.delete("id = 3")


def test_bounds_that_are_shorter_than_a_value_end_no_process(tmp_path: Path) -> None:
    table = table_with(tmp_path, with_short_bound)
    with pytest.raises(InvalidTable, match="Unexpected end of stream"):
        table.snapshot().scan(where="id = 3").to_arrow()


def test_a_checkpoint_with_such_a_footer_is_damaged() -> None:
    data = checkpoint_bytes([PROTOCOL, metadata(), add_file("a"), add_file("b")])
    histogram = bytes.fromhex("1936")
    assert histogram in data
    part = CheckpointPart(
        lambda: pa.BufferReader(replaced(data, histogram, bytes.fromhex("1926"))), "_delta_log/a"
    )
    with pytest.raises(CorruptLog):
        part.read_table_actions()
    bound = bytes.fromhex("1804 01000000")
    part = CheckpointPart(
        lambda: pa.BufferReader(replaced(data, bound, bytes.fromhex("1801 01"))), "_delta_log/a"
    )
    # Arrow finds it where it decodes the column.
    with pytest.raises(CorruptLog, match="Unexpected end of stream"):
        part.read_table_actions()


@pytest.mark.parametrize(
    ("rows", "value", "length"),
    [
        (pa.array([True]), b"\1", 1),
        (pa.array([7], pa.int64()), (7).to_bytes(8, "little"), 8),
        (pa.array([1.5], pa.float32()), b"\0\0\xc0\x3f", 4),
        (pa.array([1.5]), b"\0\0\0\0\0\0\xf8\x3f", 8),
        (pa.array([b"abc"], pa.binary(3)), b"abc", 3),
    ],
)
def test_the_bounds_of_each_type_have_a_length(rows: pa.Array, value: bytes, length: int) -> None:
    file = parquet_file(pa.table({"n": ["x"], "v": rows}))
    statistics = read_footer(pa.BufferReader(file)).statistics
    assert statistics.of(1) == [ChunkBounds(rows[0].as_py(), rows[0].as_py(), 0)]
    start = bytes((0x18, length)) + value
    damaged = replaced(file, start, bytes((0x18, length - 1)) + value[:-1])
    statistics = read_footer(pa.BufferReader(damaged)).statistics
    if pa.types.is_fixed_size_binary(rows.type):
        assert [each.minimum for each in statistics.of(1)] == [value[:-1]]
    else:
        assert statistics.of(1) == [ChunkBounds(null_count=0)]
    assert statistics.of(0) == [ChunkBounds(b"x", b"x", 0)]


def test_statistics_are_those_that_arrow_reads(golden_tables: Path) -> None:
    for path in sorted(golden_tables.glob("**/*.parquet"))[::23]:
        footer = read_footer(pa.memory_map(str(path)))
        for leaf in range(footer.metadata.num_columns):
            for group, found in enumerate(footer.statistics.of(leaf)):
                expected = footer.metadata.row_group(group).column(leaf).statistics
                if expected is not None:
                    assert found == ChunkBounds(
                        expected.min_raw, expected.max_raw, expected.null_count
                    )


def test_footers_of_very_many_chunks_have_no_known_statistics() -> None:
    file = parquet_file(pa.table({"n": ["x", "y"], "v": [1, 2]}), row_group_size=1)
    metadata = read_footer(pa.BufferReader(file)).metadata
    footer = file[-8 - metadata.serialized_size : -8]
    assert ChunkStatistics(metadata, footer, 3).of(1) == [ChunkBounds()] * 2
    assert ChunkStatistics(metadata, footer, 4).of(1) == [
        ChunkBounds(1, 1, 0),
        ChunkBounds(2, 2, 0),
    ]


INDEXED = parquet_file(
    pa.table(
        {
            "n": [None if number < 4 else number for number in range(12)],
            "x": pa.nulls(12, pa.int32()),
        }
    ),
    write_page_index=True,
    use_dictionary=False,
    data_page_size=1,
    write_batch_size=4,
)
"""Two pages of the first column, and one of the second, of nulls."""


def test_bounds_of_pages_are_those_of_their_rows() -> None:
    assert page_bounds(INDEXED) == [ChunkBounds(4, 7, 4), ChunkBounds(8, 11, 0)]
    assert page_bounds(INDEXED, leaf=1) == [ChunkBounds(null_count=12)]
    plain = parquet_file(pa.table({"n": range(12)}))
    assert page_bounds(plain) is None


def page_bounds(file: bytes, leaf: int = 0) -> list[ChunkBounds] | None:
    handle = pa.BufferReader(file)
    return read_footer(handle).statistics.of_pages(handle, 0, leaf)


def test_a_damaged_page_index_has_bounds_or_none() -> None:
    draw = random.Random(5)
    end = len(INDEXED) - 8 - int.from_bytes(INDEXED[-8:-4], "little")
    counts = []
    for _ in range(2_000):
        data = bytearray(INDEXED)
        for _ in range(draw.randrange(1, 4)):
            data[draw.randrange(end - 120, end)] = draw.randrange(256)
        found = page_bounds(bytes(data))
        counts.append(None if found is None else len(found))
    assert {None, 2} <= set(counts)


def test_bytes_that_are_no_footer_have_no_known_statistics() -> None:
    metadata = read_footer(pa.BufferReader(parquet_file(ROWS))).metadata
    nested = b"\x1c" * 100_000
    for footer in (b"", b"\x49\xfc\xff\xff\xff\xff\x0f", b"\x1b\xff\xff\x7f\x11", nested):
        statistics = ChunkStatistics(metadata, footer)
        assert statistics.of(0) == [ChunkBounds()]


def test_a_chunk_behind_the_end_of_the_file_is_damage() -> None:
    file = parquet_file(pa.table({"v": [random.Random(1).randbytes(300_000)]}))
    read_footer(pa.BufferReader(file))
    with pytest.raises(OSError, match="Invalid column metadata"):
        read_footer(pa.BufferReader(file[150_000:]))


def test_files_without_rows_or_columns_are_sound() -> None:
    for rows in (ROWS.slice(0, 0), pa.table({}), ROWS.select([])):
        footer = read_footer(pa.BufferReader(parquet_file(rows)))
        for leaf in range(footer.metadata.num_columns):
            footer.statistics.of(leaf)
