"""Merging: which clause gets which row, what is written for it, and who may do it at once."""

from __future__ import annotations

import datetime as dt
import gc
import io
import json
import sys
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dagster_delta.engines.statements.source_buffer import SourceRows
from dagster_delta.errors import (
    ConcurrentAppend,
    ConcurrentDeleteRead,
    ConstraintViolation,
    DataFileMissing,
    InvalidArgument,
    InvalidCast,
    InvalidTable,
    SchemaMismatch,
    TableNotFound,
    UnsupportedExpression,
)
from dagster_delta.evolution.table_definition import TableDefinition
from dagster_delta.parquet.reader import read_ahead
from dagster_delta.protocol.log.paths import commit_path
from dagster_delta.protocol.values.arrow_schema import from_arrow_schema
from dagster_delta.storage.memory_store import MemoryStore
from dagster_delta.table.delta_table import DeltaTable
from tests.sample_tables import FEED, SHAPES, VECTORS, Row, data, numbered
from tests.table.handles import data_files
from tests.table.logs import actions
from tests.table_rows import row_order, stored_tuples

every_shape = pytest.mark.parametrize("shape", SHAPES)
both_ways = pytest.mark.parametrize("shape", ["rewrite", "vectors"])


def make(
    shape: str = "rewrite",
    *parts: pa.Table,
    properties: dict[str, str] | None = None,
    store: MemoryStore | None = None,
) -> DeltaTable:
    """A table with a commit per part, by default of ten rows and of ten more."""
    own, partition_by = SHAPES[shape]
    table = DeltaTable("", store=store or MemoryStore(), must_exist=False)
    for part in parts or (numbered(*range(10)), numbered(*range(10, 20))):
        table.append(part, partition_by=partition_by, properties=own | (properties or {}))
    return table


def values(table: DeltaTable) -> dict[int, str]:
    found = table.snapshot().scan().to_arrow()
    return dict(zip(found["id"].to_pylist(), found["v"].to_pylist(), strict=True))


def changes(table: DeltaTable) -> list[tuple[int, str, str]]:
    found = []
    for action in actions(table)["cdc"]:
        read = pq.read_table(io.BytesIO(table.store.read(action["path"])), partitioning=None)
        found += [(row["id"], row["v"], row["_change_type"]) for row in read.to_pylist()]
    return sorted(found)


def test_several_source_rows_for_one_row_are_refused_with_their_keys() -> None:
    table = make("vectors")
    before = data_files(table)
    source = data((3, "a", 1), (3, "b", 1), (4, "c", 0))
    with pytest.raises(ConstraintViolation, match="several rows of the source") as caught:
        table.merge(source, "t.id = s.id").when_matched_update_all().execute()
    assert caught.value.examples == ("{'id': 3}",)
    with pytest.raises(ConstraintViolation, match="several rows"):
        table.merge(source, "t.id = s.id").when_matched_delete("s.v <> 'c'").execute()
    assert data_files(table) == before
    assert table.version() == 1


@both_ways
def test_the_feed_gets_every_change(shape: str) -> None:
    table = make(shape, properties=FEED)
    (
        table.merge(data((3, "a", 1), (4, "b", 0), (30, "c", 0)), "t.id = s.id")
        .when_matched_delete("s.id = 4")
        .when_matched_update_all()
        .when_not_matched_insert_all()
        .when_not_matched_by_source_update({"v": "'z'"}, "t.id = 11")
        .when_not_matched_by_source_delete("t.id = 12")
        .execute()
    )
    assert changes(table) == [
        (3, "a", "update_postimage"),
        (3, "v3", "update_preimage"),
        (4, "v4", "delete"),
        (11, "v11", "update_preimage"),
        (11, "z", "update_postimage"),
        (12, "v12", "delete"),
        (30, "c", "insert"),
    ]


