"""Retention as an option of an asset: which rows a run of maintenance counts, deletes and refuses."""

# No `from __future__ import annotations`: Dagster reads the annotations of assets itself.

from collections.abc import Callable, Mapping
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any

import dagster as dg
import pyarrow as pa
import pytest
from pydantic import ValidationError

from dagster_delta import DeltaTable, delta_maintenance_sensor
from dagster_delta.errors import DeltaError, InvalidArgument, SchemaMismatch
from dagster_delta.orchestration.io.asset_options import AssetOptions, read_asset_options
from dagster_delta.orchestration.maintenance.jobs import delta_maintenance_job
from dagster_delta.orchestration.maintenance.operations import RetentionConfig
from tests.orchestration.conftest import QUIET, Lake, library_error, plain

TODAY = datetime.now(UTC).date()


def days_ago(days: int) -> date:
    return TODAY - timedelta(days=days)


def asset_of(rows: pa.Table, retention: Any, **metadata: Any) -> dg.AssetsDefinition:
    @dg.asset(metadata={"mode": "append", "retention": retention, **metadata})
    def events() -> pa.Table:
        return rows

    return events


def maintain(
    lake: Lake, *assets: dg.AssetsDefinition, **retention: Any
) -> tuple[dict[str, Any], str]:
    """A run of the job with this config of retention; the metadata of its step, and the report."""
    job = delta_maintenance_job(assets=assets)
    defs = dg.Definitions(
        assets=assets, jobs=[job], resources={"io_manager": lake.manager(mode="append")}
    )
    result = defs.resolve_job_def("delta_maintenance").execute_in_process(
        run_config={"retention": retention}, instance=lake.instance
    )
    (event,) = result.get_asset_observation_events()
    found = plain(event.asset_observation_data.asset_observation.metadata)
    return found, found["delta/report"]


def fail(lake: Lake, *assets: dg.AssetsDefinition, **retention: Any) -> BaseException:
    with pytest.raises(Exception) as caught:
        maintain(lake, *assets, **retention)
    return library_error(caught.value)


AGES: list[tuple[pa.DataType, Callable[[datetime], list[Any]]]] = [
    (
        pa.date32(),
        lambda now: [now.date() - timedelta(days=days) for days in (100, 91, 90, 1)],
    ),
    (
        pa.timestamp("us", "UTC"),
        lambda now: [now - timedelta(days=days) for days in (100, 91, 89, 1)],
    ),
    (
        pa.timestamp("us"),
        lambda now: [now.replace(tzinfo=None) - timedelta(days=days) for days in (100, 91, 89, 1)],
    ),
]


@pytest.mark.parametrize(("data_type", "values_at"), AGES, ids=["date", "timestamp", "ntz"])
def test_rows_older_than_a_time_are_counted_and_deleted_if_a_run_asks(
    lake: Lake, data_type: pa.DataType, values_at: Callable[[datetime], list[Any]]
) -> None:
    # The day may have changed since the tests were collected.
    values = values_at(datetime.now(UTC))
    rows = pa.table({"at": pa.array([*values, None], data_type), "id": range(5)})
    events = asset_of(rows, {"column": "at", "older_than": "90 days"})
    lake.materialize(events)
    found, report = maintain(lake, events)
    assert found["delta/retention_dry_run"] is True
    assert found["delta/retention_rows"] == 2
    assert "**RETENTION (dry run)**: would delete 2 rows of 1 file (40.0% of the table)" in report
    assert lake.column("id") == [0, 1, 2, 3, 4]
    found, report = maintain(lake, events, dry_run=False)
    assert found["delta/retention_rows"] == 2
    assert "deleted 2 rows of 1 file" in report
    assert lake.column("id") == [2, 3, 4]
    version = lake.table().version()
    assert "no row is to go" in maintain(lake, events, dry_run=False)[1]
    assert lake.table().version() == version


def test_an_asset_without_the_option_loses_nothing_and_shows_no_step(lake: Lake) -> None:
    @dg.asset(metadata={"mode": "append"})
    def events() -> pa.Table:
        return pa.table({"at": [days_ago(9000)]})

    lake.materialize(events)
    _, report = maintain(lake, events, dry_run=False, max_share=1.0)
    assert "RETENTION" not in report
    assert len(lake.rows()) == 1


