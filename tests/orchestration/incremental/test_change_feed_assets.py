"""Incremental assets: each change is applied once, whatever happens to the runs."""

# No `from __future__ import annotations`: annotations are looked at as users' modules have them.

import shutil
from pathlib import Path
from typing import Any

import dagster as dg
import deltalake
import narwhals
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

from dagster_delta.errors import (
    ChangeDataNotRecorded,
    ConcurrentTransaction,
    ConstraintViolation,
    DataFileMissing,
    InvalidArgument,
    SchemaMismatch,
)
from dagster_delta.orchestration.incremental import consumption
from dagster_delta.orchestration.incremental.change_feed_assets import (
    ChangeFeedConfig,
    delta_change_feed_asset,
)
from dagster_delta.orchestration.incremental.upstream_changes import UpstreamChanges, net_changes
from dagster_delta.orchestration.io.io_manager import DeltaIOManager
from dagster_delta.protocol.log.paths import commit_path
from dagster_delta.table.delta_table import DeltaTable
from tests.orchestration.conftest import QUIET
from tests.sample_tables import FEED


def rows(**values: Any) -> pa.Table:
    """`rows(k1=5)`: key 1 has the value 5."""
    return pa.table(
        {
            "id": pa.array([int(name[1:]) for name in values], pa.int64()),
            "v": pa.array(list(values.values()), pa.int64()),
        }
    )


class Source:
    """An upstream table that somebody else writes, and its asset."""

    def __init__(self, lake, properties: dict[str, str] = FEED) -> None:
        self.table = DeltaTable(str(lake.root / "public" / "source"), must_exist=False)
        self.table.append(rows(k1=1, k2=2), properties=properties)
        self.asset = dg.AssetSpec("source").with_io_manager_key("io_manager")

    def upsert(self, **values: Any) -> None:
        merge = self.table.merge(rows(**values), "t.id = s.id")
        merge.when_matched_update_all().when_not_matched_insert_all().execute()

    @property
    def uri(self) -> str:
        return self.table.uri


@pytest.fixture
def source(lake) -> Source:
    return Source(lake)


def copy(source: Source, seen: list[Any] | None = None, **options: Any) -> list[Any]:
    """An asset `events` that keeps the source's rows, with ten times their values."""

    @delta_change_feed_asset("source", name="events", **{"keys": "id", **options})
    def events(changes: pa.Table) -> pa.Table:
        if seen is not None:
            seen.append(changes)
        position = changes.schema.get_field_index("v")
        return changes.set_column(position, "v", pa.compute.multiply(changes["v"], 10))

    return [source.asset, events]


def state(lake) -> dict[int, int]:
    return {row["id"]: row["v"] for row in lake.rows()}


def test_changes_are_applied_by_key(lake, source):
    seen: list[Any] = []
    assets = copy(source, seen)
    first = lake.metadata(lake.materialize(*assets))
    assert state(lake) == {1: 10, 2: 20}
    assert first["delta/full_refresh"] is True
    assert first["delta/full_refresh_because"] == "nothing was read before"
    source.upsert(k2=3, k3=4)
    source.table.delete("id = 1")
    second = lake.metadata(lake.materialize(*assets))
    assert state(lake) == {2: 30, 3: 40}
    assert second["delta/full_refresh"] is False
    assert (
        second["delta/input/changes"]["from_version"],
        second["delta/input/changes"]["version"],
    ) == (1, 2)
    assert second["delta/rows_deleted"] == 1
    assert sorted(seen[1]["_change_type"].to_pylist()) == [
        "delete",
        "insert",
        "update_postimage",
        "update_preimage",
    ]


def test_a_run_without_changed_rows_keeps_the_data_version(lake, source):
    """So that downstream assets can wait for one, as the page of incremental assets shows."""
    upstream, asset = copy(source)
    condition = dg.AutomationCondition.eager().replace(
        "newly_updated", dg.AutomationCondition.data_version_changed()
    )

    @dg.asset(deps=[asset], automation_condition=condition)
    def downstream() -> None: ...

    defs = dg.Definitions(assets=[upstream, asset, downstream])
    cursor = dg.evaluate_automation_conditions(defs, lake.instance).cursor

    def requested_after(*assets: Any) -> int:
        nonlocal cursor
        lake.materialize(*assets)
        evaluated = dg.evaluate_automation_conditions(defs, lake.instance, cursor=cursor)
        cursor = evaluated.cursor
        return evaluated.get_num_requested(downstream.key)

    assert requested_after(upstream, asset) == 1
    assert requested_after(downstream) == 0
    source.table.append(rows(k3=3))
    source.table.optimize()
    assert requested_after(upstream, asset) == 1
    assert requested_after(downstream) == 0
    source.table.set_properties({"x.y": "z"})
    assert requested_after(upstream, asset) == 0
    assert requested_after(upstream, asset) == 0


