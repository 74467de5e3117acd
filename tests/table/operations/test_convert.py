"""CONVERT: a directory of Parquet files of any writer becomes a table, in place."""

from __future__ import annotations

import datetime as dt
import json
import shutil
from decimal import Decimal
from pathlib import Path
from typing import Any

import deltalake
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dagster_delta.errors import InvalidArgument, SchemaMismatch, TableAlreadyExists
from dagster_delta.table.delta_table import DeltaTable
from tests.parquet_format.test_parquet_footer import ROWS, parquet_file, with_short_bound
from tests.table_rows import stored_rows


def rows(first: int, count: int = 10) -> pa.Table:
    ids = range(first, first + count)
    return pa.table(
        {
            "id": pa.array(ids, pa.int64()),
            "text": [f"text {each}" for each in ids],
            "f": pa.array([float("nan") if each == 3 else each / 2 for each in ids]),
            "price": pa.array([Decimal(each) / 4 for each in ids], pa.decimal128(10, 2)),
            "at": pa.array([dt.datetime(2026, 1, 1) + dt.timedelta(hours=each) for each in ids],
                           pa.timestamp("us", "UTC")),
            "list": pa.array([None if each % 2 else [each] for each in ids]),
            "s": pa.array([{"a": each} for each in ids]),
        }
    )  # fmt: skip


def write(directory: Path, name: str, data: pa.Table, **options: Any) -> None:
    path = directory / name
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(data, path, **options)


def stats(table: DeltaTable) -> list[dict[str, Any]]:
    return [json.loads(each) for each in table.snapshot().live_files()["stats"].to_pylist()]


def test_a_directory_becomes_a_table_and_no_file_is_touched(tmp_path: Path) -> None:
    write(tmp_path, "a.parquet", rows(0))
    write(tmp_path, "deep/b.parquet", rows(10))
    (tmp_path / "_SUCCESS").write_bytes(b"")
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*.parquet")}
    table = DeltaTable.convert(tmp_path, name="converted", properties={"a": "b"})
    assert table.version() == 0
    assert (table.metadata().name, table.metadata().configuration) == ("converted", {"a": "b"})
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*.parquet")} == before
    assert table.history()[0].operation_metrics == {"numConvertedFiles": "2"}
    assert len(stored_rows(table)) == 20
    assert table.snapshot().num_records == 20
    assert deltalake.DeltaTable(str(tmp_path)).to_pyarrow_table().num_rows == 20
    table.append(rows(20))
    assert len(stored_rows(table, where="id >= 15")) == 15


def test_statistics_come_from_footers_and_only_what_they_prove(tmp_path: Path) -> None:
    write(tmp_path, "a.parquet", rows(0))
    (found,) = stats(DeltaTable.convert(tmp_path))
    assert found["numRecords"] == 10
    assert found["minValues"] == {
        "id": 0,
        "text": "text 0",
        "f": 0.0,
        "price": 0.0,
        "at": "2026-01-01T00:00:00.000Z",
        "s": {"a": 0},
    }
    # There may be NaN, which is above every number.
    assert "f" not in found["maxValues"]
    assert found["maxValues"]["price"] == 2.25
    assert found["nullCount"]["text"] == 0
    assert "list" not in found["nullCount"]


def test_statistics_that_contradict_the_columns_are_left_out(tmp_path: Path) -> None:
    """Arrow's Python classes end the process over them."""
    sound = parquet_file(pa.table({"id": pa.array([1, 2], pa.int32())}))
    (tmp_path / "a.parquet").write_bytes(with_short_bound(parquet_file(ROWS, row_group_size=2)))
    (tmp_path / "b.parquet").write_bytes(sound)
    first, second = stats(DeltaTable.convert(tmp_path))
    assert first == {"numRecords": 4, "minValues": {}, "maxValues": {}, "nullCount": {"id": 1}}
    assert (second["minValues"], second["maxValues"]) == ({"id": 1}, {"id": 2})


def test_bounds_in_another_unit_are_left_out(tmp_path: Path) -> None:
    data = pa.table({"at": pa.array([dt.datetime(2026, 1, 1)], pa.timestamp("ms", "UTC"))})
    write(tmp_path, "a.parquet", data)
    table = DeltaTable.convert(tmp_path)
    (found,) = stats(table)
    assert (found["minValues"], found["maxValues"]) == ({}, {})
    assert len(stored_rows(table, where="at = TIMESTAMP '2026-01-01T00:00:00Z'")) == 1


