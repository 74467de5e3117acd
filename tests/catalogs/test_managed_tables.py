"""Tables whose commits Unity Catalog takes, against a server that refuses what the specification
does not allow.
"""

from __future__ import annotations

import json
import pickle
import time
import uuid
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from dagster_delta import DeltaTable
from dagster_delta.catalogs import UnityCatalog
from dagster_delta.errors import (
    CatalogRequired,
    InvalidArgument,
    InvalidTable,
    TableAlreadyExists,
    TableNotFound,
    UnsupportedFeature,
)
from dagster_delta.storage import StoreLocation
from dagster_delta.table.log_upkeep.cleanup import clean_log
from tests.catalogs.unity_server import REQUIRED_PROPERTIES, Fault, Refusal, UnityServer

NAME = "main.shop.orders"
ROWS = pa.table({"id": [1, 2, 3], "tags": [["a"], [], ["b", "c"]]})


def open_table(location: StoreLocation) -> DeltaTable:
    return DeltaTable(location.uri, storage_options=location.options)


def create_table(catalog: UnityCatalog, name: str = NAME, **options: object) -> DeltaTable:
    location = catalog.new_table(name)
    return DeltaTable.create(
        location.uri,
        ROWS.schema,
        storage_options=location.options,
        **options,  # type: ignore[arg-type]
    )


def ids_of(table: DeltaTable) -> list[int]:
    return sorted(table.snapshot().scan(["id"]).to_arrow()["id"].to_pylist())


def log_of(server: UnityServer, name: str = NAME) -> Path:
    return server.find(name).path / "_delta_log"


def test_new_table_has_what_the_catalog_requires_and_suggests(
    server: UnityServer, catalog: UnityCatalog
) -> None:
    table = create_table(catalog, description="all orders")
    properties = table.metadata().configuration
    assert properties.items() >= REQUIRED_PROPERTIES.items()
    features = set(table.protocol().writer_features or ())
    assert features >= {"catalogManaged", "rowTracking", "columnMapping", "vacuumProtocolCheck"}
    held = server.find(NAME)
    assert held.comment == "all orders"
    assert held.table_id == properties["io.unitycatalog.tableId"]
    assert not server.staging


def test_first_append_creates_the_table(server: UnityServer, catalog: UnityCatalog) -> None:
    location = catalog.new_table(NAME)
    table = DeltaTable(location.uri, storage_options=location.options, must_exist=False)
    table.append(ROWS)
    assert server.find(NAME).latest == 0
    assert ids_of(open_table(catalog.resolve(NAME))) == [1, 2, 3]


def test_append_stages_proposes_and_publishes(server: UnityServer, catalog: UnityCatalog) -> None:
    create_table(catalog)
    table = open_table(catalog.resolve(NAME))
    server.log.clear()
    table.append(ROWS)
    (first, second) = [
        body for _, path, body in server.log if path.endswith("/tables/orders") and body
    ]
    assert [update["action"] for update in first["updates"]] == [
        "add-commit",
        "set-domain-metadata",
    ]
    assert [update["action"] for update in second["updates"]] == ["set-latest-backfilled-version"]
    staged = log_of(server) / "_staged_commits" / first["updates"][0]["commit"]["file-name"]
    assert staged.read_bytes() == (log_of(server) / f"{1:020d}.json").read_bytes()
    assert not server.find(NAME).commits


