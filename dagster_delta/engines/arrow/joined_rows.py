"""Rows of several sources, such as a frame for each part of a slice, as rows of one schema."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

import pyarrow as pa

import dagster_delta.arrow_compute as pc
from dagster_delta.engines.data_input import RepeatableRows, is_in_memory, to_reader, to_rows
from dagster_delta.errors import MAX_EXAMPLES, PartitionMismatch, SchemaMismatch
from dagster_delta.nested_arrays import inner_fields
from dagster_delta.parquet.store_assignment import assign_batches
from dagster_delta.protocol.schema import StructType
from dagster_delta.protocol.values.arrow_schema import from_arrow_schema
from dagster_delta.python_values import python_rows
from dagster_delta.sql.expressions import SqlExpression

_ONE_TYPE = (
    "cast its columns to one type in all frames (pandas has floating point numbers for integers "
    "with nulls)"
)


def rows_of_parts(
    frames: Mapping[str, object], condition_of: Callable[[str, StructType], SqlExpression]
) -> RepeatableRows | pa.RecordBatchReader:
    """The rows of all frames, read one frame at a time. Each row is checked, when it is read, to be
    in the part that has the frame's name.

    Args:
        frames: rows by the name of a part, in any form that `to_reader` takes.
        condition_of: from the name of a part, and the schema of all rows, to the condition that
            holds for the rows of the part.

    Raises:
        InvalidArgument: a value without rows.
        SchemaMismatch: the frames have other columns, or no types hold the values of all; also
            while the rows are read.
        PartitionMismatch: while they are read: a row is outside of its part.
    """
    rows = {part: to_rows(frame) for part, frame in frames.items()}
    schemas = {part: to_reader(data).schema for part, data in rows.items()}
    # An empty frame may have no columns.
    joined = _frames_schema({part: schema for part, schema in schemas.items() if len(schema)})
    schema = from_arrow_schema(joined)

    def batches() -> Iterator[pa.RecordBatch]:
        for part, data in rows.items():
            if len(schemas[part]):
                inside = condition_of(part, schema)
                for batch in _cast_exactly(part, to_reader(data), joined):
                    _check_part(part, batch, inside)
                    yield batch

    repeatable = RepeatableRows(
        joined, lambda: pa.RecordBatchReader.from_batches(joined, batches())
    )
    return repeatable if all(map(is_in_memory, rows.values())) else repeatable.open()


def _check_part(part: str, batch: pa.RecordBatch, condition: SqlExpression) -> None:
    """Refuse rows outside of a part; only the columns of its condition are cast."""
    names = {path[0] for path in condition.references}
    schema = StructType(tuple(field for field in condition.schema if field.name in names))
    given = batch.select([field.name for field in schema])
    reader = pa.RecordBatchReader.from_batches(given.schema, [given])
    start = 0
    for keys in assign_batches(reader, schema, table=f"the frame of {part}"):
        inside = pc.fill_null(condition.evaluate_filter(keys), fill_value=False)
        if not pc.all(inside, min_count=0).as_py():
            # One by one, as views have no kernel that takes some.
            outside = pc.indices_nonzero(pc.invert(inside)).slice(0, MAX_EXAMPLES).to_pylist()
            rows = (python_rows(batch.slice(start + place, 1)) for place in outside)
            raise PartitionMismatch(
                f"there are rows for the part {part} that are not in it, as "
                f"{condition.sql} does not hold for them",
                examples=tuple(repr(row) for (row,) in rows),
            )
        start += keys.num_rows


def _frames_schema(schemas: Mapping[str, pa.Schema]) -> pa.Schema:
    """The columns of all frames, with types that hold the values of each."""
    for part, schema in schemas.items():
        first = next(iter(schemas))
        if differing := set(schemas[first].names) ^ set(schema.names):
            raise SchemaMismatch(
                f"the frames have different columns: {', '.join(sorted(differing))} is in one of "
                f"{first} and {part} only"
            )
    frames = {_frame(part): schema for part, schema in schemas.items()}
    return joined_schema(frames, advice=_ONE_TYPE)


def joined_schema(schemas: Mapping[str, pa.Schema], *, advice: str) -> pa.Schema:
    """The columns of all sources of rows, by their name, with types that hold the values of each.

    Raises:
        SchemaMismatch: there are no such types.
    """
    joined = pa.schema([])
    for source, schema in schemas.items():
        try:
            joined = pa.unify_schemas([joined, schema], promote_options="permissive")
        except pa.ArrowException as error:
            raise SchemaMismatch(
                f"the columns of {source} have other types than those of others ({error}): {advice}"
            ) from error
    for source, schema in schemas.items():
        for column in schema:
            kind = joined.field(column.name).type
            if _rounds(column.type, kind):
                raise _rounding(source, f"{column.name} has the type {column.type}", advice)
    return joined


def _rounds(given: pa.DataType, joined: pa.DataType) -> bool:
    """Whether decimals in a type become floating point numbers: Arrow rounds them without an
    error.
    """
    if not pa.types.is_nested(given):
        return bool(pa.types.is_decimal(given) and pa.types.is_floating(joined))
    inner = inner_fields(joined)
    if pa.types.is_struct(given):
        # The joined struct may have more fields.
        by_name = {field.name: field for field in inner}
        inner = [by_name[field.name] for field in given]
    pairs = zip(inner_fields(given), inner, strict=True)
    return any(_rounds(before.type, after.type) for before, after in pairs)


def _cast_exactly(
    part: str, reader: pa.RecordBatchReader, joined: pa.Schema
) -> Iterator[pa.RecordBatch]:
    """The frame in the common types, with an error for values that would be rounded."""
    for batch in reader:
        try:
            yield batch.select(joined.names).cast(joined)
        except pa.ArrowException as error:
            raise _rounding(_frame(part), str(error), _ONE_TYPE) from error


def _frame(part: str) -> str:
    return f"the frame for {part}"


def _rounding(source: str, cause: str, advice: str) -> SchemaMismatch:
    return SchemaMismatch(
        f"{source} has other types than others, which would round its values ({cause}): {advice}"
    )
