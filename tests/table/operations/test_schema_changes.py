"""Changing the schema of a table: what its rows go through, beside other writers and crashes."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from dagster_delta.errors import (
    CommitStateUnknown,
    ConstraintViolation,
    InvalidArgument,
    InvalidCast,
    MetadataChanged,
    SchemaChangeRefused,
    StorageFailure,
    TableNotFound,
)
from dagster_delta.evolution.plan import SchemaChangePlan
from dagster_delta.evolution.planning import plan_schema_changes
from dagster_delta.protocol.features.column_mapping import PARQUET_FIELD_ID_KEY
from dagster_delta.storage.memory_store import MemoryStore
from dagster_delta.table.delta_table import DeltaTable
from dagster_delta.table.operations import change_schema, rewrite_files, validate
from dagster_delta.table.transaction.transaction import Transaction
from dagster_delta.testing.faulty_store import Fault, FaultyStore, Operation, SimulatedCrash
from tests.sample_tables import IDS, MORE, table_of
from tests.table.handles import crashing_at_third_batch, data_files, interrupted
from tests.table_rows import stored_rows

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

FEATURES = {"delta.columnMapping.mode": "name", "delta.enableTypeWidening": "true"}


# DuckLake: schema evolution


DUCKLAKE = pa.table(
    {
        "col1": pa.array([1], pa.int32()),
        "nested_column": pa.array([{"x": 2}], pa.struct([("x", pa.int32())])),
    }
)


def test_every_statement_of_the_ducklake_page_runs_as_written(store: MemoryStore) -> None:
    table = table_of(store, DUCKLAKE, properties=FEATURES)
    before: dict[str, Any] = DUCKLAKE.to_pylist()[0]
    table.alter("ALTER TABLE tbl ADD COLUMN new_column INTEGER;")
    assert stored_rows(table) == [{**before, "new_column": None}]
    table.alter("ALTER TABLE tbl DROP COLUMN new_column;")
    assert stored_rows(table) == [before]
    table.alter("ALTER TABLE tbl ADD COLUMN new_column VARCHAR DEFAULT 'my_default';")
    assert stored_rows(table) == [{**before, "new_column": "my_default"}]
    table.alter("ALTER TABLE tbl ADD COLUMN nested_column.new_field INTEGER;")
    nested = {"x": 2, "new_field": None}
    assert stored_rows(table)[0]["nested_column"] == nested
    table.alter("ALTER TABLE tbl RENAME new_column TO new_name;")
    assert stored_rows(table) == [{"col1": 1, "nested_column": nested, "new_name": "my_default"}]
    table.alter("ALTER TABLE tbl ALTER col1 SET TYPE BIGINT;")
    table.alter("ALTER TABLE tbl ALTER nested_column.new_field SET TYPE BIGINT;")
    assert str(table.schema()) == (
        "struct<col1:long,nested_column:struct<x:integer,new_field:long>,new_name:string>"
    )
    table.alter("ALTER TABLE tbl RENAME nested_column.new_field TO new_name;")
    table.append(pa.table({"col1": [2**40], "nested_column": [{"x": 1, "new_name": 2**41}]}))
    assert stored_rows(table, where="col1 > 4000000000") == [
        {"col1": 2**40, "nested_column": {"x": 1, "new_name": 2**41}, "new_name": "my_default"}
    ]
    table.alter("ALTER TABLE tbl DROP COLUMN nested_column.new_name;")
    assert [row["nested_column"] for row in stored_rows(table)] == [{"x": 2}, {"x": 1}]


def test_unsigned_integers_land_in_signed_types_that_take_part_in_promotions(
    store: MemoryStore,
) -> None:
    unsigned = pa.table(
        {
            "a": pa.array([2**8 - 1], pa.uint8()),
            "b": pa.array([2**16 - 1], pa.uint16()),
            "c": pa.array([2**32 - 1], pa.uint32()),
            "d": pa.array([2**64 - 1], pa.uint64()),
        }
    )
    table = table_of(store, unsigned, properties=FEATURES)
    assert str(table.schema()) == "struct<a:short,b:integer,c:long,d:decimal(20,0)>"
    table.alter("ALTER a TYPE uint64, ALTER b TYPE uint32, ALTER c SET TYPE uint64")
    largest = Decimal(2**64 - 1)
    table.append(
        pa.table({"a": [largest], "b": pa.array([1], pa.uint32()), "c": [largest], "d": [largest]})
    )
    assert stored_rows(table, where="b > 1")[0] == {
        "a": Decimal(2**8 - 1), "b": 2**16 - 1, "c": Decimal(2**32 - 1), "d": largest,
    }  # fmt: skip
    assert stored_rows(table, where="a > 1000")[0]["b"] == 1


# Field ids


def test_fields_are_found_by_id_whatever_they_are_called(tmp_path: Path) -> None:
    table = DeltaTable.create(str(tmp_path), IDS.schema, properties=FEATURES)
    table.append(IDS)
    table.alter("ADD COLUMN gone INT, ADD COLUMN stays STRING")
    table.append(
        MORE.append_column("gone", pa.array([9], pa.int32())).append_column("stays", [["s"]])
    )
    table.alter("DROP gone, RENAME stays TO gone")
    table.append(pa.table({"id": pa.array([4], pa.int32()), "gone": ["t"]}))
    found = sorted(table.snapshot().scan().to_arrow().to_pylist(), key=lambda row: row["id"])
    assert [row["gone"] for row in found] == [None, None, "s", "t"]
    ids = [_field_ids(path) for path in sorted(tmp_path.rglob("*.parquet"))]
    assert sorted(map(sorted, ids)) == [[1], [1, 2, 3], [1, 3]]


def _field_ids(path: Path) -> list[int]:
    import pyarrow.parquet as pq

    return [int(field.metadata[PARQUET_FIELD_ID_KEY]) for field in pq.read_schema(path)]


def test_a_table_that_maps_columns_late_reads_all_of_its_files(store: MemoryStore) -> None:
    table = table_of(store, IDS)
    table.rename_column("id", "ident", enable_features=True)
    table.append(pa.table({"ident": pa.array([3], pa.int32())}))
    table.add_column("id", "INT")
    assert sorted(row["ident"] for row in stored_rows(table)) == [1, 2, 3]
    assert {row["id"] for row in stored_rows(table)} == {None}


# Defaults for rows that are there


def test_a_default_is_in_every_row_of_every_file(store: MemoryStore) -> None:
    table = table_of(
        store, IDS, MORE, partition_by=[], properties={"delta.enableDeletionVectors": "true"}
    )
    table.delete("id = 2")
    result = table.alter("ADD COLUMN c STRING NOT NULL DEFAULT 'x', ADD COLUMN d INT DEFAULT 1 + 1")
    assert result.metrics["numRemovedFiles"] == 2
    assert result.metrics["numOutputRows"] == 2
    assert result.plan.affected_files == 2
    assert stored_rows(table) == [{"id": 1, "c": "x", "d": 2}, {"id": 3, "c": "x", "d": 2}]
    table.append(pa.table({"id": pa.array([4], pa.int32())}))
    assert stored_rows(table)[2] == {"id": 4, "c": "x", "d": 2}
    assert stored_rows(table, where="c <> 'x'") == []


def test_rows_that_get_a_default_are_no_change_of_data(store: MemoryStore) -> None:
    table = table_of(store, IDS, properties={"delta.enableChangeDataFeed": "true"})
    version = table.add_column("c", "INT", default="1").version
    assert table.changes(version).to_arrow().num_rows == 0
    info = table.history(1)[0].commit_info
    assert info["operation"] == "ADD COLUMNS"
    assert info["isBlindAppend"] is False


def test_row_ids_outlive_the_default_of_a_new_column(store: MemoryStore) -> None:
    table = table_of(store, IDS, MORE, properties={"delta.enableRowTracking": "true"})

    def tracked() -> list[dict[str, Any]]:
        return stored_rows(table, columns=["id"], row_ids=True)

    before = tracked()
    table.add_column("c", "INT", default="1")
    assert tracked() == before


def test_existing_rows_may_stay_null(store: MemoryStore) -> None:
    table = table_of(store, IDS)
    result = table.add_column("c", "INT", default="7", existing_rows="null")
    assert "numRemovedFiles" not in result.metrics
    table.append(MORE)
    assert [row["c"] for row in stored_rows(table)] == [None, None, 7]


def test_a_table_without_files_has_nothing_to_write_again(store: MemoryStore) -> None:
    table = DeltaTable.create("", IDS.schema, store=store)
    result = table.add_column("c", "INT", default="7", nullable=False)
    assert not result.plan.rewrites_data
    assert "Rewrites data" not in result.to_markdown()
    table.append(IDS)
    assert [row["c"] for row in stored_rows(table)] == [7, 7]


def test_a_not_null_column_needs_a_default_where_there_are_rows(store: MemoryStore) -> None:
    table = table_of(store, IDS)
    for existing in ("rewrite", "null"):
        with pytest.raises(ConstraintViolation, match="NOT NULL c"):
            table.add_column("c", "INT", nullable=False, existing_rows=existing)
    with pytest.raises(ConstraintViolation, match="NOT NULL c"):
        table.add_column("c", "INT", nullable=False, default="1", existing_rows="null")
    assert table.refresh().version == 1


def test_a_rewrite_that_fails_leaves_nothing_behind(store: MemoryStore) -> None:
    table = table_of(store, IDS, MORE)
    before = data_files(store)
    with pytest.raises(ConstraintViolation, match="CHECK c"):
        table.alter("ADD COLUMN c INT DEFAULT 1, ADD CONSTRAINT c CHECK (c + id < 4)")
    assert data_files(store) == before
    assert table.refresh().version == 2


@pytest.mark.usefixtures("one_file_a_batch")
def test_every_batch_of_files_is_told(store: MemoryStore) -> None:
    table = table_of(store, IDS, MORE)
    seen: list[tuple[int, int]] = []
    table.alter("ADD COLUMN c INT DEFAULT 1", on_progress=lambda *each: seen.append(each))
    table.add_column("d", "INT", on_progress=lambda *each: seen.append(each))
    assert seen == [(1, 2), (2, 2)]


@pytest.mark.usefixtures("one_file_a_batch")
def test_rewrite_begins_again_after_a_crash_and_vacuum_deletes_what_it_left(
    store: MemoryStore,
) -> None:
    table = table_of(store, *[IDS] * 5, properties=FEATURES)
    with crashing_at_third_batch(store) as (crashing, written):
        crashing.add_column("c", "STRING", default="'x'")
    assert len(written) == 3
    assert table.refresh().version == 5
    table.append(MORE)
    table.add_column("c", "STRING", default="'x'")
    assert not written & set(table.snapshot().files()["path"].to_pylist())
    assert stored_rows(table) == [{"id": n, "c": "x"} for n in [1] * 5 + [2] * 5 + [3]]
    assert set(table.unreferenced_files().files["path"].to_pylist()) == written
    table.vacuum(0, dry_run=False, enforce_retention=False)
    assert not written & data_files(store)
    assert len(stored_rows(table)) == 11


@pytest.mark.usefixtures("one_file_a_batch")
def test_rewrite_deletes_the_files_of_an_attempt_that_do_not_fit_the_next_one(
    store: MemoryStore,
) -> None:
    table_of(store, *[IDS] * 3, properties=FEATURES)
    before = data_files(store)
    rivals = interrupted(
        store, lambda rival: rival.delete("id = 1"), lambda rival: rival.add_column("d", "INT")
    )
    rivals.add_column("c", "INT", default="5")
    assert stored_rows(table_at(store)) == [{"id": 2, "d": None, "c": 5}] * 3
    deleted = table_at(store).snapshot(version=4).files()["path"].to_pylist()
    live = table_at(store).snapshot().files()["path"].to_pylist()
    assert data_files(store) == before | set(deleted) | set(live)


@pytest.mark.usefixtures("one_file_a_batch")
@pytest.mark.parametrize("kind", ["crash_before", "crash_after", "lose_reply", "refuse"])
@pytest.mark.parametrize("operation", ["put", "put_if_absent", "open_output", "delete"])
def test_whatever_happens_the_table_is_the_old_one_or_the_new_one_and_a_second_call_finishes(
    kind: Any, operation: Operation, store: MemoryStore
) -> None:
    table_of(store, IDS, MORE)
    failures = 0
    for occurrence in range(1, 10):
        faulty = FaultyStore(store, [Fault(kind, operation, occurrence=occurrence)])
        try:
            DeltaTable("", store=faulty).add_column("c", "STRING", default="'x'")
            break
        except (StorageFailure, CommitStateUnknown, SimulatedCrash):
            failures += 1
            assert stored_rows(table_at(store)) in ([{"id": n} for n in (1, 2, 3)], FILLED)
            if stored_rows(table_at(store)) == FILLED:
                return
    else:
        pytest.fail("there is no end to the calls")
    assert stored_rows(table_at(store)) == FILLED
    live = set(table_at(store).snapshot().files()["path"].to_pylist())
    assert live <= data_files(store)
    assert failures or operation != "open_output"


FILLED = [{"id": n, "c": "x"} for n in (1, 2, 3)]


def table_at(store: Any) -> DeltaTable:
    return DeltaTable("", store=store)


@pytest.mark.usefixtures("one_file_a_batch")
@pytest.mark.parametrize(
    ("interfere", "left"),
    [
        (lambda table: table.append(MORE), [1, 1, 1, 2, 2, 2, 3]),
        (lambda table: table.delete("id = 1"), [2, 2, 2]),
        (lambda table: table.overwrite(MORE), [3]),
    ],
    ids=["append", "delete", "overwrite"],
)
def test_a_rewrite_catches_up_with_writers_that_were_faster(
    interfere: Callable[[DeltaTable], object],
    left: list[int],
    store: MemoryStore,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    table = table_of(store, *[IDS] * 3)
    stage = rewrite_files.FileRewrite.stage
    interfering = iter([True])

    def stage_and_lose(self: Any, *arguments: Any) -> Any:
        staged = stage(self, *arguments)
        if next(interfering, False):
            interfere(DeltaTable("", store=store))
        return staged

    monkeypatch.setattr(rewrite_files.FileRewrite, "stage", stage_and_lose)
    table.add_column("c", "INT", default="5")
    assert stored_rows(table) == [{"id": n, "c": 5} for n in left]


def test_files_of_a_commit_that_may_have_landed_are_kept(
    store: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = table_of(store, IDS)
    commit = Transaction.commit

    def land_without_a_word(self: Transaction, *arguments: Any, **options: Any) -> Any:
        commit(self, *arguments, **options)
        raise CommitStateUnknown("the store never answered")

    with monkeypatch.context() as patched:
        patched.setattr(Transaction, "commit", land_without_a_word)
        with pytest.raises(CommitStateUnknown):
            table.add_column("c", "INT", default="1")
    assert stored_rows(table) == [{"id": 1, "c": 1}, {"id": 2, "c": 1}]


@pytest.mark.usefixtures("one_file_a_batch")
def test_a_default_that_asks_for_the_time_is_the_same_in_every_row(store: MemoryStore) -> None:
    table = table_of(store, *[IDS] * 3)
    table.add_column("at", "TIMESTAMP", default="current_timestamp()")
    assert len({row["at"] for row in stored_rows(table)}) == 1


# Validation


def test_statistics_vouch_for_rows_without_reading_them(
    store: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = table_of(store, IDS, MORE)
    monkeypatch.setattr(
        "dagster_delta.engines.arrow.engine.ArrowEngine.read",
        lambda *_: pytest.fail("rows were read"),
    )
    table.set_nullable("id", False)
    table.add_constraint("positive", "id > 0")
    assert not table.schema().field("id").nullable


def test_rows_that_break_a_constraint_are_shown(store: MemoryStore) -> None:
    table = table_of(store, pa.table({"id": [1, None, 3]}))
    with pytest.raises(ConstraintViolation) as caught:
        table.add_constraint("small", "id < 3")
    assert "CHECK small (id < 3)" in str(caught.value)
    assert caught.value.examples == ("{'id': None}", "{'id': 3}")
    with pytest.raises(ConstraintViolation, match="NOT NULL id"):
        table.alter("ALTER id SET NOT NULL")
    table.delete("id IS NULL OR id = 3")
    table.alter("ALTER id SET NOT NULL, ADD CONSTRAINT small CHECK (id < 3)")
    with pytest.raises(ConstraintViolation):
        table.append(pa.table({"id": [3]}))
    table.drop_constraint("small")
    table.append(pa.table({"id": [3]}))


def test_a_null_struct_may_hold_no_nulls_in_its_fields(store: MemoryStore) -> None:
    rows = pa.table({"s": pa.array([{"x": 1}, None], pa.struct({"x": pa.int32()}))})
    table = table_of(store, rows)
    table.alter("ALTER s.x SET NOT NULL")
    assert table.snapshot().scan(where="coalesce(s.x, 0) < 1").to_arrow().to_pylist() == [
        {"s": None}
    ]
    table.append(rows)
    with pytest.raises(ConstraintViolation):
        table.append(pa.table({"s": pa.array([{"x": None}], rows.schema.field("s").type)}))


def test_a_constraint_on_a_renamed_column_is_checked_under_its_new_name(
    store: MemoryStore,
) -> None:
    table = table_of(store, IDS, properties=FEATURES)
    with pytest.raises(ConstraintViolation, match="NOT NULL other"):
        table.alter("ADD other INT, RENAME id TO ident, ALTER other SET NOT NULL")
    table.alter("RENAME id TO ident, ADD CONSTRAINT c CHECK (ident < 3)")
    assert table.snapshot().configuration.properties.constraints == {"c": "ident < 3"}


def test_rows_added_during_validation_are_validated_too(
    store: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = table_of(store, IDS)
    run = validate.RowValidation.run
    interfering = iter([True])

    def run_and_lose(self: Any, snapshot: Any, plan: SchemaChangePlan) -> None:
        run(self, snapshot, plan)
        if next(interfering, False):
            DeltaTable("", store=store).append(MORE)

    monkeypatch.setattr(validate.RowValidation, "run", run_and_lose)
    with pytest.raises(ConstraintViolation) as caught:
        table.add_constraint("c", "id < 3")
    assert caught.value.examples == ("{'id': 3}",)


# Commits


def test_several_actions_are_one_commit(store: MemoryStore) -> None:
    table = table_of(store, IDS, properties=FEATURES)
    result = table.alter(
        "ALTER TABLE t ADD COLUMN a INT, RENAME id TO ident, ALTER ident TYPE BIGINT, COMMENT 'x'"
    )
    assert (result.version, table.version()) == (2, 2)
    info = table.history(1)[0].commit_info
    assert info["operation"] == "ALTER TABLE"
    assert "widen column ident" in info["operationParameters"]["changes"]


def test_a_dry_run_shows_the_plan_and_commits_nothing(store: MemoryStore) -> None:
    table = table_of(store, IDS, MORE)
    result = table.alter("ADD c INT DEFAULT 1", dry_run=True)
    assert (result.skipped, result.version, table.version()) == (True, 2, 2)
    assert result.plan.affected_files == 2
    assert result.plan.affected_bytes == table.snapshot().size_bytes
    assert "+ c: integer DEFAULT 1" in result.to_markdown()


def test_what_changes_nothing_makes_no_version(store: MemoryStore) -> None:
    table = table_of(store, IDS)
    result = table.alter("ADD COLUMN IF NOT EXISTS id INT, DROP CONSTRAINT IF EXISTS c")
    assert (result.skipped, result.version) == (True, 1)


def test_a_change_is_planned_anew_on_what_another_writer_made(
    store: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = table_of(store, IDS)
    mine = DeltaTable("", store=store)
    interfering = iter([True])

    def plan_and_lose(*arguments: Any, **options: Any) -> SchemaChangePlan:
        planned = plan_schema_changes(*arguments, **options)
        if next(interfering, False):
            table.add_column("theirs", "INT")
        return planned

    monkeypatch.setattr(change_schema, "plan_schema_changes", plan_and_lose)
    assert mine.add_column("mine", "INT").version == 3
    assert mine.schema().names == ("id", "theirs", "mine")


def test_two_writers_that_add_the_same_column_add_it_once(store: MemoryStore) -> None:
    table_of(store, IDS).add_column("c", "INT")
    with pytest.raises(InvalidArgument, match="already"):
        DeltaTable("", store=store).add_column("c", "INT")


def test_only_new_columns_let_an_append_through_that_was_planned_before(
    store: MemoryStore,
) -> None:
    table = table_of(store, IDS)
    transaction = table.transaction()
    DeltaTable("", store=store).add_column("c", "INT")
    assert transaction.commit("WRITE").snapshot.schema.names == ("id", "c")
    transaction = table.transaction()
    DeltaTable("", store=store).alter("ALTER COLUMN c COMMENT 'new'")
    with pytest.raises(MetadataChanged):
        transaction.commit("WRITE")


def test_every_typed_call_does_what_its_statement_does(store: MemoryStore) -> None:
    table = table_of(store, IDS, properties=FEATURES)
    table.add_column(["odd.name"], pa.int8(), comment="c", first=True)
    table.widen_column("`odd.name`", "BIGINT")
    table.set_default(["odd.name"], "5")
    table.set_default(["odd.name"], None)
    table.set_comment(["odd.name"], "other")
    table.move_column(["odd.name"], after="id")
    table.rename_column("`odd.name`", "plain")
    table.set_nullable("id", False)
    table.set_nullable("id")
    table.add_constraint("c", "id > 0")
    table.drop_constraint("c")
    table.cluster_by("id")
    field = table.schema().field("plain")
    assert table.schema().names == ("id", "plain")
    assert (str(field.data_type), field.comment) == ("long", "other")
    assert "delta.clustering" in table.snapshot().domain_metadata()
    table.drop_column("plain")
    table.cluster_by()
    assert table.schema().names == ("id",)


def test_a_place_among_siblings_is_first_or_after_one(store: MemoryStore) -> None:
    table = table_of(store, IDS)
    for wrong in ({}, {"first": True, "after": "id"}):
        with pytest.raises(InvalidArgument, match="first=True or after"):
            table.move_column("id", **wrong)  # type: ignore[arg-type]


def test_a_table_that_is_not_there_is_not_altered(store: MemoryStore) -> None:
    with pytest.raises(TableNotFound):
        DeltaTable("", store=store, must_exist=False).alter("ADD c INT")


def test_turning_row_tracking_on_and_a_default_are_two_statements(store: MemoryStore) -> None:
    table = table_of(store, IDS)
    with pytest.raises(InvalidArgument, match="a statement of its own"):
        table.alter("SET TBLPROPERTIES ('delta.enableRowTracking' = true), ADD c INT DEFAULT 1")


# Types


WIDENINGS: list[tuple[pa.DataType, Any, str, Any]] = [
    (pa.int8(), 7, "SMALLINT", 300),
    (pa.int8(), 7, "DECIMAL(12,2)", Decimal("300.25")),
    (pa.int16(), 7, "INT", 2**20),
    (pa.int16(), 7, "DOUBLE", 0.5),
    (pa.int32(), 7, "BIGINT", 2**40),
    (pa.int32(), 7, "DECIMAL(10,0)", Decimal(8)),
    (pa.int64(), 7, "DECIMAL(20,0)", Decimal(10) ** 19),
    (pa.float32(), 0.5, "DOUBLE", 1e300),
    (pa.date32(), dt.date(2020, 2, 29), "TIMESTAMP_NTZ", dt.datetime(2021, 1, 2, 3, 4, 5, 6)),
    (pa.decimal128(6, 2), Decimal("12.34"), "DECIMAL(12,4)", Decimal("12345678.1234")),
]


def literal(value: Any) -> str:
    match value:
        case dt.datetime():
            return f"TIMESTAMP_NTZ '{value.isoformat(sep=' ')}'"
        case float():
            return f"{value}D"
        case _:
            return str(value)


@pytest.mark.parametrize("partitioned", [False, True])
@pytest.mark.parametrize(
    ("old", "value", "new", "wider"), WIDENINGS, ids=[f"{w[0]}-{w[2]}" for w in WIDENINGS]
)
def test_files_of_the_old_type_are_read_and_skipped_as_the_new_one(
    old: pa.DataType, value: Any, new: str, wider: Any, partitioned: bool, store: MemoryStore
) -> None:
    first = pa.table({"c": pa.array([value, None], old), "n": [1, 2]})
    table = table_of(store, first, partition_by=["c"] if partitioned else [], properties=FEATURES)
    table.widen_column("c", new)
    kind = table.snapshot().arrow_schema.field("c").type
    table.append(pa.table({"c": pa.array([wider], kind), "n": [3]}))
    as_new = pa.array([value], old).cast(kind)[0].as_py()
    found = {row["n"]: row["c"] for row in stored_rows(table)}
    assert found == {1: as_new, 2: None, 3: wider}
    high = max(as_new, wider)
    sql = f"c = {literal(high)}"
    scan = table.snapshot().scan(where=sql)
    assert [row["c"] for row in scan.to_arrow().to_pylist()] == [high]
    assert scan.files().num_rows == 1
    assert stored_rows(table, where="c IS NULL") == [{"c": None, "n": 2}]


def test_merged_and_rewritten_files_have_the_new_type(store: MemoryStore) -> None:
    table = table_of(store, IDS, MORE, properties=FEATURES)
    table.widen_column("id", "BIGINT")
    table.add_column("c", "INT", default="1")
    import pyarrow.parquet as pq

    for path in table.snapshot().files()["path"].to_pylist():
        assert pq.read_schema(store.open_input(path)).field(0).type == pa.int64()


def test_the_change_feed_goes_across_a_widening(store: MemoryStore) -> None:
    table = table_of(store, IDS, properties={**FEATURES, "delta.enableChangeDataFeed": "true"})
    table.widen_column("id", "BIGINT")
    table.append(pa.table({"id": [2**40]}))
    table.delete("id = 1")
    feed = table.changes(1).to_arrow()
    assert feed.schema.field("id").type == pa.int64()
    kinds = sorted(zip(feed["_change_type"].to_pylist(), feed["id"].to_pylist(), strict=True))
    assert kinds == [("delete", 1), ("insert", 1), ("insert", 2), ("insert", 2**40)]


def test_old_versions_keep_their_schema(store: MemoryStore) -> None:
    table = table_of(store, IDS, properties=FEATURES)
    table.alter("RENAME id TO ident, ALTER ident TYPE BIGINT, ADD c INT DEFAULT 1")
    old = table.snapshot(1)
    assert str(old.schema) == "struct<id:integer>"
    assert old.scan().to_arrow() == IDS


def test_dropping_a_feature_is_a_statement_too(store: MemoryStore) -> None:
    table = table_of(store, IDS, properties={"delta.enableTypeWidening": "true"})
    table.alter("ALTER id TYPE BIGINT")
    planned = table.alter("DROP FEATURE typeWidening", dry_run=True)
    assert planned.plan.rewrites_data
    assert "drop feature typeWidening" in planned.to_markdown()
    table.alter("ALTER TABLE t DROP FEATURE typeWidening")
    assert not table.snapshot().configuration.supports("typeWidening")
    assert "delta.typeChanges" not in table.metadata().schema_string
    assert stored_rows(table) == [{"id": 1}, {"id": 2}]


# Spark


def test_spark_writes_the_default_and_checks_rows(spark: SparkSession, tmp_path: Path) -> None:
    table = DeltaTable.create(str(tmp_path), IDS.schema, properties=FEATURES)
    table.append(IDS)
    table.append(MORE)
    with pytest.raises(ConstraintViolation, match="CHECK c"):
        table.add_constraint(
            "c", "substring_index(CAST(id AS STRING), '3', 1) <> ''", engine="spark"
        )
    table.alter(
        "ADD COLUMN c STRING NOT NULL DEFAULT concat('x', 'y'), RENAME id TO ident, "
        "ALTER ident TYPE BIGINT",
        engine="spark",
    )
    found = table.snapshot().scan().to_arrow()
    assert sorted(found.to_pylist(), key=repr) == [{"ident": n, "c": "xy"} for n in (1, 2, 3)]
    frame = table.snapshot().scan(where="ident >= 2").to_spark(spark)
    assert sorted(row.ident for row in frame.collect()) == [2, 3]


def test_a_frame_widens_the_table(spark: SparkSession, tmp_path: Path) -> None:
    table = DeltaTable.create(str(tmp_path), IDS.schema, properties=FEATURES)
    table.append(IDS)
    with pytest.raises(InvalidCast, match='schema_mode="widen"'):
        table.append(spark.sql(f"SELECT {2**40} AS id"))
    table.append(spark.sql(f"SELECT {2**40} AS id"), schema_mode="widen")
    assert str(table.schema()) == "struct<id:long>"
    assert sorted(row["id"] for row in stored_rows(table)) == [1, 2, 2**40]


def test_a_refused_change_names_its_error(store: MemoryStore) -> None:
    table = table_of(store, IDS)
    with pytest.raises(SchemaChangeRefused, match="enable_features=True"):
        table.rename_column("id", "i", enable_features=False)
