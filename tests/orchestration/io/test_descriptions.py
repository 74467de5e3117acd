"""Descriptions and comments go from assets into the log, and from the log to the UI."""

from __future__ import annotations

import dagster as dg
import pyarrow as pa
import pytest

from dagster_delta.errors import InvalidArgument
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


def test_descriptions_of_the_asset_replace_those_of_its_table_on_request(lake, events) -> None:
    DeltaTable.create(
        str(lake.root / "public" / "events"),
        pa.schema([*SCHEMA, ("note", pa.string())]),
        description="From elsewhere",
    )
    columns = dg.TableSchema(
        [dg.TableColumn("ID", description="of the event"), dg.TableColumn("gone", description="x")]
    )
    metadata = {
        "mode": "append",
        "update_descriptions": True,
        "dagster/column_schema": dg.MetadataValue.table_schema(columns),
    }
    asset = events(pa.table({"id": [1]}), description="Of the asset", metadata=metadata)
    assert lake.materialize(asset).success
    table = lake.table()
    assert table.metadata().description == "Of the asset"
    assert [field.comment for field in table.schema()] == ["of the event", None]
    version = table.version()
    assert lake.materialize(asset).success
    assert lake.table().version() == version + 1


def test_failure_to_describe_a_table_is_a_warning(lake, events, monkeypatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise InvalidArgument("no rights")

    monkeypatch.setattr(DeltaTable, "set_description", fail)
    DeltaTable.create(str(lake.root / "public" / "events"), SCHEMA)
    metadata = {"update_descriptions": True}
    asset = events(pa.table({"id": [1]}), description="Of the asset", metadata=metadata)
    result = lake.materialize(asset)
    assert result.success
    logged = [entry.user_message for entry in lake.instance.all_logs(result.run_id)]
    assert any("were not written to its table: no rights" in message for message in logged)


@pytest.mark.spark
def test_comments_of_spark_columns_reach_the_log_and_the_ui(lake, events, spark) -> None:
    frame = spark.createDataFrame([(1,)], "id LONG COMMENT 'the key'")
    asset = events(frame, description="Everything that happened")
    shown = lake.metadata(lake.materialize(asset))
    assert lake.table().metadata().description == "Everything that happened"
    assert comments_of(shown) == {"id": "the key"}
