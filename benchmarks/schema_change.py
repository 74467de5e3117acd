"""Changing a schema: widening a column by the log alone, and a default written into every file.

Widening is compared with itself on a table of 200 rows ("200 rows"): it looks at no row. Both tables
have one file, so that the log is the same. The default is compared with the way round that a user
has without it: an UPDATE of every row. One that rows take when they are read is compared with
itself on 200 rows, and reading it with reading the default that was written.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from benchmarks.harness import Case, Peer, linked_copy, main

BATCH_ROWS = 1_000_000
SMALL = 200


def _rows(size: int) -> Any:
    import pyarrow as pa

    schema = pa.schema([("id", pa.int32()), ("value", pa.float64())])

    def batches() -> Iterator[Any]:
        for start in range(0, size, BATCH_ROWS):
            count = min(BATCH_ROWS, size - start)
            ids = pa.array(range(start, start + count), pa.int32())
            yield pa.record_batch([ids, ids.cast(pa.float64())], schema=schema)

    return pa.RecordBatchReader.from_batches(schema, batches())


def _write(directory: Path, size: int) -> None:
    from dagster_delta import DeltaTable

    properties = {"delta.enableTypeWidening": "true", "delta.targetFileSize": "4gb"}
    DeltaTable(str(directory), must_exist=False).append(_rows(size), properties=properties)


def prepare_widening(directory: Path, size: int) -> None:
    _write(directory / "large", size)
    _write(directory / "small", SMALL)


def prepare_default(directory: Path, size: int) -> None:
    _write(directory / "table", size)


def _alter(name: str, statement: str, **options: Any) -> Peer:
    """A change of a copy of a table by the log alone."""

    def start(directory: Path, size: int) -> Callable[[], object]:
        from dagster_delta import DeltaTable

        table = DeltaTable(linked_copy(directory / name))
        # Imports are not what is measured.
        table.alter(statement, **options, dry_run=True)
        return lambda: table.alter(statement, **options).version

    return start


def add_default(directory: Path, size: int) -> Callable[[], object]:
    from dagster_delta import DeltaTable

    table = DeltaTable(linked_copy(directory / "table"))
    table.alter("ADD COLUMN c STRING DEFAULT 'none'", dry_run=True)
    return lambda: table.alter("ADD COLUMN c STRING DEFAULT 'none'").metrics["numOutputRows"]


def add_and_update(directory: Path, size: int) -> Callable[[], object]:
    from dagster_delta import DeltaTable

    table = DeltaTable(linked_copy(directory / "table"))
    table.alter("ADD COLUMN c STRING", dry_run=True)

    def change() -> object:
        table.alter("ADD COLUMN c STRING")
        return table.update({"c": "'none'"}).metrics["numUpdatedRows"]

    return change


def prepare_reading(directory: Path, size: int) -> None:
    from dagster_delta import DeltaTable

    for existing in ("lazy", "rewrite"):
        _write(directory / existing, size)
        table = DeltaTable(str(directory / existing))
        table.add_column("c", "STRING", default="'none'", existing_rows=existing)


def _read(name: str) -> Peer:
    def start(directory: Path, size: int) -> Callable[[], object]:
        from dagster_delta import DeltaTable

        scan = DeltaTable(str(directory / name)).snapshot().scan(where="c = 'none'")
        return lambda: sum(batch.num_rows for batch in scan.to_batches())

    return start


_WIDEN = "ALTER id TYPE BIGINT"
_ADD = "ADD COLUMN c STRING DEFAULT 'none'"
CASES = {
    "widening": Case(
        "Widen a column of 20 million rows",
        20_000_000,
        prepare_widening,
        {"20 million rows": _alter("large", _WIDEN), "200 rows": _alter("small", _WIDEN)},
        rounds=5,
    ),
    "default": Case(
        "Add a column with a default to 5 million rows",
        5_000_000,
        prepare_default,
        {"ADD COLUMN … DEFAULT": add_default, "ADD COLUMN, then UPDATE": add_and_update},
    ),
    "lazy_default": Case(
        "Add a column to 20 million rows whose default they take when they are read",
        20_000_000,
        prepare_widening,
        {
            "20 million rows": _alter("large", _ADD, existing_rows="lazy"),
            "200 rows": _alter("small", _ADD, existing_rows="lazy"),
        },
        rounds=5,
    ),
    "lazy_read": Case(
        "Read 5 million rows with a filter on such a column",
        5_000_000,
        prepare_reading,
        {"default at read": _read("lazy"), "default in files": _read("rewrite")},
        rounds=5,
    ),
}

main(__name__, __spec__.name, CASES)
