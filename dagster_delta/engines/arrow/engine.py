"""The embedded engine: rows as Arrow record batches, in this process, in bounded memory."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from msgspec.structs import replace

from dagster_delta.cached_property import cached_property
from dagster_delta.engines.data_input import to_reader
from dagster_delta.engines.memory_budget import MemoryBudget
from dagster_delta.engines.plans import (
    Backfilled,
    ChangeFileSet,
    MatchedRows,
    OlderRows,
    ReadPlan,
    RewriteResult,
    RowRewrite,
    RowRules,
    WriteResult,
    WriteSpec,
)
from dagster_delta.protocol.schema import StructType
from dagster_delta.protocol.values.arrow_schema import from_arrow_schema, to_arrow_schema
from dagster_delta.python_values import python_rows
from dagster_delta.sql.time_zone import UTC
from dagster_delta.storage.object_store import ObjectStore

if TYPE_CHECKING:
    from dagster_delta.engines.arrow.merge_join import ArrowMergeSource
    from dagster_delta.engines.statements.change_replay import Replayed, ReplayPlan
    from dagster_delta.engines.statements.expectations import ObservedReader
    from dagster_delta.engines.statements.merge_plan import MergedRows, MergePlan


class ArrowEngine:
    """Reads plans into record batches, and writes anything `to_reader` takes.

    Args:
        memory_limit: as for `MemoryBudget.of`.
        find_time_zone: gives the time zone of its statements, when one depends on it.

    Raises:
        InvalidArgument: it is not a memory limit.
    """

    casts_values = False
    rewrite_batch_bytes = 512 * 1024**2

    def __init__(
        self,
        memory_limit: int | str | None = None,
        *,
        find_time_zone: Callable[[], str] = lambda: UTC,
    ) -> None:
        self._memory = MemoryBudget.of(memory_limit)
        self._find_time_zone = find_time_zone

    @cached_property
    def time_zone(self) -> str:
        """The time zone of its statements."""
        return self._find_time_zone()

    def read(self, plan: ReadPlan) -> pa.RecordBatchReader:
        """The rows of the plan as a `pyarrow.RecordBatchReader`, decoded as it is consumed."""
        # Reading and writing are imported late: a process often does only one of them.
        from dagster_delta.parquet.reader import read_files

        return pa.RecordBatchReader.from_batches(to_arrow_schema(plan.schema), read_files(plan))

    def first_rows(self, plan: ReadPlan, count: int) -> list[dict[str, Any]]:
        """The first rows of the plan. Raises as `Engine` says."""
        for batch in self.read(plan):
            if batch.num_rows:
                return python_rows(batch.slice(0, count))
        return []

    def check_reachable(self, store: ObjectStore) -> None:
        """Nothing to check: this process reads every store that it has."""

    def read_changes(
        self, store: ObjectStore, sets: Sequence[ChangeFileSet], columns: Sequence[str]
    ) -> pa.RecordBatchReader:
        """The changed rows of all sets by ascending version. Raises as `Engine` says."""
        from dagster_delta.engines.arrow.change_data_files import read_changes

        schema = sets[0].configuration.schema
        read = StructType(tuple(schema.field(name) for name in columns))
        batches = read_changes(store, sets, columns)
        return pa.RecordBatchReader.from_batches(to_arrow_schema(read), batches)

    def rows_of(self, data: object) -> pa.RecordBatchReader:
        """The rows of a value as a `pyarrow.RecordBatchReader`, which can be read once."""
        return to_reader(data)

    def schema_of(self, data: object) -> StructType:
        """The logical schema of a value to write."""
        schema = getattr(data, "schema", None)
        return from_arrow_schema(
            schema if isinstance(schema, pa.Schema) else to_reader(data).schema
        )

    def write(self, data: object, spec: WriteSpec, *, store: ObjectStore) -> WriteResult:
        """Write the rows of `data` as data files."""
        if spec.rules is None:
            return self._write_rows(data, spec, store)
        from dagster_delta.engines.statements.expectations import ObservedReader

        zone, table = self.time_zone, spec.location.uri
        with ObservedReader(
            data, spec.rules, leaves_out=spec.leaves_out, zone=zone, table=table
        ) as observed:
            written = self._write_rows(observed.rows, replace(spec, rules=None), store)
            return replace(written, observed=observed.finish())

    def _write_rows(self, data: object, spec: WriteSpec, store: ObjectStore) -> WriteResult:
        from dagster_delta.parquet.store_assignment import assign_batches

        schema, table = spec.configuration.schema, spec.location.uri
        spec = self._limit_buffer(
            spec, computes=bool(spec.constraints or spec.leaves_out or spec.values.columns)
        )
        if not spec.values.columns:
            batches = assign_batches(to_reader(data), schema, table=table, is_exact=spec.is_exact)
            return _write_checked(batches, spec, store)
        from dagster_delta.engines.statements.completion import IdentityNumbers, RowCompletion

        numbers = IdentityNumbers()
        completion = RowCompletion(spec, schema, numbers)
        given = assign_batches(
            to_reader(data), completion.given, table=table, is_exact=spec.is_exact
        )
        written = _write_checked(map(completion.complete, given), spec, store)
        return replace(written, high_water_marks=numbers.high_water_marks)

    def compact(self, groups: Sequence[ReadPlan], spec: WriteSpec) -> list[WriteResult]:
        """New files with the rows of the groups. Raises as `Engine` says."""
        from dagster_delta.engines.arrow.compaction import compact_files

        return compact_files(self, groups, spec, num_workers=self._memory.num_workers)

    def sort(
        self,
        groups: Sequence[ReadPlan],
        spec: WriteSpec,
        columns: Sequence[tuple[str, ...]],
        *,
        is_hilbert: bool = False,
    ) -> WriteResult:
        """New files with the rows of each group sorted. Raises as `Engine` says."""
        from dagster_delta.engines.arrow.compaction import sort_files

        sort_bytes = self._memory.sort_bytes
        return sort_files(self, groups, spec, columns, sort_bytes=sort_bytes, is_hilbert=is_hilbert)

    def backfill(self, plan: ReadPlan, spec: WriteSpec) -> Backfilled:
        """Rewrite files with the shadow of a column. Raises as `Engine` says."""
        from dagster_delta.engines.arrow.column_backfill import backfill_files

        return backfill_files(plan, spec)

    def find_matches(self, plan: ReadPlan) -> Iterator[MatchedRows]:
        """The live rows that satisfy the plan's predicate. Raises as `Engine` says."""
        from dagster_delta.engines.arrow.predicate_matching import find_matches

        return find_matches(plan)

    def find_older(self, plan: ReadPlan, keys: Sequence[str], order_by: Sequence[str]) -> OlderRows:
        """All live rows but the latest one of each key. Raises as `Engine` says."""
        from dagster_delta.engines.arrow.older_rows import find_older

        return find_older(plan, keys, order_by)

    def rewrite(self, rewrite: RowRewrite) -> RewriteResult:
        """Rewrite rows. Raises as `Engine` says."""
        from dagster_delta.engines.arrow.file_rewriting import rewrite_rows

        return rewrite_rows(replace(rewrite, data=self._limit_buffer(rewrite.data)))

    def merge_source(
        self,
        data: object,
        directory: str,
        *,
        store: ObjectStore,  # noqa: ARG002  this process reads every store
    ) -> ArrowMergeSource:
        """The source of a MERGE, in memory or beside it. Raises as `Engine` says."""
        from dagster_delta.engines.arrow.merge_join import ArrowMergeSource

        return ArrowMergeSource(data, directory, self._memory)

    def expect_rows(self, data: object, rules: RowRules, *, store: ObjectStore) -> ObservedReader:
        """The rows of a source, counted while they are read. Raises as `Engine` says."""
        from dagster_delta.engines.statements.expectations import ObservedReader

        table = store.location.uri
        return ObservedReader(data, rules, leaves_out=None, zone=self.time_zone, table=table)

    def merge(self, plan: MergePlan) -> MergedRows:
        """Carry out a MERGE. Raises as `Engine` says."""
        from dagster_delta.engines.arrow.merge import merge_rows

        return merge_rows(replace(plan, data=self._limit_buffer(plan.data)))

    def replay_changes(self, plan: ReplayPlan, directory: str) -> Replayed:
        """What change events change. Raises as `Engine` says."""
        from dagster_delta.engines.arrow.change_replay import replay_changes

        return replay_changes(plan, directory, time_zone=self.time_zone)

    def _limit_buffer(self, spec: WriteSpec, *, computes: bool = True) -> WriteSpec:
        buffer_bytes = min(spec.buffer_bytes, self._memory.buffer_bytes)
        zone = self.time_zone if computes else spec.time_zone
        return replace(spec, buffer_bytes=buffer_bytes, time_zone=zone)


def _write_checked(
    batches: Iterable[pa.RecordBatch], spec: WriteSpec, store: ObjectStore
) -> WriteResult:
    from dagster_delta.parquet.writer import write_data_files

    if spec.leaves_out is not None:
        from dagster_delta.engines.statements.constraint_check import rows_outside

        batches = rows_outside(batches, spec.leaves_out, spec)
    if spec.constraints:
        from dagster_delta.engines.statements.constraint_check import ConstraintCheck

        batches = map(ConstraintCheck(spec, spec.configuration.schema).checked, batches)
    return write_data_files(batches, spec, store)
