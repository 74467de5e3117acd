"""Tables with features that are read and not written: geospatial columns, collations, and
timestamps in nanoseconds; and features that are known by name alone.
"""

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


NANOSECONDS = (1_704_067_200_123_456_789, 1, None, -1)
"""Values of each column, one of them before 1970."""
MICROSECONDS = (1_704_067_200_123_456, 0, None, -1)
"""What is left of them: finer times are cut off, and none is moved to a later microsecond."""


def _instants(**metadata: Any) -> MemoryStore:
    """A table as deltalake writes it after `enable_nanosecond_timestamps()`, bounds included."""
    store = MemoryStore()
    local, instant = pa.timestamp("ns"), pa.timestamp("ns", "UTC")
    nested = {"type": "struct", "fields": [_field("n", "timestamp_nanos")]}
    listed = {"type": "array", "elementType": "timestamp_nanos_ntz", "containsNull": True}
    fields = [
        _field("id", "long"), _field("t", "timestamp_nanos_ntz"), _field("u", "timestamp_nanos"),
        _field("s", nested), _field("xs", listed),
    ]  # fmt: skip
    definition = {
        "id": "t", "format": {"provider": "parquet", "options": {}}, "partitionColumns": [],
        "schemaString": json.dumps({"type": "struct", "fields": fields}), "configuration": {},
        **metadata,
    }  # fmt: skip
    values = {
        "id": [1, 2, 3, 4],
        "t": pa.array(NANOSECONDS, local),
        "u": pa.array(NANOSECONDS, instant),
        "s": pa.array([{"n": n} for n in NANOSECONDS], pa.struct([("n", instant)])),
        "xs": pa.array([[n] for n in NANOSECONDS], pa.list_(local)),
    }
    sink = pa.BufferOutputStream()
    pq.write_table(pa.table(values), sink)
    data = sink.getvalue().to_pybytes()
    store.put("a.parquet", data)
    # deltalake cuts bounds to milliseconds, and leaves out lower ones before 1970.
    stats = {
        "numRecords": 4,
        "minValues": {"id": 1},
        "maxValues": {"id": 4, "t": "2024-01-01 00:00:00.123", "u": "2024-01-01T00:00:00.123Z"},
        "nullCount": {"id": 0, "t": 1, "u": 1, "s": {"n": 1}},
    }
    protocol = _protocol("timestampNanos", "timestampNtz")
    added = add_file("a.parquet", size=len(data), stats=json.dumps(stats))
    _commit(store, 0, protocol, {"metaData": definition}, added)
    return store


def test_nanoseconds_are_read_as_the_microsecond_that_holds_them(
    caplog: pytest.LogCaptureFixture,
) -> None:
    snapshot = DeltaTable("", store=_instants()).snapshot()
    assert "nanoseconds, whose last three digits are cut off" in caplog.text
    rows = snapshot.scan().to_arrow()
    local, instant = pa.timestamp("us"), pa.timestamp("us", "UTC")
    assert rows.column("t").combine_chunks().equals(pa.array(MICROSECONDS, local))
    assert rows.column("u").combine_chunks().equals(pa.array(MICROSECONDS, instant))
    nested, listed = rows.column("s").combine_chunks(), rows.column("xs").combine_chunks()
    assert nested.field("n").equals(pa.array(MICROSECONDS, instant))
    assert listed.flatten().equals(pa.array(MICROSECONDS, local))
    shown = {column.name: column.type for column in table_schema(snapshot).columns}
    assert (shown["t"], shown["u"]) == ("timestamp_ntz", "timestamp")
    assert snapshot.scan().to_polars_lazy().select("id", "t").collect()["id"].to_list() == [
        1,
        2,
        3,
        4,
    ]
    assert snapshot.scan(["id", "u"]).to_duckdb().fetchall()[3][0] == 4


@pytest.mark.parametrize(
    ("where", "ids"),
    [
        ("t = TIMESTAMP_NTZ '2024-01-01 00:00:00.123456'", [1]),
        ("t > TIMESTAMP_NTZ '2024-01-01 00:00:00.123456'", []),
        ("u >= TIMESTAMP '2024-01-01 00:00:00.123456Z'", [1]),
        ("u < TIMESTAMP '1970-01-01 00:00:00Z'", [4]),
        ("s.n = TIMESTAMP '1970-01-01 00:00:00Z'", [2]),
        ("t IS NULL", [3]),
    ],
)
def test_filters_find_what_is_left_of_nanoseconds(where: str, ids: list[int]) -> None:
    scan = DeltaTable("", store=_instants()).snapshot().scan(where=where)
    assert scan.to_arrow()["id"].to_pylist() == ids


def test_nanoseconds_of_partition_values_are_cut_off() -> None:
    store = _instants(partitionColumns=["u"])
    moved = add_file("a.parquet", partitionValues={"u": "1969-12-31T23:59:59.999999999Z"})
    _commit(store, 1, moved)
    rows = DeltaTable("", store=store).snapshot().scan(["id", "u"]).to_arrow()
    assert rows["u"].cast(pa.int64()).to_pylist() == [-1] * 4


def test_nanoseconds_are_refused_where_the_variable_says_so(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("DAGSTER_DELTA_ALLOW_TRUNCATED_TIMESTAMPS", "false")
    with pytest.raises(UnsupportedFeature, match="ALLOW_TRUNCATED_TIMESTAMPS is false"):
        DeltaTable("", store=_instants())


def test_a_table_with_nanoseconds_is_not_written() -> None:
    store = _instants()
    before, table = _objects(store), DeltaTable("", store=store)
    for write in (
        lambda: table.append(table.snapshot().scan().to_arrow()),
        lambda: table.delete("id = 1"),
        lambda: table.optimize(),
        lambda: table.set_properties({"delta.appendOnly": "true"}),
    ):
        with pytest.raises(UnsupportedFeature, match="timestampNanos"):
            write()
    assert _objects(store) == before
    # Nor where the feature is missing, as it must not.
    _commit(store, 1, _protocol("timestampNtz"))
    with pytest.raises(UnsupportedFeature, match="enable_nanosecond_timestamps"):
        DeltaTable("", store=store).append(pa.table({"id": [2]}))


def test_a_schema_that_was_read_in_microseconds_creates_such_a_table() -> None:
    schema, target = DeltaTable("", store=_instants()).schema(), MemoryStore()
    assert "NANOSECONDS" not in schema.to_json()
    table = DeltaTable.create("", schema, store=target)
    table.append(DeltaTable("", store=_instants()).snapshot().scan().to_arrow())
    assert table.snapshot().num_records == 4


@pytest.mark.parametrize(
    ("feature", "is_read"),
    [
        ("fileType", False),
        ("columnUpdates", False),
        ("concurrentIdentityColumns", True),
        ("multiTableTransaction", True),
        ("columnMappingUsageTracking", True),
        ("tableBranching-dev", True),
    ],
)
def test_features_of_drafts_are_refused_with_what_they_are(feature: str, is_read: bool) -> None:
    store = MemoryStore()
    table = DeltaTable("", store=store, must_exist=False)
    table.append(pa.table({"id": [1]}))
    _commit(store, 1, _protocol(feature, reader=not is_read))
    name = feature.removesuffix("-dev")
    with pytest.raises(UnsupportedFeature, match=rf"feature {name} \((?!unknown)"):
        DeltaTable("", store=store).append(pa.table({"id": [2]}))
    if is_read:
        assert DeltaTable("", store=store).snapshot().num_records == 1