@pytest.mark.parametrize("deletes", [True, False])
def test_rows_wait_on_disk_until_the_last_one_of_each_key_is_known(deletes):
    schema = pa.schema(
        [
            ("id", pa.int64()),
            ("text", pa.string()),
            ("_change_type", pa.string()),
            ("_commit_version", pa.int64()),
        ]
    )
    size, held = 0, []

    def batches():
        nonlocal size
        for number in range(40):
            held.append(pa.total_allocated_bytes())
            columns = [[0, number], ["x" * 1_000_000] * 2, ["insert"] * 2, [number] * 2]
            batch = pa.RecordBatch.from_arrays(
                [
                    pa.array(values, kind)
                    for values, kind in zip(columns, schema.types, strict=True)
                ],
                schema=schema,
            )
            size += batch.nbytes
            yield batch

    changes = pa.RecordBatchReader.from_batches(schema, batches())
    found = net_changes(changes, ["id"], asset="events", deletes=deletes)
    assert max(held) - held[0] < size / 4
    rows = found.read_all()
    assert rows["id"].to_pylist() == [*range(1, 39), 0, 39]
    assert rows.schema.names == ["id", "text", "_change_type"][: 2 + deletes]


def test_a_unit_test_calls_the_function_with_changes_of_its_own():
    @delta_change_feed_asset("source", keys="id")
    def events(changes: pa.Table) -> pa.Table:
        return changes.slice(1)

    @delta_change_feed_asset("source", keys="id")
    def logged(
        changes: pa.Table, context: dg.AssetExecutionContext, config: ChangeFeedConfig
    ) -> pa.Table:
        context.log.info("called")
        return changes.slice(0 if config.full_refresh else 1)

    changes = rows(k1=1, k2=2)
    assert events(changes).equals(rows(k2=2))
    context = dg.build_asset_context()
    assert events(context, changes=changes).equals(rows(k2=2))
    assert logged(context, changes).equals(rows(k2=2))
    every = ChangeFeedConfig(full_refresh=True)
    assert logged(context, changes, config=every).equals(changes)


def test_other_columns_upstream_are_taken_on_by_schema_mode_overwrite(lake, source):
    """New columns by a merge, other types once every row is taken anew."""
    assets = copy(source, metadata={"schema_mode": "overwrite"})
    lake.materialize(*assets)
    source.table.append(rows(k3=3).append_column("w", pa.array(["x"])), schema_mode="merge")
    source.table.append(rows(k4=4).append_column("w", pa.array(["y"])))
    second = lake.metadata(lake.materialize(*assets))
    assert {row["id"]: row["w"] for row in lake.rows()} == {1: None, 2: None, 3: "x", 4: "y"}
    assert second["delta/full_refresh"] is False
    source.table.overwrite(pa.table({"id": [5], "v": pa.array([0.5])}), schema_mode="overwrite")

    @delta_change_feed_asset(
        "source", name="events", keys="id", metadata={"schema_mode": "overwrite"}
    )
    def events(changes: pa.Table) -> pa.Table:
        return changes

    lake.materialize(source.asset, events, tags={"delta/full_refresh": "true"})
    assert [row["v"] for row in lake.rows()] == [0.5]


@pytest.mark.parametrize("schema_mode", ["merge", "overwrite"])
@pytest.mark.parametrize("existing_rows", ["rewrite", "lazy"])
def test_a_default_upstream_reaches_older_rows(lake, source, schema_mode, existing_rows):
    assets = copy(source, metadata={"schema_mode": schema_mode})
    lake.materialize(*assets)
    source.table.add_column(
        "w", "STRING", default="'new'", existing_rows=existing_rows, enable_features=True
    )
    source.table.append(rows(k3=3).append_column("w", pa.array(["paid"])))
    second = lake.metadata(lake.materialize(*assets))
    assert {row["id"]: row["w"] for row in lake.rows()} == {1: "new", 2: "new", 3: "paid"}
    because = second["delta/full_refresh_because"]
    assert "column w was added with a default, which older rows may have" in because
    source.upsert(k2=5)
    assert lake.metadata(lake.materialize(*assets))["delta/full_refresh"] is False


