"""How rows are read and written."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dagster_delta.errors import InvalidArgument

if TYPE_CHECKING:
    from dagster_delta.engines.engine import Engine

__all__ = ["engine_for"]


def engine_for(data: object, name: str | None = None) -> Engine:
    """The engine that writes a value: Spark for its own frames, Arrow for everything else.

    Args:
        data: the value; its class alone is looked at, so nothing is imported to decide.
        name: "arrow" or "spark" to decide otherwise; None to go by the value.

    Raises:
        InvalidArgument: there is no engine of that name.
    """
    if name is None:
        name = "spark" if type(data).__module__.startswith("pyspark.sql") else "arrow"
    match name:
        case "arrow":
            from dagster_delta.engines.arrow_engine import ArrowEngine

            return ArrowEngine()
        case "spark":
            from dagster_delta.engines.spark.engine import SparkEngine

            return SparkEngine()
    raise InvalidArgument(f"there is no engine {name!r}: choose 'arrow' or 'spark'")
