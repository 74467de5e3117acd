"""For those who build on the library: what a store must do, as tests, and a store that fails.

- `dagster_delta.testing.store_conformance`: `StoreConformance` and `ReadConformance`, to subclass
  in a test of a store of one's own. Needs pytest.
- `dagster_delta.testing.faulty_store`: `FaultyStore`, which crashes, loses replies and refuses when
  told to, counts calls, and lets another writer run between two of them.

Each is imported by its own name: this package loads neither.
"""

from __future__ import annotations

__all__: list[str] = []
