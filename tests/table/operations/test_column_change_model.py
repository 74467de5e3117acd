"""A column changes while everything else goes on: random histories against a plain dictionary."""

from __future__ import annotations

import random
from typing import Any

import pyarrow as pa
import pytest

from dagster_delta.protocol.log.paths import commit_path
from dagster_delta.storage.memory_store import MemoryStore
from dagster_delta.table.delta_table import DeltaTable
from dagster_delta.testing.faulty_store import Fault, FaultyStore, SimulatedCrash

ENDINGS = ("undisturbed", "crash", "cancel")


class History:
    """A table whose column `v`, or field `s.v`, becomes a number, and what its rows should be."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.store = MemoryStore()
        self.nested = self.random.random() < 0.4
        self.rows: dict[int, str | None] = {}
        self.seen: dict[int, dict[int, str | None]] = {}
        self._next_id = 0
        self._next_column = 0
        v = pa.field("v", pa.string())
        column = pa.field("s", pa.struct([("k", pa.int64()), v])) if self.nested else v
        schema = pa.schema([("id", pa.int64()), ("p", pa.int32()), ("o", pa.int32()), column])
        partition_by = ["p"] if self.random.random() < 0.4 else None
        table = DeltaTable("memory://t", store=self.store, must_exist=False)
        for _ in range(3):
            rows = self._new_rows(4)
            table.append(
                self._table(rows, schema), properties=self._properties(), partition_by=partition_by
            )
            self.rows |= rows

    def _properties(self) -> dict[str, str]:
        switches = ("DeletionVectors", "RowTracking", "ChangeDataFeed", "InCommitTimestamps")
        chosen = {f"delta.enable{each}": str(self._tossed()).lower() for each in switches}
        return {
            "dagsterDelta.enableColumnChange": "true",
            "delta.columnMapping.mode": self.random.choice(["name", "id"]),
            "delta.enableTypeWidening": "true",
            "delta.checkpointInterval": "3",
            "delta.dataSkippingNumIndexedCols": self.random.choice(["32", "-1"]),
            **chosen,
        }

    @property
    def path(self) -> str:
        return "s.v" if self.nested else "v"

    def table(self) -> DeltaTable:
        return DeltaTable("memory://t", store=self.store)

    def read(self, version: int | None = None) -> dict[int, str | None]:
        """Values by id, as text."""
        rows = self.table().snapshot(version=version).scan().to_arrow().to_pylist()
        found = {row["id"]: self._text(row) for row in rows}
        assert len(found) == len(rows), "a row is there twice"
        return found

    def _text(self, row: dict[str, Any]) -> str | None:
        value = row["s"]["v"] if self.nested and row["s"] else row.get("v")
        return None if value is None else str(value)

    def _tossed(self) -> bool:
        return self.random.random() < 0.5

    def _new_rows(self, count: int) -> dict[int, str | None]:
        first, self._next_id = self._next_id, self._next_id + count
        return {
            each: self.random.choice([None, str(self.random.randrange(99))])
            for each in range(first, first + count)
        }

    def _some_id(self) -> int:
        return self.random.choice(list(self.rows) or [0])

    def _table(self, rows: dict[int, str | None], schema: pa.Schema) -> pa.Table:
        column = schema.field("s").type.field("v") if self.nested else schema.field("v")
        is_number = pa.types.is_integer(column.type)
        records = []
        for key, text in rows.items():
            value = int(text) if is_number and text is not None else text
            record = {"id": key, "p": key % 2, "o": key, "v": value, "s": {"k": key, "v": value}}
            records.append({name: record.get(name) for name in schema.names})
        return pa.Table.from_pylist(records, schema)

    def go_on(self, _: object = None) -> None:
        """Do a few things to the table, as others do while its column changes."""
        for _ in range(self.random.randrange(3)):
            table = self.table()
            steps = [self._write, self._write, self._delete, self._update, self._alter, self._tidy]
            self.random.choice(steps)(table)
            assert self.read() == self.rows
            self.seen[table.refresh().version] = dict(self.rows)

    def _write(self, table: DeltaTable) -> None:
        schema = table.snapshot().arrow_schema
        rows = self._new_rows(2)
        match self.random.choice(["append", "merge", "overwrite"]):
            case "append":
                table.append(self._table(rows, schema))
            case "merge":
                rows[self._some_id()] = "7"
                source = self._table(rows, schema)
                merge = table.merge(source, "t.id = s.id", source_alias="s", target_alias="t")
                merge.when_matched_update_all().when_not_matched_insert_all().execute()
            case _:
                gone = self._some_id()
                where = f"id >= {min(rows)} OR id = {gone}"
                table.overwrite(self._table(rows, schema), where=where)
                self.rows.pop(gone, None)
        self.rows |= rows

    def _delete(self, table: DeltaTable) -> None:
        key = self._some_id()
        table.delete(f"id = {key}")
        self.rows.pop(key, None)

    def _update(self, table: DeltaTable) -> None:
        key = self._some_id()
        table.update({self.path: "'5'"}, where=f"id BETWEEN {key} AND {key + 2}")
        self.rows |= {each: "5" for each in self.rows if key <= each <= key + 2}

    def _alter(self, table: DeltaTable) -> None:
        others = [name for name in table.schema().names if name.startswith("x")]
        self._next_column += 1
        name = f"x{self._next_column}"
        if others and self._tossed():
            change = self.random.choice([f"RENAME {others[0]} TO {name}", f"DROP {others[0]}"])
            table.alter(change)
        else:
            table.alter(f"ADD {name} INT {self.random.choice(['', 'FIRST', 'DEFAULT 5'])}")

    def _tidy(self, table: DeltaTable) -> None:
        match self.random.choice(["compact", "sort", "checkpoint"]):
            case "compact":
                table.optimize()
            case "sort":
                table.optimize(zorder_by=["id"])
            case _:
                table.checkpoint()


def crash_in_between(history: History) -> None:
    """Begin the change in a process that dies at one of its commits, or after them all."""
    version = history.table().version() + history.random.randrange(1, 6)
    commit = commit_path(version)
    before = Fault("crash_before", "put_if_absent", commit)
    after = Fault("crash_after", "put_if_absent", commit)
    store = FaultyStore(history.store, [history.random.choice([before, after])])
    try:
        DeltaTable("memory://t", store=store).change_column(
            history.path, "INT", batch_bytes=1, on_progress=history.go_on
        )
    except SimulatedCrash:
        history.go_on()


# Four of them have every ending.
@pytest.mark.examples(4)
@pytest.mark.parametrize("seed", range(16))
def test_whatever_goes_on_beside_it_a_change_loses_no_row(seed: int) -> None:
    history = History(seed)
    ending = ENDINGS[seed % len(ENDINGS)]
    batch_bytes = history.random.choice([1, 10**9])
    if ending == "undisturbed":
        history.table().change_column(
            history.path, "INT", batch_bytes=batch_bytes, on_progress=history.go_on
        )
        assert history.table().column_change() is None
    else:
        crash_in_between(history)
    table = history.table()
    if table.column_change() is not None:
        if ending == "cancel":
            table.cancel_column_change()
        else:
            table.resume_column_change(batch_bytes=batch_bytes, on_progress=history.go_on)
    history.go_on()
    assert history.table().column_change() is None
    assert history.read() == history.rows
    for version, rows in history.seen.items():
        assert history.read(version) == rows
    where = f"{history.path} = 5"
    found = history.table().snapshot().scan(where=where).to_arrow()["id"].to_pylist()
    assert sorted(found) == sorted(each for each, text in history.rows.items() if text == "5")