def test_more_than_a_share_of_the_table_is_refused(lake: Lake) -> None:
    rows = pa.table({"day": [days_ago(50), days_ago(40), days_ago(1)]})
    events = asset_of(rows, {"column": "day", "older_than": "30 days"})
    lake.materialize(events)
    assert "would delete 2 rows" in maintain(lake, events)[1]
    error = fail(lake, events, dry_run=False)
    assert isinstance(error, InvalidArgument)
    assert "max_share allows 0.5" in str(error)
    assert len(lake.rows()) == 3
    maintain(lake, events, dry_run=False, max_share=1.0)
    assert lake.column("day") == [days_ago(1)]


@pytest.mark.parametrize(
    ("column", "kind", "message"),
    [
        ("at", SchemaMismatch, "the retention of asset events 'at' names no column"),
        ("text", InvalidArgument, "by the column text of type string, which has no time"),
        ("number", InvalidArgument, "by the column number of type long, which has no time"),
    ],
)
def test_a_column_that_is_missing_or_has_no_time_is_refused(
    lake: Lake, column: str, kind: type[DeltaError], message: str
) -> None:
    rows = pa.table({"text": ["2001-01-01"], "number": [20010101]})
    events = asset_of(rows, {"column": column, "older_than": "1 day"})
    lake.materialize(events)
    error = fail(lake, events, dry_run=False, max_share=1.0)
    assert isinstance(error, kind)
    assert message in str(error)
    assert len(lake.rows()) == 1


@pytest.mark.parametrize(
    "retention",
    [
        {},
        {"column": "day"},
        {"older_than": "3 days"},
        {"column": "day", "older_than": "3 months"},
        {"column": "day", "older_than": "0 days"},
        {"column": "day", "older_than": "400000 days"},
        {"deleted_partitions": False},
        {"days": 3},
        "3 days",
    ],
)
def test_a_wrong_option_is_refused(retention: Any) -> None:
    with pytest.raises(DeltaError):
        read_asset_options({"retention": retention}, AssetOptions(), asset="events")


def stock_of(
    lake: Lake, keys: Mapping[str, Any], data_type: pa.DataType, **metadata: Any
) -> dg.AssetsDefinition:
    """An asset with the dynamic partitions `keys`, each with one row of its value."""

    @dg.asset(
        partitions_def=dg.DynamicPartitionsDefinition(name="shops"),
        metadata={
            "partition_expr": "shop",
            "retention": {"deleted_partitions": True},
            **metadata,
        },
    )
    def events(context: dg.AssetExecutionContext) -> pa.Table:
        value = keys[context.partition_key]
        return pa.table({"shop": pa.array([value], data_type), "articles": [12]})

    lake.instance.add_dynamic_partitions("shops", list(keys))
    for key in keys:
        lake.materialize(events, partition=key)
    return events


@pytest.mark.parametrize(
    ("data_type", "keys"),
    [
        (pa.string(), {"Delft": "Delft", "O'Hare": "O'Hare", "Oslo": "Oslo"}),
        (pa.int64(), {"01": 1, "20": 20, "300": 300}),
        (pa.decimal128(6, 2), {"1.5": Decimal("1.5"), "2": Decimal(2), "3": Decimal(3)}),
    ],
    ids=["string", "integer", "decimal"],
)
def test_rows_of_partitions_that_dagster_deleted_go(
    lake: Lake, data_type: pa.DataType, keys: dict[str, Any]
) -> None:
    events = stock_of(lake, keys, data_type)
    first, second, third = keys
    assert "no row is to go" in maintain(lake, events, dry_run=False)[1]
    lake.instance.delete_dynamic_partition("shops", second)
    _, report = maintain(lake, events)
    named = lake.table().snapshot().scan(where="articles > 0").to_arrow()["shop"].to_pylist()
    assert f"shop is one of 1 deleted partitions ({sorted(named)[1]})" in report
    assert len(lake.rows()) == 3
    maintain(lake, events, dry_run=False)
    assert lake.column("shop") == sorted([keys[first], keys[third]])


