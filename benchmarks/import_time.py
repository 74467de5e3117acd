"""What an import costs: ours alone, and on top of dagster."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from benchmarks.harness import Case, main


def _nothing(directory: Path, size: int) -> None:
    """Imports need no data."""


def _ours(directory: Path, size: int) -> Callable[[], object]:
    def run() -> str:
        from dagster_delta import DeltaTable

        return DeltaTable.__name__

    return run


def _deltalake(directory: Path, size: int) -> Callable[[], object]:
    def run() -> str:
        from deltalake import DeltaTable

        return DeltaTable.__name__

    return run


def _ours_on_dagster(directory: Path, size: int) -> Callable[[], object]:
    def run() -> str:
        import dagster

        from dagster_delta import DeltaIOManager

        return dagster.__name__ and DeltaIOManager.__name__ and "imported"

    return run


def _dagster(directory: Path, size: int) -> Callable[[], object]:
    def run() -> str:
        import dagster

        return "imported" if dagster else ""

    return run


CASES = {
    "table": Case(
        "import DeltaTable", 1, _nothing, {"ours": _ours, "deltalake": _deltalake}, rounds=7
    ),
    "dagster": Case(
        "import dagster + DeltaIOManager",
        1,
        _nothing,
        {"ours": _ours_on_dagster, "dagster alone": _dagster},
        rounds=7,
    ),
}

if __spec__ is not None:
    main(__name__, __spec__.name, CASES)
