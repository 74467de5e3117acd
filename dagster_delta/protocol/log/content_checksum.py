"""A CRC-32 that a JSON file of the log contains for its own contents.

The protocol has no CRC for commits and version checksums, and allows writers to add fields to both.
Without it, a damaged digit in a partition value reads as another value, and a commit truncated
between two lines as a smaller commit. Other readers ignore it.
"""

from __future__ import annotations

import re
import zlib

__all__ = ["CHECKSUM_KEY", "holds_checksum", "with_checksum"]

CHECKSUM_KEY = "contentCrc32"
"""The last key of the first line: of its `commitInfo` in a commit."""

# A quote inside a JSON text is escaped, so that the key cannot be part of one.
_STATED = re.compile(rb',"contentCrc32":(\d{1,10})(?=\}{1,2}$)')
_LONGEST = len(',"contentCrc32":4294967295}}')


def with_checksum(line: bytes, rest: bytes = b"", *, depth: int = 1) -> bytes:
    """The contents of a file, with its checksum added.

    Args:
        line: its first line, a JSON object that is not empty, without a newline.
        rest: the other lines, beginning with a newline.
        depth: 1 to put the checksum into the object, 2 into the object that is its last value.
    """
    end = len(line) - depth
    checksum = zlib.crc32(rest, zlib.crc32(line))
    return b'%b,"%b":%d%b%b' % (line[:end], CHECKSUM_KEY.encode(), checksum, line[end:], rest)


def holds_checksum(data: bytes) -> bool | None:
    """Whether a file matches its checksum; None if it has no checksum."""
    end = data.find(b"\n")
    end = len(data) if end < 0 else end
    stated = _STATED.search(data, max(0, end - _LONGEST), end)
    if stated is None:
        return None
    view = memoryview(data)
    return zlib.crc32(view[stated.end() :], zlib.crc32(view[: stated.start()])) == int(stated[1])
