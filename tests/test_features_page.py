"""docs/features.md says what the code does, and every claim on it names a test that exists."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from docs.features import OPERATIONS, PAGE, render

ROOT = Path(__file__).parents[1]


def test_the_page_is_up_to_date() -> None:
    assert PAGE.read_text() == render(), "run `make docs`"


@pytest.mark.parametrize(
    "test", sorted({t for each in OPERATIONS for t in (each.arrow, each.spark) if t})
)
def test_each_claim_names_a_test_that_exists(test: str) -> None:
    path, function = test.split("::")
    tree = ast.parse((ROOT / path).read_text())
    names = {
        node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.ClassDef)
    }
    assert function in names
