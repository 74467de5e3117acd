"""AUTO CDC where it is more than a replay: what is refused, what is remembered and when, and what
crashes and other writers leave behind."""

from __future__ import annotations

import datetime as dt
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from dagster_delta import DeltaTable
from dagster_delta.errors import (
    ConstraintViolation,
    InvalidArgument,
    SchemaMismatch,
)
from dagster_delta.table.operations import change_memory
from dagster_delta.table.operations.change_memory import MEMORY_SUFFIX
from tests.table.change_event_model import Event, event_rows, rows_of

HISTORY: dict[str, Any] = {
    "keys": ["k"],
    "sequence_by": "seq",
    "stored_as_scd_type": 2,
    "apply_as_deletes": "op = 'D'",
    "except_column_list": ["op", "seq", "u"],
}
COLUMNS = ("k", "v", "__START_AT", "__END_AT")


def event(seq: int, v: str | None = None, k: int | None = 1, **others: Any) -> Event:
    return {"k": k, "seq": seq, "op": "D" if v == "D" else "U", "v": v, "u": None, **others}


@pytest.fixture
def table(tmp_path: Path) -> DeltaTable:
    return DeltaTable(str(tmp_path / "t"), must_exist=False)


def test_first_run_is_one_commit(table: DeltaTable) -> None:
    done = table.apply_changes(event_rows([event(1, "a"), event(3, "b")]), **HISTORY)
    assert done.version == 0
    assert rows_of(table, *COLUMNS) == [(1, "a", 1, 3), (1, "b", 3, None)]
    assert not Path(table.uri + MEMORY_SUFFIX).exists()


def test_table_has_no_column_of_ours(table: DeltaTable) -> None:
    table.apply_changes(event_rows([event(5, "D")]), **HISTORY)
    assert table.schema().names == ("k", "v", "__START_AT", "__END_AT")
    assert rows_of(table, *COLUMNS) == []
    table.apply_changes(event_rows([event(3, "a")]), **HISTORY)
    assert rows_of(table, *COLUMNS) == [(1, "a", 3, 5)]


@pytest.mark.parametrize("scd", [1, 2])
@pytest.mark.parametrize("other", ["b", "D"])
def test_differing_events_of_one_sequence_are_refused(
    table: DeltaTable, scd: int, other: str
) -> None:
    options = {**HISTORY, "stored_as_scd_type": scd}
    with pytest.raises(ConstraintViolation, match="on_equal_sequence") as refused:
        table.apply_changes(event_rows([event(1, "a"), event(1, other)]), **options)
    assert "(1, 1)" in str(refused.value)
    table.apply_changes(event_rows([event(1, "a"), event(1, "a")]), **options)
    before = rows_of(table, "k", "v")
    with pytest.raises(ConstraintViolation, match="on_equal_sequence"):
        table.apply_changes(event_rows([event(1, other)]), **options)
    assert rows_of(table, "k", "v") == before
    done = table.apply_changes(event_rows([event(1, other)]), on_equal_sequence="last", **options)
    assert not done.skipped
    assert rows_of(table, "k", "v") == ([] if other == "D" else [(1, "b")])


def test_later_event_of_one_sequence_replaces_a_remembered_one(table: DeltaTable) -> None:
    options = {**HISTORY, "on_equal_sequence": "last"}
    table.apply_changes(event_rows([event(1, "a"), event(2, "a"), event(3, "a")]), **options)
    table.apply_changes(event_rows([event(2, "b")]), **options)
    assert rows_of(table, *COLUMNS) == [(1, "a", 1, 2), (1, "a", 3, None), (1, "b", 2, 3)]
    table.apply_changes(event_rows([event(2, "a")]), **options)
    assert rows_of(table, *COLUMNS) == [(1, "a", 1, None)]


@pytest.mark.parametrize("column", ["k", "seq"])
def test_null_in_key_or_sequence_is_refused_with_its_rows(table: DeltaTable, column: str) -> None:
    wrong = event(7, "x", k=9) | {column: None}
    with pytest.raises(ConstraintViolation, match=f"null in {column}") as refused:
        table.apply_changes(event_rows([event(1, "a"), wrong]), **HISTORY)
    assert "'x'" in str(refused.value)
    assert not DeltaTable.is_delta_table(table.uri)


