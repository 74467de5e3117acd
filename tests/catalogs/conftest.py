from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from dagster_delta.catalogs import UnityCatalog
from tests.catalogs.unity_server import UnityServer


@pytest.fixture
def server(tmp_path: Path) -> Iterator[UnityServer]:
    with UnityServer(tmp_path / "storage") as running:
        yield running


@pytest.fixture
def catalog(server: UnityServer) -> UnityCatalog:
    return UnityCatalog(server.uri)