def test_rows_that_are_read_out_of_order_are_never_written(monkeypatch: pytest.MonkeyPatch) -> None:
    def reversed_rows(*arguments: Any) -> Any:
        for batch in read_ahead(*arguments):
            yield batch.take(pa.array(range(batch.num_rows))[::-1])

    where = "dagster_delta.engines.arrow.merge.read_ahead"
    monkeypatch.setattr(where, reversed_rows)
    table = make("rewrite", numbered(*range(8)))
    before, files = stored_tuples(table, "id", "v", "p"), data_files(table)
    merge = table.merge(numbered(*range(2, 5)), "t.id = s.id")
    with pytest.raises(InvalidTable, match="not read in their order"):
        merge.when_matched_update({"v": "upper(t.v)"}).execute()
    assert stored_tuples(table, "id", "v", "p") == before
    assert data_files(table) == files


def test_no_change_files_where_adds_and_removes_say_it_all() -> None:
    table = make("vectors", properties=FEED)
    source = data((3, "a", 1), (30, "c", 0))
    merge = table.merge(source, "t.id = s.id").when_matched_delete().when_not_matched_insert_all()
    assert merge.execute().metrics["numTargetRowsDeleted"] == 1
    assert not actions(table)["cdc"]
    table.merge(data((40, "d", 0)), "t.id = s.id").when_not_matched_insert_all().execute()
    assert not actions(table)["cdc"]
    assert not actions(table)["remove"]


def test_deletion_vectors_leave_the_data_files_and_copy_nothing() -> None:
    table = make("vectors")
    before = data_files(table)
    result = (
        table.merge(data((3, "a", 1)), "t.id = s.id").when_matched_update({"v": "s.v"}).execute()
    )
    assert before < data_files(table)
    assert result.metrics["numTargetRowsCopied"] == 0
    assert result.metrics["numTargetDeletionVectorsAdded"] == 1
    assert result.metrics["numTargetFilesRemoved"] == 0
    rewritten = make("rewrite")
    result = rewritten.merge(data((3, "a", 1)), "t.id = s.id").when_matched_update_all().execute()
    assert result.metrics["numTargetRowsCopied"] == 9
    assert result.metrics["numTargetFilesRemoved"] == 1


def test_files_that_cannot_match_are_not_read() -> None:
    table = make("rewrite")
    (gone,) = (
        each["path"]
        for each in table.snapshot().files().to_pylist()
        if each["path"] in _paths_of_version(table, 1)
    )
    table.store.delete([gone])
    source = data((3, "a", 1), (500, "b", 0))
    result = (
        table.merge(source, "t.id = s.id")
        .when_matched_update_all()
        .when_not_matched_insert_all()
        .execute()
    )
    assert result.metrics["numTargetRowsUpdated"] == 1
    with pytest.raises(DataFileMissing):
        table.merge(data((13, "a", 1)), "t.id = s.id").when_matched_delete().execute()
    table.merge(data((13, "a", 1)), "t.id = s.id AND t.p = 9").when_matched_delete().execute()


def _paths_of_version(table: DeltaTable, version: int) -> set[str]:
    lines = table.store.read(commit_path(version)).splitlines()
    return {json.loads(line)["add"]["path"] for line in lines if b'"add"' in line}


def test_a_merge_that_changes_nothing_makes_no_version() -> None:
    table = make("vectors")
    before = data_files(table)
    for source in (data(), data((500, "x", 0)), data((3, "x", 0))):
        merge = table.merge(source, "t.id = s.id").when_matched_delete("t.v = 'nothing'")
        assert merge.execute().skipped
    assert table.merge(data((3, "x", 0)), "false").when_matched_delete().execute().skipped
    assert table.version() == 1
    assert data_files(table) == before


def test_a_condition_without_keys_pairs_all_rows() -> None:
    table = make()
    (
        table.merge(data((8, "x", 0)), "t.id > s.id + 4 AND t.p = s.p")
        .when_matched_update({"v": "concat(s.v, cast(t.id as string))"})
        .execute()
    )
    assert {key for key, value in values(table).items() if value.startswith("x")} == {14, 16, 18}
    table.merge(data((1, "x", 0)), "true").when_matched_delete().execute()
    assert stored_tuples(table, "id", "v", "p") == []


