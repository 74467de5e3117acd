"""Exact values of expressions over batches: by Arrow's kernels if they suffice, else by DuckDB."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

import pyarrow as pa
import pyarrow.compute as pc

from dagster_delta.cached_property import cached_property
from dagster_delta.engines.expressions.arrow_expressions import compile_value
from dagster_delta.protocol.values.arrow_columns import whole_array
from dagster_delta.protocol.values.arrow_values import scalar_of
from dagster_delta.sql.expressions import SqlExpression
from dagster_delta.sql.typed import Column, Literal, Typed, walk

if TYPE_CHECKING:
    from dagster_delta.engines.expressions.duckdb_sql import DuckDbEvaluator


def evaluate_filter(expression: SqlExpression, batch: pa.RecordBatch | pa.Table) -> pa.BooleanArray:
    """Where a condition is true: a pa.BooleanArray with one value per row of a pa.RecordBatch or
    pa.Table, with nulls as in SQL.

    Raises:
        InvalidArgument: it is not a condition, or fails on a value.
        UnsupportedExpression: as `SqlExpression.check_embeddable` does.
    """
    expression.check_filter()
    found = whole_array(_evaluator(expression).values(batch))
    return found.cast(pa.bool_()) if pa.types.is_null(found.type) else found


def evaluate(
    expression: SqlExpression, batch: pa.RecordBatch | pa.Table
) -> pa.Array | pa.ChunkedArray:
    """The values of an expression: a pa.ChunkedArray of the Arrow type of its `data_type`.

    `batch`: pa.RecordBatch or pa.Table with at least the columns it names.
    """
    found = _evaluator(expression).values(batch)
    return found if isinstance(found, pa.ChunkedArray) else pa.chunked_array([found])


def evaluate_tree(typed: Typed, batch: pa.RecordBatch | pa.Table) -> pa.Array:
    """The values of a part of an expression, for one batch: a pa.Array.

    `typed`: the part, without `Refused` nodes.
    """
    return whole_array(_Evaluator(typed).values(batch))


class _Evaluator:
    """Computes one expression, made once. It has no reference to the expression itself."""

    def __init__(self, typed: Typed) -> None:
        self._typed = typed
        self._references = {node.path for node in walk(typed) if isinstance(node, Column)}
        self._compiled = compile_value(typed)

    @property
    def is_compiled(self) -> bool:
        """Whether Arrow's kernels suffice."""
        return self._compiled is not None

    def values(self, batch: pa.RecordBatch | pa.Table) -> pa.Array | pa.ChunkedArray:
        """As `evaluate`, or in one array."""
        if isinstance(self._typed, Literal) and self._typed.value is not None:
            constant = scalar_of(self._typed.value, self._typed.data_type)
            return pa.repeat(constant, batch.num_rows)
        columns = {path: column_at(batch, path) for path in self._references}
        if self._compiled is not None:
            return self._compiled(columns)
        return self._by_duckdb.evaluate(columns, batch.num_rows)

    @cached_property
    def _by_duckdb(self) -> DuckDbEvaluator:
        # The SQL engine costs a tenth of a second to import, and few filters need it.
        from dagster_delta.engines.expressions.duckdb_sql import DuckDbEvaluator

        return DuckDbEvaluator(self._typed)


_EVALUATORS: WeakKeyDictionary[SqlExpression, _Evaluator] = WeakKeyDictionary()


def _evaluator(expression: SqlExpression) -> _Evaluator:
    found = _EVALUATORS.get(expression)
    if found is None:
        found = _Evaluator(expression.typed)
        if not found.is_compiled:
            expression.check_embeddable()
        _EVALUATORS[expression] = found
    return found


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
