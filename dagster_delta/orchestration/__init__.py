"""Integration with Dagster; the only code here that imports Dagster."""

from __future__ import annotations
