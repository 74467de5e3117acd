"""Exact evaluation of typed expressions over Arrow, by an embedded SQL engine without access
to files or network.

The SQL is built from the typed tree alone: it has no text of the user and no column names.
"""

from __future__ import annotations

import datetime as dt
import math
import os
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from decimal import Decimal
from typing import TYPE_CHECKING, TypeAlias

import pyarrow as pa

import dagster_delta.arrow_compute as pc
from dagster_delta.errors import InvalidArgument, UnsupportedExpression
from dagster_delta.protocol.schema import (
    DataType,
    as_nullable,
    inner_types,
    with_inner_types,
)
from dagster_delta.protocol.values.arrow_columns import column_of, whole_array
from dagster_delta.protocol.values.arrow_schema import VARIANT_STORAGE, to_arrow_type
from dagster_delta.protocol.values.arrow_values import TRUE, null_scalar
from dagster_delta.sql.casts import (
    cast_kind,
    cast_may_raise,
    cast_sql,
    duckdb_type,
    raising,
    reads_text,
)
from dagster_delta.sql.functions.dates import DATE_FUNCTIONS
from dagster_delta.sql.functions.time_zones import FUNCTIONS_OF_ZONES, ZONE_FUNCTIONS
from dagster_delta.sql.functions.whitelist import WHITELIST
from dagster_delta.sql.text_columns import FUNCTIONS_OF_TEXT
from dagster_delta.sql.typed import Call, Cast, Column, Literal, Refused, Typed, types_of, walk
from dagster_delta.sql.types import (
    DATE,
    TIMESTAMP,
    TIMESTAMP_NTZ,
    VARIANT,
    holds_values,
    is_primitive,
)

if TYPE_CHECKING:
    import duckdb

# Guards repeat their operand, so nested ones grow fast; no filter written by hand is so long.
_MAX_SQL_LENGTH = 1_000_000

_Setting: TypeAlias = str | bool | int | float | list[str]
_SEALED: Mapping[str, _Setting] = {
    "enable_external_access": False,
    "autoinstall_known_extensions": False,
    "autoload_known_extensions": False,
    "python_enable_replacements": False,
}

REGISTERED = "temp.main"
"""Schema of registered inputs: a name qualified by it is never a CTE."""

# How DuckDB reports an error raised by one of our functions.
_PYTHON_ERROR = re.compile(r"executing the UDF: (\w+): (.*)")


def open_database(
    directory: str, memory_bytes: int, **settings: _Setting
) -> duckdb.DuckDBPyConnection:
    """A DuckDB in memory that reads only registered inputs: no file, network or variable. Times are
    in UTC.

    Args:
        directory: where it puts what sorts, joins and aggregates cannot hold in memory.
        memory_bytes: how much it holds in memory.
        settings: further ones of DuckDB; they cannot be changed later.
    """
    import duckdb

    limits = {"temp_directory": directory, "memory_limit": f"{memory_bytes}B"}
    connection = duckdb.connect(":memory:", config={**_SEALED, **limits, **settings})
    connection.execute("SET TimeZone = 'UTC'")
    connection.execute("SET lock_configuration = true")
    return connection


