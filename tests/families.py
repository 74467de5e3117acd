"""What `make test` leaves out, `make test-ci` runs by turns, and `make test-all` always: the other
cases of a family of which examples run, and what is slow.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable

import pytest

PARTS = {"exhaustive": 59, "slow": 7, "delta_spark": 5}
"""In how many turns the tests with a mark are all run. Prime numbers: whoever tests each fourth
commit, or each sixth, runs all."""

TURNS_ON_CONNECT = PARTS["slow"]
"""In how many turns the tests that classic sessions run too are run on Connect."""


def is_turn_on_connect(item: pytest.Item, turn: int) -> bool:
    """Whether the modules of this turn have the test."""
    return _is_turn(item.nodeid.partition("::")[0], TURNS_ON_CONNECT, turn)


def draw(items: Iterable[pytest.Item], turn: int) -> None:
    """Mark the tests of one part of those with a mark of `PARTS` as drawn.

    A test with several marks has its turn with the rarest. A module that is marked as a whole is
    drawn as a whole: what it starts serves all its tests.
    """
    for item in items:
        marks = [name for name in PARTS if item.get_closest_marker(name) is not None]
        if not marks:
            continue
        rarest = max(marks, key=PARTS.__getitem__)
        module = item.getparent(pytest.Module)
        is_whole = module is not None and any(mark.name == rarest for mark in module.own_markers)
        name = module.nodeid if module is not None and is_whole else item.nodeid
        if _is_turn(name, PARTS[rarest], turn):
            item.add_marker(pytest.mark.drawn)


def _is_turn(name: str, parts: int, turn: int) -> bool:
    return zlib.crc32(name.encode()) % parts == turn % parts


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