def test_a_part_of_the_condition_is_not_computed_for_pairs_that_an_earlier_one_leaves_out() -> None:
    table = make()
    (
        table.merge(data((4, "x", 0)), "t.p = s.p AND t.id <> s.id AND 4 / (t.id - s.id) > 1")
        .when_matched_update({"v": "s.v"})
        .execute()
    )
    assert {key for key, value in values(table).items() if value == "x"} == {6}


def test_keys_of_different_types_compare_as_in_spark() -> None:
    table = make()
    source = pa.table({"k": ["3", "04", None], "w": ["a", "b", "c"]})
    table.merge(source, "t.id = s.k").when_matched_update({"v": "w"}).execute()
    assert values(table)[3] == "a"
    assert values(table)[4] == "b"
    source = pa.table({"k": pa.array([5, 6], pa.int8()), "w": ["e", "f"]})
    table.merge(source, "s.k = t.id").when_matched_update({"v": "w"}).execute()
    assert values(table)[6] == "f"
    source = pa.table({"k": [Decimal("7.0"), Decimal("7.5")]})
    table.merge(source, "s.k = t.id").when_matched_delete().execute()
    assert 7 not in values(table)
    with pytest.raises(InvalidArgument, match="fails on a value"):
        table.merge(pa.table({"k": ["x"]}), "t.id = s.k").when_matched_delete().execute()


def test_floats_dates_timestamps_and_bytes_are_keys() -> None:
    moment = dt.datetime(2024, 2, 29, 12, tzinfo=dt.UTC)
    columns: dict[str, tuple[pa.DataType, list[Any]]] = {
        "float": (pa.float64(), [0.0, float("nan"), 1.5]),
        "date": (pa.date32(), [dt.date(1, 1, 1), dt.date(9999, 12, 31), dt.date(2024, 2, 29)]),
        "timestamp": (pa.timestamp("us", "UTC"), [moment, moment.replace(year=1972), None]),
        "bytes": (pa.binary(), [b"", b"\x00\xff", b"x"]),
        "boolean": (pa.bool_(), [True, False, None]),
    }
    for name, (arrow_type, found) in columns.items():
        table = DeltaTable("", store=MemoryStore(), must_exist=False)
        keys = pa.array(found, arrow_type)
        table.append(pa.table({"k": keys, "n": [1, 2, 3]}))
        given_keys = pa.array([-0.0, float("nan"), 7.0], arrow_type) if name == "float" else keys
        source = pa.table({"k": given_keys.slice(0, 2)})
        table.merge(source, "t.k = s.k").when_matched_delete().execute()
        assert table.snapshot().scan().to_arrow()["n"].to_pylist() == [3], name


def test_a_column_called_like_an_alias_is_named_behind_one() -> None:
    table = DeltaTable("", store=MemoryStore(), must_exist=False)
    table.append(pa.table({"id": [1], "s": ["old"]}))
    source = pa.table({"id": [1], "s": ["new"]})
    with pytest.raises(InvalidArgument, match="alias"):
        table.merge(source, "t.id = s.id").when_matched_update({"t.s": "s"}).execute()
    table.merge(source, "t.id = s.id").when_matched_update({"t.s": "s.s"}).execute()
    assert table.snapshot().scan().to_arrow()["s"].to_pylist() == ["new"]


def test_a_merge_sets_a_column_that_is_called_like_the_alias_of_the_target() -> None:
    table = DeltaTable("", store=MemoryStore(), must_exist=False)
    table.append(pa.table({"id": [1], "T": ["old"]}))
    source = pa.table({"id": [1, 2], "T": ["new", "more"]})
    merge = table.merge(source, "t.id = s.id").when_matched_update({"t": "concat(t.t, s.t)"})
    merge.when_not_matched_insert({"id": "s.id", "t": "s.t"}).execute()
    rows = table.snapshot().scan().to_arrow().sort_by("id")
    assert rows["T"].to_pylist() == ["oldnew", "more"]


