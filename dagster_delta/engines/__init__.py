"""How rows are read and written."""

from dagster_delta.engines.choose import (
    change_engine,
    embedded_engine,
    engine_for,
    engine_for_changes,
    spark_engine,
    universal_engine,
)
from dagster_delta.engines.spark.session.active_session import (
    active_spark_session,
    is_spark_frame,
    session_time_zone,
)

__all__ = [
    "active_spark_session",
    "change_engine",
    "embedded_engine",
    "engine_for",
    "engine_for_changes",
    "is_spark_frame",
    "session_time_zone",
    "spark_engine",
    "universal_engine",
]
