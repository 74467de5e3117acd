"""Branches: tables that begin as clones of production's, and are published as one commit each.

Tested by `tests/table/branches`.
"""

from __future__ import annotations

__all__: list[str] = []
