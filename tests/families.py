"""Families of cases of which `make test` runs examples, and `make test-all` every case."""

from __future__ import annotations

from collections.abc import Iterable

import pytest


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
