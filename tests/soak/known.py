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
        "races",
        "add a column / add a column: the table cannot be read afterwards: DataFileMissing",
        "the refused one of two equal ALTER statements deletes the files of the other",
    ),
    KnownFailure(
        "crash",
        "a referenced file does not exist|a version cannot be read: DataFileMissing"
        "|[a-z_]+ on a sound table: DataFileMissing"
        "|the latest version, read (by checkpoint|from commit 0): DataFileMissing",
        "two equal ALTER statements, as in races",
    ),
)
