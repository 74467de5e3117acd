"""OPTIMIZE of many small files, and what VACUUM finds among many, against `deltalake`."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

from benchmarks.harness import Case, main

ROWS_PER_FILE = 2_000


def prepare(directory: Path, size: int) -> None:
    """A table of `size` small files, ten a commit."""
    import numpy as np
    import pyarrow as pa

    from dagster_delta import DeltaTable

    rng = np.random.default_rng(0)
    table = DeltaTable(str(directory / "table"), must_exist=False)
    for first in range(0, size, 10):
        ids = np.arange(first, first + 10).repeat(ROWS_PER_FILE)
        rows = pa.table(
            {
                "id": rng.integers(0, 2**40, len(ids)),
                "price": rng.random(len(ids)),
                "name": pa.array(ids).cast(pa.string()),
                "file": pa.array(ids),
            }
        )
        # One file per partition, so that a commit makes ten of them.
        table.append(rows, partition_by=["file"])


def prepare_flat(directory: Path, size: int) -> None:
    """A table of `size` small files in one partition."""
    import numpy as np
    import pyarrow as pa

    from dagster_delta import DeltaTable

    rng = np.random.default_rng(0)
    table = DeltaTable(str(directory / "table"), must_exist=False)
    for part in range(size):
        rows = pa.table(
            {
                "id": rng.integers(0, 2**40, ROWS_PER_FILE),
                "price": rng.random(ROWS_PER_FILE),
                "name": [f"name {each % 50} of {part}" for each in range(ROWS_PER_FILE)],
            }
        )
        table.append(rows)


def _copy(directory: Path) -> str:
    target = Path(tempfile.mkdtemp(dir=directory)) / "table"
    shutil.copytree(directory / "table", target)
    return str(target)


def our_optimize(directory: Path, _: int) -> Callable[[], object]:
    from dagster_delta import DeltaTable

    uri = _copy(directory)
    return lambda: DeltaTable(uri).optimize().metrics["numRemovedFiles"]


def their_optimize(directory: Path, _: int) -> Callable[[], object]:
    import deltalake

    uri = _copy(directory)
    return lambda: deltalake.DeltaTable(uri).optimize.compact()["numFilesRemoved"]


def our_zorder(directory: Path, _: int) -> Callable[[], object]:
    from dagster_delta import DeltaTable

    uri = _copy(directory)
    return lambda: DeltaTable(uri).optimize(zorder_by=["id", "name"]).metrics["numRemovedFiles"]


def their_zorder(directory: Path, _: int) -> Callable[[], object]:
    import deltalake

    uri = _copy(directory)
    table = deltalake.DeltaTable
    return lambda: table(uri).optimize.z_order(["id", "name"])["numFilesRemoved"]


def our_vacuum(directory: Path, _: int) -> Callable[[], object]:
    from dagster_delta import DeltaTable

    uri = str(directory / "table")
    return lambda: DeltaTable(uri).vacuum(0, enforce_retention=False).num_files


def their_vacuum(directory: Path, _: int) -> Callable[[], object]:
    import deltalake

    uri = str(directory / "table")
    return lambda: len(
        deltalake.DeltaTable(uri).vacuum(
            0, dry_run=True, enforce_retention_duration=False, full=True
        )
    )


def prepare_garbage(directory: Path, size: int) -> None:
    """As `prepare`, with as many files that nothing refers to."""
    prepare(directory, size)
    for number, path in enumerate((directory / "table").glob("file=*")):
        (path / f"part-{number:05d}-garbage.parquet").write_bytes(b"x")


CASES = {
    "optimize": Case(
        "optimize {size} small files",
        1_000,
        prepare_flat,
        {"ours": our_optimize, "deltalake": their_optimize},
    ),
    "zorder": Case(
        "Z-order {size} small files by two columns",
        1_000,
        prepare_flat,
        {"ours": our_zorder, "deltalake": their_zorder},
    ),
    "vacuum": Case(
        "find the garbage beside {size} files, dry run",
        5_000,
        prepare_garbage,
        {"ours": our_vacuum, "deltalake": their_vacuum},
    ),
}

main(__name__, __spec__.name if __spec__ else "", CASES)
