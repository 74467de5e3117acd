"""A table as the sink of a streaming query: every batch is one commit, exactly once.

Spec: Transaction Identifiers.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from typing import TYPE_CHECKING, Literal

from dagster_delta.engines.spark.session.session import is_connect
from dagster_delta.errors import InvalidArgument
from dagster_delta.table.delta_table import DeltaTable
from dagster_delta.table.operations.write_planning import SchemaMode

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

SinkMode = Literal["append", "overwrite"]

_QUERY_ID = "sql.streaming.queryId"


@dataclass(frozen=True, slots=True)
class DeltaSink:
    """A `foreachBatch` function that writes the batches of a streaming query to a table exactly
    once. Picklable, as Connect needs it.

    Each batch is one commit, which records the id of the query and the number of the batch. A batch
    that is repeated after a crash between the commit and Spark's own bookkeeping is recognized and
    skipped. If the table does not exist, the first batch creates it.

    Examples:
        query = (
            frame.writeStream.option("checkpointLocation", checkpoint)
            .foreachBatch(delta_sink("s3://lake/clicks"))
            .start()
        )

    Args:
        uri: location of the table.
        query_id: name under which batches are recorded. By default it is Spark's own id of the
            query, from the checkpoint. Your own id must change whenever the checkpoint location
            changes: batch numbers then start again, and batches with recorded numbers are skipped.
            Spark Connect does not provide the id.
        mode: `append`, or `overwrite` for queries that output their complete result.
        schema_mode: as for `DeltaTable.append`.
        partition_by: partition columns of a new table.
        properties: table properties of a new table.
        storage_options: credentials and settings of the storage.

    Raises:
        InvalidArgument: the mode is invalid, or the id is empty.
    """

    uri: str | os.PathLike[str]
    _: KW_ONLY
    query_id: str | None = None
    mode: SinkMode = "append"
    schema_mode: SchemaMode = "strict"
    partition_by: Sequence[str] | None = None
    properties: Mapping[str, object] | None = None
    storage_options: Mapping[str, object] | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        if self.mode not in ("append", "overwrite"):
            raise InvalidArgument(f"mode is 'append' or 'overwrite', not {self.mode!r}")
        if self.query_id is not None and not self.query_id.strip():
            raise InvalidArgument(
                "query_id is a name that is not empty; leave it out for Spark's own"
            )

    def __call__(self, frame: DataFrame, batch_id: int) -> None:
        """Commit the rows of a batch, unless the table already has a commit of this batch.

        Raises:
            InvalidArgument: the query cannot be identified.
            As `DeltaTable.append` does.
        """
        table = DeltaTable(self.uri, storage_options=self.storage_options, must_exist=False)
        write = table.append if self.mode == "append" else table.overwrite
        result = write(
            frame,
            schema_mode=self.schema_mode,
            partition_by=self.partition_by,
            idempotency=(self.query_id or _running_query_id(frame), batch_id),
            properties=self.properties,
        )
        if is_connect(frame) and result.skipped:
            # The batch is already committed. A Connect server hangs at the end of a batch whose
            # rows were never read.
            frame.limit(1).collect()


delta_sink = DeltaSink
"""The sink for `foreachBatch`; its arguments are those of `DeltaSink`."""


def _running_query_id(frame: DataFrame) -> str:
    """The id of the streaming query whose batch is being written."""
    found = None
    if not is_connect(frame):
        found = frame.sparkSession.sparkContext.getLocalProperty(_QUERY_ID)
    if not found:
        raise InvalidArgument(
            "Spark does not give the id of the query here, as on Spark Connect or outside of "
            "foreachBatch: pass delta_sink(…, query_id=…) a name that belongs to this query and "
            "its checkpoint location alone"
        )
    return str(found)
