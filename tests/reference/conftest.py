"""Fixtures of the tests against other implementations."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.reference.changed_tables import TableShop

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture(scope="session")
def table_shop(delta_spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> TableShop:
    """Tables that delta-spark makes once, for all who change copies of them."""
    return TableShop(delta_spark, tmp_path_factory.mktemp("shop"))