@pytest.mark.parametrize("schema_mode", ["strict", "overwrite"])
def test_a_column_that_was_dropped_and_added_again_has_no_older_values(lake, source, schema_mode):
    assets = copy(source, metadata={"schema_mode": schema_mode})
    source.table.add_column("w", "STRING", enable_features=True)
    source.table.append(rows(k3=3).append_column("w", pa.array(["old"])))
    lake.materialize(*assets)
    source.table.drop_column("w", enable_features=True)
    source.table.add_column("w", "STRING")
    source.table.append(rows(k4=4).append_column("w", pa.array(["new"])))
    second = lake.metadata(lake.materialize(*assets))
    assert "another one has its name" in second["delta/full_refresh_because"]
    assert {row["id"]: row["w"] for row in lake.rows()} == {1: None, 2: None, 3: None, 4: "new"}


def test_a_default_that_the_table_has_too_needs_no_full_refresh(lake, source):
    assets = copy(source, metadata={"schema_mode": "merge"})
    lake.materialize(*assets)
    for table in (source.table, lake.table()):
        table.add_column("w", "STRING", default="'new'", enable_features=True)
    source.table.append(rows(k3=3).append_column("w", pa.array(["paid"])))
    assert lake.metadata(lake.materialize(*assets))["delta/full_refresh"] is False
    assert {row["id"]: row["w"] for row in lake.rows()} == {1: "new", 2: "new", 3: "paid"}


def test_rows_that_were_added_one_by_one_keep_what_they_had(lake, source, caplog):
    assets = copy(source, mode="append", keys=(), metadata={"schema_mode": "merge"})
    lake.materialize(*assets)
    source.table.add_column("w", "STRING", default="'new'", enable_features=True)
    source.table.append(rows(k3=3).append_column("w", pa.array(["paid"])))
    assert lake.metadata(lake.materialize(*assets))["delta/full_refresh"] is False
    assert {row["id"]: row["w"] for row in lake.rows()} == {1: None, 2: None, 3: "paid"}


def test_a_change_of_type_upstream_is_the_reason_of_a_full_refresh(lake, source):
    @delta_change_feed_asset("source", keys="id", metadata={"schema_mode": "overwrite"})
    def events(changes: pa.Table) -> pa.Table:
        return changes

    assets = [source.asset, events]
    lake.materialize(*assets)
    source.table.overwrite(pa.table({"id": [5], "v": ["x"]}), schema_mode="overwrite")
    reason = lake.metadata(lake.materialize(*assets))["delta/full_refresh_because"]
    assert "cannot be shown with the schema of version" in reason
    assert "Read the changes" not in reason
    assert [row["v"] for row in lake.rows()] == ["x"]


def test_a_full_refresh_with_other_columns_names_the_schema_mode_that_takes_them(lake, source):
    assets = copy(source)
    lake.materialize(*assets)
    source.table.append(rows(k3=3).append_column("w", pa.array(["x"])), schema_mode="merge")
    error = lake.fail(*assets, tags={"delta/full_refresh": "true"})
    assert isinstance(error, SchemaMismatch)
    assert '{"schema_mode": "overwrite"} on events, and full_refresh' in str(error)


# ---- once, and only once


def test_a_run_without_changes_does_not_call_the_function(lake, source):
    seen: list[Any] = []
    assets = copy(source, seen)
    lake.materialize(*assets)
    result = lake.materialize(*assets)
    assert len(seen) == 1
    assert lake.metadata(result)["delta/skipped"] == "no row has changed up to version 0"
    assert lake.table().version() == 0


def test_commits_that_change_no_row_are_remembered_and_not_handed_out(lake, source):
    seen: list[Any] = []
    assets = copy(source, seen)
    lake.materialize(*assets)
    source.table.append(rows())
    lake.materialize(*assets)
    assert len(seen) == 1
    assert read_up_to(lake, source) == 1
    lake.materialize(*assets)
    assert lake.table().version() == 1


def read_up_to(lake, source: Source, partition: str | None = None) -> int | None:
    from dagster_delta.table.transaction.followed_tables import application_id, version_of

    app_id = application_id(source.table.metadata().id, partition)
    position = lake.table().snapshot().transaction_version(app_id)
    return position if position is None or position < 0 else version_of(position)


def test_rows_and_progress_land_in_one_commit(lake, source):
    assets = copy(source)
    lake.materialize(*assets)
    source.upsert(k1=5)
    lake.materialize(*assets)
    assert lake.table().version() == 1
    assert read_up_to(lake, source) == 1


def test_a_step_that_died_after_its_commit_applies_nothing_twice(lake, source):
    deaths = [False, True, False]
    journal = journal_of(source)

    class Dying(DeltaIOManager):
        def handle_output(self, context, obj):
            super().handle_output(context, obj)
            if deaths.pop(0):
                raise dg.RetryRequested(max_retries=1)

    def run():
        dg.materialize(
            journal,
            instance=lake.instance,
            resources={"io_manager": Dying(root_uri=str(lake.root))},
            run_config=QUIET,
        )

    run()
    source.upsert(k3=3)
    run()
    assert deaths == []
    assert lake.column("id") == [1, 2, 3]