def test_what_makes_no_sense_is_refused_before_anything_is_written() -> None:
    table = make("vectors")
    before = data_files(table)
    source = data((3, "a", 1))
    wider = source.append_column("w", pa.array([1]))

    def refused(kind: type[Exception], text: str, build: Any, on: str = "t.id = s.id") -> None:
        with pytest.raises(kind, match=text):
            build(table.merge(source, on)).execute()

    refused(InvalidArgument, "at least one clause", lambda m: m)
    refused(InvalidArgument, "both sides", lambda m: m.when_matched_delete(), "id = s.id")
    guess = "target.id = s.id"
    refused(SchemaMismatch, "did you mean t.id or s.id", lambda m: m.when_matched_delete(), guess)
    refused(InvalidArgument, "condition", lambda m: m.when_matched_delete(), "t.id + s.id")
    refused(
        InvalidArgument,
        "never be reached",
        lambda m: m.when_matched_delete().when_matched_update_all(),
    )
    refused(SchemaMismatch, "no column t.x", lambda m: m.when_matched_update({"v": "t.x"}))
    refused(
        SchemaMismatch,
        "this clause sees only s",
        lambda m: m.when_not_matched_insert({"id": "t.id"}),
    )
    refused(
        SchemaMismatch,
        "this clause sees only t",
        lambda m: m.when_not_matched_by_source_delete("s.id = 1"),
    )
    refused(InvalidArgument, "at least one column", lambda m: m.when_matched_update({}))
    refused(
        InvalidArgument,
        "twice",
        lambda m: m.when_matched_update({"v": "'a'", "t.V": "'b'"}),
    )
    refused(
        UnsupportedExpression,
        "Spark engine",
        lambda m: m.when_matched_delete("array_contains(array(1), 1)"),
    )
    refused(InvalidCast, "do not fit", lambda m: m.when_matched_update({"p": "t.id * 10000000000"}))
    with pytest.raises(SchemaMismatch, match="no column w"):
        table.merge(wider, "t.id = s.id").when_matched_update({"w": "s.w"}).execute()
    narrower = source.drop_columns(["p"])
    with pytest.raises(SchemaMismatch, match="no column p"):
        table.merge(narrower, "t.id = s.id").when_not_matched_insert_all().execute()
    with pytest.raises(InvalidArgument, match="different aliases"):
        table.merge(source, "t.id = s.id", source_alias="T").when_matched_delete().execute()
    with pytest.raises(InvalidArgument):
        table.merge(object(), "t.id = s.id").when_matched_delete().execute()
    assert data_files(table) == before
    assert table.version() == 1


def test_constraints_bind_new_rows_and_leave_no_file_behind() -> None:
    table = DeltaTable.create(
        "",
        pa.schema([pa.field("id", pa.int64(), nullable=False), pa.field("v", pa.string())]),
        properties=VECTORS,
        store=MemoryStore(),
    )
    table.append(pa.table({"id": [1, 2], "v": ["a", "b"]}))
    before = data_files(table)
    source = pa.table({"id": [1, 7], "v": ["x", "y"]})
    for merge in (
        table.merge(source, "t.id = s.id").when_matched_update({"id": "NULL"}),
        table.merge(source, "t.id = s.id").when_not_matched_insert({"v": "s.v"}),
        table.merge(source, "t.id = s.id")
        .when_matched_update({"v": "s.v"})
        .when_not_matched_insert({"id": "nullif(s.id, 7)"}),
    ):
        with pytest.raises(ConstraintViolation, match="id"):
            merge.execute()
    assert data_files(table) == before


