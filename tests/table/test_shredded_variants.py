"""Tables whose variants are split into typed columns: by whom, in which files, and where not."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import deltalake
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dagster_delta import DeltaTable, variants_from_json, variants_to_json
from dagster_delta.engines.parquet.write import row_group_copying
from tests.table.bounded_writes import append_bounded

ENABLED = {"delta.enableVariantShredding": "true"}


def rows(first: int, last: int, text: str = '{{"n": {0}, "s": "x{0}"}}') -> pa.Table:
    ids = range(first, last)
    return pa.table(
        {
            "id": pa.array(ids, pa.int64()),
            "v": variants_from_json([text.format(each) for each in ids]),
            "after": pa.array([None if each % 2 else each * 0.5 for each in ids], pa.float64()),
        }
    )


def create(path: Path, **properties: str) -> DeltaTable:
    return DeltaTable.create(str(path), rows(0, 0).schema, properties={**ENABLED, **properties})


def jsons(table: DeltaTable) -> dict[int, str | None]:
    found = table.snapshot().scan().to_arrow()
    return dict(zip(found["id"].to_pylist(), variants_to_json(found["v"]), strict=True))


def types(table: DeltaTable) -> list[Any]:
    """What each live file holds as the variant."""
    paths = table.snapshot().files()["path"].to_pylist()
    return [pq.read_schema(Path(table.uri) / each).field("v").type for each in paths]


def is_split(table: DeltaTable) -> list[bool]:
    return ["typed_value" in [each.name for each in found] for found in types(table)]


def wanted(first: int, last: int) -> dict[int, str | None]:
    return {each: f'{{"n":{each},"s":"x{each}"}}' for each in range(first, last)}


def test_a_new_table_asks_its_readers_for_the_feature(tmp_path: Path) -> None:
    table = create(tmp_path)
    assert table.protocol().reader_features == ("variantShredding", "variantType")
    other = DeltaTable.create(str(tmp_path / "o"), rows(0, 0).schema)
    other.set_properties(ENABLED)
    assert sorted(other.protocol().reader_features or ()) == ["variantShredding", "variantType"]


def test_every_file_that_is_written_is_split(tmp_path: Path) -> None:
    table = create(tmp_path)
    table.append(rows(0, 10))
    table.append(rows(10, 20))
    assert is_split(table) == [True, True]
    table.update({"after": "1"}, where="id = 1")
    table.delete("id = 3")
    merge = table.merge(rows(19, 22), on="t.id = s.id")
    merge.when_matched_update_all().when_not_matched_insert_all().execute()
    expected = wanted(0, 22)
    del expected[3]
    assert jsons(table) == expected
    assert all(is_split(table))
    table.optimize()
    assert is_split(table) == [True]
    assert jsons(table) == expected


def test_statistics_are_those_of_their_columns(tmp_path: Path) -> None:
    table = create(tmp_path)
    table.append(rows(4, 10))
    (stats,) = table.snapshot().files()["stats"].to_pylist()
    assert json.loads(stats) == {
        "numRecords": 6,
        "minValues": {"id": 4, "after": 2.0},
        "maxValues": {"id": 9, "after": 4.0},
        "nullCount": {"id": 0, "v": 0, "after": 3},
    }


def test_row_groups_of_a_file_are_split_alike(tmp_path: Path) -> None:
    table = create(tmp_path)
    data = pa.concat_tables([rows(0, 300), rows(300, 400, '{{"n": "text", "other": [{}]}}')])
    append_bounded(table, data.to_reader(max_chunksize=50), row_group_bytes=5_000)
    (path,) = table.snapshot().files()["path"].to_pylist()
    assert pq.ParquetFile(tmp_path / path).num_row_groups > 2
    later = {each: f'{{"n":"text","other":[{each}]}}' for each in range(300, 400)}
    assert jsons(table) == wanted(0, 300) | later


def test_each_partition_is_split_by_its_own_rows(tmp_path: Path) -> None:
    data = pa.concat_tables([rows(0, 5), rows(5, 10, '["{}"]')])
    kinds = pa.array([each >= 5 for each in range(10)])
    table = DeltaTable(str(tmp_path), must_exist=False)
    data = data.append_column("array", kinds)
    DeltaTable.create(
        str(tmp_path), data.schema, partition_by=["array"], properties=ENABLED
    ).append(data)
    found = [each.field("typed_value").type for each in types(table)]
    assert sorted(map(pa.types.is_list, found)) == [False, True]
    assert jsons(table) == wanted(0, 5) | {each: f'["{each}"]' for each in range(5, 10)}


def test_rows_of_large_files_are_copied_and_split(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = create(tmp_path)
    table.append(rows(0, 100))
    monkeypatch.setattr(row_group_copying, "SPLIT_FILE_BYTES", 1)
    monkeypatch.setattr(row_group_copying, "MIN_ROW_GROUP_BYTES", 0)
    table.delete("id = 7")
    table.update({"id": "id + 1000"}, where="id = 8")
    expected = wanted(0, 100)
    del expected[7]
    expected[1008] = expected.pop(8)
    assert jsons(table) == expected
    assert all(is_split(table))


def test_nothing_is_split_where_the_property_does_not_say_so(tmp_path: Path) -> None:
    table = DeltaTable.create(
        str(tmp_path),
        rows(0, 0).schema,
        properties={"delta.feature.variantShredding": "supported"},
    )
    table.append(rows(0, 5))
    table.set_properties(ENABLED)
    table.append(rows(5, 10))
    table.unset_properties(["delta.enableVariantShredding"])
    table.append(rows(10, 15))
    assert sorted(is_split(table)) == [False, False, True]
    assert jsons(table) == wanted(0, 15)
    table.optimize()
    assert is_split(table) == [False]
    assert jsons(table) == wanted(0, 15)


def test_dropping_the_feature_puts_all_variants_together(tmp_path: Path) -> None:
    table = create(tmp_path)
    table.append(rows(0, 5))
    table.drop_feature("variantShredding")
    assert is_split(table) == [False]
    assert jsons(table) == wanted(0, 5)
    assert "variantShredding" not in (table.protocol().reader_features or ())
    # It reads no table that has the feature.
    found = deltalake.DeltaTable(str(tmp_path)).to_pyarrow_table()
    assert variants_to_json(found["v"]) == list(wanted(0, 5).values())
