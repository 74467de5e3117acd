from __future__ import annotations

import itertools
from pathlib import Path

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given

from dagster_delta.errors import InvalidTable
from dagster_delta.protocol.features.column_mapping import (
    ID_KEY,
    NESTED_IDS_KEY,
    PARQUET_FIELD_ID_KEY,
    PHYSICAL_NAME_KEY,
    assign_column_mapping,
    field_id,
    map_fields,
    physical_arrow_schema,
    physical_name,
)
from dagster_delta.protocol.schema import (
    ArrayType,
    MapType,
    PrimitiveType,
    StructField,
    StructType,
    walk_fields,
)
from tests.protocol.schema_strategies import schemas

LONG = PrimitiveType("long")


def mapped(schema: StructType, *, max_column_id: int = 0) -> tuple[StructType, int]:
    numbers = itertools.count()
    return assign_column_mapping(
        schema, "name", max_column_id=max_column_id, new_name=lambda: f"col-{next(numbers)}"
    )


def never() -> str:
    raise AssertionError("a physical name was made for a field that has one")


@given(schemas)
def test_every_field_gets_its_own_id_and_name(schema: StructType) -> None:
    result, last_id = mapped(schema, max_column_id=7)
    fields = [field for _, field in walk_fields(result)]
    assert {field_id(each) for each in fields} == {*range(8, 8 + len(fields))}
    assert last_id == 7 + len(fields)
    assert len({physical_name(each) for each in fields}) == len(fields)
    keys = ID_KEY, PHYSICAL_NAME_KEY
    unmapped = map_fields(result, lambda field: field.without(*keys))
    assert unmapped.to_json() == schema.to_json()


@given(schemas)
def test_what_is_mapped_already_is_kept(schema: StructType) -> None:
    result, last_id = mapped(schema)
    again = assign_column_mapping(result, "id", max_column_id=0, new_name=never)
    assert again[0].to_json() == result.to_json()
    assert again[1] == last_id


def test_new_column_of_a_mapped_table_gets_the_next_id() -> None:
    old, last_id = mapped(StructType((StructField("a", LONG),)))
    new, new_last_id = assign_column_mapping(
        StructType((*old, StructField("b", LONG))),
        "name",
        max_column_id=40,
        new_name=lambda: "col-new",
    )
    assert last_id == 1
    assert new_last_id == 41
    assert new.field("a").metadata == old.field("a").metadata
    assert new.field("b").metadata == {ID_KEY: 41, PHYSICAL_NAME_KEY: "col-new"}


def test_turning_mapping_on_keeps_names_that_files_have() -> None:
    inner = StructType((StructField("x", LONG),))
    schema = StructType((StructField("a", ArrayType(inner)),))
    result, _ = assign_column_mapping(
        schema, "name", max_column_id=0, new_name=never, keep_logical_names=True
    )
    assert [physical_name(field) for _, field in walk_fields(result)] == ["a", "x"]


def test_ids_of_elements_and_entries_count_as_assigned() -> None:
    metadata = {ID_KEY: 3, PHYSICAL_NAME_KEY: "p", NESTED_IDS_KEY: {"p.element": 9}}
    schema = StructType(
        (StructField("a", ArrayType(LONG), metadata=metadata), StructField("b", LONG))
    )
    result, last_id = mapped(schema)
    assert result.field("a").metadata == metadata
    assert (field_id(result.field("b")), last_id) == (10, 10)


def test_nothing_is_assigned_without_mapping() -> None:
    schema = StructType((StructField("a", LONG),))
    assert assign_column_mapping(schema, "none", max_column_id=2, new_name=never) == (schema, 2)


def test_field_without_physical_name_is_refused_on_a_mapped_table() -> None:
    with pytest.raises(InvalidTable, match="has no physical name") as caught:
        physical_name(StructField("a", LONG), "id")
    assert caught.value.column == "a"


def test_leftover_names_mean_nothing_without_mapping() -> None:
    field = StructField("a", LONG, metadata={PHYSICAL_NAME_KEY: "col-1", ID_KEY: 1})
    assert physical_name(field, "none") == "a"
    assert physical_arrow_schema(StructType((field,)), "none").equals(
        pa.schema([pa.field("a", pa.int64())]), check_metadata=True
    )


def test_data_file_schema_carries_ids_at_every_depth() -> None:
    inner = StructType((StructField("x", LONG, nullable=False),))
    schema, _ = mapped(StructType((StructField("m", MapType(PrimitiveType("string"), inner)),)))
    arrow = physical_arrow_schema(schema, "id")
    outer = arrow.field("col-0")
    nested = outer.type.item_type.field("col-1")
    assert outer.metadata == {PARQUET_FIELD_ID_KEY: b"1"}
    assert nested.metadata == {PARQUET_FIELD_ID_KEY: b"2"}
    assert not nested.nullable


def test_data_file_has_the_field_ids_that_spark_gives_it(
    golden_tables: Path, tmp_path: Path
) -> None:
    root = golden_tables / "golden__table-with-icebegCompatV2Enabled" / "table"
    schema = StructType.from_json(_schema_string(root))
    arrow = physical_arrow_schema(schema, "id")
    ours = tmp_path / "ours.parquet"
    pq.write_table(arrow.empty_table(), ours)
    theirs = next(root.glob("*.parquet"))
    assert _columns(pq.ParquetFile(ours)) == _columns(pq.ParquetFile(theirs))
    assert _field_ids(pq.ParquetFile(ours)) == _field_ids(pq.ParquetFile(theirs))


def _schema_string(root: Path) -> str:
    found = ""
    for log in sorted((root / "_delta_log").glob("*.json")):
        for line in log.read_bytes().splitlines():
            found = msgspec.json.decode(line).get("metaData", {}).get("schemaString", found)
    return found


def _columns(file: pq.ParquetFile) -> list[str]:
    return [file.schema.column(index).path for index in range(len(file.schema))]


def _field_ids(file: pq.ParquetFile) -> list[str]:
    return [part.split(" ")[0] for part in str(file.schema).split("field_id=")[1:]]
