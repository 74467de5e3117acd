"""Damaged data files on Spark: the error names the file, and no write makes them look sound."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from dagster_delta.errors import DeltaError, InvalidTable
from dagster_delta.table.delta_table import DeltaTable
from tests.table.test_damage import cut, flip, page_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def one_file(root: Path) -> Path:
    table = DeltaTable(str(root), must_exist=False)
    table.append(pa.table({"id": range(1000), "x": [float(each) for each in range(1000)]}))
    (file,) = root.glob("*.parquet")
    return file


def test_a_flipped_bit_in_a_page_is_found_where_pages_are_verified(
    tmp_path: Path, spark: SparkSession
) -> None:
    file = one_file(tmp_path)
    rows = DeltaTable(str(tmp_path)).snapshot().scan(verify_checksums=True)
    assert rows.to_spark(spark).count() == 1000
    flip(file, page_of(file, 1))
    rows = DeltaTable(str(tmp_path)).snapshot().scan(verify_checksums=True)
    with pytest.raises(Exception, match=file.name):
        rows.to_spark(spark).collect()


@pytest.mark.parametrize("damage", ["flip", "cut"])
def test_a_write_on_spark_refuses_what_is_damaged_by_name(
    tmp_path: Path, spark: SparkSession, damage: str
) -> None:
    file = one_file(tmp_path)
    if damage == "flip":
        flip(file, page_of(file, 1))
    else:
        cut(file)
    table = DeltaTable(str(tmp_path))
    with pytest.raises(InvalidTable) as caught:
        table.delete("x + 0 = 17.5", engine="spark")
    assert file.name in str(caught.value.file)
    with pytest.raises(DeltaError, match=file.name):
        table.update({"id": "id + 1"}, where="x + 0 >= 0", engine="spark")
    assert DeltaTable(str(tmp_path)).version() == 0
