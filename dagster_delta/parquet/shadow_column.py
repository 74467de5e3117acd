"""The converted column that data files carry while a column changes its type online.

Values are converted by store assignment if that supports the pair of types, otherwise by the casts
of the SQL engine: both give the result of Spark's ANSI CAST, or fail. A value that fails becomes
null and is counted.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import msgspec
import numpy as np
import pyarrow as pa
from msgspec.structs import replace

import dagster_delta.arrow_compute as pc
from dagster_delta.errors import MAX_EXAMPLES, InvalidArgument, UnsupportedExpression
from dagster_delta.nested_arrays import children_of, index_of, list_numbers, with_children
from dagster_delta.parquet.casts import failing_places, value_cast
from dagster_delta.parquet.plans import WriteSpec
from dagster_delta.protocol.features.column_change import (
    COLUMN_CHANGE_TAG,
    ColumnChange,
    field_at,
    filled_configuration,
    published_schema,
    shadow_name,
)
from dagster_delta.protocol.features.table_configuration import TableConfiguration
from dagster_delta.protocol.schema import (
    DataType,
    StructField,
    StructType,
    fold_name,
    inner_parts,
    inner_types,
)
from dagster_delta.protocol.values.arrow_schema import to_arrow_schema, to_arrow_type
from dagster_delta.python_values import python_value
from dagster_delta.sql.expressions import parse_expression
from dagster_delta.sql.text_columns import text_conversion
from dagster_delta.sql.types import STRING, is_integral, sql_type_name

if TYPE_CHECKING:
    from numpy.typing import NDArray

_EXAMPLE_LENGTH = 200

_Kernel = Callable[[pa.Array], pa.Array]
"""Converts an array of the old type to the new type. Raises ArrowInvalid or InvalidArgument if a
value fails."""

_FAILURES = (pa.ArrowInvalid, InvalidArgument, UnicodeDecodeError)


class ShadowColumn:
    """Adds the converted column after the one that changes, batch by batch.

    `source`: the top-level column that changes, or that has the changing field.

    Raises:
        UnsupportedExpression: values cannot be converted, or rows checked, as in Spark.
        InvalidArgument, SchemaMismatch: the cast or a check does not fit the schema.
    """

    def __init__(self, change: ColumnChange, schema: StructType, source: StructField) -> None:
        self.change = change
        self._source = source
        self._position = schema.fields.index(source)
        self._convert = _make_conversion(change, schema, source)
        self._published = published_schema(schema, change, moves=False)
        self._checks = [(name, _check_of_rows(sql, self._published)) for name, sql in change.checks]

    @classmethod
    def of(cls, configuration: TableConfiguration) -> ShadowColumn | None:
        """The shadow column that a writer of the table must fill in, or None.

        Raises:
            InvalidTable: the mark of the change is damaged.
            UnsupportedExpression, InvalidArgument, SchemaMismatch: see above.
        """
        change = ColumnChange.of(configuration)
        source = None if change is None else change.source(configuration.schema)
        if change is None or source is None:
            return None
        return cls(change, configuration.schema, source)

    def write_spec(self, spec: WriteSpec) -> WriteSpec:
        """The spec to write files with the shadow, tagged as filled."""
        filled = filled_configuration(spec.configuration, self.change)
        assert filled is not None  # noqa: S101  the column was found when this was made
        tags = {**spec.tags, COLUMN_CHANGE_TAG: self.change.id}
        return msgspec.structs.replace(spec, configuration=filled, tags=tags)

    def schema(self, rows: pa.Schema) -> pa.Schema:
        """The `pyarrow.Schema` of the rows with the shadow, for that of the rows without."""
        shadow = replace(self.change.shadow, name=shadow_name(self.change))
        return rows.insert(self._position + 1, to_arrow_schema(StructType((shadow,))).field(0))

    def fill(self, batch: pa.RecordBatch) -> Filled:
        """The rows with the shadow. Raises nothing over a value."""
        converted = self._convert(batch)
        columns = list(batch.columns)
        columns.insert(self._position + 1, converted.values)
        filled = Filled(
            pa.RecordBatch.from_arrays(columns, schema=self.schema(batch.schema)),
            converted.num_failed,
        )
        # A value that cannot be converted is null in the new column, which no check has to see.
        failing = np.zeros(len(batch), dtype=bool)
        if self.change.on_error == "abort":
            failing[converted.failed_rows] = True
            filled.num_problems = len(converted.failed_rows)
            filled.problems += [f"{value} cannot be converted" for value in converted.examples]
        if self._checks:
            columns = list(batch.columns)
            columns[self._position] = converted.values
            names = list(self._published.names)
            self._check_rows(pa.RecordBatch.from_arrays(columns, names=names), failing, filled)
        return filled

    def _check_rows(self, rows: pa.RecordBatch, failing: NDArray[np.bool_], filled: Filled) -> None:
        for name, check in self._checks:
            passes = check.convert(rows.to_struct_array()).values.fill_null(False)
            fails = np.asarray(pc.invert(passes))
            broken = np.flatnonzero(fails & ~failing).tolist()
            failing |= fails
            filled.num_problems += len(broken)
            for row in broken[: MAX_EXAMPLES - len(filled.problems)]:
                value = rows.column(self._position)[row].as_py()
                filled.problems.append(f"{value!r} breaks {name}")


class Filled(msgspec.Struct):
    """Rows with the shadow, and the problems that stop the change."""

    batch: pa.RecordBatch
    """`pyarrow.RecordBatch` with the shadow."""
    num_nulled: int
    """Values that could not be converted, and are null."""
    num_problems: int = 0
    """Rows that stop the change, as they cannot be converted or violate a check under the new type;
    each counts once."""
    problems: list[str] = msgspec.field(default_factory=list)
    """The first few of them: the value and its problem."""


def _make_conversion(
    change: ColumnChange, schema: StructType, source: StructField
) -> Callable[[pa.RecordBatch], Converted]:
    position = schema.fields.index(source)
    steps = change.path[1:]
    old, new = source.data_type, change.shadow.data_type
    if change.cast is not None:
        row_conversion = _cast_of_rows(change, schema)
        return lambda batch: row_conversion.convert(batch.to_struct_array())
    conversion = value_conversion(field_at(source, steps), change.target_type())
    return lambda batch: convert_at(batch.column(position), old, new, steps, conversion)


def _cast_of_rows(change: ColumnChange, schema: StructType) -> ValueConversion:
    """The user's expression over whole rows."""
    target = change.target_type()
    expression = parse_expression(f"CAST(({change.cast}) AS {sql_type_name(target)})", schema)
    try:
        expression.check_embeddable()
    except UnsupportedExpression as error:
        raise UnsupportedExpression(
            f"the cast ({change.cast}) would have to be computed by every writer meanwhile, on "
            f"either engine, and {error.message.removesuffix(': use the Spark engine')}; spell it "
            "by other functions, or convert the values in a column of their own by an update",
            column=".".join(change.path),
        ) from error
    return _of_rows(expression.evaluate)


