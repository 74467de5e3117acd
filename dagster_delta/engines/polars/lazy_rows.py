"""A polars LazyFrame over rows that are read while a query runs.

The part of a predicate that has an equivalent in Spark SQL skips files. polars applies the whole
predicate itself, so unsupported parts are omitted.
"""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

import polars as pl
from polars.io.plugins import register_io_source

from dagster_delta.engines.plans import ReadPlan
from dagster_delta.engines.polars.file_frames import FileFrames, is_readable
from dagster_delta.protocol.schema import DataType, DecimalType, PrimitiveType, StructType
from dagster_delta.sql.conditions import (
    all_of,
    any_of,
    compare,
    constant,
    find_column,
    is_in,
    is_null,
    negate,
    starts_with,
)
from dagster_delta.sql.typed import Column, Literal, Typed, is_too_deep
from dagster_delta.sql.types import BOOLEAN, is_integral

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


def to_condition(predicate: pl.Expr | None, schema: StructType) -> Typed | None:
    """A condition that is true for every row for which the predicate is; None if none is found.

    Args:
        predicate: as polars gives it to a source of rows, with literals of the columns' types; None
            for all rows.
        schema: the columns that the condition may use, without texts that Spark pads.

    Raises:
        Nothing: an unsupported predicate skips no files.
    """
    if predicate is None or len(predicate.meta.serialize()) > _MAX_PREDICATE_BYTES:
        return None
    try:
        tree = json.loads(predicate.meta.serialize(format="json"))
        parts = [_condition(part, schema) for part in _conjuncts(tree)]
    except (RecursionError, pl.exceptions.PolarsError):
        # Too deep, or in a form of another polars version.
        return None
    known = [part for part in parts if part is not None]
    found = all_of(known) if known else None
    return None if found is None or is_too_deep(found) else found


def _conjuncts(node: object) -> Iterator[object]:
    match node:
        case {"BinaryExpr": {"op": op, "left": left, "right": right}} if op in _AND:
            yield from _conjuncts(left)
            yield from _conjuncts(right)
        case _:
            yield node


def _condition(node: object, schema: StructType) -> Typed | None:
    """The same condition in Spark SQL: true, false and null for the same rows."""
    match node:
        case {"Column": str()}:
            found = _column(node, schema)
            return found if found is not None and found.data_type == BOOLEAN else None
        case {"BinaryExpr": {"op": op, "left": left, "right": right}}:
            if op in _AND or op in _OR:
                both = _condition(left, schema), _condition(right, schema)
                if both[0] is None or both[1] is None:
                    return None
                return (all_of if op in _AND else any_of)([both[0], both[1]])
            return _comparison(op, left, right, schema)
        case {"Function": {"function": {"Boolean": function}, "input": inputs}}:
            return _boolean_function(function, inputs, schema)
        case {"Function": {"function": {"StringExpr": "StartsWith"}, "input": [operand, prefix]}}:
            column = _column(operand, schema)
            literal = _literal(prefix, column)
            return None if column is None or literal is None else starts_with(column, literal)
    return None


def _comparison(op: str, left: object, right: object, schema: StructType) -> Typed | None:
    operator = _COMPARISONS.get(op)
    if operator is None:
        return None
    column = _column(left, schema)
    if column is not None:
        return _compared(column, operator, _literal(right, column))
    column = _column(right, schema)
    literal = _literal(left, column)
    return None if column is None or literal is None else compare(literal, operator, column)


def _compared(column: Column, operator: str, literal: Literal | None) -> Typed | None:
    return None if literal is None else compare(column, operator, literal)


def _boolean_function(
    function: object, inputs: Sequence[object], schema: StructType
) -> Typed | None:
    if function == "Not":
        child = _condition(inputs[0], schema)
        return None if child is None else negate(child)
    column = _column(inputs[0], schema)
    if column is None:
        return None
    match function:
        case "IsNull":
            return is_null(column)
        case "IsNotNull":
            return negate(is_null(column))
        case {"IsIn": {"nulls_equal": False}}:
            return _membership(column, inputs[1])
        case {"IsBetween": {"closed": closed}} if closed in _BOUNDS:
            bounds = zip(_BOUNDS[closed], inputs[1:3], strict=True)
            sides = [_compared(column, sign, _literal(bound, column)) for sign, bound in bounds]
            known = [side for side in sides if side is not None]
            return all_of(known) if len(known) == len(sides) else None
    return None


def _membership(column: Column, values: object) -> Typed | None:
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
    literals = [_value(series, index, column.data_type) for index in range(len(series))]
    known = [literal for literal in literals if literal is not None]
    return is_in(column, known) if len(known) == len(literals) else None


def _column(node: object, schema: StructType) -> Column | None:
    """A column, or a field in a struct; None for texts with a collation, which Spark compares
    differently.
    """
    path = _path(node)
    column = None if path is None else find_column(path, schema)
    return None if column is None or column.collation is not None else column


def _path(node: object) -> tuple[str, ...] | None:
    match node:
        case {"Column": str(name)}:
            return (name,)
        case {"Function": {"function": {"StructExpr": {"FieldByName": name}}, "input": [parent]}}:
            above = _path(parent)
            return None if above is None else (*above, name)
    return None


def _literal(node: object, column: Column | None) -> Literal | None:
    if column is None:
        return None
    series = _constant(node)
    return None if series is None or len(series) != 1 else _value(series, 0, column.data_type)


def _constant(node: object) -> pl.Series | None:
    """The values of a literal. polars evaluates it, as its form depends on the version."""
    if not isinstance(node, dict) or set(node) != {"Literal"}:
        return None
    expression = pl.Expr.deserialize(io.StringIO(json.dumps(node)), format="json")
    return pl.select(expression).to_series()


def _value(series: pl.Series, index: int, data_type: DataType) -> Literal | None:
    """A value as a constant for a column; None if it is of another type than the column."""
    try:
        value = series[index]
    except (ValueError, OverflowError):
        # The year is outside Python's range.
        return None
    # Python drops nanoseconds.
    if getattr(series.dtype, "time_unit", "us") == "ns":
        return None
    literal = constant(value)
    is_alike = literal is not None and _family(literal.data_type) == _family(data_type)
    return literal if is_alike else None


def _family(data_type: DataType) -> str:
    """A name for types of which one constant may be."""
    if isinstance(data_type, DecimalType):
        return "decimal"
    if is_integral(data_type):
        return "integral"
    return "double" if data_type == PrimitiveType("float") else str(data_type)


_ReadRows = Callable[["Sequence[str]", "Typed | None"], "pa.RecordBatchReader"]
"""Reads at least these columns of at least the rows for which this condition is true."""
_PlanRows = Callable[["Sequence[str]", "Typed | None"], "ReadPlan | None"]
"""Plans such a read of exactly these columns; None if only `_ReadRows` can do it."""


def _no_plan(_columns: Sequence[str], _where: Typed | None) -> ReadPlan | None:
    return None


def lazy_frame(
    schema: pa.Schema, fields: StructType, read: _ReadRows, plan: _PlanRows = _no_plan
) -> pl.LazyFrame:
    """A LazyFrame whose rows are read when a query runs, by each query again.

    Args:
        schema: schema of all columns.
        fields: the columns that conditions may use.
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
        planned = plan(names, where) if n_rows is None else None
        if planned is not None and is_readable(planned):
            yield from FileFrames(planned).batches(predicate)
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
