"""Every engine in turn, on a session of its kind."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from dagster_delta import DeltaTable
from tests.conformance.engines import ENGINES, Engine

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture(params=ENGINES)
def engine(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Engine:
    """The engine under test, and no other session for the library to find."""
    session: SparkSession | None = None
    if request.param != "arrow":
        fixture = "spark" if request.param == "spark" else "connect_session"
        session = request.getfixturevalue(fixture)
    monkeypatch.setattr(
        "dagster_delta.engines.spark.session.active_session.active_spark_session", lambda: session
    )
    return Engine(request.param, session)


@pytest.fixture
def table(tmp_path: Path) -> DeltaTable:
    """A location where a table may be made."""
    return DeltaTable(str(tmp_path / "table"), must_exist=False)
