"""Slices as values, and writes within one beside other writers."""

from __future__ import annotations

import datetime as dt
import pathlib
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from dagster_delta import DeltaTable, Range, Slice
from dagster_delta.errors import (
    CommitConflict,
    InvalidArgument,
    PartitionMismatch,
    SchemaChangeRefused,
    SchemaMismatch,
    TableAlreadyExists,
)
from dagster_delta.protocol.schema import PrimitiveType, StructField, StructType
from dagster_delta.sql.expressions import parse_expression
from dagster_delta.storage.memory_store import MemoryStore
from dagster_delta.table.slices import join_ranges
from tests.table.handles import data_files, interrupted
from tests.table_rows import stored_rows

COLORS = Slice.of({"red": {"p": "red"}, "blue": {"p": "blue"}})
SCHEMA = StructType(
    (
        StructField("id", PrimitiveType("long")),
        StructField("p", PrimitiveType("string")),
        StructField("day", PrimitiveType("date")),
        StructField("at", PrimitiveType("timestamp")),
    )
)


def some(*pairs: tuple[int, str | None]) -> pa.Table:
    return pa.table(
        {
            "id": pa.array([number for number, _ in pairs], pa.int64()),
            "p": pa.array([value for _, value in pairs], pa.string()),
        }
    )


def pairs(table: DeltaTable) -> list[Any]:
    rows = DeltaTable("", store=table.store).snapshot().scan().to_arrow().to_pylist()
    return sorted(((row["id"], row["p"]) for row in rows), key=str)


@pytest.fixture
def colors(store: MemoryStore) -> DeltaTable:
    table = DeltaTable("", store=store, must_exist=False)
    table.append(some((1, "red"), (2, "green")), partition_by=["p"])
    return table


@pytest.mark.parametrize(
    ("parts", "sql"),
    [
        ({"a": {"p": "x"}}, "`p` = 'x'"),
        ({"a": {"p": "x"}, "b": {"p": "y"}}, "`p` IN ('x', 'y')"),
        ({"a": {"p": ["x", "y"]}}, "`p` IN ('x', 'y')"),
        ({"a": {"p": None}}, "`p` IS NULL"),
        ({"a": {"p": [None, "x"]}}, "(`p` IS NULL) OR (`p` = 'x')"),
        ({"a": {"p": []}}, "1 = 0"),
        ({"a": {"p": "x", "id": 1}, "b": {"p": "x", "id": 2}}, "`p` = 'x' AND `id` IN (1, 2)"),
        (
            {"a": {"p": "x", "id": 1}, "b": {"p": "y", "id": 1}},
            "(`p` = 'x' AND `id` = 1) OR (`p` = 'y' AND `id` = 1)",
        ),
        (
            {
                "a": {"day": Range(dt.date(2026, 1, 1), dt.date(2026, 2, 1))},
                "b": {"day": Range(dt.date(2026, 2, 1), dt.date(2026, 3, 1))},
            },
            "`day` >= DATE '2026-01-01' AND `day` < DATE '2026-03-01'",
        ),
        ({"a": {"id": np.array([1, 2])}}, "`id` IN (1, 2)"),
        (
            {"a": {"id": [Range(1, 3), 7, Range(9, 10)]}},
            "(`id` = 7) OR (`id` >= 1 AND `id` < 3) OR (`id` >= 9 AND `id` < 10)",
        ),
        (
            {"a": {"day": Range(dt.date(2026, 1, 1), dt.date(2026, 1, 2))}},
            "`day` = DATE '2026-01-01'",
        ),
    ],
)
def test_a_slice_is_the_condition_of_its_parts(parts: Any, sql: str) -> None:
    within = Slice.of(parts)
    condition = within.condition(SCHEMA)
    assert condition.sql == within.sql(SCHEMA) == sql
    assert parse_expression(sql, SCHEMA).typed == condition.typed


def test_an_alias_stands_before_the_columns_of_a_condition() -> None:
    assert COLORS.sql(SCHEMA, alias="t") == "`t`.`p` IN ('red', 'blue')"


