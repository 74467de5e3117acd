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
    OnError,
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
        rows = pa.RecordBatch.from_arrays(columns, schema=self.schema(batch.schema))
        filled = Filled(rows, converted, self.change.on_error)
        if self._checks:
            self._check(batch, filled)
        return filled

    def _check(self, batch: pa.RecordBatch, filled: Filled) -> None:
        columns = list(batch.columns)
        columns[self._position] = filled.converted.values
        rows = pa.RecordBatch.from_arrays(columns, names=list(self._published.names))
        # A value that cannot be converted is null here, and is already counted as a problem.
        counted = np.zeros(len(rows), dtype=bool)
        counted[filled.stopping_rows] = True
        for name, check in self._checks:
            passes = check.convert(rows.to_struct_array()).values.fill_null(False)
            fails = np.asarray(pc.invert(passes))
            broken = np.flatnonzero(fails & ~counted).tolist()
            counted |= fails
            filled.num_broken += len(broken)
            for row in broken[: MAX_EXAMPLES - len(filled.broken)]:
                value = columns[self._position][row].as_py()
                filled.broken.append(f"{value!r} breaks {name}")


@dataclass(slots=True)
class Filled:
    """Rows with the shadow, and the problems that stop the change."""

    batch: pa.RecordBatch
    """`pyarrow.RecordBatch` with the shadow."""
    converted: Converted
    on_error: OnError
    num_broken: int = 0
    """Number of converted rows that violate a check under the new type; each counts once."""
    broken: list[str] = field(default_factory=list)
    """The first few of them, as text."""

    @property
    def stopping_rows(self) -> NDArray[np.intp]:
        """Positions of the rows whose value must be converted but cannot be: a
        `numpy.ndarray`.
        """
        rows = self.converted.failed_rows
        return rows if self.on_error == "abort" else rows[:0]

    @property
    def num_problems(self) -> int:
        """Rows that stop the change; each counts once."""
        return self.num_broken + len(self.stopping_rows)

    def problems(self) -> list[str]:
        """The first few rows that stop the change: the value and its problem."""
        failed = self.converted.examples if self.on_error == "abort" else []
        return [*(f"{value} cannot be converted" for value in failed), *self.broken][:MAX_EXAMPLES]


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
