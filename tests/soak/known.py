"""Failures that are known and accepted for now. The list is meant to be empty."""

from __future__ import annotations

import re
from dataclasses import dataclass

__all__ = ["KNOWN", "KnownFailure"]


@dataclass(frozen=True)
class KnownFailure:
    """Failures of one part that do not make a run fail."""

    part: str
    title: str
    """Regular expression that matches the whole title of a failure."""
    why: str

    def matches(self, part: str, title: str) -> bool:
        """Whether a failure is this one."""
        return part == self.part and re.fullmatch(self.title, title) is not None


KNOWN: tuple[KnownFailure, ...] = (
    KnownFailure(
        "hostile",
        ".*: append onto damage",
        "a blind append does not decode the values of adds that other writers committed",
    ),
)
