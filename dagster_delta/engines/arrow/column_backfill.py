"""Rewrites data files with the shadow of a column whose type is being changed.

The live rows stay the same: deleted rows are dropped, and small files of one batch are joined. A
value that cannot be converted stops the batch, and is reported with its file.
"""

from __future__ import annotations

from contextlib import suppress

import msgspec
import pyarrow as pa

from dagster_delta.engines.plans import Backfilled, Problems, ReadPlan, WriteSpec
from dagster_delta.errors import InvalidArgument
from dagster_delta.nested_arrays import numbers_of, runs_of
from dagster_delta.parquet.data_file_reader import FILE_ORDINAL
from dagster_delta.parquet.opened_file import data_files
from dagster_delta.parquet.reader import plan_reader, read_ahead
from dagster_delta.parquet.shadow_column import ShadowColumn
from dagster_delta.parquet.writer import DataFileWriter


class _Stopped(Exception):
    """Problems were found: the written files are useless."""


def backfill_files(plan: ReadPlan, spec: WriteSpec) -> Backfilled:
    """Rewrite the live rows of files, with the shadow."""
    shadow = ShadowColumn.of(plan.configuration)
    if shadow is None:
        raise InvalidArgument(
            "no column of the table is being changed", table=plan.store.location.uri
        )
    names = plan.configuration.schema.names
    sources = plan_reader(plan, names).sources(data_files(plan.files))
    problems, num_nulled = Problems(), 0
    with suppress(_Stopped), DataFileWriter(shadow.write_spec(spec), plan.store) as writer:
        for batch in read_ahead(plan.store, sources):
            filled = shadow.fill(batch.select(names))
            if filled.num_problems:
                _report_problems(problems, batch, shadow, plan)
            else:
                num_nulled += filled.num_nulled
            # After the first problem, the rest is only checked, to count all problems.
            if not problems.num_rows:
                writer.add(filled.batch)
        if problems.num_rows:
            raise _Stopped
        written = writer.finish()
    if problems.num_rows:
        return Backfilled((), 0, num_nulled, problems)
    files = tuple(msgspec.structs.replace(file, data_change=False) for file in written.files)
    return Backfilled(files, written.num_rows, num_nulled, problems)


def _report_problems(
    problems: Problems, batch: pa.RecordBatch, shadow: ShadowColumn, plan: ReadPlan
) -> None:
    """Find out which files of a batch the problems are in."""
    for run in runs_of(numbers_of(batch.column(FILE_ORDINAL))):
        piece = batch.slice(run.start, run.stop - run.start)
        filled = shadow.fill(piece.select(plan.configuration.schema.names))
        path = plan.files["path"][piece.column(FILE_ORDINAL)[0].as_py()].as_py()
        problems.add(filled.num_problems, filled.problems, path)
