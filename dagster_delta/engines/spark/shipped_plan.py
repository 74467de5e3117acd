"""A read plan as Spark sends it to the executors: without files, which come as rows. Nothing here
needs Spark.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa

from dagster_delta.engines.plans import ReadPlan
from dagster_delta.protocol.features.table_configuration import TableConfiguration
from dagster_delta.protocol.log.replay import LIVE_FILE_SCHEMA
from dagster_delta.storage import StoreLocation, open_store

if TYPE_CHECKING:
    from dagster_delta.sql.expressions import SqlExpression


@dataclass(frozen=True, slots=True)
class ShippedPlan:
    """A `ReadPlan` without files, its store by location. Picklable."""

    location: StoreLocation
    version: int
    configuration: TableConfiguration
    columns: tuple[str, ...]
    where: SqlExpression | None = None
    verifies_pages: bool = True

    @classmethod
    def of(cls, plan: ReadPlan) -> ShippedPlan:
        """The plan for rewriting files: all of their rows, whatever its filter, with all checks."""
        return cls(plan.store.location, plan.version, plan.configuration, plan.columns)

    def open(self) -> ReadPlan:
        """The plan on an executor, with its own store and still without files."""
        return ReadPlan(
            open_store(self.location.uri, self.location.options), self.version,
            self.configuration, LIVE_FILE_SCHEMA.empty_table(), self.columns, self.where,
            self.verifies_pages,
        )  # fmt: skip


def encode_table(table: pa.Table) -> bytes:
    """A `pa.Table`, such as the files of a plan, as bytes."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return bytes(sink.getvalue())


def decode_table(data: bytes) -> pa.Table:
    """The `pa.Table` that `encode_table` encoded."""
    return pa.ipc.open_stream(data).read_all()
