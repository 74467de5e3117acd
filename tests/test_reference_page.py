"""docs/reference.md lists every public name, as the code describes it."""

from __future__ import annotations

import inspect
from collections.abc import Iterator

import dagster_delta
from dagster_delta import errors
from docs.reference import PAGE, SECTIONS, render


def test_the_page_is_up_to_date() -> None:
    assert PAGE.read_text() == render(), "run `make docs`"


def test_every_public_name_is_in_one_section() -> None:
    listed = [name for section in SECTIONS for name in section.names]
    assert sorted(listed) == sorted(set(dagster_delta.__all__) - {"__version__"})


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
