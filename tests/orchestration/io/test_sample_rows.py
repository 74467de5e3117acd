"""Rows in the UI: only where they are wanted, few, short, and without masked values."""

from __future__ import annotations

import datetime as dt
import decimal

import dagster as dg
import pyarrow as pa
import pytest

from dagster_delta.errors import InvalidArgument, StorageFailure
from dagster_delta.orchestration.row_tables import MAX_COLUMNS, row_table


def sample_of(lake, result: dg.ExecuteInProcessResult) -> list[dict[str, object]] | None:
    (event,) = result.asset_materializations_for_node("events")
    value = event.metadata.get("delta/sample_rows")
    if value is None:
        return None
    assert isinstance(value, dg.TableMetadataValue)
    return [dict(each.data) for each in value.records]


def test_no_rows_are_shown_unless_an_asset_asks_for_them(lake, events) -> None:
    assert sample_of(lake, lake.materialize(events(pa.table({"id": [1]})))) is None


def test_a_few_rows_are_shown_without_their_masked_values(lake, events) -> None:
    rows = pa.table({"id": [1, 2, 3], "Email": ["a@x", None, "c@x"]})
    asset = events(rows, metadata={"sample_rows": 2, "masked_columns": ["email"]})
    assert sample_of(lake, lake.materialize(asset)) == [
        {"id": 1, "Email": "•••"},
        {"id": 2, "Email": None},
    ]


def test_the_rows_are_of_the_partitions_of_the_run(lake, events) -> None:
    asset = events(
        lambda context: pa.table({"p": [context.partition_key]}),
        partitions_def=dg.StaticPartitionsDefinition(["red", "blue"]),
        metadata={"partition_expr": "p", "sample_rows": 5},
    )
    lake.materialize(asset, partition="red")
    assert sample_of(lake, lake.materialize(asset, partition="blue")) == [{"p": "blue"}]


def test_a_misspelled_mask_shows_no_rows_and_a_warning(lake, events) -> None:
    asset = events(
        pa.table({"email": ["a@x"]}), metadata={"sample_rows": 5, "masked_columns": ["emial"]}
    )
    result = lake.materialize(asset)
    assert sample_of(lake, result) is None
    logged = [each.user_message for each in lake.instance.all_logs(result.run_id)]
    assert any("masked_columns names emial" in each for each in logged)


def test_rows_that_cannot_be_read_do_not_fail_the_run(lake, events, monkeypatch) -> None:
    def fail(*_):
        raise StorageFailure("the storage is away")

    monkeypatch.setattr("dagster_delta.table.read.scan.Scan.to_batches", fail)
    result = lake.materialize(events(pa.table({"id": [1]}), metadata={"sample_rows": 1}))
    assert result.success
    assert sample_of(lake, result) is None


@pytest.mark.parametrize("count", [101, -1, "many"])
def test_a_sample_is_bounded(lake, events, count) -> None:
    error = lake.fail(events(pa.table({"id": [1]}), metadata={"sample_rows": count}))
    assert isinstance(error, InvalidArgument)
    assert "'sample_rows' of asset events is" in str(error)


def test_values_are_shown_exactly_or_as_short_texts() -> None:
    row = {
        "small": 2**53,
        "large": 2**53 + 1,
        "nan": float("nan"),
        "flag": True,
        "price": decimal.Decimal("1.10"),
        "day": dt.date(2013, 1, 1),
        "raw": b"\x00\xff",
        "tags": ["ä", None],
        "text": "x" * 1000,
    }
    table = row_table([row], ())
    assert table.records[0].data == {
        "small": 2**53,
        "large": str(2**53 + 1),
        "nan": "nan",
        "flag": True,
        "price": "1.10",
        "day": "2013-01-01",
        "raw": "00ff",
        "tags": '["ä", null]',
        "text": "x" * 100 + "…",
    }
    assert [each.type for each in table.schema.columns[:4]] == [
        "int",
        "string",
        "string",
        "bool",
    ]


def test_wide_rows_are_cut() -> None:
    table = row_table([{f"c{number}": number for number in range(200)}], ())
    assert len(table.schema.columns) == len(table.records[0].data) == MAX_COLUMNS


@pytest.mark.parametrize(
    "day", [pa.array([4_000_000], pa.date32()), pa.array([[4_000_000]], pa.list_(pa.date32()))]
)
def test_a_date_after_the_year_9999_does_not_fail_the_run(lake, events, day) -> None:
    rows = pa.table({"id": [1], "day": day})
    result = lake.materialize(events(rows, metadata={"sample_rows": 1}))
    found = sample_of(lake, result)
    assert found is not None
    assert [str(row["day"]).endswith("(outside the years 1 to 9999)") for row in found] == [True]


@pytest.mark.parametrize(
    "metadata",
    [
        {"table_properties": {"delta.constraints.short": "email = 'b'"}},
        {"partition_expr": "email"},
        {
            "mode": "merge",
            "merge_config": {"merge_type": "upsert", "predicate": "s.email = t.email"},
        },
    ],
)
def test_an_error_of_a_write_shows_no_rows_if_columns_are_masked(lake, events, metadata) -> None:
    partitions = dg.StaticPartitionsDefinition(["b"]) if "partition_expr" in metadata else None
    asset = events(
        pa.table({"email": ["a@x", "a@x"]}),
        partitions_def=partitions,
        metadata={**metadata, "masked_columns": ["email"]},
    )
    partition = None if partitions is None else "b"
    results = [lake.materialize(asset, partition=partition, raise_on_error=False) for _ in range(2)]
    assert not results[-1].success
    logged = repr(lake.instance.all_logs(results[-1].run_id))
    assert "not shown, as the asset has masked_columns" in logged
    assert "a@x" not in logged


def test_an_error_of_a_cast_shows_no_value_if_columns_are_masked(lake, events) -> None:
    metadata = {"mode": "append", "masked_columns": ["id"]}
    lake.materialize(events(pa.table({"id": pa.array([1], pa.int32())}), metadata=metadata))
    large = events(pa.table({"id": [987654321987]}), metadata=metadata)
    result = lake.materialize(large, raise_on_error=False)
    assert not result.success
    assert "987654321987" not in repr(lake.instance.all_logs(result.run_id))
