"""Tools to test code that builds on the library: conformance tests, and a store with faults.

- `dagster_delta.testing.store_conformance`: `StoreConformance` and `ReadConformance`, to subclass
  in a test of your own store. Needs pytest.
- `dagster_delta.testing.faulty_store`: `FaultyStore`, which crashes, loses replies and refuses as
  configured, counts calls, and lets another writer run between two of them.

Each is imported by its own name: this package loads neither.

Tested by `tests/storage/test_conformance.py`, `tests/storage/test_faulty_store.py`.
"""

from __future__ import annotations

__all__: list[str] = []
