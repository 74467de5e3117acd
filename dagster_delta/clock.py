"""The time, which every operation takes as a parameter, so that tests control it."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeAlias

Clock: TypeAlias = Callable[[], int]
"""Milliseconds since the epoch."""


def now_ms() -> int:
    """Milliseconds since the epoch, from the wall clock."""
    return time.time_ns() // 1_000_000
