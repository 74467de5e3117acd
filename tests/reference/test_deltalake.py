"""deltalake (delta-rs) reads what we wrote, and we read what it wrote."""

from __future__ import annotations

from decimal import Decimal
from pathlib import Path

import deltalake
import pyarrow as pa
import pytest

from dagster_delta import DeltaTable
from tests.golden.answers import rows_of
from tests.reference.tables import BEYOND_DELTALAKE, BUILDERS, PARTITION_ROWS

READ = [name for name in BUILDERS if name not in BEYOND_DELTALAKE]


def read_by_deltalake(uri: str) -> pa.Table:
    return pa.table(
        deltalake.QueryBuilder()
        .register("t", deltalake.DeltaTable(uri))
        .execute("SELECT * FROM t")
        .read_all()
    )


@pytest.mark.parametrize("name", READ)
def test_deltalake_reads_what_we_wrote(name: str, tmp_path: Path) -> None:
    uri = str(tmp_path / name)
    ours = BUILDERS[name](uri).snapshot().scan().to_arrow()
    theirs = read_by_deltalake(uri)
    assert set(theirs.column_names) == set(ours.column_names)
    assert rows_of(theirs.select(ours.column_names).cast(ours.schema)) == rows_of(ours)


def test_deltalake_appends_to_our_table_and_we_read_it(tmp_path: Path) -> None:
    uri = str(tmp_path / "shared")
    table = BUILDERS["checkpointed"](uri)
    before = table.snapshot().scan().to_arrow()
    deltalake.write_deltalake(uri, PARTITION_ROWS, mode="append")
    after = DeltaTable(uri).snapshot().scan().to_arrow()
    assert rows_of(after) == rows_of(pa.concat_tables([before, PARTITION_ROWS.cast(before.schema)]))


def test_we_append_to_a_table_of_deltalake_and_it_reads_us(tmp_path: Path) -> None:
    uri = str(tmp_path / "theirs")
    deltalake.write_deltalake(uri, PARTITION_ROWS, partition_by=["p"])
    DeltaTable(uri).append(PARTITION_ROWS)
    assert read_by_deltalake(uri).num_rows == 2 * PARTITION_ROWS.num_rows


@pytest.mark.parametrize(
    "value", ["-692927436204506.61", "692927436204506.61", "100000000000000000.01"]
)
def test_decimals_are_found_whose_bounds_deltalake_computes_as_doubles(
    tmp_path: Path, value: str
) -> None:
    number = Decimal(value)
    for each in (number, Decimal("5.00")):
        rows = pa.table({"d": pa.array([each], pa.decimal128(20, 2))})
        deltalake.write_deltalake(str(tmp_path), rows, mode="append")
    snapshot = DeltaTable(str(tmp_path)).snapshot()
    for operator in ("=", "<=", ">="):
        found = snapshot.scan(where=f"d {operator} {value}BD").to_arrow()["d"].to_pylist()
        assert number in found
    scan = snapshot.scan(where=f"d = {value}BD")
    assert (scan.to_arrow().num_rows, scan.num_files) == (1, 1)
    assert snapshot.scan(where=f"d <> {value}BD").to_arrow()["d"].to_pylist() == [Decimal("5.00")]
