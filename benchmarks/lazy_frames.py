"""Tables as polars LazyFrames, read and written, against the Parquet files of polars itself."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks._rows import stream
from benchmarks.harness import Case, main

if TYPE_CHECKING:
    import polars as pl

ROWS = 30_000_000


def _table(directory: Path, size: int) -> None:
    from dagster_delta import DeltaTable

    rows = stream(size)
    DeltaTable.create(str(directory / "table"), rows.schema).append(rows)


def _ours(directory: Path) -> pl.LazyFrame:
    from dagster_delta import DeltaTable

    return DeltaTable(str(directory / "table")).snapshot().scan().to_polars_lazy()


def _polars(directory: Path) -> pl.LazyFrame:
    import polars as pl

    return pl.scan_parquet(directory / "table" / "*.parquet")


Open = Callable[[Path], "pl.LazyFrame"]
Prepared = Callable[[Path, int], Callable[[], object]]


def _import_all() -> None:
    """Imports are not timed."""
    from dagster_delta import DeltaTable  # noqa: F401
    from dagster_delta.engines import polars  # noqa: F401
    from dagster_delta.engines.arrow import engine  # noqa: F401


def _aggregated(opened: Open) -> Prepared:
    def prepared(directory: Path, size: int) -> Callable[[], object]:
        import polars as pl

        _import_all()

        def run() -> int:
            groups = opened(directory).group_by("category")
            totals = groups.agg(pl.len(), pl.col("price").sum(), pl.col("id").max())
            return int(totals.collect(engine="streaming")["len"].sum())

        return run

    return prepared


def _filtered(opened: Open) -> Prepared:
    def prepared(directory: Path, size: int) -> Callable[[], object]:
        import polars as pl

        _import_all()

        def run() -> int:
            chosen = opened(directory).filter(pl.col("id") >= size * 9 // 10)
            return int(chosen.select("id", "name").collect(engine="streaming").height)

        return run

    return prepared


def _to_parquet(opened: Open) -> Prepared:
    def prepared(directory: Path, size: int) -> Callable[[], object]:
        _import_all()

        def run() -> str:
            target = directory / "sunk.parquet"
            opened(directory).sink_parquet(target, compression="zstd", compression_level=1)
            return "sunk"

        return run

    return prepared


def _to_table(directory: Path, size: int) -> Callable[[], object]:
    from dagster_delta import DeltaTable

    _import_all()
    target = directory / "written"
    shutil.rmtree(target, ignore_errors=True)
    rows = _polars(directory)

    def run() -> str:
        DeltaTable(str(target), must_exist=False).append(rows)
        return "sunk"

    return run


CASES = {
    "aggregate": Case(
        "totals by group of {size} rows",
        ROWS,
        _table,
        {"ours": _aggregated(_ours), "scan_parquet": _aggregated(_polars)},
    ),
    "filter": Case(
        "2 columns of the last tenth of {size} rows",
        ROWS,
        _table,
        {"ours": _filtered(_ours), "scan_parquet": _filtered(_polars)},
    ),
    "read": Case(
        "{size} rows × 10 columns to a Parquet file",
        ROWS,
        _table,
        {"ours": _to_parquet(_ours), "scan_parquet": _to_parquet(_polars)},
    ),
    "write": Case(
        "{size} rows × 10 columns of Parquet files to a table",
        ROWS,
        _table,
        {"ours": _to_table, "sink_parquet": _to_parquet(_polars)},
    ),
}

if __spec__ is not None:
    main(__name__, __spec__.name, CASES)
