"""Tables as lazy DuckDB relations, and relations written to tables."""

from __future__ import annotations

import datetime as dt
import gc
import shutil
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pytest

from dagster_delta import Column, DeltaTable
from dagster_delta.engines.arrow.engine import ArrowEngine
from dagster_delta.errors import SchemaMismatch
from dagster_delta.protocol.features.text_limits import TEXT_LIMIT_KEY
from dagster_delta.protocol.schema import PrimitiveType, StructField

DAYS = [dt.date(2024, 1, day) for day in (1, 2, 3)]


@pytest.fixture
def table(tmp_path: Path) -> DeltaTable:
    table = DeltaTable(str(tmp_path / "flights"), must_exist=False)
    for day in DAYS:
        rows = {"id": [1, 2, 3], "day": [day] * 3, "text": ["a", "b", None]}
        table.append(pa.table(rows), partition_by=["day"])
    return table


@pytest.fixture
def plans(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Every read plan that the embedded engine is given."""
    seen: list[Any] = []
    read = ArrowEngine.read

    def spy(self: ArrowEngine, plan: Any) -> Any:
        seen.append(plan)
        return read(self, plan)

    monkeypatch.setattr(ArrowEngine, "read", spy)
    return seen


def test_a_query_reads_its_columns_and_files_alone(table: DeltaTable, plans: list[Any]) -> None:
    flights = table.snapshot().scan().to_duckdb()
    assert not plans
    query = flights.filter("day = DATE '2024-01-02' AND id > 1").aggregate("count(*), max(id)")
    assert query.fetchall() == [(2, 3)]
    (plan,) = plans
    assert set(plan.columns) == {"id", "day"}
    assert plan.files.num_rows == 1


def test_the_filter_of_the_scan_holds_as_well(table: DeltaTable) -> None:
    flights = table.snapshot().scan(["id", "day"], where="text IS NOT NULL").to_duckdb()
    assert flights.columns == ["id", "day"]
    assert flights.filter("id >= 2 OR id IS NULL").aggregate("count(*)").fetchall() == [(3,)]
    assert flights.aggregate("count(*)").fetchall() == [(6,)]


def test_relations_are_computed_again_and_joined_by_name(table: DeltaTable) -> None:
    flights = table.snapshot().scan().to_duckdb()
    assert len(flights) == 9
    planes = table.snapshot().scan(["id", "text"], where="day = DATE '2024-01-01'").to_duckdb()
    for _ in range(2):
        joined = duckdb.query("SELECT count(*) FROM flights JOIN planes USING (id)")
        assert joined is not None
        assert joined.fetchall() == [(9,)]
    assert planes.columns == ["id", "text"]


def test_a_relation_keeps_its_connection(table: DeltaTable) -> None:
    def relation() -> duckdb.DuckDBPyRelation:
        return table.snapshot().scan().to_duckdb(duckdb.connect())

    flights = relation()
    gc.collect()
    assert len(flights.fetchall()) == 9


def test_row_ids_and_change_feeds_are_relations_too(tmp_path: Path) -> None:
    table = DeltaTable.create(
        str(tmp_path / "tracked"),
        [Column("id", "BIGINT")],
        properties={"delta.enableRowTracking": "true", "delta.enableChangeDataFeed": "true"},
    )
    table.append(pa.table({"id": [1, 2]}))
    rows = table.snapshot().scan(row_ids=True).to_duckdb()
    assert rows.filter("_row_id = 1").select("id").fetchall() == [(2,)]
    changes = table.changes(starting_version=1).to_duckdb()
    assert changes.filter("id = 2").select("_change_type").fetchall() == [("insert",)]


def test_a_padded_text_is_compared_as_duckdb_compares_it(tmp_path: Path) -> None:
    code = StructField("code", PrimitiveType("string"), metadata={TEXT_LIMIT_KEY: "char(4)"})
    table = DeltaTable.create(str(tmp_path / "padded"), [code])
    table.append(pa.table({"code": ["ab  "]}))
    codes = table.snapshot().scan().to_duckdb()
    assert codes.fetchall() == [("ab  ",)]
    assert codes.filter("code <> 'ab'").fetchall() == [("ab  ",)]


def test_a_filter_of_very_many_conditions_is_left_to_duckdb(table: DeltaTable) -> None:
    flights = table.snapshot().scan().to_duckdb()
    many = " OR ".join(f"(id = {number} AND text = 'b')" for number in range(400))
    assert len(flights.filter(many).fetchall()) == 3


def test_a_missing_file_is_named(table: DeltaTable, tmp_path: Path) -> None:
    flights = table.snapshot().scan().to_duckdb()
    shutil.rmtree(tmp_path / "flights" / "day=2024-01-02")
    with pytest.raises(duckdb.Error, match="restore it"):
        flights.fetchall()
    dataset = table.snapshot().scan().duckdb_dataset()
    with pytest.raises(duckdb.Error):
        duckdb.from_arrow(dataset).fetchall()
    assert dataset.failure is not None


def test_a_relation_is_written_in_batches(table: DeltaTable, tmp_path: Path) -> None:
    flights = table.snapshot().scan().to_duckdb()
    report = DeltaTable(str(tmp_path / "report"), must_exist=False)
    report.append(flights.aggregate("day, sum(id) AS total, count(*) AS n", "day"))
    read = report.snapshot()
    assert [str(field.data_type) for field in read.schema] == ["date", "long", "long"]
    assert sorted(read.scan().to_arrow()["total"].to_pylist()) == [6, 6, 6]
    report.overwrite(duckdb.sql("SELECT * FROM flights WHERE id = 1"), schema_mode="overwrite")
    assert report.snapshot().scan().count() == 3
    merged = report.merge(duckdb.sql("SELECT 1::BIGINT AS id, 'x' AS text"), "s.id = t.id")
    merged.when_matched_update({"text": "s.text"}).execute()
    assert set(report.snapshot().scan().to_arrow()["text"].to_pylist()) == {"x"}


def test_a_sum_beyond_bigint_is_an_error(tmp_path: Path) -> None:
    table = DeltaTable(str(tmp_path / "sums"), must_exist=False)
    with pytest.raises(duckdb.Error, match="out of range"):
        table.append(duckdb.sql("SELECT sum(x) AS s FROM (VALUES (9223372036854775807), (1)) t(x)"))


def test_a_type_that_delta_does_not_have_is_named(tmp_path: Path) -> None:
    table = DeltaTable(str(tmp_path / "times"), must_exist=False)
    with pytest.raises(SchemaMismatch, match=r"column at .*time"):
        table.append(duckdb.sql("SELECT TIME '10:00' AS at"))
