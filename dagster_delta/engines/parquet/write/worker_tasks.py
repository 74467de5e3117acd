"""Worker threads that encode row groups at once, and write those of one file in order."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, Protocol

import msgspec

if TYPE_CHECKING:
    from dagster_delta.engines.parquet.write.file import EncodedRowGroup

_MAX_WORKERS = 8
_TASK_BYTES = 1024 * 1024
"""Arrow bytes of the rows that a worker gets at once, of one or several partitions."""
_FILE_BYTES = 32 * 1024
"""Bytes of rows whose encoding takes about as long as creating a file."""


class Ordered(Protocol):
    """A partition whose row groups are written in the order in which they are passed."""

    last_task: Future[None] | None


class _Step(msgspec.Struct, frozen=True):
    partition: Ordered
    encode: Callable[[], list[EncodedRowGroup]]
    write: Callable[[list[EncodedRowGroup]], None]


class WorkerTasks:
    """Passes work to threads, several partitions at a time if they are small.

    `max_bytes`: Arrow bytes of the rows that may be with the workers before `run` waits.
    """

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        num_workers = max(2, min(os.cpu_count() or 2, _MAX_WORKERS))
        self._workers = ThreadPoolExecutor(num_workers, "delta-write")
        self._steps: list[_Step] = []
        self._step_bytes = 0
        self._running: deque[tuple[Future[None], int]] = deque()
        self._running_bytes = 0

    def run(
        self,
        partition: Ordered,
        size_bytes: int,
        encode: Callable[[], list[EncodedRowGroup]],
        write: Callable[[list[EncodedRowGroup]], None],
    ) -> None:
        """Encode at any time, then write after everything passed before for this partition.

        Raises the error of an earlier task.
        """
        self._steps.append(_Step(partition, encode, write))
        self._step_bytes += size_bytes + _FILE_BYTES
        if self._step_bytes >= _TASK_BYTES:
            self._submit()
            self._wait_until_running(self._max_bytes)

    def finish(self) -> None:
        """Wait until everything is done. Raises the error of a task."""
        if self._steps:
            self._submit()
        self._wait_until_running(0)
        self._workers.shutdown()

    def stop(self) -> None:
        """Let the workers finish their current tasks, and drop the others."""
        self._workers.shutdown(wait=True, cancel_futures=True)

    def _submit(self) -> None:
        turns = [(step.encode, step.write, step.partition.last_task) for step in self._steps]

        def run_in_turn() -> None:
            for encode, write, previous in turns:
                groups = encode()
                # Workers take tasks in the order they were given, so this one has been started.
                if previous is not None:
                    previous.result()
                write(groups)

        task = self._workers.submit(run_in_turn)
        for step in self._steps:
            step.partition.last_task = task
        self._running.append((task, self._step_bytes))
        self._running_bytes += self._step_bytes
        self._steps, self._step_bytes = [], 0

    def _wait_until_running(self, max_bytes: int) -> None:
        while self._running and (self._running_bytes > max_bytes or self._running[0][0].done()):
            task, size_bytes = self._running.popleft()
            task.result()
            self._running_bytes -= size_bytes
