"""A polars LazyFrame over rows that are read while a query runs.

The part of a predicate that has an equivalent in Spark SQL skips files. polars applies the whole
predicate itself, so unsupported parts are omitted.
"""

from __future__ import annotations

import datetime as dt
import io
import json
import math
from collections.abc import Callable, Iterator, Sequence
from decimal import Decimal
from typing import TYPE_CHECKING

import polars as pl
from polars.io.plugins import register_io_source

from dagster_delta.engines.plans import ReadPlan
from dagster_delta.engines.polars.file_frames import FileFrames, is_readable
from dagster_delta.protocol.features.text_limits import padded_type
from dagster_delta.protocol.schema import DataType, DecimalType, PrimitiveType, StructType

if TYPE_CHECKING:
    import pyarrow as pa

_MAX_PREDICATE_BYTES = 65_536
"""Larger predicates have long lists, whose translation takes longer than it saves."""
_MAX_LIST_VALUES = 1000

_COMPARISONS = {
    "Eq": "=",
    "NotEq": "<>",
    "Lt": "<",
    "LtEq": "<=",
    "Gt": ">",
    "GtEq": ">=",
    "EqValidity": "<=>",
}
_AND = ("And", "LogicalAnd")
_OR = ("Or", "LogicalOr")
_BOUNDS = {
    "Both": (">=", "<="),
    "Left": (">=", "<"),
    "Right": (">", "<="),
    "None": (">", "<"),
}
_INTEGERS = frozenset({"byte", "short", "integer", "long"})


def to_condition(predicate: pl.Expr | None, schema: StructType) -> str | None:
    """Spark SQL that is true for every row for which the predicate is; None if none is found.

    Args:
        predicate: as polars gives it to a source of rows, with literals of the columns' types; None
            for all rows.
        schema: the columns that the SQL may use.

    Raises:
        Nothing: an unsupported predicate skips no files.
    """
    if predicate is None or len(predicate.meta.serialize()) > _MAX_PREDICATE_BYTES:
        return None
    try:
        tree = json.loads(predicate.meta.serialize(format="json"))
        parts = [_sql(part, schema) for part in _conjuncts(tree)]
    except (RecursionError, pl.exceptions.PolarsError):
        # Too deep, or in a form of another polars version.
        return None
    return " AND ".join(f"({part})" for part in parts if part is not None) or None


def _conjuncts(node: object) -> Iterator[object]:
    match node:
        case {"BinaryExpr": {"op": op, "left": left, "right": right}} if op in _AND:
            yield from _conjuncts(left)
            yield from _conjuncts(right)
        case _:
            yield node


def _sql(node: object, schema: StructType) -> str | None:
    """The same condition as Spark SQL: true, false and null for the same rows."""
    match node:
        case {"Column": str()}:
            found = _column(node, schema)
            return found[0] if found is not None and found[1] == PrimitiveType("boolean") else None
        case {"BinaryExpr": {"op": op, "left": left, "right": right}}:
            if op in _AND or op in _OR:
                both = _sql(left, schema), _sql(right, schema)
                word = "AND" if op in _AND else "OR"
                return None if None in both else f"({both[0]}) {word} ({both[1]})"
            return _comparison(op, left, right, schema)
        case {"Function": {"function": {"Boolean": function}, "input": inputs}}:
            return _boolean_function(function, inputs, schema)
        case {"Function": {"function": {"StringExpr": "StartsWith"}, "input": [operand, prefix]}}:
            return _startswith(operand, prefix, schema)
    return None


def _comparison(op: str, left: object, right: object, schema: StructType) -> str | None:
    operator = _COMPARISONS.get(op)
    column = _column(left, schema)
    if operator is None:
        return None
    if column is None:
        column = _column(right, schema)
        literal = _literal(left, column)
        return None if literal is None or column is None else f"{literal} {operator} {column[0]}"
    literal = _literal(right, column)
    return None if literal is None else f"{column[0]} {operator} {literal}"


def _boolean_function(function: object, inputs: Sequence[object], schema: StructType) -> str | None:
    if function == "Not":
        child = _sql(inputs[0], schema)
        return None if child is None else f"NOT ({child})"
    column = _column(inputs[0], schema)
    if column is None:
        return None
    match function:
        case "IsNull":
            return f"{column[0]} IS NULL"
        case "IsNotNull":
            return f"{column[0]} IS NOT NULL"
        case {"IsIn": {"nulls_equal": False}}:
            return _membership(column, inputs[1])
        case {"IsBetween": {"closed": closed}} if closed in _BOUNDS:
            low, high = (_literal(each, column) for each in inputs[1:3])
            above, below = _BOUNDS[closed]
            if low is None or high is None:
                return None
            return f"{column[0]} {above} {low} AND {column[0]} {below} {high}"
    return None


def _membership(column: tuple[str, DataType], values: object) -> str | None:
    series = _constant(values)
    if series is None:
        return None
    if isinstance(series.dtype, pl.List | pl.Array):
        if len(series) != 1:
            return None
        series = series.explode()
    # If the list has a null, a value that is not in it gives null in SQL and false in polars.
    if series.null_count() or not 0 < len(series) <= _MAX_LIST_VALUES:
        return None
    literals = [_literal_sql(series[i : i + 1], column[1]) for i in range(len(series))]
    known = [each for each in literals if each is not None]
    return f"{column[0]} IN ({', '.join(known)})" if len(known) == len(literals) else None


