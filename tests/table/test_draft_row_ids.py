"""Tables by the draft of row tracking, `rowIds`: ids are assigned, kept and never given twice."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow.parquet as pq
import pytest

from dagster_delta import DeltaTable
from dagster_delta.errors import InvalidArgument, InvalidTable
from dagster_delta.protocol.log.paths import commit_path
from tests.sample_tables import rows

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

COLUMN = "_id-of-a-row"
ENABLED = {"delta.enableRowIds": "true", "delta.rowIds.physicalColumnName": COLUMN}


def create(root: Path, properties: dict[str, str], own: dict[str, str] | None = None) -> DeltaTable:
    """A table that lists the draft's feature, as only its own writers made them."""
    given = {"delta.feature.rowIds": "supported", **(own or {})}
    table = DeltaTable.create(str(root), rows().schema, properties=given)
    log = root / commit_path(0)
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    for line in lines:
        if "metaData" in line:
            line["metaData"]["configuration"] |= properties
    log.write_text("".join(json.dumps(line) + "\n" for line in lines))
    for crc in log.parent.glob("*.crc"):
        crc.unlink()
    assert "rowIds" in (table.protocol().writer_features or ())
    return DeltaTable(str(root))


def actions(table: DeltaTable, version: int | None = None) -> list[dict[str, Any]]:
    log = Path(table.uri) / commit_path(table.version() if version is None else version)
    return [json.loads(line) for line in log.read_text().splitlines()]


def mark(table: DeltaTable) -> dict[str, Any]:
    (found,) = [
        each["rowIdHighWaterMark"]
        for each in actions(table)
        if len(each) == 1 and "rowIdHighWaterMark" in each
    ]
    assert isinstance(found, dict)
    return found


def ids(table: DeltaTable, spark: SparkSession | None = None) -> dict[int, int]:
    scan = table.snapshot().scan(["id"], row_ids=True)
    assert scan.schema.names == ("id", "_row_id")
    if spark is not None:
        return {row[0]: row[1] for row in scan.to_spark(spark).collect()}
    found = scan.to_arrow()
    return dict(zip(found["id"].to_pylist(), found["_row_id"].to_pylist(), strict=True))


def test_fresh_ids_and_the_mark_are_written(tmp_path: Path) -> None:
    table = create(tmp_path, {})
    table.append(rows(1, 2, 3))
    assert mark(table) == {"highWaterMark": 2, "preservedRowIds": True}
    table.append(rows(4, 5))
    assert mark(table) == {"highWaterMark": 4, "preservedRowIds": True}
    (add,) = [each["add"] for each in actions(table) if "add" in each]
    assert add["baseRowId"] == 3
    # The draft knows neither versions of rows nor the domain of the shipped form.
    assert "defaultRowCommitVersion" not in add
    assert not [each for each in actions(table) if "domainMetadata" in each]
    # Ids that are supported and not enabled are lost when rows move, and the mark says so.
    table.update({"v": "'new'"}, "id = 2")
    assert mark(table) == {"highWaterMark": 7, "preservedRowIds": False}
    removed = next(each["remove"] for each in actions(table) if "remove" in each)
    assert removed["baseRowId"] == 0
    with pytest.raises(InvalidArgument, match="does not track rows"):
        table.snapshot().scan(row_ids=True)


@pytest.mark.parametrize("vectors", ["true", "false"])
def test_ids_stay_through_every_change(tmp_path: Path, vectors: str) -> None:
    table = create(tmp_path, ENABLED, {"delta.enableDeletionVectors": vectors})
    table.append(rows(0, 1, 2, 3))
    table.append(rows(4, 5))
    table.update({"v": "'new'"}, "id IN (1, 4)")
    assert mark(table)["preservedRowIds"] is True
    table.delete("id = 2")
    merge = table.merge(rows(3, 9), on="t.id = s.id")
    merge.when_matched_update_all().when_not_matched_insert_all().execute()
    table.optimize()
    found = ids(table)
    assert {each: found[each] for each in (0, 1, 3, 4, 5)} == {0: 0, 1: 1, 3: 3, 4: 4, 5: 5}
    # The inserted row has an id that no row ever had.
    assert found[9] > 5
    (path,) = table.snapshot().files()["path"].to_pylist()
    assert pq.read_schema(tmp_path / path).names == ["id", "v", COLUMN]


