"""How rows are read and written."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from contextlib import suppress
from typing import TYPE_CHECKING

from dagster_delta.errors import InvalidArgument, UnsupportedExpression
from dagster_delta.storage.locations import scheme_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from dagster_delta.engines.arrow.engine import ArrowEngine
    from dagster_delta.engines.engine import RowChangeEngine
    from dagster_delta.engines.spark.engine import SparkEngine
    from dagster_delta.engines.sql.expressions import SqlExpression
    from dagster_delta.storage.object_store import ObjectStore

__all__ = [
    "active_spark_session",
    "change_engine",
    "engine_for",
    "engine_for_changes",
    "is_spark_frame",
]


def engine_for(data: object, name: str | None = None) -> ArrowEngine | SparkEngine:
    """The engine that writes a value: Spark for its own frames, Arrow for everything else.

    Args:
        data: the value; its class alone is looked at, so nothing is imported to decide.
        name: "arrow" or "spark" to decide otherwise; None to go by the value.

    Raises:
        InvalidArgument: there is no engine of that name.
    """
    if name is None:
        name = "spark" if is_spark_frame(data) else "arrow"
    return _named(name, getattr(data, "sparkSession", None))


def is_spark_frame(data: object) -> bool:
    """Whether a value is a DataFrame of Spark, classic or Connect. Imports nothing."""
    return type(data).__module__.startswith("pyspark.sql")


def change_engine(name: str | None) -> ArrowEngine | SparkEngine | None:
    """The engine of a name that a caller gave; None where none was given.

    Raises:
        InvalidArgument: there is no engine of that name.
    """
    return None if name is None else _named(name, None)


def _named(name: str, session: SparkSession | None) -> ArrowEngine | SparkEngine:
    match name:
        case "arrow":
            from dagster_delta.engines.arrow.engine import ArrowEngine

            return ArrowEngine()
        case "spark":
            from dagster_delta.engines.spark.engine import SparkEngine

            return SparkEngine(session)
    raise InvalidArgument(f"engine is 'arrow' or 'spark', not {name!r}")


def engine_for_changes(expressions: Iterable[SqlExpression], store: ObjectStore) -> RowChangeEngine:
    """The engine that changes rows by some expressions: Spark where only Spark evaluates them
    exactly and there is a session, Arrow otherwise.

    Args:
        expressions: all of the operation.
        store: store of the table.
    """
    from dagster_delta.engines.arrow.engine import ArrowEngine

    try:
        for each in expressions:
            each.check_embeddable()
    except UnsupportedExpression:
        session = active_spark_session()
        if session is not None and scheme_of(store.location.uri) != "memory":
            from dagster_delta.engines.spark.engine import SparkEngine

            return SparkEngine(session)
    return ArrowEngine()


def active_spark_session() -> SparkSession | None:
    """The session that this process uses: the active one of this thread before that of others, a
    classic one before one of Connect; None where the process does not use Spark.
    """
    if "pyspark.sql" not in sys.modules:
        return None
    from pyspark.errors import PySparkRuntimeError
    from pyspark.sql import SparkSession

    kinds: list[type[SparkSession]] = [SparkSession]
    if "pyspark.sql.connect.session" in sys.modules:
        from pyspark.sql.connect.session import SparkSession as ConnectSession

        kinds.append(ConnectSession)  # type: ignore[arg-type]
    for kind in kinds:
        if (found := kind.getActiveSession()) is not None:
            return found
    for kind in kinds:
        # What other threads use: raised where there is none.
        with suppress(PySparkRuntimeError):
            return kind.active()
    return None
