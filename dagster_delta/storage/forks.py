"""Clients with threads of their own do not survive `fork`: the copy has their locks and sockets but
not the threads, and would wait forever. So using one there is an error.
"""

from __future__ import annotations

import os

from dagster_delta.errors import StorageFailure

_is_used = False
_forked_after_use = False


def note_use() -> None:
    """Note that a client is used from now on. Raises as `check_not_forked` does."""
    global _is_used
    check_not_forked()
    _is_used = True


def check_not_forked() -> None:
    """Raises StorageFailure in a process that was forked after a client was used."""
    if _forked_after_use:
        raise StorageFailure(
            "This process was forked after cloud storage or HDFS was used, and the client's "
            "threads are not in the copy: start processes with 'spawn' or 'forkserver'"
        )


def _note_fork() -> None:
    global _forked_after_use
    _forked_after_use = _is_used


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_note_fork)
