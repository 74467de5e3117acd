"""Where the tests of tables keep them."""

from __future__ import annotations

import pytest

from dagster_delta.engines.arrow.engine import ArrowEngine
from dagster_delta.storage.memory_store import MemoryStore


@pytest.fixture
def store() -> MemoryStore:
    """An empty store in memory."""
    return MemoryStore()


@pytest.fixture
def one_file_a_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rewrites process each file by itself."""
    monkeypatch.setattr(ArrowEngine, "rewrite_batch_bytes", 1)
