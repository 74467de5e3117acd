"""Exact values of typed expressions: by Arrow's kernels if they suffice, else by DuckDB.

Most filters compare a column with a constant, and many new values are a constant; they need no SQL
engine. Arrow's kernels are used where they agree with Spark.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import reduce
from typing import TYPE_CHECKING, TypeAlias

import pyarrow as pa

import dagster_delta.arrow_compute as pc
from dagster_delta.cached_property import cached_property
from dagster_delta.protocol.statistics.bounds import keeps_order
from dagster_delta.protocol.values.arrow_columns import whole_array
from dagster_delta.protocol.values.arrow_schema import to_arrow_type
from dagster_delta.protocol.values.arrow_values import FALSE, array_of, null_scalar, scalar_of
from dagster_delta.sql.typed import Call, Cast, Column, Literal, Typed, walk
from dagster_delta.sql.types import (
    DOUBLE,
    FLOAT,
    VARIANT,
    holds_values,
    is_numeric,
    is_primitive,
)

if TYPE_CHECKING:
    from dagster_delta.sql.duckdb_sql import DuckDbEvaluator


Columns: TypeAlias = Mapping[tuple[str, ...], pa.Array | pa.ChunkedArray]
"""Arrow arrays by path."""


class Evaluator:
    """Computes one typed expression, for any number of batches."""

    def __init__(self, typed: Typed) -> None:
        self._typed = typed
        self.columns = {
            node.path: node.data_type for node in walk(typed) if isinstance(node, Column)
        }
        """Type of each column that it reads, by path."""
        self._compiled = compile_value(typed)

    @property
    def is_compiled(self) -> bool:
        """Whether Arrow's kernels suffice."""
        return self._compiled is not None

    def values(self, columns: Columns, num_rows: int) -> pa.Array:
        """The values as one `pyarrow.Array`."""
        return whole_array(self._compute(columns, num_rows))

    def _compute(self, columns: Columns, num_rows: int) -> pa.Array | pa.ChunkedArray:
        if isinstance(self._typed, Literal) and self._typed.value is not None:
            return pa.repeat(scalar_of(self._typed.value, self._typed.data_type), num_rows)
        if self._compiled is not None:
            return self._compiled(columns)
        return self._by_duckdb.evaluate(columns, num_rows)

    def is_true(self, columns: Columns, num_rows: int) -> pa.BooleanArray:
        """Where a condition is true, as a `pyarrow.BooleanArray` without nulls."""
        return pc.fill_null(as_type(self.values(columns, num_rows), _BOOL), FALSE)

    def of_batch(self, batch: pa.RecordBatch | pa.Table) -> pa.Array:
        """The values for the rows of a batch, as one `pyarrow.Array`."""
        columns = {path: column_at(batch, path) for path in self.columns}
        return self.values(columns, batch.num_rows)

    @cached_property
    def _by_duckdb(self) -> DuckDbEvaluator:
        # The SQL engine costs a tenth of a second to import, and few filters need it.
        from dagster_delta.sql.duckdb_sql import DuckDbEvaluator

        return DuckDbEvaluator(self._typed)


def column_at(rows: pa.RecordBatch | pa.Table, path: Sequence[str]) -> pa.Array | pa.ChunkedArray:
    """A column, or a field inside structs, by its path: null where a struct around it is."""
    values = rows.column(path[0])
    for name in path[1:]:
        index = values.type.get_field_index(name)
        if isinstance(values, pa.StructArray) and not values.null_count:
            # The kernel's time for each field is proportional to the number of fields.
            values = values.field(index)
        else:
            values = pc.struct_field(values, indices=[index])
    return values


Compiled: TypeAlias = Callable[[Columns], pa.Array | pa.ChunkedArray]
"""Makes a pyarrow array, with nulls as in SQL."""

_BOOL = pa.bool_()
_KERNELS = {
    "=": pc.equal,
    "<=>": pc.equal,
    "<": pc.less,
    "<=": pc.less_equal,
    ">": pc.greater,
    ">=": pc.greater_equal,
}
_FLOATS = (FLOAT, DOUBLE)


