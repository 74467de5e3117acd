"""The server behind a session: Apache Spark, or another server with the Connect protocol."""

from __future__ import annotations

from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

from dagster_delta.engines.spark.session.session import is_connect

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["is_apache_spark"]

_known: WeakKeyDictionary[SparkSession, bool] = WeakKeyDictionary()


def is_apache_spark(session: SparkSession) -> bool:
    """Whether Spark itself, including a vendor's, reads the files of a session.

    Other servers lack the hidden column `_metadata`, and may return no rows for a missing file. A
    Connect server is asked once per session, without a job.
    """
    if not is_connect(session):
        return True
    if session not in _known:
        _known[session] = _knows_metadata_columns(session) and _has_version_of_spark(session)
    return _known[session]


def _knows_metadata_columns(session: SparkSession) -> bool:
    from pyspark.errors import AnalysisException, UnsupportedOperationException

    rows = session.range(0)
    try:
        _ = rows.select(rows.metadataColumn("_metadata")).schema
    except UnsupportedOperationException:
        return False
    except AnalysisException:
        # Spark has the column, and reports that these rows do not.
        return True
    return True


def _has_version_of_spark(session: SparkSession) -> bool:
    """Whether SQL and the protocol report the same version: other servers report their own."""
    from pyspark.errors import PySparkException

    try:
        (row,) = session.sql("SELECT version()").collect()
    except PySparkException:
        # Some platforms restrict which functions a user may call.
        return True
    return str(row[0]).startswith(session.version)
