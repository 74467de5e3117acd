"""What Dagster's part of a write costs: the IO manager beside the bare table and dagster-deltalake,
and a sensor's tick on a long log beside one on a short log.
"""

from __future__ import annotations

import importlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks import _rows
from benchmarks.harness import Case, main

_COMMITS_SHORT = 100


def _table(rows: int) -> Any:
    import pyarrow as pa

    return pa.Table.from_batches(list(_rows.batches(rows)))


def _nothing(directory: Path, size: int) -> None:
    """The rows are made by each peer, before its time starts."""


def _bare(directory: Path, size: int) -> Callable[[], object]:
    from dagster_delta import DeltaTable

    table, data = DeltaTable(str(directory / "bare"), must_exist=False), _table(size)
    # What is imported when it is first used belongs to no write.
    DeltaTable(str(directory / "first"), must_exist=False).overwrite(data.slice(0, 1))

    def run() -> str:
        return f"{table.overwrite(data).snapshot.num_records} rows"

    return run


def _io_manager(directory: Path, size: int) -> Callable[[], object]:
    from dagster import AssetKey, build_output_context

    from dagster_delta import DeltaIOManager

    manager, data = DeltaIOManager(root_uri=str(directory)), _table(size)
    first = build_output_context(asset_key=AssetKey("first"), name="result")
    manager.handle_output(first, data.slice(0, 1))
    context = build_output_context(asset_key=AssetKey("ours"), name="result")

    def run() -> str:
        manager.handle_output(context, data)
        return f"{context.get_logged_metadata()['dagster/row_count'].value} rows"

    return run


def _asset(manager: Any, data: Any) -> Callable[[], object]:
    import dagster as dg

    @dg.asset
    def written() -> Any:
        return data

    quiet = {"loggers": {"console": {"config": {"log_level": "CRITICAL"}}}}
    instance = dg.DagsterInstance.ephemeral()

    def run() -> str:
        result = dg.materialize(
            [written], resources={"io_manager": manager}, run_config=quiet, instance=instance
        )
        return f"{result.success} {data.num_rows} rows"

    return run


def _our_asset(directory: Path, size: int) -> Callable[[], object]:
    from dagster_delta import DeltaIOManager

    return _asset(DeltaIOManager(root_uri=str(directory / "ours")), _table(size))


def _their_asset(directory: Path, size: int) -> Callable[[], object]:
    # Nothing else here needs it, so that it is no part of the environment.
    theirs = importlib.import_module("dagster_deltalake")
    manager = theirs.DeltaLakePyarrowIOManager(
        root_uri=str(directory / "theirs"), storage_options=theirs.LocalConfig()
    )
    return _asset(manager, _table(size))


def _logs(directory: Path, size: int) -> None:
    """Two tables, with `size` commits and with a hundred, each with rows."""
    import pyarrow as pa

    from dagster_delta import DeltaTable

    for name, commits in (("long", size), ("short", _COMMITS_SHORT)):
        table = DeltaTable(str(directory / name), must_exist=False)
        table.append(pa.table({"id": [1]}))
        log = directory / name / "_delta_log"
        line = json.dumps(
            {
                "add": {
                    "path": "x.parquet",
                    "partitionValues": {},
                    "size": 1,
                    "modificationTime": 1,
                    "dataChange": True,
                }
            }
        )
        for version in range(1, commits):
            (log / f"{version:020}.json").write_text(line + "\n")


def _tick(name: str) -> Callable[[Path, int], Callable[[], object]]:
    def prepare(directory: Path, size: int) -> Callable[[], object]:
        import dagster as dg

        from dagster_delta import delta_table_sensor

        commits = size if name == "long" else _COMMITS_SHORT
        uri = str(directory / name)
        sensor: Any = delta_table_sensor(
            "watch", uri, asset_key="x", start_from="earliest", max_commits_per_tick=10
        )
        instance = dg.DagsterInstance.ephemeral()
        # As after the tick before: all was read but the last ten commits.
        cursor = json.dumps({"tables": {uri: {"log": _cursor(uri, commits - 11)}}})

        def run() -> str:
            context = dg.build_sensor_context(instance=instance, cursor=cursor)
            return f"{len(sensor(context).asset_events)} commits"

        return run

    return prepare


def _cursor(uri: str, version: int) -> Any:
    import msgspec

    from dagster_delta.storage import open_store
    from dagster_delta.table.read.watch import read_new_commits, start_cursor

    store = open_store(uri)
    start = start_cursor(store, version)
    cursor, _ = read_new_commits(store, start, limit=1)
    return msgspec.to_builtins(cursor)


CASES = {
    "overhead": Case(
        "write 5 M rows through the IO manager",
        5_000_000,
        _nothing,
        {"ours": _io_manager, "bare table": _bare},
    ),
    "asset": Case(
        "materialize 5 M rows",
        5_000_000,
        _nothing,
        {"ours": _our_asset, "dagster-deltalake": _their_asset},
    ),
    "tick": Case(
        "a tick of ten new commits, log of 100,000 files",
        100_000,
        _logs,
        {"long log": _tick("long"), "short log": _tick("short")},
        rounds=5,
    ),
}

if __spec__ is not None:
    main(__name__, __spec__.name, CASES)
