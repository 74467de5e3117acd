"""Tables are found by their names in Glue, as Spark, Athena and crawlers register them there."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import botocore.session
import dagster as dg
import pyarrow as pa
import pytest
from moto.server import ThreadedMotoServer

from dagster_delta import DeltaIOManager, DeltaTable, GlueCatalogResource
from dagster_delta.catalogs import GlueCatalog
from dagster_delta.errors import InvalidArgument, StorageFailure, TableNotFound, UnsupportedFeature
from dagster_delta.storage import StoreLocation

ROWS = pa.table({"id": [1, 2]})


@pytest.fixture(scope="module")
def endpoint() -> Iterator[str]:
    server = ThreadedMotoServer(port=0)
    server.start()
    host, port = server.get_host_and_port()
    yield f"http://{host}:{port}"
    server.stop()


@pytest.fixture
def glue(endpoint: str, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "key")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    session = botocore.session.get_session()
    client = session.create_client("glue", region_name="eu-west-1", endpoint_url=endpoint)
    if not client.get_databases()["DatabaseList"]:
        client.create_database(DatabaseInput={"Name": "shop"})
    return client


@pytest.fixture
def catalog(glue: Any, endpoint: str) -> GlueCatalog:
    return GlueCatalog(region="eu-west-1", endpoint=endpoint)


def register(glue: Any, name: str, parameters: dict[str, str], descriptor: Any) -> None:
    glue.create_table(
        DatabaseName="shop",
        TableInput={
            "Name": name,
            "TableType": "EXTERNAL_TABLE",
            "Parameters": parameters,
            "StorageDescriptor": descriptor,
        },
    )


@pytest.mark.parametrize(
    ("name", "parameters", "descriptor"),
    [
        ("athena", {"table_type": "DELTA"}, {"Location": "s3://lake/orders/"}),
        (
            "spark",
            {"spark.sql.sources.provider": "delta"},
            {
                "Location": "s3://warehouse/shop.db/spark-__PLACEHOLDER__",
                "SerdeInfo": {"Parameters": {"path": "s3://lake/orders"}},
            },
        ),
        (
            "crawled",
            {"classification": "delta"},
            {"Location": "s3://lake/orders/_symlink_format_manifest"},
        ),
    ],
)
def test_table_is_where_its_writer_registered_it(
    glue: Any, catalog: GlueCatalog, name: str, parameters: dict[str, str], descriptor: Any
) -> None:
    register(glue, name, parameters, descriptor)
    assert catalog.resolve(f"shop.{name}") == StoreLocation("s3://lake/orders", {})


def test_other_tables_and_names_are_refused(glue: Any, catalog: GlueCatalog) -> None:
    register(glue, "csv", {"classification": "csv"}, {"Location": "s3://lake/csv"})
    with pytest.raises(UnsupportedFeature, match="not a Delta table"):
        catalog.resolve("shop.csv")
    with pytest.raises(TableNotFound, match=r"no table shop\.absent"):
        catalog.resolve("shop.absent")
    with pytest.raises(InvalidArgument, match=r"write database\.table"):
        catalog.resolve("main.shop.orders")


def test_unreachable_service_is_a_failure_of_storage(glue: Any) -> None:
    del glue
    catalog = GlueCatalog(region="eu-west-1", endpoint="http://127.0.0.1:9")
    with pytest.raises(StorageFailure, match="cannot be asked"):
        catalog.resolve("shop.orders")


def test_asset_is_written_to_and_read_from_the_table_that_glue_names(
    glue: Any, endpoint: str, tmp_path: Path
) -> None:
    uri = str(tmp_path / "orders")
    DeltaTable.create(uri, ROWS.schema)
    register(glue, "orders", {"table_type": "DELTA"}, {"Location": uri})

    @dg.asset(key_prefix="shop")
    def orders() -> pa.Table:
        return ROWS

    @dg.asset(key=["shop", "total"])
    def total(orders: pa.Table) -> pa.Table:
        return orders

    manager = DeltaIOManager(catalog=GlueCatalogResource(region="eu-west-1", endpoint=endpoint))
    assert dg.materialize([orders], resources={"io_manager": manager}).success
    assert DeltaTable(uri).snapshot().scan().to_arrow().equals(ROWS)
    with pytest.raises(TableNotFound, match="create and register the table by another program"):
        dg.materialize([orders, total], resources={"io_manager": manager})


def page_programs() -> list[str]:
    page = Path(__file__).parents[2] / "docs" / "catalogs.md"
    return re.findall(r"(?ms)^```python\n(.*?)^```$", page.read_text())


def test_programs_of_the_page_run(
    glue: Any, endpoint: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL_GLUE", endpoint)
    uri = str(tmp_path / "page" / "orders")
    DeltaTable.create(uri, ROWS.schema)
    glue.create_database(DatabaseInput={"Name": "page"})
    glue.create_table(
        DatabaseName="page",
        TableInput={
            "Name": "orders",
            "Parameters": {"table_type": "DELTA"},
            "StorageDescriptor": {"Location": uri},
        },
    )
    names: dict[str, Any] = {"__name__": "page"}
    (program,) = [text for text in page_programs() if "GlueCatalogResource" in text]
    # Another database than that of the other tests.
    exec(program.replace("shop", "page"), names)
    defs: dg.Definitions = names["defs"]
    assert defs.resolve_implicit_global_asset_job_def().execute_in_process().success
    assert DeltaTable(uri).snapshot().num_records == 3
    tick = defs.resolve_sensor_def("orders_changed").evaluate_tick(
        dg.build_sensor_context(dg.DagsterInstance.ephemeral(), definitions=defs)
    )
    assert tick.cursor is not None
    assert "catalog://page.orders" in tick.cursor

    (own,) = [text for text in page_programs() if "FolderCatalog" in text]
    exec(own, names)
    catalog = names["FolderCatalog"](root=str(tmp_path))
    assert catalog.table("page.orders").version() == 1
