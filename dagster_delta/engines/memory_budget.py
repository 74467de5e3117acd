"""How much memory the embedded engine takes for rows before it writes them to temporary files."""

from __future__ import annotations

import os
import re
from pathlib import Path

import msgspec

from dagster_delta.errors import InvalidArgument
from dagster_delta.parquet.plans import BUFFER_BYTES

MEMORY_LIMIT_VARIABLE = "DAGSTER_DELTA_MEMORY_LIMIT"
"""Environment variable: the limit where a call sets none."""

_MIB = 1024 * 1024
_LEAST_BYTES = 64 * _MIB
_DEFAULT_SHARE = 0.5
_MAX_WORKERS = 4
_WORKER_BYTES = 256 * _MIB
_SIZE = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*(?:([KMGT]?)(I?)B)?")
_CGROUP_FILES = (
    "/sys/fs/cgroup/memory.max",
    "/sys/fs/cgroup/memory/memory.limit_in_bytes",
)


class MemoryBudget(msgspec.Struct, frozen=True):
    """The parts of a memory limit; an operation uses only some of them at a time."""

    sort_bytes: int
    """Arrow bytes of the rows that are sorted at once; more are put to temporary files first."""
    source_bytes: int
    """Arrow bytes of the source of a merge that are kept in memory; a larger one goes to a file."""
    join_bytes: int
    """Memory of the join of a merge, which spills beyond it."""
    buffer_bytes: int
    """Arrow bytes of rows that wait to be written."""
    num_workers: int
    """Groups of files that are compacted at once: each has the buffers of a reader and a writer."""

    @classmethod
    def of(cls, limit: int | str | None) -> MemoryBudget:
        """The parts of a limit.

        Args:
            limit: bytes, or a size such as `2GB` or `512MiB`, for the rows of an operation; None
                for `DAGSTER_DELTA_MEMORY_LIMIT`, or else half of the memory of the container or
                machine, of which an operation takes no more than makes it faster.

        Raises:
            InvalidArgument: it is not a size, or less than 64 MiB.
        """
        given = os.environ.get(MEMORY_LIMIT_VARIABLE) or None if limit is None else limit
        total = int(_memory_bytes() * _DEFAULT_SHARE) if given is None else size_bytes(given)
        if given is not None and total < _LEAST_BYTES:
            raise InvalidArgument(f"a memory limit is at least 64 MiB, not {given!r}")

        def part(divisor: int, default_mib: int) -> int:
            share = total // divisor
            return share if given is not None else min(share, default_mib * _MIB)

        return cls(
            sort_bytes=part(4, 128),
            source_bytes=part(4, 256),
            join_bytes=part(2, 1024),
            buffer_bytes=min(total // 8, BUFFER_BYTES),
            num_workers=max(1, min(_MAX_WORKERS, os.cpu_count() or 1, total // _WORKER_BYTES)),
        )


def size_bytes(limit: int | str) -> int:
    """The bytes of a size such as `2GB` or `512MiB`.

    Raises:
        InvalidArgument: it is not a size.
    """
    match = _SIZE.fullmatch(str(limit).strip().upper())
    if match is None:
        raise InvalidArgument(
            f"a memory limit (an argument, or {MEMORY_LIMIT_VARIABLE}) is a number of bytes, or a "
            f"size such as '2GB', not {limit!r}"
        )
    number, prefix, binary = match.groups()
    return int(float(number) * (1024 if binary else 1000) ** " KMGT".index(prefix or " "))


def _memory_bytes() -> int:
    """The memory of the container, or of the machine where there is no limit."""
    sizes = [os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")]
    for name in _CGROUP_FILES:
        try:
            text = Path(name).read_text().strip()
        except OSError:
            continue
        if text.isdecimal():
            sizes.append(int(text))
    return max(_LEAST_BYTES, min(sizes))
