"""Which partitions of a run have rows already, for the mode `ignore`."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from dagster_delta.orchestration.partitions.partitions import PartitionSelection, single_partitions
from dagster_delta.orchestration.partitions.predicates import partition_predicate
from dagster_delta.protocol.schema import StructType
from dagster_delta.protocol.values.arrow_schema import to_arrow_schema

if TYPE_CHECKING:
    from dagster_delta.table.read.snapshot import Snapshot


def split_existing(
    selection: PartitionSelection, table: Snapshot
) -> tuple[PartitionSelection, PartitionSelection]:
    """The partitions that have rows in a table, and those that have none."""
    existing: list[PartitionSelection] = []
    missing: list[PartitionSelection] = []
    for partition in single_partitions(selection).values():
        found = table.scan(where=partition_predicate(partition, table.schema)).count()
        (existing if found else missing).append(partition)
    return _joined(existing), _joined(missing)


def rows_outside(data: Any, partitions: PartitionSelection, schema: StructType) -> object:  # noqa: ANN401
    """The rows that are in none of some partitions: of a Spark frame as a Spark frame, of a
    `pa.RecordBatchReader` as another. `schema` is that of the rows.
    """
    predicate = partition_predicate(partitions, schema)
    if not isinstance(data, pa.RecordBatchReader):
        return data.where(f"NOT coalesce({predicate}, false)")
    return pa.RecordBatchReader.from_batches(
        to_arrow_schema(schema), _batches_outside(data, predicate, schema)
    )


def _batches_outside(
    reader: pa.RecordBatchReader, predicate: str, schema: StructType
) -> Iterator[pa.RecordBatch]:
    from dagster_delta.parquet.store_assignment import assign_batches
    from dagster_delta.sql.evaluation import evaluate_filter
    from dagster_delta.sql.filters import parse_filter
    from dagster_delta.sql.time_zone import UTC

    condition = parse_filter(predicate, schema, dt.datetime.now(dt.UTC), UTC)
    for batch in assign_batches(reader, schema, table="the rows of the run"):
        inside = pc.fill_null(evaluate_filter(condition, batch), fill_value=False)
        yield batch.filter(pc.invert(inside))


def _joined(parts: Sequence[PartitionSelection]) -> PartitionSelection:
    keys = tuple(sorted(key for part in parts for key in part.keys))
    return PartitionSelection(keys, tuple(box for part in parts for box in part.boxes))
