"""The page on the architecture names files and functions that exist."""

from __future__ import annotations

import re
from pathlib import Path

import dagster_delta

PACKAGE = Path(dagster_delta.__file__).parent
PAGE = (PACKAGE.parent / "docs" / "architecture.md").read_text()


def test_every_file_on_the_page_exists() -> None:
    named = set(re.findall(r"`((?:\w+/)+(?:\w+\.py)?)`", PAGE))
    assert len(named) > 60
    named.discard("tests/test_architecture_page.py")
    assert {path for path in named if not (PACKAGE / path).exists()} == set()


def test_every_function_on_the_page_is_defined_in_its_file() -> None:
    named = re.findall(r"`((?:\w+/)+\w+\.py)` `(\w+)`", PAGE)
    assert len(named) > 40
    missing = [
        (path, name)
        for path, name in named
        if not re.search(rf"\b(?:def|class) {name}\b", (PACKAGE / path).read_text())
    ]
    assert missing == []


def test_every_room_is_on_the_page() -> None:
    drawn = PAGE.partition("## Layers")[2].partition("```\n\n")[0]
    rooms = {path.parent.relative_to(PACKAGE).as_posix() for path in PACKAGE.rglob("*.py")}
    names = {room.rpartition("/")[2] for room in rooms if "/" in room}
    assert {name for name in names if f"{name}/" not in drawn} == set()
