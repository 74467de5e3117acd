"""Tables with files whose variants another writer has split into typed columns."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import deltalake
import pyarrow as pa
import pyarrow.parquet as pq

from dagster_delta import DeltaTable, variants_from_json, variants_to_json
from dagster_delta.protocol.actions import AddFile
from tests.parquet.shredding import Group, shred

ENABLED = {"delta.enableVariantShredding": "true"}


def rows(first: int, last: int) -> pa.Table:
    ids = range(first, last)
    return pa.table(
        {
            "id": pa.array(ids, pa.int64()),
            "v": variants_from_json([f'{{"n": {each}, "s": "x{each}"}}' for each in ids]),
        }
    )


def create(path: Path) -> DeltaTable:
    return DeltaTable.create(str(path), rows(0, 0).schema, properties=ENABLED)


def append_split(table: DeltaTable, first: int, last: int) -> None:
    """Add a file of such rows, as a writer that splits variants would."""
    shape = Group({"n": Group(pa.int64())})
    variants = shred(shape, [({"n": n, "s": f"x{n}"},) for n in range(first, last)], lean=True)
    path = Path(table.uri) / f"split-{first}.parquet"
    pq.write_table(pa.table({"id": pa.array(range(first, last), pa.int64()), "v": variants}), path)
    add = AddFile(
        path=path.name,
        partition_values={},
        size_bytes=path.stat().st_size,
        modification_time_ms=0,
        data_change=True,
        stats=f'{{"numRecords": {last - first}}}',
    )
    transaction = table.transaction()
    transaction.stage_written([add])
    transaction.commit("WRITE")
    table.refresh()


def jsons(table: DeltaTable) -> dict[int, str | None]:
    found = table.snapshot().scan().to_arrow()
    return dict(zip(found["id"].to_pylist(), variants_to_json(found["v"]), strict=True))


def split_files(table: DeltaTable) -> int:
    """How many live files hold split variants."""
    paths = table.snapshot().files()["path"].to_pylist()
    types: list[Any] = [pq.read_schema(Path(table.uri) / path).field("v").type for path in paths]
    return sum("typed_value" in [field.name for field in kind] for kind in types)


def wanted(first: int, last: int) -> dict[int, str | None]:
    return {each: f'{{"n":{each},"s":"x{each}"}}' for each in range(first, last)}


def test_a_new_table_asks_its_readers_for_the_feature(tmp_path: Path) -> None:
    table = create(tmp_path)
    assert table.protocol().reader_features == ("variantShredding", "variantType")
    other = DeltaTable.create(str(tmp_path / "o"), rows(0, 0).schema)
    other.set_properties(ENABLED)
    assert sorted(other.protocol().reader_features or ()) == ["variantShredding", "variantType"]


def test_rows_of_split_and_whole_files_are_changed(tmp_path: Path) -> None:
    table = create(tmp_path)
    append_split(table, 0, 10)
    table.append(rows(10, 20))
    assert split_files(table) == 1
    table.update({"id": "id + 100"}, where="id = 1")
    table.delete("id = 3")
    merge = table.merge(rows(9, 22), on="t.id = s.id")
    merge.when_matched_update_all().when_not_matched_insert_all().execute()
    expected = wanted(0, 22)
    expected[101] = expected.pop(1)
    del expected[3]
    assert jsons(table) == expected
    table.optimize()
    assert split_files(table) == 0
    assert jsons(table) == expected


def test_dropping_the_feature_puts_all_variants_together(tmp_path: Path) -> None:
    table = create(tmp_path)
    append_split(table, 0, 5)
    table.drop_feature("variantShredding")
    assert split_files(table) == 0
    assert jsons(table) == wanted(0, 5)
    assert "variantShredding" not in (table.protocol().reader_features or ())
    # It reads no table that has the feature.
    found = deltalake.DeltaTable(str(tmp_path)).to_pyarrow_table()
    assert variants_to_json(found["v"]) == list(wanted(0, 5).values())
