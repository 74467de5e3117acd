"""The other project of the same import name is detected and explained."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError
from pathlib import Path

import pytest

import dagster_delta
from dagster_delta import clash


@pytest.fixture
def installed(monkeypatch):
    def pretend(other: str | None) -> None:
        def version(name: str) -> str:
            if name == clash.OTHER_DISTRIBUTION and other is not None:
                return other
            raise PackageNotFoundError(name)

        monkeypatch.setattr(clash, "version", version)
        clash.clash_explanation.cache_clear()

    yield pretend
    monkeypatch.undo()
    clash.clash_explanation.cache_clear()


def test_alone_there_is_nothing_to_explain(installed):
    installed(None)
    assert clash.clash_explanation() is None


def test_both_installed_is_explained_with_the_way_out(installed):
    installed("0.5.9")
    explanation = clash.clash_explanation()
    assert explanation is not None
    assert "dagster-delta 0.5.9" in explanation
    assert "pip uninstall dagster-delta dagster-delta-protocol" in explanation


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("DeltaLakePyarrowIOManager", r"nearest name is 'DeltaIOManager'; docs/migration.md"),
        ("PolarsDeltaIOManager", r"nearest name is 'DeltaIOManager'; docs/migration.md"),
        ("WriteMode", r"no attribute 'WriteMode'; docs/migration.md"),
        ("write_deltalake", "docs/migration.md"),
    ],
)
def test_an_import_from_another_project_names_the_nearest_and_the_page(installed, name, message):
    installed(None)
    with pytest.raises(ImportError, match=message):
        exec(f"from dagster_delta import {name}")


def test_every_name_of_another_project_is_on_the_page():
    page = (Path(__file__).parents[1] / "docs" / "migration.md").read_text()
    assert [name for name in clash._PEERS if name not in page] == []


def test_any_other_missing_name_is_just_missing(installed):
    installed(None)
    for name in ("nope", "OwnLakeComponent"):
        error = clash.missing_name(name, dagster_delta.__all__)
        assert str(error) == f"module 'dagster_delta' has no attribute {name!r}"
        assert isinstance(error, AttributeError)


def test_a_missing_name_mentions_the_clash_where_there_is_one(installed):
    installed("0.5.9")
    assert "is installed too" in str(clash.missing_name("nope", []))