def test_type_of_sequence_may_not_change(table: DeltaTable) -> None:
    table.apply_changes(event_rows([event(1, "a")]), **HISTORY)
    rows = event_rows([event(2, "b")])
    other = rows.set_column(1, "seq", rows["seq"].cast(pa.int32()))
    with pytest.raises(
        SchemaMismatch, match="is int, and the events of the table were ordered by bigint"
    ):
        table.apply_changes(other, **HISTORY)
    newest = {**HISTORY, "stored_as_scd_type": 1}
    second = DeltaTable(table.uri + "_1", must_exist=False)
    second.apply_changes(rows, **newest)
    with pytest.raises(
        SchemaMismatch, match="is int, and the events of the table were ordered by bigint"
    ):
        second.apply_changes(other, **newest)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"keys": ["v"]}, "keys was"),
        ({"stored_as_scd_type": 1}, "stored_as_scd_type was 2"),
        ({"track_history_column_list": ["v"]}, "track_only"),
        ({"sequence_by": "sequ"}, "did you mean 'seq'"),
        ({"except_column_list": ["op", "k"]}, "the key k"),
        ({"stored_as_scd_type": 3}, "is 1 or 2"),
        ({"column_list": ["k", "v"]}, "not both"),
        ({"apply_as_truncates": "op = 'T'"}, "stored_as_scd_type=1"),
        ({"keys": "k"}, "list of columns"),
        ({"from_snapshots": True}, "leave out apply_as_deletes"),
        ({"on_equal_sequence": "first"}, "'fail' or 'last'"),
    ],
)
def test_other_rules_are_refused(table: DeltaTable, change: dict[str, Any], message: str) -> None:
    table.apply_changes(event_rows([event(1, "a")]), **HISTORY)
    with pytest.raises(InvalidArgument, match=message):
        table.apply_changes(event_rows([event(2, "b")]), **{**HISTORY, **change})
    assert table.refresh().version == 0


def test_new_column_follows_schema_mode(table: DeltaTable) -> None:
    table.apply_changes(event_rows([event(1, "a"), event(2, "a")]), **HISTORY)
    rows = event_rows([event(5, "a")]).append_column("w", pa.array(["new"]))
    with pytest.raises(SchemaMismatch, match="schema_mode"):
        table.apply_changes(rows, **HISTORY)
    table.apply_changes(rows, schema_mode="merge", **HISTORY)
    found = rows_of(table, "k", "v", "__START_AT", "__END_AT", "w")
    assert found == [(1, "a", 1, 5, None), (1, "a", 5, None, "new")]
    table.apply_changes(event_rows([event(3, "b")]), **HISTORY)
    found = rows_of(table, "k", "v", "__START_AT", "__END_AT", "w")
    assert (1, "a", 1, 3, None) in found
    assert (1, "a", 5, None, "new") in found


def test_sequences_of_any_kind_order_events(tmp_path: Path) -> None:
    nan = float("nan")
    for name, kind, values in (
        ("double", pa.float64(), [-0.0, 1.5, nan]),
        (
            "time",
            pa.timestamp("us", "UTC"),
            [dt.datetime(2026, 1, n, tzinfo=dt.UTC) for n in (1, 2, 3)],
        ),
        ("text", pa.string(), ["a", "b", "c"]),
        (
            "struct",
            pa.struct([("a", pa.int32()), ("b", pa.int32())]),
            [{"a": 1, "b": None}, {"a": 1, "b": 2}, {"a": 2, "b": 0}],
        ),
    ):
        table = DeltaTable(str(tmp_path / name), must_exist=False)
        for place in (2, 0, 1):
            rows = pa.table({"k": [1], "seq": pa.array([values[place]], kind), "v": [f"v{place}"]})
            table.apply_changes(
                rows,
                keys=["k"],
                sequence_by="seq",
                stored_as_scd_type=2,
                except_column_list=["seq"],
            )
        found = table.snapshot().scan().to_arrow().sort_by("v").to_pylist()
        assert [row["v"] for row in found] == ["v0", "v1", "v2"], name
        ends = [str(row["__END_AT"]) for row in found]
        assert ends == [*map(str, values[1:]), "None"], name


