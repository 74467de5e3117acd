"""Files that readers skip well in: row groups, page indexes and Bloom filters, by their counts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from dagster_delta import DeltaTable, errors
from dagster_delta.parquet import writer

ROWS = 600_000
ENABLED = "parquet.bloom.filter.enabled"
WIDE = {f"v{number}": pa.array(np.arange(ROWS) % 97 * 1.5) for number in range(2)}


def scattered(count: int = ROWS) -> pa.Int64Array:
    return pa.array(np.arange(count) * 2_654_435_761 % 2**40)


def footers(table: DeltaTable) -> list[Any]:
    root = Path(table.store.location.uri.removeprefix("file://"))
    return [
        pq.ParquetFile(root / path).metadata
        for path in table.snapshot().files()["path"].to_pylist()
    ]


def groups_of(footer: Any) -> list[int]:
    return [footer.row_group(index).num_rows for index in range(footer.num_row_groups)]


def bloom_bytes(footer: Any, column: str) -> list[int | None]:
    """The length of each row group's filter of a column."""
    chunks = [
        footer.row_group(group).column(index)
        for group in range(footer.num_row_groups)
        for index in range(footer.num_columns)
    ]
    return [chunk.bloom_filter_length for chunk in chunks if chunk.path_in_schema == column]


def has_index(footer: Any) -> list[bool]:
    groups = map(footer.row_group, range(footer.num_row_groups))
    return [group.column(0).has_offset_index for group in groups]


@pytest.fixture
def table(tmp_path: Path) -> DeltaTable:
    return DeltaTable(tmp_path / "t", must_exist=False)


@pytest.mark.parametrize("batch_rows", [ROWS, 131_072, 100_000, 7_000])
def test_row_groups_have_about_a_quarter_of_a_million_rows(
    table: DeltaTable, batch_rows: int
) -> None:
    rows = pa.table({"id": np.arange(ROWS), **WIDE})
    table.append(pa.RecordBatchReader.from_batches(rows.schema, rows.to_batches(batch_rows)))
    (footer,) = footers(table)
    groups = groups_of(footer)
    assert sum(groups) == ROWS
    assert len(groups) in (2, 3)
    assert max(groups) <= writer._SELECTIVE_ROWS * 1.5
    assert has_index(footer) == [True] * len(groups)


def test_row_groups_of_narrow_rows_are_larger(table: DeltaTable) -> None:
    table.append(pa.table({"id": pa.array(np.arange(ROWS), pa.int32())}))
    (footer,) = footers(table)
    assert groups_of(footer) == [ROWS]
    assert has_index(footer) == [True]


def test_row_groups_of_wide_rows_are_smaller(table: DeltaTable) -> None:
    rows = 20_000
    table.append(pa.table({f"c{number}": np.arange(rows) for number in range(500)}))
    (footer,) = footers(table)
    assert len(groups_of(footer)) == 2
    assert has_index(footer) == [False, False]


def test_a_row_group_of_a_page_has_no_page_index(table: DeltaTable) -> None:
    table.append(pa.table({"id": range(100)}))
    (footer,) = footers(table)
    assert has_index(footer) == [False]


def test_compaction_and_z_order_write_the_same_row_groups_indexes_and_filters(
    tmp_path: Path,
) -> None:
    rows = pa.table({"key": scattered(), **WIDE})
    for name, by in (("compacted", []), ("ordered", ["key"])):
        table = DeltaTable.create(
            tmp_path / name, rows.schema, properties={f"{ENABLED}#key": "true"}
        )
        for start in range(0, ROWS, 100_000):
            table.append(rows.slice(start, 100_000))
        table.optimize(zorder_by=by)
        (footer,) = footers(table)
        assert max(groups_of(footer)) <= writer._SELECTIVE_ROWS * 1.5
        assert all(has_index(footer))
        assert all(bloom_bytes(footer, "key"))
        assert not any(bloom_bytes(footer, "v0"))


def test_a_filter_takes_two_bytes_for_a_value_at_most(table: DeltaTable) -> None:
    table.append(pa.table({"key": scattered(), **WIDE}), properties={f"{ENABLED}#key": True})
    (footer,) = footers(table)
    for rows, size in zip(groups_of(footer), bloom_bytes(footer, "key"), strict=True):
        assert size is not None
        assert rows / 2 <= size <= 2 * rows


def test_the_rate_and_the_count_of_values_change_the_size(tmp_path: Path) -> None:
    found = []
    for name, options in (
        ("rare", {"fpp#key": "0.001"}),
        ("default", {}),
        ("few", {"expected.ndv": 1000}),
    ):
        given = {f"parquet.bloom.filter.{option}": value for option, value in options.items()}
        table = DeltaTable(tmp_path / name, must_exist=False)
        rows = pa.table({"key": scattered(100_000)})
        table.append(rows, properties={f"{ENABLED}#key": True, **given})
        found.append(bloom_bytes(footers(table)[0], "key")[0] or 0)
    assert found[0] > found[1] > found[2] > 0