def test_a_slice_is_narrowed_to_some_of_its_parts() -> None:
    narrowed = COLORS.narrowed(["blue"])
    assert (narrowed.parts, narrowed.sql(SCHEMA)) == (("blue",), "`p` = 'blue'")
    assert COLORS.narrowed(["blue", "red"]).parts == COLORS.parts
    assert COLORS.narrowed([]).condition(SCHEMA).sql == "1 = 0"
    with pytest.raises(InvalidArgument, match="mauve is not a part of the slice red, blue"):
        COLORS.narrowed(["mauve"])


def test_a_name_of_many_parts_is_cut() -> None:
    assert (
        Slice.of({str(n): {"id": n} for n in range(9)}).name == "the slice 0, 1, 2, 3, 4 and 4 more"
    )
    assert Slice.of({"a": {"p": 1}}, name="Monday").name == "Monday"


@pytest.mark.parametrize("parts", [{}, {"a": {}}])
def test_a_slice_without_parts_or_columns_is_refused(parts: Any) -> None:
    with pytest.raises(InvalidArgument, match="at least one part"):
        Slice.of(parts)


@pytest.mark.parametrize(
    ("value", "column"),
    [("red", "id"), ("red", "day"), (1, "p"), (float("nan"), "id"), (object(), "p"), (2**70, "id")],
)
def test_a_value_of_another_type_is_refused(value: object, column: str) -> None:
    with pytest.raises(InvalidArgument, match=f"column {column} of type") as caught:
        Slice.of({"a": {column: value}}).condition(SCHEMA)
    assert caught.value.column == column
    with pytest.raises(InvalidArgument):
        Slice.of({"a": {column: [value, value]}}).condition(SCHEMA)


def test_ranges_that_touch_are_joined_by_their_instants() -> None:
    times = [dt.datetime(2026, 1, 1, hour, tzinfo=dt.UTC) for hour in range(6)]
    east = dt.timezone(dt.timedelta(hours=1))
    ranges = [
        Range(times[3], times[4]),
        Range(times[1].astimezone(east), times[2].astimezone(east)),
        Range(times[0], times[1]),
    ]
    assert join_ranges(ranges) == [Range(times[0], times[2]), Range(times[3], times[4])]


def test_columns_with_one_value_in_each_part_are_its_keys() -> None:
    assert COLORS.key_columns(SCHEMA) == ("p",)
    month = Range(dt.date(2026, 1, 1), dt.date(2026, 2, 1))
    assert Slice.of({"a": {"p": "x", "day": month}}).key_columns(SCHEMA) == ("p",)
    assert Slice.of({"a": {"p": ["x", "y"]}}).key_columns(SCHEMA) == ()
    assert Slice.of({"a": {"p": "x"}, "b": {"p": ["y", "z"]}}).key_columns(SCHEMA) == ()
    assert Slice.of({"a": {"p": "x"}, "b": {"id": 1}}).key_columns(SCHEMA) == ()
    assert Slice.of({"a": {"p": "x"}}).key_columns(StructType((SCHEMA.field("p"),))) == ()


def test_partition_by_of_the_caller_comes_before_the_slice(store: MemoryStore) -> None:
    table = DeltaTable("", store=store, must_exist=False)
    table.append(some((1, "red")), within=COLORS, partition_by=[])
    assert table.metadata().partition_columns == ()


def test_a_clustered_table_is_not_partitioned_by_the_slice(store: MemoryStore) -> None:
    table = DeltaTable("", store=store, must_exist=False)
    table.append(some((1, "red")), within=COLORS, cluster_by=["id"])
    assert table.metadata().partition_columns == ()


def test_an_overwrite_takes_where_or_within(colors: DeltaTable) -> None:
    with pytest.raises(InvalidArgument, match="where or within"):
        colors.overwrite(some((1, "red")), where="p = 'red'", within=COLORS)


