"""Run in a process with the preloaded library: public operations while a system call fails.

`python -m tests.soak.system_fault_worker LIBRARY DIRECTORY SEED SHORT SECONDS`; prints JSON lines.
"""

from __future__ import annotations

import ctypes
import errno
import json
import logging
import random
import shutil
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dagster_delta import DeltaTable
from dagster_delta.errors import DeltaError
from tests.soak.public_operations import OPERATIONS, Place, PublicOperation, Rows, fill, rows_of

SHORT_READ = -1
ERRORS: dict[str, tuple[tuple[str, int, bool], ...]] = {
    "read": (("EIO", errno.EIO, False), ("short read", SHORT_READ, False)),
    "write": (("ENOSPC", errno.ENOSPC, True), ("EIO", errno.EIO, False)),
    "open": (("EIO", errno.EIO, False), ("EMFILE", errno.EMFILE, True)),
    "rename": (("EIO", errno.EIO, False), ("ENOSPC", errno.ENOSPC, True)),
    "fsync": (("EIO", errno.EIO, False),),
    "unlink": (("EROFS", errno.EROFS, True),),
}
"""Call → (name, error number, whether all later calls fail as well)."""
STRIKES = 6
"""Most numbers that are struck per kind of call and error."""


@dataclass(frozen=True)
class _Fault:
    call: str
    error: str
    code: int
    persistent: bool
    number: int


class _Injector:
    def __init__(self, library: str, root: Path) -> None:
        self._library: Any = ctypes.CDLL(library)
        self._library.soak_arm.argtypes = [
            ctypes.c_char_p, ctypes.c_char_p, ctypes.c_int, ctypes.c_long, ctypes.c_int,
        ]  # fmt: skip
        self._library.soak_disarm.restype = ctypes.c_long
        self._root = str(root).encode()

    def arm(self, fault: _Fault) -> None:
        call = fault.call.encode()
        self._library.soak_arm(self._root, call, fault.code, fault.number, fault.persistent)

    def disarm(self) -> int:
        return int(self._library.soak_disarm())


class Worker:
    """Copies of one table, and operations on them."""

    def __init__(
        self, library: str, directory: Path, seed: int, *, short: bool, seconds: float
    ) -> None:
        self.template = directory / "template"
        self.copy = directory / "copy"
        self.chance = random.Random(seed)
        self.short = short
        self.deadline = time.monotonic() + seconds
        self.before = rows_of(fill(str(self.template)))
        self.injector = _Injector(library, self.copy)

    def run(self) -> None:
        """Every operation, and a sample of the calls it makes, until the time is over."""
        for operation in self.chance.sample(OPERATIONS, len(OPERATIONS)):
            after, value, faults = self._undisturbed(operation)
            if self.short:
                faults = self.chance.sample(faults, min(2, len(faults)))
            for fault in faults:
                if time.monotonic() >= self.deadline:
                    return
                problem = self._strike(operation, fault, after, value)
                _print(fault=f"{fault.call} {fault.error}", problem=problem, about=repr(fault))

    def _fresh(self) -> tuple[DeltaTable, Place]:
        shutil.rmtree(self.copy, ignore_errors=True)
        root = self.copy / "table"
        shutil.copytree(self.template, root)
        options = {"fsync": "true"}
        place = Place(str(self.copy / "other"), storage_options=options)
        return DeltaTable(str(root), storage_options=options), place

    def _undisturbed(self, operation: PublicOperation) -> tuple[Rows, object, list[_Fault]]:
        faults = []
        kinds = self.chance.sample(list(ERRORS.items()), 2 if self.short else len(ERRORS))
        for call, errors in kinds:
            table, place = self._fresh()
            self.injector.arm(_Fault(call, "", 0, False, 0))
            value = operation.run(table, place)
            count = self.injector.disarm()
            numbers = self.chance.sample(range(1, count + 1), min(count, STRIKES))
            for number in sorted(numbers):
                faults += [_Fault(call, *error, number) for error in errors]
        return rows_of(table), value, faults

    def _strike(
        self, operation: PublicOperation, fault: _Fault, after: Rows, value: object
    ) -> tuple[str, str] | None:
        """What is wrong, if anything."""
        table, place = self._fresh()
        error: DeltaError | None = None
        found: object = None
        self.injector.arm(fault)
        try:
            found = operation.run(table, place)
        except DeltaError as refused:
            error = refused
        except Exception as raised:  # noqa: BLE001 - what it is, is the finding
            title = f"{operation.name}: {type(raised).__name__} where {fault.call} fails"
            return title, f"{fault.error}: {raised!r}"[:500]
        finally:
            self.injector.disarm()
        if error is None and operation.reads and operation.name != "files" and found != value:
            return f"{operation.name}: another result where {fault.call} fails", f"{found}"[:500]
        try:
            rows = rows_of(DeltaTable(table.uri))
        except DeltaError as unreadable:
            title = f"{operation.name}: unreadable after {fault.call} failed"
            return title, f"{error!r}, then {unreadable}"
        if rows != after and (error is None or rows != self.before):
            return f"{operation.name}: other rows after {fault.call} failed", f"{error!r}"
        return None


def _print(**line: object) -> None:
    sys.stdout.write(json.dumps(line) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    logging.disable(logging.CRITICAL)
    library, directory, seed, short, seconds = sys.argv[1:]
    worker = Worker(
        library, Path(directory), int(seed), short=short == "True", seconds=float(seconds)
    )
    worker.run()
