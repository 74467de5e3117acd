"""docs/metadata.md has every key that the code records."""

from __future__ import annotations

import re
from pathlib import Path

import dagster_delta
from docs.metadata import PAGE, render

_NO_METADATA = {"delta/partition_expr", "delta/full_refresh"}
"""An option of an asset, and a tag of a run that is also a key."""


def test_the_page_is_up_to_date() -> None:
    assert PAGE.read_text() == render(), "run `make docs`"


def test_every_key_of_the_code_is_on_the_page() -> None:
    package = Path(dagster_delta.__file__).parent / "orchestration"
    recorded = {
        key
        for path in package.rglob("*.py")
        for key in re.findall(r'"((?:delta|spark)/[a-z_]+)"', path.read_text())
    }
    assert len(recorded) > 50
    described = set(re.findall(r"`([a-z]+/[a-z_]+)`", PAGE.read_text()))
    assert recorded - described - _NO_METADATA == set()
