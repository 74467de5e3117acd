"""Incremental assets whose upstream table gets other columns: no value stays under an older name."""

# No `from __future__ import annotations`: annotations are looked at as users' modules have them.

from typing import Any

import dagster as dg
import deltalake
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pyspark.sql import DataFrame

from dagster_delta.errors import InvalidCast, SchemaMismatch
from dagster_delta.orchestration.incremental.change_feed_assets import delta_change_feed_asset
from dagster_delta.table.delta_table import DeltaTable

PROPERTIES = {
    "delta.enableChangeDataFeed": "true",
    "delta.columnMapping.mode": "name",
    "delta.enableTypeWidening": "true",
}
MAPPED = {"table_properties": {"delta.columnMapping.mode": "name"}}
WIDENING = {"table_properties": {"delta.enableTypeWidening": "true"}}


INT = pa.int32()


def rows(column: str = "v", kind: pa.DataType = INT, **values: Any) -> pa.Table:
    """`rows(k1=5)`: key 1 has the value 5."""
    ids = pa.array([int(name[1:]) for name in values], INT)
    return pa.table({"id": ids, column: pa.array(list(values.values()), kind)})


class Pipeline:
    """An upstream table that somebody else writes, and the asset `events` that copies it."""

    def __init__(self, lake) -> None:
        self.lake = lake
        self.calls = 0
        self.source = DeltaTable(str(lake.root / "public" / "source"), must_exist=False)
        self.source.append(rows(k1=1, k2=2), properties=PROPERTIES)

    def run(self, *, metadata: dict[str, Any] | None = None, **options: Any) -> dict[str, Any]:
        """Metadata of the materialization of one run."""
        return self.lake.metadata(self.lake.materialize(*self.assets(metadata, **options)))

    def fail(self, metadata: dict[str, Any] | None = None, **options: Any) -> BaseException:
        return self.lake.fail(*self.assets(metadata, **options))

    def assets(self, metadata: dict[str, Any] | None = None, **options: Any) -> list[Any]:
        def events(changes: pa.Table) -> pa.Table:
            self.calls += 1
            return self.computed(changes)

        arguments = {"keys": "id", "metadata": metadata or {}, **options}
        asset = delta_change_feed_asset("source", name="events", **arguments)(events)
        return [dg.AssetSpec("source").with_io_manager_key("io_manager"), asset]

    def computed(self, changes: pa.Table) -> pa.Table:
        return changes


@pytest.fixture
def pipeline(lake) -> Pipeline:
    return Pipeline(lake)


def read_by_deltalake(lake) -> list[dict[str, Any]]:
    table = deltalake.DeltaTable(str(lake.root / "public" / "events"))
    rows = pa.table(table.to_pyarrow_table()).to_pylist()
    return sorted(rows, key=lambda row: row["id"])


OVERWRITE = {"schema_mode": "overwrite"}


@pytest.mark.parametrize("schema_mode", ["overwrite", "merge"])
def test_a_column_renamed_upstream_takes_its_older_values_along(lake, pipeline, schema_mode):
    pipeline.run(metadata={"schema_mode": schema_mode})
    pipeline.source.rename_column("v", "w")
    pipeline.source.append(rows("w", k3=3))
    second = pipeline.run(metadata={"schema_mode": schema_mode})
    assert [(row["id"], row["w"]) for row in read_by_deltalake(lake)] == [(1, 1), (2, 2), (3, 3)]
    assert second["delta/full_refresh_because"] == (
        "the columns of the upstream table have changed: column v was renamed to w"
    )
    pipeline.source.append(rows("w", k4=4))
    assert pipeline.run(metadata={"schema_mode": schema_mode})["delta/full_refresh"] is False


def test_a_rename_without_rows_is_followed_too(lake, pipeline):
    pipeline.run(metadata=OVERWRITE)
    pipeline.source.rename_column("v", "w")
    pipeline.run(metadata=OVERWRITE)
    pipeline.source.append(rows("w", k3=3))
    assert pipeline.run(metadata=OVERWRITE)["delta/full_refresh"] is False
    assert read_by_deltalake(lake) == [{"id": n, "w": n} for n in (1, 2, 3)]


