"""Casts of text in the embedded engine, computed in Python as Spark reads text.

DuckDB accepts other texts than Spark, and reads some as other values.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from dagster_delta.engines.expressions.text_conversion import TextConversion, text_conversion
from dagster_delta.errors import InvalidArgument
from dagster_delta.protocol.schema import DataType, DecimalType, PrimitiveType
from dagster_delta.sql.types import sql_type_name

if TYPE_CHECKING:
    import duckdb

__all__ = ["register_text_casts", "text_cast_sql"]

_TARGETS = {
    "boolean": "BOOLEAN", "byte": "TINYINT", "short": "SMALLINT", "integer": "INTEGER",
    "long": "BIGINT", "float": "FLOAT", "double": "DOUBLE", "date": "DATE",
    "timestamp": "TIMESTAMP", "timestamp_ntz": "TIMESTAMP",
}  # fmt: skip
_MICROSECONDS = pa.timestamp("us")


def text_cast_sql(operand: str, target: DataType, duckdb_type: str) -> str:
    """SQL that calls a function of `register_text_casts`.

    Args:
        operand: SQL of the text.
        target: type to cast it to: one for which `reads_text` is true.
        duckdb_type: DuckDB's name of the type.
    """
    if isinstance(target, DecimalType):
        # A function has one result type: the digits are passed as text.
        digits = f"text_to_decimal({operand}, {target.precision}, {target.scale})"
        return f"CAST({digits} AS {duckdb_type})"
    return f"text_to_{target}({operand})"


def register_text_casts(connection: duckdb.DuckDBPyConnection) -> None:
    """Register the functions called by `text_cast_sql` with a connection."""
    # Its signatures require enumerations, and lists of one invariant type.
    create: Callable[..., Any] = connection.create_function
    for name, result in _TARGETS.items():
        function = _reader(PrimitiveType(name))
        create(f"text_to_{name}", function, ["VARCHAR"], result, **_ARROW)
    parameters = ["VARCHAR", "INTEGER", "INTEGER"]
    create("text_to_decimal", _digits, parameters, "VARCHAR", **_ARROW)


_ARROW = {"type": "arrow", "null_handling": "special"}


def _reader(target: DataType) -> Callable[[pa.Array], pa.Array]:
    conversion = text_conversion(target)
    assert conversion is not None  # noqa: S101  of every type in the table above

    def read(texts: pa.Array) -> pa.Array:
        values = _converted(texts, target, conversion)
        return values.cast(_MICROSECONDS) if pa.types.is_timestamp(values.type) else values

    return read


def _digits(texts: pa.Array, precisions: pa.Array, scales: pa.Array) -> pa.Array:
    if not len(texts):
        return pa.nulls(0, pa.string())
    target = DecimalType(precisions[0].as_py(), scales[0].as_py())
    conversion = text_conversion(target)
    assert conversion is not None  # noqa: S101
    values = _converted(texts, target, conversion).to_pylist()
    return pa.array([None if value is None else format(value, "f") for value in values])


def _converted(
    texts: pa.Array | pa.ChunkedArray, target: DataType, conversion: TextConversion
) -> pa.Array:
    array = texts.combine_chunks() if isinstance(texts, pa.ChunkedArray) else texts
    try:
        return conversion.convert(array.cast(pa.string()))
    except pa.ArrowInvalid:
        raise InvalidArgument(f"a text is not in the form of a {sql_type_name(target)}") from None