def test_several_columns_order_events_as_a_struct(table: DeltaTable) -> None:
    rows = pa.table({"k": [1, 1, 1], "a": [1, 1, 2], "b": [2, 1, 0], "v": ["y", "x", "z"]})
    table.apply_changes(
        rows, keys=["k"], sequence_by=["a", "b"], stored_as_scd_type=2, column_list=["k", "v"]
    )
    found = {row["v"]: row["__START_AT"] for row in table.snapshot().scan().to_arrow().to_pylist()}
    assert found == {"x": {"a": 1, "b": 1}, "y": {"a": 1, "b": 2}, "z": {"a": 2, "b": 0}}


def test_keys_of_structs_and_minus_zero_are_one(table: DeltaTable) -> None:
    kind = pa.struct([("a", pa.int32()), ("b", pa.int32())])
    key = {"a": 1, "b": None}
    options: dict[str, Any] = {
        "keys": ["k"],
        "sequence_by": "seq",
        "stored_as_scd_type": 2,
        "except_column_list": ["seq"],
    }
    for seq in (3, 1, 2):
        table.apply_changes(
            pa.table({"k": pa.array([key], kind), "seq": [seq], "v": [f"v{seq}"]}), **options
        )
    assert [row[1:] for row in rows_of(table, *COLUMNS)] == [
        ("v1", 1, 2),
        ("v2", 2, 3),
        ("v3", 3, None),
    ]
    zeros = DeltaTable(table.uri + "_zeros", must_exist=False)
    for seq, zero in ((3, 0.0), (1, -0.0), (2, 0.0)):
        zeros.apply_changes(pa.table({"k": [zero], "seq": [seq], "v": [f"v{seq}"]}), **options)
    assert len(rows_of(zeros, *COLUMNS)) == 3
    assert sorted(str(row[3]) for row in rows_of(zeros, *COLUMNS)) == ["2", "3", "None"]


def test_forgotten_events_do_not_matter_any_more(table: DeltaTable) -> None:
    table.apply_changes(event_rows([event(5, "D"), event(9, "D", k=2)]), **HISTORY)
    table.apply_changes(event_rows([event(20, "x", k=3)]), forget_before="7", **HISTORY)
    table.apply_changes(event_rows([event(3, "a"), event(3, "a", k=2)]), **HISTORY)
    assert rows_of(table, *COLUMNS)[:2] == [(1, "a", 3, None), (2, "a", 3, 9)]


def test_truncate_deletes_what_is_before_it(table: DeltaTable) -> None:
    options = {**HISTORY, "stored_as_scd_type": 1, "apply_as_truncates": "op = 'T'"}
    truncate = {"k": None, "seq": 5, "op": "T", "v": None, "u": None}
    table.apply_changes(
        event_rows([event(1, "a"), event(8, "b", k=2), event(2, "c", k=3)]), **options
    )
    table.apply_changes(event_rows([truncate]), **options)
    assert rows_of(table, "k", "v") == [(2, "b")]
    table.apply_changes(event_rows([event(4, "late"), event(6, "new", k=3)]), **options)
    assert rows_of(table, "k", "v") == [(2, "b"), (3, "new")]


def test_snapshots_become_history(table: DeltaTable) -> None:
    options: dict[str, Any] = {
        "keys": ["k"],
        "sequence_by": "day",
        "stored_as_scd_type": 2,
        "except_column_list": ["day"],
        "from_snapshots": True,
    }

    def snapshot(*rows: tuple[int, int, str]) -> pa.Table:
        return pa.table(
            {name: [row[place] for row in rows] for place, name in enumerate(("day", "k", "v"))}
        )

    table.apply_changes(snapshot((1, 1, "a"), (1, 2, "x")), **options)
    several = snapshot((2, 1, "a"), (3, 1, "b"), (3, 2, "x"))
    table.apply_changes(several, **options)
    expected = [(1, "a", 1, 3), (1, "b", 3, None), (2, "x", 1, 2), (2, "x", 3, None)]
    assert rows_of(table, *COLUMNS) == expected
    assert (
        table.apply_changes(snapshot((3, 1, "b"), (3, 2, "x")), **options).metrics[
            "numTargetRowsUpdated"
        ]
        == 0
    )
    with pytest.raises(ConstraintViolation, match="older than that of 3"):
        table.apply_changes(snapshot((2, 1, "z")), **options)
    table.apply_changes(snapshot((4, 2, "x")), **options)
    assert rows_of(table, *COLUMNS) == [(1, "a", 1, 3), (1, "b", 3, 4), *expected[2:]]