@pytest.mark.parametrize(
    ("write", "options", "match"),
    [
        ("overwrite", {"where": "p = 'red'", "if_present": "skip"}, "within instead of where"),
        ("overwrite", {"where": "dynamic", "if_present": "fail"}, "within instead of where"),
        ("append", {"absent": "id = 1", "if_present": "replace"}, "absent or if_present"),
        ("append", {"within": "p = 'red'"}, "within takes a slice"),
        ("overwrite", {"if_present": None}, "of an overwrite"),
    ],
)
def test_options_that_contradict_each_other_are_refused(
    colors: DeltaTable, write: str, options: Any, match: str
) -> None:
    with pytest.raises(InvalidArgument, match=match):
        getattr(colors, write)(some((9, "red")), **options)
    assert pairs(colors) == [(1, "red"), (2, "green")]


@pytest.mark.parametrize("ends", [(3, 1), (1, 1), ("a", 1), (dt.date(2026, 1, 2), 3)])
def test_a_range_without_values_is_refused(ends: tuple[Any, Any]) -> None:
    with pytest.raises(InvalidArgument, match="has no values"):
        Slice.of({"a": {"id": Range(*ends)}})


def test_ranges_that_cannot_be_compared_are_refused() -> None:
    ranges = [Range(1, 2), Range(dt.date(2026, 1, 1), dt.date(2026, 1, 2))]
    with pytest.raises(InvalidArgument, match="different types"):
        Slice.of({"a": {"id": ranges}})


def test_a_range_may_end_with_the_last_day() -> None:
    end = Slice.of({"a": {"day": Range(dt.date(9999, 12, 30), dt.date.max)}})
    assert end.sql(SCHEMA) == "`day` = DATE '9999-12-30'"


def test_a_merge_widens_the_columns_that_its_clauses_take(store: MemoryStore) -> None:
    table = DeltaTable("", store=store, must_exist=False)
    table.append(pa.table({"id": pa.array([1], pa.int32()), "v": pa.array([1], pa.int32())}))
    wider = pa.table({"id": pa.array([1], pa.int64()), "v": pa.array([7], pa.int64())})
    merge = table.merge(wider, "t.id = s.id", schema_mode="widen")
    merge.when_matched_delete().execute()
    assert table.snapshot().num_records == 0
    merge = table.merge(wider, "t.id = s.id", schema_mode="widen").when_not_matched_insert_all()
    with pytest.raises(SchemaChangeRefused, match="enableTypeWidening"):
        merge.execute()


def test_conditions_of_a_merge_within_a_slice_may_end_with_a_comment(colors: DeltaTable) -> None:
    merge = colors.merge(some((1, "red"), (3, "blue")), "t.id = s.id -- the key", within=COLORS)
    merge = merge.when_not_matched_insert_all()
    merge.when_not_matched_by_source_delete("t.id > 0 -- all").execute()
    assert pairs(colors) == [(1, "red"), (2, "green"), (3, "blue")]


def test_an_unknown_if_present_is_refused(colors: DeltaTable) -> None:
    with pytest.raises(InvalidArgument, match="'replace', 'skip' or 'fail'"):
        colors.append(some((1, "red")), if_present="maybe")  # type: ignore[arg-type]


def test_the_general_check_and_absence_hold_beside_the_slice(colors: DeltaTable) -> None:
    with pytest.raises(PartitionMismatch, match="id > 5"):
        colors.append(some((5, "red")), within=COLORS, check="id > 5")
    with pytest.raises(TableAlreadyExists, match="id = 1"):
        colors.append(some((5, "red")), within=COLORS, absent="id = 1")


def test_an_append_that_was_done_skips_whatever_is_present(colors: DeltaTable) -> None:
    once = ("job", 1)
    blue = COLORS.narrowed(["blue"])
    colors.append(some((5, "blue")), within=blue, if_present="fail", idempotency=once)
    again = colors.append(some((5, "blue")), within=blue, if_present="fail", idempotency=once)
    assert again.skipped
    assert again.kept_parts == ()


