"""Finds the rows that are not the latest of their key, on the embedded engine.

Keys and order are sorted by an embedded SQL engine, which spills to disk if memory is short.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pyarrow as pa

from dagster_delta.engines.arrow.predicate_matching import bitmap_of, rows_by_file
from dagster_delta.engines.memory_budget import MemoryBudget
from dagster_delta.engines.plans import OlderRows, ReadPlan
from dagster_delta.errors import MAX_EXAMPLES
from dagster_delta.nested_arrays import numbers_of
from dagster_delta.parquet.data_file_reader import FILE_ORDINAL, ROW_INDEX
from dagster_delta.parquet.opened_file import data_files
from dagster_delta.parquet.reader import plan_reader, read_ahead
from dagster_delta.protocol.values.arrow_columns import whole_array
from dagster_delta.sql.duckdb_sql import comparable_input, input_type, open_database
from dagster_delta.storage.scratch import scratch_directory

_OLDER = """CREATE TEMP TABLE older AS SELECT * FROM (
    SELECT *, row_number() OVER (PARTITION BY {keys} ORDER BY {order}, f DESC, r DESC) AS turn,
        rank() OVER (PARTITION BY {keys} ORDER BY {order}) AS place
    FROM given
) WHERE turn > 1"""


def find_older(plan: ReadPlan, keys: Sequence[str], order_by: Sequence[str]) -> OlderRows:
    """The live rows with a later row of the same key. Raises as `Engine.find_older` says."""
    names = [*keys, *order_by]
    types = [plan.configuration.schema.field(name).data_type for name in names]
    fields = [pa.field("f", pa.int32()), pa.field("r", pa.int64())]
    fields += [pa.field(f"c{index}", input_type(kind)) for index, kind in enumerate(types)]
    chosen = list(dict.fromkeys(names))
    reader = plan_reader(plan, chosen)
    sources = reader.sources(data_files(plan.files))

    def inputs() -> Iterator[pa.RecordBatch]:
        for batch in read_ahead(plan.store, sources, files=plan.files):
            values = map(comparable_input, map(batch.column, names), types)
            arrays = [batch.column(FILE_ORDINAL), batch.column(ROW_INDEX), *values]
            yield pa.RecordBatch.from_arrays(arrays, schema=pa.schema(fields))

    columns = [f"c{index}" for index in range(len(names))]
    order = ", ".join(f"{column} DESC NULLS LAST" for column in columns[len(keys) :])
    by_key = ", ".join(columns[: len(keys)])
    memory_bytes = MemoryBudget.of(None).join_bytes
    with (
        scratch_directory("delta-latest-") as directory,
        open_database(directory, memory_bytes, preserve_insertion_order=False) as connection,
    ):
        given = pa.RecordBatchReader.from_batches(pa.schema(fields), inputs())
        connection.register("given", given)
        connection.execute(_OLDER.format(keys=by_key, order=order))
        found = connection.sql("SELECT f, r FROM older ORDER BY f, r").to_arrow_table()
        ties = connection.sql(f"SELECT {by_key} FROM older WHERE place = 1")
        num_ties = ties.count("*").fetchall()[0][0]
        examples = ties.limit(MAX_EXAMPLES).fetchall()
    ordinals, rows = (numbers_of(whole_array(found[name])) for name in ("f", "r"))
    paths = plan.files["path"]
    older = {
        paths[ordinal].as_py(): bitmap_of(some) for ordinal, some in rows_by_file(ordinals, rows)
    }
    return OlderRows(older, num_ties, tuple(map(str, examples)))
