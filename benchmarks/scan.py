"""Reading rows: everything, a stream, columns and a filter, a needle, and past deletion vectors."""

from __future__ import annotations

import json
import random
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks._rows import stream
from benchmarks.harness import Case, main

TARGET_FILE_SIZE = 128 * 1024 * 1024
COLUMNS = ["id", "name", "price"]
# Ordered columns prune files and row groups in both engines; `quantity` has to be looked at.
FILTER = "quantity < 10 AND price > 900.0"
DELETED_SHARE = 0.01


def _table(directory: Path, size: int) -> None:
    import deltalake

    deltalake.write_deltalake(
        str(directory / "table"), stream(size), target_file_size=TARGET_FILE_SIZE
    )


def _ours(read: Callable[[Any], object], name: str = "table") -> Any:
    def prepared(directory: Path, size: int) -> Callable[[], object]:
        from dagster_delta import DeltaTable
        from dagster_delta.protocol.schema import PrimitiveType, StructField, StructType
        from dagster_delta.sql.expressions import parse_expression

        # Imports are not timed, and the parser of filters makes some of its own.
        parse_expression("a = -1", StructType((StructField("a", PrimitiveType("long")),)))
        return lambda: read(DeltaTable(str(directory / name)).snapshot())

    return prepared


def _deltalake(read: Callable[[Any], object], name: str = "table") -> Any:
    def prepared(directory: Path, size: int) -> Callable[[], object]:
        import deltalake
        import pyarrow.dataset  # noqa: F401

        return lambda: read(deltalake.DeltaTable(str(directory / name)))

    return prepared


def _count(batches: Any) -> int:
    """Rows of a stream, one batch in memory at a time."""
    import pyarrow as pa

    return sum(pa.record_batch(batch).num_rows for batch in batches)


def _table_with_vectors(directory: Path, size: int) -> None:
    """The same files with one row in a hundred deleted, and without."""
    _table(directory, size)
    log = directory / "table" / "_delta_log"
    actions = [json.loads(line) for line in next(log.glob("*0.json")).read_text().splitlines()]
    plain, deleted = directory / "plain", directory / "deleted"
    for target, edit in ((plain, lambda each: each), (deleted, _delete_some)):
        (target / "_delta_log").mkdir(parents=True)
        for data in (directory / "table").glob("*.parquet"):
            (target / data.name).hardlink_to(data)
        lines = [json.dumps(edit(each)) for each in actions]
        (target / "_delta_log" / f"{0:020}.json").write_text("\n".join(lines))


def _delete_some(action: dict[str, Any]) -> dict[str, Any]:
    from pyroaring import BitMap64

    from dagster_delta.protocol.features.deletion_vectors import encode_deletion_vector, encode_z85

    if "protocol" in action:
        features = ["deletionVectors", "timestampNtz"]
        return {
            "protocol": {
                "minReaderVersion": 3,
                "minWriterVersion": 7,
                "readerFeatures": features,
                "writerFeatures": features,
            }
        }
    if "add" not in action:
        return action
    rows = json.loads(action["add"]["stats"])["numRecords"]
    deleted = BitMap64(random.Random(0).sample(range(rows), int(rows * DELETED_SHARE)))
    vector = encode_deletion_vector(deleted)
    descriptor = {
        "storageType": "i",
        "pathOrInlineDv": encode_z85(vector),
        "sizeInBytes": len(vector),
        "cardinality": len(deleted),
    }
    return {"add": {**action["add"], "deletionVector": descriptor}}


def many_files(directory: Path, size: int) -> None:
    """One file that is there, among many that statistics rule out."""
    import deltalake
    import pyarrow as pa

    target = directory / "table"
    deltalake.write_deltalake(str(target), pa.table({"id": [-1], "name": ["needle"]}))
    log = target / "_delta_log"
    lines = [log.joinpath(f"{0:020}.json").read_text().strip()]
    for number in range(size - 1):
        stats = {
            "numRecords": 10,
            "minValues": {"id": number * 10},
            "maxValues": {"id": number * 10 + 9},
            "nullCount": {"id": 0},
        }
        add = {
            "path": f"part-{uuid.UUID(int=number)}.parquet",
            "partitionValues": {},
            "size": 1000,
            "modificationTime": 0,
            "dataChange": True,
            "stats": json.dumps(stats),
        }
        lines.append(json.dumps({"add": add}))
    log.joinpath(f"{0:020}.json").write_text("\n".join(lines))
    from dagster_delta import DeltaTable

    DeltaTable(str(target)).checkpoint()


CASES = {
    "full": Case(
        "scan {size} rows × 10 columns into memory",
        20_000_000,
        _table,
        {
            "ours": _ours(lambda snapshot: snapshot.scan().to_arrow().num_rows),
            "to_pyarrow_table": _deltalake(lambda table: table.to_pyarrow_table().num_rows),
        },
    ),
    "stream": Case(
        "stream {size} rows × 10 columns",
        20_000_000,
        _table,
        {
            "ours": _ours(lambda snapshot: _count(snapshot.scan().to_batches())),
            "deltalake.scan": _deltalake(lambda table: _count(table.scan())),
        },
    ),
    "filtered": Case(
        "3 columns of {size} rows where " + FILTER,
        20_000_000,
        _table,
        {
            "ours": _ours(lambda snapshot: _count(snapshot.scan(COLUMNS, FILTER).to_batches())),
            "deltalake.scan": _deltalake(lambda table: _count(table.scan(COLUMNS, FILTER))),
        },
    ),
    "vectors": Case(
        "stream {size} rows past deletion vectors",
        20_000_000,
        _table_with_vectors,
        {
            "ours": _ours(
                lambda snapshot: _count(snapshot.scan().to_batches()) and "scanned", "deleted"
            ),
            "ours without": _ours(
                lambda snapshot: _count(snapshot.scan().to_batches()) and "scanned", "plain"
            ),
        },
    ),
    "needle": Case(
        "one row in {size} files",
        100_000,
        many_files,
        {
            "ours": _ours(lambda snapshot: snapshot.scan(where="id = -1").to_arrow().num_rows),
            "deltalake.scan": _deltalake(lambda table: _count(table.scan(predicate="id = -1"))),
        },
    ),
}

if __spec__ is not None:
    main(__name__, __spec__.name, CASES)
