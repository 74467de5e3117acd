"""Every engine in turn, on a session of its kind."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from dagster_delta import DeltaTable
from tests.conformance.engines import ENGINES, Engine

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


_ON_SPARK_EVERY = 8


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what `make test` leaves out of the families of which it runs examples on Spark."""
    counts: Counter[str] = Counter()
    for item in items:
        if not isinstance(item, pytest.Function) or item.get_closest_marker("spark") is None:
            continue
        if item.get_closest_marker("examples_on_spark") is not None:
            if counts[item.originalname] % _ON_SPARK_EVERY:
                item.add_marker(pytest.mark.exhaustive)
            counts[item.originalname] += 1


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
