"""`make release` changes the version and the changelog, and refuses what it cannot release."""

from __future__ import annotations

import datetime as dt
import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

import dagster_delta

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def release() -> ModuleType:
    spec = importlib.util.spec_from_file_location("release", ROOT / ".ci" / "release.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_version_is_in_one_place(release: ModuleType) -> None:
    text = (ROOT / release.VERSION_FILE).read_text()
    assert f'__version__ = "{dagster_delta.__version__}"' in text
    assert '__version__ = "99.0.0"' in release.set_version(text, "99.0.0")


@pytest.mark.parametrize("version", ["0.0.1", "1.0", "v1.0.0", "1.0.0rc1"])
def test_a_version_that_is_lower_or_malformed_is_refused(release: ModuleType, version: str) -> None:
    with pytest.raises(ValueError, match=version):
        release.set_version('__version__ = "0.1.0"', version)


def test_what_is_unreleased_gets_the_heading_of_the_version(release: ModuleType) -> None:
    changelog = "# Changelog\n\n## Unreleased\n\n- New.\n\n## 0.1.0 - 2026-01-01\n\n- Old.\n"
    assert release.set_heading(changelog, "0.2.0", dt.date(2026, 2, 1)) == (
        "# Changelog\n\n## Unreleased\n\n## 0.2.0 - 2026-02-01\n\n- New.\n\n"
        "## 0.1.0 - 2026-01-01\n\n- Old.\n"
    )


@pytest.mark.parametrize(
    ("changelog", "message"),
    [
        ("# Changelog\n\n## Unreleased\n\n## 0.1.0 - 2026-01-01\n\n- Old.\n", "nothing below"),
        ("# Changelog\n\n## Unreleased\n\n- New.\n\n## 0.2.0 - 2026-01-01\n", "has a heading"),
    ],
)
def test_a_release_without_changes_or_twice_is_refused(
    release: ModuleType, changelog: str, message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        release.set_heading(changelog, "0.2.0", dt.date(2026, 2, 1))
