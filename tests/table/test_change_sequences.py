"""Random sequences of changes against a model of the table that is a dictionary.

Rows, row counts of the log, the change data feed and row ids have to agree with the model after any
sequence, whatever features the table has.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from dagster_delta.storage.memory_store import MemoryStore
from dagster_delta.table.delta_table import DeltaTable

pytestmark = pytest.mark.slow

Values = tuple[int | None, int]
"""What a row has besides its key: `v` and `p`."""

KEYS = st.integers(0, 30)
VALUES = st.tuples(st.one_of(st.none(), st.integers(-50, 50)), st.integers(0, 2))
ROWS = st.dictionaries(KEYS, VALUES, max_size=8)

CONDITIONS: dict[str, Callable[[int, Values], bool]] = {
    "k % 3 = 1": lambda k, _: k % 3 == 1,
    "v IS NULL": lambda _, row: row[0] is None,
    "v > 10": lambda _, row: row[0] is not None and row[0] > 10,
    "p = 1": lambda _, row: row[1] == 1,
    "p <> 2 AND k < 12": lambda k, row: row[1] != 2 and k < 12,
    "NOT (v < 0)": lambda _, row: row[0] is not None and row[0] >= 0,
}
"""Predicates in Spark SQL, and what they are true of."""


class ChangedTable(RuleBasedStateMachine):
    """One table, changed by one writer."""

    @initialize(
        vectors=st.booleans(),
        feed=st.booleans(),
        ids=st.booleans(),
        mapped=st.booleans(),
        partitioned=st.booleans(),
        rows=ROWS,
    )
    def create(
        self,
        vectors: bool,
        feed: bool,
        ids: bool,
        mapped: bool,
        partitioned: bool,
        rows: dict[int, Values],
    ) -> None:
        self.table = DeltaTable("", store=MemoryStore(), must_exist=False)
        self.model = dict(rows)
        self.has_feed, self.has_ids = feed, ids
        self.past: dict[int, dict[int, Values]] = {}
        self.ids: dict[int, int] = {}
        self.past_ids: dict[int, dict[int, int]] = {}
        self.table.append(
            data(rows),
            partition_by=["p"] if partitioned else None,
            properties={
                "delta.enableDeletionVectors": vectors,
                "delta.enableChangeDataFeed": feed,
                "delta.enableRowTracking": ids,
                "delta.columnMapping.mode": "name" if mapped else "none",
                "delta.checkpointInterval": 5,
            },
        )
        self.remember()

    @rule(rows=ROWS)
    def append(self, rows: dict[int, Values]) -> None:
        new = {key: row for key, row in rows.items() if key not in self.model}
        self.table.append(data(new))
        self.model |= new
        self.remember()

    @rule(where=st.sampled_from(sorted(CONDITIONS)))
    def delete(self, where: str) -> None:
        self.table.delete(where)
        chosen = CONDITIONS[where]
        self.model = {k: row for k, row in self.model.items() if not chosen(k, row)}
        self.remember()

    @rule(where=st.sampled_from(sorted(CONDITIONS)), moves=st.booleans())
    def update(self, where: str, moves: bool) -> None:
        values = {"v": "v * 2 + 1", **({"p": "(p + 1) % 3"} if moves else {})}
        self.table.update(set=values, where=where)
        for key, (v, p) in self.model.items():
            if CONDITIONS[where](key, (v, p)):
                self.model[key] = (None if v is None else v * 2 + 1, (p + 1) % 3 if moves else p)
        self.remember()

    @rule(source=ROWS, where=st.sampled_from(sorted(CONDITIONS)), drops=st.booleans())
    def merge(self, source: dict[int, Values], where: str, drops: bool) -> None:
        condition = where.replace("k", "t.k").replace("v", "t.v").replace("p ", "t.p ")
        builder = self.table.merge(data(source), "t.k = s.k").when_matched_delete(condition)
        builder = builder.when_matched_update_all().when_not_matched_insert_all("s.p < 2")
        if drops:
            builder = builder.when_not_matched_by_source_delete("t.p = 0")
        builder.execute()
        merged = {}
        for key, row in self.model.items():
            if key in source:
                if not CONDITIONS[where](key, row):
                    merged[key] = source[key]
            elif not (drops and row[1] == 0):
                merged[key] = row
        new = {k: row for k, row in source.items() if k not in self.model and row[1] < 2}
        self.model = merged | new
        self.remember()

    @rule(part=st.integers(0, 2), rows=ROWS)
    def replace(self, part: int, rows: dict[int, Values]) -> None:
        kept = {key: row for key, row in self.model.items() if row[1] != part}
        new = {key: (row[0], part) for key, row in rows.items() if key not in kept}
        self.table.overwrite(data(new), where=f"p = {part}")
        for key in set(self.model) - set(kept):
            self.ids.pop(key, None)
        self.model = kept | new
        self.remember()

    @rule()
    def optimize(self) -> None:
        self.table.optimize(max_deleted_share=0)
        self.remember()

    @precondition(lambda self: len(self.past) > 1)
    @rule(draw=st.data())
    def restore(self, draw: st.DataObject) -> None:
        version = draw.draw(st.sampled_from(sorted(self.past)))
        self.table.restore(version)
        self.model = dict(self.past[version])
        self.ids = dict(self.past_ids[version])
        self.remember()

    def remember(self) -> None:
        """Check the row ids, and note what the version holds."""
        if self.has_ids:
            scan = self.table.snapshot().scan(["k"], row_ids=True)
            found = {row["k"]: row["_row_id"] for row in scan.to_arrow().to_pylist()}
            assert len(set(found.values())) == len(found)
            for key, row_id in self.ids.items():
                assert found.get(key, row_id) == row_id
            self.ids = found
        self.past[self.table.version()] = dict(self.model)
        self.past_ids[self.table.version()] = dict(self.ids)

    @invariant()
    def rows_are_those_of_the_model(self) -> None:
        snapshot = self.table.snapshot()
        found = snapshot.scan(["k", "v", "p"]).to_arrow()
        rows = sorted(zip(*(each.to_pylist() for each in found.columns), strict=True))
        assert rows == sorted((key, *row) for key, row in self.model.items())
        assert snapshot.num_records == len(self.model)

    def teardown(self) -> None:
        """Every old version can be read, and the feed leads from each one to the next."""
        if not hasattr(self, "table"):
            return
        for version, model in self.past.items():
            found = self.table.snapshot(version=version).scan(["k", "v", "p"]).to_arrow()
            rows = Counter(zip(*(each.to_pylist() for each in found.columns), strict=True))
            assert rows == Counter((key, *row) for key, row in model.items()), version
        if self.has_feed:
            check_feed(self.table, self.past)


def check_feed(table: DeltaTable, past: dict[int, dict[int, Values]]) -> None:
    """Apply the feed commit by commit."""
    changes = table.changes(0).to_arrow().to_pylist()
    rows: Counter[tuple[int, int | None, int]] = Counter()
    for version in range(table.version() + 1):
        for change in changes:
            if change["_commit_version"] == version:
                added = change["_change_type"] in ("insert", "update_postimage")
                rows[change["k"], change["v"], change["p"]] += 1 if added else -1
        if version in past:
            expected = Counter((key, *row) for key, row in past[version].items())
            assert {row: count for row, count in rows.items() if count} == expected, version


def data(rows: dict[int, Values]) -> pa.Table:
    return pa.table(
        {
            "k": pa.array(list(rows), pa.int64()),
            "v": pa.array([each[0] for each in rows.values()], pa.int64()),
            "p": pa.array([each[1] for each in rows.values()], pa.int64()),
        }
    )


TestChangedTable = ChangedTable.TestCase
TestChangedTable.settings = settings(
    max_examples=18,
    stateful_step_count=10,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