class DuckDbEvaluator:
    """One typed expression, ready to be computed for many batches."""

    def __init__(self, expression: Typed) -> None:
        """Raise early for expressions that cannot be computed."""
        self._inputs: dict[tuple[str, ...], tuple[str, DataType]] = {}
        for node in walk(expression):
            if isinstance(node, Column) and node.path not in self._inputs:
                self._inputs[node.path] = (f"c{len(self._inputs)}", node.data_type)
        self._sql = f"SELECT {self._render(expression)} AS r FROM batch"
        self._calls_python = any(map(_calls_python, walk(expression)))
        if expression.data_type is None:
            raise UnsupportedExpression("the expression has no type; use the Spark engine")
        self._result_type = to_arrow_type(expression.data_type)

    def evaluate(
        self, columns: Mapping[tuple[str, ...], pa.Array | pa.ChunkedArray], num_rows: int
    ) -> pa.ChunkedArray:
        """The results as a pa.ChunkedArray of the expression's type.

        `num_rows`: number of rows, for expressions without columns.
        """
        import duckdb

        inputs = {"row": pa.nulls(num_rows, pa.int8())}
        for path, (name, data_type) in self._inputs.items():
            inputs[name] = duckdb_input(columns[path], data_type)
        try:
            with _borrow_connection(with_python=self._calls_python) as connection:
                result = self._run_sql(connection, pa.table(inputs))
        except duckdb.OutOfMemoryException as error:
            raise UnsupportedExpression(
                f"the embedded engine has no memory for the expression "
                f"({str(error).splitlines()[0]}): make its texts shorter, or use the Spark engine"
            ) from error
        except duckdb.Error as error:
            problem = str(error).splitlines()[0]
            if in_python := _PYTHON_ERROR.search(problem):
                problem = in_python[2]
                if in_python[1] == UnsupportedExpression.__name__:
                    raise UnsupportedExpression(problem) from error
            raise InvalidArgument(f"the expression fails on a value: {problem}") from error
        return _to_arrow(result, self._result_type)

    def _run_sql(self, connection: duckdb.DuckDBPyConnection, batch: pa.Table) -> pa.ChunkedArray:
        connection.register("batch", batch)
        try:
            return connection.sql(self._sql).to_arrow_table().column(0)
        finally:
            connection.unregister("batch")

    def _render(self, node: Typed) -> str:
        match node:
            case Column(path):
                return self._inputs[path][0]
            case Literal(value, data_type):
                return _literal_sql(value, data_type)
            case Cast(child, data_type):
                source = types_of([child])[0]
                is_calendar = _reads_calendar(source, data_type)
                operand = self._render_of_calendar(child) if is_calendar else self._render(child)
                return cast_sql(operand, source, data_type)
            case Call("and" | "or", arguments) if any(map(_may_raise, arguments[1:])):
                return self._render_shielded(node)
            case Call(name, arguments):
                render = self._render_of_calendar if name in _DATE_CALLS else self._render
                sql = WHITELIST[name].render(node, [render(argument) for argument in arguments])
                if len(sql) > _MAX_SQL_LENGTH:
                    raise UnsupportedExpression(
                        "the expression is nested too deeply for the embedded engine: "
                        "simplify it, or use the Spark engine"
                    )
                return sql
            case Refused(construct, remedy=remedy):
                raise UnsupportedExpression(
                    f"the embedded engine does not support {construct}: {remedy}"
                )

    def _render_of_calendar(self, operand: Typed) -> str:
        """An operand of a call or cast that reads the calendar, checked if it is a date or time."""
        sql = self._render(operand)
        match operand:
            case Literal():
                return sql
            case Call(name) if name in _CHECKED_DATES:
                return sql
            case Cast(child, data_type) if _reads_calendar(child.data_type, data_type):
                return sql
        return _reject_infinite(sql) if operand.data_type in _CALENDAR_TYPES else sql

    def _render_shielded(self, node: Call) -> str:
        """AND and OR that evaluate an operand only if the earlier ones do not decide the result.

        DuckDB computes all operands for all rows, so that `b <> 0 AND a / b > 1` would fail.
        """
        operands = [self._render(argument) for argument in node.arguments]
        decided = "FALSE" if node.name == "and" else "TRUE"
        tests = "".join(
            f" WHEN {operand} IS NOT DISTINCT FROM {decided} THEN {decided}"
            for operand in operands[:-1]
        )
        plain = WHITELIST[node.name].render(node, operands)
        return f"CASE{tests} ELSE {plain} END"


_CALENDAR_TYPES = (DATE, TIMESTAMP, TIMESTAMP_NTZ)
_DATE_CALLS = frozenset({*DATE_FUNCTIONS, *ZONE_FUNCTIONS, "date +", "date -"})
_CHECKED_DATES = frozenset({"date +", "date -", "interval shift", "trunc", "date_trunc"})
"""Calls that make a date or time of another one, which they check."""


def _reject_infinite(operand: str) -> str:
    """DuckDB SQL of a date or time that fails for the two values that DuckDB reads as infinite: the
    greatest of the type, and its negative. To Spark they are days and times like any other.
    """
    refused = raising("dates and times at the end of their range: use the Spark engine")
    return f"CASE WHEN isinf({operand}) THEN {refused} ELSE {operand} END"


def _reads_calendar(source: DataType | None, target: DataType) -> bool:
    """Whether a cast depends on the calendar: times with and without a zone are the same number."""
    if source not in _CALENDAR_TYPES or source is None:
        return False
    return cast_kind(source) != cast_kind(target)


def _calls_python(node: Typed) -> bool:
    if isinstance(node, Cast):
        return reads_text(types_of([node.child])[0], node.data_type)
    return isinstance(node, Call) and node.name in ZONE_FUNCTIONS


def _may_raise(node: Typed) -> bool:
    for part in walk(node):
        if isinstance(part, Call) and WHITELIST[part.name].may_raise:
            return True
        if isinstance(part, Cast):
            source = part.child.data_type
            if source is None or cast_may_raise(source, part.data_type):
                return True
    return False


