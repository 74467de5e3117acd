"""Part `hostile`: hand-made tables, each opened, read and changed in a process with limits.

Each operation has to give a result or a DeltaError: no other exception, no hang, no crash, no more
memory than the limit; and nothing outside of the table's root changes.
"""

from __future__ import annotations

import hashlib
import logging
import os
import resource
import time
import traceback
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa

from dagster_delta import DeltaTable
from dagster_delta.errors import (
    CorruptLog,
    DeltaError,
    LogGap,
    MemoryExhausted,
    MissingMetadata,
    MissingProtocol,
)
from tests.soak.hostile_draft import Draft, HostileTable
from tests.soak.hostile_files import hostile_files
from tests.soak.hostile_logs import hostile_logs
from tests.soak.part import Round
from tests.soak.processes import ended, preloaded_processes

MEMORY_BYTES = 3 << 30
CPU_S = 20
IDLE_S = 40.0


def hostile_tables() -> list[HostileTable]:
    """All hostile tables."""
    return [*hostile_logs(), *hostile_files()]


def _count(table: DeltaTable) -> None:
    found = table.snapshot().scan().count()
    if found < 0:
        raise AssertionError(f"count is {found}")


ACTIONS: dict[str, Callable[[DeltaTable], object]] = {
    "scan": lambda table: table.snapshot().scan().to_arrow().num_rows,
    "scan with a filter": lambda table: table.snapshot().scan(where="id > 1").to_arrow().num_rows,
    "count": _count,
    "files": lambda table: table.snapshot().files().num_rows,
    "history": lambda table: table.history(),
    "changes": lambda table: table.changes(starting_version=0).to_arrow().num_rows,
    "health": lambda table: table.health(),
    "append": lambda table: table.append(pa.table({"id": pa.array([9], pa.int64())})),
    "delete": lambda table: table.delete("id = 1"),
    "update": lambda table: table.update({"id": "id + 10"}, where="id = 2"),
    "alter": lambda table: table.add_column("added", "INT"),
    "optimize": lambda table: table.optimize(max_deleted_share=0),
    "checkpoint": lambda table: table.checkpoint(),
    "vacuum": lambda table: table.vacuum(0, dry_run=False, enforce_retention=False),
    "clean_log": lambda table: table.clean_log(0, dry_run=False, enforce_retention=False),
    "restore": lambda table: table.restore(0),
}


def visit(root: str, report: str, actions: Sequence[str]) -> None:
    """Do some of the actions to one table, and write what happened line by line; runs in its own
    process.

    The first one that runs out of memory is the last: allocators keep addresses that they have had,
    and the next action would fail for want of them.
    """
    logging.disable(logging.CRITICAL)
    limit_resources()
    with open(report, "a", buffering=1, errors="backslashreplace") as lines:

        def attempt(name: str, act: Callable[[], object]) -> DeltaError | None:
            lines.write(f"begin {name}\n")
            try:
                act()
            except DeltaError as error:
                return error
            except Exception as error:  # noqa: BLE001 - it is what is looked for
                where = traceback.extract_tb(error.__traceback__)
                frames = [f"{frame.filename}:{frame.lineno}" for frame in where[-6:]]
                text = str(error)[:200].replace("\n", " ")
                lines.write(f"raised {type(error).__name__}|{name}|{text} {frames}\n")
            return None

        if attempt("open", lambda: DeltaTable(root)) is None:
            errors: dict[str, DeltaError | None] = {}
            for name in actions:
                errors[name] = attempt(name, lambda act=ACTIONS[name]: act(DeltaTable(root)))  # type: ignore[misc]
                if isinstance(errors[name], MemoryExhausted):
                    lines.write(f"exhausted {name}\n")
                    return
            damage = (CorruptLog, LogGap, MissingMetadata, MissingProtocol)
            unread = errors.get("scan")
            if isinstance(unread, damage) and errors["append"] is None:
                lines.write(f"raised append onto damage|append|acknowledged, {unread}\n")
        lines.write("begin end\n")


def limit_resources(cpu_s: int = CPU_S) -> None:
    """Limit the memory, processor time and file size of this process."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    limit = pages * resource.getpagesize() + MEMORY_BYTES
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    resource.setrlimit(resource.RLIMIT_CPU, (cpu_s, cpu_s))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 30, 1 << 30))
    # Reading a terminal or another input would hang.
    os.close(0)


def play_hostile_round(round_: Round) -> None:
    """Visit every table; in a short round, every eighth one."""
    tables = hostile_tables()
    if round_.short:
        tables = tables[round_.random.randrange(8) :: 8]
    round_.random.shuffle(tables)

    def visit_in_time(table: HostileTable) -> _Visit | None:
        return None if round_.is_over else _visit_apart(round_.scratch, table)

    with ThreadPoolExecutor(2) as pool:
        for visited in filter(None, pool.map(visit_in_time, tables)):
            round_.fault("tables")
            round_.result.operations += visited.operations
            for title, detail in visited.problems.items():
                round_.fail(f"{visited.name}: {title}", detail, save=visited.root)


@dataclass
class _Visit:
    name: str
    root: Path
    operations: int = 0
    problems: dict[str, str] = field(default_factory=dict)
    """Kind of problem → details."""

    def add(self, title: str, detail: str) -> None:
        """Note a problem once, with all its occurrences."""
        self.problems[title] = f"{self.problems.get(title, '')}{detail}\n"


def _visit_apart(scratch: Path, table: HostileTable) -> _Visit:
    directory = scratch / hashlib.sha256(table.name.encode()).hexdigest()[:12]
    directory.mkdir()
    draft, report = Draft(directory), directory / "report"
    draft.begin()
    table.build(draft)
    before = _fingerprint(directory)
    actions = list(ACTIONS)
    while True:
        arguments = (str(draft.root), str(report), actions)
        process = preloaded_processes().Process(target=visit, args=arguments)
        process.start()
        hung = not ended(process, IDLE_S)
        lines = report.read_text().splitlines() if report.exists() else []
        if not lines or not lines[-1].startswith("exhausted "):
            break
        actions = actions[actions.index(lines[-1].removeprefix("exhausted ")) + 1 :]
    begun = [line.removeprefix("begin ") for line in lines if line.startswith("begin ")]
    visited = _Visit(table.name, draft.root, len(begun))
    if not begun or begun[-1] != "end":
        how = "hangs" if hung else f"ended by {process.exitcode}"
        visited.add(how, f"in {begun[-1] if begun else 'the start'}")
    for line in lines:
        if line.startswith("raised "):
            kind, action, detail = line.removeprefix("raised ").split("|", 2)
            visited.add(kind, f"{action}: {detail}")
    changed = sorted(before.items() ^ _fingerprint(directory).items())
    if changed:
        visited.add("changes files outside of the table", str(changed))
    return visited


def _fingerprint(directory: Path) -> dict[str, tuple[int, str]]:
    """Time and content of every file beside the table."""
    found = {}
    for path in sorted((directory / "outside").rglob("*")):
        content = path.read_bytes() if path.is_file() else b""
        found[str(path)] = (path.stat().st_mtime_ns, hashlib.sha256(content).hexdigest())
    for path in directory.iterdir():
        if path.name not in {"outside", "table", "report"}:
            found[str(path)] = (time.time_ns(), "new")
    return found