def test_a_rename_that_both_tables_have_costs_no_refresh(lake, pipeline):
    pipeline.run(metadata=MAPPED)
    pipeline.source.rename_column("v", "w")
    lake.table().rename_column("v", "w")
    pipeline.source.append(rows("w", k3=3))
    assert pipeline.run(metadata=MAPPED)["delta/full_refresh"] is False
    assert lake.rows() == [{"id": n, "w": n} for n in (1, 2, 3)]


def test_a_function_that_maps_columns_keeps_the_name_that_its_table_has(lake, pipeline):
    pipeline.run()
    pipeline.source.rename_column("v", "w")
    pipeline.source.append(rows("w", k3=3))
    pipeline.computed = lambda changes: changes.rename_columns({"w": "v"})
    assert pipeline.run()["delta/full_refresh"] is True
    assert read_by_deltalake(lake) == [{"id": n, "v": n} for n in (1, 2, 3)]


def test_a_rename_of_a_column_that_is_not_read_is_nothing(lake, pipeline):
    pipeline.source.add_column("note", "STRING")
    pipeline.run(columns=["id", "v"])
    pipeline.source.rename_column("note", "remark")
    pipeline.source.append(rows(k3=3))
    assert pipeline.run(columns=["id", "v"])["delta/full_refresh"] is False


def test_a_rename_inside_a_struct_is_followed(lake, pipeline):
    more = rows(k0=0).append_column("s", pa.array([{"a": 7}]))
    pipeline.source.append(more, schema_mode="merge")
    pipeline.run(metadata=OVERWRITE)
    pipeline.source.rename_column("s.a", "b")
    pipeline.source.append(rows(k3=3))
    reason = pipeline.run(metadata=OVERWRITE)["delta/full_refresh_because"]
    assert "column s.a was renamed to s.b" in reason
    assert [row["s"] for row in read_by_deltalake(lake)] == [{"b": 7}, None, None, None]


def test_a_rename_fails_a_strict_asset_by_the_names_of_its_columns(lake, pipeline):
    pipeline.run()
    pipeline.source.rename_column("v", "w")
    pipeline.source.append(rows("w", k3=3))
    error = pipeline.fail()
    assert isinstance(error, SchemaMismatch)
    assert "- v: integer\n+ w: integer" in str(error)
    error = pipeline.fail(on_gap="fail")
    assert "column v was renamed to w. Change the table of events in the same way" in str(error)
    assert [row["v"] for row in read_by_deltalake(lake)] == [1, 2]


def test_a_new_column_fails_a_strict_asset_by_its_name(lake, pipeline):
    pipeline.run()
    pipeline.source.append(rows(k3=3).append_column("w", pa.array(["x"])), schema_mode="merge")
    error = pipeline.fail()
    assert isinstance(error, SchemaMismatch)
    assert "the data has columns that the table lacks (w)" in str(error)
    assert " t," not in str(error)


def test_a_column_dropped_upstream_leaves_a_table_that_takes_its_columns(lake, pipeline):
    pipeline.source.add_column("w", "INT")
    pipeline.run(metadata=OVERWRITE)
    pipeline.source.drop_column("w")
    reason = pipeline.run(metadata=OVERWRITE)["delta/full_refresh_because"]
    assert "column w was dropped" in reason
    assert read_by_deltalake(lake) == [{"id": 1, "v": 1}, {"id": 2, "v": 2}]


def test_a_column_dropped_upstream_stays_in_a_strict_table_and_the_run_says_so(lake, pipeline):
    pipeline.source.append(rows(k3=3).append_column("w", pa.array([3])), schema_mode="merge")
    pipeline.run()
    pipeline.source.drop_column("w")
    second = pipeline.run()
    assert second["delta/columns_not_followed"] == "column w was dropped"
    assert second["delta/full_refresh"] is False
    assert [row["w"] for row in read_by_deltalake(lake)] == [None, None, 3]


@pytest.mark.parametrize(("kind", "value"), [("BIGINT", 2**40), ("DOUBLE", 3.5)])
def test_a_type_widened_upstream_is_taken_on(lake, pipeline, kind, value):
    arrow = {"BIGINT": pa.int64(), "DOUBLE": pa.float64()}[kind]
    pipeline.run(metadata=OVERWRITE)
    pipeline.source.widen_column("v", kind)
    pipeline.source.append(rows(kind=arrow, k3=value))
    reason = pipeline.run(metadata=OVERWRITE)["delta/full_refresh_because"]
    assert "column v is of type" in reason
    assert [row["v"] for row in read_by_deltalake(lake)] == [1, 2, value]