def journal_of(source: Source, **options: Any) -> list[Any]:
    """An asset `events` to which what came is appended."""

    @delta_change_feed_asset("source", name="events", mode="append", **options)
    def events(changes: pa.Table) -> pa.Table:
        came = pa.compute.is_in(changes["_change_type"], pa.array(["insert", "update_postimage"]))
        return changes.filter(came).select(["id", "v"])

    return [source.asset, events]


def test_of_two_runs_at_once_one_is_refused(lake, source):
    """The other run applies the same changes while this one computes."""
    journal = journal_of(source)
    lake.materialize(*journal)
    source.upsert(k3=3)

    @delta_change_feed_asset("source", name="events", mode="append")
    def events(changes: pa.Table) -> pa.Table:
        lake.materialize(*journal)
        return changes.select(["id", "v"])

    error = lake.fail(source.asset, events)
    assert isinstance(error, ConcurrentTransaction)
    assert "another run of events applied changes of its upstream table" in str(error)
    assert lake.column("id") == [1, 2, 3]


def test_journals_are_appended_to_and_replaced_by_a_full_refresh(lake, source):
    journal = journal_of(source)
    lake.materialize(*journal)
    source.upsert(k1=7)
    lake.materialize(*journal)
    assert [row["v"] for row in lake.rows()] == [1, 7, 2]
    lake.materialize(*journal, tags={"delta/full_refresh": "true"})
    assert state(lake) == {1: 7, 2: 2}


# ---- every row anew


def test_a_run_may_ask_for_every_row(lake, source):
    assets = copy(source)
    lake.materialize(*assets)
    lake.table().append(rows(k99=99))
    result = dg.materialize(
        assets,
        instance=lake.instance,
        resources={"io_manager": DeltaIOManager(root_uri=str(lake.root))},
        run_config={**QUIET, "ops": {"events": {"config": {"full_refresh": True}}}},
    )
    assert state(lake) == {1: 10, 2: 20}
    assert lake.metadata(result)["delta/full_refresh_because"] == "the run config asked for it"


def clean_log(source: Source) -> None:
    source.table.checkpoint()
    for version in (1, 2):
        path = Path(source.uri) / commit_path(version)
        path.unlink()


def replace_table(source: Source) -> None:
    shutil.rmtree(source.uri)
    source.table = DeltaTable(source.uri, must_exist=False)
    source.table.append(rows(k2=3, k5=6), properties=FEED)


def set_back(source: Source) -> None:
    shutil.rmtree(source.uri)
    shutil.copytree(source.uri + "-backup", source.uri)
    source.table = DeltaTable(source.uri)


def set_back_and_grow(source: Source) -> None:
    set_back(source)
    for value in (6, 7, 8):
        source.upsert(k5=value)


def vacuum_changes(source: Source) -> None:
    shutil.rmtree(Path(source.uri) / "_change_data")


@pytest.mark.parametrize(
    ("happens", "because", "expected"),
    [
        (clean_log, "does not hold the commits", {1: 10, 2: 30, 4: 50}),
        (replace_table, "replaced by another", {2: 30, 5: 60}),
        (set_back, "was rolled back: it was read up to version 1", {1: 10, 2: 20}),
        (set_back_and_grow, "rolled back and has grown again", {1: 10, 2: 20, 5: 80}),
        (vacuum_changes, "VACUUM", {1: 10, 2: 30, 4: 50}),
    ],
)
def test_where_changes_cannot_be_told_every_row_is_taken(lake, source, happens, because, expected):
    assets = copy(source)
    shutil.copytree(source.uri, source.uri + "-backup")
    source.upsert(k4=5)
    lake.materialize(*assets)
    source.upsert(k2=3)
    source.table.checkpoint()
    happens(source)
    metadata = lake.metadata(lake.materialize(*assets))
    assert because in metadata["delta/full_refresh_because"]
    assert state(lake) == expected
    assert "delta/skipped" in lake.metadata(lake.materialize(*assets))


def test_changes_after_the_version_that_is_restored_are_applied_again(lake, source):
    assets = copy(source)
    lake.materialize(*assets)
    source.upsert(k2=3, k3=4)
    lake.materialize(*assets)
    table = lake.table()
    table.restore(0)
    source.upsert(k4=5)
    assert lake.metadata(lake.materialize(*assets))["delta/input/changes"]["from_version"] == 1
    assert state(lake) == {1: 10, 2: 30, 3: 40, 4: 50}
    table.restore(1)
    lake.materialize(*assets)
    assert state(lake) == {1: 10, 2: 30, 3: 40, 4: 50}


