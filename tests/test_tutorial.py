"""The tutorial can be followed: its files are saved, and its commands run, in one process.

`make clean-environment` runs the same page with the commands themselves.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.page_commands import follow, forget

PAGE = Path(__file__).parents[1] / "docs" / "tutorial.md"


def test_each_step_of_the_tutorial_does_what_it_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert len(list(follow(PAGE, tmp_path, monkeypatch))) > 10
    forget("shop")
