"""Planning a read of a table with millions of files for Spark.

    python -m benchmarks.planning_scale --rounds 1

The log is synthetic: a classic checkpoint in parts of a million files each, statistics as JSON (or
as columns too, as this library writes them), and a few commits after it. Only the data files that the queries need are there. Timed is all from
opening the table to the rows counted, in a session that runs already. The memory is that of the
driver's Python process; its JVM has a heap of 4 GB. The table stays in the temporary directory for
the next run. The JARs of delta-spark come from Maven, see tests/reference/jars.py.
"""

from __future__ import annotations

import datetime as dt
import json
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from benchmarks.harness import Case, Peer, main

PART_FILES = 1_000_000
TAIL_COMMITS = 5
PARTITION_FILES = 1_000
ROWS_PER_FILE = 10
NEEDLE = 123_457
HEAP = "4g"

_MAP = pa.map_(pa.string(), pa.string())
_FIRST_DAY = dt.date(1990, 1, 1)
_FIELDS = [("id", "long"), ("value", "double"), ("day", "date")]
_PROTOCOL = {"protocol": {"minReaderVersion": 1, "minWriterVersion": 2}}
_SCHEMA = {
    "type": "struct",
    "fields": [
        {"name": name, "type": kind, "nullable": True, "metadata": {}} for name, kind in _FIELDS
    ],
}
_METADATA: dict[str, Any] = {
    "id": "7d8ee24b-1d1c-4a5e-a0a0-000000000000",
    "format": {"provider": "parquet", "options": {}},
    "schemaString": json.dumps(_SCHEMA),
    "partitionColumns": ["day"],
    "configuration": {},
    "createdTime": 1_700_000_000_000,
}
_TABLE_ACTIONS = pa.schema(
    [
        (
            "protocol",
            pa.struct([("minReaderVersion", pa.int32()), ("minWriterVersion", pa.int32())]),
        ),
        (
            "metaData",
            pa.struct(
                [
                    ("id", pa.string()),
                    ("format", pa.struct([("provider", pa.string()), ("options", _MAP)])),
                    ("schemaString", pa.string()),
                    ("partitionColumns", pa.list_(pa.string())),
                    ("configuration", _MAP),
                    ("createdTime", pa.int64()),
                ]
            ),
        ),
    ]
)


