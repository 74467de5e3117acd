"""The time, which every operation takes as a parameter, so that tests control it."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeAlias

Clock: TypeAlias = Callable[[], int]
"""Milliseconds since the epoch."""

DAY_MS = 24 * 60 * 60 * 1000


def now_ms() -> int:
    """Milliseconds since the epoch, from the wall clock."""
    return time.time_ns() // 1_000_000


def midnight_before(time_ms: int) -> int:
    """The last midnight (UTC) at or before a time, both in milliseconds since the epoch."""
    return time_ms // DAY_MS * DAY_MS