def test_a_table_restored_to_before_it_followed_another_is_refreshed(lake, source):
    DeltaTable.create(str(lake.root / "public" / "events"), rows().schema)
    assets = copy(source)
    lake.materialize(*assets)
    source.upsert(k2=3)
    lake.table().restore(0)
    assert state(lake) == {}
    assert lake.metadata(lake.materialize(*assets))["delta/full_refresh"] is True
    assert state(lake) == {1: 10, 2: 30}


def test_a_table_that_was_created_again_in_its_log_is_refreshed(lake, source):
    assets = copy(source)
    lake.materialize(*assets)
    source.upsert(k2=3)
    DeltaTable.create(lake.table().uri, rows().schema, mode="replace")
    assert state(lake) == {}
    assert lake.metadata(lake.materialize(*assets))["delta/full_refresh"] is True
    assert state(lake) == {1: 10, 2: 30}


@pytest.mark.parametrize("is_older_release", [False, True])
def test_a_table_that_returns_is_read_in_full(lake, source, monkeypatch, is_older_release):
    """Two tables that are swapped, as in a blue-green deployment."""
    if is_older_release:
        monkeypatch.setattr(consumption, "_end_replaced", lambda *_: ())
    assets = copy(source)
    lake.materialize(*assets)
    place, aside = Path(source.uri), Path(f"{source.uri}_other")
    place.rename(aside)
    DeltaTable(source.uri, must_exist=False).append(rows(k7=7, k8=8), properties=FEED)
    lake.materialize(*assets)
    assert state(lake) == {7: 70, 8: 80}
    shutil.rmtree(place)
    aside.rename(place)
    source.upsert(k2=3)
    third = lake.metadata(lake.materialize(*assets))
    assert third["delta/full_refresh_because"] == "the upstream table was replaced by another one"
    assert state(lake) == {1: 10, 2: 30}
    source.upsert(k2=4)
    assert lake.metadata(lake.materialize(*assets))["delta/full_refresh"] is False
    assert state(lake) == {1: 10, 2: 40}


def test_an_asset_may_fail_where_changes_cannot_be_told(lake, source):
    assets = copy(source, on_gap="fail")
    source.upsert(k4=5)
    lake.materialize(*assets)
    source.upsert(k2=3)
    vacuum_changes(source)
    error = lake.fail(*assets)
    assert isinstance(error, DataFileMissing)
    assert "delta/full_refresh" in str(error)
    lake.materialize(*assets, tags={"delta/full_refresh": "true"})
    assert state(lake) == {1: 10, 2: 30, 4: 50}


# ---- without a change data feed


def test_a_table_without_feed_is_read_while_rows_are_only_added(lake):
    source = Source(lake, properties={})
    assets = copy(source)
    lake.materialize(*assets)
    source.table.append(rows(k3=3))
    metadata = lake.metadata(lake.materialize(*assets))
    assert metadata["delta/full_refresh"] is False
    assert state(lake) == {1: 10, 2: 20, 3: 30}


def test_changes_that_nobody_recorded_are_found_by_comparing_rows(lake):
    source = Source(lake, properties={})
    assets = copy(source)
    lake.materialize(*assets)
    source.table.append(rows(k3=3, k4=4))
    source.table.delete("id = 1")
    source.table.update({"v": "v + 1"}, "id = 4")
    metadata = lake.metadata(lake.materialize(*assets))
    assert metadata["delta/full_refresh"] is False
    assert metadata["delta/compared_bytes"] > 0
    assert state(lake) == {2: 20, 3: 30, 4: 50}


def test_rows_that_are_too_many_to_compare_are_an_error_that_says_what_to_do(lake):
    source = Source(lake, properties={})
    assets = copy(source, max_bytes=10)
    lake.materialize(*assets)
    source.table.delete("id = 1")
    error = lake.fail(*assets)
    assert isinstance(error, ChangeDataNotRecorded)
    assert "max_bytes is 10" in str(error)
    assert "full_refresh" in str(error)
    assert state(lake) == {1: 10, 2: 20}


def test_a_feed_that_was_off_for_a_while_costs_a_full_refresh_beyond_the_limit(lake):
    source = Source(lake, properties={})
    assets = copy(source, max_bytes=10)
    lake.materialize(*assets)
    source.table.delete("id = 1")
    deltalake.DeltaTable(source.uri).alter.set_table_properties(FEED)
    metadata = lake.metadata(lake.materialize(*assets))
    assert "change data feed was off" in metadata["delta/full_refresh_because"]
    assert state(lake) == {2: 20}


# ---- what the function is given, and what it returns


