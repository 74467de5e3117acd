"""Reports for the log of a run: their Markdown as text that is easy to read in a terminal."""

from __future__ import annotations

import html
import re
from collections.abc import Iterator
from logging import Logger
from unicodedata import east_asian_width

_LINK = re.compile(r"\[([^\]]*)\]\([^)]*\)")
_IMAGE = re.compile(r"!\[[^\]]*\]\([^)]*\)")
_BOLD = re.compile(r"\*\*(.+?)\*\*")
_CELLS = re.compile(r"(?<!\\)\|")


def log_report(log: Logger, title: str, markdown: str) -> None:
    """Log a report of the UI as text, below a title."""
    # Nothing interprets a % in a message without arguments.
    log.info(f"{title}\n{terminal_text(markdown)}")


def terminal_text(markdown: str) -> str:
    """Markdown without markup, with aligned tables; images are omitted."""
    return "\n".join(_lines(markdown.strip().split("\n")))


def _lines(lines: list[str]) -> Iterator[str]:
    table: list[str] = []
    is_code = False
    for line in lines:
        if line.startswith("|") and not is_code:
            table.append(line)
            continue
        yield from _table(table)
        table = []
        if line.startswith("```"):
            is_code = not is_code
        elif is_code:
            yield f"  {line}"
        elif not _IMAGE.fullmatch(line.strip()):
            yield _plain(line)
    yield from _table(table)


def _plain(line: str) -> str:
    line = _LINK.sub(r"\1", _IMAGE.sub("", line.lstrip("#").strip() if line[:1] == "#" else line))
    return html.unescape(_BOLD.sub(r"\1", line).replace("`", "").replace("\\|", "|"))


def _table(lines: list[str]) -> Iterator[str]:
    """The rows of a Markdown table in aligned columns, whose numbers are right-aligned."""
    if len(lines) < 2:
        yield from map(_plain, lines)
        return
    head, rule, *rows = (_CELLS.split(line.strip().removeprefix("|").rstrip()) for line in lines)
    is_right = [cell.strip().endswith("-:") for cell in rule[:-1]]
    # A report with a cell too few or too many is shown all the same.
    empty = [""] * len(is_right)
    cells = [
        [_plain(cell.strip()) for cell in [*row[:-1], *empty][: len(is_right)]]
        for row in (head, *rows)
    ]
    widths = [max(map(_width, column)) for column in zip(*cells, strict=True)]
    for number, row in enumerate(cells):
        padded = (
            " " * (width - _width(cell)) + cell if right else cell + " " * (width - _width(cell))
            for cell, width, right in zip(row, widths, is_right, strict=True)
        )
        yield f"  {'  '.join(padded).rstrip()}"
        if number == 0:
            yield f"  {'  '.join('-' * width for width in widths)}"


def _width(text: str) -> int:
    """Cells of a terminal that the text takes."""
    return sum(2 if east_asian_width(each) in "WF" else 1 for each in text)
