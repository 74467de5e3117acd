"""What the tests of streams share: a session that knows the format."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture(scope="module")
def registered(spark: SparkSession) -> SparkSession:
    """The session, which knows the format `delta_log`."""
    from dagster_delta import register_delta_log

    register_delta_log(spark)
    return spark