@pytest.mark.parametrize(
    "kind",
    [pd.DataFrame, pl.DataFrame, pl.LazyFrame, pa.RecordBatchReader, narwhals.DataFrame],
)
def test_changes_come_as_the_annotation_says(lake, source, kind):
    seen: list[Any] = []

    def events(changes):
        seen.append(changes)
        return changes

    events.__annotations__["changes"] = kind
    asset = delta_change_feed_asset("source", keys=["ID"])(events)
    lake.materialize(source.asset, asset)
    source.upsert(k1=5, k7=7)
    source.table.delete("id = 2")
    lake.materialize(source.asset, asset)
    assert isinstance(seen[1], kind)
    assert state(lake) == {1: 5, 7: 7}


@pytest.mark.parametrize("kind", [pl.DataFrame, pl.LazyFrame])
def test_changes_with_text_go_through_polars(lake, kind):
    """polars exports text as views, of which Arrow has no kernel to take rows."""
    table = DeltaTable(str(lake.root / "public" / "source"), must_exist=False)
    rows = {"id": ["a", "b"], "v": [1, 2], "tags": [["x"], None], "at": [{"city": "y"}] * 2}
    table.append(pl.DataFrame(rows), properties=FEED)

    def events(changes):
        fixed = pl.Array(pl.String, 1)
        return changes.with_columns(pl.col("id").cast(pl.Categorical), pl.col("tags").cast(fixed))

    events.__annotations__["changes"] = kind
    asset = delta_change_feed_asset("source", keys=["id"])(events)
    upstream = dg.AssetSpec("source").with_io_manager_key("io_manager")
    lake.materialize(upstream, asset)
    table.update({"v": "5"}, "id = 'a'")
    table.delete("id = 'b'")
    lake.materialize(upstream, asset)
    assert lake.rows() == [{"id": "a", "v": 5, "tags": ["x"], "at": {"city": "y"}}]


def test_upstream_changes_tell_versions_and_load_later(lake, source):
    seen: list[UpstreamChanges] = []

    @delta_change_feed_asset("source", keys="id", columns=["id"])
    def events(context, changes: UpstreamChanges):
        assert context.asset_key == dg.AssetKey("events")
        seen.append(changes)
        return changes.to_arrow()

    lake.materialize(source.asset, events)
    source.upsert(k3=5)
    lake.materialize(source.asset, events)
    assert [each.is_full_refresh for each in seen] == [True, False]
    assert (seen[1].from_version, seen[1].to_version) == (1, 1)
    assert lake.rows() == [{"id": 1}, {"id": 2}, {"id": 3}]


def test_other_inputs_resources_config_and_metadata_work_as_in_any_asset(lake, source):
    class Factor(ChangeFeedConfig):
        factor: int = 2

    class Offset(dg.ConfigurableResource):
        by: int

    @dg.asset
    def names() -> pa.Table:
        return pa.table({"id": [1, 2], "name": ["a", "b"]})

    @delta_change_feed_asset("source", keys="id", returns="rows")
    def events(changes: pa.Table, names: pa.Table, config: Factor, offset: Offset):
        joined = changes.select(["id", "v"]).join(names, "id")
        position = joined.schema.get_field_index("v")
        values = pa.compute.add(pa.compute.multiply(joined["v"], config.factor), offset.by)
        return dg.Output(joined.set_column(position, "v", values), metadata={"mine": 1})

    result = lake.materialize(source.asset, names, events, resources={"offset": Offset(by=100)})
    assert lake.metadata(result)["mine"] == 1
    assert [row["name"] for row in lake.rows()] == ["a", "b"]
    assert state(lake) == {1: 102, 2: 104}


def test_a_table_that_no_io_manager_stores_is_read_by_its_location(lake, tmp_path):
    external = DeltaTable(str(tmp_path / "external"), must_exist=False)
    external.append(rows(k1=1), properties=FEED)

    @delta_change_feed_asset(dg.AssetKey(["raw", "flights"]), table=external.uri, keys="id")
    def events(changes: pa.Table) -> pa.Table:
        return changes

    lake.materialize(events)
    external.update({"v": "v + 1"})
    lake.materialize(events)
    assert state(lake) == {1: 2}
    assert list(events.asset_deps[dg.AssetKey("events")]) == [dg.AssetKey(["raw", "flights"])]


def test_a_key_that_changes_moves_its_row(lake, source):
    assets = copy(source)
    lake.materialize(*assets)
    source.table.update({"id": "id + 10"}, where="id = 1")
    lake.materialize(*assets)
    assert state(lake) == {2: 20, 11: 10}


def test_a_row_that_leaves_and_comes_back_is_there(lake, source):
    assets = copy(source)
    lake.materialize(*assets)
    source.table.delete("id = 1")
    source.upsert(k1=9)
    source.upsert(k8=8)
    source.table.delete("id = 8")
    lake.materialize(*assets)
    assert state(lake) == {1: 90, 2: 20}


