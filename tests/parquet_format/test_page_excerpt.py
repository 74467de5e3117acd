"""Only the pages with wanted rows are decoded, and they give the rows that the whole gives."""

from __future__ import annotations

import datetime as dt
import random
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dagster_delta import DeltaTable
from dagster_delta.nested_arrays import leaf_ranges, mask_of
from dagster_delta.parquet import opened_file
from dagster_delta.parquet.opened_file import DataFile, OpenedFile, read_data_footer
from dagster_delta.storage.object_store import FetchBudget

ROWS = 40_000


def _rows(random_: random.Random) -> pa.Table:
    """Every kind of column, with nulls."""
    numbers = [None if random_.random() < 0.1 else random_.randrange(10**6) for _ in range(ROWS)]
    texts = [None if n is None else f"text {n % 300}" * (n % 4) for n in numbers]
    return pa.table(
        {
            "id": range(ROWS),
            "number": pa.array(numbers, pa.int32()),
            "text": texts,
            "few": pa.array([f"group {n % 7}" for n in range(ROWS)]),
            "float": pa.array([float("nan") if n is None else n / -7 for n in numbers]),
            "flag": [None if n is None else n % 3 == 0 for n in numbers],
            "day": [
                None if n is None else dt.date(1970, 1, 1) + dt.timedelta(n % 9) for n in numbers
            ],
            "price": pa.array(
                [None if n is None else Decimal(n).scaleb(-2) for n in numbers],
                pa.decimal128(12, 2),
            ),
            "time": pa.array([n and n * 10**9 for n in numbers], pa.timestamp("us", "UTC")),
            "list": [None if n is None else [*range(n % 4)] for n in numbers],
            "struct": [None if n is None else {"x": n, "y": str(n)} for n in numbers],
            "nothing": pa.nulls(ROWS, pa.int64()),
        }
    )


LAYOUTS: dict[str, dict[str, Any]] = {
    "dictionaries": {"compression": "snappy"},
    "plain": {"compression": "none", "use_dictionary": False},
    "other encodings": {
        "use_dictionary": False,
        "column_encoding": {
            "id": "DELTA_BINARY_PACKED",
            "text": "DELTA_BYTE_ARRAY",
            "few": "DELTA_LENGTH_BYTE_ARRAY",
            "float": "BYTE_STREAM_SPLIT",
        },
    },
    "pages of version 2": {"data_page_version": "2.0", "compression": "zstd"},
    "checksums": {"write_page_checksum": True},
    "pages by size": {"max_rows_per_page": ROWS, "data_page_size": 4000, "write_batch_size": 64},
    "dictionaries that end early": {"dictionary_pagesize_limit": 20_000},
    "page index": {"write_page_index": True},
}


@pytest.fixture(params=LAYOUTS)
def opened(request: pytest.FixtureRequest, tmp_path: Path) -> OpenedFile:
    options = {"max_rows_per_page": 1000, "write_batch_size": 250, **LAYOUTS[request.param]}
    path = tmp_path / "file.parquet"
    pq.write_table(_rows(random.Random(7)), path, row_group_size=ROWS * 3 // 5, **options)
    return open_file(path)


def open_file(path: Path) -> OpenedFile:
    handle = pa.OSFile(str(path))
    footer = read_data_footer(handle)
    return OpenedFile(
        DataFile(path.name, path.stat().st_size, {}, None),
        handle,
        footer.metadata,
        footer.schema_arrow,
        footer.statistics,
        is_remote=False,
        verifies_pages=True,
        budget=FetchBudget(1 << 20),
    )


def test_excerpts_hold_the_wanted_rows(opened: OpenedFile) -> None:
    random_ = random.Random(3)
    columns = leaf_ranges(list(opened.arrow_schema))
    num_excerpts = 0
    for _ in range(60):
        group = random_.randrange(opened.footer.num_row_groups)
        num_rows = opened.footer.row_group(group).num_rows
        first = random_.randrange(num_rows)
        bits = np.zeros(random_.randrange(1, num_rows - first + 1), dtype=bool)
        bits[[random_.randrange(len(bits)) for _ in range(random_.choice((1, 1, 3)))]] = True
        chosen = [leaf for leaves in columns if random_.random() < 0.3 for leaf in leaves]
        if not chosen:
            continue
        wanted = pa.Table.from_batches(opened.decode(group, chosen)).slice(first, len(bits))
        found = opened.decode_wanted(group, chosen, first, mask_of(bits))
        if found is not None:
            num_excerpts += 1
            rows = pa.Table.from_batches(found)
            expected = wanted.filter(mask_of(bits))
            assert repr(plain(rows)) == repr(plain(expected))
    assert num_excerpts > 5


def plain(rows: pa.Table) -> list[list[object]]:
    return [column.to_pylist() for column in rows.columns]


def test_uncertain_pages_are_all_decoded(tmp_path: Path) -> None:
    path = tmp_path / "file.parquet"
    pq.write_table(
        pa.table({"id": range(ROWS)}), path, use_dictionary=False, max_rows_per_page=1000
    )
    mask = mask_of(np.arange(ROWS) == ROWS - 1)
    whole = open_file(path)
    assert whole.decode_wanted(0, [0], 0, mask) is not None
    data = path.read_bytes()
    header = whole.footer.row_group(0).column(0).data_page_offset
    # The number of values in the header of the first page: 1000, as a zigzag number.
    place = data.index(b"\xd0\x0f", header)
    path.write_bytes(data[:place] + b"\xd2\x0f" + data[place + 2 :])
    assert open_file(path).decode_wanted(0, [0], 0, mask) is None


def test_reads_by_key_decode_the_pages_of_the_row(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = pa.table({"id": range(200_000), "value": [float(n) for n in range(200_000)]})
    DeltaTable(tmp_path / "t", must_exist=False).append(rows)
    decoded: list[int] = []
    split = opened_file.split_by_bytes

    def count(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        if batch.schema.names == ["value"]:
            decoded.append(batch.num_rows)
        yield from split(batch)

    monkeypatch.setattr(opened_file, "split_by_bytes", count)
    found = DeltaTable(tmp_path / "t").snapshot().scan(where="id = 123456").to_arrow()
    assert found.to_pylist() == [{"id": 123456, "value": 123456.0}]
    assert sum(decoded) <= 20_000
