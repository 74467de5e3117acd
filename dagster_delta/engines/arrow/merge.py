"""MERGE in this process: which rows change is found first, then they are written.

Spec: Add File and Remove File; Deletion Vectors; Change Data Files.
"""

from __future__ import annotations

import time
from collections import Counter
from contextlib import closing
from typing import cast

import numpy as np

from dagster_delta.engines.arrow.merge_join import ClauseChoice, MergeJoin, SourceKeys
from dagster_delta.engines.arrow.merge_matching import find_row_actions
from dagster_delta.engines.arrow.merge_writing import write_merged
from dagster_delta.engines.memory_budget import MemoryBudget
from dagster_delta.engines.rows.source_rows import SourceRows
from dagster_delta.engines.statements.merge_condition import MergeCondition, key_predicate
from dagster_delta.engines.statements.merge_plan import MergedRows, MergePlan, SourceSummary
from dagster_delta.errors import UnsupportedFeature
from dagster_delta.protocol.statistics.predicates import Constant

__all__ = ["ArrowMergeSource", "merge_rows"]


class ArrowMergeSource(SourceRows):
    """The rows of a source, and the keys that they are joined by.

    Args:
        data: anything that an append takes, except a Spark frame.
        directory: where rows of the source and of the join may be stored.
        memory: how much of them is kept in memory.

    Raises:
        UnsupportedFeature: it is a Spark frame.
        InvalidArgument, SchemaMismatch: see `SourceRows`.
    """

    def __init__(self, data: object, directory: str, memory: MemoryBudget) -> None:
        if type(data).__module__.partition(".")[0] == "pyspark":
            raise UnsupportedFeature(
                "the embedded engine cannot merge a Spark DataFrame: omit engine to merge on "
                "Spark, or pass frame.toArrow()"
            )
        super().__init__(data, directory, memory_bytes=memory.source_bytes)
        self._materialised = time.perf_counter()
        self.directory, self.memory = directory, memory
        self._keys: tuple[MergeCondition, SourceKeys] | None = None

    def keys(self, condition: MergeCondition) -> SourceKeys:
        """The keys of the rows that can match; computed once. Raises as `summarise` does."""
        if self._keys is None or self._keys[0] is not condition:
            self._keys = condition, SourceKeys.of(self, condition)
        return self._keys[1]

    def summarise(self, condition: MergeCondition) -> SourceSummary:
        """The summary of the rows for planning. Raises as `MergeSource` says."""
        keys = self.keys(condition)
        if not keys.num_rows:
            return SourceSummary(self.num_rows, (Constant(False),), self._materialised)
        predicates = map(key_predicate, condition.keys, keys.values)
        return SourceSummary(self.num_rows, tuple(predicates), self._materialised)


def merge_rows(plan: MergePlan) -> MergedRows:
    """Carry out a MERGE. Raises as `Engine.merge` says."""
    source = cast("ArrowMergeSource", plan.source)
    wanted = ClauseChoice([each for each in plan.clauses if each.text.kind == "matched"]).columns
    keys = source.keys(plan.condition)
    joined = MergeJoin(
        plan.condition, source, keys, wanted, source.directory, source.memory.join_bytes
    )
    with closing(joined) as join:
        actions = find_row_actions(plan, source, join)
    scanned = time.perf_counter()
    change_data = plan.change_data_for(np.unique(actions.clauses).tolist())
    paths = plan.target.files["path"]
    rows = {paths[ordinal].as_py(): found for ordinal, found in actions.bitmaps().items()}
    written = write_merged(plan, source, actions, rows, change_data)
    return MergedRows(
        files=written.files,
        change_files=written.change_files,
        num_inserted_rows=written.num_inserted_rows,
        num_changed_rows=Counter(actions.clauses.tolist()),
        num_copied_rows=written.num_copied_rows,
        rows=rows,
        used_paths=frozenset(paths[ordinal].as_py() for ordinal in actions.used_files),
        scanned=scanned,
        high_water_marks=written.high_water_marks,
    )