def test_null_is_a_key_like_others(lake):
    source = Source(lake)
    source.table.append(pa.table({"id": pa.array([None], pa.int64()), "v": [1]}))
    assets = copy(source)
    lake.materialize(*assets)
    source.table.update({"v": "2"}, where="id IS NULL")
    lake.materialize(*assets)
    assert state(lake) == {1: 10, 2: 20, None: 20}


def test_the_target_records_its_own_changes(lake, source):
    metadata = {"table_properties": {**FEED, "delta.enableDeletionVectors": "true"}}
    assets = copy(source, metadata=metadata)
    lake.materialize(*assets)
    source.upsert(k2=3)
    lake.materialize(*assets)
    feed = lake.table().changes(starting_version=1).to_arrow()
    assert sorted(zip(feed["v"].to_pylist(), feed["_change_type"].to_pylist(), strict=True)) == [
        (20, "update_preimage"),
        (30, "update_postimage"),
    ]


@pytest.mark.parametrize(
    ("returned", "kind", "message"),
    [
        (lambda changes: changes.select(["id", "v"]), InvalidArgument, 'returns="rows"'),
        (lambda changes: changes.drop_columns(["id"]), InvalidArgument, "lack the key id"),
        (lambda _: None, InvalidArgument, "returned None"),
        (lambda changes: pa.concat_tables([changes] * 2), ConstraintViolation, "'id': 1"),
        (
            lambda changes: changes.set_column(
                2, "_change_type", pa.array(["new"] * changes.num_rows)
            ),
            InvalidArgument,
            "_change_type is one of",
        ),
    ],
)
def test_returned_rows_that_make_no_sense_are_refused(lake, source, returned, kind, message):
    @delta_change_feed_asset("source", keys="id")
    def events(changes: pa.Table):
        return returned(changes)

    error = lake.fail(source.asset, events)
    assert isinstance(error, kind)
    assert message in str(error)
    assert not DeltaTable.is_delta_table(str(lake.root / "public" / "events"))


def test_declarations_that_make_no_sense_are_refused_at_once():
    def fail(function: Any, message: str, **options: Any) -> None:
        with pytest.raises(InvalidArgument, match=message):
            delta_change_feed_asset("source", **{"keys": "id", **options})(function)

    def fine(changes: pa.Table): ...

    def without(rows: pa.Table): ...

    def generator(changes: pa.Table):
        yield changes

    def wrong_type(changes: DeltaTable): ...

    def wrong_config(changes: pa.Table, config: dg.Config): ...

    fail(fine, "takes keys", keys=())
    fail(fine, "takes no keys", mode="append")
    fail(fine, "is one of 'merge', 'auto_cdc', 'append', not 'apend'", mode="apend")
    fail(fine, "returns of an incremental asset is one of", keys="id", returns="change")
    fail(fine, "on_gap of an incremental asset is one of", keys="id", on_gap="fial")
    fail(without, "no parameter 'changes'")
    fail(generator, "return its rows")
    fail(wrong_type, "UpstreamChanges")
    fail(wrong_config, "extend ChangeFeedConfig")


# ---- partitions

DAYS = dg.DailyPartitionsDefinition("2026-01-01", end_date="2026-01-04")


def day_rows(**values: list[int]) -> pa.Table:
    """`day_rows(d1=[5])`: key 5 on 1 January."""
    pairs = [(f"2026-01-0{day[1:]}", key) for day, keys in values.items() for key in keys]
    return pa.table({"day": [day for day, _ in pairs], "id": [key for _, key in pairs]})


class Days:
    """A partitioned upstream asset and an incremental one that follows it, day by day."""

    def __init__(self, lake, *, external: bool, **options: Any) -> None:
        self.lake = lake
        self.table = DeltaTable(str(lake.root / "public" / "source"), must_exist=False)
        self.table.append(day_rows(d1=[1], d2=[2]), partition_by=["day"], properties=FEED)
        self.seen: list[int] = []
        partitioned: dict[str, Any] = {
            "partitions_def": DAYS,
            "metadata": {"partition_expr": "day"},
        }
        spec = dg.AssetSpec("source", **({} if external else partitioned))
        self.upstream = spec.with_io_manager_key("io_manager")

        @delta_change_feed_asset(
            "source",
            table=self.table.uri if external else None,
            **{"keys": ["day", "id"], **partitioned, **options},
        )
        def events(changes: pa.Table) -> pa.Table:
            self.seen.append(changes.num_rows)
            return changes

        self.events = events

    def run(self, day: str | None = None, days: tuple[str, str] | None = None) -> None:
        self.lake.materialize(
            self.upstream,
            self.events,
            partition=None if day is None else f"2026-01-0{day}",
            range_of=None if days is None else (f"2026-01-0{days[0]}", f"2026-01-0{days[1]}"),
        )

    def rows(self) -> list[tuple[str, int]]:
        return sorted((row["day"], row["id"]) for row in self.lake.rows())


