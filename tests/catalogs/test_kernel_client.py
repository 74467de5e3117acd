"""Tables of the catalog against the reference's own clients: Delta Kernel for Java with its part for
Unity Catalog, and the client of Unity Catalog below it.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from dagster_delta import DeltaTable
from dagster_delta.catalogs import UnityCatalog
from dagster_delta.catalogs.managed_log import ManagedLogStore
from tests.catalogs.test_managed_tables import NAME, ROWS, create_table, ids_of, open_table
from tests.catalogs.unity_server import MAX_UNPUBLISHED, UnityServer
from tests.reference.jars import hadoop_class_path

pytestmark = pytest.mark.delta_spark
POM = Path(__file__).with_name("kernel-pom.xml")
SOURCE = Path(__file__).with_name("KernelClient.java")
UNMAPPED = {"delta.columnMapping.mode": "none"}
"""Delta Kernel for Java 4.4 appends to no table with column mapping."""
THEIRS = "main.shop.theirs"
THEIR_SCHEMA = {
    "type": "struct",
    "fields": [
        {"name": "id", "type": "long", "nullable": True, "metadata": {"comment": "a key"}},
        {
            "name": "tags",
            "type": {
                "type": "map",
                "keyType": "string",
                "valueType": {"type": "array", "elementType": "integer", "containsNull": True},
                "valueContainsNull": True,
            },
            "nullable": True,
            "metadata": {},
        },
    ],
}


class KernelRefusal(Exception):
    """The other client failed."""


class KernelClient:
    """The program of the reference, for a server."""

    def __init__(self, process: subprocess.Popen[str], server: UnityServer) -> None:
        self._process, self._server = process, server

    def __call__(self, verb: str, name: str = NAME, argument: str = "") -> Any:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{self._server.uri} secret {verb} {name} {argument}".strip())
        self._process.stdin.write("\n")
        self._process.stdin.flush()
        # Its libraries may print lines of their own.
        for line in self._process.stdout:
            if line.startswith("error "):
                raise KernelRefusal(line)
            if line.startswith("ok "):
                return json.loads(line[3:])
        raise KernelRefusal("it has ended")

    def ids(self, name: str = NAME, version: str = "") -> list[int]:
        return sorted(row["id"] for row in self("read", name, version))

    def append(self, *rows: dict[str, object], name: str = NAME) -> int:
        version = self("append", name, "\t".join(json.dumps(row) for row in rows))
        assert isinstance(version, int)
        return version


@pytest.fixture(scope="module")
def process() -> Iterator[subprocess.Popen[str]]:
    class_path, why = hadoop_class_path(POM)
    java = shutil.which("java")
    if class_path is None or java is None:
        pytest.skip(why or "the reference's client needs Java")
    running = subprocess.Popen(
        [java, "-Xmx512m", "-cp", class_path, str(SOURCE)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env=dict(os.environ, TZ="UTC"),
    )
    with running:
        yield running
        running.kill()


@pytest.fixture
def kernel(process: subprocess.Popen[str], server: UnityServer) -> KernelClient:
    return KernelClient(process, server)


@pytest.fixture
def unpublished(monkeypatch: pytest.MonkeyPatch) -> None:
    """Our writers end before they publish what the catalog accepted."""
    monkeypatch.setattr(ManagedLogStore, "publish", lambda _: None)


@pytest.mark.usefixtures("unpublished")
def test_kernel_reads_what_we_committed_and_did_not_publish(
    server: UnityServer, catalog: UnityCatalog, kernel: KernelClient
) -> None:
    create_table(catalog, cluster_by=["id"])
    table = open_table(catalog.resolve(NAME))
    table.append(ROWS)
    table.delete("id = 2")
    table.alter("ALTER TABLE t ADD COLUMNS (price DOUBLE COMMENT 'in euros')")
    table.update({"price": "id * 2.5"}, where="id = 3")
    assert sorted(server.find(NAME).commits) == [1, 2, 3, 4]
    rows = sorted(kernel("read"), key=lambda row: row["id"])
    assert rows == [{"id": 1, "tags": ["a"]}, {"id": 3, "tags": ["b", "c"], "price": 7.5}]
    assert kernel.ids(version="1") == [1, 2, 3]
    timestamp = server.find(NAME).commits[1]["timestamp"]
    assert len(kernel("at", NAME, str(timestamp))) == 3
    assert kernel("publish") == 4
    assert ids_of(open_table(catalog.resolve(NAME))) == [1, 3]


def test_catalog_describes_the_schema_of_our_log_to_kernel(
    catalog: UnityCatalog, kernel: KernelClient
) -> None:
    nested = pa.struct([pa.field("a b", pa.list_(pa.map_(pa.string(), pa.date32())))])
    fields = [
        pa.field("id", pa.int64(), nullable=False, metadata={"comment": "a key"}),
        pa.field("amount", pa.decimal128(20, 4)),
        pa.field("at", pa.timestamp("us", "UTC")),
        pa.field("local", pa.timestamp("us")),
        pa.field("nested", nested),
    ]
    location = catalog.new_table(NAME)
    table = DeltaTable.create(
        location.uri, pa.schema(fields), storage_options=location.options, partition_by=["amount"]
    )
    assert kernel("schema") == json.loads(table.metadata().schema_string)
    table.alter("ALTER TABLE t RENAME COLUMN local TO renamed")
    assert kernel("schema") == json.loads(table.metadata().schema_string)
    assert kernel("version") == 1


def test_we_read_and_change_what_kernel_committed_and_did_not_publish(
    server: UnityServer, catalog: UnityCatalog, kernel: KernelClient
) -> None:
    create_table(catalog, properties=UNMAPPED)
    assert kernel.append({"id": 10, "tags": ["x"]}, {"id": 11, "tags": []}) == 1
    assert kernel("set", NAME, "team=sales") == 2
    assert sorted(server.find(NAME).commits) == [1, 2]
    table = open_table(catalog.resolve(NAME))
    assert ids_of(table) == [10, 11]
    assert table.metadata().configuration["team"] == "sales"
    assert server.find(NAME).properties["team"] == "sales"
    table.update({"id": "12"}, where="id = 11")
    assert not server.find(NAME).commits
    assert kernel("unset", NAME, "team") == 4
    assert "team" not in server.find(NAME).properties
    assert kernel.append({"id": 13, "tags": ["y"]}) == 5
    assert ids_of(open_table(catalog.resolve(NAME))) == [10, 12, 13]
    assert kernel.ids() == [10, 12, 13]


def test_table_that_kernel_created_is_ours_to_change(
    server: UnityServer, catalog: UnityCatalog, kernel: KernelClient
) -> None:
    assert kernel("create", THEIRS, json.dumps(THEIR_SCHEMA)) == 0
    assert kernel.append({"id": 1, "tags": {"a": [1, None]}}, name=THEIRS) == 1
    table = open_table(catalog.resolve(THEIRS))
    assert table.snapshot().scan().to_arrow().to_pylist() == [{"id": 1, "tags": [("a", [1, None])]}]
    table.alter("ALTER TABLE t ADD COLUMNS (price DOUBLE)")
    table.update({"price": "id * 2.5"}, where="id = 1")
    assert kernel("schema", THEIRS) == json.loads(table.metadata().schema_string)
    assert kernel.append({"id": 3, "price": 4.5}, name=THEIRS) == 4
    rows = open_table(catalog.resolve(THEIRS)).snapshot().scan(["id", "price"]).to_arrow()
    expected = [{"id": 1, "price": 2.5}, {"id": 3, "price": 4.5}]
    assert sorted(rows.to_pylist(), key=lambda row: row["id"]) == expected
    assert server.find(THEIRS).latest == 4


def test_clustering_is_changed_by_both(
    server: UnityServer, catalog: UnityCatalog, kernel: KernelClient
) -> None:
    create_table(catalog, properties=UNMAPPED, cluster_by=["id"])
    assert kernel.append({"id": 1, "tags": []}) == 1
    table = open_table(catalog.resolve(NAME))
    table.alter("ALTER TABLE t ADD COLUMNS (price DOUBLE)")
    assert kernel("cluster", NAME, "price") == 3
    assert server.find(NAME).domains["delta.clustering"]["clusteringColumns"] == [["price"]]
    table.cluster_by(["id"])
    assert server.find(NAME).domains["delta.clustering"]["clusteringColumns"] == [["id"]]
    assert kernel.append({"id": 2, "tags": []}) == 5
    assert ids_of(open_table(catalog.resolve(NAME))) == [1, 2]


def test_each_goes_on_after_a_commit_of_the_other(
    server: UnityServer, catalog: UnityCatalog, kernel: KernelClient
) -> None:
    create_table(catalog, properties=UNMAPPED)
    table = open_table(catalog.resolve(NAME))
    pending: list[Callable[[], object]] = [lambda: table.append(ROWS)]

    def commit_between(method: str, path: str) -> None:
        if method == "POST" and path.endswith("/tables/orders") and pending:
            pending.pop()()

    server.before_answer = commit_between
    assert kernel.append({"id": 10, "tags": []}) == 2
    pending.append(lambda: kernel.append({"id": 11, "tags": []}))
    table.append(ROWS)
    assert server.find(NAME).latest == 4
    everything = sorted([*ROWS["id"].to_pylist() * 2, 10, 11])
    assert ids_of(open_table(catalog.resolve(NAME))) == everything
    assert kernel.ids() == everything


def test_we_publish_what_kernel_left_unpublished_until_the_limit(
    server: UnityServer, catalog: UnityCatalog, kernel: KernelClient
) -> None:
    create_table(catalog, properties=UNMAPPED)
    for number in range(MAX_UNPUBLISHED):
        kernel.append({"id": number, "tags": []})
    open_table(catalog.resolve(NAME)).append(ROWS)
    assert not server.find(NAME).commits
    assert kernel.append({"id": 100, "tags": []}) == MAX_UNPUBLISHED + 2


def test_kernel_understands_our_refusals(
    server: UnityServer, catalog: UnityCatalog, kernel: KernelClient
) -> None:
    with pytest.raises(KernelRefusal, match=r"NoSuchTableException: Table main\.shop\.orders"):
        kernel("read")
    create_table(catalog)
    server.tokens = {"another"}
    with pytest.raises(KernelRefusal, match=r"HTTP 401"):
        kernel("read")
    server.tokens = {"secret"}
    assert kernel("read") == []


def test_kernel_finds_the_credentials_that_we_find(
    server: UnityServer, catalog: UnityCatalog, kernel: KernelClient
) -> None:
    create_table(catalog)
    server.find(NAME).location = "s3://bucket/orders"
    server.credentials = lambda *_: {
        "s3.access-key-id": "key",
        "s3.secret-access-key": "hidden",
        "s3.session-token": "session",
    }
    assert {"key", "hidden", "session"} <= set(kernel("credentials").values())