def day_of(number: int) -> str:
    """The partition of a file."""
    return (_FIRST_DAY + dt.timedelta(number // PARTITION_FILES)).isoformat()


def _text(numbers: Any) -> Any:
    return pa.array(numbers).cast(pa.string())


def _joined(*parts: Any) -> Any:
    return pc.binary_join_element_wise(*parts, "")


def _adds(first: int, last: int, *, parsed: bool = False) -> Any:
    """A `pa.StructArray` of adds."""
    numbers = np.arange(first, last)
    # From no generator but the number of the part, so that the needle's path is known.
    random = np.random.default_rng(first).bytes(16 * len(numbers)).hex()
    names = pa.array([random[at : at + 32] for at in range(0, len(random), 32)])
    days = pa.array([day_of(at) for at in range(first, last)])
    low, high = _text(numbers * ROWS_PER_FILE), _text(numbers * ROWS_PER_FILE + ROWS_PER_FILE - 1)
    stats = _joined(
        f'{{"numRecords":{ROWS_PER_FILE},"minValues":{{"id":', low, ',"value":', low,
        '.5},"maxValues":{"id":', high, ',"value":', high, '.5},"nullCount":{"id":0,"value":0}}',
    )  # fmt: skip
    offsets = pa.array(np.arange(len(numbers) + 1, dtype=np.int32))
    keys = pa.repeat(pa.scalar("day"), len(numbers))
    columns = {
        "path": _joined("day=", days, "/part-", names, "-c000.snappy.parquet"),
        "partitionValues": pa.MapArray.from_arrays(offsets, keys, days),
        "size": pa.array(numbers % 5_000 + 100_000),
        "modificationTime": pa.array(numbers + 1_700_000_000_000),
        "dataChange": pa.repeat(pa.scalar(True), len(numbers)),
        "stats": stats,
    }
    if parsed:
        columns["stats_parsed"] = _parsed(numbers)
    return pa.StructArray.from_arrays(list(columns.values()), names=list(columns))


def _parsed(numbers: Any) -> Any:
    low, high = numbers * ROWS_PER_FILE, numbers * ROWS_PER_FILE + ROWS_PER_FILE - 1
    none = np.zeros_like(numbers)

    def struct(first: Any, second: Any) -> Any:
        return pa.StructArray.from_arrays([pa.array(first), pa.array(second)], ["id", "value"])

    groups = {
        "numRecords": pa.array(none + ROWS_PER_FILE),
        "minValues": struct(low, low + 0.5),
        "maxValues": struct(high, high + 0.5),
        "nullCount": struct(none, none),
    }
    return pa.StructArray.from_arrays(list(groups.values()), names=list(groups))


def _prepare(directory: Path, size: int) -> None:
    _link_table(directory, size, parsed=False)


def _prepare_parsed(directory: Path, size: int) -> None:
    _link_table(directory, size, parsed=True)


def _link_table(directory: Path, size: int, *, parsed: bool) -> None:
    (directory / "table").symlink_to(synthetic_table(size, parsed=parsed))


def synthetic_table(size: int, *, parsed: bool = False) -> Path:
    """A table of so many files, which stays in the temporary directory."""
    name = f"delta-planning-scale-{size}{'-parsed' if parsed else ''}"
    table = Path(tempfile.gettempdir()) / name
    if not (table / "_delta_log" / "_last_checkpoint").exists():
        _write_table(table, size, parsed=parsed)
    return table


def _write_table(table: Path, size: int, *, parsed: bool) -> None:
    log = table / "_delta_log"
    log.mkdir(parents=True, exist_ok=True)
    lines = [_PROTOCOL, {"metaData": _METADATA}]
    (log / f"{0:020}.json").write_text("\n".join(map(json.dumps, lines)))
    (log / f"{1:020}.json").write_text(json.dumps({"commitInfo": {"operation": "WRITE"}}))
    num_parts = -(-size // PART_FILES)
    for part in range(num_parts):
        first, last = part * PART_FILES, min(size, (part + 1) * PART_FILES)
        adds = _adds(first, last, parsed=parsed)
        if first <= NEEDLE < last:
            _link_partition(table, adds.slice(NEEDLE // PARTITION_FILES * PARTITION_FILES - first))
        name = f"{1:020}.checkpoint.{part + 1:010}.{num_parts:010}.parquet"
        pq.write_table(_with_table_actions(adds, part == 0), log / name, row_group_size=PART_FILES)
    for version in range(2, 2 + TAIL_COMMITS):
        first = size + version * PART_FILES
        lines = [{"commitInfo": {"operation": "WRITE"}}]
        lines += [{"add": {**each, "partitionValues": dict(each["partitionValues"])}}
                  for each in _adds(first, first + 100).to_pylist()]  # fmt: skip
        removed = _adds(0, 10).field("path")[version].as_py()
        lines.append({"remove": {"path": removed, "deletionTimestamp": 1, "dataChange": True}})
        (log / f"{version:020}.json").write_text("\n".join(map(json.dumps, lines)))
    hint = {"version": 1, "size": size + 2, "parts": num_parts, "numOfAddFiles": size}
    (log / "_last_checkpoint").write_text(json.dumps(hint))


def _with_table_actions(adds: Any, is_first: bool) -> Any:
    rows = (
        [{"protocol": _PROTOCOL["protocol"]}, {"metaData": _pairs(_METADATA)}] if is_first else []
    )
    actions = pa.Table.from_pylist(rows, _TABLE_ACTIONS)
    files = pa.table({"add": adds})
    return pa.concat_tables([actions, files], promote_options="default")


def _pairs(metadata: dict[str, Any]) -> dict[str, Any]:
    # Arrow takes maps as lists of pairs.
    return {**metadata, "format": {"provider": "parquet", "options": []}, "configuration": []}


def _link_partition(table: Path, adds: Any) -> None:
    """The data files of the needle's partition: one file under many names, but for the needle."""
    source = table / "data.parquet"
    _write_rows(source, 0)
    paths = adds.field("path").slice(0, PARTITION_FILES).to_pylist()
    for number, path in enumerate(paths):
        target = table / path
        target.parent.mkdir(exist_ok=True)
        if number == NEEDLE % PARTITION_FILES:
            _write_rows(target, NEEDLE * ROWS_PER_FILE)
        else:
            os.link(source, target)


def _write_rows(path: Path, first: int) -> None:
    ids = np.arange(first, first + ROWS_PER_FILE)
    pq.write_table(pa.table({"id": ids, "value": ids + 0.5}), path)


def _ours(where: str) -> Peer:
    def peer(directory: Path, size: int) -> Callable[[], object]:
        from dagster_delta import DeltaTable
        from dagster_delta.engines.spark.session.session import local_spark_session

        spark = local_spark_session("benchmark", {"spark.driver.memory": HEAP})
        spark.range(10).count()

        def run() -> object:
            scan = DeltaTable(str(directory / "table")).snapshot().scan(where=where)
            return scan.to_spark(spark).count()

        return run

    return peer


def _delta_spark(where: str) -> Peer:
    def peer(directory: Path, size: int) -> Callable[[], object]:
        from benchmarks._delta_spark import delta_spark_session

        spark = delta_spark_session(HEAP)
        spark.range(10).count()
        path = str(directory / "table")
        return lambda: spark.read.format("delta").load(path).where(where).count()

    return peer


_ONE_ROW = f"id = {NEEDLE * ROWS_PER_FILE + 3}"
_ONE_DAY = f"day = DATE '{day_of(NEEDLE)}'"


def _case(title: str, where: str, prepare: Callable[[Path, int], None] = _prepare) -> Case:
    peers = {"ours": _ours(where), "delta-spark": _delta_spark(where)}
    return Case(f"{title} in {{size}} files", 3_000_000, prepare, peers, rounds=1)


CASES = {
    "needle": _case("one row", _ONE_ROW),
    "parsed": _case("one row by statistics as columns", _ONE_ROW, _prepare_parsed),
    "partition": _case("one day", _ONE_DAY),
}

if __spec__ is not None:
    main(__name__, __spec__.name, CASES)