def test_an_instance_without_any_key_is_refused(lake: Lake) -> None:
    events = stock_of(lake, {"Delft": "Delft"}, pa.string())
    lake.instance.delete_dynamic_partition("shops", "Delft")
    error = fail(lake, events, dry_run=False, max_share=1.0)
    assert isinstance(error, InvalidArgument)
    assert "no partition of 'shops' at all" in str(error)
    assert len(lake.rows()) == 1


def test_deleted_partitions_of_an_asset_without_dynamic_ones_are_refused(lake: Lake) -> None:
    events = asset_of(pa.table({"id": [1]}), {"deleted_partitions": True})
    lake.materialize(events)
    error = fail(lake, events)
    assert "no DynamicPartitionsDefinition with a name" in str(error)


def test_one_dimension_of_several_loses_its_deleted_keys(lake: Lake) -> None:
    days = dg.StaticPartitionsDefinition(["mon", "tue"])
    shops = dg.DynamicPartitionsDefinition(name="shops")

    @dg.asset(
        partitions_def=dg.MultiPartitionsDefinition({"day": days, "shop": shops}),
        metadata={
            "partition_expr": {"day": "day", "shop": "shop"},
            "retention": {"deleted_partitions": True},
        },
    )
    def events(context: dg.AssetExecutionContext) -> pa.Table:
        key = context.partition_key
        assert isinstance(key, dg.MultiPartitionKey)
        return pa.table({name: [value] for name, value in key.keys_by_dimension.items()})

    lake.instance.add_dynamic_partitions("shops", ["a", "b"])
    for day in ("mon", "tue"):
        for shop in ("a", "b"):
            lake.materialize(events, partition=dg.MultiPartitionKey({"day": day, "shop": shop}))
    lake.instance.delete_dynamic_partition("shops", "b")
    maintain(lake, events, dry_run=False)
    assert [(row["day"], row["shop"]) for row in lake.rows()] == [("mon", "a"), ("tue", "a")]


def test_an_asset_keeps_to_its_own_rows_of_a_shared_table(lake: Lake) -> None:
    rule = {"column": "day", "older_than": "30 days"}
    old = pa.table({"day": [days_ago(50), days_ago(1)], "source": ["web", "web"]})
    owned: dict[str, Any] = {"shared_table": True, "owned_rows": {"source": "web"}}
    events = asset_of(old, rule, **owned)
    lake.materialize(events)
    lake.table().append(pa.table({"day": [days_ago(60)], "source": ["app"]}))
    maintain(lake, events, dry_run=False)
    assert lake.column("source") == ["app", "web"]
    error = fail(lake, asset_of(old, rule, shared_table=True), dry_run=False)
    assert "owned_rows" in str(error)


def test_runs_of_the_sensor_delete_only_if_they_are_asked(lake: Lake) -> None:
    rows = pa.table({"day": [days_ago(50), days_ago(1)]})
    events = asset_of(rows, {"column": "day", "older_than": "30 days"})
    for _ in range(4):
        lake.materialize(events)
    sensor = delta_maintenance_sensor("upkeep", assets=[events], small_files=3)
    job = sensor.job
    defs = dg.Definitions(
        assets=[events], sensors=[sensor], jobs=[job], resources={"io_manager": lake.manager()}
    )
    resources = {"io_manager": lake.manager()}
    with dg.build_sensor_context(lake.instance, definitions=defs, resources=resources) as context:
        (request,) = sensor.evaluate_tick(context).run_requests or ()
    upkeep = defs.resolve_job_def("upkeep_job")
    config: dict[str, Any] = {**request.run_config, **QUIET}
    assert upkeep.execute_in_process(run_config=config, instance=lake.instance).success
    assert len(lake.rows()) == 8
    config["ops"]["maintain"]["config"]["retention"]["dry_run"] = False
    assert upkeep.execute_in_process(run_config=config, instance=lake.instance).success
    assert lake.column("day") == [days_ago(1)] * 4
    assert isinstance(lake.table(), DeltaTable)


@pytest.mark.parametrize("share", [0.0, -1.0, 1.5])
def test_share_that_is_none_is_refused(share: float) -> None:
    with pytest.raises(ValidationError, match="above 0, and at most 1"):
        RetentionConfig(max_share=share)
