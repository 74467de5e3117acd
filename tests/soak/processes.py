"""Processes that start in milliseconds, from a server that has imported the library."""

from __future__ import annotations

import multiprocessing
from multiprocessing.context import ForkServerContext

__all__ = ["preloaded_processes"]


def preloaded_processes() -> ForkServerContext:
    """A context whose processes are forked from a process that runs no thread."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["tests.soak.preload", "tests.soak.crash_writer"])
    return context
