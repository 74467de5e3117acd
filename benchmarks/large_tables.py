"""Changes and maintenance of a table with millions of files: its log in batches, or all together.

    python -m benchmarks.large_tables --rounds 1

The table is that of `planning_scale`. Every peer works on a copy of the log (hard links); timed is
all from opening the table on. No Spark is involved.
"""

from __future__ import annotations

import datetime as dt
import os
import shutil
import uuid
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa

from benchmarks.harness import Case, Peer, main
from benchmarks.planning_scale import NEEDLE, ROWS_PER_FILE, day_of, synthetic_table
from dagster_delta import DeltaTable

_ID = NEEDLE * ROWS_PER_FILE + 3
_DAY = day_of(NEEDLE)
_DATE = dt.date.fromisoformat(_DAY)
_ALL_TOGETHER = 10**12

Operation = Callable[[DeltaTable], object]


def _rows() -> pa.Table:
    return pa.table({"id": [_ID], "value": [1.0], "day": [_DATE]})


def _prepare(directory: Path, size: int) -> None:
    (directory / "source").symlink_to(synthetic_table(size))


def _copy(directory: Path) -> Path:
    """The log of the table, and the one partition whose files are there."""
    source, table = (directory / "source").resolve(), directory / uuid.uuid4().hex
    shutil.copytree(source / "_delta_log", table / "_delta_log", copy_function=os.link)
    shutil.copytree(source / f"day={_DAY}", table / f"day={_DAY}")
    return table


def _peer(operation: Operation, *, in_batches: bool) -> Peer:
    def peer(directory: Path, size: int) -> Callable[[], object]:
        from dagster_delta.table.log import version
        from dagster_delta.table.log_upkeep import checkpoint_files

        if not in_batches:
            vars(version)["LARGE_TABLE_FILES"] = _ALL_TOGETHER
            vars(checkpoint_files)["MAX_ACTIONS_PER_FILE"] = _ALL_TOGETHER
            vars(checkpoint_files)["MAX_HELD_ACTIONS"] = _ALL_TOGETHER
        table = _copy(directory)
        return lambda: operation(DeltaTable(str(table)))

    return peer


def _merge(table: DeltaTable) -> object:
    merge = table.merge(_rows(), "t.id = s.id")
    merged = merge.when_matched_update_all().when_not_matched_insert_all().execute()
    return merged.metrics["numTargetRowsUpdated"]


def _checkpoint(table: DeltaTable) -> object:
    from dagster_delta.table.log_upkeep import checkpoint_files

    most = checkpoint_files.MAX_ACTIONS_PER_FILE
    checkpoint_files.write_checkpoint(table.snapshot(), now_ms=0, max_actions_per_file=most)
    return table.version()


def _stream(table: DeltaTable) -> object:
    """The first batch of a stream: a thousand files, oldest first."""
    from dagster_delta.streaming.log_stream import LogStream
    from dagster_delta.streaming.options import Admission, parse_source_options

    stream = LogStream(parse_source_options({"path": table.uri}), table.snapshot())
    start = stream.initial_offset()
    end = stream.advance(start, Admission(max_files=1_000))
    return sum(each.files.num_rows for each in stream.files_between(start, end))


def _case(title: str, operation: Operation, size: int = 10_000_000) -> Case:
    peers = {
        "in batches": _peer(operation, in_batches=True),
        "all together": _peer(operation, in_batches=False),
    }
    return Case(f"{title} in {{size}} files", size, _prepare, peers, rounds=1)


CASES = {
    "append": _case("append one row", lambda table: table.append(_rows()).metrics["numFiles"]),
    "delete": _case(
        "delete one row", lambda table: table.delete(f"id = {_ID}").metrics["numDeletedRows"]
    ),
    "merge": _case("merge one row", _merge),
    "overwrite": _case(
        "overwrite one partition",
        lambda table: table.overwrite(_rows(), where="dynamic").metrics["numRemovedFiles"],
    ),
    "optimize": _case(
        "optimize one partition",
        lambda table: table.optimize(where=f"day = DATE '{_DAY}'").metrics["numRemovedFiles"],
    ),
    "vacuum": _case("find garbage", lambda table: table.vacuum().num_files),
    "health": _case("health", lambda table: table.health().num_small_files),
    "count": _case("count all rows", lambda table: table.snapshot().scan().count()),
    "stream": _case("first batch of a stream", _stream),
    "checkpoint": _case("checkpoint", _checkpoint, 4_000_000),
}

if __spec__ is not None:
    main(__name__, __spec__.name, CASES)
