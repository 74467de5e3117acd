"""Integration with Dagster; the only code here that imports Dagster.

Tested by `tests/orchestration`.
"""

from __future__ import annotations
