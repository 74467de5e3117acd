"""deltalake (delta-rs) reads what we wrote, and we read what it wrote."""

from __future__ import annotations

from decimal import Decimal
from pathlib import Path

import deltalake
import pyarrow as pa
import pyarrow.compute as pc
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


_WIDE = pa.decimal128(38, 18)
_INFINITY = float("inf")
UNUSUAL: dict[str, tuple[pa.Array, pa.Array]] = {
    "infinity": (pa.array([_INFINITY, None]), pa.array([5.0])),
    "both infinities": (pa.array([-_INFINITY, _INFINITY, 1.5], pa.float32()), pa.array([5.0], pa.float32())),
    "negative zero": (pa.array([-0.0, 0.0]), pa.array([5.0])),
    "small decimals": (pa.array([Decimal("1E-18"), Decimal(0)], _WIDE), pa.array([Decimal("0.5")], _WIDE)),
    "wide decimals": (pa.array([Decimal("12345678901234567890.000000000000000001")], _WIDE), pa.array([Decimal("-5")], _WIDE)),
    "long texts": (pa.array(["x" * 5000]), pa.array(["a"])),
    "booleans": (pa.array([True]), pa.array([False])),
    "nulls": (pa.nulls(2, pa.int64()), pa.array([5])),
    "microseconds": (pa.array([500, 1500], pa.timestamp("us", "UTC")), pa.array([10**12], pa.timestamp("us", "UTC"))),
}  # fmt: skip


@pytest.mark.parametrize("case", UNUSUAL)
def test_filters_of_deltalake_find_the_values_that_we_wrote(tmp_path: Path, case: str) -> None:
    uri = str(tmp_path)
    first, second = UNUSUAL[case]
    for values in (first, second):
        DeltaTable(uri, must_exist=False).append(pa.table({"v": values}))
    rows = DeltaTable(uri).snapshot().scan().to_arrow()
    for value in {*pc.drop_null(rows["v"])}:
        for compare in (pc.equal, pc.less_equal, pc.greater_equal):
            condition = compare(pc.field("v"), value)
            found = deltalake.DeltaTable(uri).to_pyarrow_table(filters=condition)
            assert rows_of(found) == rows_of(rows.filter(condition)), (str(condition), value)
