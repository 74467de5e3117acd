"""A server of Unity Catalog with a certificate of a company's own authority."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from pathlib import Path

import dagster as dg
import pyarrow as pa
import pytest

from dagster_delta import DeltaIOManager, DeltaTable, UnityCatalogResource
from dagster_delta.catalogs import UnityCatalog
from dagster_delta.errors import StorageFailure
from tests.catalogs.private_authority import PrivateAuthority
from tests.catalogs.unity_server import UnityServer

NAME = "main.shop.orders"
URI = f"catalog://{NAME}"


@pytest.fixture
def authority(tmp_path: Path) -> PrivateAuthority:
    return PrivateAuthority(tmp_path / "authority")


@pytest.fixture
def server(tmp_path: Path, authority: PrivateAuthority) -> Iterator[UnityServer]:
    tls = authority.server_context
    with UnityServer(tmp_path / "storage", tokens={"secret"}, tls=tls) as running:
        yield running


def test_asset_is_written_and_read_through_a_private_authority(
    server: UnityServer, authority: PrivateAuthority
) -> None:
    @dg.asset(key=["main", "shop", "orders"])
    def orders() -> pa.Table:
        return pa.table({"id": [1, 2, 3]})

    catalog = UnityCatalogResource(uri=server.uri, token="secret", ca_bundle=str(authority.bundle))
    assert dg.materialize([orders], resources={"io_manager": DeltaIOManager(catalog=catalog)})
    # The options of a table reach executors as text, and the authority with them.
    location = pickle.loads(pickle.dumps(catalog.resolve(NAME)))
    found = DeltaTable(location.uri, storage_options=location.options)
    assert found.snapshot().scan().to_arrow()["id"].to_pylist() == [1, 2, 3]
    assert server.find(NAME).is_catalog_managed


def test_authority_of_the_environment_is_trusted(
    server: UnityServer, authority: PrivateAuthority, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("REQUESTS_CA_BUNDLE", str(authority.bundle))
    assert UnityCatalog(server.uri, token="secret").list_tables("main", "shop") == []


@pytest.mark.parametrize("trusts_another", [False, True])
def test_unknown_authority_is_refused_before_the_token_is_sent(
    server: UnityServer, tmp_path: Path, *, trusts_another: bool
) -> None:
    bundle = PrivateAuthority(tmp_path / "another").bundle if trusts_another else None
    catalog = UnityCatalog(server.uri, token="very-secret", ca_bundle=bundle)
    with pytest.raises(StorageFailure, match=r"certificate.*ca_bundle, which is") as caught:
        catalog.resolve(NAME)
    assert server.uri.removeprefix("https://") in str(caught.value)
    assert "very-secret" not in str(caught.value)
    assert not server.requests


def test_bundle_that_cannot_be_read_is_named(server: UnityServer, tmp_path: Path) -> None:
    catalog = UnityCatalog(server.uri, token="secret", ca_bundle=tmp_path / "missing.pem")
    with pytest.raises(StorageFailure, match=r"No such file .*ca_bundle, which is .*missing\.pem"):
        catalog.resolve(NAME)
