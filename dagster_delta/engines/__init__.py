"""How rows are read and written, and which engine an operation uses: chosen by name or by the type
of the data, and imported only then.

Tested by `tests/engines`, and by `tests/conformance` on both engines.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import TYPE_CHECKING

from dagster_delta.engines.spark.session import active_session
from dagster_delta.engines.spark.session.active_session import (
    active_spark_session,
    is_spark_frame,
    session_time_zone,
)
from dagster_delta.errors import InvalidArgument, UnsupportedExpression
from dagster_delta.parquet.deletion_vectors import DeletionVectorLoader
from dagster_delta.protocol.values.session_zone import find_zone_by
from dagster_delta.storage.locations import scheme_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from dagster_delta.engines.arrow.compared_rows import net_changes
    from dagster_delta.engines.arrow.engine import ArrowEngine
    from dagster_delta.engines.arrow.joined_rows import joined_schema
    from dagster_delta.engines.data_input import to_reader, to_table_types
    from dagster_delta.engines.engine import Engine
    from dagster_delta.engines.memory_budget import size_bytes
    from dagster_delta.engines.spark.engine import SparkEngine
    from dagster_delta.engines.spark.executor_reports import counting_written_bytes
    from dagster_delta.engines.spark.session.session import (
        is_connect,
        local_settings,
        local_spark_session,
        naming_lost_session,
        running_session,
        session_conf,
        settings_without_effect,
        ship_package,
        with_nullable_parts,
    )
    from dagster_delta.engines.spark.session.shared_server import (
        join_shared_server,
        stop_shared_server,
    )
    from dagster_delta.engines.sql_query import REGISTERED, run_query
    from dagster_delta.engines.statements.merge_clauses import ClauseText
    from dagster_delta.engines.statements.source_buffer import rows_on_disk
    from dagster_delta.protocol.schema import StructType
    from dagster_delta.sql.expressions import SqlExpression
    from dagster_delta.storage.object_store import ObjectStore


_MODULES = {
    "arrow.compared_rows": "net_changes",
    "arrow.joined_rows": "joined_schema",
    "data_input": "to_reader to_table_types",
    "memory_budget": "size_bytes",
    "spark.executor_reports": "counting_written_bytes",
    "spark.session.session": (
        "is_connect local_settings local_spark_session naming_lost_session running_session "
        "session_conf settings_without_effect ship_package with_nullable_parts"
    ),
    "spark.session.shared_server": "join_shared_server stop_shared_server",
    "sql_query": "REGISTERED run_query",
    "statements.merge_clauses": "ClauseText",
    "statements.source_buffer": "rows_on_disk",
}
"""Names that are imported when they are first used, by module."""
_HOMES = {name: module for module, names in _MODULES.items() for name in names.split()}

__all__ = [
    "REGISTERED",
    "ClauseText",
    "DeletionVectorLoader",
    "active_spark_session",
    "counting_written_bytes",
    "embedded_engine",
    "engine_for",
    "engine_for_changes",
    "is_connect",
    "is_spark_frame",
    "join_shared_server",
    "joined_schema",
    "local_settings",
    "local_spark_session",
    "naming_lost_session",
    "net_changes",
    "rows_of_parts",
    "rows_on_disk",
    "run_query",
    "running_session",
    "session_conf",
    "session_time_zone",
    "settings_without_effect",
    "ship_package",
    "size_bytes",
    "spark_engine",
    "stop_shared_server",
    "to_reader",
    "to_rows",
    "to_table_types",
    "universal_engine",
    "with_nullable_parts",
]


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)


find_zone_by(lambda: session_time_zone())


def engine_for(
    data: object, name: str | None = None, *, memory_limit: int | str | None = None
) -> Engine:
    """The engine that serves a value: Spark for its own frames, Arrow for everything else.

    Args:
        data: the value; only its class is checked, so nothing is imported to decide.
        name: "arrow" or "spark" to override the choice; None to choose by the value.
        memory_limit: of the embedded engine, as for `MemoryBudget.of`.

    Raises:
        InvalidArgument: no engine has that name; or Spark is to keep a memory limit.
    """
    if name is None:
        name = "spark" if active_session.is_spark_frame(data) else "arrow"
    match name:
        case "arrow":
            return embedded_engine(memory_limit)
        case "spark":
            if memory_limit is not None:
                raise InvalidArgument(
                    "memory_limit is for the embedded engine: leave it out, and set "
                    "spark.executor.memory, or spark.driver.memory of a local session"
                )
            return spark_engine(getattr(data, "sparkSession", None))
    raise InvalidArgument(f"engine is 'arrow' or 'spark', not {name!r}")


def embedded_engine(
    memory_limit: int | str | None = None, *, time_zone: str | None = None
) -> ArrowEngine:
    """The engine of this process.

    Args:
        memory_limit: as for `MemoryBudget.of`.
        time_zone: of its statements; by default that of the Spark session of this process.
    """
    from dagster_delta.engines.arrow.engine import ArrowEngine

    known = None if time_zone is None else partial(str, time_zone)
    return ArrowEngine(memory_limit, find_time_zone=known or active_session.session_time_zone)


def spark_engine(session: SparkSession | None = None) -> SparkEngine:
    """The distributed engine.

    Args:
        session: classic or Connect; by default the active one, which is looked up at use.
    """
    from dagster_delta.engines.spark.engine import SparkEngine

    return SparkEngine(session)


def engine_for_changes(
    expressions: Iterable[SqlExpression], store: ObjectStore, time_zone: str
) -> Engine:
    """The engine that changes rows by some expressions in a time zone: Spark if only Spark
    evaluates them exactly and there is a session, Arrow otherwise.
    """
    try:
        for expression in expressions:
            expression.check_embeddable()
    except UnsupportedExpression:
        return universal_engine(store) or embedded_engine(time_zone=time_zone)
    return embedded_engine(time_zone=time_zone)


def to_rows(data: object) -> object:
    """Rows to write, with a schema that can be asked for without reading them. Raises
    InvalidArgument for a value without rows.

    Args:
        data: a Spark frame, which is returned as it is, or anything that the embedded engine
            writes.
    """
    if is_spark_frame(data):
        return data
    from dagster_delta.engines.data_input import to_rows

    return to_rows(data)


def rows_of_parts(
    frames: Mapping[str, object], condition_of: Callable[[str, StructType], SqlExpression]
) -> object:
    """The rows of the frames of some parts of a table; see `joined_rows.rows_of_parts`. Raises
    InvalidArgument for a Spark frame.
    """
    for part, frame in frames.items():
        if is_spark_frame(frame):
            raise InvalidArgument(
                f"there is a Spark frame for {part}: give one Spark frame with the rows of all "
                "parts"
            )
    from dagster_delta.engines.arrow.joined_rows import rows_of_parts

    return rows_of_parts(frames, condition_of)


def universal_engine(store: ObjectStore) -> Engine | None:
    """The engine that evaluates every expression: Spark, if this process has a session and the
    executors can read the table; else None.
    """
    if scheme_of(store.location.uri) == "memory":
        return None
    session = active_session.active_spark_session()
    return None if session is None else spark_engine(session)
