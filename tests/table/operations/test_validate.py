"""Rows that violate what their table declares, written by a writer that looks at no constraint."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dagster_delta import Column, DeltaTable
from dagster_delta.protocol.log.paths import commit_path


@pytest.fixture
def table(tmp_path: Path) -> DeltaTable:
    made = DeltaTable.create(
        tmp_path / "orders",
        [Column("id", "bigint", nullable=False), Column("price", "int")],
        properties={"delta.constraints.positive": "price > 0"},
    )
    made.append(
        pa.table({"id": pa.array([1, 2], pa.int64()), "price": pa.array([5, 6], pa.int32())})
    )
    return made


def add_unchecked(table: DeltaTable, rows: Mapping[str, list[Any]]) -> None:
    version = table.refresh().version + 1
    path = f"unchecked-{version}.parquet"
    schema = pa.schema([("id", pa.int64()), ("price", pa.int32())])
    pq.write_table(pa.table(rows, schema=schema), Path(table.uri) / path)
    add = {
        "path": path,
        "partitionValues": {},
        "size": (Path(table.uri) / path).stat().st_size,
        "modificationTime": 0,
        "dataChange": True,
    }
    (Path(table.uri) / commit_path(version)).write_text(json.dumps({"add": add}))
    table.refresh()


def test_rows_that_hold_give_no_violation(table: DeltaTable) -> None:
    result = table.validate()
    assert result.is_valid
    assert (result.num_rules, result.violations, result.examples) == (2, {}, ())


def test_violations_are_counted_by_rule_with_examples(table: DeltaTable) -> None:
    add_unchecked(table, {"id": [3, None, 4], "price": [-1, 7, 0]})
    result = table.validate(max_examples=2)
    assert not result.is_valid
    counts = {rule.partition(" (")[0]: count for rule, count in result.violations.items()}
    assert sorted(counts.values()) == [1, 2]
    assert any("price > 0" in rule and count == 2 for rule, count in result.violations.items())
    assert len(result.examples) == 2
    assert all(row["id"] is None or row["price"] <= 0 for row in result.examples)


def test_a_constraint_may_end_with_a_comment(table: DeltaTable) -> None:
    table.add_constraint("small", "price < 100 -- in euros")
    assert table.validate().is_valid
    add_unchecked(table, {"id": [3], "price": [100]})
    assert list(table.validate().violations.values()) == [1]


def test_a_rule_that_fails_on_a_value_hides_no_other(table: DeltaTable) -> None:
    table.add_constraint("inverse", "10 / price > 0")
    add_unchecked(table, {"id": [None], "price": [0]})
    result = table.validate()
    assert not result.is_valid
    assert list(result.unknown) == ["CHECK inverse"]
    assert sum(result.violations.values()) == 2


def test_only_rows_after_a_version_are_validated(table: DeltaTable) -> None:
    add_unchecked(table, {"id": [3], "price": [-1]})
    spoiled = table.version()
    table.append(pa.table({"id": pa.array([9], pa.int64()), "price": pa.array([9], pa.int32())}))
    assert table.validate(since=spoiled).is_valid
    assert not table.validate(since=spoiled - 1).is_valid
    assert not table.validate().is_valid