def test_columns_that_the_rows_lack_are_named(colors: DeltaTable) -> None:
    result = colors.append(pa.table({"p": ["red"]}), within=COLORS)
    assert result.null_columns == ("id",)
    assert colors.append(some((3, "red"))).null_columns == ()


def test_rows_of_parts_are_written_as_one_commit(colors: DeltaTable) -> None:
    rows = COLORS.rows_of({"red": some((5, "red")), "blue": some((6, "blue"), (7, "blue"))})
    assert colors.overwrite(rows, within=COLORS).metrics["numOutputRows"] == 3
    assert pairs(colors) == [(2, "green"), (5, "red"), (6, "blue"), (7, "blue")]


def test_a_row_in_the_frame_of_another_part_is_refused(colors: DeltaTable) -> None:
    rows = COLORS.rows_of({"red": some((5, "blue")), "blue": some()})
    with pytest.raises(PartitionMismatch, match="the part red that are not in it") as caught:
        colors.overwrite(rows, within=COLORS)
    assert caught.value.examples == ("{'id': 5, 'p': 'blue'}",)
    assert pairs(colors) == [(1, "red"), (2, "green")]


def test_frames_of_unknown_parts_or_other_columns_are_refused() -> None:
    with pytest.raises(InvalidArgument, match="mauve is not a part"):
        COLORS.rows_of({"mauve": some()})
    with pytest.raises(SchemaMismatch, match="more is in one of red and blue only"):
        COLORS.rows_of(
            {"red": some((1, "red")), "blue": pa.table({"id": [1], "p": ["blue"], "more": 1 * [1]})}
        )


def test_frames_with_narrow_and_wide_types_are_one(colors: DeltaTable) -> None:
    narrow = some((5, "red")).set_column(0, "id", pa.array([5], pa.int8()))
    colors.overwrite(COLORS.rows_of({"red": narrow, "blue": some((6, "blue"))}), within=COLORS)
    assert pairs(colors) == [(2, "green"), (5, "red"), (6, "blue")]


def reader(rows: pa.Table) -> pa.RecordBatchReader:
    """Rows that can be read once."""
    return rows.to_reader()


def fill_blue(table: DeltaTable) -> None:
    """A commit that depends on what it has read, so that it does not count as later."""
    table.append(some((3, "blue")), absent="p = 'blue'")


@pytest.mark.parametrize("statement", ["append", "overwrite"])
def test_a_writer_outside_of_the_slice_is_no_conflict(
    statement: str, store: MemoryStore, colors: DeltaTable
) -> None:
    rival = interrupted(store, lambda other: other.append(some((3, "green"))))
    result = getattr(rival, statement)(reader(some((9, "red"))), within=COLORS)
    assert result.attempts == 1
    assert {(2, "green"), (3, "green"), (9, "red")} <= set(pairs(colors))


def test_an_overwrite_plans_again_after_a_writer_in_the_slice(
    store: MemoryStore, colors: DeltaTable
) -> None:
    rival = interrupted(store, fill_blue)
    result = rival.overwrite(some((9, "red")), within=COLORS)
    assert result.attempts == 2
    assert pairs(colors) == [(2, "green"), (9, "red")]


@pytest.mark.parametrize("give", [some, lambda *found: reader(some(*found))])
def test_skip_leaves_a_part_that_another_writer_has_filled(
    give: Any, store: MemoryStore, colors: DeltaTable
) -> None:
    rival = interrupted(store, fill_blue)
    blue = COLORS.narrowed(["blue"])
    result = rival.append(give((9, "blue")), within=blue, if_present="skip")
    assert (result.skipped, result.kept_parts) == (True, ("blue",))
    assert pairs(colors) == [(1, "red"), (2, "green"), (3, "blue")]
    assert len(data_files(store)) == 3


