"""Real tables that others wrote, altered: their rows stay what they were."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from dagster_delta import DeltaTable
from dagster_delta.protocol.features.column_mapping import field_id, physical_name
from dagster_delta.protocol.schema import StructField, walk_fields
from dagster_delta.protocol.table_properties import ColumnMappingMode
from tests.golden.answers import rows_of, table_path

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.usefixtures("golden_tables")

TABLES = {
    "dat__column_mapping": "RENAME new_int TO n, DROP COLUMN date",
    "golden__dv-with-columnmapping": "RENAME part TO p, RENAME col1 TO part, DROP COLUMN col2",
    "golden__table-with-columnmapping-mode-id": "RENAME ByteType TO b, DROP COLUMN ShortType, "
    "ADD COLUMN ShortType STRING",
    "rs__table_with_partitioning_mapping": "RENAME newid TO id, ADD COLUMN newid INT FIRST",
    "golden__type-widening": "ALTER byte_long TYPE DECIMAL(20,0), RENAME int_long TO l",
    "krs__type-widening": "ALTER int_long TYPE DECIMAL(22,2), ADD COLUMN c INT DEFAULT 1",
}


def altered(name: str, directory: Path) -> tuple[DeltaTable, DeltaTable]:
    """A table, and a copy of it after its change."""
    shutil.copytree(table_path(name), directory / name)
    table = DeltaTable(directory / name)
    table.alter(TABLES[name], enable_features=True)
    return DeltaTable(table_path(name)), table


@pytest.mark.parametrize("name", TABLES)
def test_an_altered_table_keeps_its_rows_and_ids(name: str, tmp_path: Path) -> None:
    before, after = altered(name, tmp_path)
    old = before.snapshot().scan().to_arrow()
    new = after.snapshot().scan().to_arrow()
    kept = [(each, _counterpart(each, after)) for each in before.schema()]
    pairs = [(old.name, new.name) for old, new in kept if new is not None]
    assert pairs
    assert _max_column_id(after) >= _max_column_id(before)
    used = {field_id(each) for _, each in walk_fields(before.schema())} - {None}
    fresh = {field_id(each) for each in after.schema()} - {field_id(n) for _, n in kept if n}
    assert not fresh & used
    theirs = new.select([name for _, name in pairs])
    ours = old.select([name for name, _ in pairs]).rename_columns(theirs.column_names)
    assert rows_of(ours.cast(theirs.schema)) == rows_of(theirs)


def _counterpart(field: StructField, table: DeltaTable) -> StructField | None:
    """The same column after the change: by id, or by name where the files are older than ids."""
    number = field_id(field)
    for each in table.schema():
        same_id = number is not None and field_id(each) == number
        if same_id or (number is None and physical_name(each, mode_of(table)) == field.name):
            return each
    return None


def mode_of(table: DeltaTable) -> ColumnMappingMode:
    return table.snapshot().configuration.column_mapping_mode


def _max_column_id(table: DeltaTable) -> int:
    return table.snapshot().configuration.properties.column_mapping_max_column_id


@pytest.mark.parametrize("name", ["golden__type-widening", "golden__dv-with-columnmapping"])
@pytest.mark.delta_spark
def test_delta_spark_reads_an_altered_table(
    name: str, delta_spark: SparkSession, tmp_path: Path
) -> None:
    _, after = altered(name, tmp_path)
    ours = after.snapshot().scan().to_arrow()
    theirs = delta_spark.read.format("delta").load(str(tmp_path / name)).toArrow()
    assert theirs.column_names == ours.column_names
    assert rows_of(theirs.cast(ours.schema)) == rows_of(ours)