def test_there_must_be_a_table() -> None:
    table = DeltaTable("", store=MemoryStore(), must_exist=False)
    with pytest.raises(TableNotFound):
        table.merge(data((3, "a", 1)), "t.id = s.id").when_not_matched_insert_all().execute()


def test_the_log_says_what_was_done() -> None:
    table = make()
    (
        table.merge(data((3, "a", 1)), "t.id = s.id", commit_info={"run": "7"})
        .when_matched_delete("s.v = 'x'")
        .when_matched_update_all()
        .when_not_matched_insert_all()
        .when_not_matched_by_source_delete("t.id = 12")
        .execute()
    )
    info = actions(table)["commitInfo"][0]
    assert info["operation"] == "MERGE"
    assert info["run"] == "7"
    parameters = {name: json.loads(text) for name, text in info["operationParameters"].items()}
    assert parameters == {
        "predicate": ["t.id = s.id"],
        "matchedPredicates": [
            {"predicate": "s.v = 'x'", "actionType": "delete"},
            {"actionType": "update"},
        ],
        "notMatchedPredicates": [{"actionType": "insert"}],
        "notMatchedBySourcePredicates": [{"predicate": "t.id = 12", "actionType": "delete"}],
    }
    assert info["operationMetrics"]["numTargetRowsUpdated"] == "1"
    assert info["isBlindAppend"] is False


@pytest.mark.parametrize("shape", ["partitioned", "mapped_partitioned_vectors"])
def test_merges_into_different_partitions_both_land(shape: str) -> None:
    store = MemoryStore()
    table = make(shape, store=store)
    other = DeltaTable("", store=store)

    def upsert(handle: DeltaTable, p: int, *found: Row) -> None:
        (
            handle.merge(data(*found), f"t.id = s.id AND t.p = s.p AND t.p = {p}")
            .when_matched_update_all()
            .when_not_matched_insert_all()
            .execute()
        )

    _interleave(table, lambda: upsert(other, 1, (3, "theirs", 1), (31, "new", 1)))
    upsert(table, 0, (4, "ours", 0), (30, "new", 0))
    found = values(table)
    assert (found[3], found[4], found[30], found[31]) == ("theirs", "ours", "new", "new")
    assert table.version() == 3


def test_a_concurrent_merge_of_the_same_rows_is_refused() -> None:
    for row, kind in (((3, "x", 1), ConcurrentDeleteRead), ((77, "x", 1), ConcurrentAppend)):
        store = MemoryStore()
        table, other = make("vectors", store=store), DeltaTable("", store=store)
        before = data_files(table)

        def upsert(handle: DeltaTable, found: Row = row) -> None:
            (
                handle.merge(data(found), "t.id = s.id", on_conflict="fail")
                .when_matched_update_all()
                .when_not_matched_insert_all()
                .execute()
            )

        def win() -> None:
            upsert(other)  # noqa: B023  called before the loop goes on

        _interleave(table, win)
        with pytest.raises((kind, ConcurrentAppend)):
            upsert(table)
        written = data_files(table) - before
        # The winner's, with the vector of an update.
        assert len(written) == 1 + (kind is ConcurrentDeleteRead)


def _interleave(table: DeltaTable, win: Any) -> None:
    """Let another writer commit after `table` has read its version and before it commits."""
    existing = table._existing

    def read_then_lose() -> Any:
        found = existing()
        win()
        return found

    table._existing = read_then_lose  # type: ignore[method-assign]


@pytest.mark.parametrize("memory_bytes", [0, 1000, 10**9])
def test_a_large_source_is_put_down_and_found_again(tmp_path: Path, memory_bytes: int) -> None:
    table = data(*((each, f"s{each}", each % 2) for each in range(300)))
    reader = table.to_reader(max_chunksize=40)
    source = SourceRows(reader, str(tmp_path), memory_bytes=memory_bytes)
    assert len(list(tmp_path.iterdir())) == (memory_bytes < 10**9)
    assert source.num_rows == 300
    assert pa.Table.from_batches([batch for _, batch in source.batches()]) == table
    assert [start for start, _ in source.batches()] == list(range(0, 300, 40))
    wanted = np.array([299, 0, 41, 41, 120], np.int64)
    assert source.take(wanted, ["v", "id"]).to_pylist() == [
        {"v": f"s{each}", "id": each} for each in wanted
    ]


