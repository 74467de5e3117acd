"""Tables by the names that a catalog gives them: Unity Catalog, and Glue.

Tested by `tests/catalogs`.
"""

from __future__ import annotations

from dagster_delta.catalogs.glue_catalog import GlueCatalog
from dagster_delta.catalogs.unity_catalog import CatalogColumn, CatalogTable, UnityCatalog
from dagster_delta.storage import CreatingResolver, TableResolver

__all__ = [
    "CatalogColumn",
    "CatalogTable",
    "CreatingResolver",
    "GlueCatalog",
    "TableResolver",
    "UnityCatalog",
]
