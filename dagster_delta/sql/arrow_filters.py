"""Converts filters that DuckDB passes to Arrow datasets to conditions that select no fewer rows.

A part of a conjunction without an exact counterpart is omitted; elsewhere it makes the whole
unknown. The caller filters the rows again.

Arrow has no API to inspect an expression. It is read from its pickled form: an IPC file whose
metadata has the nodes in prefix order, and whose one row has the constants. An expression in
another form is unknown.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

import pyarrow as pa

from dagster_delta.protocol.schema import StructType
from dagster_delta.sql.conditions import (
    all_of,
    any_of,
    compare,
    constant,
    find_column,
    is_in,
    is_null,
    negate,
)
from dagster_delta.sql.typed import Column, Literal, Typed, is_too_deep

_COMPARISONS: Mapping[str, str] = {
    "equal": "=",
    "not_equal": "<>",
    "greater": ">",
    "greater_equal": ">=",
    "less": "<",
    "less_equal": "<=",
}
_NODE = re.compile(r"(call|end|literal|field_ref|nested_field_ref|options): '(.*)'")


class _Unknown(Exception):
    """A part of the expression without counterpart."""


def filter_to_condition(
    expression: pa.Expression, schema: pa.Schema, exact_columns: StructType
) -> Typed | None:
    """A condition that is true for every row for which a filter is, and perhaps for more; None if
    no part of the filter has a counterpart.

    `exact_columns`: columns that Spark SQL compares as Arrow does; others are omitted.
    """
    # A name with a line break could be read as a node.
    if any("\n" in name for name in _names(schema)):
        return None
    try:
        constants, nodes = _pickled_nodes(expression)
        tree = _parse(nodes, constants)
        found = _condition(tree, exact_columns)
    except (_Unknown, IndexError, OverflowError, RecursionError, ValueError, pa.ArrowException):
        return None
    return None if is_too_deep(found) else found


@dataclass(frozen=True, slots=True)
class _Column:
    path: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _Call:
    name: str
    operands: Sequence[_Column | _Call | pa.Scalar]
    options: pa.Scalar | None


def _names(fields: pa.Schema | pa.DataType) -> Iterator[str]:
    for index in range(fields.num_fields if isinstance(fields, pa.DataType) else len(fields)):
        field = fields.field(index)
        yield field.name
        yield from _names(field.type)


def _pickled_nodes(expression: pa.Expression) -> tuple[pa.RecordBatch, list[tuple[str, str]]]:
    """The constants by column, and the nodes in prefix order, last one first."""
    _, (pickled,) = expression.__reduce__()
    file = pa.ipc.open_file(pickled)
    text = file.schema.to_string(show_schema_metadata=True, truncate_metadata=False)
    lines = text.partition("-- schema metadata --\n")[2].split("\n")
    found = [_NODE.fullmatch(line) for line in reversed(lines)]
    if None in found:
        raise _Unknown
    return file.get_batch(0), [(node[1], node[2]) for node in found if node is not None]


def _parse(nodes: list[tuple[str, str]], constants: pa.RecordBatch) -> _Column | _Call | pa.Scalar:
    kind, value = nodes.pop()
    match kind:
        case "field_ref":
            return _Column((value,))
        case "nested_field_ref":
            return _Column(tuple(nodes.pop()[1] for _ in range(int(value))))
        case "literal":
            return constants.column(int(value))[0]
        case "call":
            operands, options = [], None
            while nodes[-1][0] != "end":
                if nodes[-1][0] == "options":
                    options = constants.column(int(nodes.pop()[1]))[0]
                else:
                    operands.append(_parse(nodes, constants))
            nodes.pop()
            return _Call(value, operands, options)
    raise _Unknown


def _condition(node: _Column | _Call | pa.Scalar, exact: StructType) -> Typed:
    if not isinstance(node, _Call):
        raise _Unknown
    match node.name, node.operands:
        case "and_kleene", [left, right]:
            # Without one of its parts, a conjunction selects more rows.
            parts = [_known(operand, exact) for operand in (left, right)]
            if known := [part for part in parts if part is not None]:
                return all_of(known)
        case "or_kleene", operands:
            return any_of([_condition(operand, exact) for operand in operands])
        case "is_null", [column]:
            return is_null(_column(column, exact))
        case "is_valid", [column]:
            return negate(is_null(_column(column, exact)))
        case "if_else", [_, then, pa.Scalar(is_valid=False)]:
            # `CASE WHEN c THEN d ELSE NULL END` holds for none but rows for which `d` does.
            return _condition(then, exact)
        case "is_in", [column] if node.options is not None:
            constants = list(map(_literal, node.options["value_set"].values))
            return _found(is_in(_column(column, exact), constants))
        case name, [column, pa.Scalar() as scalar] if name in _COMPARISONS:
            found = _column(column, exact)
            return _found(compare(found, _COMPARISONS[name], _literal(scalar)))
    raise _Unknown


def _known(node: _Column | _Call | pa.Scalar, exact: StructType) -> Typed | None:
    try:
        return _condition(node, exact)
    except _Unknown:
        return None


_Part = TypeVar("_Part")


def _found(part: _Part | None) -> _Part:
    if part is None:
        raise _Unknown
    return part


def _column(node: _Column | _Call | pa.Scalar, exact: StructType) -> Column:
    found = find_column(node.path, exact) if isinstance(node, _Column) else None
    if found is None or found.collation is not None:
        raise _Unknown
    return found


def _literal(scalar: pa.Scalar) -> Literal:
    return _found(constant(scalar.as_py()))
