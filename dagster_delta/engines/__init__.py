"""How rows are read and written."""

from dagster_delta.engines.choose import (
    active_spark_session,
    change_engine,
    embedded_engine,
    engine_for,
    engine_for_changes,
    is_spark_frame,
    spark_engine,
    universal_engine,
)

__all__ = [
    "active_spark_session",
    "change_engine",
    "embedded_engine",
    "engine_for",
    "engine_for_changes",
    "is_spark_frame",
    "spark_engine",
    "universal_engine",
]
