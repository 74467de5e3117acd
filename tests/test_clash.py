"""The other project of the same import name is detected and explained."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError

import pytest

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
    ("name", "ours"),
    [
        ("DeltaLakePyarrowIOManager", "DeltaIOManager"),
        ("DeltaLakePandasIOManager", 'default_load_type="pandas"'),
        ("PolarsDeltaIOManager", "DeltaIOManager"),
        ("LocalConfig", "LocalStorageOptions"),
        ("WriteMode", "a plain string"),
        ("write_deltalake", "append"),
        ("WriterProperties", "table property"),
        ("CommitProperties", "commit_info"),
        ("PostCommitHookProperties", "table properties"),
        ("QueryBuilder", "to_duckdb"),
    ],
)
def test_an_import_from_another_project_says_what_replaces_it(installed, name, ours):
    installed(None)
    with pytest.raises(ImportError, match="migration") as caught:
        exec(f"from dagster_delta import {name}")
    assert ours in str(caught.value)


def test_any_other_missing_name_is_just_missing(installed):
    installed(None)
    assert str(clash.missing_name("nope")) == "module 'dagster_delta' has no attribute 'nope'"
    assert isinstance(clash.missing_name("nope"), AttributeError)


def test_a_missing_name_mentions_the_clash_where_there_is_one(installed):
    installed("0.5.9")
    assert "is installed too" in str(clash.missing_name("nope"))
