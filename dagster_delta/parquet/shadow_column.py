"""The converted column that data files carry while a column changes its type online."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dagster_delta.errors import UnsupportedExpression
from dagster_delta.parquet.plans import WriteSpec
from dagster_delta.parquet.value_conversion import (
    MAX_EXAMPLES,
    Converted,
    ValueConversion,
    convert_at,
    value_conversion,
)
from dagster_delta.protocol.features.column_change import (
    COLUMN_CHANGE_TAG,
    ColumnChange,
    field_at,
    filled_configuration,
    published_schema,
    shadow_name,
)
from dagster_delta.protocol.features.table_configuration import TableConfiguration
from dagster_delta.protocol.schema import StructField, StructType
from dagster_delta.protocol.values.arrow_columns import whole_array
from dagster_delta.protocol.values.arrow_schema import to_arrow_schema, to_arrow_type
from dagster_delta.sql.evaluation import evaluate
from dagster_delta.sql.expressions import parse_expression
from dagster_delta.sql.types import sql_type_name

if TYPE_CHECKING:
    from numpy.typing import NDArray


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
        self._convert = _conversion(change, schema, source)
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
            self._check(pa.RecordBatch.from_arrays(columns, names=names), failing, filled)
        return filled

    def _check(self, rows: pa.RecordBatch, failing: NDArray[np.bool_], filled: Filled) -> None:
        for name, check in self._checks:
            passes = check.convert(rows.to_struct_array()).values.fill_null(False)
            fails = np.asarray(pc.invert(passes))
            broken = np.flatnonzero(fails & ~failing).tolist()
            failing |= fails
            filled.num_problems += len(broken)
            for row in broken[: MAX_EXAMPLES - len(filled.problems)]:
                value = rows.column(self._position)[row].as_py()
                filled.problems.append(f"{value!r} breaks {name}")


@dataclass(slots=True)
class Filled:
    """Rows with the shadow, and the problems that stop the change."""

    batch: pa.RecordBatch
    """`pyarrow.RecordBatch` with the shadow."""
    num_nulled: int
    """Values that could not be converted, and are null."""
    num_problems: int = 0
    """Rows that stop the change, as they cannot be converted or violate a check under the new type;
    each counts once."""
    problems: list[str] = field(default_factory=list)
    """The first few of them: the value and its problem."""


def _conversion(
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
    arrow_type = to_arrow_type(target)

    def convert(rows: pa.StructArray) -> pa.Array:
        values = whole_array(evaluate(expression, pa.RecordBatch.from_struct_array(rows)))
        return values if values.type == arrow_type else values.cast(arrow_type)

    return ValueConversion(convert, arrow_type)


def _check_of_rows(sql: str, schema: StructType) -> ValueConversion:
    """A check over whole rows, as structs; a row for which it raises does not pass."""
    expression = parse_expression(sql, schema)
    expression.check_filter()
    expression.check_embeddable()
    return ValueConversion(
        lambda rows: whole_array(evaluate(expression, pa.RecordBatch.from_struct_array(rows))),
        pa.bool_(),
    )
