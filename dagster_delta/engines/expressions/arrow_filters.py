"""Converts filters that DuckDB passes to Arrow datasets to Spark SQL that selects no fewer rows.

A part of a conjunction without an exact counterpart is omitted; elsewhere it makes the whole
unknown. The caller filters the rows again.

Arrow has no API to inspect an expression. It is read from its pickled form: an IPC file whose
metadata has the nodes in prefix order, and whose one row has the constants. An expression in
another form is unknown.
"""

from __future__ import annotations

import datetime as dt
import math
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal

import pyarrow as pa

from dagster_delta.sql.tokens import quote

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


def filter_to_sql(
    expression: pa.Expression, schema: pa.Schema, exact_columns: Collection[str]
) -> str | None:
    """Spark SQL that is true for every row for which a filter is, and perhaps for more; None if no
    part of the filter has a counterpart.

    `exact_columns`: columns that Spark SQL compares as Arrow does; others are omitted.
    """
    # A name with a line break could be read as a node.
    if any("\n" in name for name in _names(schema)):
        return None
    try:
        constants, nodes = _pickled_nodes(expression)
        return _condition(_parse(nodes, constants), exact_columns)
    except (_Unknown, IndexError, OverflowError, RecursionError, ValueError, pa.ArrowException):
        return None


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


def _condition(node: _Column | _Call | pa.Scalar, exact: Collection[str]) -> str:
    if not isinstance(node, _Call):
        raise _Unknown
    match node.name, node.operands:
        case "and_kleene", [left, right]:
            # Without one of its parts, a conjunction selects more rows.
            parts = [sql for sql in (_known(left, exact), _known(right, exact)) if sql is not None]
            if parts:
                return " AND ".join(parts)
        case "or_kleene", [left, right]:
            return f"(({_condition(left, exact)}) OR ({_condition(right, exact)}))"
        case "is_null", [column]:
            return f"{_column_sql(column, exact)} IS NULL"
        case "is_valid", [column]:
            return f"{_column_sql(column, exact)} IS NOT NULL"
        case "if_else", [_, then, pa.Scalar(is_valid=False)]:
            # `CASE WHEN c THEN d ELSE NULL END` holds for none but rows for which `d` does.
            return _condition(then, exact)
        case "is_in", [column] if node.options is not None:
            literals = ", ".join(map(_literal, node.options["value_set"].values))
            return f"{_column_sql(column, exact)} IN ({literals})"
        case name, [column, pa.Scalar() as constant] if name in _COMPARISONS:
            return f"{_column_sql(column, exact)} {_COMPARISONS[name]} {_literal(constant)}"
    raise _Unknown


def _known(node: _Column | _Call | pa.Scalar, exact: Collection[str]) -> str | None:
    try:
        return _condition(node, exact)
    except _Unknown:
        return None


def _column_sql(node: _Column | _Call | pa.Scalar, exact: Collection[str]) -> str:
    if not isinstance(node, _Column) or node.path[0] not in exact:
        raise _Unknown
    return ".".join(map(quote, node.path))


def _literal(constant: pa.Scalar) -> str:
    value = constant.as_py()
    match value:
        case bool():
            return "true" if value else "false"
        case int():
            return str(value)
        case float() if math.isfinite(value):
            # A float is compared as the double of the same value.
            return f"CAST('{value!r}' AS DOUBLE)"
        case str():
            escaped = value.replace("\\", "\\\\").replace("'", "\\'")
            return f"'{escaped}'"
        case Decimal():
            return f"CAST('{value:f}' AS DECIMAL({constant.type.precision},{constant.type.scale}))"
        case dt.datetime() if constant.type.tz is None:
            return f"TIMESTAMP_NTZ '{value.isoformat(' ')}'"
        case dt.datetime():
            utc = value.astimezone(dt.UTC).replace(tzinfo=None)
            return f"TIMESTAMP '{utc.isoformat(' ')}Z'"
        case dt.date():
            return f"DATE '{value}'"
    raise _Unknown