def _of_rows(evaluate: Callable[[pa.RecordBatch], pa.Array]) -> ValueConversion:
    return ValueConversion(lambda rows: evaluate(pa.RecordBatch.from_struct_array(rows)))


def _check_of_rows(sql: str, schema: StructType) -> ValueConversion:
    """A check over whole rows, as structs; a row for which it raises does not pass."""
    expression = parse_expression(sql, schema)
    expression.check_filter()
    expression.check_embeddable()
    return _of_rows(expression.evaluate_filter)


class Converted(msgspec.Struct):
    """Values of the new type, and the values that could not be converted."""

    values: pa.Array
    """`pyarrow.Array` of the new type; null if a value failed."""
    num_failed: int = 0
    examples: list[str] = msgspec.field(default_factory=list)
    """The first few values that failed, as text."""
    failed_rows: NDArray[np.intp] = msgspec.field(
        default_factory=lambda: np.zeros(0, dtype=np.intp)
    )
    """Positions of the rows with a value that failed: a `numpy.ndarray`, each row once."""


class ValueConversion(msgspec.Struct, frozen=True):
    """Makes new values from old ones, or from whole rows as structs."""

    kernel: _Kernel
    passes: Callable[[pa.Array], pa.BooleanArray] | None = None
    """A quick mask of the values that are likely to succeed; None if there is no such test."""

    def convert(self, array: pa.Array) -> Converted:
        """The values of a `pyarrow.Array`, converted. Raises nothing over a value."""
        try:
            return Converted(self.kernel(array))
        except _FAILURES:
            return self._convert_with_failures(array)

    def _convert_with_failures(self, array: pa.Array) -> Converted:
        rows = np.arange(len(array))
        if self.passes is not None:
            rows = np.flatnonzero(self.passes(array).fill_null(True).to_numpy(zero_copy_only=False))
        likely = array.take(index_of(rows))
        places = failing_places(
            lambda start, stop: self.kernel(likely.slice(start, stop - start)),
            _FAILURES,
            range(len(rows)),
            len(rows),
        )
        good = np.zeros(len(array), dtype=bool)
        good[np.delete(rows, places)] = True
        mask = pa.array(good)
        values = self.kernel(array.filter(mask))
        # The next of the values, and null for one that failed.
        taken = pc.if_else(mask, index_of(np.cumsum(good) - 1), pa.scalar(None, pa.int64()))
        positions = np.flatnonzero(~good)
        examples = [
            repr(python_value(array[int(position)]))[:_EXAMPLE_LENGTH]
            for position in positions[:MAX_EXAMPLES]
        ]
        return Converted(values.take(taken), len(positions), examples, positions)


