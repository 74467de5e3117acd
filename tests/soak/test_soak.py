"""A short run of each part of the soak run, with fixed seeds."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.soak.part import run_part
from tests.soak.parts import PARTS
from tests.soak.summary import describe_failures, render_summary

pytestmark = pytest.mark.soak


@pytest.mark.parametrize("name", list(PARTS))
def test_a_short_run_finds_no_failure(name: str, tmp_path: Path) -> None:
    result = run_part(PARTS[name], seconds=1, seed=7, findings=tmp_path, short=True)
    if result.skipped and not result.rounds:
        pytest.skip(result.skipped)
    report = f"{describe_failures([result])}\n{render_summary([result])}"
    assert not result.failures, report
    assert result.operations
    assert result.faults.total()
