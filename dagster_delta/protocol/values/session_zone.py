"""The time zone of times that are written without one: that of the session, as in delta-spark.

Spec: Partition Value Serialization.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

_ASKED: ContextVar[str | None] = ContextVar("_ASKED", default=None)
_finders: list[Callable[[], str]] = []


def session_zone() -> str:
    """The zone of the running statement, or else of the Spark session of this process, or UTC."""
    return _ASKED.get() or next((find() for find in _finders), "UTC")


def find_zone_by(find: Callable[[], str]) -> None:
    """Set what finds the zone of this process, which the protocol does not know."""
    _finders[:] = [find]


@contextmanager
def zone_of_statement(zone: str) -> Iterator[None]:
    """Run with the zone of one session, where the process may use another."""
    token = _ASKED.set(zone)
    try:
        yield
    finally:
        _ASKED.reset(token)
