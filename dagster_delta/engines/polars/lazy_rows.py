"""A polars LazyFrame over rows that are read while a query runs.

The part of a predicate that has an equivalent in Spark SQL skips files. polars applies the whole
predicate itself, so unsupported parts are omitted.
"""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, TypeVar

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

_T = TypeVar("_T")

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
    known = []
    try:
        tree = json.loads(predicate.meta.serialize(format="json"))
        for part in _conjuncts(tree):
            with suppress(_NoConditionError):
                known.append(_condition(part, schema))
    except (RecursionError, pl.exceptions.PolarsError):
        # Too deep, or in a form of another polars version.
        return None
    found = all_of(known) if known else None
    return None if found is None or is_too_deep(found) else found


class _NoConditionError(Exception):
    """No condition in Spark SQL is true, false and null for the same rows."""


def _known(found: _T | None) -> _T:
    if found is None:
        raise _NoConditionError
    return found


def _conjuncts(node: object) -> Iterator[object]:
    match node:
        case {"BinaryExpr": {"op": op, "left": left, "right": right}} if op in _AND:
            yield from _conjuncts(left)
            yield from _conjuncts(right)
        case _:
            yield node


def _condition(node: object, schema: StructType) -> Typed:
    """The same condition in Spark SQL. Raises _NoConditionError."""
    match node:
        case {"Column": str()} if (column := _column(node, schema)).data_type == BOOLEAN:
            return column
        case {"BinaryExpr": {"op": op, "left": left, "right": right}} if op in (*_AND, *_OR):
            both = [_condition(left, schema), _condition(right, schema)]
            return all_of(both) if op in _AND else any_of(both)
        case {"BinaryExpr": {"op": op, "left": left, "right": right}} if op in _COMPARISONS:
            if isinstance(left, dict) and "Literal" in left:
                column = _column(right, schema)
                return _known(compare(_literal(left, column), _COMPARISONS[op], column))
            column = _column(left, schema)
            return _known(compare(column, _COMPARISONS[op], _literal(right, column)))
        case {"Function": {"function": {"Boolean": "Not"}, "input": [operand]}}:
            return negate(_condition(operand, schema))
        case {"Function": {"function": {"Boolean": function}, "input": [operand, *others]}}:
            return _of_column(function, _column(operand, schema), others)
        case {"Function": {"function": {"StringExpr": "StartsWith"}, "input": [operand, prefix]}}:
            column = _column(operand, schema)
            return starts_with(column, _literal(prefix, column))
    raise _NoConditionError


def _of_column(function: object, column: Column, others: Sequence[object]) -> Typed:
    match function:
        case "IsNull":
            return is_null(column)
        case "IsNotNull":
            return negate(is_null(column))
        case {"IsIn": {"nulls_equal": False}}:
            return _known(is_in(column, _literals(others[0], column)))
        case {"IsBetween": {"closed": closed}} if closed in _BOUNDS:
            bounds = zip(_BOUNDS[closed], others, strict=True)
            return all_of(
                _known(compare(column, sign, _literal(bound, column))) for sign, bound in bounds
            )
    raise _NoConditionError


def _column(node: object, schema: StructType) -> Column:
    """A column, or a field in a struct; no text with a collation, which Spark compares
    differently.
    """
    column = find_column(_path(node), schema)
    return _known(None if column is None or column.collation is not None else column)


def _path(node: object) -> tuple[str, ...]:
    match node:
        case {"Column": str(name)}:
            return (name,)
        case {"Function": {"function": {"StructExpr": {"FieldByName": name}}, "input": [parent]}}:
            return (*_path(parent), name)
    raise _NoConditionError


def _literal(node: object, column: Column) -> Literal:
    literals = _literals(node, column)
    return _known(literals[0] if len(literals) == 1 else None)


def _literals(node: object, column: Column) -> list[Literal]:
    """The values of a literal, or of the list that it is, as constants of the column's type."""
    if not isinstance(node, dict) or set(node) != {"Literal"}:
        raise _NoConditionError
    # polars evaluates it, as its form depends on the version.
    expression = pl.Expr.deserialize(io.StringIO(json.dumps(node)), format="json")
    series = pl.select(expression).to_series()
    if isinstance(series.dtype, pl.List | pl.Array) and len(series) == 1:
        series = series.explode()
    # If the list has a null, a value that is not in it gives null in SQL and false in polars.
    # Python drops nanoseconds.
    is_nanoseconds = getattr(series.dtype, "time_unit", "us") == "ns"
    if series.null_count() or len(series) > _MAX_LIST_VALUES or is_nanoseconds:
        raise _NoConditionError
    try:
        literals = [_known(constant(value)) for value in series]
    except (ValueError, OverflowError):
        # The year is outside Python's range.
        raise _NoConditionError from None
    families = {_family(literal.data_type) for literal in literals}
    return _known(literals if families == {_family(column.data_type)} else None)


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


def lazy_frame(
    schema: pa.Schema, fields: StructType, read: _ReadRows, plan: _PlanRows
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
