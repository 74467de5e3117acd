"""Requests of our client, and answers of the server of the tests, judged by the models of Unity
Catalog's own client for Python.
"""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from dagster_delta import DeltaTable
from dagster_delta.catalogs import UnityCatalog
from dagster_delta.errors import DeltaError, StorageFailure
from tests.catalogs.test_managed_tables import NAME, ROWS, create_table, open_table
from tests.catalogs.unity_server import PREFIX, Fault, Refusal, UnityServer, _Handler
from tests.readers.programs import Program

SCRIPT = Path(__file__).with_name("ask_unity_client.py")
CLIENT = Program(
    name="unitycatalog-client", packages=("unitycatalog-client==0.7.0",), script=SCRIPT.name
)
TABLE = "DeltaLoadTableResponse"
CREDENTIALS = "DeltaCredentialsResponse"
MODELS = (
    (r"GET /delta/v1/config", None, "DeltaCatalogConfig"),
    (r"POST .*/staging-tables", "DeltaCreateStagingTableRequest", "DeltaStagingTableResponse"),
    (r"GET /delta/v1/.*credentials", None, CREDENTIALS),
    (r"POST /delta/v1/.*/tables", "DeltaCreateTableRequest", TABLE),
    (r"POST /delta/v1/.*/tables/\w+", "DeltaUpdateTableRequest", TABLE),
    (r"POST /delta/v1/.*/metrics", "DeltaReportMetricsRequest", None),
    (r"(GET|DELETE) /delta/v1/.*/tables/\w+", None, TABLE),
    (r"GET /schemas", None, "ListSchemasResponse"),
    (r"GET /tables", None, "ListTablesResponse"),
    (r"GET /tables/.*", None, "TableInfo"),
    (
        r"POST /temporary-table-credentials",
        "GenerateTemporaryTableCredential",
        "TemporaryCredentials",
    ),
)
"""The models of a request and of its answer, by method and path."""


@pytest.fixture(scope="module")
def judge() -> Callable[[list[dict[str, Any]]], list[str]]:
    try:
        python = CLIENT.python()
    except (subprocess.SubprocessError, OSError):
        pytest.skip("unitycatalog-client 0.7.0 cannot be installed into an environment of its own")

    def ask(messages: list[dict[str, Any]]) -> list[str]:
        lines = "".join(f"{json.dumps(message)}\n" for message in messages)
        done = subprocess.run(
            [str(python), str(SCRIPT)], input=lines, capture_output=True, text=True, check=False
        )
        said = done.stdout.splitlines()
        assert len(said) == len(messages), done.stderr
        return [f"{message['from']}: {one}" for message, one in zip(messages, said, strict=True)]

    return ask


@pytest.fixture
def exchanged(server: UnityServer, monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """The messages of the test, as they are sent."""
    found: list[dict[str, Any]] = []
    honest = _Handler._answer

    def answer(handler: _Handler, status: int, body: Any) -> None:
        path = handler.path.partition("?")[0].removeprefix(PREFIX)
        what = f"{handler.command} {path}"
        asked, answered = models_of(what)
        if status >= 300:
            asked, answered = None, "DeltaErrorResponse" if "/delta/v1" in path else None
        if asked is not None:
            (sent,) = [body for method, known, body in server.log[-1:] if known == path]
            found.append({"from": f"request {what}", "model": asked, "body": sent})
        if answered is not None and body is not None:
            found.append({"from": f"answer {status} to {what}", "model": answered, "body": body})
        honest(handler, status, body)

    monkeypatch.setattr(_Handler, "_answer", answer)
    return found


def models_of(what: str) -> tuple[str | None, str | None]:
    fitting = [(asked, said) for pattern, asked, said in MODELS if re.fullmatch(pattern, what)]
    assert fitting, f"no model is known of {what}"
    return fitting[0]


@pytest.mark.slow
def test_every_message_is_understood_by_the_client_of_the_reference(
    server: UnityServer,
    catalog: UnityCatalog,
    tmp_path: Path,
    judge: Callable[[list[dict[str, Any]]], list[str]],
    exchanged: list[dict[str, Any]],
) -> None:
    server.credentials = lambda *_: {"s3.access-key-id": "key", "s3.session-token": "token"}
    server.allowed_maintenance = ["DATA_REORGANIZATION", "METADATA_CLEANUP"]
    nested = pa.list_(pa.struct([("m", pa.map_(pa.string(), pa.decimal128(10, 2)))]))
    rows = ROWS.append_column("nested", pa.nulls(3, nested)).append_column("day", pa.nulls(3))
    change_table(create_table(catalog, cluster_by=["id"], description="all orders"))
    partitioned = catalog.new_table("main.shop.days")
    schema = pa.schema([*[*rows.schema][:3], pa.field("day", pa.date32(), nullable=False)])
    DeltaTable.create(
        partitioned.uri, schema, partition_by=["day"], storage_options=partitioned.options
    )
    external = catalog.new_table("main.shop.external", str(tmp_path / "external"))
    table = DeltaTable(external.uri, storage_options=external.options, must_exist=False)
    table.append(ROWS)
    change_table(table)
    ask_older_api(server, catalog)
    with pytest.raises(DeltaError):
        catalog.resolve("main.shop.nothing")
    busy = Refusal(409, "UpdateRequirementConflictException", "a commit is in progress")
    server.faults.append(Fault("POST", "/tables/orders", "answer", "add-commit", busy))
    open_table(catalog.resolve(NAME)).append(ROWS)
    catalog.drop_table(NAME)

    assert {one["model"] for one in exchanged} >= {
        *("DeltaUpdateTableRequest", "DeltaCreateTableRequest", "DeltaReportMetricsRequest"),
        *("DeltaErrorResponse", "TableInfo", "TemporaryCredentials", CREDENTIALS),
    }
    problems = sorted({said for said in judge(exchanged) if not said.endswith(": ")})
    assert not problems, "\n".join(problems)


def change_table(table: DeltaTable) -> None:
    """Everything that a request mirrors."""
    table.append(ROWS)
    table.alter("ALTER TABLE t ADD COLUMNS (price DECIMAL(8,2) COMMENT 'in euros')")
    table.set_properties({"team": "sales", "delta.enableTypeWidening": "true"})
    table.unset_properties(["team"])
    table.set_description("orders of all shops")
    table.cluster_by(["id"])
    table.cluster_by()
    table.delete("id = 1")
    table.overwrite(ROWS, schema_mode="overwrite")


def ask_older_api(server: UnityServer, catalog: UnityCatalog) -> None:
    """The requests of a server without the Delta API, and those of lists."""
    catalog.list_tables("main")
    catalog.table(NAME)
    client = catalog._client
    source = {"table_id": server.find(NAME).table_id, "operation": "READ_WRITE"}
    client.post_older("/temporary-table-credentials", source, object)
    client.get("/catalogs/main/schemas/shop/tables/orders/credentials", object, OPERATION)
    with pytest.raises(StorageFailure):
        client.get("/catalogs/main/schemas/shop/tables/orders/credentials", object)


OPERATION = {"operation": "READ"}