def test_statements_mirror_what_they_change(server: UnityServer, catalog: UnityCatalog) -> None:
    # The server compares each commit with what the request says.
    table = create_table(catalog, cluster_by=["id"])
    table.append(ROWS)
    table.alter("ALTER TABLE t ADD COLUMNS (price DOUBLE COMMENT 'in euros')")
    assert server.find(NAME).columns["fields"][2]["metadata"]["comment"] == "in euros"
    table.set_properties({"team": "sales", "delta.enableChangeDataFeed": "true"})
    assert server.find(NAME).properties["team"] == "sales"
    table.unset_properties(["team"])
    assert "team" not in server.find(NAME).properties
    table.set_description("orders of all shops")
    assert server.find(NAME).comment == "orders of all shops"
    table.delete("id = 1")
    table.update({"price": "id * 2.5"}, where="id = 2")
    source = pa.table({"id": [3, 4], "tags": [["m"], ["n"]], "price": [1.0, 2.0]})
    merge = table.merge(source, on="t.id = s.id")
    merge.when_matched_update_all().when_not_matched_insert_all().execute()
    table.cluster_by(["price"])
    columns = server.find(NAME).domains["delta.clustering"]["clusteringColumns"]
    assert len(columns) == 1
    table.cluster_by()
    assert not server.find(NAME).domains["delta.clustering"]["clusteringColumns"]
    table.alter("ALTER TABLE t DROP COLUMN price")
    table.overwrite(ROWS)
    changes = table.changes(starting_version=11).to_arrow()
    assert changes.num_rows > 0
    assert ids_of(open_table(catalog.resolve(NAME))) == [1, 2, 3]


def test_replacing_a_table_keeps_what_binds_it_to_the_catalog(
    server: UnityServer, catalog: UnityCatalog
) -> None:
    table = create_table(catalog, properties={"team": "sales"})
    table.append(ROWS)
    location = catalog.resolve(NAME)
    schema = pa.schema([("day", pa.date32()), ("n", pa.int64())])
    replaced = DeltaTable.create(
        location.uri,
        schema,
        partition_by=["day"],
        mode="replace",
        storage_options=location.options,
    )
    assert replaced.version() == 2
    held = server.find(NAME)
    assert held.partition_columns == ["day"]
    assert "team" not in held.properties
    assert held.properties["io.unitycatalog.tableId"] == held.table_id
    assert open_table(location).snapshot(1).num_records == 3


def test_reader_prefers_the_catalog_to_the_published_file_and_ignores_later_ones(
    server: UnityServer, catalog: UnityCatalog
) -> None:
    create_table(catalog).append(ROWS)
    log = log_of(server)
    published = log / f"{1:020d}.json"
    (staged,) = (log / "_staged_commits").glob(f"{1:020d}.*.json")
    server.find(NAME).commits[1] = {
        "version": 1,
        "timestamp": 5,
        "file-name": staged.name,
        "file-size": staged.stat().st_size,
        "file-modification-timestamp": 5,
    }
    published.write_text(json.dumps({"commitInfo": {"txnId": "someone else"}}) + "\n")
    (log / f"{2:020d}.json").write_text("not accepted\n")
    table = open_table(catalog.resolve(NAME))
    assert table.version() == 1
    assert ids_of(table) == [1, 2, 3]
    published.unlink()
    assert ids_of(open_table(catalog.resolve(NAME))) == [1, 2, 3]


def test_writer_publishes_the_backlog_of_others_and_commits(
    server: UnityServer, catalog: UnityCatalog
) -> None:
    table = create_table(catalog)
    for number in range(10):
        table.append(pa.table({"id": [number], "tags": [["x"]]}))
    # Ten writers have ended before they published.
    held, log = server.find(NAME), log_of(server)
    for version in range(1, 11):
        (staged,) = (log / "_staged_commits").glob(f"{version:020d}.*.json")
        info = json.loads(staged.read_text().splitlines()[0])["commitInfo"]
        held.commits[version] = {
            "version": version,
            "timestamp": info["inCommitTimestamp"],
            "file-name": staged.name,
            "file-size": staged.stat().st_size,
            "file-modification-timestamp": 1,
        }
        (log / f"{version:020d}.json").unlink()
    other = open_table(catalog.resolve(NAME))
    assert ids_of(other) == list(range(10))
    other.append(ROWS)
    assert not held.commits
    assert held.latest == 11
    assert (log / f"{7:020d}.json").exists()


