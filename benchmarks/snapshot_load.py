"""Opening a table: what it takes to know its live files.

Ours is asked for a snapshot, the number of live files, their bytes and the column of their paths, so
that the log is reconciled in full; statistics stay unread. The peer's constructor alone does about
the same inside ("constructor"); to hand the files to Python it takes a second call ("files listed").
The checkpoint is written by the peer.
"""

from __future__ import annotations

import json
import random
import uuid
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from benchmarks.harness import Case, main

TAIL_COMMITS = 20
TAIL_FILES = 10
REMOVE_EVERY = 50_021
FILES_PER_COMMIT = 100

_RANDOM = random.Random(7)
_COLUMNS = {"id": "long", "name": "string", "value": "double", "day": "date"}
_DAYS = [f"2024-{month:02d}-{day:02d}" for month in range(1, 13) for day in range(1, 29)]

Action = dict[str, Any]


def _uuid() -> str:
    return str(uuid.UUID(int=_RANDOM.getrandbits(128)))


def _first_actions() -> list[Action]:
    fields = [
        {"name": name, "type": kind, "nullable": True, "metadata": {}}
        for name, kind in _COLUMNS.items()
    ]
    metadata = {
        "id": _uuid(),
        "format": {"provider": "parquet", "options": {}},
        "schemaString": json.dumps({"type": "struct", "fields": fields}),
        "partitionColumns": ["day"],
        "configuration": {},
        "createdTime": 1_700_000_000_000,
    }
    return [{"protocol": {"minReaderVersion": 1, "minWriterVersion": 2}}, {"metaData": metadata}]


def _commit_info(version: int) -> Action:
    return {
        "commitInfo": {
            "timestamp": 1_700_000_000_000 + version,
            "operation": "WRITE",
            "operationParameters": {"mode": "Append", "partitionBy": '["day"]'},
            "isBlindAppend": True,
            "engineInfo": "benchmark",
            "txnId": _uuid(),
        }
    }


def _add(number: int) -> Action:
    day = _DAYS[number % len(_DAYS)]
    stats = {
        "numRecords": 1000,
        "minValues": {"id": number * 1000, "name": f"a{number}", "value": number * 0.5},
        "maxValues": {"id": number * 1000 + 999, "name": f"z{number}", "value": number * 0.5 + 100},
        "nullCount": {"id": 0, "name": number % 7, "value": 0},
    }
    return {
        "add": {
            "path": f"day={day}/part-{number % 200:05d}-{_uuid()}-c000.snappy.parquet",
            "partitionValues": {"day": day},
            "size": 100_000 + number % 5000,
            "modificationTime": 1_700_000_000_000 + number,
            "dataChange": True,
            "stats": json.dumps(stats, separators=(",", ":")),
        }
    }


def _write(table: Path, version: int, actions: Iterable[Action]) -> None:
    log = table / "_delta_log"
    log.mkdir(parents=True, exist_ok=True)
    with (log / f"{version:020d}.json").open("w") as file:
        for action in (_commit_info(version), *(_first_actions() if version == 0 else ())):
            file.write(json.dumps(action, separators=(",", ":")) + "\n")
        for action in actions:
            file.write(json.dumps(action, separators=(",", ":")) + "\n")


def _prepare_checkpoint(directory: Path, size: int) -> None:
    from deltalake import DeltaTable

    removed: list[str] = []

    def adds() -> Iterator[Action]:
        for number in range(size):
            action = _add(number)
            if number % REMOVE_EVERY == 0:
                removed.append(action["add"]["path"])
            yield action

    _write(directory, 0, adds())
    DeltaTable(directory).create_checkpoint()
    for version in range(1, TAIL_COMMITS + 1):
        actions = [_add(size + version * TAIL_FILES + number) for number in range(TAIL_FILES)]
        if removed:
            remove = {"path": removed.pop(), "deletionTimestamp": version, "dataChange": True}
            actions.append({"remove": remove})
        _write(directory, version, actions)


def _prepare_small(directory: Path, size: int) -> None:
    for version in range(size):
        _write(directory, version, [_add(version)])


def _prepare_large(directory: Path, size: int) -> None:
    for version in range(size):
        first = version * FILES_PER_COMMIT
        _write(directory, version, [_add(first + number) for number in range(FILES_PER_COMMIT)])


def _ours(directory: Path, size: int) -> Callable[[], object]:
    from dagster_delta.storage import open_store
    from dagster_delta.table.read.snapshot import Snapshot

    def run() -> int:
        snapshot = Snapshot.load(open_store(str(directory)))
        paths = snapshot.live_files(["path"])
        assert paths.num_rows == snapshot.num_files >= size
        assert snapshot.size_bytes > 0
        return snapshot.version

    return run


def _constructor(directory: Path, size: int) -> Callable[[], object]:
    from deltalake import DeltaTable

    return lambda: DeltaTable(directory).version()


def _files_listed(directory: Path, size: int) -> Callable[[], object]:
    from deltalake import DeltaTable

    def run() -> int:
        table = DeltaTable(directory)
        assert table.get_add_actions().num_rows >= size
        return table.version()

    return run


_PEERS = {
    "ours": _ours,
    "deltalake (constructor)": _constructor,
    "deltalake (files listed)": _files_listed,
}

CASES = {
    "checkpoint": Case(
        f"open {{size}} files in a checkpoint + {TAIL_COMMITS} commits",
        1_000_000,
        _prepare_checkpoint,
        _PEERS,
        rounds=5,
    ),
    "small": Case("open {size} one-file commits", 10_000, _prepare_small, _PEERS, rounds=5),
    "large": Case(
        f"open {{size}} commits of {FILES_PER_COMMIT} files",
        1_000,
        _prepare_large,
        _PEERS,
        rounds=5,
    ),
}

if __spec__ is not None:
    main(__name__, __spec__.name, CASES)
