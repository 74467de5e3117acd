"""AUTO CDC in plain Python: all events of a key, sorted and replayed, and random logs of them."""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from typing import Any

import pyarrow as pa

from dagster_delta import DeltaTable

Event = dict[str, Any]
SCHEMA = pa.schema(
    [
        ("k", pa.int64()),
        ("seq", pa.int64()),
        ("op", pa.string()),
        ("v", pa.string()),
        ("u", pa.int32()),
    ]
)
"""A key, a sequence, `D` for a delete, a tracked and an untracked column."""


def event_rows(events: Iterable[Event]) -> pa.Table:
    """Events as a `pyarrow.Table`."""
    return pa.Table.from_pylist(list(events), SCHEMA)


def replay_history(events: Iterable[Event]) -> list[tuple[Any, ...]]:
    """Rows (k, v, u, start, end) of type 2."""
    rows: list[list[Any]] = []
    by_event = {(event["k"], event["seq"]): event for event in events}
    for key in sorted({key for key, _ in by_event}):
        current: list[Any] | None = None
        for _, event in sorted(item for item in by_event.items() if item[0][0] == key):
            if event["op"] == "D":
                if current is not None:
                    current[4] = event["seq"]
                current = None
            elif current is not None and current[1] == event["v"]:
                current[2] = event["u"]
            else:
                if current is not None:
                    current[4] = event["seq"]
                current = [key, event["v"], event["u"], event["seq"], None]
                rows.append(current)
    return sorted((tuple(row) for row in rows), key=repr)


def replay_newest(events: Iterable[Event], *, fills: bool = False) -> list[tuple[Any, ...]]:
    """Rows (k, v, u) of type 1; with `fills`, a null leaves a column as it was."""
    rows: dict[int, tuple[Any, ...]] = {}
    by_event = {(event["k"], event["seq"]): event for event in events}
    for (key, _), event in sorted(by_event.items(), key=lambda item: item[0][1]):
        if event["op"] == "T":
            rows.clear()
        elif event["op"] == "D":
            rows.pop(key, None)
        else:
            before = rows.get(key, (key, None, None))
            new = (key, event["v"], event["u"])
            rows[key] = tuple(
                old if fills and value is None else value
                for old, value in zip(before, new, strict=True)
            )
    return sorted(rows.values(), key=repr)


def random_events(rng: random.Random, *, num_keys: int = 4, num_events: int = 14) -> list[Event]:
    """Events whose sequences are unique for their key, in no order."""
    places = [(key, seq) for key in range(num_keys) for seq in range(1, 13)]
    return [
        {
            "k": key,
            "seq": seq,
            "op": "D" if rng.random() < 0.25 else rng.choice(["U", None]),
            "v": rng.choice(["a", "a", "b", None]),
            "u": rng.choice([1, 2, None]),
        }
        for key, seq in rng.sample(places, min(num_events, len(places)))
    ]


def random_runs(rng: random.Random, events: Sequence[Event]) -> list[list[Event]]:
    """The events cut into runs, some of them repeated in a later one."""
    runs: list[list[Event]] = [[]]
    for number, event in enumerate(events):
        if runs[-1] and rng.random() < 0.3:
            runs.append([])
        runs[-1].append(event)
        if number and rng.random() < 0.2:
            runs[-1].append(rng.choice(events[:number]))
    return runs


def rows_of(table: DeltaTable, *columns: str) -> list[tuple[Any, ...]]:
    """The rows of a table, sorted."""
    found = table.snapshot().scan(columns=list(columns)).to_arrow().to_pylist()
    return sorted((tuple(row.values()) for row in found), key=repr)