def test_table_by_path_is_refused_with_what_to_do(
    server: UnityServer, catalog: UnityCatalog
) -> None:
    create_table(catalog)
    with pytest.raises(CatalogRequired, match="UnityCatalog"):
        DeltaTable(server.find(NAME).location)
    with pytest.raises(CatalogRequired, match="UnityCatalog"):
        DeltaTable.create(
            str(server.root / "elsewhere"),
            ROWS.schema,
            properties={"delta.feature.catalogManaged": "supported"},
        )


def test_maintenance_is_the_catalogs_unless_it_permits_it(
    server: UnityServer, catalog: UnityCatalog
) -> None:
    table = create_table(catalog)
    table.append(ROWS)
    table.append(ROWS)
    for statement in (table.optimize, table.reorg, table.vacuum, table.clean_log):
        with pytest.raises(UnsupportedFeature, match="allowed-maintenance-operations"):
            statement()
    table.checkpoint()
    server.find(NAME).allowed = ["DATA_REORGANIZATION", "DATA_CLEANUP", "METADATA_CLEANUP"]
    table = open_table(catalog.resolve(NAME))
    assert table.optimize().snapshot.num_files == 1
    table.vacuum(dry_run=False)
    table.clean_log()


def test_table_keeps_what_the_catalog_demands(server: UnityServer, catalog: UnityCatalog) -> None:
    table = create_table(catalog)
    with pytest.raises(InvalidArgument, match=r"io\.unitycatalog\.tableId"):
        table.unset_properties(["io.unitycatalog.tableId"])
    with pytest.raises(InvalidArgument, match="InCommitTimestamps"):
        table.set_properties({"delta.enableInCommitTimestamps": "false"})
    assert server.find(NAME).latest == 0


@pytest.mark.parametrize(
    ("key", "value"),
    [("delta.enableDeletionVectors", "false"), ("delta.checkpointPolicy", "classic")],
)
def test_demanded_property_is_kept(catalog: UnityCatalog, key: str, value: str) -> None:
    # Unity Catalog 0.7 takes the commit, and refuses every later change of the protocol.
    table = create_table(catalog)
    version = table.version()
    with pytest.raises(InvalidArgument, match=f"has to keep {key} = "):
        table.set_properties({key: value})
    table.set_properties({"delta.enableTypeWidening": "true"})
    assert table.version() == version + 1


@pytest.mark.parametrize("name", ["deletionVectors", "v2Checkpoint", "vacuumProtocolCheck"])
def test_demanded_feature_is_not_dropped(catalog: UnityCatalog, name: str) -> None:
    table = create_table(catalog)
    version = table.version()
    with pytest.raises(UnsupportedFeature, match="demands the feature"):
        table.drop_feature(name)
    assert DeltaTable(table.uri, store=table.store).version() == version


def test_table_that_was_created_again_is_another_one(
    server: UnityServer, catalog: UnityCatalog
) -> None:
    table = create_table(catalog)
    catalog.drop_table(NAME)
    with pytest.raises(TableNotFound, match="does not have it"):
        table.append(ROWS)
    create_table(catalog)
    with pytest.raises(InvalidTable, match="another table"):
        table.append(ROWS)


def test_names_that_exist_or_do_not(server: UnityServer, catalog: UnityCatalog) -> None:
    create_table(catalog)
    with pytest.raises(TableAlreadyExists):
        catalog.new_table(NAME)
    with pytest.raises(TableNotFound):
        catalog.resolve("main.shop.other")
    with pytest.raises(TableNotFound):
        catalog.new_table("main.nothing.other")
    with pytest.raises(TableNotFound):
        catalog.resolve("nothing.shop.other")
    with pytest.raises(InvalidArgument, match=r"catalog\.schema\.table"):
        catalog.resolve("orders")


def test_restricted_property_is_refused_and_nothing_is_created(
    server: UnityServer, catalog: UnityCatalog
) -> None:
    with pytest.raises(InvalidArgument, match="checkpointPolicy"):
        create_table(catalog, properties={"delta.checkpointPolicy": "classic"})
    assert not catalog.has_table(NAME)


