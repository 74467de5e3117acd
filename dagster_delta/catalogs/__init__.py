"""Tables by the names that a catalog gives them: the port of resolvers, and Unity Catalog.

Tested by `tests/catalogs`.
"""

from __future__ import annotations

from dagster_delta.catalogs.resolver import CreatingResolver, TableResolver
from dagster_delta.catalogs.unity_catalog import UnityCatalog

__all__ = ["CreatingResolver", "TableResolver", "UnityCatalog"]