def test_a_table_is_its_own_source_unless_its_values_must_change(tmp_path: Path) -> None:
    given = data(*((each, f"s{each}", 0) for each in range(10)))
    source = SourceRows(given, str(tmp_path), memory_bytes=0)
    assert not list(tmp_path.iterdir())
    assert [batch for _, batch in source.batches()] == given.to_batches()
    unsigned = given.set_column(0, "id", given["id"].cast(pa.uint32()))
    assert SourceRows(unsigned, str(tmp_path), memory_bytes=0).num_rows == 10
    assert len(list(tmp_path.iterdir())) == 1


def test_wide_rows_of_the_source_are_taken_a_few_at_a_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    taken: list[int] = []
    take = SourceRows.take

    def counted(source: SourceRows, rows: Any, columns: Any) -> pa.RecordBatch:
        taken.append(len(rows))
        return take(source, rows, columns)

    monkeypatch.setattr("dagster_delta.engines.statements.source_buffer._TAKEN_BYTES", 40_000)
    monkeypatch.setattr(SourceRows, "take", counted)
    table = make("rewrite", numbered(*range(300)))
    narrow = {each: f"s{each}" for each in range(100)}
    wide = {each: f"w{each:03}" * 1000 for each in range(200, 240)}
    source = pa.concat_tables(
        [data(*((id_, value, 0) for id_, value in part.items())) for part in (narrow, wide)]
    )
    table.merge(source, "t.id = s.id").when_matched_update_all().execute()
    assert taken == [109, 10, 10, 10, 1]
    assert values(table) == {each: f"v{each}" for each in range(300)} | narrow | wide
    taken.clear()
    table.merge(source, "t.id = s.id AND t.v = s.v").when_matched_delete(
        "s.v < t.v || 'x'"
    ).execute()
    assert max(taken[1:]) <= 10
    assert len(values(table)) == 160


def test_a_source_in_several_batches_is_merged_once() -> None:
    table = make("vectors")
    batches = data(*((each, f"s{each}", each % 2) for each in range(5, 300))).to_batches(40)
    reader = pa.RecordBatchReader.from_batches(batches[0].schema, batches)
    (
        table.merge(reader, "t.id = s.id")
        .when_matched_update_all("s.v <> t.v")
        .when_not_matched_insert_all("s.id % 3 = 0")
        .execute()
    )
    expected = {each: f"v{each}" for each in range(5)}
    expected |= {each: f"s{each}" for each in range(5, 300) if each < 20 or each % 3 == 0}
    assert values(table) == expected


