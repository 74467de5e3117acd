"""Processes that start in milliseconds, from a server that has imported the library."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable, Iterator
from multiprocessing.context import ForkServerContext, ForkServerProcess
from pathlib import Path

_SAMPLE_S = 0.1


def preloaded_processes() -> ForkServerContext:
    """A context whose processes are forked from a process that runs no thread."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["tests.soak.preload", "tests.soak.crash_writer"])
    return context


def ended(process: ForkServerProcess, idle_s: float) -> bool:
    """Wait for a process, and kill it once it hangs; whether it ended by itself.

    Args:
        process: that was started.
        idle_s: as for `ended_by_itself`.
    """

    def has_ended(timeout: float) -> bool:
        process.join(timeout)
        return process.exitcode is not None

    if ended_by_itself(process.pid, has_ended, idle_s):
        return True
    process.kill()
    process.join()
    return False


def ended_by_itself(pid: int | None, has_ended: Callable[[float], bool], idle_s: float) -> bool:
    """Wait for a process until it has ended, or hangs.

    A busy machine makes a process slow, and a busy process ends by its limit of processor time. So
    only the time counts in which none of its threads could have run.

    Args:
        pid: of the process.
        has_ended: waits for so many seconds, and tells whether the process has ended.
        idle_s: seconds, added up, in which it may wait.
    """
    samples_left = idle_s / _SAMPLE_S
    while samples_left > 0:
        if has_ended(_SAMPLE_S):
            return True
        if not is_runnable(pid):
            samples_left -= 1
    return False


def is_runnable(pid: int | None) -> bool:
    """Whether a thread of a process runs, waits for a processor, or waits for a disk."""
    return any(state in "RD" for state in _thread_states(pid))


def _thread_states(pid: int | None) -> Iterator[str]:
    try:
        threads = os.listdir(f"/proc/{pid}/task")
    except (FileNotFoundError, ProcessLookupError):
        # The process has ended.
        return
    for thread in threads:
        try:
            text = Path(f"/proc/{pid}/task/{thread}/stat").read_text()
        except (FileNotFoundError, ProcessLookupError):
            # The thread has ended.
            continue
        # The name of the program comes before it, in parentheses, and may hold any character.
        yield text.rpartition(")")[2].split()[0]
