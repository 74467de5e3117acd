"""Writing rows whose expectations are counted in the same pass, beside a plain write."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

from benchmarks._rows import batches
from benchmarks.harness import Case, Peer, main


def _nothing(directory: Path, size: int) -> None:
    """Rows are made by the peers, before their time is taken."""


def _write(on_violation: Literal["warn", "drop"] | None) -> Peer:
    def prepared(directory: Path, size: int) -> Callable[[], object]:
        import pyarrow as pa

        from dagster_delta import DeltaTable, Expectation

        target, data = directory / f"table-{on_violation}", pa.Table.from_batches(batches(size))
        shutil.rmtree(target, ignore_errors=True)
        names = data.schema.names
        options: dict[str, Any] = {}
        if on_violation is not None:
            options["expectations"] = [
                Expectation(f"known_{name}", f"{name} IS NOT NULL", on_violation=on_violation)
                for name in names[:3]
            ]

        def run() -> int:
            table = DeltaTable.create(str(target), data.schema)
            return table.append(data, **options).version

        return run

    return prepared


CASES = {
    action: Case(
        f"append a table of {{size}} rows with three expectations that {action}",
        5_000_000,
        _nothing,
        {"expectations": _write(action), "a plain write": _write(None)},
        rounds=5,
    )
    for action in ("warn", "drop")
}

if __spec__ is not None:
    main(__name__, __spec__.name, CASES)