@pytest.mark.parametrize("external", [False, True])
def test_every_partition_stands_where_it_was_read_to(lake, external):
    days = Days(lake, external=external)
    days.run("1")
    assert days.rows() == [("2026-01-01", 1)]
    days.table.append(day_rows(d1=[11], d2=[22]))
    days.run("1")
    assert days.seen == [1, 1]
    days.run("2")
    assert days.rows() == [
        ("2026-01-01", 1),
        ("2026-01-01", 11),
        ("2026-01-02", 2),
        ("2026-01-02", 22),
    ]
    days.table.delete("id = 11")
    days.run("2")
    assert len(days.seen) == 3
    days.run("1")
    assert ("2026-01-01", 11) not in days.rows()


def test_a_journal_that_was_partitioned_for_a_while_has_each_row_once(lake):
    days = Days(lake, external=True, mode="append", keys=())

    @delta_change_feed_asset("source", name="events", table=days.table.uri, mode="append")
    def whole(changes: pa.Table) -> pa.Table:
        return changes

    lake.materialize(days.upstream, whole)
    days.run("1")
    days.table.append(day_rows(d1=[11]))
    days.run("1")
    lake.materialize(days.upstream, whole)
    assert [key for _, key in days.rows()] == [1, 11, 2]
    because = lake.metadata_of_last()["delta/full_refresh_because"]
    assert because == "the partitions of the asset have changed since it was last read"
    days.table.append(day_rows(d1=[111]))
    lake.materialize(days.upstream, whole)
    days.run("1")
    assert [key for _, key in days.rows()] == [1, 11, 111, 2]


def test_a_row_that_moves_to_another_partition_leaves_the_one_and_comes_to_the_other(lake):
    days = Days(lake, external=False)
    days.run("1")
    days.run("2")
    days.table.update({"day": "'2026-01-02'"}, where="id = 1")
    days.run("1")
    assert days.rows() == [("2026-01-02", 2)]
    days.run("2")
    assert days.rows() == [("2026-01-02", 1), ("2026-01-02", 2)]


def test_a_range_takes_of_each_partition_what_it_has_not_seen(lake):
    days = Days(lake, external=True)
    days.run(days=("1", "2"))
    days.table.append(day_rows(d1=[11]))
    days.run("1")
    days.table.append(day_rows(d1=[111], d2=[22]))
    days.run(days=("1", "2"))
    assert days.seen == [2, 1, 2]
    assert [key for _, key in days.rows()] == [1, 11, 111, 2, 22]
    days.run(days=("1", "3"))
    assert days.seen == [2, 1, 2, 5]


@pytest.mark.parametrize("is_partitioned", [True, False])
def test_partitions_read_only_the_rows_that_the_condition_of_the_input_selects(
    lake, is_partitioned
):
    where = dg.AssetIn(metadata={"where": "id < 100"})
    days = Days(lake, external=False, ins={"changes": where})
    if not is_partitioned:
        days.upstream = dg.AssetSpec("source").with_io_manager_key("io_manager")
    days.table.append(day_rows(d1=[101], d2=[102]))
    days.run("1")
    assert [key for _, key in days.rows()] == [1]
    days.table.append(day_rows(d1=[11, 111], d2=[22, 222]))
    days.run("1")
    assert [key for _, key in days.rows()] == [1, 11]
    # Its partitions were read up to different versions.
    days.run("2")
    days.table.append(day_rows(d1=[12, 112], d2=[23, 223]))
    days.run("2")
    days.table.append(day_rows(d1=[13, 113], d2=[24, 224]))
    days.run(days=("1", "2"))
    assert [key for _, key in days.rows()] == [1, 11, 12, 13, 2, 22, 23, 24]


def test_a_partition_without_changes_is_not_handed_out(lake):
    days = Days(lake, external=True)
    days.run(days=("1", "2"))
    days.table.append(day_rows(d2=[22]))
    days.run("1")
    assert days.seen == [2]


def test_a_partition_that_the_upstream_table_does_not_have_is_an_error(lake, source):
    @delta_change_feed_asset(
        "source",
        keys="id",
        partitions_def=DAYS,
        metadata={"partition_expr": "day"},
        table=source.uri,
    )
    def events(changes: pa.Table): ...

    error = lake.fail(events, partition="2026-01-01")
    assert isinstance(error, InvalidArgument)
    assert "upstream_partition_expr" in str(error)
