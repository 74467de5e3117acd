"""Write the table of features of `docs/features.md`, which follows from the code.

`python -m docs.features` writes it; the tables of properties and operations are written by hand.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

from dagster_delta.protocol.features.registry import TABLE_FEATURES, TableFeature

PAGE = Path(__file__).with_name("features.md")

_LINK = re.compile(r"\(\.\./(tests/[^)#]+)#(\w+)\)")


def demonstrations() -> set[tuple[str, str]]:
    """The tests that the page names: file and function."""
    return set(_LINK.findall(PAGE.read_text()))


def render() -> str:
    """The whole page."""
    return _with_rows(PAGE.read_text(), "| Feature |", map(_feature_row, TABLE_FEATURES))


def _with_rows(page: str, header: str, rows: Iterable[str]) -> str:
    """The page with other rows in the table of a header."""
    before, start, after = page.partition(f"\n{header}")
    head, separator = after.split("\n", 2)[:2]
    _, _, following = after.partition("\n\n")
    return "\n".join((f"{before}{start}{head}", separator, *rows, "", following))


def _feature_row(feature: TableFeature) -> str:
    names = " / ".join(f"`{name}`" for name in (feature.name, *feature.aliases))
    read, write = ("yes" if able else "no" for able in (feature.can_read, feature.can_write))
    return f"| {names} | {feature.description} | {read} | {write} |"


if __name__ == "__main__":
    PAGE.write_text(render())
