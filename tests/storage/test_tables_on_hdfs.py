"""Tables on HDFS, written and read by assets, by tables of their own and by Spark, against a real
cluster, and through connections that break at any request.
"""

from __future__ import annotations

import gc
import uuid
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import product
from typing import TYPE_CHECKING

import dagster as dg
import pyarrow as pa
import pytest

from dagster_delta import DeltaIOManager, DeltaTable, FsspecStorageOptions, delta_table_sensor
from dagster_delta.errors import (
    CommitStateUnknown,
    DeltaError,
    InvalidArgument,
    StorageFailure,
)
from dagster_delta.storage import open_store
from tests.families import family
from tests.storage.cloud.test_cloud_faults import OPERATIONS, stored_objects
from tests.storage.failing_namenode import Way, breaking_namenode
from tests.table.fault_operations import Rows, frame
from tests.table_rows import stored_tuples

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.slow

ROWS = pa.table({"part": ["a b", "c%20/d", "12:30"], "id": [1, 2, 3]})
# By itself, the client repeats requests for minutes.
HASTY = {
    "dfs.client.failover.max.attempts": "3",
    "dfs.client.failover.sleep.base.millis": "1",
    "dfs.client.failover.sleep.max.millis": "1",
}


def test_assets_and_sensors_and_maintenance(hdfs_root: str) -> None:
    @dg.asset(metadata={"partition_by": ["part"]})
    def events() -> pa.Table:
        return ROWS

    @dg.asset
    def ids(events: pa.Table) -> pa.Table:
        return events.select(["id"])

    manager = DeltaIOManager(
        root_uri=hdfs_root, storage_options=FsspecStorageOptions(extra=dict(HASTY))
    )
    for _ in range(2):
        assert dg.materialize([events, ids], resources={"io_manager": manager}).success
    assert stored_tuples(DeltaTable(f"{hdfs_root}/public/ids")) == [(1,), (2,), (3,)]
    uri = f"{hdfs_root}/public/events"
    sensor = delta_table_sensor("watch", uri, target=[ids])
    table = DeltaTable(uri)
    with dg.DagsterInstance.ephemeral() as instance:
        first = sensor(dg.build_sensor_context(instance))
        assert isinstance(first, dg.SensorResult)
        table.append(ROWS)
        table.delete("id = 2")
        tick = sensor(dg.build_sensor_context(instance, cursor=first.cursor))
        assert isinstance(tick, dg.SensorResult)
        assert len(tick.run_requests or ()) == 1
    assert table.optimize(max_deleted_share=0).version is not None
    table.checkpoint()
    again = DeltaTable(uri)
    rows = [("12:30", 3), ("12:30", 3), ("a b", 1), ("a b", 1)]
    assert stored_tuples(again, "part", "id") == rows
    assert again.vacuum(0, enforce_retention=False, dry_run=False).num_files >= 3
    assert stored_tuples(again, "part", "id") == rows


def test_writers_that_race_lose_nothing(hdfs_root: str) -> None:
    DeltaTable.create(hdfs_root, ROWS.schema)

    def append(writer: int) -> None:
        # Settings of its own: every writer has its own connection.
        table = DeltaTable(hdfs_root, storage_options={"test.writer": str(writer)})
        for number in range(3):
            table.append(pa.table({"part": ["x"], "id": [writer * 10 + number]}))

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(append, range(4)))
    table = DeltaTable(hdfs_root)
    assert table.version() == 12
    assert [row[1] for row in stored_tuples(table, "part", "id")] == sorted(
        writer * 10 + number for writer in range(4) for number in range(3)
    )


def test_a_clone_refers_to_files_on_hdfs(hdfs_root: str) -> None:
    table = DeltaTable.create(f"{hdfs_root}/t", ROWS.schema, partition_by=["part"])
    table.append(ROWS)
    assert table.clone(f"{hdfs_root}/clone", deep=False).version == 0
    clone = DeltaTable(f"{hdfs_root}/clone")
    clone.delete("id = 1")
    assert stored_tuples(clone, "id") == [(2,), (3,)]
    assert stored_tuples(table, "id") == [(1,), (2,), (3,)]


def test_what_the_namenode_refuses_is_named(
    hdfs_root: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    DeltaTable.create(hdfs_root, ROWS.schema).append(ROWS)
    monkeypatch.setenv("HADOOP_USER_NAME", "stranger")
    # Other settings: a client keeps its identity.
    table = DeltaTable(hdfs_root, storage_options={"test.user": "stranger"})
    with pytest.raises(
        StorageFailure, match="AccessControlException: Permission denied: user=stranger"
    ) as caught:
        table.append(ROWS)
    assert "\tat " not in str(caught.value)
    assert "FSPermissionChecker" not in str(caught.value)
    assert stored_tuples(table, "id") == [(1,), (2,), (3,)]


def test_a_name_that_hdfs_has_not_is_refused(hdfs_root: str) -> None:
    with pytest.raises(StorageFailure, match="InvalidPathException: Invalid path name"):
        open_store(hdfs_root).put("a:b", b"")


def test_a_directory_above_a_new_file_has_the_permissions_of_the_one_above_it(
    hdfs_root: str,
) -> None:
    from hdfs_native import Client

    client = Client(hdfs_root.partition("/a lake")[0])
    path = hdfs_root.split("/", 3)[3]
    client.mkdirs(f"/{path}", 0o755, create_parent=True)
    client.set_permission(f"/{path}", 0o770)
    open_store(hdfs_root).put("part=a/x", b"x")
    assert client.get_file_info(f"/{path}/part=a").permission == 0o770


def test_a_setting_that_is_none_is_refused() -> None:
    pytest.importorskip("hdfs_native", reason="HDFS needs hdfs-native")
    with pytest.raises(InvalidArgument, match="no storage option 'user'"):
        open_store("hdfs://namenode:8020/t", {"user": "me"})
    with pytest.raises(InvalidArgument, match="HADOOP_CONF_DIR"):
        open_store("hdfs://nameservice/t")
    settings = {
        "dfs.ha.namenodes.nameservice": "a,b",
        "dfs.namenode.rpc-address.nameservice.a": "127.0.0.1:1",
        "dfs.namenode.rpc-address.nameservice.b": "127.0.0.1:2",
    }
    assert open_store("hdfs://nameservice/t", settings).location.uri == "hdfs://nameservice/t"
    assert open_store("hdfs:/t/", {"fs.defaultFS": "hdfs://namenode:8020"}).supports_put_if_absent


def _act(uri: str, root: str, operation: str) -> object:
    """Run an operation with a new client."""
    name = {"test.client": uuid.uuid4().hex}
    return OPERATIONS[operation](DeltaTable(f"{root}{uri}", storage_options={**HASTY, **name}))


def _table(cluster: str) -> str:
    """The path of a new copy of the table."""
    path = f"/{uuid.uuid4().hex}"
    store = open_store(cluster + path)
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(store.put, stored_objects(), stored_objects().values()))
    return path


