"""The documentation site has every public name; `make site` checks its links and builds it."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from pathlib import Path

import dagster_delta
from dagster_delta import errors

ROOT = Path(__file__).parents[1]
PAGES = {page: page.read_text() for page in sorted((ROOT / "docs").rglob("*.md"))}


def test_every_public_name_is_on_one_page() -> None:
    described = [
        name
        for text in PAGES.values()
        for name in re.findall(r"(?m)^::: dagster_delta\.(\w+)$", text)
    ]
    assert sorted(set(described)) == sorted(described)
    expected = {name for name in dagster_delta.__all__ if name not in {"__version__"}}
    assert {*described, "DeltaError"} - {"errors"} == expected


def test_every_error_is_drawn_below_its_base() -> None:
    drawn = [line.rstrip() for line in (inspect.getdoc(errors) or "").splitlines()]
    tree = [line.split() for line in drawn if "── " in line]
    names = [words[words.index(next(w for w in words if w[0].isalpha()))] for words in tree]
    assert names == [kind.__name__ for kind in subclasses(errors.DeltaError)]
    assert set(names) | {"DeltaError"} == set(errors.__all__)


def subclasses(kind: type[Exception]) -> Iterator[type[Exception]]:
    """Those of the library itself, each before its own; the suite makes others."""
    for each in kind.__subclasses__():
        if each.__module__ == errors.__name__:
            yield each
            yield from subclasses(each)
