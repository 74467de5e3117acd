"""Which rows of which files a predicate selects: decided from the log if possible, else by reading.

Spec: Per-file Statistics; Partition Value Serialization; Deletion Vectors.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import msgspec
import pyarrow as pa
from pyroaring import BitMap64

import dagster_delta.arrow_compute as pc
from dagster_delta.engines.engine import Engine
from dagster_delta.engines.plans import ReadPlan
from dagster_delta.protocol.features.table_configuration import TableConfiguration
from dagster_delta.protocol.log.conflict_checker import ReadScope
from dagster_delta.protocol.log.replay import LIVE_FILE_SCHEMA
from dagster_delta.protocol.values.arrow_columns import string_column
from dagster_delta.table.read.file_planner import FilePlanner

if TYPE_CHECKING:
    from dagster_delta.sql.expressions import SqlExpression
    from dagster_delta.table.read.snapshot import Snapshot


class SelectedRows(msgspec.Struct, frozen=True):
    """Live rows of a table version, and what their selection depends on."""

    files: pa.Table
    """Files with at least one selected row, as LIVE_FILE_SCHEMA."""
    rows: Mapping[str, BitMap64]
    """Indexes of the selected rows by path; of a file without an entry every live row is
    selected."""
    reads: ReadScope
    """What a concurrent commit must not have changed."""


def select_rows(snapshot: Snapshot, where: SqlExpression | None, engine: Engine) -> SelectedRows:
    """The live rows that satisfy a predicate.

    A file is not read if the log proves that all of its rows satisfy it, or none.
    """
    if where is None:
        files = snapshot.live_files(LIVE_FILE_SCHEMA.names)
        return SelectedRows(files, {}, ReadScope(whole_table=True))
    planner = FilePlanner(snapshot, engine.log_planner)
    predicates = planner.predicates_of(where)
    found = planner.candidates(*predicates)
    (skipped,) = found.skipped
    whole = pc.filter(found.files, skipped.only_matches)
    unsure = pc.filter(found.files, pc.invert(skipped.only_matches))
    rows: dict[str, BitMap64] = {}
    if unsure.num_rows:
        plan = read_plan(snapshot, unsure, where)
        rows = {match.path: match.rows for match in engine.find_matches(plan)}
    is_matched = pc.is_in(unsure["path"], value_set=string_column(list(rows)))
    selected = pa.concat_tables([whole, pc.filter(unsure, is_matched)])
    paths = frozenset(selected["path"].to_pylist())
    reads = ReadScope(may_hold=planner.may_hold(*predicates), paths=paths)
    return SelectedRows(selected, rows, reads)


def read_plan(
    snapshot: Snapshot,
    files: pa.Table,
    where: SqlExpression | None,
    configuration: TableConfiguration | None = None,
) -> ReadPlan:
    """A read of all columns of some live files.

    `configuration` is given if the commit changes it: new columns are null, and values have the
    widened types.
    """
    read_as = snapshot.configuration if configuration is None else configuration
    return ReadPlan(
        store=snapshot.store,
        version=snapshot.version,
        configuration=read_as,
        files=files,
        columns=read_as.schema.names,
        where=where,
    )