@pytest.mark.parametrize(
    ("operation", "way", "times"),
    family(product(OPERATIONS, ("reset", "lost"), (1, 1000))),
)
def test_a_broken_connection_leaves_the_table_as_it_was_or_the_commit_once(
    hdfs_cluster: str, operation: str, way: Way, times: int
) -> None:
    with breaking_namenode(hdfs_cluster) as proxy:
        path = _table(hdfs_cluster)
        old = _rows(hdfs_cluster, path)
        _act(path, proxy.url, operation)
        new, requests = _rows(hdfs_cluster, path), list(proxy.seen)
        failures: list[str] = []
        for step, request in enumerate(requests):
            path = _table(hdfs_cluster)
            try:
                with proxy.failing(way, step, times):
                    _act(path, proxy.url, operation)
            except (StorageFailure, CommitStateUnknown) as failure:
                failures.append(request)
                _check(failure, proxy.url + path)
                assert _rows(hdfs_cluster, path) in (old, new), (step, request)
            else:
                assert _rows(hdfs_cluster, path) == new, (step, request)
            DeltaTable(hdfs_cluster + path).append(frame(90, 1))
    # The client does not go on with a file after that. Threads may make requests in other orders.
    assert failures if times > 1 else len(failures) <= requests.count("addBlock") * 3


def test_a_file_whose_write_failed_is_never_completed(hdfs_cluster: str) -> None:
    with breaking_namenode(hdfs_cluster) as proxy:
        store = open_store(f"{proxy.url}/{uuid.uuid4().hex}", HASTY)
        with proxy.failing("reset", 2, times=1000), pytest.raises(StorageFailure):
            store.put("a", b"x")
        gc.collect()
        assert proxy.seen[1:3] == ["create", "addBlock"]
        assert "complete" not in proxy.seen


def _check(failure: DeltaError, uri: str) -> None:
    assert failure.table == uri
    assert "check" in str(failure) or "look for" in str(failure)


def _rows(cluster: str, path: str) -> Rows:
    return stored_tuples(DeltaTable(cluster + path))


@pytest.mark.spark
@pytest.mark.classic("Hadoop's client is that of this process")
def test_spark_reads_and_writes_what_we_do(spark: SparkSession, hdfs_root: str) -> None:
    rows = spark.createDataFrame(ROWS.to_pandas())
    table = DeltaTable(hdfs_root, storage_options=HASTY, must_exist=False)
    table.append(rows, partition_by=["part"])
    table.append(ROWS)
    table.set_properties({"delta.enableDeletionVectors": "true"})
    table.delete("id = 2", engine="spark")
    scan = table.snapshot().scan(where="id < 3")
    read = scan.to_spark(spark)
    assert {file.partition(":")[0] for file in read.inputFiles()} == {"hdfs"}
    assert sorted(tuple(row) for row in read.collect()) == [("a b", 1), ("a b", 1)]
    assert table.optimize(max_deleted_share=0, engine="spark").version is not None
    assert stored_tuples(table, "id") == [(1,), (1,), (3,), (3,)]


@pytest.mark.delta_spark
@pytest.mark.classic("Hadoop's client is that of this process")
def test_delta_spark_appends_beside_us(delta_spark: SparkSession, hdfs_root: str) -> None:
    uri = hdfs_root.replace(" ", "").replace("%20#", "")
    table = DeltaTable.create(uri, ROWS.schema, partition_by=["part"])
    theirs = delta_spark.createDataFrame(ROWS.to_pandas())

    def append() -> None:
        theirs.write.format("delta").mode("append").save(uri)

    with ThreadPoolExecutor(2) as pool:
        writes: list[Callable[[], object]] = [append, lambda: table.append(ROWS)] * 3
        for write in [pool.submit(write) for write in writes]:
            write.result()
    table = DeltaTable(uri)
    assert table.version() == 6
    expected = sorted([(part, n) for part, n in zip(*ROWS.to_pydict().values(), strict=True)] * 6)
    assert stored_tuples(table, "part", "id") == expected
    found = delta_spark.read.format("delta").load(uri).select("part", "id").collect()
    assert sorted(map(tuple, found)) == expected
