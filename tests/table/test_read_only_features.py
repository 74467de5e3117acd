"""Tables with features that are read and not written: geospatial columns, and collations."""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dagster_delta import DeltaTable
from dagster_delta.errors import InvalidTable, UnsupportedFeature
from dagster_delta.orchestration.table_metadata import table_schema
from dagster_delta.storage.memory_store import MemoryStore
from tests.table.fault_operations import WRITES, table_objects
from tests.table.logs import add_file

POINT = bytes.fromhex("0101000000000000000000F03F000000000000F03F")
GEOMETRY, GEOGRAPHY = "geometry(OGC:CRS84)", "geography(OGC:CRS84, SPHERICAL)"


def _objects(store: MemoryStore) -> dict[str, bytes]:
    return {meta.path: store.read(meta.path) for meta in store.list_recursive()}


def _commit(store: MemoryStore, version: int, *actions: Any) -> None:
    lines = "\n".join(map(json.dumps, actions))
    store.put(f"_delta_log/{version:020d}.json", lines.encode())


def _protocol(feature: str, *others: str, reader: bool = True) -> Any:
    return {
        "protocol": {
            "minReaderVersion": 3,
            "minWriterVersion": 7,
            "readerFeatures": [*others, feature] if reader else list(others),
            "writerFeatures": [*others, feature],
        }
    }


def _field(name: str, data_type: object) -> Any:
    return {"name": name, "type": data_type, "nullable": True, "metadata": {"comment": name}}


def _shapes(feature: str = "geospatial", **metadata: Any) -> MemoryStore:
    """A table as the specification describes it, with the corners of its shapes as bounds."""
    store = MemoryStore()
    nested = {"type": "struct", "fields": [_field("g", GEOMETRY)]}
    listed = {"type": "array", "elementType": GEOMETRY, "containsNull": True}
    fields = [
        _field("id", "long"), _field("g", GEOMETRY), _field("h", GEOGRAPHY),
        _field("s", nested), _field("xs", listed),
    ]  # fmt: skip
    definition = {
        "id": "t", "format": {"provider": "parquet", "options": {}}, "partitionColumns": [],
        "schemaString": json.dumps({"type": "struct", "fields": fields}), "configuration": {},
        **metadata,
    }  # fmt: skip
    row = {"id": 1, "g": POINT, "h": POINT, "s": {"g": POINT}, "xs": [POINT, None]}
    sink = pa.BufferOutputStream()
    pq.write_table(pa.Table.from_pylist([row]), sink)
    data = sink.getvalue().to_pybytes()
    store.put("a.parquet", data)
    corners = {"id": 1, "g": "POINT(1 1)", "h": "POINT(1 1)", "s": {"g": "POINT(1 1)"}}
    stats = {
        "numRecords": 1, "minValues": corners, "maxValues": corners,
        "nullCount": {"id": 0, "g": 0, "h": 0, "s": {"g": 0}, "xs": 0},
    }  # fmt: skip
    added = add_file("a.parquet", size=len(data), stats=json.dumps(stats))
    _commit(store, 0, _protocol(feature), {"metaData": definition}, added)
    return store


@pytest.mark.parametrize("feature", ["geospatial", "geospatial-preview", "geospatial-dev"])
def test_geospatial_columns_are_read_as_wkb_with_their_type(feature: str) -> None:
    snapshot = DeltaTable("", store=_shapes(feature)).snapshot()
    rows = snapshot.scan().to_arrow()
    row = {"id": 1, "g": POINT, "h": POINT, "s": {"g": POINT}, "xs": [POINT, None]}
    assert rows.to_pylist() == [row]
    assert str(snapshot.schema.field("h").data_type) == GEOGRAPHY
    shown = {column.name: column.type for column in table_schema(snapshot).columns}
    assert (shown["g"], shown["h"], shown["xs"]) == (GEOMETRY, GEOGRAPHY, f"array<{GEOMETRY}>")
    for field in (rows.schema.field("g"), rows.schema.field("s").type.field("g")):
        assert (field.type, field.metadata[b"delta.type"]) == (pa.binary(), GEOMETRY.encode())
        assert field.metadata[b"ARROW:extension:name"] == b"geoarrow.wkb"
        assert json.loads(field.metadata[b"ARROW:extension:metadata"]) == {"crs": "OGC:CRS84"}
    assert rows.schema.field("h").metadata == {b"comment": b"h", b"delta.type": GEOGRAPHY.encode()}


@pytest.mark.parametrize(
    ("where", "count"),
    [("g IS NOT NULL", 1), ("g IS NULL", 0), ("s.g IS NULL OR id = 2", 0), ("id = 1", 1)],
)
def test_bounds_of_shapes_hide_no_file(where: str, count: int) -> None:
    snapshot = DeltaTable("", store=_shapes()).snapshot()
    assert snapshot.scan(where=where).to_arrow().num_rows == count


def test_duckdb_and_polars_know_geometries() -> None:
    scan = DeltaTable("", store=_shapes()).snapshot().scan()
    assert [str(each) for each in scan.to_duckdb().types[1:3]] == ["GEOMETRY('OGC:CRS84')", "BLOB"]
    assert scan.to_polars_lazy().select("id", "h").collect().rows() == [(1, POINT)]


def test_a_table_is_not_partitioned_by_shapes() -> None:
    with pytest.raises(InvalidTable, match="partitioned by a column of type geometry"):
        DeltaTable("", store=_shapes(partitionColumns=["g"])).snapshot()


@pytest.mark.parametrize("name", WRITES)
@pytest.mark.parametrize("feature", ["geospatial", "collations"])
def test_every_change_is_refused_by_name_before_a_byte_is_written(feature: str, name: str) -> None:
    store = MemoryStore()
    for path, data in table_objects().items():
        store.put(path, data)
    table = DeltaTable("", store=store)
    others = ["deletionVectors", "typeWidening", "changeDataFeed", "appendOnly", "invariants"]
    upgrade = _protocol(feature, *others[:2], reader=feature == "geospatial")
    upgrade["protocol"]["writerFeatures"] += others[2:]
    _commit(store, table.version() + 1, upgrade)
    before = _objects(store)
    with pytest.raises(UnsupportedFeature, match=f"cannot write a table with the.*{feature}"):
        WRITES[name](DeltaTable("", store=store))
    assert _objects(store) == before


def test_a_table_of_shapes_is_neither_created_nor_written_nor_cloned() -> None:
    store = _shapes("deletionVectors")
    table, target = DeltaTable("", store=store), MemoryStore()
    before = _objects(store)
    with pytest.raises(UnsupportedFeature, match="columns of type geometry"):
        table.append(pa.table({"id": [2]}))
    with pytest.raises(UnsupportedFeature, match="columns of type geometry"):
        table.generate_symlink_manifests()
    assert _objects(store) == before
    with pytest.raises(UnsupportedFeature, match="geospatial"):
        DeltaTable.create("", table.schema(), store=target)
    assert _objects(target) == {}


def test_a_comment_about_a_type_of_shapes_makes_no_column_of_it() -> None:
    table = DeltaTable("", store=MemoryStore(), must_exist=False)
    table.append(pa.table({"id": [1]}))
    table.alter("ALTER COLUMN id COMMENT 'of \"geometry(OGC:CRS84)\"'")
    table.append(pa.table({"id": [2]}))
    assert table.snapshot().num_records == 2