def test_old_timestamps_of_spark_are_instants(tmp_path: Path) -> None:
    data = rows(0).select(["id", "at"])
    write(tmp_path, "a.parquet", data, use_deprecated_int96_timestamps=True)
    table = DeltaTable.convert(tmp_path)
    assert str(table.schema().field("at").data_type) == "timestamp"
    assert stored_rows(table) == data.to_pylist()


def test_old_timestamps_are_known_after_lists_of_structs(tmp_path: Path) -> None:
    """Every list has the Parquet columns of its elements, one of fixed length too."""
    lists = pa.list_(pa.struct([("a", pa.int32()), ("b", pa.int32())]), 1)
    data = pa.table(
        {
            "list": pa.array([[{"a": 1, "b": 2}]], lists),
            "at": pa.array([dt.datetime(2026, 1, 1)], pa.timestamp("us")),
            "id": pa.array([7], pa.int64()),
        }
    )
    write(tmp_path, "a.parquet", data, use_deprecated_int96_timestamps=True)
    table = DeltaTable.convert(tmp_path)
    found = [str(table.schema().field(name).data_type) for name in ("at", "id")]
    assert found == ["timestamp", "long"]
    assert [row["id"] for row in stored_rows(table)] == [7]


def test_days_and_times_in_the_calendar_of_spark_2_are_found(tmp_path: Path) -> None:
    first = dt.datetime(1000, 1, 1, tzinfo=dt.UTC)
    data = pa.table(
        {
            "id": pa.array([1], pa.int64()),
            "day": pa.array([first.date()]),
            "at": pa.array([first], pa.timestamp("us", "UTC")),
        }
    )
    written_by = {"org.apache.spark.version": "2.4.8"}
    write(tmp_path, "a.parquet", data.replace_schema_metadata(written_by))
    snapshot = DeltaTable.convert(tmp_path).snapshot()
    for where in ("day = DATE '0999-12-27'", "at = TIMESTAMP '0999-12-27 00:00:00Z'"):
        assert snapshot.scan(where=where).to_arrow()["id"].to_pylist() == [1]
    assert snapshot.scan(where="id > 1").num_files == 0


def test_half_floats_are_filtered(tmp_path: Path) -> None:
    """Their bounds in footers are no numbers."""
    data = pa.table({"x": pa.array([1.5, -2.5, None, 4.0], pa.float16())})
    write(tmp_path, "a.parquet", data, row_group_size=2)
    table = DeltaTable.convert(tmp_path)
    assert stored_rows(table, where="x > 1.5") == [{"x": 4.0}]


def test_partitions_are_inferred_from_directories(tmp_path: Path) -> None:
    data = rows(0).select(["id"])
    for n, (day, text) in enumerate([("2026-01-01", "a%20b"), ("2026-01-02", "c")]):
        write(tmp_path, f"day={day}/n={n}/_k=00{n}/t={text}/x.parquet", data)
    write(tmp_path, "day=__HIVE_DEFAULT_PARTITION__/n=5/_k=005/t=d/y.parquet", data)
    table = DeltaTable.convert(tmp_path)
    assert table.snapshot().configuration.partition_columns == ("day", "n", "_k", "t")
    types = [str(table.schema().field(name).data_type) for name in ("day", "n", "_k", "t")]
    assert types == ["date", "integer", "string", "string"]
    (row,) = stored_rows(table, where="t = 'a b' AND id = 3")
    assert (row["day"], row["n"], row["_k"]) == (dt.date(2026, 1, 1), 0, "000")
    assert len(stored_rows(table, where="day IS NULL")) == 10
    theirs = deltalake.DeltaTable(str(tmp_path)).to_pyarrow_table()
    assert sorted(set(theirs["t"].to_pylist())) == ["a b", "c", "d"]


@pytest.mark.parametrize(
    "properties", [{}, {"delta.feature.materializePartitionColumns": "supported"}], ids=["", "kept"]
)
def test_bounds_are_those_of_the_column_where_files_hold_the_partition_column(
    tmp_path: Path, properties: dict[str, str]
) -> None:
    """The table gives partition columns the last places, and the file may not."""
    data = {"id": [1, 2], "p": [5, 5], "x": [100, 200]}
    ints = pa.schema([(name, pa.int32()) for name in data])
    write(tmp_path, "p=5/a.parquet", pa.table(data, schema=ints))
    table = DeltaTable.convert(tmp_path, properties=properties)
    (found,) = stats(table)
    assert (found["minValues"], found["maxValues"]) == ({"id": 1, "x": 100}, {"id": 2, "x": 200})
    assert found["nullCount"] == {"id": 0, "x": 0}
    assert [row["id"] for row in stored_rows(table, where="x = 200")] == [2]