def value_conversion(source: DataType, target: DataType) -> ValueConversion:
    """The conversion from one atomic type to another."""
    text = text_conversion(target) if source == STRING else None
    if text is not None:
        return ValueConversion(text.convert, text.passes)
    try:
        kernel = value_cast(to_arrow_type(source), target)
    except TypeError:
        kernel = _sql_cast(source, target)
    return ValueConversion(kernel, _make_quick_test(source, target))


def convert_at(
    array: pa.Array,
    old: DataType,
    new: DataType,
    steps: tuple[str, ...],
    conversion: ValueConversion,
) -> Converted:
    """The array with the values at a path below it converted.

    `new`: type of the column after the change: other names below it, the same order.
    `steps`: path below the column; empty for the column itself.
    """
    if not steps:
        return conversion.convert(array)
    names = [fold_name(name) for name, _ in inner_parts(old)]
    if fold_name(steps[0]) not in names:
        raise TypeError(f"{steps[0]} is not part of {old}")
    index, children = names.index(fold_name(steps[0])), children_of(array)
    inner_old, inner_new = inner_types(old)[index], inner_types(new)[index]
    inner = convert_at(children[index], inner_old, inner_new, steps[1:], conversion)
    children[index] = inner.values
    inner.values = with_children(array, children, to_arrow_type(new))
    if not isinstance(old, StructType):
        inner.failed_rows = np.unique(list_numbers(array)[inner.failed_rows])
    return inner


def _sql_cast(source: DataType, target: DataType) -> _Kernel:
    schema = StructType((StructField("value", source),))
    expression = parse_expression(f"CAST(`value` AS {sql_type_name(target)})", schema)
    try:
        expression.check_embeddable()
    except (InvalidArgument, UnsupportedExpression) as error:
        raise UnsupportedExpression(
            f"{sql_type_name(source)} cannot be converted to {sql_type_name(target)} here exactly "
            "as Spark does; give the conversion in `cast`, as a Spark SQL expression, or convert "
            "by way of a string column"
        ) from error
    return lambda array: expression.evaluate(pa.record_batch([array], names=["value"]))


def _make_quick_test(
    source: DataType, target: DataType
) -> Callable[[pa.Array], pa.BooleanArray] | None:
    """A test that rejects most failing values, so that few bisections are needed for the rest."""
    is_number = is_integral(source) or str(source) in ("float", "double")
    if not (is_number and is_integral(target)):
        return None
    arrow_type = to_arrow_type(target)

    def passes(array: pa.Array) -> pa.BooleanArray:
        whole = pc.trunc(array) if pa.types.is_floating(array.type) else array
        return pc.equal(whole.cast(arrow_type, safe=False).cast(whole.type, safe=False), whole)

    return passes
