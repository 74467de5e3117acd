"""Converts incoming rows to the columns of a table, as Spark's ANSI store assignment does.

Columns and struct fields are matched by name at every depth, first exactly and then
case-insensitively. Missing nullable ones become null; unknown ones are refused, because dropping
them would lose data. NOT NULL is enforced at every depth.

Spec: Consistency Between Table Metadata and Data Files; Column Invariants.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

import pyarrow as pa

import dagster_delta.arrow_compute as pc
from dagster_delta.errors import (
    MAX_EXAMPLES,
    ConstraintViolation,
    InvalidCast,
    SchemaMismatch,
)
from dagster_delta.parquet.casts import failing_values, value_cast
from dagster_delta.parquet.column_conversion import ColumnConversion, Convert, FieldPlan, Path
from dagster_delta.protocol.schema import DataType, PrimitiveType, StructField, StructType
from dagster_delta.protocol.values.arrow_columns import whole_array
from dagster_delta.protocol.values.arrow_schema import (
    is_marked_variant,
    is_variant_storage,
    to_arrow_schema,
    to_arrow_type,
)
from dagster_delta.protocol.values.arrow_values import null_scalar
from dagster_delta.python_values import python_value
from dagster_delta.sql.types import sql_type_name

MAX_BATCH_ROWS = 131_072
"""Longer batches are split: this bounds the rows cast at once, and their memory."""

# Limit for the size of a dictionary's text when it is repeated in every row.
_CAST_BYTES = 64 * 1024 * 1024

_BINARY = PrimitiveType("binary")
_VARIANT_PARTS = StructType((StructField("value", _BINARY), StructField("metadata", _BINARY)))


def assign_batches(
    source: pa.RecordBatchReader, schema: StructType, *, table: str, is_exact: bool = False
) -> Iterator[pa.RecordBatch]:
    """The rows of `source` as batches of exactly the Arrow form of `schema`.

    `is_exact`: refuse values that lose a part in the type of their column.

    Raises:
        SchemaMismatch: a column is unknown, duplicated, or of a type that cannot be stored.
        InvalidCast: a value does not fit its column.
        ConstraintViolation: a null, or a missing column, where NOT NULL is declared.
    """
    # Plan before the generator first advances, so that the caller gets a schema error at once.
    rules = _StoreAssignment(table, is_exact)
    return _assign_all(source, rules, rules.plan_fields(list(source.schema), schema), schema)


def assign_rows(
    rows: pa.RecordBatch,
    schema: StructType,
    *,
    table: str,
    is_exact: bool = False,
    exact_columns: Collection[str] = (),
) -> pa.RecordBatch:
    """The rows as one batch of exactly the Arrow form of `schema`. Raises as `assign_batches`.

    `exact_columns`: the columns for which `is_exact` holds, if it does not for all.
    """
    reader = pa.RecordBatchReader.from_batches(rows.schema, [rows])
    rules = _StoreAssignment(table, is_exact, exact_columns)
    plans = rules.plan_fields(list(rows.schema), schema)
    assigned = list(_assign_all(reader, rules, plans, schema))
    if len(assigned) == 1:
        return assigned[0]
    whole = pa.Table.from_batches(assigned, to_arrow_schema(schema))
    return pa.RecordBatch.from_arrays(list(map(whole_array, whole.columns)), schema=whole.schema)


def _assign_all(
    source: pa.RecordBatchReader,
    rules: _StoreAssignment,
    fields: list[FieldPlan],
    schema: StructType,
) -> Iterator[pa.RecordBatch]:
    arrow_schema = to_arrow_schema(schema)
    types = enumerate(field.type for field in source.schema)
    encoded = [index for index, kind in types if pa.types.is_dictionary(kind)]
    for whole in source:
        rows_at_once = _rows_at_once([whole.column(index).dictionary for index in encoded])
        for start in range(0, whole.num_rows, rows_at_once):
            batch = whole.slice(start, rows_at_once)
            # Read once: every access to `columns` wraps all of them.
            given = batch.columns
            columns = [plan.values(given, batch.num_rows) for plan in fields]
            for plan, column in zip(fields, columns, strict=True):
                if not plan.is_nullable:
                    rules.check_nulls(plan, column, batch)
            yield pa.RecordBatch.from_arrays(columns, schema=arrow_schema)


def _rows_at_once(dictionaries: list[pa.Array]) -> int:
    """Rows that are cast together, so that repeated values of dictionaries fit into memory."""
    row_bytes = sum(map(_longest_entry, dictionaries))
    return max(1, min(MAX_BATCH_ROWS, _CAST_BYTES // max(1, row_bytes)))


def _longest_entry(dictionary: pa.Array) -> int:
    kind = dictionary.type
    if pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_binary(kind):
        return int(pc.max(pc.binary_length(dictionary)).as_py() or 0)
    return 0 if pa.types.is_primitive(kind) else int(dictionary.nbytes)


class _StoreAssignment(ColumnConversion):
    """Stores given columns in those of a table."""

    def __init__(self, table: str, is_exact: bool, exact_columns: Collection[str] = ()) -> None:
        self._table = table
        self._is_exact = is_exact
        self._exact_columns = exact_columns

    def plan_fields(
        self, source: Sequence[pa.Field], target: StructType, path: Path = ()
    ) -> list[FieldPlan]:
        positions = self._match_names([field.name for field in source], target, path)
        plans = []
        for field in target:
            here, index = (*path, field.name), positions.get(field.name)
            if index is None and not field.nullable:
                column = ".".join(here)
                raise ConstraintViolation(
                    f"column {column} is NOT NULL and the data does not have it: add it",
                    table=self._table,
                    column=column,
                )
            convert = (
                None if index is None else self.plan(source[index].type, field.data_type, here)
            )
            absent = null_scalar(to_arrow_type(field.data_type))
            plans.append(FieldPlan(here, index, absent, convert, field.nullable))
        return plans

    def _match_names(self, names: Sequence[str], target: StructType, path: Path) -> dict[str, int]:
        positions: dict[str, int] = {}
        unknown: list[str] = []
        for index, name in enumerate(names):
            field = target.get(name)
            if field is None:
                unknown.append(".".join((*path, name)))
            elif field.name in positions:
                column = ".".join((*path, field.name))
                raise SchemaMismatch(
                    f"the data holds column {column} twice (names are compared without regard to "
                    "case): rename or drop one",
                    table=self._table,
                    column=column,
                )
            else:
                positions[field.name] = index
        if unknown:
            raise SchemaMismatch(
                f"the table has no column {', '.join(unknown)}: drop it from the data, or add it "
                'to the table with schema_mode="merge"',
                table=self._table,
                column=unknown[0],
            )
        return positions

    def plan_value(self, source: pa.DataType, target: DataType, path: Path) -> Convert | None:
        if target == PrimitiveType("variant"):
            return self._plan_variant(source, path)
        try:
            cast = value_cast(source, target, is_exact=self._is_exact_at(path))
            lossy = value_cast(source, target)
        except TypeError as error:
            raise self.mismatch(source, target, path) from error
        return self._checked_cast(cast, lossy, target, path)

    def _is_exact_at(self, path: Path) -> bool:
        return self._is_exact or path[0] in self._exact_columns

    def _plan_variant(self, source: pa.DataType, path: Path) -> Convert:
        # Imported late: few tables have variants.
        from dagster_delta.parquet.variants import variant_cast, variant_check

        target = PrimitiveType("variant")
        if not is_variant_storage(source):
            try:
                cast = variant_cast(source)
            except TypeError as error:
                raise self.mismatch(source, target, path) from error
            return self._checked_cast(cast, cast, target, path)
        store = self.plan(source, _VARIANT_PARTS, path)
        assert store is not None  # noqa: S101  of a struct
        is_trusted = is_marked_variant(source)
        check = variant_check(table=self._table, column=".".join(path), is_trusted=is_trusted)
        return lambda array: check(store(array))

    def _checked_cast(self, cast: Convert, lossy: Convert, target: DataType, path: Path) -> Convert:
        """The cast, with an error that shows the values that it refuses."""

        def convert(array: pa.Array) -> pa.Array:
            try:
                return cast(array)
            except (pa.ArrowInvalid, UnicodeDecodeError) as error:
                examples = failing_values(array, cast)
                what, remedy = "do not fit", "correct them, or widen the column"
                if self._is_exact_at(path) and not failing_values(array, lossy, limit=1):
                    what = "would lose a part in"
                    remedy = 'round them, or pass schema_mode="merge", which truncates them'
                raise InvalidCast(
                    f"values of column {'.'.join(path)} {what} its type {sql_type_name(target)}: "
                    f"{remedy}",
                    table=self._table,
                    column=".".join(path),
                    examples=tuple(repr(example) for example in examples),
                ) from error

        return convert

    def mismatch(self, source: pa.DataType, target: DataType, path: Path) -> SchemaMismatch:
        column = ".".join(path)
        remedy = "cast it first, or change the type of the column with ALTER TABLE"
        if target == PrimitiveType("void"):
            remedy = 'pass schema_mode="merge", which gives the column the type of the data'
        return SchemaMismatch(
            f"{source} data cannot be stored in column {column} of type {target}: {remedy}",
            table=self._table,
            column=column,
        )

    def check_nulls(self, plan: FieldPlan, values: pa.Array, parent: pa.Array) -> None:
        if not values.null_count:
            return
        is_violation, shown = pc.is_null(values), values
        if isinstance(parent, pa.RecordBatch):
            shown = parent.to_struct_array()
        elif isinstance(parent, pa.StructArray):
            is_violation, shown = pc.and_(is_violation, pc.is_valid(parent)), parent
        positions = pc.indices_nonzero(is_violation)
        if not len(positions):
            return
        column = ".".join(plan.path)
        places = positions.slice(0, MAX_EXAMPLES).to_pylist()
        raise ConstraintViolation(
            f"NOT NULL column {column} would get {len(positions)} null(s): fill them, or drop the "
            "rows",
            table=self._table,
            column=column,
            examples=tuple(repr(python_value(shown[place])) for place in places),
        )


def misfit(column: str, data_type: DataType, examples: Sequence[str], *, table: str) -> InvalidCast:
    """The error for values of an expression that do not fit the column they are set to.

    `examples`: some of the values, as text; the first ones are shown.
    """
    return InvalidCast(
        f"new values of column {column} do not fit its type {sql_type_name(data_type)}: convert "
        "them in the expression or in the source, or leave those rows out",
        table=table,
        column=column,
        examples=tuple(examples[:MAX_EXAMPLES]),
    )
