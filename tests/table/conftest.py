"""Where the tests of tables keep them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from dagster_delta.engines.arrow.engine import ArrowEngine
from dagster_delta.storage.memory_store import MemoryStore

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture
def store() -> MemoryStore:
    """An empty store in memory."""
    return MemoryStore()


@pytest.fixture
def one_file_a_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rewrites process each file by itself."""
    monkeypatch.setattr(ArrowEngine, "rewrite_batch_bytes", 1)


@pytest.fixture(scope="module")
def registered(spark: SparkSession) -> SparkSession:
    """The session, which knows the format `delta_log`."""
    from dagster_delta import register_delta_log

    register_delta_log(spark)
    return spark