@pytest.mark.parametrize("when", ["before the memory", "after the memory"])
def test_crash_loses_and_doubles_nothing(
    table: DeltaTable, monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    table.apply_changes(event_rows([event(1, "a"), event(4, "a")]), **HISTORY)
    lost = event_rows([event(9, "D", k=7), event(6, "D")])
    remember = change_memory.ChangeMemory.remember

    def crash(*args: Any, **named: Any) -> None:
        if when == "after the memory":
            remember(*args, **named)
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(change_memory.ChangeMemory, "remember", crash)
        with pytest.raises(KeyboardInterrupt):
            table.apply_changes(lost, **HISTORY)
    # What never was committed is not remembered: another source has no delete of 7.
    table.apply_changes(event_rows([event(2, "z"), event(3, "y", k=7)]), **HISTORY)
    expected = [(1, "a", 1, 2), (1, "a", 4, None), (1, "z", 2, 4), (7, "y", 3, None)]
    assert rows_of(table, *COLUMNS) == expected
    table.apply_changes(lost, **HISTORY)
    assert rows_of(table, *COLUMNS)[1] == (1, "a", 4, 6)
    assert rows_of(table, *COLUMNS)[-1] == (7, "y", 3, 9)


def test_concurrent_writer_is_planned_again(
    table: DeltaTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    table.apply_changes(event_rows([event(1, "a")]), **HISTORY)
    remember = change_memory.ChangeMemory.remember
    other = [event_rows([event(5, "D", k=2)])]

    def write_meanwhile(*args: Any, **named: Any) -> Any:
        if other:
            rows = other.pop()
            DeltaTable(table.uri).apply_changes(rows, **HISTORY)
        return remember(*args, **named)

    monkeypatch.setattr(change_memory.ChangeMemory, "remember", write_meanwhile)
    done = table.apply_changes(event_rows([event(3, "b", k=2), event(8, "D", k=3)]), **HISTORY)
    assert done.attempts == 2
    assert rows_of(table, *COLUMNS) == [(1, "a", 1, None), (2, "b", 3, 5)]
    table.apply_changes(event_rows([event(4, "c", k=3)]), **HISTORY)
    assert rows_of(table, *COLUMNS)[-1] == (3, "c", 4, 8)


def test_restored_table_has_the_memory_of_its_version(table: DeltaTable) -> None:
    table.apply_changes(event_rows([event(1, "a"), event(4, "a")]), **HISTORY)
    table.apply_changes(event_rows([event(9, "D", k=7), event(1, "x", k=8)]), **HISTORY)
    table.restore(0)
    table.apply_changes(event_rows([event(3, "y", k=7), event(2, "z")]), **HISTORY)
    assert rows_of(table, *COLUMNS) == [
        (1, "a", 1, 2),
        (1, "a", 4, None),
        (1, "z", 2, 4),
        (7, "y", 3, None),
    ]


def test_restored_tables_do_not_mix_what_they_remember(table: DeltaTable) -> None:
    table.apply_changes(event_rows([event(9, "D", k=5)]), **HISTORY)
    table.apply_changes(event_rows([event(8, "D", k=6)]), **HISTORY)
    table.restore(0)
    table.apply_changes(event_rows([event(7, "D", k=7)]), **HISTORY)
    table.restore(1)
    table.apply_changes(event_rows([event(3, "a", k=key) for key in (5, 6, 7)]), **HISTORY)
    expected = [(5, "a", 3, 9), (6, "a", 3, 8), (7, "a", 3, None)]
    assert rows_of(table, *COLUMNS) == expected


def test_renamed_column_loses_no_remembered_value(table: DeltaTable) -> None:
    table.apply_changes(event_rows([event(1, "a"), event(3, "a"), event(9, "b")]), **HISTORY)
    table.set_properties({"delta.columnMapping.mode": "name"})
    table.rename_column("v", "w")
    late = event_rows([event(2, "z")]).rename_columns(["k", "seq", "op", "w", "u"])
    with pytest.raises(SchemaMismatch, match="has no column w, and has v"):
        table.apply_changes(late, **HISTORY)
    memory = DeltaTable(table.uri + MEMORY_SUFFIX)
    memory.set_properties({"delta.columnMapping.mode": "name"})
    memory.rename_column("v", "w")
    table.apply_changes(late, **HISTORY)
    expected = [(1, "a", 1, 2), (1, "a", 3, 9), (1, "b", 9, None), (1, "z", 2, 3)]
    assert rows_of(table, "k", "w", "__START_AT", "__END_AT") == expected


def test_dropped_column_that_comes_back_as_another_type_is_refused(table: DeltaTable) -> None:
    rows = event_rows([event(1, "a"), event(3, "a")])
    table.apply_changes(
        rows.append_column("w", pa.array(["x", "x"])), track_history_column_list=["v"], **HISTORY
    )
    table.set_properties({"delta.columnMapping.mode": "name"})
    table.drop_column("w")
    late = event_rows([event(2, "z")]).append_column("w", pa.array([7]))
    with pytest.raises(SchemaMismatch, match="has w as string, and not as long"):
        table.apply_changes(late, schema_mode="merge", track_history_column_list=["v"], **HISTORY)


def test_wider_type_reaches_what_is_remembered(table: DeltaTable) -> None:
    def numbers(seq: int, v: int, kind: pa.DataType) -> pa.Table:
        rows = event_rows([event(seq)])
        return rows.set_column(3, "v", pa.array([v], kind))

    for seq in (1, 3, 5):
        table.apply_changes(numbers(seq, 7, pa.int32()), **HISTORY)
    table.set_properties({"delta.enableTypeWidening": "true"})
    table.apply_changes(numbers(4, 2**40, pa.int64()), schema_mode="merge", **HISTORY)
    table.apply_changes(numbers(2, 2**40, pa.int64()), **HISTORY)
    table.apply_changes(numbers(6, 2**40, pa.int64()), **HISTORY)
    table.apply_changes(numbers(8, 2**40, pa.int64()), **HISTORY)
    table.apply_changes(numbers(7, 9, pa.int64()), **HISTORY)
    wide = [(start, 2**40) for start in (2, 4, 6, 8)]
    expected = sorted([(1, 7), (3, 7), (5, 7), (7, 9), *wide])
    assert rows_of(table, "__START_AT", "v") == expected


def test_overwritten_table_remembers_nothing(table: DeltaTable) -> None:
    table.apply_changes(event_rows([event(1, "a"), event(3, "a"), event(9, "D", k=4)]), **HISTORY)
    table.overwrite(table.snapshot().scan().to_arrow().slice(0, 0))
    table.apply_changes(event_rows([event(2, "z"), event(4, "q", k=4)]), **HISTORY)
    assert rows_of(table, *COLUMNS) == [(1, "z", 2, None), (4, "q", 4, None)]


def test_change_feed_has_no_equal_images(table: DeltaTable) -> None:
    table.apply_changes(event_rows([event(1, "a"), event(9, "b")]), **HISTORY)
    table.set_properties({"delta.enableChangeDataFeed": "true"})
    start = table.version() + 1
    table.apply_changes(event_rows([event(1, "a"), event(5, "c"), event(9, "b")]), **HISTORY)
    changes = table.changes(start).to_arrow().to_pylist()
    kinds = sorted((row["_change_type"], row["v"], row["__END_AT"]) for row in changes)
    assert kinds == [("insert", "c", 9), ("update_postimage", "a", 5), ("update_preimage", "a", 9)]