def _literal_sql(value: object, data_type: DataType) -> str:
    target = duckdb_type(data_type)
    match value:
        case None:
            return f"CAST(NULL AS {target})"
        case bool():
            return "TRUE" if value else "FALSE"
        case str():
            if "\0" not in value:
                return _quote_text(value)
            return f"({' || chr(0) || '.join(map(_quote_text, value.split(chr(0))))})"
        case bytes():
            return f"from_hex('{value.hex()}')"
        case float():
            text = "nan" if math.isnan(value) else repr(value)
            return f"CAST('{text}' AS {target})"
        case dt.datetime():
            return f"CAST('{value.replace(tzinfo=None).isoformat(' ')}' AS {target})"
        case Decimal():
            return f"CAST('{value:f}' AS {target})"
        case int() | dt.date():
            return f"CAST('{value}' AS {target})"
    raise UnsupportedExpression(f"a constant of type {data_type}; use the Spark engine")


def _quote_text(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


def duckdb_input(
    values: pa.Array | pa.ChunkedArray, data_type: DataType
) -> pa.Array | pa.ChunkedArray:
    """A column in the form for the SQL; one with variants is only marked null or not null."""
    values = whole_array(values)
    if data_type == VARIANT:
        return values.cast(VARIANT_STORAGE)
    if not is_primitive(data_type) and holds_values(data_type):
        # Arrow refuses to cast a null struct whose fields are not null.
        nullable = as_nullable(data_type)
        return values.cast(to_arrow_type(nullable)).cast(to_arrow_type(_without_zones(nullable)))
    if not is_primitive(data_type):
        return pc.if_else(pc.is_null(values), null_scalar(pa.bool_()), TRUE)
    target = to_arrow_type(data_type)
    if pa.types.is_null(target):
        return values.cast(pa.int32())
    if values.type != target:
        values = values.cast(target)
    if pa.types.is_timestamp(target) and target.tz is not None:
        return values.view(pa.int64()).view(pa.timestamp("us"))
    return values


def comparable_input(values: pa.Array | pa.ChunkedArray, data_type: DataType) -> pa.Array:
    """A column in a form for which the SQL's equality and order are the same as Spark's."""
    found = duckdb_input(values, data_type)
    # Minus zero equals zero, but its hash differs.
    if not pa.types.is_floating(found.type):
        return found
    return pc.add(found, column_of([0.0], found.type)[0])


def input_type(data_type: DataType) -> pa.DataType:
    """The `pyarrow.DataType` of columns of a type in those forms."""
    return duckdb_input(pa.nulls(0, to_arrow_type(data_type)), data_type).type


def _without_zones(data_type: DataType) -> DataType:
    """The type with timestamps as microseconds of UTC."""
    inner = [*map(_without_zones, inner_types(data_type))]
    return TIMESTAMP_NTZ if data_type == TIMESTAMP else with_inner_types(data_type, inner)


def _to_arrow(result: pa.ChunkedArray, target: pa.DataType) -> pa.ChunkedArray:
    if result.type == target:
        return result
    if pa.types.is_null(target):
        return pa.chunked_array([pa.nulls(len(result))])
    if pa.types.is_timestamp(target):
        return result.cast(pa.timestamp("us")).cast(pa.int64()).cast(target)
    return result.cast(target)


_IDLE: dict[tuple[int, bool], list[duckdb.DuckDBPyConnection]] = {}
"""Connections that no thread uses, by process and whether they have functions in Python. A forked
child neither uses nor drops what it inherits, and no connection is ever dropped: if one of DuckDB's
own threads did (in a merge, these evaluate expressions), the process would crash."""


@contextmanager
def _borrow_connection(*, with_python: bool) -> Iterator[duckdb.DuckDBPyConnection]:
    idle = _IDLE.setdefault((os.getpid(), with_python), [])
    try:
        connection = idle.pop()
    except IndexError:
        connection = _open_connection(with_python=with_python)
    try:
        yield connection
    finally:
        idle.append(connection)


def _open_connection(*, with_python: bool) -> duckdb.DuckDBPyConnection:
    import duckdb

    connection = duckdb.connect(":memory:", config={**_SEALED, "threads": 1})
    if with_python:
        # Its signature requires enumerations, and lists of one invariant type.
        create: Callable[..., object] = connection.create_function
        for name, compute, parameters, result in (*FUNCTIONS_OF_TEXT, *FUNCTIONS_OF_ZONES):
            create(name, compute, parameters, result, type="arrow", null_handling="special")
    # Rewrites could move a failing operand out of the CASE that shields it.
    connection.execute("PRAGMA disable_optimizer")
    connection.execute("SET lock_configuration = true")
    return connection