def compile_value(expression: Typed) -> Compiled | None:
    """A function that computes the value of each row; None if it needs a SQL engine."""
    match expression:
        case Column():
            return _compile_column(expression)
        case Call("and" | "or" as name, arguments):
            masks = [compile_value(argument) for argument in arguments]
            kernel = pc.and_kleene if name == "and" else pc.or_kleene
            known = [mask for mask in masks if mask is not None]
            if len(known) < len(masks):
                return None
            return lambda columns: reduce(kernel, (mask(columns) for mask in known))
        case Call("not", (child,)):
            inner = compile_value(child)
            return None if inner is None else lambda columns: pc.invert(inner(columns))
        case Call("is null", (Column(path),)):
            return lambda columns: pc.is_null(columns[path])
        case Call("in", (operand, *values)):
            return _compile_membership(operand, values)
        case Call("startswith" | "endswith" as name, (operand, Literal(str() as text))):
            return _text_test(name, operand, text)
        case Call(name, (operand, Literal() as literal)) if name in _KERNELS:
            return _compile_comparison(name, operand, literal)
    return None


def _compile_column(column: Column) -> Compiled | None:
    data_type = column.data_type
    if not (is_primitive(data_type) or holds_values(data_type) or data_type == VARIANT):
        return lambda columns: columns[column.path]
    target = to_arrow_type(data_type)
    return lambda columns: as_type(columns[column.path], target)


def _compile_operand(node: Typed) -> Compiled | None:
    """The values of a column, or of a widening cast of one."""
    match node:
        case Column(data_type=data_type) if is_primitive(data_type):
            return _compile_column(node)
        case Cast(Column(data_type=source) as column, data_type) if is_numeric(
            source
        ) and keeps_order(source, data_type):
            inner = _compile_operand(column)
            if inner is None:
                return None
            target = to_arrow_type(data_type)
            # Whole numbers beyond 2^53 round to the nearest double, as they do in Spark.
            return lambda columns: pc.cast(inner(columns), target, safe=False)
    return None


def as_type(values: pa.Array | pa.ChunkedArray, target: pa.DataType) -> pa.Array | pa.ChunkedArray:
    """The values as a `pa.DataType`."""
    return values if values.type == target else pc.cast(values, target)


def _compile_comparison(name: str, operand: Typed, literal: Literal) -> Compiled | None:
    values = _compile_operand(operand)
    if values is None or operand.data_type is None:
        return None
    if literal.value is None and name == "<=>":
        return lambda columns: pc.is_null(values(columns))
    is_float = operand.data_type in _FLOATS
    if isinstance(literal.value, float) and math.isnan(literal.value):
        return None
    scalar = scalar_of(literal.value, literal.data_type)

    def mask(columns: Columns) -> pa.Array | pa.ChunkedArray:
        found = values(columns)
        if name == "<=>":
            return pc.fill_null(pc.equal(found, scalar), FALSE)
        result = _KERNELS[name](found, scalar)
        if is_float and name in (">", ">="):
            # NaN is the greatest value in Spark, and incomparable in Arrow.
            return pc.or_(result, pc.is_nan(found))
        return result

    return mask


def _compile_membership(operand: Typed, values: list[Typed]) -> Compiled | None:
    found = _compile_operand(operand)
    if found is None or operand.data_type is None or operand.data_type in _FLOATS:
        return None
    constants = [value.value for value in values if isinstance(value, Literal)]
    if len(constants) < len(values):
        return None
    known = [constant for constant in constants if constant is not None]
    value_set = array_of(known, operand.data_type)
    has_null = len(known) < len(constants)

    def mask(columns: Columns) -> pa.Array | pa.ChunkedArray:
        column = found(columns)
        listed = pc.is_in(column, value_set=value_set)
        unknown = pc.invert(listed) if has_null else pc.is_null(column)
        return pc.if_else(unknown, null_scalar(pa.bool_()), listed)

    return mask


def _text_test(name: str, operand: Typed, text: str) -> Compiled | None:
    # DuckDB takes ten times as long.
    kernel = pc.starts_with if name == "startswith" else pc.ends_with
    values = _compile_operand(operand)
    return None if values is None else lambda columns: kernel(values(columns), pattern=text)
