"""Every key that the UI shows is in the registry, in one order."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import dagster_delta
from dagster_delta.orchestration.metadata_keys import DETAILS, METADATA_KEYS, shown

ROOT = Path(dagster_delta.__file__).parent / "orchestration"
NAMES = METADATA_KEYS


@pytest.mark.parametrize(
    "module",
    [
        "incremental/change_feed_assets.py",
        "io/output_metadata.py",
        "io/sql_assets.py",
        "table_metadata.py",
    ],
)
def test_every_key_of_a_module_is_in_the_registry(module: str) -> None:
    written = set(re.findall(r'"((?:delta|dagster)/[a-z_]+)"', (ROOT / module).read_text()))
    # A tag of columns, a tag of events, and the key of Dagster that names an IO manager.
    written -= {"delta/partition_column", "dagster/data_version", "dagster/io_manager_key"}
    assert written <= set(NAMES)


def test_every_key_is_there_once() -> None:
    assert len(set(NAMES)) == len(NAMES)


def test_keys_of_this_library_come_before_those_of_dagster() -> None:
    spaces = [name.partition("/")[0] for name in NAMES]
    assert spaces == sorted(spaces, reverse=True)


def test_details_are_merged_and_nothing_empty_is_shown() -> None:
    found = shown(
        {"mine": 0, "dagster/row_count": 0, DETAILS: {"a": 1, "b": None, "c": ""}},
        {"delta/rows_written": 0, "delta/version": 0, "delta/skipped": None, DETAILS: {"a": 2}},
    )
    assert list(found.items()) == [
        ("delta/version", 0),
        (DETAILS, {"a": 2}),
        ("dagster/row_count", 0),
        ("mine", 0),
    ]
    assert shown({DETAILS: {"a": None}}) == {}
