"""What a reader of a page does, in order: the files to save, and the commands to run.

A file is a block with a title, as ```` ```python title="defs.py" ````; a command is a line of a
`console` block after `$ `, and the lines below it are what it prints, where they are shown.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

_BLOCK = re.compile(
    r'^( *)```(?:\w+ title="([^"]+)"|console)\n(.*?)^\1```', re.DOTALL | re.MULTILINE
)


@dataclass(frozen=True, slots=True)
class SavedFile:
    """A file that the reader saves."""

    name: str
    text: str


@dataclass(frozen=True, slots=True)
class Command:
    """A command that the reader runs."""

    line: str
    printed: str
    """What the page shows below it; may be empty."""


def steps(page: Path) -> Iterator[SavedFile | Command]:
    """The files and commands of a page, in its order."""
    for _, title, block in _BLOCK.findall(page.read_text(encoding="utf-8")):
        body = textwrap.dedent(block)
        if title:
            yield SavedFile(title, body)
            continue
        for part in re.split(r"(?m)^\$ ", body)[1:]:
            line, _, printed = part.partition("\n")
            yield Command(line.partition("  #")[0].strip(), printed.strip())
