"""Geometries and geographies that delta-spark writes are read on both engines as WKB."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from dagster_delta import DeltaTable
from tests.families import family

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.delta_spark

POINT = bytes.fromhex("0101000000000000000000F03F000000000000F03F")
COLUMNS = (
    "id INT, g GEOMETRY(4326), h GEOMETRY(0), k GEOGRAPHY(4326), s STRUCT<g: GEOMETRY(3857)>, "
    "xs ARRAY<GEOMETRY(4326)>, m MAP<STRING, GEOGRAPHY(4326)>"
)
ENABLED = "spark.databricks.delta.geo.preview.enabled"


@pytest.mark.parametrize("mode", family(["none", "name"], "name"))
def test_shapes_are_read_on_both_engines(
    delta_spark: SparkSession, tmp_path: Path, mode: str
) -> None:
    if tuple(map(int, delta_spark.version.split(".")[:2])) < (4, 2):
        pytest.skip("older versions of Spark do not write shapes")
    uri = str(tmp_path / "shapes")
    wkb = f"X'{POINT.hex()}'"
    point, spot = f"ST_GeomFromWKB({wkb}, 4326)", f"ST_GeogFromWKB({wkb})"
    delta_spark.conf.set(ENABLED, "true")
    try:
        delta_spark.sql(
            f"CREATE TABLE delta.`{uri}` ({COLUMNS}) USING delta TBLPROPERTIES ("
            "'delta.enableDeletionVectors' = 'true', 'delta.checkpointInterval' = '2', "
            f"'delta.columnMapping.mode' = '{mode}')"
        )
        delta_spark.sql(
            f"INSERT INTO delta.`{uri}` SELECT cast(id AS INT), {point}, "
            f"ST_GeomFromWKB({wkb}, 0), {spot}, named_struct('g', ST_GeomFromWKB({wkb}, 3857)), "
            f"array({point}), map('a', {spot}) FROM range(3)"
        )
        delta_spark.sql(f"INSERT INTO delta.`{uri}` (id) VALUES (9)")
        delta_spark.sql(f"DELETE FROM delta.`{uri}` WHERE id = 1")
    finally:
        delta_spark.conf.unset(ENABLED)
    snapshot = DeltaTable(uri).snapshot()
    kept = {"g": POINT, "h": POINT, "k": POINT, "s": {"g": POINT}, "xs": [POINT], "m": {"a": POINT}}
    expected = [{"id": 0, **kept}, {"id": 2, **kept}, {"id": 9, **dict.fromkeys(kept)}]
    ours = snapshot.scan().to_arrow().to_pylist(maps_as_pydicts="strict")
    assert sorted(ours, key=lambda row: row["id"]) == expected
    frame = snapshot.scan().to_spark(delta_spark)
    on_spark = [row.asDict(recursive=True) for row in frame.orderBy("id").collect()]
    assert on_spark == expected
    assert str(snapshot.schema.field("h").data_type) == "geometry(SRID:0)"
    assert str(snapshot.schema.field("k").data_type) == "geography(OGC:CRS84, SPHERICAL)"
