"""Keeps the ids of rows that move to other files.

Spec: Row Tracking (writer requirements).
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec
import pyarrow as pa
from msgspec.structs import replace
from pyroaring import BitMap64

import dagster_delta.arrow_compute as pc
from dagster_delta.engines.footers import count_live_rows
from dagster_delta.engines.plans import ReadPlan, RowRewrite, WriteSpec
from dagster_delta.protocol.features.row_tracking import (
    MaterializedColumns,
    carried_columns,
    tracked_configuration,
)
from dagster_delta.protocol.features.table_configuration import TableConfiguration
from dagster_delta.protocol.values.arrow_columns import boolean_column


def keep_row_ids(plan: ReadPlan, spec: WriteSpec) -> tuple[ReadPlan, WriteSpec]:
    """The read plan and write spec for rows that only move, so that they keep their ids.

    The rows that an engine reads by this plan have two more columns at the end: their id and the
    version of their last change. Written by this spec, through whatever sorts or joins them, they
    keep both:

        plan, spec = keep_row_ids(plan, spec)
        written = engine.write(engine.read(plan), spec, store=store)
        transaction.stage_written(written.files)
        transaction.declare_row_ids_kept()

    Both are returned unchanged if the table does not track rows, so callers need not check.

    `plan`: files (with all columns of LIVE_FILE_SCHEMA) and columns of the table.

    Raises:
        InvalidTable: row tracking is enabled, and the table does not name the columns.
    """
    with_ids = read_row_ids(plan)
    if with_ids is plan:
        return plan, spec
    return with_ids, replace(spec, configuration=tracked_configuration(spec.configuration))


def read_row_ids(plan: ReadPlan) -> ReadPlan:
    """The read plan of `keep_row_ids` alone. Raises as that does."""
    tracked = tracked_configuration(plan.configuration)
    if tracked is plan.configuration:
        return plan
    carried = tracked.schema.names[len(plan.configuration.schema) :]
    return replace(plan, configuration=tracked, columns=(*plan.columns, *carried))


def remaining_rows(
    target: ReadPlan, data: WriteSpec, rows: Mapping[str, BitMap64]
) -> RowRewrite | None:
    """The rewrite of the other rows of changed files, for copy-on-write; they keep their ids.

    None if no row remains, or if deletion vectors hide the changed rows.

    `rows`: indexes of the changed rows by path of the file, as in the log.
    """
    if target.configuration.deletion_vectors_enabled or not rows:
        return None
    is_changed = boolean_column([path in rows for path in target.files["path"].to_pylist()])
    files = pc.filter(target.files, is_changed)
    counts = zip(files["path"].to_pylist(), count_live_rows(target.store, files), strict=True)
    files = pc.filter(files, boolean_column([count > len(rows[path]) for path, count in counts]))
    if not files.num_rows:
        return None
    source = ReadPlan(
        store=target.store,
        version=target.version,
        configuration=target.configuration,
        files=files,
        columns=target.columns,
    )
    source, tracked = keep_row_ids(source, data)
    return RowRewrite(source, rows, (), keeps_rest=True, data=tracked)


class CarriedIds(msgspec.Struct, frozen=True):
    """The ids that rows carry when the rows change; empty if they carry none."""

    num_table_columns: int
    """Columns of the rows before the carried ones."""
    columns: MaterializedColumns | None
    """The carried columns; None if rows carry no ids."""

    @classmethod
    def of(cls, configuration: TableConfiguration) -> CarriedIds:
        """The carried ids of rows that are read with a configuration."""
        columns = carried_columns(configuration)
        if columns is None:
            return cls(len(configuration.schema), None)
        return cls(len(configuration.schema) - len(columns.names), columns)

    @property
    def version_column(self) -> str | None:
        """The column with the version of the last change; None if rows carry none."""
        return None if self.columns is None else self.columns.row_commit_version

    def of_table(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """A `pyarrow.RecordBatch` of the table's own columns."""
        if self.columns is None:
            return rows
        return rows.select(list(range(self.num_table_columns)))

    def as_changed(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """The rows of a `pyarrow.RecordBatch` as they are after a change: the id stays, and the
        version becomes that of the commit.
        """
        if self.version_column is None:
            return rows
        index = rows.schema.get_field_index(self.version_column)
        return rows.set_column(index, rows.schema.field(index), pa.nulls(rows.num_rows, pa.int64()))

    def as_new(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """A `pyarrow.RecordBatch` of the table's own columns as rows that get new ids."""
        if self.columns is None:
            return rows
        nothing = [pa.nulls(rows.num_rows, pa.int64())] * len(self.columns.names)
        fields = [pa.field(name, pa.int64()) for name in self.columns.names]
        return pa.RecordBatch.from_arrays(
            [*rows.columns, *nothing], schema=pa.schema([*rows.schema, *fields])
        )
