"""Changes of versions that did not record them: the rows of removed and of added files, without
those that only moved from one file to another.

Rows are counted as a multiset by an embedded SQL engine, which spills to disk if memory is short.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import numpy as np
import pyarrow as pa

import dagster_delta.arrow_compute as pc
from dagster_delta.engines.memory_budget import MemoryBudget
from dagster_delta.engines.statements.source_buffer import SourceRows
from dagster_delta.protocol.features.change_data import CHANGE_TYPE_COLUMN
from dagster_delta.protocol.schema import DataType, StructType
from dagster_delta.protocol.values.arrow_columns import string_column
from dagster_delta.protocol.values.arrow_schema import to_arrow_schema, to_arrow_type
from dagster_delta.sql.duckdb_sql import duckdb_input, open_database
from dagster_delta.sql.types import VARIANT, holds_values, is_primitive
from dagster_delta.storage.scratch import scratch_directory


def drop_moved_rows(
    batches: Iterable[pa.RecordBatch], schema: StructType, columns: Sequence[str]
) -> Iterator[pa.RecordBatch]:
    """The deleted and inserted rows of one version that have no equal row of the other kind, as
    often as they are surplus; deleted ones first.

    `batches`: `pyarrow.RecordBatch`es of a schema that has `_change_type`; `columns` of them are
    compared.
    """
    memory = MemoryBudget.of(None)
    with scratch_directory("delta-changes-") as directory:
        reader = pa.RecordBatchReader.from_batches(to_arrow_schema(schema), batches)
        rows = SourceRows(reader, directory, memory_bytes=memory.source_bytes)
        taken = _find_surplus(rows, columns, directory, memory)
        for part in rows.parts(taken, schema.names) if len(taken) else ():
            yield rows.take(taken[part], schema.names)


_SURPLUS = """SELECT abs(balance) AS surplus, CASE WHEN balance < 0 THEN gone ELSE came END AS row
FROM (
    SELECT sum(sign)::BIGINT AS balance, max(n) FILTER (sign < 0) AS gone,
        max(n) FILTER (sign > 0) AS came
    FROM given GROUP BY {keys}
) WHERE balance <> 0"""


def _find_surplus(
    rows: SourceRows, columns: Sequence[str], directory: str, memory: MemoryBudget
) -> np.ndarray:
    """Numbers of the rows that are surplus, ascending, one of equal rows as often as needed."""
    types = [rows.schema.field(name).data_type for name in columns]
    fields = [pa.field("n", pa.int64()), pa.field("sign", pa.int8())]
    fields += [pa.field(f"k{index}", _key_type(kind)) for index, kind in enumerate(types)]
    keys = ", ".join(field.name for field in fields[2:])

    def inputs() -> Iterator[pa.RecordBatch]:
        for start, batch in rows.batches():
            came = pc.equal(batch[CHANGE_TYPE_COLUMN], string_column(["insert"])[0])
            sign = pc.if_else(came, pa.scalar(1, pa.int8()), pa.scalar(-1, pa.int8()))
            numbers = pa.array(np.arange(start, start + batch.num_rows))
            values = map(_key_values, map(batch.column, columns), types)
            yield pa.RecordBatch.from_arrays([numbers, sign, *values], schema=pa.schema(fields))

    memory_bytes = memory.join_bytes
    with open_database(directory, memory_bytes, preserve_insertion_order=False) as connection:
        connection.register("given", pa.RecordBatchReader.from_batches(pa.schema(fields), inputs()))
        found = connection.sql(_SURPLUS.format(keys=keys)).to_arrow_table()
    return np.sort(np.repeat(found["row"].to_numpy(), found["surplus"].to_numpy()))


def _key_values(values: pa.Array, data_type: DataType) -> pa.Array:
    """A column in a form in which the SQL engine groups equal values, and no others."""
    if is_primitive(data_type) or data_type == VARIANT or holds_values(data_type):
        return duckdb_input(values, data_type)
    # Variants, and types without values, inside of others.
    texts = [None if value is None else repr(value) for value in values.to_pylist()]
    return string_column(texts)


def _key_type(data_type: DataType) -> pa.DataType:
    return _key_values(pa.nulls(0, to_arrow_type(data_type)), data_type).type