def test_a_table_that_widens_types_takes_the_changes_alone(lake, pipeline):
    metadata = {**OVERWRITE, **WIDENING}
    pipeline.run(metadata=metadata)
    pipeline.source.widen_column("v", "BIGINT")
    pipeline.source.append(rows(kind=pa.int64(), k3=2**40))
    assert pipeline.run(metadata=metadata)["delta/full_refresh"] is False
    assert [row["v"] for row in lake.rows()] == [1, 2, 2**40]


def test_a_column_that_no_write_widens_is_told_where_it_has_a_wider_type_upstream(lake, pipeline):
    metadata = {**WIDENING, "partition_by": ["v"], "schema_mode": "merge"}
    pipeline.run(metadata=metadata)
    pipeline.source.widen_column("v", "BIGINT")
    pipeline.source.append(rows(kind=pa.int64(), k3=3))
    told = pipeline.run(metadata=metadata)["delta/columns_not_followed"]
    assert told == "column v is of type long now, and of type integer here"


def test_a_strict_table_refuses_values_of_the_wider_type_and_says_how_to_take_them(lake, pipeline):
    pipeline.run()
    pipeline.source.widen_column("v", "BIGINT")
    pipeline.source.append(rows(kind=pa.int64(), k3=2**40))
    error = pipeline.fail()
    assert isinstance(error, InvalidCast)
    assert '{"schema_mode": "overwrite"} on events, and full_refresh' in str(error)


def test_rows_that_a_journal_would_round_are_refused(lake, pipeline):
    journal: dict[str, Any] = {"mode": "append", "keys": ()}
    pipeline.run(metadata=OVERWRITE, **journal)
    pipeline.source.widen_column("v", "DOUBLE")
    pipeline.source.append(rows(kind=pa.float64(), k3=3.5))
    error = pipeline.fail(OVERWRITE, **journal)
    assert "column v is of type double now, and of type integer here" in str(error)
    assert "widen the column" in str(error)


def test_a_function_may_keep_the_narrower_type(lake, pipeline):
    pipeline.run(metadata=OVERWRITE, mode="append", keys=())
    pipeline.source.widen_column("v", "DOUBLE")
    pipeline.source.append(rows(kind=pa.float64(), k3=3.5))

    def rounded(changes: pa.Table) -> pa.Table:
        position = changes.schema.get_field_index("v")
        return changes.set_column(position, "v", pc.round(changes["v"]).cast(pa.int32()))

    pipeline.computed = rounded
    pipeline.run(metadata=OVERWRITE, mode="append", keys=())
    assert [row["v"] for row in lake.rows()] == [1, 2, 4]


def test_another_key_that_the_table_lacks_is_named(lake, pipeline):
    pipeline.run()
    pipeline.source.append(rows(k3=3))
    pipeline.computed = lambda changes: changes.append_column("code", changes["id"])
    error = pipeline.fail({"schema_mode": "merge"}, keys=["code"])
    assert "code" in str(error)
    assert '{"schema_mode": "overwrite"} on events, and full_refresh' in str(error)


@pytest.mark.spark
def test_spark_frames_follow_renames_and_wider_types_too(lake, pipeline, spark):
    @delta_change_feed_asset("source", keys="id", metadata=OVERWRITE)
    def events(changes: DataFrame) -> DataFrame:
        return changes

    def run() -> dict[str, Any]:
        return lake.metadata(lake.materialize(pipeline.assets()[0], events))

    run()
    pipeline.source.alter("RENAME v TO w, ALTER w TYPE BIGINT")
    pipeline.source.append(rows("w", pa.int64(), k3=2**40))
    reason = run()["delta/full_refresh_because"]
    assert "column v was renamed to w" in reason
    pipeline.source.append(rows("w", pa.int64(), k4=4))
    assert run()["delta/full_refresh"] is False
    assert [row["w"] for row in read_by_deltalake(lake)] == [1, 2, 2**40, 4]
