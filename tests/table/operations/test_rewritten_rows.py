"""Files that lose or change rows by copy-on-write, one row group after another."""

from __future__ import annotations

import datetime as dt
import io
import json
import math
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dagster_delta.errors import ConstraintViolation
from dagster_delta.parquet import data_file_reader
from dagster_delta.protocol.schema import PrimitiveType, StructField, StructType
from dagster_delta.protocol.statistics.statistics import parse_statistics_json
from dagster_delta.storage.memory_store import MemoryStore
from dagster_delta.table.delta_table import DeltaTable
from tests.table.bounded_writes import append_bounded

ROWS = 400
GROUP_ROWS = 100
_Struct = pa.struct([("a", pa.int64()), ("f", pa.float64())])


@pytest.fixture(autouse=True)
def _large_files(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if all files were large."""
    monkeypatch.setattr(data_file_reader, "SPLIT_FILE_BYTES", 1)


def rows(start: int = 0, count: int = ROWS) -> pa.Table:
    """Rows with a NaN in the last row group and nulls of every kind."""
    ids = range(start, start + count)
    return pa.table(
        {
            "id": pa.array(ids, pa.int64()),
            "p": pa.array([None if i < start + 3 else "x" for i in ids], pa.string()),
            "name": pa.array([None if i % 7 == 0 else f"name {i}" for i in ids], pa.string()),
            "few": pa.array([f"c{i % 3}" for i in ids], pa.string()),
            "f": pa.array([math.nan if i == 399 else i / 2 for i in ids], pa.float64()),
            "list": pa.array(
                [None if i % 5 == 0 else [i, None] for i in ids], pa.list_(pa.int64())
            ),
            "s": pa.array([{"a": i, "f": None if i % 2 else 0.5} for i in ids], _Struct),
            "d": pa.array(range(count), pa.int32()).cast(pa.date32()),
        }
    )


def make(
    data: pa.Table | None = None,
    properties: dict[str, str] | None = None,
    *,
    partition_by: tuple[str, ...] = (),
) -> DeltaTable:
    """A table of one file for each partition, in row groups of a hundred rows."""
    data = rows() if data is None else data
    table = DeltaTable.create(
        "", data.schema, partition_by=partition_by, properties=properties, store=MemoryStore()
    )
    append_bounded(table, data, row_group_rows=GROUP_ROWS)
    return table


def content(table: DeltaTable) -> list[dict[str, Any]]:
    found = table.snapshot().scan().to_arrow().to_pylist()
    return sorted(found, key=lambda row: row["id"])


def without_nan(data: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """NaN equals nothing, not even itself."""
    return [{**row, "f": "NaN" if row["f"] != row["f"] else row["f"]} for row in data]


def files(table: DeltaTable) -> list[Any]:
    paths = table.snapshot().files()["path"].to_pylist()
    return [pq.ParquetFile(io.BytesIO(table.store.read(path))) for path in paths]


def stats(table: DeltaTable) -> list[dict[str, Any]]:
    return [
        json.loads(each) for each in table.snapshot().live_files(["stats"])["stats"].to_pylist()
    ]


def test_rows_leave_every_row_group_in_place() -> None:
    table = make()
    result = table.delete("id % 10 = 3")
    assert result.metrics["numDeletedRows"] == 40
    assert result.metrics["numCopiedRows"] == 360
    assert table.snapshot().scan().to_arrow()["id"].to_pylist() == [
        each for each in range(ROWS) if each % 10 != 3
    ]
    expected = [row for row in rows().to_pylist() if row["id"] % 10 != 3]
    assert without_nan(content(table)) == without_nan(expected)


def test_statistics_are_those_of_the_rows_that_stay() -> None:
    table = make()
    table.delete("id % 10 = 3 OR id < 20")
    staying = [each % 10 != 3 and each >= 20 for each in range(ROWS)]
    assert stats(table) == stats(make(rows().filter(pa.array(staying))))
    assert stats(table)[0]["maxValues"]["f"] == "NaN"  # the greatest of all


@pytest.mark.parametrize("mode", ["name", "id"])
def test_columns_with_physical_names_are_copied_and_moved(mode: str) -> None:
    table = make(properties={"delta.columnMapping.mode": mode})
    table.alter("ALTER TABLE t RENAME COLUMN name TO renamed")
    table.delete("id = 150 OR id > 350")
    found = content(table)
    expected = [row for row in rows().to_pylist() if row["id"] != 150 and row["id"] <= 350]
    assert [row["renamed"] for row in found] == [row["name"] for row in expected]
    assert [row["s"] for row in found] == [row["s"] for row in expected]


def test_partition_values_of_a_file_are_kept() -> None:
    table = make(partition_by=("p",))
    table.delete("id = 2 OR id = 150")
    found = table.snapshot().scan(where="p IS NULL").to_arrow()["id"].to_pylist()
    assert found == [0, 1]
    expected = [row for row in rows().to_pylist() if row["id"] not in (2, 150)]
    assert without_nan(content(table)) == without_nan(expected)


def test_files_from_before_the_table_changed_get_its_columns() -> None:
    table = make(properties={"delta.enableTypeWidening": "true"})
    table.alter("ALTER TABLE t ADD COLUMN later STRING")
    table.alter("ALTER TABLE t ALTER COLUMN d TYPE TIMESTAMP_NTZ")
    table.delete("id = 150")
    (file,) = files(table)
    assert file.schema_arrow.field("d").type == pa.timestamp("us")
    assert file.schema_arrow.field("later").type == pa.string()
    assert [row["id"] for row in content(table)] == [i for i in range(ROWS) if i != 150]


def test_rows_keep_their_ids() -> None:
    table = make(properties={"delta.enableRowTracking": "true"})
    append_bounded(table, rows(ROWS), row_group_rows=GROUP_ROWS)
    table.delete("id = 450 OR id = 20")
    table.delete("id = 550")
    found = table.snapshot().scan(columns=["id"], row_ids=True).to_arrow()
    assert found["id"].to_pylist() == [i for i in range(2 * ROWS) if i not in (20, 450, 550)]
    assert found["_row_id"].to_pylist() == found["id"].to_pylist()


def test_deletion_vectors_of_before_leave_no_row_behind() -> None:
    table = make(properties={"delta.enableDeletionVectors": "true"})
    table.delete("id IN (3, 250)")
    table.set_properties({"delta.enableDeletionVectors": "false"})
    result = table.delete("id = 150")
    assert result.metrics["numCopiedRows"] == ROWS - 3
    assert [row["id"] for row in content(table)] == [
        i for i in range(ROWS) if i not in (3, 150, 250)
    ]


def test_another_codec_is_used_for_row_groups_that_stay_too() -> None:
    table = make()
    table.set_properties({"delta.parquet.compression.codec": "snappy"})
    table.delete("id = 150")
    (file,) = files(table)
    codecs = {
        file.metadata.row_group(each).column(0).compression
        for each in range(file.metadata.num_row_groups)
    }
    assert codecs == {"SNAPPY"}
    assert [row["id"] for row in content(table)] == [i for i in range(ROWS) if i != 150]


@pytest.mark.parametrize(
    "options",
    [
        {"write_page_index": True, "store_schema": False},
        {"bloom_filter_options": {"id": True}, "store_schema": False},
        {"compression": "none"},
        {"data_page_version": "2.0", "version": "1.0"},
    ],
    ids=lambda options: next(iter(options)),
)
def test_files_of_other_writers_are_copied(options: dict[str, Any]) -> None:
    table = make(rows().select(["id", "name", "f"]))
    path = table.snapshot().files()["path"][0].as_py()
    sink = io.BytesIO()
    pq.write_table(rows().select(["id", "name", "f"]), sink, row_group_size=GROUP_ROWS, **options)
    table.store.put(path, sink.getvalue())
    table.delete("id = 150")
    (file,) = files(table)
    column = file.metadata.row_group(0).column(0)
    assert (column.has_offset_index, column.compression) == (False, "ZSTD")
    expected = rows().select(["id", "name", "f"]).to_pylist()
    assert without_nan(content(table)) == without_nan([row for row in expected if row["id"] != 150])


def changed_rows(**values: Any) -> list[dict[str, Any]]:
    """The rows as they are after an update of every row from 150 to 169."""
    return [
        {**row, **({k: v(row) for k, v in values.items()} if 150 <= row["id"] < 170 else {})}
        for row in rows().to_pylist()
    ]


RANGE = "id >= 150 AND id < 170"


def test_an_update_changes_its_columns_alone() -> None:
    table = make()
    result = table.update({"few": "concat(name, '!')", "d": "date_add(d, 7)"}, RANGE)
    assert result.metrics["numUpdatedRows"] == 20
    assert result.metrics["numCopiedRows"] == 380
    expected = changed_rows(
        few=lambda row: None if row["name"] is None else f"{row['name']}!",
        d=lambda row: row["d"] + dt.timedelta(days=7),
    )
    assert table.snapshot().scan().to_arrow()["id"].to_pylist() == list(range(ROWS))
    assert without_nan(content(table)) == without_nan(expected)
    assert stats(table) == stats(make(pa.Table.from_pylist(expected, rows().schema)))


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({"f": "f * 2"}, {"f": lambda row: row["f"] * 2}),
        ({"name": "NULL"}, {"name": lambda _: None}),
        (
            {"few": "'x'", "id": "id + 1000"},
            {"few": lambda _: "x", "id": lambda row: row["id"] + 1000},
        ),
        ({"list": "NULL"}, {"list": lambda _: None}),
        ({"s.a": "7"}, {"s": lambda row: {"a": 7, "f": row["s"]["f"]}}),
    ],
    ids=lambda value: "-".join(value),
)
def test_values_of_every_kind_are_put_in_their_places(
    values: dict[str, str], expected: dict[str, Any]
) -> None:
    table = make()
    table.update(values, RANGE)
    found = sorted(changed_rows(**expected), key=lambda row: row["id"])
    assert without_nan(content(table)) == without_nan(found)


def test_updated_rows_stand_right_behind_deleted_ones() -> None:
    table = make(properties={"delta.enableDeletionVectors": "true"})
    table.delete("id IN (3, 120, 155, 250)")
    table.set_properties({"delta.enableDeletionVectors": "false"})
    result = table.update({"name": "'new'"}, RANGE)
    assert (result.metrics["numUpdatedRows"], result.metrics["numCopiedRows"]) == (19, 377)
    expected = [r for r in changed_rows(name=lambda _: "new") if r["id"] not in (3, 120, 155, 250)]
    assert without_nan(content(table)) == without_nan(expected)


def test_an_update_that_breaks_a_constraint_shows_whole_rows() -> None:
    table = make()
    table.add_constraint("small", "id < 1000 OR few = 'c0'")
    with pytest.raises(ConstraintViolation, match="small") as caught:
        table.update({"id": "id + 1000"}, RANGE)
    assert "'name': 'name 151'" in caught.value.examples[0]
    table.update({"id": "id + 100"}, RANGE)
    assert sorted(row["id"] for row in content(table) if row["id"] >= 390)[-1] == 399
    assert sum(row["id"] == 260 for row in content(table)) == 2


def test_rows_that_move_to_another_partition_are_written_whole() -> None:
    table = make(partition_by=("p",))
    table.update({"p": "NULL", "name": "'moved'"}, RANGE)
    found = table.snapshot().scan(where="p IS NULL").to_arrow()["id"].to_pylist()
    assert sorted(found) == [0, 1, 2, *range(150, 170)]
    table.update({"name": "'again'"}, "id = 150 OR id = 399")
    assert {row["id"] for row in content(table) if row["name"] == "again"} == {150, 399}


def test_updates_of_tracked_rows_keep_their_ids() -> None:
    table = make(properties={"delta.enableRowTracking": "true"})
    table.update({"name": "'new'"}, RANGE)
    found = table.snapshot().scan(row_ids=True).to_arrow()
    assert found["_row_id"].to_pylist() == found["id"].to_pylist()
    versions = dict(
        zip(found["id"].to_pylist(), found["_row_commit_version"].to_pylist(), strict=True)
    )
    assert (versions[149], versions[150]) == (1, 2)


def test_generated_columns_follow_an_update() -> None:
    table = DeltaTable.create(
        "",
        store=MemoryStore(),
        schema=StructType(
            (
                StructField("id", PrimitiveType("long")),
                StructField("a", PrimitiveType("long")),
                StructField(
                    "twice", PrimitiveType("long"), True, {"delta.generationExpression": "a * 2"}
                ),
            )
        ),
    )
    whole = pa.table({"id": range(ROWS), "a": range(ROWS), "twice": range(0, 2 * ROWS, 2)})
    append_bounded(table, whole, row_group_rows=GROUP_ROWS)
    table.update({"a": "id + 1"}, RANGE)
    assert {row["twice"] - 2 * row["a"] for row in content(table)} == {0}
    assert [row["a"] for row in content(table)][149:152] == [149, 151, 152]


def test_the_merge_and_another_reader_agree(tmp_path: Path) -> None:
    import deltalake

    table = DeltaTable.create(str(tmp_path), rows().schema)
    append_bounded(table, rows(), row_group_rows=GROUP_ROWS)
    source = rows(395, 10)
    table.merge(
        source, "t.id = s.id"
    ).when_matched_update_all().when_not_matched_insert_all().execute()
    theirs = deltalake.DeltaTable(str(tmp_path)).to_pyarrow_table().to_pylist()
    assert without_nan(sorted(theirs, key=lambda row: row["id"])) == without_nan(content(table))
    assert len(theirs) == 405


def test_counts_and_bounds_of_moved_row_groups_reach_the_log() -> None:
    table = make()
    table.delete("id = 150")
    live = table.snapshot().live_files(["stats"])
    parsed = parse_statistics_json(live["stats"], ())
    assert parsed["num_records"].to_pylist() == [ROWS - 1]
    (found,) = stats(table)
    assert found["nullCount"]["list"] == sum(each % 5 == 0 for each in range(ROWS) if each != 150)
    assert found["nullCount"]["s"] == {"a": 0, "f": 199 + 1}
    assert msgspec.json.encode(found["maxValues"]["id"]) == b"399"
