"""The steps of the crash workload: what each does to a table, and to a model of its rows.

A step has an id, which its commits carry in their commitInfo, and names the rows it changes by
their ids. Thus its effect depends only on the rows in front of it in the log, and a model that
applies the committed steps in the order of the log knows the rows of every version.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from dagster_delta import DeltaTable

SCHEMA = pa.schema(
    [("id", pa.int64()), ("batch", pa.string()), ("v", pa.int64()), ("n", pa.int64())]
)
"""`v` is updated, and `n` changes its type."""

OPERATION_ID = "operationId"

KINDS = {
    "append": 20,
    "idempotent_append": 10,
    "delete": 12,
    "update": 12,
    "merge": 10,
    "overwrite_where": 8,
    "optimize": 5,
    "checkpoint": 5,
    "add_column": 4,
    "drop_column": 2,
    "change_column": 5,
    "vacuum": 5,
    "clean_log": 3,
}
"""Kind of step → how often it is chosen."""

MULTI_COMMIT = {"optimize", "change_column", "vacuum"}
"""Steps that may make several commits; none of these changes rows."""

SCHEMA_STEPS = {"add_column", "drop_column", "change_column"}

TYPES = ("STRING", "BIGINT", "DECIMAL(20,0)", "INT")

VACUUM_RETENTION_S = 12.0
"""Longer than any step may take, so that VACUUM deletes no file that is about to be committed."""


@dataclass(frozen=True)
class Step:
    """One operation of one writer."""

    id: str
    kind: str
    ids: tuple[int, ...] = ()
    """Rows that were there when the step was chosen."""
    new_ids: tuple[int, ...] = ()
    """Rows that no other step makes."""
    number: int = 0
    """A number of the step: the amount of an update, the version of an application."""
    name: str = ""
    """The column of a schema change, its new type, or the application."""

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> Step:
        """The step that a journal holds."""
        ids, new_ids = tuple(value.pop("ids")), tuple(value.pop("new_ids"))
        return cls(**value, ids=ids, new_ids=new_ids)


@dataclass
class Model:
    """The rows a table should have."""

    rows: dict[int, dict[str, Any]] = field(default_factory=dict)
    defaults: dict[str, int] = field(default_factory=dict)
    """Added columns and their defaults."""

    def apply(self, step: Step) -> None:
        """Do to the rows what the step does to the table."""
        match step.kind:
            case "append" | "idempotent_append":
                self._insert(step, step.new_ids)
            case "delete":
                self._delete(step.ids)
            case "update":
                for id_ in self.rows.keys() & set(step.ids):
                    self.rows[id_]["v"] += step.number
            case "merge":
                missing = [id_ for id_ in step.ids + step.new_ids if id_ not in self.rows]
                for id_ in self.rows.keys() & set(step.ids):
                    self.rows[id_]["v"] = id_ + step.number
                self._insert(step, missing)
            case "overwrite_where":
                self._delete(step.ids)
                self._insert(step, step.ids[::2])
            case "add_column":
                self.defaults[step.name] = step.number
                for row in self.rows.values():
                    row[step.name] = step.number
            case "drop_column":
                self.defaults.pop(step.name, None)
                for row in self.rows.values():
                    row.pop(step.name, None)

    def _insert(self, step: Step, ids: tuple[int, ...] | list[int]) -> None:
        for id_ in ids:
            row = {"id": id_, "batch": step.id, "v": id_ + step.number, "n": id_ % 100}
            self.rows[id_] = row | self.defaults

    def _delete(self, ids: tuple[int, ...]) -> None:
        for id_ in ids:
            self.rows.pop(id_, None)

    def sorted_rows(self) -> list[tuple[tuple[str, str], ...]]:
        """The rows in the form that `comparable` gives."""
        return comparable(list(self.rows.values()))


def comparable(rows: list[dict[str, Any]]) -> list[tuple[tuple[str, str], ...]]:
    """Rows as sorted text, in which the types of columns make no difference."""
    return sorted(tuple(sorted((name, str(value)) for name, value in row.items())) for row in rows)


def choose_step(
    table: DeltaTable, chance: random.Random, step_id: str, new_ids: tuple[int, ...], app: str
) -> Step:
    """A step that makes sense on the table as it is now."""
    snapshot = table.refresh()
    there = snapshot.scan(columns=["id"]).to_arrow()["id"].to_pylist()
    weights = KINDS if len(there) < 200 else KINDS | {"delete": 60}
    kind = chance.choices(list(weights), list(weights.values()))[0]
    ids = tuple(chance.sample(there, min(len(there), chance.randint(1, 12))))
    number = chance.randint(1, 1000)
    added = [name for name in snapshot.arrow_schema.names if name.startswith("c_")]
    match kind:
        case "append":
            return Step(step_id, kind, new_ids=new_ids, number=number)
        case "idempotent_append":
            # The ids of a writer's rows only grow, and so do the versions of its application.
            return Step(step_id, kind, new_ids=new_ids, number=new_ids[0], name=app)
        case "merge":
            return Step(step_id, kind, ids, new_ids[: len(new_ids) // 2], number)
        case "add_column":
            # Writers that choose at about the same time choose the same statement.
            name = f"c_{snapshot.version // 12}"
            return Step(step_id, kind, name=name, number=snapshot.version // 12)
        case "drop_column" if not added:
            return Step(step_id, "checkpoint")
        case "drop_column":
            return Step(step_id, kind, name=chance.choice(added))
        case "change_column":
            return Step(step_id, kind, name=chance.choice(TYPES))
        case _:
            return Step(step_id, kind, ids=ids, number=number)


def _frame(table: DeltaTable, step: Step, ids: tuple[int, ...]) -> pa.Table:
    """New rows without the added columns, which take their defaults."""
    rows = {
        "id": pa.array(ids, pa.int64()),
        "batch": pa.array([step.id] * len(ids), pa.string()),
        "v": pa.array([id_ + step.number for id_ in ids], pa.int64()),
        "n": pa.array([id_ % 100 for id_ in ids], pa.int64()),
    }
    wanted = table.snapshot().arrow_schema.field("n").type
    rows["n"] = rows["n"].cast(wanted)
    return pa.table(rows)


def _where(ids: tuple[int, ...]) -> str:
    return f"id IN ({', '.join(map(str, ids))})" if ids else "id = -1"


def perform(table: DeltaTable, step: Step) -> int | None:
    """Do the step; the version it committed, or None if it committed nothing.

    Raises:
        DeltaError: as the operation does.
    """
    info: dict[str, object] = {OPERATION_ID: step.id}
    match step.kind:
        case "append":
            return table.append(_frame(table, step, step.new_ids), commit_info=info).version
        case "idempotent_append":
            rows = _frame(table, step, step.new_ids)
            done = table.append(rows, idempotency=(step.name, step.number), commit_info=info)
        case "delete":
            done = table.delete(_where(step.ids), commit_info=info)
        case "update":
            assigned = {"v": f"v + {step.number}"}
            done = table.update(assigned, where=_where(step.ids), commit_info=info)
        case "merge":
            done = _merge(table, step, info)
        case "overwrite_where":
            rows = _frame(table, step, step.ids[::2])
            done = table.overwrite(rows, where=_where(step.ids), commit_info=info)
        case "change_column":
            done = _change_column(table, step, info)
        case _:
            return _maintain(table, step, info)
    return None if done.skipped else done.version


def _merge(table: DeltaTable, step: Step, info: dict[str, object]) -> Any:
    source = _frame(table, step, step.ids + step.new_ids)
    merge = table.merge(source, "t.id = s.id", source_alias="s", target_alias="t", commit_info=info)
    merge.when_matched_update({"v": "s.v"})
    return merge.when_not_matched_insert({name: f"s.{name}" for name in SCHEMA.names}).execute()


def _change_column(table: DeltaTable, step: Step, info: dict[str, object]) -> Any:
    """Start a change, or end the one that a killed writer left behind."""
    if table.column_change() is None:
        return table.change_column("n", step.name, commit_info=info)
    if step.name == "INT":
        return table.cancel_column_change(commit_info=info)
    return table.resume_column_change(commit_info=info)


def _maintain(table: DeltaTable, step: Step, info: dict[str, object]) -> int | None:
    match step.kind:
        case "optimize":
            versions = table.optimize(max_deleted_share=0, commit_info=info).versions
            return versions[-1] if versions else None
        case "checkpoint":
            table.checkpoint()
        case "add_column":
            statement = f"ADD COLUMN {step.name} BIGINT DEFAULT {step.number}"
            return table.alter(statement, commit_info=info).version
        case "drop_column":
            return table.alter(f"DROP COLUMN {step.name}", commit_info=info).version
        case "vacuum":
            hours = VACUUM_RETENTION_S / 3600
            table.vacuum(hours, dry_run=False, enforce_retention=False, commit_info=info)
        case "clean_log":
            table.clean_log(dry_run=False)
    return None
