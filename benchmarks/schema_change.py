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

from benchmarks.harness import Case, main

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


def _copy(source: Path) -> str:
    """A copy of the table by hard links, so that every round starts from the same version."""
    import os
    import shutil
    import tempfile

    target = tempfile.mkdtemp(dir=source.parent)
    shutil.copytree(source, target, dirs_exist_ok=True, copy_function=os.link)
    return target


def _widen(source: Path) -> Callable[[], object]:
    from dagster_delta import DeltaTable

    table = DeltaTable(_copy(source))
    # Imports are not what is measured.
    table.alter("ALTER id TYPE BIGINT", dry_run=True)
    return lambda: table.alter("ALTER id TYPE BIGINT").version


def widen_large(directory: Path, size: int) -> Callable[[], object]:
    return _widen(directory / "large")


def widen_small(directory: Path, size: int) -> Callable[[], object]:
    return _widen(directory / "small")


def add_default(directory: Path, size: int) -> Callable[[], object]:
    from dagster_delta import DeltaTable

    table = DeltaTable(_copy(directory / "table"))
    table.alter("ADD COLUMN c STRING DEFAULT 'none'", dry_run=True)
    return lambda: table.alter("ADD COLUMN c STRING DEFAULT 'none'").metrics["numOutputRows"]


def add_and_update(directory: Path, size: int) -> Callable[[], object]:
    from dagster_delta import DeltaTable

    table = DeltaTable(_copy(directory / "table"))
    table.alter("ADD COLUMN c STRING", dry_run=True)

    def change() -> object:
        table.alter("ADD COLUMN c STRING")
        return table.update({"c": "'none'"}).metrics["numUpdatedRows"]

    return change


def _add_lazily(source: Path) -> Callable[[], object]:
    from dagster_delta import DeltaTable

    table = DeltaTable(_copy(source))
    statement = "ADD COLUMN c STRING DEFAULT 'none'"
    table.alter(statement, existing_rows="lazy", dry_run=True)
    return lambda: table.alter(statement, existing_rows="lazy").version


def add_lazily_large(directory: Path, size: int) -> Callable[[], object]:
    return _add_lazily(directory / "large")


def add_lazily_small(directory: Path, size: int) -> Callable[[], object]:
    return _add_lazily(directory / "small")


def prepare_reading(directory: Path, size: int) -> None:
    from dagster_delta import DeltaTable

    for existing in ("lazy", "rewrite"):
        _write(directory / existing, size)
        table = DeltaTable(str(directory / existing))
        table.add_column("c", "STRING", default="'none'", existing_rows=existing)


def _read(source: Path) -> Callable[[], object]:
    from dagster_delta import DeltaTable

    scan = DeltaTable(str(source)).snapshot().scan(where="c = 'none'")
    return lambda: sum(batch.num_rows for batch in scan.to_batches())


def read_lazy(directory: Path, size: int) -> Callable[[], object]:
    return _read(directory / "lazy")


def read_written(directory: Path, size: int) -> Callable[[], object]:
    return _read(directory / "rewrite")


CASES = {
    "widening": Case(
        "Widen a column of 20 million rows",
        20_000_000,
        prepare_widening,
        {"20 million rows": widen_large, "200 rows": widen_small},
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
        {"20 million rows": add_lazily_large, "200 rows": add_lazily_small},
        rounds=5,
    ),
    "lazy_read": Case(
        "Read 5 million rows with a filter on such a column",
        5_000_000,
        prepare_reading,
        {"default at read": read_lazy, "default in files": read_written},
        rounds=5,
    ),
}

main(__name__, __spec__.name, CASES)
