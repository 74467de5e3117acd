"""Columns that are nested deeply: refused before they are written, where files of them could not be
read.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from dagster_delta.errors import DeltaError, InvalidArgument, SchemaMismatch
from dagster_delta.protocol.schema import ArrayType, PrimitiveType, StructField, StructType
from dagster_delta.table.delta_table import DeltaTable
from tests.table.logs import PROTOCOL
from tests.table.test_malformed_tables import (
    ADD,
    column,
    metadata_of,
    nested,
    row_count,
    schema_of,
    table_of,
)


def deep_type(depth: int) -> Any:
    found: Any = PrimitiveType("long")
    for _ in range(depth):
        found = ArrayType(found)
    return found


def deep_rows(depth: int) -> pa.Table:
    data_type: Any = pa.int64()
    for _ in range(depth):
        data_type = pa.list_(data_type)
    return pa.table({"id": pa.array([1]), "deep": pa.nulls(1, data_type)})


@pytest.mark.parametrize("depth", [50, 101, 900])
def test_a_column_nested_too_deeply_is_not_written(tmp_path: Path, depth: int) -> None:
    uri = str(tmp_path / "t")
    schema = StructType(
        (StructField("id", PrimitiveType("long")), StructField("deep", deep_type(depth)))
    )
    sql = "ARRAY<" * depth + "INT" + ">" * depth
    with pytest.raises(InvalidArgument, match="deep is nested more than 98"):
        DeltaTable.create(uri, schema)
    with pytest.raises((SchemaMismatch, InvalidArgument), match="deep is nested more than 98"):
        DeltaTable(uri, must_exist=False).append(deep_rows(depth))
    table = DeltaTable.create(uri, pa.schema([("id", pa.int64())]))
    writes: list[Callable[[], object]] = [
        lambda: table.append(deep_rows(depth), schema_mode="merge"),
        lambda: table.overwrite(deep_rows(depth), schema_mode="overwrite"),
        lambda: table.alter(f"ALTER TABLE t ADD COLUMN deep {sql}"),
        lambda: table.alter(f"ALTER TABLE t ADD COLUMN deep INT{'[]' * depth}"),
        lambda: table.add_column("deep", deep_type(depth)),
    ]
    for write in writes:
        with pytest.raises(DeltaError, match="nested"):
            write()
    assert table.version() == 0


def test_a_column_nested_as_deeply_as_may_be_is_written_and_read(tmp_path: Path) -> None:
    table = DeltaTable(str(tmp_path / "t"), must_exist=False)
    table.append(deep_rows(49))
    table.checkpoint()
    assert DeltaTable(table.uri).snapshot().scan().to_arrow().num_rows == 1


def test_a_table_with_a_deeper_column_is_read_and_altered_and_not_written(tmp_path: Path) -> None:
    schema = schema_of(column("long"), column(nested(199), "deep"))
    uri = table_of(tmp_path / "t", PROTOCOL, metadata_of(schema), ADD)
    table = DeltaTable(uri)
    with pytest.raises(InvalidArgument, match="deep is nested"):
        table.append(pa.table({"id": [4]}))
    table.alter("ALTER TABLE t ADD COLUMN x INT")
    table.checkpoint()
    assert row_count(uri) == 3
