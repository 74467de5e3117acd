"""Rows as a dataset that DuckDB reads lazily: only the columns and rows that a query needs.

DuckDB passes its filters as Arrow expressions. They become conditions that select no fewer rows: a
part of a conjunction without an exact counterpart is omitted; elsewhere it makes the whole unknown.
The rows are filtered again.

Arrow has no API to inspect an expression. It is read from its pickled form: an IPC file whose
metadata has the nodes in prefix order, and whose one row has the constants. An expression in
another form is unknown.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import TypeAlias

import msgspec
import pyarrow as pa
import pyarrow.dataset as ds

from dagster_delta.errors import DeltaError
from dagster_delta.protocol.schema import StructType
from dagster_delta.sql.conditions import (
    NoConditionError,
    all_of,
    any_of,
    compare,
    constant,
    exact_column,
    is_in,
    is_null,
    negate,
)
from dagster_delta.sql.typed import Column, Typed, is_too_deep


class BatchDataset(ds.Dataset):  # type: ignore[misc]  # pyarrow has no types
    """The part of a `pyarrow.dataset.Dataset` that DuckDB calls.

    DuckDB passes its filters only to datasets, and does not repeat them. A reader of batches could
    be read only once, and whole. `read` returns at least these columns of at least the rows that
    satisfy the condition, and is called for every scan. Spark SQL compares `exact_columns` as Arrow
    does.
    """

    # pyarrow's own class has no constructor.
    def __init__(
        self,
        schema: pa.Schema,
        read: Callable[[Sequence[str], Typed | None], pa.RecordBatchReader],
        exact_columns: StructType,
    ) -> None:
        self._schema = schema
        self._read = read
        self._exact_columns = exact_columns
        self.failure: DeltaError | None = None
        """The DeltaError that ended a scan: DuckDB raises it only as text in its own error."""

    @property
    def schema(self) -> pa.Schema:
        """The Arrow schema of the rows."""
        return self._schema

    def scanner(
        self,
        columns: Sequence[str] | None = None,
        filter: pa.Expression | None = None,  # noqa: A002
    ) -> _Scanner:
        """One scan. DuckDB passes these arguments by name."""
        names = self._schema.names if columns is None else list(columns)
        return _Scanner(
            pa.schema([self._schema.field(name) for name in names]),
            self._read_rows(names, filter),
        )

    def _read_rows(self, names: Sequence[str], condition: pa.Expression | None) -> Iterator[object]:
        where, needed = None, list(names)
        if condition is not None:
            where = filter_to_condition(condition, self._schema, self._exact_columns)
            needed += _find_mentioned(
                str(condition), [n for n in self._schema.names if n not in names]
            )
        try:
            for batch in self._read(needed, where):
                if condition is None:
                    yield batch.select(names)
                    continue
                yield from pa.table(batch).filter(condition).select(names).to_batches()
        except DeltaError as error:
            self.failure = error
            raise


class _Scanner:
    """The part of a `pyarrow.dataset.Scanner` that DuckDB calls."""

    def __init__(self, schema: pa.Schema, batches: Iterator[object]) -> None:
        self._schema = schema
        self._batches = batches

    def to_reader(self) -> pa.RecordBatchReader:
        return pa.RecordBatchReader.from_batches(self._schema, self._batches)


def _find_mentioned(condition: str, names: Sequence[str]) -> list[str]:
    """The names that occur in the text of a condition: at least all columns that it uses, which
    Arrow does not list.
    """
    words = set(re.findall(r"\w+", condition))
    return [name for name in names if (name in words if name.isidentifier() else name in condition)]


_COMPARISONS: Mapping[str, str] = {
    "equal": "=",
    "not_equal": "<>",
    "greater": ">",
    "greater_equal": ">=",
    "less": "<",
    "less_equal": "<=",
}
_NODE = re.compile(r"(call|end|literal|field_ref|nested_field_ref|options): '(.*)'")
_UNREADABLE = (IndexError, OverflowError, RecursionError, ValueError)


def filter_to_condition(
    expression: pa.Expression, schema: pa.Schema, exact_columns: StructType
) -> Typed | None:
    """A condition that is true for every row for which a filter is, and perhaps for more; None if
    no part of the filter has a counterpart.

    `exact_columns`: columns that Spark SQL compares as Arrow does; others are omitted.
    """
    # A name with a line break could be read as a node.
    if any("\n" in name for name in _list_field_names(schema)):
        return None
    try:
        constants, nodes = _pickled_nodes(expression)
        tree = _parse_node(nodes, constants)
        found = _to_condition(tree, exact_columns)
    except (NoConditionError, pa.ArrowException, *_UNREADABLE):
        return None
    return None if is_too_deep(found) else found


class _Call(msgspec.Struct, frozen=True):
    name: str
    operands: Sequence[_Node]
    options: pa.Scalar | None


_Node: TypeAlias = tuple[str, ...] | _Call | pa.Scalar
"""Path of a column, call or constant."""


def _list_field_names(fields: pa.Schema | pa.DataType) -> Iterator[str]:
    for index in range(fields.num_fields if isinstance(fields, pa.DataType) else len(fields)):
        field = fields.field(index)
        yield field.name
        yield from _list_field_names(field.type)


def _pickled_nodes(expression: pa.Expression) -> tuple[pa.RecordBatch, list[tuple[str, str]]]:
    """The constants by column, and the nodes in prefix order, last one first."""
    _, (pickled,) = expression.__reduce__()
    file = pa.ipc.open_file(pickled)
    text = file.schema.to_string(show_schema_metadata=True, truncate_metadata=False)
    lines = text.partition("-- schema metadata --\n")[2].split("\n")
    found = [_NODE.fullmatch(line) for line in reversed(lines)]
    if None in found:
        raise NoConditionError
    return file.get_batch(0), [(node[1], node[2]) for node in found if node is not None]


def _parse_node(nodes: list[tuple[str, str]], constants: pa.RecordBatch) -> _Node:
    kind, value = nodes.pop()
    match kind:
        case "field_ref":
            return (value,)
        case "nested_field_ref":
            return tuple(nodes.pop()[1] for _ in range(int(value)))
        case "literal":
            return constants.column(int(value))[0]
        case "call":
            operands, options = [], None
            while nodes[-1][0] != "end":
                if nodes[-1][0] == "options":
                    options = constants.column(int(nodes.pop()[1]))[0]
                else:
                    operands.append(_parse_node(nodes, constants))
            nodes.pop()
            return _Call(value, operands, options)
    raise NoConditionError


def _to_condition(node: _Node, exact: StructType) -> Typed:
    if not isinstance(node, _Call):
        raise NoConditionError
    match node.name, node.operands:
        case "and_kleene", [left, right]:
            # Without one of its parts, a conjunction selects more rows.
            known = []
            for operand in (left, right):
                with suppress(NoConditionError):
                    known.append(_to_condition(operand, exact))
            if known:
                return all_of(known)
        case "or_kleene", operands:
            return any_of([_to_condition(operand, exact) for operand in operands])
        case "is_null", [column]:
            return is_null(_find_exact_column(column, exact))
        case "is_valid", [column]:
            return negate(is_null(_find_exact_column(column, exact)))
        case "if_else", [_, then, pa.Scalar(is_valid=False)]:
            # `CASE WHEN c THEN d ELSE NULL END` holds for none but rows for which `d` does.
            return _to_condition(then, exact)
        case "is_in", [column] if node.options is not None:
            constants = [constant(value.as_py()) for value in node.options["value_set"].values]
            return is_in(_find_exact_column(column, exact), constants)
        case name, [column, pa.Scalar() as scalar] if name in _COMPARISONS:
            return compare(
                _find_exact_column(column, exact), _COMPARISONS[name], constant(scalar.as_py())
            )
    raise NoConditionError


def _find_exact_column(node: _Node, exact: StructType) -> Column:
    if not isinstance(node, tuple):
        raise NoConditionError
    return exact_column(node, exact)
