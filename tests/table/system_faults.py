"""Operations on a local table of which one call of the system fails, in a process of its own.

The process has `failing_calls.c` preloaded. It prints a line per bad outcome, and the number of
trials at the end.
"""

from __future__ import annotations

import ctypes
import errno
import os
import shutil
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from dagster_delta.errors import CommitStateUnknown, StorageFailure, TableNotFound
from dagster_delta.table.delta_table import DeltaTable
from tests.table.fault_operations import READS, WRITES, Rows, table_objects
from tests.table_rows import sorted_rows

TRIALS_PER_CALL = 4
"""Of the calls of a kind that an operation makes, so many fail, one in each trial."""

CALLS = {
    "open": (errno.EIO,),
    "read": (errno.EIO,),
    "create": (errno.ENOSPC, errno.EIO),
    "write": (errno.ENOSPC, errno.EIO),
    "close": (errno.EIO,),
    "link": (errno.EIO,),
    "rename": (errno.EIO,),
    "mkdir": (errno.ENOSPC,),
    "unlink": (errno.EIO,),
}


def _clone(table: DeltaTable, *, deep: bool) -> Rows:
    target = f"{table.uri}-clone"
    table.clone(target, deep=deep)
    return _rows(target)


OPERATIONS: dict[str, Callable[[DeltaTable], object]] = {
    **READS,
    **WRITES,
    "deep clone": lambda table: _clone(table, deep=True),
    "shallow clone": lambda table: _clone(table, deep=False),
}


def _rows(root: str) -> Rows:
    return sorted_rows(DeltaTable(root).snapshot().scan().to_arrow())


class _Trials:
    """Trials of one operation."""

    def __init__(self, library: ctypes.CDLL, operation: str, directory: Path) -> None:
        self._library = library
        self._operation = operation
        self._original = directory / "original"
        self._root = str(directory / "table")
        self._prefix = str(directory / "table").encode()
        for path, data in table_objects().items():
            file = self._original / path
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(data)
        self._old = _rows(str(self._original))
        self._renew()
        self._new, self._result = self._run()

    def _renew(self) -> None:
        for root in (self._root, f"{self._root}-clone"):
            shutil.rmtree(root, ignore_errors=True)
        shutil.copytree(self._original, self._root, copy_function=os.link)

    def _run(self) -> tuple[Rows, object]:
        result = OPERATIONS[self._operation](DeltaTable(self._root))
        return _rows(self._root), result if isinstance(result, list) else None

    def run(self) -> int:
        """Make the trials; returns how many there were."""
        trials = 0
        for call, codes in CALLS.items():
            self._renew()
            self._fail(call, 0, 0)
            OPERATIONS[self._operation](DeltaTable(self._root))
            count = self._library.stop_failing()
            step = max(1, count // TRIALS_PER_CALL)
            for code in codes:
                for number in range(1, count + 1, step):
                    self._try(call, code, number)
                    trials += 1
        return trials

    def _fail(self, call: str, code: int, number: int) -> None:
        # A disk that is full stays so.
        is_lasting = int(code == errno.ENOSPC)
        self._library.fail_call(self._prefix, call.encode(), code, number, is_lasting)

    def _try(self, call: str, code: int, number: int) -> None:
        self._renew()
        what = f"{self._operation}, {call} {number}, {errno.errorcode[code]}"
        allowed = [self._old, self._new]
        self._fail(call, code, number)
        try:
            result = OPERATIONS[self._operation](DeltaTable(self._root))
            allowed = [self._new]
            if self._result is not None and result != self._result:
                _report(f"{what}: other rows were read")
        except (StorageFailure, CommitStateUnknown) as error:
            if code == errno.ENOSPC and "the disk is full" not in str(error):
                _report(f"{what}: it is not said that the disk is full: {error}")
            if "damaged" in str(error) or not (error.file or error.version):
                _report(f"{what}: {error}")
        except Exception as error:  # noqa: BLE001 - whatever it is, it is what is looked for
            _report(f"{what}: {type(error).__name__}: {error}")
        finally:
            self._library.stop_failing()
        if _rows(self._root) not in allowed:
            _report(f"{what}: other rows are left")
        self._check_clone(what)

    def _check_clone(self, what: str) -> None:
        try:
            if _rows(f"{self._root}-clone") != self._old:
                _report(f"{what}: the clone has other rows")
        except TableNotFound:
            return


def _report(line: str) -> None:
    sys.stdout.write(line.replace("\n", " ") + "\n")


def main(library_path: str, operations: list[str]) -> None:
    """Make all trials of some operations."""
    library = ctypes.CDLL(library_path)
    library.fail_call.argtypes = [
        ctypes.c_char_p,
        ctypes.c_char_p,
        ctypes.c_int,
        ctypes.c_long,
        ctypes.c_int,
    ]
    library.stop_failing.restype = ctypes.c_long
    trials = 0
    for operation in operations:
        with tempfile.TemporaryDirectory() as directory:
            trials += _Trials(library, operation, Path(directory)).run()
    sys.stdout.write(f"{trials} trials\n")


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:] or list(OPERATIONS))
