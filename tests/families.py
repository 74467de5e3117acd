"""Families of cases of which `make test` runs examples, `make test-ci` a part of the others by
turns, and `make test-all` every case.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable

import pytest

PARTS = 23
"""Of the exhaustive tests. A prime number: whoever tests each second or third commit draws all."""


TURNS_ON_CONNECT = 3
"""In how many turns the tests that classic sessions run too are run on Connect."""


def is_turn_on_connect(item: pytest.Item, turn: int) -> bool:
    """Whether the modules of this turn have the test."""
    module = item.nodeid.partition("::")[0]
    return zlib.crc32(module.encode()) % TURNS_ON_CONNECT == turn % TURNS_ON_CONNECT


def draw(items: Iterable[pytest.Item], turn: int) -> None:
    """Mark the exhaustive tests of one part as drawn; each `PARTS` turns draw every test once.

    A module that is exhaustive as a whole is drawn as a whole: what it starts serves all its tests.
    """
    for item in items:
        if item.get_closest_marker("exhaustive") is None:
            continue
        module = item.getparent(pytest.Module)
        is_whole = module is not None and any(
            mark.name == "exhaustive" for mark in module.own_markers
        )
        name = module.nodeid if module is not None and is_whole else item.nodeid
        if zlib.crc32(name.encode()) % PARTS == turn % PARTS:
            item.add_marker(pytest.mark.drawn)


def family(cases: Iterable[object], *examples: object) -> list[object]:
    """The cases as parameters of a test, marked as exhaustive but for some examples.

    Args:
        cases: each a value, or a tuple of values where the test has several parameters.
        examples: those that `make test` runs.
    """
    every = list(cases)
    absent = [each for each in examples if each not in every]
    assert not absent, f"no cases: {absent}"
    return [each if each in examples else _left_out(each) for each in every]


def _left_out(case: object) -> object:
    values = case if isinstance(case, tuple) else (case,)
    return pytest.param(*values, marks=pytest.mark.exhaustive)
