"""Clients of the cloud that ask twice, and without a pause.

As a program, it is the daemon of Spark's Python workers (`spark.python.daemon.module`), which
forks them from itself: so their clients are impatient too.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from types import SimpleNamespace

from pyspark import daemon

from dagster_delta.storage.cloud import client, requests, store


def make_impatient(replace: Callable[[object, str, object], None] = setattr) -> None:
    """Replace how often the clients ask, and how long they pause.

    Args:
        replace: sets an attribute of a module.
    """
    replace(client, "_RETRIES", 1)
    for pause in ("_FIRST_PAUSE", "_LONGEST_PAUSE"):
        replace(client, pause, timedelta(milliseconds=1))
    replace(requests, "_ATTEMPTS", 2)
    for module in (requests, store):
        replace(module, "time", SimpleNamespace(sleep=lambda _: None))


if __name__ == "__main__":
    make_impatient()
    daemon.manager()
