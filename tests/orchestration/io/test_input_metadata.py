"""A run tells which version, files and rows of its upstream tables it has read."""

from __future__ import annotations

from typing import Any

import dagster as dg
import pandas as pd
import pyarrow as pa
import pytest

from dagster_delta import DeltaTable, delta_change_feed_asset
from tests.orchestration.conftest import QUIET, table_of

COLORS = dg.StaticPartitionsDefinition(["red", "blue", "green"])


@pytest.fixture
def colors(lake, events):
    """`events`, one file for each of three colors, and one row more of blue."""
    produce = events(
        lambda context: table_of([{"p": key, "n": 1} for key in context.partition_keys]),
        partitions_def=COLORS,
        metadata={"partition_expr": "p", "mode": "append"},
    )
    lake.materialize(produce, range_of=("red", "green"))
    lake.materialize(produce, partition="blue")
    return produce


def told(lake, name: str, of: str = "events") -> Any:
    return lake.metadata_of_last(name)[f"delta/input/{of}"]


def test_a_materialization_tells_what_its_inputs_were(lake, colors):
    @dg.asset(ins={"events": dg.AssetIn(metadata={"columns": ["n"], "where": "p = 'blue'"})})
    def report(events: pd.DataFrame) -> pa.Table:
        return pa.table({"n": [len(events)]})

    lake.materialize(colors.to_source_asset(), report)
    facts = told(lake, "report")
    size = facts.pop("bytes")
    assert lake.metadata_of_last("report")["delta/bytes_read"] == size
    assert 0 < size < lake.table().snapshot().size_bytes
    assert facts == {
        "table": str(lake.root / "public" / "events"),
        "version": 1,
        "loaded_as": "pandas.DataFrame",
        "where": facts["where"],
        "columns": ["n"],
        "files": 2,
        "of_files": 4,
        "rows": 2,
    }
    assert "'blue'" in facts["where"]


def test_every_partition_of_a_range_tells_it(lake, colors):
    @dg.asset(partitions_def=COLORS, metadata={"partition_expr": "p"})
    def copied(events: pa.Table) -> pa.Table:
        return events

    result = lake.materialize(colors.to_source_asset(), copied, range_of=("red", "blue"))
    (red, blue) = result.asset_materializations_for_node("copied")
    assert red.metadata["delta/input/events"].value["rows"] == 3
    assert red.metadata["delta/input/events"] == blue.metadata["delta/input/events"]


def test_the_upstream_asset_is_left_without_observations(lake, colors):
    @dg.asset
    def report(events: pa.Table) -> pa.Table:
        return events

    lake.materialize(colors.to_source_asset(), report)
    assert not lake.instance.fetch_observations(dg.AssetKey("events"), limit=1).records


def test_an_asset_that_stores_nothing_here_tells_it_too(lake, colors):
    @dg.asset
    def mail(events: DeltaTable) -> dg.MaterializeResult[None]:
        return dg.MaterializeResult(metadata={"sent_for": events.version()})

    lake.materialize(colors.to_source_asset(), mail)
    facts = told(lake, "mail")
    assert (facts["version"], facts["loaded_as"]) == (1, "dagster_delta.DeltaTable")
    assert "files" not in facts


def test_an_op_tells_it_of_its_loaded_input(lake):
    from dagster_delta import DeltaIOManager

    @dg.op(out=dg.Out(io_manager_key="delta"))
    def made() -> pa.Table:
        return pa.table({"n": [1, 2]})

    @dg.op
    def used(rows: pa.Table) -> int:
        return rows.num_rows

    @dg.job(resource_defs={"delta": DeltaIOManager(root_uri=str(lake.root))})
    def reading():
        used(made())

    result = reading.execute_in_process(instance=lake.instance, run_config=QUIET)
    (event,) = [each for each in result.all_events if each.event_type_value == "LOADED_INPUT"]
    facts = event.event_specific_data.metadata["delta/input/rows"].value
    assert (facts["rows"], facts["version"]) == (2, 0)


def test_an_incremental_asset_tells_its_range_of_versions(lake):
    source = DeltaTable(str(lake.root / "public" / "source"), must_exist=False)
    source.append(pa.table({"id": [1]}), properties={"delta.enableChangeDataFeed": "true"})

    @delta_change_feed_asset("source", keys="id")
    def copied(changes: pa.Table) -> pa.Table:
        return changes

    assets = [dg.AssetSpec("source").with_io_manager_key("io_manager"), copied]
    lake.materialize(*assets)
    facts = told(lake, "copied", "changes")
    assert facts.pop("table_id") == source.snapshot().metadata.id
    assert facts == {"table": source.uri, "version": 0, "full_refresh": True}
    source.append(pa.table({"id": [2]}))
    lake.materialize(*assets)
    facts = told(lake, "copied", "changes")
    assert (facts["from_version"], facts["version"]) == (1, 1)
    assert "deltalake" in copied.specs_by_key[dg.AssetKey("copied")].kinds
