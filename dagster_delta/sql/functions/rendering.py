"""The DuckDB SQL of a call, for one row of the whitelist."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import msgspec
import pyarrow as pa

from dagster_delta.errors import UnsupportedExpression
from dagster_delta.protocol.schema import ArrayType, DataType, DecimalType, PrimitiveType
from dagster_delta.sql.typed import Call

if TYPE_CHECKING:
    import duckdb

ToSql = Callable[[Call, Sequence[str]], str]
"""Makes DuckDB SQL from a typed call and the SQL of its operands."""


class Rendering(msgspec.Struct, frozen=True):
    """One row of the whitelist."""

    sql: ToSql
    may_raise: bool = False
    """Whether it fails for some values, so that earlier operands must guard it."""


_DUCKDB_TYPES = {
    "boolean": "BOOLEAN",
    "byte": "TINYINT",
    "short": "SMALLINT",
    "integer": "INTEGER",
    "long": "BIGINT",
    "float": "FLOAT",
    "double": "DOUBLE",
    "string": "VARCHAR",
    "binary": "BLOB",
    "date": "DATE",
    # Both are microseconds; the session's zone is UTC, and zones need an extension of DuckDB.
    "timestamp": "TIMESTAMP",
    "timestamp_ntz": "TIMESTAMP",
    "void": "INTEGER",
    "variant": 'STRUCT("value" BLOB, metadata BLOB)',
}


def duckdb_type(data_type: DataType) -> str:
    """The DuckDB type that holds values of a type."""
    if isinstance(data_type, DecimalType):
        return f"DECIMAL({data_type.precision},{data_type.scale})"
    if isinstance(data_type, PrimitiveType) and data_type.name in _DUCKDB_TYPES:
        return _DUCKDB_TYPES[data_type.name]
    if isinstance(data_type, ArrayType):
        return f"{duckdb_type(data_type.element_type)}[]"
    raise UnsupportedExpression(f"a value of type {data_type}; use the Spark engine")


def raising(message: str) -> str:
    """DuckDB SQL that fails with a message."""
    quoted = message.replace("'", "''")
    return f"error('{quoted}')"


def finite(operand: str) -> str:
    """DuckDB SQL of a date or time that fails for the two values that DuckDB reads as infinite: the
    greatest of the type, and its negative. To Spark they are days and times like any other.
    """
    refused = raising("dates and times at the end of their range: use the Spark engine")
    return f"CASE WHEN isinf({operand}) THEN {refused} ELSE {operand} END"


def function(duckdb_name: str, result: str | None = None) -> ToSql:
    """A call of the DuckDB function, cast to a DuckDB type where given."""
    call = f"{duckdb_name}({{all}})"
    return template(call if result is None else f"CAST({call} AS {result})")


def template(text: str) -> ToSql:
    """DuckDB SQL with the operands `{0}`, `{1}` and so on, or `{all}` of them, the `{name}` of the
    call and the DuckDB `{type}` of its result.
    """

    def sql(call: Call, operands: Sequence[str]) -> str:
        result = duckdb_type(call.data_type) if "{type}" in text else ""
        return text.format(*operands, all=", ".join(operands), name=call.name, type=result)

    return sql


def register_function(
    connection: duckdb.DuckDBPyConnection,
    name: str,
    compute: Callable[..., pa.Array],
    parameters: list[str],
    result: str,
) -> None:
    """Register a function over Arrow arrays, which gets nulls too, with a connection."""
    # Its signatures require enumerations, and lists of one invariant type.
    create: Callable[..., Any] = connection.create_function
    create(name, compute, parameters, result, type="arrow", null_handling="special")


def _sql_of_another(call: Call, operands: Sequence[str]) -> str:
    raise AssertionError(f"{call.name} of {len(operands)} operands is typed as another call")


REWRITTEN = Rendering(_sql_of_another)
"""The row of a name that the analysis turns into another call or a cast."""
