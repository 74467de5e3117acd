"""Where the tests of tables keep them."""

from __future__ import annotations

import pytest

from dagster_delta.storage.memory_store import MemoryStore


@pytest.fixture
def store() -> MemoryStore:
    """An empty store in memory."""
    return MemoryStore()
