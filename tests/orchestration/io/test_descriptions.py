"""Descriptions and comments go from assets into the log, and from the log to the UI."""

from __future__ import annotations

import pyarrow as pa
import pytest

from dagster_delta.table.delta_table import DeltaTable

SCHEMA = pa.schema([pa.field("id", pa.int64(), metadata={"comment": "the key"})])


def comments_of(metadata) -> dict[str, str | None]:
    return {each.name: each.description for each in metadata["dagster/column_schema"].columns}


@pytest.mark.parametrize("mode", ["overwrite", "append", "merge"])
def test_a_new_table_is_described_as_its_asset_and_its_columns_as_the_data(
    lake, events, mode
) -> None:
    metadata = {"mode": mode}
    if mode == "merge":
        metadata |= {"merge_config": {"merge_type": "upsert", "predicate": "s.id = t.id"}}
        metadata["merge_config"] |= {"source_alias": "s", "target_alias": "t"}
    asset = events(
        pa.table({"id": [1]}, SCHEMA), description="Everything that happened", metadata=metadata
    )
    shown = lake.metadata(lake.materialize(asset))
    assert lake.table().metadata().description == "Everything that happened"
    assert shown["delta/details"]["description"] == "Everything that happened"
    assert comments_of(shown) == {"id": "the key"}


def test_a_table_that_is_there_keeps_what_it_says_about_itself(lake, events) -> None:
    DeltaTable.create(str(lake.root / "public" / "events"), SCHEMA, description="From elsewhere")
    asset = events(pa.table({"id": [1]}), description="Of the asset")
    shown = lake.metadata(lake.materialize(asset))
    assert shown["delta/details"]["description"] == "From elsewhere"
    assert comments_of(shown) == {"id": "the key"}


@pytest.mark.spark
def test_comments_of_spark_columns_reach_the_log_and_the_ui(lake, events, spark) -> None:
    frame = spark.createDataFrame([(1,)], "id LONG COMMENT 'the key'")
    asset = events(frame, description="Everything that happened")
    shown = lake.metadata(lake.materialize(asset))
    assert lake.table().metadata().description == "Everything that happened"
    assert comments_of(shown) == {"id": "the key"}