def test_large_files_are_merged_by_row_group(tmp_path: Path) -> None:
    table = DeltaTable(str(tmp_path), must_exist=False)
    count = 300_000
    for start in (0, count):
        ids = pa.array(range(start, start + count))
        table.append(pa.table({"id": ids, "v": ["x"] * count}), properties=VECTORS)
    source = pa.table({"id": pa.array(range(0, 2 * count, 97)), "v": ["y"] * (2 * count // 97 + 1)})
    result = table.merge(source, "t.id = s.id").when_matched_update_all().execute()
    assert result.metrics["numTargetRowsUpdated"] == source.num_rows
    found = table.snapshot().scan(where="v = 'y'").to_arrow()
    assert sorted(found["id"].to_pylist()) == source["id"].to_pylist()
    assert table.snapshot().num_records == 2 * count


# Two keys are joined by the SQL engine, one is looked up by Arrow.
CONDITIONS = [
    "t.id = s.id",
    "CAST(t.id AS STRING) = CAST(s.id AS STRING)",
    "t.id = s.id AND t.id + 1 = s.id + 1",
]
keys = st.one_of(st.none(), st.integers(0, 6))
texts = st.sampled_from(["a", "b", "c", None])
table_rows = st.lists(st.tuples(st.integers(0, 6), texts, st.integers(0, 1)), max_size=8)
source_rows = st.lists(
    st.tuples(keys, texts, st.integers(0, 1)), max_size=6, unique_by=lambda row: row[0]
)


@settings(max_examples=40)
@given(
    first=table_rows,
    second=table_rows,
    source=source_rows,
    on=st.sampled_from(CONDITIONS),
    shape=st.sampled_from(sorted(SHAPES)),
    feed=st.booleans(),
    threshold=st.integers(0, 6),
)
def test_a_merge_does_what_a_loop_over_all_rows_would(
    first: list[Row],
    second: list[Row],
    source: list[Row],
    on: str,
    shape: str,
    feed: bool,
    threshold: int,
) -> None:
    table = make(shape, data(*first), data(*second), properties=FEED if feed else {})
    (
        table.merge(data(*source), on)
        .when_matched_delete("t.v = s.v")
        .when_matched_update({"v": "s.v", "p": "t.p + s.p"}, f"s.id > {threshold}")
        .when_not_matched_insert_all("s.v <> 'c'")
        .when_not_matched_by_source_update({"v": "concat(v, '?')"}, "t.v < 'b'")
        .when_not_matched_by_source_delete(f"t.id < {threshold}")
        .execute()
    )
    expected = _merged(first + second, source, threshold)
    assert stored_tuples(table, "id", "v", "p") == sorted(expected, key=row_order)
    assert table.snapshot().num_records == len(expected)


def _merged(target: list[Row], source: list[Row], threshold: int) -> list[Row]:
    by_id: dict[int | None, Row] = {row[0]: row for row in source if row[0] is not None}
    result: list[Row] = []
    for key, text, part in target:
        other = by_id.get(key)
        if other is None:
            if text is not None and text < "b":
                result.append((key, f"{text}?", part))
            elif key is None or key >= threshold:
                result.append((key, text, part))
        elif text is None or text != other[1]:
            if other[0] is not None and other[0] > threshold:
                assert part is not None
                assert other[2] is not None
                result.append((key, other[1], part + other[2]))
            else:
                result.append((key, text, part))
    there = {row[0] for row in target}
    new = (row for row in source if row[0] not in there)
    return result + [row for row in new if row[1] is not None and row[1] != "c"]


def test_conditions_that_cast_text_are_computed_wherever_the_rows_are_read() -> None:
    def texts(*numbers: int) -> pa.Table:
        return pa.table({"id": numbers, "j": [str(each) for each in numbers]})

    table = DeltaTable("", store=MemoryStore(), must_exist=False)
    for start in range(0, 60, 20):
        table.append(texts(*range(start, start + 20)))
    for turn in range(5):
        path = "CAST({}.j AS INT)"
        (
            table.merge(texts(*range(turn, 60, 7)), f"{path.format('t')} = {path.format('s')}")
            .when_matched_update({"j": "concat(t.j, ' ')"}, f"{path.format('t')} < 30")
            .when_not_matched_by_source_delete(f"{path.format('t')} = {59 - turn}")
            .execute()
        )
    found = table.snapshot().scan().to_arrow().to_pylist()
    changed = {each["id"] for each in found if each["j"].endswith(" ")}
    assert changed == {each for each in range(30) if each % 7 < 5}
    assert len(found) == 60 - sum((59 - turn - turn) % 7 != 0 for turn in range(5))


def structs(*ids: int, b: bool) -> pa.Table:
    held = [("a", pa.int64()), ("b", pa.string())] if b else [("a", pa.int64())]
    rows = [{"id": each, "s": {"a": each, "b": "kept"}} for each in ids]
    return pa.Table.from_pylist(rows, pa.schema([("id", pa.int64()), ("s", pa.struct(held))]))


def test_a_struct_that_lacks_a_field_loses_none_of_the_table() -> None:
    table = DeltaTable("memory://t", store=MemoryStore(), must_exist=False)
    table.append(structs(1, b=True))
    for clause in ("when_matched_update_all", "when_not_matched_insert_all"):
        with pytest.raises(SchemaMismatch, match=r"column s has no field b.*schema_mode"):
            getattr(table.merge(structs(1, 2, b=False), "t.id = s.id"), clause)().execute()
    merge = table.merge(structs(1, b=False), "t.id = s.id", schema_mode="merge")
    merge.when_matched_update_all().execute()
    assert table.snapshot().scan().to_arrow().to_pylist() == [{"id": 1, "s": {"a": 1, "b": "kept"}}]


def test_conditions_of_chance_are_refused() -> None:
    table = DeltaTable("memory://t", store=MemoryStore(), must_exist=False)
    table.append(data((1, "a", 1)))
    merge = table.merge(data((1, "b", 1)), "t.id = s.id AND rand() < 2")
    with pytest.raises(InvalidArgument, match=r"holds rand, which gives another answer"):
        merge.when_matched_update_all().execute()
    with pytest.raises(InvalidArgument, match=r"condition of DELETE holds uuid"):
        table.delete("uuid() > 'a'")


def test_a_condition_that_fails_on_pairs_ends_the_search_for_them_too(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ignored: list[object] = []
    monkeypatch.setattr(sys, "unraisablehook", lambda each: ignored.append(each.exc_value))
    table = DeltaTable("memory://t", store=MemoryStore(), must_exist=False)
    table.append(data((1, "a", 1)))
    source = data((1, "b", 1), (1, "c", 1))
    merge = table.merge(source, "t.id = s.id AND CAST(t.v AS INT) < s.id")
    with pytest.raises(InvalidArgument, match=r"fails on a value"):
        merge.when_matched_delete().execute()
    gc.collect()
    assert ignored == []


def merged_while_another_creates(created: pa.Table) -> DeltaTable:
    """A first merge of id 2, while whose source is read another writer creates the table."""
    store = MemoryStore()
    rows = data((2, "mine", 0))
    definition = TableDefinition(from_arrow_schema(rows.schema), cluster_by=["id"])

    def read() -> Iterator[pa.RecordBatch]:
        DeltaTable("", store=store, must_exist=False).append(created, cluster_by=["id"])
        yield from rows.to_batches()

    source = pa.RecordBatchReader.from_batches(rows.schema, read())
    table = DeltaTable("", store=store, must_exist=False)
    merge = table.merge(source, "t.id = s.id", creates=definition).when_matched_update_all()
    merge.when_not_matched_insert_all().execute()
    return table


def test_a_first_merge_goes_into_the_table_that_another_writer_creates_meanwhile() -> None:
    table = merged_while_another_creates(data((1, "theirs", 0), (2, "theirs", 0)))
    assert table.version() == 1
    assert values(table) == {1: "theirs", 2: "mine"}


def test_a_first_merge_into_a_table_that_another_writer_creates_with_other_columns_is_refused() -> (
    None
):
    with pytest.raises(SchemaMismatch, match=r"created the table with other columns[^+]*\+ v: "):
        merged_while_another_creates(pa.table({"id": [1]}))


def test_a_first_merge_that_inserts_nothing_creates_the_table() -> None:
    rows = data((2, "mine", 0))
    table = DeltaTable("", store=MemoryStore(), must_exist=False)
    definition = TableDefinition(from_arrow_schema(rows.schema), cluster_by=["id"])
    merged = table.merge(rows, "t.id = s.id", creates=definition).when_matched_delete().execute()
    assert (merged.version, merged.skipped) == (0, False)
    assert DeltaTable("", store=table.store).snapshot().num_files == 0
    assert "delta.clustering" in table.snapshot().domain_metadata()