def test_a_column_with_the_path_of_a_field_has_no_bounds(tmp_path: Path) -> None:
    write(tmp_path, "a.parquet", pa.table({"a.b": [1], "a": [{"b": 2}], "c": [3]}))
    (found,) = stats(DeltaTable.convert(tmp_path))
    assert (found["minValues"], found["maxValues"]) == ({"c": 3}, {"c": 3})


def test_partition_types_may_be_given(tmp_path: Path) -> None:
    write(tmp_path, "n=01/x.parquet", rows(0))
    table = DeltaTable.convert(tmp_path, partition_by=pa.schema([("n", pa.int16())]))
    assert str(table.schema().field("n").data_type) == "short"
    assert len(stored_rows(table, where="n = 1")) == 10


def test_files_with_fewer_columns_are_read_with_nulls(tmp_path: Path) -> None:
    write(tmp_path, "a.parquet", rows(0).select(["id"]))
    write(tmp_path, "b.parquet", rows(10).select(["text", "id"]))
    table = DeltaTable.convert(tmp_path)
    assert list(table.schema().names) == ["id", "text"]
    found = stored_rows(table, where="id = 3 OR id = 13")
    assert {row["id"]: row["text"] for row in found} == {3: None, 13: "text 13"}


@pytest.mark.parametrize(
    ("files", "options", "error", "text"),
    [
        ({}, {}, InvalidArgument, "no Parquet file"),
        ({"p=1/a.parquet": 0, "b.parquet": 0}, {}, InvalidArgument, "directories of the partition"),
        ({"p=1/a.parquet": 0}, {"partition_by": ["q"]}, InvalidArgument, "correct partition_by"),
        (
            {"p=x/a.parquet": 0},
            {"partition_by": pa.schema([("p", pa.int32())])},
            InvalidArgument,
            "not a value of the partition column",
        ),
        ({"p=1/p=2/a.parquet": 0}, {}, InvalidArgument, "the partition column p twice"),
        (
            {"a.parquet": 0},
            {"properties": {"delta.columnMapping.mode": "name"}},
            InvalidArgument,
            "without column mapping",
        ),
    ],
)
def test_what_cannot_be_converted_is_refused_and_left_as_it_is(
    files: dict[str, int], options: dict[str, Any], error: type[Exception], text: str,
    tmp_path: Path,
) -> None:  # fmt: skip
    for name, first in files.items():
        write(tmp_path, name, rows(first))
    with pytest.raises(error, match=text):
        DeltaTable.convert(tmp_path, **options)
    assert not (tmp_path / "_delta_log").exists()


def test_files_of_a_table_with_row_ids_get_other_ones(tmp_path: Path) -> None:
    tracked = {"delta.enableRowTracking": "true"}
    old = DeltaTable(tmp_path, must_exist=False)
    old.append(pa.table({"id": [1, 2], "v": [0, 0]}), properties=tracked)
    old.update({"v": "1"}, "id = 1")
    shutil.rmtree(tmp_path / "_delta_log")
    table = DeltaTable.convert(tmp_path, properties=tracked)
    key = "delta.rowTracking.materializedRowIdColumnName"
    assert table.metadata().configuration[key] not in table.schema().names
    ids = table.snapshot().scan(["id"], row_ids=True).to_arrow()["_row_id"].to_pylist()
    assert sorted(ids) == [0, 1, 2, 3]


def test_a_directory_above_a_delta_table_is_refused(tmp_path: Path) -> None:
    write(tmp_path, "plain/a.parquet", rows(1))
    inner = DeltaTable(tmp_path / "inner", must_exist=False)
    inner.append(rows(5))
    inner.overwrite(rows(7))
    with pytest.raises(InvalidArgument, match="Delta table below the directory") as caught:
        DeltaTable.convert(tmp_path)
    assert str(caught.value.file).startswith("inner/_delta_log/")
    assert not (tmp_path / "_delta_log").exists()


def test_files_of_other_types_and_other_kinds_are_refused(tmp_path: Path) -> None:
    write(tmp_path, "a.parquet", pa.table({"x": pa.array([1], pa.int32())}))
    write(tmp_path, "b.parquet", pa.table({"x": pa.array([1], pa.int64())}))
    with pytest.raises(SchemaMismatch, match="of type long in one file and x of type integer in a"):
        DeltaTable.convert(tmp_path)
    (tmp_path / "b.parquet").rename(tmp_path / "b.csv")
    with pytest.raises(InvalidArgument, match="not Parquet files by their name"):
        DeltaTable.convert(tmp_path)
    (tmp_path / "b.csv").unlink()
    DeltaTable.convert(tmp_path)
    with pytest.raises(TableAlreadyExists):
        DeltaTable.convert(tmp_path)
