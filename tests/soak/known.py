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


_HOSTILE = {
    r"(add|txn|remove|metaData) \w+ (9223372036854775808|1180591620717411303424): OverflowError": (
        "integers beyond 64 bits are not refused as damage"
    ),
    "number of 400 digits: OverflowError": "integers beyond 64 bits",
    "inline vector: .* (4611686018427387904|1180591620717411303424): (OverflowError|ArrowInvalid)": (
        "numbers of deletion vectors are not checked"
    ),
    "property delta.deletedFileRetentionDuration = .*: OverflowError": "intervals beyond 64 bits",
    r".*\bdeep\b.*: RecursionError": "deep JSON is not refused as damage",
    ".* FIFO: hangs": "FIFOs are opened",
    "type: decimal.*: (ValueError|OverflowError|OSError)": "precisions of decimals are not checked",
    "column name: (null|number): AttributeError": "names of columns are not checked",
    "(add size is None|inline vector: sizeInBytes None): TypeError": "nulls in required fields",
    "(statistics: negative count|two files of 2.62 rows): AssertionError": "counts are not checked",
    "dictionary bomb: (RuntimeError|MemoryError|ended by .*|hangs)": "rows are not counted in bytes",
    ".*: append onto damage": "an append does not read the adds of the latest commits",
}
"""Failures of hostile tables: title → why."""

_FUZZ = {
    "(commit|schema|sql|alter|last_checkpoint|checksum): RecursionError": "deep input",
    "schema: (OverflowError|ValueError) in to_arrow_type": "precisions of decimals",
    "commit: OverflowError in integer_column": "integers beyond 64 bits",
    "alter: ValueError in integer": "integers of more than 4,300 digits",
}
"""Failures of parsers: title → why."""

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
    KnownFailure(
        "system",
        ".*: OSError where (read|open|write) fails",
        "errors of reading and copying files come as they are",
    ),
    *(KnownFailure("fuzz", title, why) for title, why in _FUZZ.items()),
    *(KnownFailure("hostile", title, why) for title, why in _HOSTILE.items()),
)