def test_location_opens_the_table_in_another_process(
    server: UnityServer, catalog: UnityCatalog
) -> None:
    create_table(catalog).append(ROWS)
    location = pickle.loads(pickle.dumps(catalog.resolve(NAME)))
    assert ids_of(open_table(location)) == [1, 2, 3]
    assert pickle.loads(pickle.dumps(catalog)).resolve(NAME) == location


def test_commit_that_the_catalog_refuses_is_an_error_and_not_in_the_log(
    server: UnityServer, catalog: UnityCatalog
) -> None:
    table = create_table(catalog)
    refusal = Refusal(400, "InvalidParameterValueException", "delta.x is restricted")
    server.faults.append(Fault("POST", "/tables/orders", "answer", "add-commit", refusal))
    with pytest.raises(InvalidArgument, match=r"delta\.x is restricted"):
        table.append(ROWS)
    assert not list(server.find(NAME).path.glob("**/*.parquet"))
    table.append(ROWS)
    assert ids_of(table) == [1, 2, 3]


def test_clone_by_path_is_a_table_of_its_own(
    server: UnityServer, catalog: UnityCatalog, tmp_path: Path
) -> None:
    table = create_table(catalog)
    table.append(ROWS)
    table.clone(tmp_path / "copy")
    copied = DeltaTable(tmp_path / "copy")
    assert "catalogManaged" not in (copied.protocol().writer_features or ())
    assert "io.unitycatalog.tableId" not in copied.metadata().configuration
    copied.append(ROWS)
    assert ids_of(copied) == [1, 1, 2, 2, 3, 3]


def test_log_clean_up_deletes_the_staged_commits_of_what_it_deletes(
    server: UnityServer, catalog: UnityCatalog
) -> None:
    server.allowed_maintenance = ["METADATA_CLEANUP"]
    table = create_table(catalog, properties={"delta.checkpointInterval": "3"})
    for _ in range(4):
        table.append(ROWS)
    staged = log_of(server) / "_staged_commits"
    refused = staged / f"{2:020d}.{uuid.uuid4()}.json"
    refused.write_text("the proposal of a writer that lost\n")
    next_one = staged / f"{5:020d}.{uuid.uuid4()}.json"
    next_one.write_text("a proposal that may be accepted\n")
    later = time.time() + 3 * 86400

    cleaned = table.snapshot()
    result = clean_log(
        cleaned.store,
        cleaned,
        clock=lambda: int(later * 1000),
        retention_hours=0,
        dry_run=False,
        enforce_retention=False,
    )

    cut = result.earliest_version
    assert cut is not None
    assert cut > 2
    kept = sorted(int(path.name.split(".")[0]) for path in staged.iterdir())
    assert kept == [*range(cut + 1, 5), 5]
    table.append(ROWS)
    assert server.find(NAME).latest == 5
    assert len(ids_of(open_table(catalog.resolve(NAME)))) == 15


def test_commits_report_their_files_and_rows(server: UnityServer, catalog: UnityCatalog) -> None:
    table = create_table(catalog)
    server.log.clear()
    table.append(ROWS)
    table.delete("id = 1")
    table.alter("ALTER TABLE t ADD COLUMNS (price DOUBLE)")
    sent = [body for _, path, body in server.log if path.endswith("/metrics")]
    assert {body["table-id"] for body in sent} == {server.find(NAME).table_id}
    added, deleted, changed = (body["report"]["commit-report"] for body in sent)
    assert (added["num-files-added"], added["num-rows-inserted"]) == (1, 3)
    assert added["num-bytes-added"] == table.snapshot(1).size_bytes
    assert (deleted["num-files-removed"], deleted["num-rows-removed"]) == (1, 1)
    assert changed["num-files-added"] == changed["num-bytes-removed"] == 0


def test_server_without_metrics_is_asked_once(server: UnityServer, catalog: UnityCatalog) -> None:
    gone = Refusal(404, "NotFoundException", "no metrics here")
    server.faults.append(Fault("POST", "/metrics", "answer", "", gone, times=9))
    table = create_table(catalog)
    for _ in range(3):
        table.append(ROWS)
    assert server.find(NAME).latest == 3
    assert server.faults[0].times == 8