def test_spark_keeps_ids_too(tmp_path: Path, spark: SparkSession) -> None:
    table = create(tmp_path, ENABLED)
    table.append(spark.createDataFrame(rows(0, 1, 2).to_pandas()).coalesce(1))
    table.append(rows(4, 5))
    table.update({"v": "'new'"}, "id IN (1, 4)", engine="spark")
    source = spark.createDataFrame(rows(2, 9).to_pandas())
    merge = table.merge(source, on="t.id = s.id")
    merge.when_matched_update_all().when_not_matched_insert_all().execute()
    assert mark(table)["preservedRowIds"] is True
    table.optimize(engine="spark")
    found = ids(table)
    assert ids(table, spark) == found
    assert {each: found[each] for each in (0, 1, 2, 4, 5)} == {0: 0, 1: 1, 2: 2, 4: 3, 5: 4}
    assert found[9] > 4


def test_the_mark_outlives_the_log(tmp_path: Path) -> None:
    table = create(tmp_path, ENABLED)
    table.append(rows(1, 2, 3))
    table.delete("id = 3")
    table.checkpoint()
    checkpoint = tmp_path / "_delta_log" / f"{table.version():020}.checkpoint.parquet"
    kept = [each for each in pq.read_table(checkpoint)["rowIdHighWaterMark"].to_pylist() if each]
    # Two rows were written again, and their places have ids too.
    assert kept == [{"highWaterMark": 4, "preservedRowIds": True}]
    for version in range(table.version() + 1):
        (tmp_path / commit_path(version)).unlink()
    table = DeltaTable(str(tmp_path))
    table.append(rows(4))
    assert ids(table) == {1: 0, 2: 1, 4: 5}
    assert mark(table)["highWaterMark"] == 5


def test_writers_that_meet_give_different_ids(tmp_path: Path) -> None:
    table = create(tmp_path, ENABLED)
    other = DeltaTable(str(tmp_path))
    table.append(rows(1, 2))
    other.append(rows(3))
    assert ids(DeltaTable(str(tmp_path))) == {1: 0, 2: 1, 3: 2}


@pytest.mark.parametrize("deep", [True, False])
def test_a_clone_keeps_the_ids(tmp_path: Path, deep: bool) -> None:
    table = create(tmp_path / "source", ENABLED)
    table.append(rows(1, 2, 3))
    table.update({"v": "'new'"}, "id = 2")
    table.clone(str(tmp_path / "clone"), deep=deep)
    clone = DeltaTable(str(tmp_path / "clone"))
    assert mark(clone) == {"highWaterMark": 5, "preservedRowIds": True}
    clone.append(rows(4))
    assert ids(clone) == {1: 0, 2: 1, 3: 2, 4: 6}


def test_enabled_ids_without_a_column_are_refused(tmp_path: Path) -> None:
    table = create(tmp_path, {"delta.enableRowIds": "true"})
    with pytest.raises(InvalidTable, match="physicalColumnName"):
        table.snapshot().scan(row_ids=True)


def test_the_draft_is_dropped_for_row_tracking(tmp_path: Path) -> None:
    table = create(tmp_path, ENABLED)
    table.append(rows(1, 2))
    with pytest.raises(InvalidArgument, match="drop the feature rowIds first"):
        table.set_properties({"delta.enableRowTracking": "true"})
    table.drop_feature("rowIds")
    table.set_properties({"delta.enableRowTracking": "true"})
    table.append(rows(3))
    assert "rowIds" not in (table.protocol().writer_features or ())
    assert not set(ENABLED).intersection(table.metadata().configuration)
    found = table.snapshot().scan(["id"], row_ids=True).to_arrow()
    assert found.column_names == ["id", "_row_id", "_row_commit_version"]
    assert len(set(found["_row_id"].to_pylist())) == 3
