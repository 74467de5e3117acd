"""Branches: how long the first write waits for its clone, and what reading through it costs.

    python -m benchmarks.branches

A branch's table is a shallow clone: its log names the files of production. `begin` makes one of a
table of many files, beside listing these files in production. The other cases read the same rows
from the branch's table and from production's.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks._rows import batches
from benchmarks.harness import Case, Peer, main
from benchmarks.scan import many_files

if TYPE_CHECKING:
    from dagster_delta import Branch, DeltaTable


def _prepare_files(directory: Path, size: int) -> None:
    many_files(directory, size)
    _branch(directory, "read").begin(str(directory / "table"))


def _prepare_rows(directory: Path, size: int) -> None:
    from dagster_delta import DeltaTable

    for batch in batches(size):
        DeltaTable(str(directory / "table"), must_exist=False).append(batch)
    _branch(directory, "read").begin(str(directory / "table"))


def _branch(directory: Path, name: str) -> Branch:
    from dagster_delta import Branch

    return Branch(str(directory), name)


def _begin(directory: Path, size: int) -> Callable[[], object]:
    branch, production = _branch(directory, str(uuid.uuid4())), str(directory / "table")

    def run() -> object:
        table = branch.begin(production)
        assert table is not None
        return table.snapshot().num_files

    return run


def _list(directory: Path, size: int) -> Callable[[], object]:
    from dagster_delta import DeltaTable

    return lambda: DeltaTable(str(directory / "table")).snapshot().files().num_rows


def _in_branch(read: Callable[[DeltaTable], object]) -> Peer:
    def start(directory: Path, size: int) -> Callable[[], object]:
        branch, production = _branch(directory, "read"), str(directory / "table")
        # Modules that are imported late are loaded on both sides.
        read(branch.open(production))
        return lambda: read(branch.open(production))

    return start


def _in_production(read: Callable[[DeltaTable], object]) -> Peer:
    def start(directory: Path, size: int) -> Callable[[], object]:
        from dagster_delta import DeltaTable

        production = str(directory / "table")
        read(DeltaTable(production))
        return lambda: read(DeltaTable(production))

    return start


def _read_case(
    title: str, size: int, prepare: Callable[[Path, int], None], where: str | None
) -> Case:
    def read(table: DeltaTable) -> object:
        return table.snapshot().scan(where=where).to_arrow().num_rows

    peers = {"a branch": _in_branch(read), "production": _in_production(read)}
    return Case(f"{title} through a branch", size, prepare, peers, rounds=5)


CASES = {
    "begin": Case(
        "begin of a branch of {size} files",
        100_000,
        _prepare_files,
        {"a branch": _begin, "listing the files": _list},
        rounds=5,
    ),
    "needle": _read_case(
        "one row in {size} files",
        100_000,
        _prepare_files,
        "id = -1",
    ),
    "rows": _read_case("{size} rows", 5_000_000, _prepare_rows, None),
}

if __spec__ is not None:
    main(__name__, __spec__.name, CASES)
