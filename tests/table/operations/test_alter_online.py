"""ALTER TABLE statements that change a column online: MODIFY, CHANGE and ALTER … TYPE."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from dagster_delta.errors import (
    ColumnChangeFailed,
    ConstraintViolation,
    DeltaError,
    InvalidArgument,
    SchemaChangeRefused,
)
from dagster_delta.evolution.plan import ColumnChangePlan
from dagster_delta.protocol.log.paths import commit_path
from dagster_delta.storage.memory_store import MemoryStore
from dagster_delta.table.delta_table import DeltaTable
from dagster_delta.testing.faulty_store import Fault, FaultyStore, SimulatedCrash
from tests.sample_tables import texts
from tests.table.operations.test_column_change import MAPPED, make, opened, read


def columns(table: DeltaTable) -> list[str]:
    return [f"{each.name} {each.data_type}" for each in table.schema()]


@pytest.mark.parametrize(
    "statement",
    [
        "ALTER TABLE t MODIFY COLUMN v INT",
        "ALTER TABLE t MODIFY v INT",
        "ALTER TABLE t CHANGE COLUMN v v INT",
        "ALTER TABLE t CHANGE v v INT;",
        "ALTER TABLE t ALTER COLUMN v TYPE INT",
        "ALTER TABLE t ALTER v SET DATA TYPE INT",
        "ALTER TABLE t ALTER v SET TYPE INT",
    ],
)
def test_a_type_that_is_not_wider_is_changed_online(statement: str) -> None:
    table = make()
    before = table.version()
    result = table.alter(statement)
    assert columns(table) == ["id long", "v integer"]
    assert read(table) == [{"id": each, "v": each} for each in range(1, 7)]
    assert read(table, version=before)[0] == {"id": 1, "v": "1"}
    assert (result.version, result.skipped) == (table.version(), False)
    assert (result.metrics["numCopiedRows"], result.metrics["numRemovedFiles"]) == (6, 3)
    assert table.column_change() is None
    again = table.alter(statement)
    assert (again.skipped, table.version()) == (True, result.version)


def test_a_wider_type_stays_in_the_log_whatever_the_switch_says() -> None:
    table = make()
    table.alter("MODIFY v INT")
    files = table.snapshot().files()["path"].to_pylist()
    table.alter("MODIFY COLUMN v BIGINT COMMENT 'wide'", enable_features=True)
    assert table.snapshot().files()["path"].to_pylist() == files
    assert columns(table) == ["id long", "v long"]
    assert table.history(1)[0].operation == "CHANGE COLUMN"


def test_the_last_commit_brings_all_that_a_statement_says_of_the_column() -> None:
    store = MemoryStore()
    make(store, {"delta.dataSkippingStatsColumns": "v,id"})
    seen: list[tuple[str, ...]] = []
    opened(store).alter(
        "CHANGE COLUMN v w INT NOT NULL DEFAULT 7 COMMENT 'a number' FIRST",
        batch_bytes=1,
        on_progress=lambda *_: seen.append(opened(store).schema().names),
    )
    assert set(seen) == {("id", "v")}
    table = opened(store)
    field = table.schema().field("w")
    assert table.schema().names == ("w", "id")
    assert (str(field.data_type), field.nullable) == ("integer", False)
    assert (field.metadata["comment"], field.metadata["CURRENT_DEFAULT"]) == ("a number", "7")
    assert table.snapshot().configuration.supports("allowColumnDefaults")
    assert table.metadata().configuration["delta.dataSkippingStatsColumns"] == "w,id"
    (commit,) = [each for each in table.history() if "public" in str(each.operation_parameters)]
    assert commit.version == table.version()
    table.append(pa.table({"id": [9]}))
    assert read(table)[-1] == {"w": 7, "id": 9}
    assert table.snapshot().scan(where="w = 3").to_arrow().num_rows == 1


def test_what_a_statement_leaves_out_stays_as_it_is() -> None:
    table = make()
    table.alter("ALTER v SET DEFAULT '7', ALTER v COMMENT 'kept'")
    table.alter("MODIFY v INT")
    metadata = table.schema().field("v").metadata
    assert (metadata["CURRENT_DEFAULT"], metadata["comment"]) == ("'7'", "kept")
    table.alter("MODIFY v STRING DEFAULT NULL COMMENT ''")
    assert not {"CURRENT_DEFAULT", "comment"} & set(table.schema().field("v").metadata)


def test_an_old_default_that_is_no_value_of_the_new_type_gives_way_to_the_new_one() -> None:
    table = make()
    table.alter("ALTER v SET DEFAULT 'none'")
    with pytest.raises(SchemaChangeRefused, match="default of v"):
        table.alter("MODIFY v INT")
    table.alter("MODIFY v INT DEFAULT 0")
    table.append(pa.table({"id": [9]}))
    assert read(table)[-1] == {"id": 9, "v": 0}


def test_a_field_of_a_struct_is_changed_renamed_and_moved() -> None:
    table = DeltaTable("memory://t", store=MemoryStore(), must_exist=False)
    table.append(pa.table({"id": [1], "s": [{"a": 1, "b": "2"}]}), properties=MAPPED)
    table.alter("CHANGE s.b s.c INT COMMENT 'x' FIRST")
    assert str(table.schema().field("s").data_type) == "struct<c:integer,a:long>"
    assert read(table) == [{"id": 1, "s": {"c": 2, "a": 1}}]


def test_an_expression_computes_the_values() -> None:
    table = make()
    table.alter("ALTER v TYPE INT USING CAST(v AS INT) * 10 + id")
    assert read(table)[1] == {"id": 2, "v": 22}
    table.alter("ALTER v TYPE INT USING v + 1")
    assert read(table)[1] == {"id": 2, "v": 23}


def test_actions_run_in_the_order_of_the_statement() -> None:
    table = make()
    before = table.version()
    table.alter(
        "ADD COLUMN n INT, RENAME v TO w, MODIFY w INT, "
        "ADD CONSTRAINT positive CHECK (w > 0), DROP COLUMN n"
    )
    assert columns(table) == ["id long", "w integer"]
    commits = [
        (each.operation, dict(each.operation_parameters).get("state"))
        for each in reversed(table.history(table.version() - before))
    ]
    assert commits == [
        ("ALTER TABLE", None),
        ("CHANGE COLUMN", "prepared"),
        ("CHANGE COLUMN", "reorganising"),
        ("CHANGE COLUMN", "public"),
        ("ALTER TABLE", None),
    ]
    with pytest.raises(ConstraintViolation):
        table.append(pa.table({"id": [1], "w": pa.array([-1], pa.int32())}))


def test_two_columns_change_one_after_the_other_and_the_metrics_add_up() -> None:
    table = make()
    result = table.alter("MODIFY v INT, MODIFY id STRING AFTER v")
    assert columns(table) == ["v integer", "id string"]
    assert result.metrics["numCopiedRows"] == 12
    assert table.snapshot().num_records == 6


def test_clustering_columns_go_along_and_what_follows_is_planned_on_them() -> None:
    table = make()
    table.alter("ADD COLUMN n INT, CLUSTER BY (v)")
    table.alter("CHANGE v w INT, DROP COLUMN n")
    assert columns(table) == ["id long", "w integer"]
    table.optimize()
    with pytest.raises(SchemaChangeRefused, match="clustering by w"):
        table.alter("DROP COLUMN w")


def test_a_value_in_the_way_rolls_the_change_back_and_keeps_what_was_done_before() -> None:
    table = make()
    table.append(pa.table({"id": [7], "v": ["seven"]}))
    with pytest.raises(ColumnChangeFailed, match="at least 1 row") as caught:
        table.alter("ADD COLUMN n INT, MODIFY v INT, RENAME n TO m")
    table.refresh()
    assert columns(table) == ["id long", "v string", "n integer"]
    assert table.column_change() is None
    message = caught.value.message
    assert f"kept as of version {table.history()[2].version}: add column n" in message
    assert message.endswith("not done: rename column n to m")


@pytest.mark.parametrize(
    ("statement", "kind", "problem"),
    [
        ("ADD COLUMN n INT, MODIFY v INT, RENAME n TO id", InvalidArgument, "column id already"),
        ("ADD COLUMN n INT, CHANGE v id INT", InvalidArgument, "column id already"),
        ("ADD COLUMN n INT, MODIFY v INT DEFAULT 'x'", SchemaChangeRefused, "default of v"),
        ("MODIFY v INT, MODIFY v INT AFTER nowhere", DeltaError, "nowhere"),
        ("DROP v, MODIFY v INT", DeltaError, "no column v"),
        ("ADD CONSTRAINT c CHECK (v <> ''), CHANGE v w INT", SchemaChangeRefused, "CHECK.* c "),
        ("MODIFY v ARRAY<INT>", SchemaChangeRefused, "cannot be changed from string"),
        ("ALTER id TYPE ARRAY<INT> USING array(1)", SchemaChangeRefused, "atomic types"),
        (
            "ADD COLUMN l ARRAY<STRING>, CHANGE l.element x INT",
            SchemaChangeRefused,
            "renamed by itself",
        ),
    ],
)
def test_a_statement_that_makes_no_sense_leaves_no_trace(
    statement: str, kind: type[DeltaError], problem: str
) -> None:
    table = make()
    version = table.version()
    for dry_run in (True, False):
        with pytest.raises(kind, match=problem):
            table.alter(statement, dry_run=dry_run)
    assert table.refresh().version == version


def test_the_switches_are_named_where_they_are_shown() -> None:
    table = DeltaTable("memory://t", store=MemoryStore(), must_exist=False)
    table.append(texts(1, 2))
    with pytest.raises(SchemaChangeRefused) as caught:
        table.alter("ADD COLUMN n INT, MODIFY v INT")
    assert "from string to int online, as that type is not wider" in caught.value.message
    assert "dagsterDelta.enableColumnChange = true" in caught.value.message
    assert "pass enable_features=True" in caught.value.message
    table.set_properties({"dagsterDelta.enableColumnChange": "false"})
    with pytest.raises(SchemaChangeRefused, match="explicitly set to false"):
        table.alter("MODIFY v INT", enable_features=True)
    off = table.plan_column_change("v", "INT").missing_switches
    assert [each.name for each in off] == [
        "dagsterDelta.enableColumnChange",
        "columnMapping",
    ]
    kept = DeltaTable("memory://t", store=table.store, allow_column_changes=False)
    switch = "SET TBLPROPERTIES ('dagsterDelta.enableColumnChange' = 'true')"
    with pytest.raises(SchemaChangeRefused, match="enable_column_change to true on the resource"):
        kept.alter(f"{switch}, MODIFY v INT", enable_features=True)
    assert table.refresh().version == 1
    table.alter(f"{switch}, MODIFY v INT", enable_features=True)
    assert read(table) == [{"id": 1, "v": 1}, {"id": 2, "v": 2}]


def test_a_dry_run_tells_every_part_its_cost_and_what_is_off() -> None:
    table = DeltaTable("memory://t", store=MemoryStore(), must_exist=False)
    table.append(texts(1, 2))
    table.append(texts(3))
    version = table.version()
    result = table.alter(
        "ADD COLUMN n INT DEFAULT 1, CHANGE v w INT COMMENT 'x', DROP COLUMN n",
        dry_run=True,
        batch_bytes=1,
    )
    assert (result.skipped, table.refresh().version) == (True, version)
    plan = result.plan
    assert [each.effect for each in plan.steps] == ["rewrites", "converts", "metadata"]
    online = plan.stages[1]
    assert isinstance(online, ColumnChangePlan)
    assert online.cost is not None
    assert (online.cost.num_rows, online.cost.num_files, online.cost.num_batches) == (3, 2, 2)
    assert online.cost.size_bytes == table.snapshot().size_bytes
    assert plan.rewrites_data
    assert plan.changes_anything
    assert {each.name for each in plan.missing_switches} == {
        "dagsterDelta.enableColumnChange",
        "columnMapping",
    }
    assert {"columnMapping", "allowColumnDefaults"} <= set(plan.new_features)
    text = str(result)
    assert "change column v from string to int online, renamed to w | existing files" in text
    for part in ("Part 1: one commit", "Part 2: an online change", "Part 3: one commit"):
        assert part in text
    assert "3 rows in 2 files" in text
    assert "batches: 2, each a commit" in text
    assert "`prepared`" in text
    assert "its name becomes `w`" in text
    assert "its comment: `x`" in text
    assert "pass enable_features=True" in text


@pytest.mark.parametrize("version", range(3, 6))
def test_a_crash_is_resumed_with_all_that_the_statement_says_of_the_column(version: int) -> None:
    store = MemoryStore()
    make(store)
    crash = Fault("crash_after", "put_if_absent", commit_path(version))
    with pytest.raises(SimulatedCrash):
        opened(FaultyStore(store, [crash])).alter("CHANGE v w INT NOT NULL COMMENT 'x' FIRST")
    table = opened(store)
    if table.column_change() is not None:
        table.append(texts(7))
        assert columns(table) == ["id long", "v string"]
        table.resume_column_change()
    assert columns(table) == ["w integer", "id long"]
    field = table.schema().field("w")
    assert (field.nullable, field.metadata["comment"]) == (False, "x")


def test_a_change_that_renames_is_cancelled_without_a_trace() -> None:
    store = MemoryStore()
    make(store)
    schema = opened(store).schema()
    crash = Fault("crash_after", "put_if_absent", commit_path(4))
    with pytest.raises(SimulatedCrash):
        opened(FaultyStore(store, [crash])).alter("CHANGE v w INT DEFAULT 3 COMMENT 'x'")
    opened(store).cancel_column_change()
    assert opened(store).schema() == schema


def test_nobody_takes_the_new_name_meanwhile() -> None:
    store = MemoryStore()
    make(store)
    crash = Fault("crash_after", "put_if_absent", commit_path(3))
    with pytest.raises(SimulatedCrash):
        opened(FaultyStore(store, [crash])).alter("CHANGE v w INT")
    with pytest.raises(SchemaChangeRefused, match="resume or cancel the change first"):
        opened(store).alter("ADD COLUMN W INT")
    # No writer waits for a change: one that comes with a new column of that name ends it.
    opened(store).append(texts(8).append_column("w", pa.array([1])), schema_mode="merge")
    with pytest.raises(SchemaChangeRefused, match=r"lost its new name, w.*cancel the change"):
        opened(store).resume_column_change()
    opened(store).cancel_column_change()
    assert columns(opened(store)) == ["id long", "v string", "w long"]


def test_an_append_on_its_way_lands_after_a_change_that_renames() -> None:
    store = MemoryStore()
    make(store, {"delta.dataSkippingStatsColumns": "v,id"})
    crash = Fault("crash_after", "put_if_absent", commit_path(3))
    with pytest.raises(SimulatedCrash):
        opened(FaultyStore(store, [crash])).alter("CHANGE v w INT COMMENT 'x' FIRST")
    stepped: list[Any] = []

    def step(operation: str, path: str) -> None:
        if operation == "put_if_absent" and "_delta_log" in path and not stepped:
            stepped.append(path)
            opened(store).resume_column_change()

    opened(FaultyStore(store, before_call=step)).append(texts(50))
    assert stepped
    assert read(opened(store))[-1] == {"w": 50, "id": 50}
    assert opened(store).snapshot().scan(where="w = 50").to_arrow().num_rows == 1


def test_a_change_in_batches_of_no_size_is_refused_before_anything_is_done() -> None:
    table = make()
    version = table.version()
    with pytest.raises(InvalidArgument, match="batch_bytes"):
        table.alter("ADD COLUMN n INT, MODIFY v INT", batch_bytes=0)
    assert table.refresh().version == version
