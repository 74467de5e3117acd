"""Every change feed answer of the golden tables, through the embedded engine."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from dagster_delta import DeltaTable
from tests.golden.answers import NAMES, answer, row_counts, table_path

QUERIES = [(name, query) for name in NAMES for query in answer(name).get("cdf") or ()]

pytestmark = pytest.mark.usefixtures("golden_tables")


def printed(value: object) -> str:
    """A value as the printed answers spell it."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key}: {printed(each)}" for key, each in value.items()) + "}"
    return "" if value is None else str(value)


def query_id(query: tuple[str, dict[str, Any]]) -> str:
    name, asked = query
    return f"{name}-{asked['start']}-{asked['end']}-{asked['by'].split()[0]}"


def test_the_golden_queries_are_all_there() -> None:
    assert len(QUERIES) == 17


@pytest.mark.parametrize("query", QUERIES, ids=query_id)
def test_the_feed_of_a_golden_table_is_the_expected_one(query: tuple[str, dict[str, Any]]) -> None:
    name, asked = query
    feed = DeltaTable(table_path(name)).changes(asked["start"], asked["end"])
    rows = feed.to_arrow()
    found = Counter(
        zip(rows["_commit_version"].to_pylist(), rows["_change_type"].to_pylist(), strict=True)
    )
    assert found == {
        (each["version"], each["change_type"]): each["rows"] for each in asked["counts"]
    }
    assert rows["_commit_version"].to_pylist() == sorted(rows["_commit_version"].to_pylist())
    assert rows["_commit_timestamp"].null_count == 0
    if expected := asked.get("rows_as_printed"):
        compared = rows.select(list(expected[0])).to_pylist()
        spelled = [{key: printed(each) for key, each in row.items()} for row in compared]
        assert row_counts(spelled) == row_counts(expected)  # type: ignore[arg-type]
