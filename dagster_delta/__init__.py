"""Delta Lake tables in Dagster, on an own implementation of the Delta protocol."""

from __future__ import annotations

__version__ = "0.1.0"