def test_server_says_once_that_it_has_the_delta_api(
    server: UnityServer, catalog: UnityCatalog
) -> None:
    create_table(catalog)
    for _ in range(3):
        catalog.resolve(NAME)
    assert server.count("GET /delta/v1/config") == 1


@pytest.mark.parametrize(("column", "new_type"), [("id", "STRING"), ("amount", "DECIMAL(10,2)")])
def test_column_changes_its_type_online(
    server: UnityServer, catalog: UnityCatalog, column: str, new_type: str
) -> None:
    location = catalog.new_table(NAME)
    table = DeltaTable(location.uri, storage_options=location.options, must_exist=False)
    rows = pa.table({"id": [1, 2, 3], "amount": ["1", "2.5", None]})
    table.append(rows)
    version = table.version()
    table.change_column(column, new_type, enable_features=True)
    opened = open_table(catalog.resolve(NAME))
    assert opened.version() == server.find(NAME).latest > version
    (field,) = [one for one in server.find(NAME).columns["fields"] if one["name"] == column]
    assert field["type"] == new_type.lower()
    expected = pc.cast(rows[column], opened.snapshot().arrow_schema.field(column).type)
    assert opened.snapshot().scan([column]).to_arrow()[column].equals(expected)
    assert not server.find(NAME).commits


@pytest.mark.parametrize("source", ["plain", "managed", "tracked"])
def test_deep_clone_becomes_a_managed_table(
    server: UnityServer, catalog: UnityCatalog, tmp_path: Path, source: str
) -> None:
    if source == "managed":
        cloned = create_table(catalog, "main.shop.source")
    else:
        tracking = {"delta.enableRowTracking": str(source == "tracked").lower()}
        cloned = DeltaTable.create(tmp_path / "source", ROWS.schema, properties=tracking)
    cloned.append(ROWS)
    cloned.delete("id = 2")
    location = catalog.new_table(NAME)
    cloned.clone(location.uri, storage_options=location.options)

    table = open_table(catalog.resolve(NAME))
    held = server.find(NAME)
    assert ids_of(table) == [1, 3]
    assert table.metadata().configuration["io.unitycatalog.tableId"] == held.table_id
    assert table.metadata().configuration.items() >= REQUIRED_PROPERTIES.items()
    table.append(ROWS)
    table.set_properties({"delta.enableTypeWidening": "true"})
    assert held.latest == 2
    assert ids_of(table) == [1, 1, 2, 3, 3]
    cloned.append(ROWS)
    location = catalog.resolve(NAME)
    cloned.clone(location.uri, storage_options=location.options, replace=True)
    assert ids_of(open_table(location)) == [1, 1, 2, 3, 3]
    assert held.latest == 3


def test_what_has_files_elsewhere_does_not_become_a_managed_table(
    server: UnityServer, catalog: UnityCatalog, tmp_path: Path
) -> None:
    plain = DeltaTable.create(tmp_path / "plain", ROWS.schema)
    plain.append(ROWS)
    location = catalog.new_table(NAME)
    with pytest.raises(UnsupportedFeature, match="deep=True"):
        plain.clone(location.uri, deep=False, storage_options=location.options)
    with pytest.raises(UnsupportedFeature, match="external one"):
        DeltaTable.convert(location.uri, storage_options=location.options)
    assert not catalog.has_table(NAME)
    plain.clone(location.uri, storage_options=location.options)
    assert ids_of(open_table(catalog.resolve(NAME))) == [1, 2, 3]


def test_directory_becomes_an_external_table(
    server: UnityServer, catalog: UnityCatalog, tmp_path: Path
) -> None:
    pq.write_table(ROWS, tmp_path / "x.parquet")
    location = catalog.new_table(NAME, str(tmp_path))
    DeltaTable.convert(location.uri, storage_options=location.options)
    assert server.find(NAME).table_type == "EXTERNAL"
    assert ids_of(open_table(catalog.resolve(NAME))) == [1, 2, 3]
