"""What the log knows of each column, shown with a materialization."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal

import dagster as dg
import pyarrow as pa
import pytest

from dagster_delta import DeltaTable
from dagster_delta.errors import InvalidArgument
from dagster_delta.orchestration.io import output_metadata
from dagster_delta.orchestration.row_tables import column_statistics

SHOWN = "delta/column_statistics"


def as_rows(value: dg.TableMetadataValue) -> dict[str, tuple[object, object, object]]:
    return {
        str(record.data["column"]): (
            record.data["min"],
            record.data["max"],
            record.data["nulls"],
        )
        for record in value.records
    }


def test_a_materialization_shows_them_only_if_the_asset_asks(lake, events) -> None:
    rows = pa.table({"id": [3, 1, None], "Email": ["b@x", None, "a@x"], "tags": [["a"], [], None]})
    (event,) = lake.materialize(events(rows)).asset_materializations_for_node("events")
    assert SHOWN not in event.metadata
    asset = events(rows, metadata={"column_statistics": True, "masked_columns": ["email"]})
    (event,) = lake.materialize(asset).asset_materializations_for_node("events")
    assert as_rows(event.metadata[SHOWN]) == {
        "id": (1, 3, 1),
        "Email": ("•••", "•••", 1),
        "tags": (None, None, 1),
    }


def test_a_table_with_too_many_files_shows_none(lake, events, monkeypatch) -> None:
    monkeypatch.setattr(output_metadata, "_MAX_STATISTICS", 1)
    rows = pa.table({"id": [1], "other": [2]})
    result = lake.materialize(events(rows, metadata={"column_statistics": True}))
    (event,) = result.asset_materializations_for_node("events")
    assert SHOWN not in event.metadata


def test_they_are_of_all_files_and_of_partition_values() -> None:
    day, amount = dt.date(2026, 1, 1), Decimal("1.50")
    columns = {"day": pa.array([day, None], pa.date32()), "amount": [amount, -amount]}
    rows = pa.table({**columns, "empty": pa.nulls(2, pa.string())})
    table = DeltaTable.create("memory://statistics/files", rows.schema, partition_by=["day"])
    table.append(rows)
    table.append(pa.table({**columns, "empty": ["x", None]}))
    assert as_rows(column_statistics(table.snapshot(), [])) == {
        "day": ("2026-01-01", "2026-01-01", 2),
        "amount": ("-1.50", "1.50", 0),
        "empty": ("x", "x", 3),
    }


def test_deleted_rows_leave_bounds_and_no_count_of_nulls() -> None:
    rows = pa.table({"id": [1, 2, 9]})
    properties = {"delta.enableDeletionVectors": "true"}
    table = DeltaTable.create("memory://statistics/rows", rows.schema, properties=properties)
    table.append(rows)
    table.delete("id = 9")
    assert as_rows(column_statistics(table.snapshot(), [])) == {"id": (1, 9, None)}


def test_what_one_file_does_not_tell_is_empty() -> None:
    rows = pa.table({"id": [1], "other": [5]})
    table = DeltaTable.create("memory://statistics/some", rows.schema)
    table.append(rows)
    table.alter("SET TBLPROPERTIES ('delta.dataSkippingStatsColumns' = 'id')")
    table.append(rows)
    found = column_statistics(table.snapshot(), [])
    assert as_rows(found) == {"id": (1, 1, 0), "other": (None, None, None)}


def test_an_empty_table_has_no_values() -> None:
    table = DeltaTable.create("memory://statistics/none", pa.schema([("id", pa.int64())]))
    assert as_rows(column_statistics(table.snapshot(), [])) == {"id": (None, None, None)}


def test_a_mask_that_names_no_column_is_refused() -> None:
    table = DeltaTable.create("memory://statistics/mask", pa.schema([("id", pa.int64())]))
    with pytest.raises(InvalidArgument, match="masked_columns names emial"):
        column_statistics(table.snapshot(), ["emial"])