def _startswith(operand: object, prefix: object, schema: StructType) -> str | None:
    column = _column(operand, schema)
    literal = _literal(prefix, column)
    return None if column is None or literal is None else f"startswith({column[0]}, {literal})"


def _column(node: object, schema: StructType) -> tuple[str, DataType] | None:
    """A column, or a field in a struct, as SQL with its type; None for padded texts, which Spark
    compares differently.
    """
    path = _path(node)
    if path is None:
        return None
    fields: DataType = schema
    field = None
    for name in path:
        if not isinstance(fields, StructType) or name not in fields.names:
            return None
        field = fields.field(name)
        if padded_type(field) is not None:
            return None
        fields = field.data_type
    quoted = ".".join("`" + name.replace("`", "``") + "`" for name in path)
    return quoted, fields


def _path(node: object) -> tuple[str, ...] | None:
    match node:
        case {"Column": str(name)}:
            return (name,)
        case {"Function": {"function": {"StructExpr": {"FieldByName": name}}, "input": [parent]}}:
            above = _path(parent)
            return None if above is None else (*above, name)
    return None


def _literal(node: object, column: tuple[str, DataType] | None) -> str | None:
    if column is None:
        return None
    series = _constant(node)
    return None if series is None or len(series) != 1 else _literal_sql(series, column[1])


def _constant(node: object) -> pl.Series | None:
    """The values of a literal. polars evaluates it, as its form depends on the version."""
    if not isinstance(node, dict) or set(node) != {"Literal"}:
        return None
    expression = pl.Expr.deserialize(io.StringIO(json.dumps(node)), format="json")
    return pl.select(expression).to_series()


def _literal_sql(series: pl.Series, data_type: DataType) -> str | None:
    """A value in the Spark SQL of a column's type; None if it is of another type."""
    try:
        value = series[0]
    except (ValueError, OverflowError):
        # The year is outside Python's range.
        return None
    kind = data_type.name if isinstance(data_type, PrimitiveType) else ""
    match value:
        case bool():
            return str(value).upper() if kind == "boolean" else None
        case int():
            return str(value) if kind in _INTEGERS and -(2**63) < value < 2**63 else None
        case float():
            return f"{value!r}D" if kind in ("float", "double") and math.isfinite(value) else None
        case str():
            escaped = value.replace("\\", "\\\\").replace("'", "\\'")
            return f"'{escaped}'" if kind == "string" else None
        case bytes():
            return f"X'{value.hex()}'" if kind == "binary" else None
        case Decimal():
            return f"{value:f}BD" if isinstance(data_type, DecimalType) else None
        case dt.datetime():
            return _timestamp_sql(series, value, kind)
        case dt.date():
            return f"DATE '{value.isoformat()}'" if kind == "date" else None
    return None


def _timestamp_sql(series: pl.Series, value: dt.datetime, kind: str) -> str | None:
    unit = getattr(series.dtype, "time_unit", None)
    # Python drops nanoseconds.
    if unit not in ("us", "ms"):
        return None
    if value.tzinfo is not None and kind == "timestamp":
        utc = value.astimezone(dt.UTC).replace(tzinfo=None)
        return f"TIMESTAMP '{utc.isoformat(sep=' ')}Z'"
    if value.tzinfo is None and kind == "timestamp_ntz":
        return f"TIMESTAMP_NTZ '{value.isoformat(sep=' ')}'"
    return None


_ReadRows = Callable[["Sequence[str]", "str | None"], "pa.RecordBatchReader"]
"""Reads at least these columns of at least the rows for which this Spark SQL is true."""
_PlanRows = Callable[["Sequence[str]", "str | None"], "ReadPlan | None"]
"""Plans such a read of exactly these columns; None if only `_ReadRows` can do it."""


def _no_plan(_columns: Sequence[str], _where: str | None) -> ReadPlan | None:
    return None


def lazy_frame(
    schema: pa.Schema, fields: StructType, read: _ReadRows, plan: _PlanRows = _no_plan
) -> pl.LazyFrame:
    """A LazyFrame whose rows are read when a query runs, by each query again.

    Args:
        schema: schema of all columns.
        fields: the columns that Spark SQL may use.
        read: called for a query if there is no plan that polars can read.
        plan: called for every query.

    Raises:
        Nothing here; the method that runs the query raises the errors of `read`.
    """

    def frames(
        columns: list[str] | None,
        predicate: pl.Expr | None,
        n_rows: int | None,
        _batch_size: int | None,
    ) -> Iterator[pl.DataFrame]:
        names = schema.names if columns is None else columns
        # A limit applies to the rows before the filter.
        where = None if n_rows is not None else to_condition(predicate, fields)
        planned = plan(names, where)
        if planned is not None and is_readable(planned):
            yield from FileFrames(planned).batches(predicate, n_rows)
            return
        found = (pl.DataFrame(batch.select(names)) for batch in read(names, where))
        for frame in found if n_rows is None else _first_rows(found, n_rows):
            yield frame if predicate is None else frame.filter(predicate)

    polars_schema = pl.Schema(schema)
    # Two reads of one version are the same, so a self-join may read once.
    return register_io_source(frames, schema=polars_schema, is_pure=True)


def _first_rows(frames: Iterator[pl.DataFrame], count: int) -> Iterator[pl.DataFrame]:
    if count == 0:
        return
    for frame in frames:
        yield frame.head(count)
        count -= frame.height
        if count <= 0:
            return