def test_consecutive_numbers_get_no_filter(table: DeltaTable) -> None:
    rows = pa.table({"id": np.arange(ROWS), "other": scattered()})
    table.append(rows, properties={ENABLED: "true"})
    (footer,) = footers(table)
    assert not any(bloom_bytes(footer, "id"))
    assert all(bloom_bytes(footer, "other"))


def test_all_columns_get_filters_but_those_whose_equal_values_differ(table: DeltaTable) -> None:
    rows = pa.table(
        {
            "text": ["a", "b"],
            "f": [0.0, -0.0],
            "flag": [True, False],
            "nested": [{"key": 70}, {"key": 7}],
            "list": [[1], [2]],
        }
    )
    table.append(rows, properties={ENABLED: "true", f"{ENABLED}#text": "false"})
    (footer,) = footers(table)
    groups = footer.row_group(0)
    columns = [groups.column(index) for index in range(groups.num_columns)]
    assert [c.path_in_schema for c in columns if c.bloom_filter_length] == ["nested.key"]


@pytest.mark.parametrize(
    ("key", "value", "says"),
    [
        (f"{ENABLED}#nothing", "true", "no such column"),
        (f"{ENABLED}#p", "true", "no such column in its data files"),
        (f"{ENABLED}#f", "true", "type double have no Bloom filters"),
        (ENABLED, "maybe", "'maybe' is not 'true' or 'false'"),
        ("parquet.bloom.filter.fpp#key", "1.5", "between 0 and 1"),
        ("parquet.bloom.filter.expected.ndv", "0", "above 0"),
    ],
)
def test_an_option_without_effect_is_refused(
    tmp_path: Path, key: str, value: str, says: str
) -> None:
    schema = pa.schema({"key": pa.int64(), "f": pa.float64(), "p": pa.string()})
    with pytest.raises(errors.InvalidArgument, match=says):
        DeltaTable.create(tmp_path / "a", schema, partition_by=["p"], properties={key: value})
    table = DeltaTable.create(tmp_path / "b", schema, partition_by=["p"])
    with pytest.raises(errors.InvalidArgument, match=says):
        table.set_properties({key: value})
    table.set_properties({f"{ENABLED}#key": "true"})
    assert table.snapshot().metadata.configuration[f"{ENABLED}#key"] == "true"


def test_a_filter_follows_a_column_under_column_mapping(tmp_path: Path) -> None:
    schema = pa.schema({"key": pa.int64()})
    properties = {f"{ENABLED}#key": "true", "delta.columnMapping.mode": "name"}
    table = DeltaTable.create(tmp_path / "t", schema, properties=properties)
    table.append(pa.table({"key": scattered(1000)}))
    (footer,) = footers(table)
    (physical,) = footer.schema.to_arrow_schema().names
    assert physical != "key"
    assert all(bloom_bytes(footer, physical))


@pytest.mark.parametrize("kind", ["string", "binary", "int32", "date32", "timestamp", "decimal"])
def test_other_programs_find_each_value_by_its_filter(tmp_path: Path, kind: str) -> None:
    numbers = scattered(50_000)
    values: Any = {
        "string": lambda: numbers.cast(pa.string()),
        "binary": lambda: numbers.cast(pa.string()).cast(pa.binary()),
        "int32": lambda: pa.array(np.arange(50_000) * 7919 % 2**30, pa.int32()),
        "date32": lambda: pa.array(np.arange(50_000) * 7919 % 90_000, pa.int32()).cast(pa.date32()),
        "timestamp": lambda: numbers.cast(pa.timestamp("us", "UTC")),
        "decimal": lambda: (
            pa.array(np.arange(50_000)).cast(pa.decimal128(30, 2)).cast(pa.decimal128(12, 2))
        ),
    }[kind]()
    table = DeltaTable(tmp_path / "t", must_exist=False)
    rows = pa.table({"key": values, "number": range(50_000)})
    table.append(rows, properties={f"{ENABLED}#key": "true"})
    (footer,) = footers(table)
    assert all(bloom_bytes(footer, "key"))
    path = f"{tmp_path}/t/*.parquet"
    wanted = values[777].as_py()
    number = rows.filter(pc.equal(values, values[777]))["number"].to_pylist()
    found = duckdb.execute(
        "SELECT number FROM read_parquet($path) WHERE key = $wanted ORDER BY ALL",
        {"path": path, "wanted": wanted},
    ).fetchall()
    assert [row for (row,) in found] == number
    lazy = pl.scan_parquet(path).filter(pl.col("key") == pl.lit(wanted))
    assert sorted(lazy.collect()["number"].to_list()) == number
