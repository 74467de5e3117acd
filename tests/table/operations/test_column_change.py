"""Changing a column to any type: what readers and writers see meanwhile, and how it can end."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pytest
from deltalake import DeltaTable as DeltaLakeTable
from deltalake import QueryBuilder
from msgspec.structs import replace

from dagster_delta.errors import (
    ColumnChangeFailed,
    DeltaError,
    InvalidArgument,
    InvalidTable,
    SchemaChangeRefused,
    SchemaMismatch,
    UnsupportedExpression,
)
from dagster_delta.parquet.shadow_column import ShadowColumn
from dagster_delta.parquet.writer import write_data_files
from dagster_delta.protocol.features.column_change import COLUMN_CHANGE_KEY
from dagster_delta.protocol.features.table_configuration import TableConfiguration
from dagster_delta.protocol.log.paths import commit_path
from dagster_delta.protocol.schema import PrimitiveType, StructType
from dagster_delta.protocol.values.arrow_schema import to_arrow_schema
from dagster_delta.storage.memory_store import MemoryStore
from dagster_delta.table.delta_table import DeltaTable
from dagster_delta.table.operations.column_change import ColumnChangeProgress
from dagster_delta.table.operations.write_planning import write_spec
from dagster_delta.table.transaction.file_actions import added_again
from dagster_delta.table.transaction.transaction import Transaction
from dagster_delta.testing.faulty_store import Fault, FaultyStore, SimulatedCrash
from tests.sample_tables import texts
from tests.table.handles import data_files

MAPPED = {
    "delta.columnMapping.mode": "name",
    "dagsterDelta.enableColumnChange": "true",
}


def numbers(*ids: int) -> pa.Table:
    return pa.table({"id": pa.array(ids, pa.int64()), "v": pa.array(ids, pa.int32())})


def make(store: MemoryStore | None = None, properties: dict[str, str] | None = None) -> DeltaTable:
    """Three files of texts that are numbers."""
    table = DeltaTable("memory://t", store=store or MemoryStore(), must_exist=False)
    table.append(texts(1, 2), properties={**MAPPED, **(properties or {})})
    table.append(texts(3, 4))
    table.append(texts(5, 6))
    return table


def opened(store: Any) -> DeltaTable:
    return DeltaTable("memory://t", store=store)


def read(table: DeltaTable, **options: Any) -> list[dict[str, Any]]:
    rows = table.snapshot(**options).scan().to_arrow().sort_by("id")
    return rows.to_pylist()


def as_foreign_writer(store: Any, rows: pa.Table) -> None:
    """Append as a writer does that knows nothing of the mark."""
    snapshot = opened(store).snapshot()
    plain = TableConfiguration(snapshot.protocol, snapshot.metadata.without(COLUMN_CHANGE_KEY))
    schema = to_arrow_schema(snapshot.schema)
    spec = write_spec(plain, store.location)
    transaction = Transaction(store, snapshot)
    transaction.stage_written(write_data_files(rows.cast(schema).to_batches(), spec, store).files)
    transaction.commit("WRITE")


def test_a_text_becomes_a_number_and_nothing_else_changes() -> None:
    table = make()
    before = table.version()
    result = table.change_column("v", "INT")
    assert [(each.name, str(each.data_type)) for each in table.schema()] == [
        ("id", "long"),
        ("v", "integer"),
    ]
    assert read(table) == [{"id": each, "v": each} for each in range(1, 7)]
    assert read(table, version=before) == [{"id": each, "v": str(each)} for each in range(1, 7)]
    assert table.column_change() is None
    assert result.version == table.version()
    assert table.snapshot().domain_metadata() == {}


def test_files_are_skipped_by_the_statistics_of_the_new_type() -> None:
    table = make()
    table.change_column("v", "INT", batch_bytes=1)
    scan = table.snapshot().scan(where="v >= 5")
    assert scan.files().num_rows == 1
    # As text 10 lies before 5.
    table.append(numbers(10))
    assert sorted(table.snapshot().scan(where="v > 5").to_arrow()["v"].to_pylist()) == [6, 10]


CASES: list[tuple[str, Any, str, Any]] = [
    ("long to int", pa.array([1, -2, None], pa.int64()), "INT", [1, -2, None]),
    ("double to bigint", pa.array([1.9, -1.9], pa.float64()), "BIGINT", [1, -1]),
    ("double to text", pa.array([1.0, 1e10], pa.float64()), "STRING", ["1.0", "1.0E10"]),
    (
        "less precision",
        pa.array([Decimal("12.35"), None], pa.decimal128(10, 2)),
        "DECIMAL(4,1)",
        [Decimal("12.4"), None],
    ),
    (
        "text to decimal",
        pa.array(["1.005", " 1e2"]),
        "DECIMAL(5,2)",
        [Decimal("1.01"), Decimal("100.00")],
    ),
    ("text to date", pa.array(["2024-02-29", None]), "DATE", [dt.date(2024, 2, 29), None]),
    (
        "text to timestamp_ntz",
        pa.array(["2024-02-29 01:02:03.5"]),
        "TIMESTAMP_NTZ",
        [dt.datetime(2024, 2, 29, 1, 2, 3, 500_000)],
    ),
    ("date to text", pa.array([dt.date(2024, 2, 29)]), "STRING", ["2024-02-29"]),
    ("text to boolean", pa.array(["yes", "F"]), "BOOLEAN", [True, False]),
    ("seconds of a timestamp", pa.array([1_500_000], pa.timestamp("us", "UTC")), "BIGINT", [1]),
    (
        "moment to decimal",
        pa.array([1_500_000, -1], pa.timestamp("us", "UTC")),
        "DECIMAL(10,2)",
        [Decimal("1.50"), Decimal("0.00")],
    ),
    (
        "seconds to a moment",
        pa.array([Decimal("-1.5000009")], pa.decimal128(20, 7)),
        "TIMESTAMP",
        [dt.datetime(1969, 12, 31, 23, 59, 58, 500_000, dt.UTC)],
    ),
    ("truth to double", pa.array([True, None]), "DOUBLE", [1.0, None]),
    ("decimal to truth", pa.array([Decimal("0.00"), Decimal("0.01")]), "BOOLEAN", [False, True]),
    ("bytes to text", pa.array([b"a\xc3\xa9"], pa.binary()), "STRING", ["aé"]),
]


@pytest.mark.parametrize(
    ("values", "new_type", "expected"),
    [each[1:] for each in CASES],
    ids=[each[0] for each in CASES],
)
def test_any_atomic_type_becomes_another(values: Any, new_type: str, expected: list[Any]) -> None:
    table = DeltaTable("memory://t", store=MemoryStore(), must_exist=False)
    table.append(pa.table({"c": values}), properties=MAPPED)
    table.change_column("c", new_type)
    assert table.snapshot().scan().to_arrow()["c"].to_pylist() == expected


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("s.a", {"s": {"a": "1", "b": 2}, "l": [{"x": 1}, None], "m": {"k": 5}}),
        ("l.element.x", {"s": {"a": 1, "b": 2}, "l": [{"x": "1"}, None], "m": {"k": 5}}),
        ("m.value", {"s": {"a": 1, "b": 2}, "l": [{"x": 1}, None], "m": {"k": "5"}}),
    ],
)
def test_a_value_at_any_depth_changes(path: str, expected: dict[str, Any]) -> None:
    types = pa.schema(
        {
            "s": pa.struct({"a": pa.int64(), "b": pa.int64()}),
            "l": pa.list_(pa.struct({"x": pa.int64()})),
            "m": pa.map_(pa.string(), pa.int64()),
        }
    )
    rows = [
        {"s": {"a": 1, "b": 2}, "l": [{"x": 1}, None], "m": [("k", 5)]},
        {"s": None, "l": None, "m": None},
    ]
    table = DeltaTable("memory://t", store=MemoryStore(), must_exist=False)
    table.append(pa.Table.from_pylist(rows, types), properties=MAPPED)
    table.change_column(path, "STRING")
    first, second = table.snapshot().scan().to_arrow().to_pylist(maps_as_pydicts="strict")
    assert first == expected
    assert second == {"s": None, "l": None, "m": None}


def test_a_value_that_cannot_be_converted_rolls_back_and_is_told_with_its_file() -> None:
    table = make()
    table.append(pa.table({"id": [7, 8], "v": ["seven", "8"]}))
    schema, rows = table.schema(), read(table)
    with pytest.raises(ColumnChangeFailed, match=r"at least 1 row.*INT|int") as caught:
        table.change_column("v", "INT")
    (example,) = caught.value.examples
    assert "'seven' cannot be converted" in example
    assert ".parquet" in example
    table.refresh()
    assert (table.schema(), read(table)) == (schema, rows)
    assert table.column_change() is None
    assert "dagsterDelta.columnChange" not in table.metadata().configuration


def test_a_value_that_cannot_be_converted_becomes_null_where_asked() -> None:
    table = make()
    table.append(pa.table({"id": [7], "v": ["seven"]}))
    seen: list[ColumnChangeProgress] = []
    table.change_column("v", "INT", on_error="null", on_progress=seen.append)
    assert read(table)[-1] == {"id": 7, "v": None}
    assert seen[-1].num_nulled == 1
    assert seen[-1].state is None


def test_a_cast_of_the_users_own_converts() -> None:
    table = make()
    table.change_column("v", "BIGINT", cast="CAST(v AS BIGINT) * 10 + id")
    assert read(table)[1] == {"id": 2, "v": 22}


def test_values_are_rewritten_under_the_same_type_where_a_cast_says_how() -> None:
    table = make()
    table.append(pa.table({"id": [7], "v": ["a long text"]}))
    table.change_column("v", "STRING", cast="left(v, 6)")
    assert read(table)[-1] == {"id": 7, "v": "a long"}


def test_a_default_goes_along_if_it_is_a_value_of_the_new_type() -> None:
    table = make()
    table.alter("ALTER v SET DEFAULT '7'")
    table.change_column("v", "INT")
    table.append(pa.table({"id": [9]}))
    assert read(table)[-1] == {"id": 9, "v": 7}
    table = make()
    table.alter("ALTER v SET DEFAULT 'seven'")
    with pytest.raises(SchemaChangeRefused, match=r"default of v.*'seven'.*drop it first"):
        table.change_column("v", "INT")


def test_column_goes_to_its_position_and_may_become_required() -> None:
    table = make()
    table.change_column("v", "INT", position="FIRST", nullable=False)
    assert table.schema().names == ("v", "id")
    assert not table.schema().field("v").nullable
    with pytest.raises(Exception, match="NOT NULL column v"):
        table.append(pa.table({"v": pa.array([None], pa.int32()), "id": [1]}))


def test_a_null_keeps_a_column_from_becoming_required() -> None:
    table = make()
    table.append(pa.table({"id": [7], "v": pa.array([None], pa.string())}))
    with pytest.raises(ColumnChangeFailed, match="1 row") as caught:
        table.change_column("v", "INT", nullable=False)
    assert "NOT NULL v" in caught.value.examples[0]
    assert table.column_change() is None


def test_writes_go_on_between_the_steps_and_fill_both_columns() -> None:
    table = make()
    writer = opened(table.store)

    def write(progress: ColumnChangeProgress) -> None:
        if progress.state is not None:
            writer.append(texts(100 + progress.version))
            writer.delete(f"id = {100 + progress.version}")
            writer.append(texts(200 + progress.version))
            writer.update({"v": "'7'"}, where=f"id = {200 + progress.version}")

    table.change_column("v", "INT", batch_bytes=1, on_progress=write)
    found = read(table)
    written = [each for each in found if each["id"] > 100]
    assert [each for each in found if each["id"] < 100] == [
        {"id": each, "v": each} for each in range(1, 7)
    ]
    # One write after each commit of a batch.
    assert len(written) >= 3
    assert all(each["v"] == 7 for each in written)
    changes = [each for each in table.history() if each.operation == "CHANGE COLUMN"]
    # Files of our own writers hold both columns from the start, so they cost no batch.
    assert len(changes) == 1 + 3 + 1


def test_files_of_a_foreign_writer_are_caught_up_with_before_the_end() -> None:
    table = make()
    written: list[int] = []

    def write(progress: ColumnChangeProgress) -> None:
        if progress.state is not None and len(written) < 5:
            as_foreign_writer(table.store, texts(100 + progress.version))
            written.append(100 + progress.version)

    table.change_column("v", "INT", on_progress=write)
    assert [each["id"] for each in read(table)] == [*range(1, 7), *sorted(written)]
    assert all(each["v"] == each["id"] for each in read(table))


def test_a_foreign_file_that_lands_in_the_last_moment_keeps_the_end_from_landing() -> None:
    store = MemoryStore()
    make(store)
    interfered: list[str] = []

    def interfere(operation: str, path: str) -> None:
        # The commit that makes it public is the first after nothing was left.
        if operation != "put_if_absent" or "_delta_log" not in path or interfered:
            return
        state = opened(store).column_change()
        if state is not None and state.state == "reorganising" and not state.num_files_left:
            interfered.append(path)
            as_foreign_writer(store, texts(99))

    opened(FaultyStore(store, before_call=interfere)).change_column("v", "INT")
    assert interfered
    assert read(opened(store))[-1] == {"id": 99, "v": 99}


def racing_append(store: MemoryStore, at: str, rows: pa.Table) -> DeltaTable:
    """An append of ours whose rows are written, and which then loses the race to a step."""
    stepped: list[str] = []

    def step(operation: str, path: str) -> None:
        if operation != "put_if_absent" or "_delta_log" not in path or stepped:
            return
        stepped.append(path)
        other = opened(store)
        if at == "begin":
            from dagster_delta.evolution.column_change_request import ColumnChangeRequest
            from dagster_delta.table.operations.column_change import begin_column_change

            begin_column_change(
                other.snapshot(),
                ColumnChangeRequest(("v",), PrimitiveType("integer")),
                clock=lambda: 1,
            )
        elif at == "cancel":
            other.cancel_column_change()
        else:
            other.resume_column_change()

    table = opened(FaultyStore(store, before_call=step))
    table.append(rows)
    assert stepped
    return opened(store)


def test_an_append_on_its_way_lands_after_the_beginning_of_a_change() -> None:
    store = MemoryStore()
    make(store)
    table = racing_append(store, "begin", texts(50))
    state = table.column_change()
    assert state is not None
    assert state.num_files_left == 4
    table.resume_column_change()
    assert read(table)[-1] == {"id": 50, "v": 50}


def prepared(store: MemoryStore) -> None:
    """A table whose change has just begun."""
    make(store)
    crash = Fault("crash_after", "put_if_absent", commit_path(3))
    with pytest.raises(SimulatedCrash):
        opened(FaultyStore(store, [crash])).change_column("v", "INT")


def meanwhile(store: MemoryStore, change: Callable[[DeltaTable], object]) -> DeltaTable:
    """A handle whose next commit loses to a change by another writer."""
    interfered: list[str] = []

    def interfere(operation: str, path: str) -> None:
        if operation == "put_if_absent" and "_delta_log" in path and not interfered:
            interfered.append(path)
            change(opened(store))

    return opened(FaultyStore(store, before_call=interfere))


def test_a_change_begins_and_is_cancelled_on_top_of_other_changes_of_the_metadata() -> None:
    store = MemoryStore()
    make(store)
    meanwhile(store, lambda table: table.set_properties({"by": "other"})).change_column("v", "INT")
    begun(other := MemoryStore())
    meanwhile(other, lambda table: table.set_properties({"by": "other"})).cancel_column_change()
    assert opened(other).column_change() is None
    for table in map(opened, (store, other)):
        assert table.metadata().configuration["by"] == "other"


def test_no_process_cancels_a_change_that_another_one_has_ended() -> None:
    begun(store := MemoryStore())
    late = meanwhile(store, lambda table: table.cancel_column_change())
    with pytest.raises(ColumnChangeFailed, match="cancelled by another process"):
        late.cancel_column_change()


@pytest.mark.parametrize("at", ["publish", "cancel"])
def test_an_append_on_its_way_lands_after_the_end_of_a_change(at: str) -> None:
    store = MemoryStore()
    prepared(store)
    table = racing_append(store, at, texts(50))
    assert read(table)[-1] == {"id": 50, "v": 50 if at == "publish" else "50"}


def test_what_our_writer_cannot_convert_is_written_all_the_same_and_stops_the_change() -> None:
    store = MemoryStore()
    prepared(store)
    opened(store).append(pa.table({"id": [9], "v": ["nine"]}))
    with pytest.raises(ColumnChangeFailed, match="1 row"):
        opened(store).resume_column_change()
    assert read(opened(store))[-1] == {"id": 9, "v": "nine"}


@pytest.mark.parametrize("kind", ["crash_before", "crash_after"])
@pytest.mark.parametrize("version", range(3, 8))
def test_a_crash_at_any_commit_is_resumed_from_the_log(kind: Any, version: int) -> None:
    """Commits 3 to 7: prepared, a batch for each of three files, public."""
    store = MemoryStore()
    make(store)
    crash = Fault(kind, "put_if_absent", commit_path(version))
    with pytest.raises(SimulatedCrash):
        opened(FaultyStore(store, [crash])).change_column("v", "INT", batch_bytes=1)
    table = opened(store)
    assert [each["id"] for each in read(table)] == [*range(1, 7)]
    if table.column_change() is None:
        is_done = str(table.schema().field("v").data_type) == "integer"
        assert is_done == (version == 7)
        if is_done:
            return
        table.change_column("v", "INT", batch_bytes=1)
    else:
        table.resume_column_change(batch_bytes=1)
    assert read(table) == [{"id": each, "v": each} for each in range(1, 7)]
    assert table.version() == 7


@pytest.mark.parametrize("version", range(3, 7))
def test_a_change_can_be_cancelled_in_every_state(version: int) -> None:
    store = MemoryStore()
    schema, rows = make(store).schema(), read(opened(store))
    crash = Fault("crash_after", "put_if_absent", commit_path(version))
    with pytest.raises(SimulatedCrash):
        opened(FaultyStore(store, [crash])).change_column("v", "INT", batch_bytes=1)
    table = opened(store)
    table.cancel_column_change()
    assert (table.schema(), read(table)) == (schema, rows)
    table.append(texts(7))
    assert read(table)[-1] == {"id": 7, "v": "7"}
    # And may be begun again; what the files hold of the first attempt means nothing.
    table.change_column("v", "DOUBLE")
    assert read(table)[-1] == {"id": 7, "v": 7.0}


def test_a_change_that_another_process_ends_stops_by_name() -> None:
    store = MemoryStore()
    prepared(store)
    ended: list[int] = []

    def finish(_: ColumnChangeProgress) -> None:
        if not ended:
            ended.append(1)
            opened(store).resume_column_change(batch_bytes=1)

    with pytest.raises(ColumnChangeFailed, match="finished or cancelled by another process"):
        opened(store).resume_column_change(batch_bytes=1, on_progress=finish)
    assert read(opened(store)) == [{"id": each, "v": each} for each in range(1, 7)]


def test_deleted_rows_stay_deleted() -> None:
    table = make(properties={"delta.enableDeletionVectors": "true"})
    table.delete("id = 2")
    table.change_column("v", "INT")
    assert [each["id"] for each in read(table)] == [1, 3, 4, 5, 6]


def test_partitions_stay_as_they_are() -> None:
    table = DeltaTable("memory://t", store=MemoryStore(), must_exist=False)
    rows = pa.table({"p": [1, 1, 2], "v": ["1", "2", "3"]})
    table.append(rows, partition_by=["p"], properties=MAPPED)
    table.change_column("v", "INT")
    assert table.snapshot().scan(where="p = 1").to_arrow().sort_by("v").to_pylist() == [
        {"p": 1, "v": 1},
        {"p": 1, "v": 2},
    ]


def test_a_check_goes_along_and_stops_what_breaks_it_under_the_new_type() -> None:
    table = make()
    table.add_constraint("short", "v <> '5.0' AND length(v) < 3")
    with pytest.raises(SchemaChangeRefused, match="CHECK short"):
        table.change_column("v", "INT")
    table.drop_constraint("short")
    table.add_constraint("small", "v IS NULL OR v >= '0'")
    table.append(pa.table({"id": [9], "v": ["9e0"]}))
    table.change_column("v", "DOUBLE")
    with pytest.raises(Exception, match="CHECK small"):
        table.append(pa.table({"id": [10], "v": [-1.0]}))


REFUSALS: list[tuple[Callable[[DeltaTable], Any], type[Exception], str]] = [
    (lambda t: t.change_column("w", "INT"), SchemaMismatch, "no column w"),
    (lambda t: t.change_column("v", "STRING"), InvalidArgument, "already"),
    (lambda t: t.change_column("v", "ARRAY<INT>"), SchemaChangeRefused, "atomic"),
    (lambda t: t.change_column("v", "INT", on_error="ignore"), InvalidArgument, "on_error"),  # type: ignore[arg-type]
    (lambda t: t.change_column("v", "INT", cast="w + 1"), SchemaMismatch, "w"),
    (
        lambda t: t.change_column("v", "INT", cast="soundex(v)"),
        UnsupportedExpression,
        "soundex.*by other functions",
    ),
    (lambda t: t.change_column("v", "INT", position="w"), SchemaMismatch, "w"),
    (lambda t: t.change_column("v", "INT", position="V"), InvalidArgument, "after itself"),
    (lambda t: t.change_column("v", "INT", batch_bytes=0), InvalidArgument, "batch_bytes"),
    (lambda t: t.change_column("v", "INT", engine="duck"), InvalidArgument, "engine"),
    (lambda t: t.resume_column_change(), InvalidArgument, "no column"),
    (lambda t: t.cancel_column_change(), InvalidArgument, "no column"),
]


@pytest.mark.parametrize(("call", "kind", "message"), REFUSALS)
def test_a_request_that_makes_no_sense_leaves_no_trace(
    call: Callable[[DeltaTable], Any], kind: type[Exception], message: str
) -> None:
    table = make()
    version = table.version()
    with pytest.raises(kind, match=message):
        call(table)
    assert table.refresh().version == version


def test_what_a_shadow_cannot_be_made_of_is_refused_with_the_way_round() -> None:
    table = DeltaTable("memory://t", store=MemoryStore(), must_exist=False)
    table.append(pa.table({"p": ["1"], "v": [1]}), partition_by=["p"], properties=MAPPED)
    with pytest.raises(SchemaChangeRefused, match="partitioned by it: add a column"):
        table.change_column("p", "INT")


def test_the_switch_is_off_by_default_and_turned_on_by_request() -> None:
    table = DeltaTable("memory://t", store=MemoryStore(), must_exist=False)
    table.append(texts(1, 2))
    with pytest.raises(SchemaChangeRefused, match="enable_features=True"):
        table.change_column("v", "INT")
    table.change_column("v", "INT", enable_features=True)
    assert read(table) == [{"id": 1, "v": 1}, {"id": 2, "v": 2}]
    table.set_properties({"dagsterDelta.enableColumnChange": "false"})
    with pytest.raises(SchemaChangeRefused, match="explicitly set to false"):
        table.change_column("v", "STRING", enable_features=True)


def test_a_table_created_with_the_switch_gets_column_mapping_by_its_first_change() -> None:
    table = DeltaTable.create(
        "memory://t",
        texts(1).schema,
        properties={"DagsterDelta.EnableColumnChange": True},
        store=MemoryStore(),
    )
    table.append(texts(1, 2))
    assert table.protocol().min_reader_version == 1
    table.change_column("v", "INT", enable_features=True)
    assert read(table) == [{"id": 1, "v": 1}, {"id": 2, "v": 2}]


@pytest.mark.parametrize(
    ("properties", "message"),
    [
        ({"dagsterDelta.enableColumnChange": "maybe"}, "enableColumnChange cannot be set.*maybe"),
        ({"dagsterDelta.columnChange": "{}"}, "begin one by change_column"),
    ],
)
def test_neither_nonsense_nor_the_mark_itself_is_set_by_hand(
    properties: dict[str, str], message: str
) -> None:
    table = make()
    with pytest.raises(InvalidArgument, match=message):
        table.set_properties(properties)


def test_one_change_of_a_table_at_a_time() -> None:
    store = MemoryStore()
    prepared(store)
    with pytest.raises(SchemaChangeRefused, match="column v is being changed"):
        opened(store).change_column("id", "INT")


def test_a_plan_tells_what_the_table_is_given_for_it() -> None:
    table = DeltaTable("memory://t", store=MemoryStore(), must_exist=False)
    table.append(texts(1))
    plan = table.plan_column_change("v", "INT", enable_features=True).to_markdown()
    assert "- new table feature `columnMapping`: other readers and writers have to" in plan
    refusing = next(line for line in plan.splitlines() if line.startswith("  - cannot read:"))
    assert "polars" in refusing
    assert "`delta.columnMapping.mode = name`" in plan
    assert "table feature" not in make().plan_column_change("v", "INT").to_markdown()


def test_a_plan_tells_whose_time_it_is() -> None:
    assert "those of UTC" in make().plan_column_change("v", "TIMESTAMP").to_markdown()
    assert "UTC" not in make().plan_column_change("v", "DATE").to_markdown()


def test_a_column_that_becomes_not_null_has_the_feature_for_it() -> None:
    table = make(properties={"delta.enableDeletionVectors": "true"})
    assert not table.snapshot().configuration.supports("invariants")
    table.change_column("v", "INT", nullable=False)
    assert table.snapshot().configuration.supports("invariants")


def test_a_file_with_other_rows_than_the_log_counts_is_not_replaced() -> None:
    store = MemoryStore()
    table = make(store)
    sound, transaction = table.version(), table.transaction()
    add = next(added_again(table.snapshot().live_files(), data_change=False))
    transaction.stage_readded([msgspec.structs.replace(add, stats='{"numRecords":9}')])
    transaction.commit("COMPUTE STATS")
    files = data_files(store)
    with pytest.raises(InvalidTable, match="the log counts 9"):
        table.change_column("v", "INT")
    assert data_files(store) == files
    opened(store).cancel_column_change()
    rows = read(opened(store), version=sound)
    assert rows == [{"id": each, "v": str(each)} for each in range(1, 7)]


def test_a_plan_writes_nothing() -> None:
    table = make()
    plan = table.plan_column_change("v", "INT")
    assert (str(plan.from_type), str(plan.to_type)) == ("string", "integer")
    assert table.refresh().version == 2


@pytest.mark.parametrize(
    "statement",
    [
        "DROP COLUMN v",
        "RENAME COLUMN v TO w",
        "ADD CONSTRAINT c CHECK (v <> 'x')",
        "ALTER v SET NOT NULL",
        "ALTER v SET DEFAULT '5'",
        "DROP FEATURE columnMapping",
    ],
)
def test_nobody_alters_the_column_meanwhile_but_may_alter_others(statement: str) -> None:
    store = MemoryStore()
    prepared(store)
    with pytest.raises(SchemaChangeRefused, match="type of column v is being changed"):
        opened(store).alter(statement)
    opened(store).alter("ADD COLUMN note STRING")
    opened(store).resume_column_change()
    assert read(opened(store))[0] == {"id": 1, "v": 1, "note": None}


def begun(store: MemoryStore, **request: Any) -> DeltaTable:
    """A table whose change is prepared, and no more."""
    from dagster_delta.evolution.column_change_request import ColumnChangeRequest
    from dagster_delta.table.operations.column_change import begin_column_change

    table = make(store)
    wanted = ColumnChangeRequest(("v",), PrimitiveType("integer"), **request)
    begin_column_change(table.snapshot(), wanted, clock=lambda: 1)
    return opened(store)


@pytest.mark.parametrize("statement", ["RENAME COLUMN id TO ident", "DROP COLUMN id"])
def test_nobody_alters_what_the_cast_looks_at(statement: str) -> None:
    store = MemoryStore()
    table = begun(store, cast="CAST(v AS INT) + id")
    with pytest.raises(SchemaChangeRefused, match="type of column v is being changed"):
        table.alter(statement)
    table.append(texts(7))
    table.resume_column_change()
    assert read(table)[-1] == {"id": 7, "v": 14}


def test_what_others_do_to_the_column_hinders_the_change_and_no_writer() -> None:
    store = MemoryStore()
    snapshot = begun(store, cast="CAST(v AS INT) + id").snapshot()
    renamed = snapshot.metadata.schema_string.replace('"id"', '"ident"')
    foreign = Transaction(store, snapshot)
    metadata = msgspec.structs.replace(snapshot.metadata, schema_string=renamed)
    foreign.stage_configuration(TableConfiguration(snapshot.protocol, metadata))
    foreign.commit("RENAME COLUMN")
    opened(store).append(texts(7).rename_columns(["ident", "v"]))
    with pytest.raises(SchemaChangeRefused, match=r"cast .*there is no column id.*cancel"):
        opened(store).resume_column_change()
    opened(store).cancel_column_change()
    assert opened(store).snapshot().scan(where="ident = 7").to_arrow()["v"].to_pylist() == ["7"]


@pytest.mark.parametrize(
    ("kept", "from_type", "problem"),
    [({"v": "w"}, "string", "renamed to w"), ({}, "(dropped)", "dropped or replaced")],
)
def test_a_column_that_others_rename_or_drop_is_told_and_the_change_can_be_cancelled(
    kept: dict[str, str], from_type: str, problem: str
) -> None:
    store = MemoryStore()
    snapshot = begun(store).snapshot()
    fields = [replace(each, name=kept.get(each.name, each.name)) for each in snapshot.schema]
    schema = StructType(tuple(each for each in fields if kept or each.name != "v"))
    foreign = Transaction(store, snapshot)
    metadata = msgspec.structs.replace(snapshot.metadata, schema_string=schema.to_json())
    foreign.stage_configuration(TableConfiguration(snapshot.protocol, metadata))
    foreign.commit("ALTER TABLE")
    table = opened(store)
    state = table.column_change()
    assert state is not None
    assert (state.column, state.from_type, state.to_type) == ("v", from_type, "int")
    with pytest.raises(SchemaChangeRefused, match=rf"{problem}.*cancel the change"):
        table.resume_column_change()
    table.cancel_column_change()
    assert table.column_change() is None


def test_a_column_that_is_written_anew_ends_the_change_by_name() -> None:
    store = MemoryStore()
    table = begun(store)
    table.overwrite(pa.table({"v": [1.5]}), schema_mode="overwrite")
    with pytest.raises(SchemaChangeRefused, match=r"column v was dropped or replaced.*cancel"):
        table.resume_column_change()
    table.cancel_column_change()
    assert table.snapshot().scan().to_arrow()["v"].to_pylist() == [1.5]


def test_the_feed_does_not_run_across_the_change_and_runs_on_either_side() -> None:
    table = make(properties={"delta.enableChangeDataFeed": "true"})
    table.change_column("v", "INT")
    swapped = table.version()
    table.append(numbers(7))
    after = table.changes(swapped + 1).to_arrow()
    assert after["v"].to_pylist() == [7]
    before = table.changes(0, 2).to_arrow()
    assert sorted(before["v"].to_pylist()) in ([1, 2, 3, 4, 5, 6], ["1", "2", "3", "4", "5", "6"])
    with pytest.raises(DeltaError, match=r"schema|column"):
        table.changes(0).to_arrow()


def test_a_number_beyond_every_decimal_fails_the_change_and_no_write_beside_it() -> None:
    store = MemoryStore()
    make(store)
    crash = Fault("crash_after", "put_if_absent", commit_path(3))
    with pytest.raises(SimulatedCrash):
        opened(FaultyStore(store, [crash])).change_column("v", "DECIMAL(10,2)")
    opened(store).append(pa.table({"id": [9], "v": ["1e999"]}))
    with pytest.raises(ColumnChangeFailed, match="1 row"):
        opened(store).resume_column_change()
    assert read(opened(store))[-1] == {"id": 9, "v": "1e999"}


def test_a_row_on_which_a_check_fails_counts_as_broken() -> None:
    table = make()
    change = table.plan_column_change("v", "INT").change
    # The product of the second row leaves 32 bits, so that the check itself fails on it.
    change = msgspec.structs.replace(
        change, checks=(("CHECK c", "CAST(v * 1000000000 AS INT) > 0"),)
    )
    shadow = ShadowColumn(change, table.schema(), table.schema().field("v"))
    filled = shadow.fill(texts(1, 2000).to_batches()[0])
    assert (filled.num_problems, filled.problems) == (1, ["2000 breaks CHECK c"])


def test_a_row_counts_once_whatever_is_wrong_with_it() -> None:
    """It overflows a NOT NULL column, or breaks two checks: one row, one example."""
    table = DeltaTable("memory://t", store=MemoryStore(), must_exist=False)
    schema = pa.schema([pa.field("id", pa.int64()), pa.field("v", pa.int64(), nullable=False)])
    table.append(pa.table({"id": [1, 2, 3], "v": [1, 2**40, -5]}, schema), properties=MAPPED)
    table.add_constraint("low", "v > -10")
    with pytest.raises(ColumnChangeFailed, match="at least 1 row") as caught:
        table.change_column("v", "INT")
    (example,) = caught.value.examples
    assert "1099511627776 cannot be converted" in example
    shadow = ShadowColumn(
        msgspec.structs.replace(
            table.plan_column_change("v", "SMALLINT").change,
            checks=(("one", "v > 0"), ("two", "v > -1")),
        ),
        table.schema(),
        table.schema().field("v"),
    )
    filled = shadow.fill(table.snapshot().scan().to_arrow().to_batches()[0])
    assert (filled.num_problems, len(filled.problems)) == (2, 2)


def test_a_row_counts_once_however_many_of_its_elements_cannot_be_converted() -> None:
    table = DeltaTable("memory://t", store=MemoryStore(), must_exist=False)
    rows = pa.table(
        {
            "l": [["1"], None, ["a", "b"], []],
            "m": pa.array(
                [[("k", "x"), ("j", "y")], None, [], []], pa.map_(pa.string(), pa.string())
            ),
        }
    )
    table.append(rows, properties=MAPPED)
    for path in ("l.element", "m.value"):
        with pytest.raises(ColumnChangeFailed, match="at least 1 row") as caught:
            table.change_column(path, "INT")
        assert len(caught.value.examples) == 2


def test_the_metrics_count_the_whole_run_and_what_others_wrote_meanwhile() -> None:
    store = MemoryStore()
    make(store)
    written: list[int] = []

    def write(progress: ColumnChangeProgress) -> None:
        if progress.num_rows and not written:
            written.append(progress.version)
            as_foreign_writer(store, texts(7, 8, 9))

    before = opened(store).snapshot().size_bytes
    result = opened(store).change_column("v", "INT", batch_bytes=1, on_progress=write)
    metrics = dict(result.metrics)
    assert int(metrics.pop("numRemovedBytes")) > (before or 0)
    assert int(metrics.pop("numAddedBytes")) > 0
    assert metrics == {
        "numCopiedRows": 9,
        "numLateRows": 3,
        "numNulledValues": 0,
        "numRemovedFiles": 4,
        "numAddedFiles": 4,
        "numBatches": 4,
        "numRetries": 0,
        "longestRetryMs": 0,
    }
    recorded = opened(store).history(1)[0].operation_metrics
    assert recorded is not None
    assert recorded["numLateRows"] == "3"


def test_the_metrics_tell_what_was_lost_to_other_writers() -> None:
    store = MemoryStore()
    make(store)
    deleted: list[str] = []

    def delete(operation: str, path: str) -> None:
        # The first batch is written, and about to be committed.
        state = opened(store).column_change() if operation == "put_if_absent" else None
        if state is None or "_delta_log" not in path or deleted:
            return
        deleted.append(path)
        opened(store).delete("id = 5")

    result = opened(FaultyStore(store, before_call=delete)).change_column("v", "INT")
    assert (result.metrics["numRetries"], result.metrics["numBatches"]) == (1, 1)
    assert int(result.metrics["longestRetryMs"]) >= 0
    assert [each["id"] for each in read(opened(store))] == [1, 2, 3, 4, 6]


@pytest.mark.parametrize("path", ["value", "s.element"])
def test_a_column_that_is_called_as_a_part_of_a_map_becomes_required_like_any_other(
    path: str,
) -> None:
    table = DeltaTable("memory://t", store=MemoryStore(), must_exist=False)
    rows = pa.table({"value": ["1", None], "s": [{"element": "1"}, {"element": None}]})
    table.append(rows, properties=MAPPED)
    with pytest.raises(ColumnChangeFailed, match="1 row"):
        table.change_column(path, "INT", nullable=False)


@pytest.mark.parametrize("path", ["l.element", "m.element.a", "m.element.value"])
def test_what_lies_in_an_array_is_not_made_required(path: str) -> None:
    table = DeltaTable("memory://t", store=MemoryStore(), must_exist=False)
    rows = pa.table({"l": [["1", None]], "m": [[{"a": None, "value": "1"}, {"a": "2"}]]})
    table.append(rows, properties=MAPPED)
    with pytest.raises(SchemaChangeRefused, match="lies in an array or a map"):
        table.change_column(path, "INT", nullable=False)


def test_a_new_type_brings_the_feature_that_it_needs(tmp_path: Path) -> None:
    table = DeltaTable(tmp_path / "t", must_exist=False)
    table.append(pa.table({"id": [1], "at": ["2026-01-02 03:04:05"]}))
    change = {"enable_features": True}
    plan = table.plan_column_change("at", "TIMESTAMP_NTZ", **change)  # type: ignore[arg-type]
    assert "new table feature `timestampNtz`" in plan.to_markdown()
    table.change_column("at", "TIMESTAMP_NTZ", **change)  # type: ignore[arg-type]
    for version in range(1, table.version() + 1):
        # Files of the new column lie in the table before readers see it.
        assert "timestampNtz" in (table.snapshot(version=version).protocol.reader_features or ())
    read = QueryBuilder().register("t", DeltaLakeTable(str(tmp_path / "t")))
    rows = pa.table(read.execute("SELECT * FROM t").read_all()).to_pylist()
    assert rows == [{"id": 1, "at": dt.datetime(2026, 1, 2, 3, 4, 5)}]