def test_skip_writes_again_what_another_writer_has_left(
    store: MemoryStore, colors: DeltaTable
) -> None:
    within = Slice.of({name: {"p": name} for name in ("red", "blue", "pink")})
    rival = interrupted(store, fill_blue)
    rows = some((7, "red"), (8, "blue"), (9, "pink"))
    result = rival.append(rows, within=within, if_present="skip")
    assert (result.skipped, result.kept_parts, result.attempts) == (False, ("red", "blue"), 2)
    assert pairs(colors) == [(1, "red"), (2, "green"), (3, "blue"), (9, "pink")]
    assert len(data_files(store)) == 4


def test_rows_that_can_be_read_once_conflict_where_a_part_was_filled_meanwhile(
    store: MemoryStore, colors: DeltaTable
) -> None:
    within = Slice.of({name: {"p": name} for name in ("blue", "pink")})
    rival = interrupted(store, fill_blue)
    with pytest.raises(CommitConflict):
        rival.append(reader(some((8, "blue"), (9, "pink"))), within=within, if_present="skip")
    assert pairs(colors) == [(1, "red"), (2, "green"), (3, "blue")]


@pytest.mark.parametrize("give", [some, lambda *found: reader(some(*found))])
def test_fail_says_that_another_writer_has_filled_the_slice(
    give: Any, store: MemoryStore, colors: DeltaTable
) -> None:
    rival = interrupted(store, fill_blue)
    blue = COLORS.narrowed(["blue"])
    with pytest.raises(TableAlreadyExists, match="has rows already"):
        rival.append(give((9, "blue")), within=blue, if_present="fail")
    assert pairs(colors) == [(1, "red"), (2, "green"), (3, "blue")]


@pytest.mark.parametrize("if_present", ["skip", "fail"])
def test_one_of_two_writers_creates_the_table(store: MemoryStore, if_present: Any) -> None:
    rival = interrupted(store, lambda other: other.append(some((3, "blue"))))
    if if_present == "fail":
        with pytest.raises(TableAlreadyExists):
            rival.append(reader(some((9, "red"))), if_present="fail")
    else:
        assert rival.append(reader(some((9, "red"))), if_present="skip").skipped
    assert pairs(rival) == [(3, "blue")]


def test_a_merge_plans_again_after_a_writer_in_the_slice(
    store: MemoryStore, colors: DeltaTable
) -> None:
    rival = interrupted(store, fill_blue)
    merge = rival.merge(some((3, "blue"), (1, "red")), "t.id = s.id", within=COLORS)
    assert merge.when_not_matched_insert_all().execute().attempts == 2
    assert pairs(colors) == [(1, "red"), (2, "green"), (3, "blue")]


def test_a_merge_is_not_disturbed_outside_of_the_slice(
    store: MemoryStore, colors: DeltaTable
) -> None:
    rival = interrupted(store, lambda other: other.append(some((9, "green"))))
    merge = rival.merge(some((9, "blue")), "t.id = s.id", within=COLORS)
    assert merge.when_not_matched_insert_all().execute().attempts == 1
    assert pairs(colors) == [(1, "red"), (2, "green"), (9, "blue"), (9, "green")]


def test_deltalake_reads_what_was_written_within_slices(tmp_path: pathlib.Path) -> None:
    deltalake = pytest.importorskip("deltalake")
    table = DeltaTable(tmp_path / "t", must_exist=False)
    odd = Slice.of({value: {"p": value} for value in ("it's", "a/b", "x=y", "ü")})
    table.append(some(*enumerate(odd.parts)), within=odd)
    table.append(some((9, None)), within=Slice.of({"none": {"p": None}}))
    table.overwrite(some((7, "a/b")), within=odd.narrowed(["a/b"]))
    table.append(some((8, "ü")), within=odd, if_present="skip")
    found = deltalake.DeltaTable(str(tmp_path / "t")).to_pyarrow_table().to_pylist()
    assert sorted(found, key=repr) == stored_rows(table)
    assert [row["id"] for row in found if row["p"] in ("a/b", "ü")] in ([7, 3], [3, 7])
