"""Columns whose default existing rows take when they are read, while their files stay as they are."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dagster_delta import Column
from dagster_delta.errors import (
    CommitStateUnknown,
    ConstraintViolation,
    InvalidArgument,
    SchemaMismatch,
    StorageFailure,
    UnsupportedExpression,
)
from dagster_delta.protocol.features.existing_defaults import (
    EXISTING_DEFAULT_KEY,
    EXISTING_DEFAULTS_FEATURE,
)
from dagster_delta.protocol.log.commit_file import CHECKSUM_KEY
from dagster_delta.protocol.schema import StructType
from dagster_delta.storage.memory_store import MemoryStore
from dagster_delta.table.delta_table import DeltaTable
from dagster_delta.testing.faulty_store import Fault, FaultyStore, Operation, SimulatedCrash
from tests.sample_tables import IDS, MORE, table_of
from tests.table.handles import crashing_at_third_batch, interrupted
from tests.table_rows import stored_rows

FEATURES = {"delta.columnMapping.mode": "name", "delta.enableTypeWidening": "true"}
MAPPINGS: list[dict[str, str]] = [{}, {"delta.columnMapping.mode": "name"}]
NESTED = pa.table(
    {
        "id": pa.array([1, 2], pa.int32()),
        "s": pa.array([{"a": 1}, None], pa.struct([("a", pa.int32())])),
    }
)


def paths(table: DeltaTable) -> set[str]:
    return set(table.snapshot().files()["path"].to_pylist())


def defaults_of(table: DeltaTable) -> list[str]:
    return [each.name for each in table.schema() if EXISTING_DEFAULT_KEY in each.metadata]


def lazily(table: DeltaTable, statement: str, **options: Any) -> Any:
    return table.alter(statement, existing_rows="lazy", **options)


@pytest.mark.parametrize("properties", [*MAPPINGS, {"delta.columnMapping.mode": "id"}])
def test_existing_rows_read_the_default_and_no_file_is_written(
    properties: dict[str, str], store: MemoryStore
) -> None:
    table = table_of(store, IDS, properties=properties)
    before = paths(table)
    result = table.add_column("c", "INT", nullable=False, default="7", existing_rows="lazy")
    assert paths(table) == before
    assert not result.plan.rewrites_data
    assert stored_rows(table) == [{"id": 1, "c": 7}, {"id": 2, "c": 7}]
    assert EXISTING_DEFAULTS_FEATURE in (table.protocol().reader_features or ())
    assert EXISTING_DEFAULTS_FEATURE in (table.protocol().writer_features or ())


def test_the_plan_says_that_no_file_is_written(store: MemoryStore) -> None:
    table = table_of(store, IDS)
    text = str(lazily(table, "ADD COLUMN c INT DEFAULT 7", dry_run=True))
    assert "existing rows read c as 7; their files are not rewritten | metadata only" in text
    assert "existing files are rewritten" not in text
    assert "new table feature `allowColumnDefaults`: other writers" in text
    assert f"new table feature `{EXISTING_DEFAULTS_FEATURE}`: other readers and writers" in text
    assert table.version() == 1


def test_rows_to_come_hold_what_they_bring_nulls_included(store: MemoryStore) -> None:
    table = table_of(store, IDS)
    table.add_column("c", "INT", default="7", existing_rows="lazy")
    table.append(MORE)
    table.append(pa.table({"id": pa.array([4], pa.int32()), "c": pa.array([None], pa.int32())}))
    assert stored_rows(table) == [{"id": n, "c": c} for n, c in [(1, 7), (2, 7), (3, 7), (4, None)]]
    assert stored_rows(table, where="c IS NULL") == [{"id": 4, "c": None}]


def test_the_default_is_the_one_of_the_moment_the_column_came(store: MemoryStore) -> None:
    table = table_of(store, IDS)
    lazily(table, "ADD COLUMN at TIMESTAMP DEFAULT current_timestamp(), ADD COLUMN c INT DEFAULT 1")
    first = stored_rows(table)
    table.set_default("c", "2")
    table.set_default("at", None)
    assert stored_rows(table) == first
    assert len({row["at"] for row in first}) == 1
    table.append(MORE)
    assert stored_rows(table, where="id = 3") == [{"id": 3, "at": None, "c": 2}]


@pytest.mark.parametrize(
    ("sql_type", "default", "expected"),
    [
        ("STRING", "''", ""),
        ("STRING", "'null'", "null"),
        ("BINARY", "X'00FF'", b"\x00\xff"),
        ("BOOLEAN", "false", False),
        ("FLOAT", "3.4F", 3.4000000953674316),
        ("DOUBLE", "-0.5D", -0.5),
        ("DECIMAL(10,2)", "-3.5", Decimal("-3.50")),
        ("DATE", "DATE '1969-12-31'", dt.date(1969, 12, 31)),
        ("TIMESTAMP", "TIMESTAMP '2013-01-02 03:04:05.000006+00:00'",
         dt.datetime(2013, 1, 2, 3, 4, 5, 6, dt.UTC)),
        ("TIMESTAMP_NTZ", "TIMESTAMP_NTZ '2013-01-02 03:04:05'",
         dt.datetime(2013, 1, 2, 3, 4, 5)),
        ("BIGINT", "9223372036854775807", 2**63 - 1),
    ],
)  # fmt: skip
def test_every_atomic_type_has_its_default(
    sql_type: str, default: str, expected: object, store: MemoryStore
) -> None:
    table = table_of(store, IDS)
    table.add_column("c", sql_type, default=default, existing_rows="lazy")
    assert [row["c"] for row in stored_rows(table)] == [expected, expected]
    table.materialize_defaults()
    assert [row["c"] for row in stored_rows(table)] == [expected, expected]


@pytest.mark.parametrize(
    ("narrow", "default", "wide", "expected"),
    [
        ("INT", "7", "BIGINT", 7),
        ("INT", "7", "DOUBLE", 7.0),
        ("INT", "7", "DECIMAL(12,2)", Decimal("7.00")),
        ("FLOAT", "3.4F", "DOUBLE", 3.4000000953674316),
        ("DATE", "DATE '2013-01-02'", "TIMESTAMP_NTZ", dt.datetime(2013, 1, 2)),
        ("DECIMAL(4,1)", "1.5", "DECIMAL(10,3)", Decimal("1.500")),
    ],
)
def test_a_widened_column_reads_its_default_in_the_new_type(
    narrow: str, default: str, wide: str, expected: object, store: MemoryStore
) -> None:
    table = table_of(store, IDS, properties=FEATURES)
    table.add_column("c", narrow, default=default, existing_rows="lazy")
    table.append(MORE)
    table.widen_column("c", wide, enable_features=True)
    assert [row["c"] for row in stored_rows(table)] == [expected] * 3
    table.rename_column("c", "d")
    assert [row["d"] for row in stored_rows(table)] == [expected] * 3
    assert len(stored_rows(table, where="d IS NOT NULL")) == 3


@pytest.mark.parametrize("properties", MAPPINGS)
def test_a_field_of_a_struct_has_its_default_where_the_struct_is(
    properties: dict[str, str], store: MemoryStore
) -> None:
    table = table_of(store, NESTED, properties=properties)
    lazily(table, "ADD COLUMN s.x INT DEFAULT 5")
    table.append(NESTED)
    assert [row["s"] for row in stored_rows(table, where="s IS NOT NULL")] == [
        {"a": 1, "x": 5},
        {"a": 1, "x": None},
    ]
    assert stored_rows(table, where="s.x = 5") == [{"id": 1, "s": {"a": 1, "x": 5}}]
    assert stored_rows(table, where="s.x = 6") == []
    assert len(stored_rows(table, where="s.x IS NULL")) == 3
    before = stored_rows(table)
    table.materialize_defaults()
    assert stored_rows(table) == before


def test_a_field_is_given_a_default_for_existing_rows_alone(store: MemoryStore) -> None:
    table = table_of(store, NESTED)
    with pytest.raises(InvalidArgument, match='existing_rows="lazy"'):
        table.alter("ADD COLUMN s.x INT DEFAULT 5")


FILTERS = [
    "c = 7",
    "c = 8",
    "c <> 7",
    "c > 7",
    "c >= 7 AND id = 1",
    "c IS NULL",
    "c IS NOT NULL",
    "c IN (7, 9)",
    "coalesce(c, 0) = 7",
    "c = 7 OR id = 2",
    "NOT (c = 7)",
    "c < 7 OR c IS NULL",
]


@pytest.mark.parametrize("where", FILTERS)
@pytest.mark.parametrize("properties", MAPPINGS)
def test_no_filter_skips_a_file_wrongly(
    properties: dict[str, str], where: str, store: MemoryStore
) -> None:
    found = []
    for existing in ("lazy", "rewrite"):
        table = table_of(MemoryStore(), IDS, MORE, properties=properties)
        table.alter("ADD COLUMN c INT DEFAULT 7", existing_rows=existing)
        for value in (7, 9, None):
            table.append(pa.table({"id": [10], "c": pa.array([value], pa.int32())}))
        found.append(stored_rows(table, where=where))
    assert found[0] == found[1]


def test_a_file_of_other_values_is_not_decoded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from dagster_delta.parquet import opened_file

    table = DeltaTable.create(str(tmp_path), IDS.schema)
    table.append(IDS)
    table.add_column("c", "INT", default="7", existing_rows="lazy")
    decoded: list[int] = []
    decode = opened_file.OpenedFile.decode

    def note(self: Any, group: int, columns: list[int]) -> Any:
        decoded.extend(columns)
        return decode(self, group, columns)

    monkeypatch.setattr(opened_file.OpenedFile, "decode", note)
    assert table.snapshot().scan(where="c > 7").to_arrow().num_rows == 0
    assert decoded == []
    assert table.snapshot().scan(where="c >= 7").to_arrow().num_rows == 2
    assert decoded != []


def test_an_empty_table_needs_no_feature(store: MemoryStore) -> None:
    table = DeltaTable.create("", IDS.schema, store=store)
    table.add_column("c", "INT", nullable=False, default="7", existing_rows="lazy")
    assert table.protocol().reader_features is None
    table.append(IDS)
    assert [row["c"] for row in stored_rows(table)] == [7, 7]


def test_a_constraint_sees_the_default(store: MemoryStore) -> None:
    table = table_of(store, IDS)
    with pytest.raises(ConstraintViolation):
        lazily(table, "ADD COLUMN c INT DEFAULT 7, ADD CONSTRAINT big CHECK (c > 7)")
    lazily(table, "ADD COLUMN c INT DEFAULT 7, ADD CONSTRAINT there CHECK (c IS NOT NULL)")
    table.set_nullable("c", False)
    with pytest.raises(ConstraintViolation):
        table.add_constraint("big", "c > 7")
    assert stored_rows(table) == [{"id": 1, "c": 7}, {"id": 2, "c": 7}]


@pytest.mark.parametrize("properties", MAPPINGS)
def test_rows_that_change_take_the_default_into_their_new_files(
    properties: dict[str, str], store: MemoryStore
) -> None:
    for vectors in ("true", "false"):
        options = {**properties, "delta.enableDeletionVectors": vectors}
        table = table_of(MemoryStore(), IDS, MORE, properties=options)
        table.add_column("c", "INT", default="7", existing_rows="lazy")
        table.update(set={"c": "c + 1"}, where="id = 1")
        assert stored_rows(table) == [{"id": n, "c": c} for n, c in [(1, 8), (2, 7), (3, 7)]]
        table.delete("c = 7 AND id = 2")
        source = pa.table({"id": pa.array([3, 4], pa.int32()), "d": [1, 2]})
        merge = table.merge(source, on="t.id = s.id")
        merge.when_matched_update({"c": "t.c + s.d"}).when_not_matched_insert(
            {"id": "s.id"}
        ).execute()
        assert stored_rows(table) == [{"id": n, "c": c} for n, c in [(1, 8), (3, 8), (4, 7)]]


def test_compaction_takes_the_default_along(store: MemoryStore) -> None:
    table = table_of(store, IDS, MORE, properties=FEATURES)
    table.add_column("c", "INT", default="7", existing_rows="lazy")
    table.append(pa.table({"id": [4], "c": [9]}))
    before = stored_rows(table)
    table.optimize()
    assert stored_rows(table) == before
    assert table.snapshot().num_files == 1
    table.optimize(zorder_by=["c"])
    assert stored_rows(table, where="c = 9") == [{"id": 4, "c": 9}]
    plan = table.materialize_defaults(dry_run=True).plan
    assert not plan.rewrites_data


def test_a_partitioned_table_keeps_its_partitions(store: MemoryStore) -> None:
    data = pa.table({"id": pa.array([1, 2], pa.int32()), "p": ["a", None]})
    table = table_of(store, data, partition_by=["p"])
    table.add_column("c", "STRING", default="'x'", existing_rows="lazy")
    assert stored_rows(table, where="p = 'a' AND c = 'x'") == [{"id": 1, "p": "a", "c": "x"}]
    before = stored_rows(table)
    table.materialize_defaults()
    assert stored_rows(table) == before


@pytest.mark.parametrize("properties", MAPPINGS)
def test_a_column_that_comes_again_has_its_new_default(
    properties: dict[str, str], store: MemoryStore
) -> None:
    table = table_of(store, IDS, properties=properties)
    table.add_column("c", "INT", default="1", existing_rows="lazy")
    table.append(MORE)
    if properties:
        table.drop_column("c")
        expected = [1, 2, 3]
    else:
        table.restore(version=1)
        expected = [1, 2]
    table.add_column("c", "INT", default="2", existing_rows="lazy")
    assert stored_rows(table) == [{"id": n, "c": 2} for n in expected]


def test_a_file_with_an_unknown_column_of_that_name_is_told_of(tmp_path: Path) -> None:
    table = DeltaTable.create(str(tmp_path), [Column("id", "INT"), Column("C", "INT")])
    table.append(pa.table({"id": [1], "C": [10]}))
    commit = tmp_path / "_delta_log" / f"{0:020}.json"
    known = StructType((table.schema().field("id"),)).to_json()
    lines = [msgspec.json.decode(line) for line in commit.read_bytes().splitlines()]
    for line in lines:
        if "metaData" in line:
            line["metaData"]["schemaString"] = known
        line.get("commitInfo", {}).pop(CHECKSUM_KEY, None)
    commit.write_bytes(b"\n".join(map(msgspec.json.encode, lines)))
    for each in (tmp_path / "_delta_log").glob("*.crc"):
        each.unlink()
    table = DeltaTable(str(tmp_path))
    for dry_run in (True, False):
        with pytest.raises(InvalidArgument, match="a column called c that the table does not know"):
            table.add_column("c", "INT", default="1", existing_rows="lazy", dry_run=dry_run)
    lazily(
        table, "SET TBLPROPERTIES ('delta.columnMapping.mode' = 'name'), ADD COLUMN c INT DEFAULT 1"
    )
    assert table.snapshot().scan().to_arrow().to_pylist() == [{"id": 1, "c": 1}]


def test_time_travel_and_restore_see_each_version_as_it_was(store: MemoryStore) -> None:
    table = table_of(store, IDS, properties=FEATURES)
    table.add_column("c", "INT", default="7", existing_rows="lazy")
    lazy = table.version()
    table.append(MORE)
    table.materialize_defaults()
    old = table.snapshot(version=lazy).scan().to_arrow().to_pylist()
    assert old == [{"id": 1, "c": 7}, {"id": 2, "c": 7}]
    assert table.snapshot(version=1).scan().to_arrow().to_pylist() == IDS.to_pylist()
    assert defaults_of(table) == []
    table.restore(version=lazy)
    assert stored_rows(table) == old
    assert defaults_of(table) == ["c"]
    assert EXISTING_DEFAULTS_FEATURE in (table.protocol().reader_features or ())
    table.materialize_defaults()
    assert stored_rows(table) == old


def test_the_change_feed_shows_the_default_across_all_of_it(store: MemoryStore) -> None:
    table = table_of(store, IDS, MORE, properties={"delta.enableChangeDataFeed": "true"})
    table.add_column("c", "INT", default="7", existing_rows="lazy")
    start = table.version() + 1
    table.delete("id = 3")
    table.update(set={"id": "id + 10"}, where="id = 1")
    table.materialize_defaults()
    table.append(MORE)
    assert defaults_of(table) == []
    changes = table.changes(starting_version=start).to_arrow().to_pylist()
    seen = sorted((each["_change_type"], each["id"], each["c"]) for each in changes)
    assert seen == [
        ("delete", 3, 7),
        ("insert", 3, 7),
        ("update_postimage", 11, 7),
        ("update_preimage", 1, 7),
    ]
    found = table.changes(starting_version=start, where="c <> 7").to_arrow()
    assert found.num_rows == 0


def test_a_feed_across_two_defaults_of_one_name_is_refused(store: MemoryStore) -> None:
    table = table_of(store, IDS, properties={"delta.enableChangeDataFeed": "true"})
    table.add_column("c", "INT", default="1", existing_rows="lazy")
    start = table.version()
    table.restore(version=1)
    table.add_column("c", "INT", default="2", existing_rows="lazy")
    with pytest.raises(SchemaMismatch):
        table.changes(starting_version=start).to_arrow()


def test_a_column_change_converts_the_default(store: MemoryStore) -> None:
    table = table_of(store, IDS, properties={"delta.columnMapping.mode": "name"})
    table.add_column("c", "INT", default="7", existing_rows="lazy")
    table.append(MORE)
    table.change_column("c", "STRING", enable_features=True)
    assert [row["c"] for row in stored_rows(table)] == ["7", "7", "7"]
    assert defaults_of(table) == []
    assert not table.materialize_defaults(dry_run=True).plan.rewrites_data


def test_other_rewrites_see_the_default(store: MemoryStore) -> None:
    table = table_of(store, IDS, properties=FEATURES)
    table.add_column("c", "INT", default="7", existing_rows="lazy")
    table.add_column("d", "INT", default="8")
    assert stored_rows(table) == [{"id": n, "c": 7, "d": 8} for n in (1, 2)]
    assert not table.materialize_defaults(dry_run=True).plan.rewrites_data
    table.drop_feature("columnMapping")
    assert stored_rows(table) == [{"id": n, "c": 7, "d": 8} for n in (1, 2)]


def test_another_table_of_the_schema_takes_no_default_along(store: MemoryStore) -> None:
    table = table_of(store, IDS)
    table.add_column("c", "INT", default="7", existing_rows="lazy")
    other = DeltaTable.create("", table.schema(), store=MemoryStore())
    assert defaults_of(other) == []
    assert other.protocol().reader_features is None
    table.overwrite(MORE, schema_mode="overwrite")
    assert defaults_of(table) == []


@pytest.mark.parametrize(
    ("statement", "error", "match"),
    [
        ("ADD COLUMN c ARRAY<INT> DEFAULT array(1)", InvalidArgument, "atomic type"),
        ("ADD COLUMN c STRING DEFAULT uuid()", UnsupportedExpression, "computed once"),
        ("ADD COLUMN c TINYINT DEFAULT 1000", InvalidArgument, "not a value of type byte"),
    ],
)
def test_what_the_log_cannot_hold_is_refused(
    statement: str, error: type[Exception], match: str, store: MemoryStore
) -> None:
    table = table_of(store, IDS)
    with pytest.raises(error, match=match):
        lazily(table, statement)
    assert table.version() == 1


def test_iceberg_compatibility_keeps_it_out(store: MemoryStore) -> None:
    table = table_of(store, IDS, properties={"delta.enableIcebergCompatV2": "true"})
    with pytest.raises(InvalidArgument, match="materialize_defaults"):
        table.add_column("c", "INT", default="7", existing_rows="lazy")


# materialize_defaults


def test_only_files_without_the_column_are_written_again(store: MemoryStore) -> None:
    table = table_of(store, IDS)
    table.add_column("c", "INT", default="7", existing_rows="lazy")
    table.append(MORE)
    old, new = paths(table), paths(table)
    old = set(table.snapshot(version=1).files()["path"].to_pylist())
    plan = table.materialize_defaults(dry_run=True)
    assert plan.plan.affected_files == 1
    assert "the files that use the feature (1 file, " in plan.to_markdown()
    table.materialize_defaults()
    assert paths(table) & old == set()
    assert new - old <= paths(table)
    assert EXISTING_DEFAULTS_FEATURE not in (table.protocol().reader_features or ())
    assert table.materialize_defaults().skipped


def test_both_commits_say_who_asked_and_what_was_written(store: MemoryStore) -> None:
    table = table_of(store, IDS)
    table.add_column("c", "INT", default="7", existing_rows="lazy")
    table.materialize_defaults(commit_info={"team": "lake"})
    commits = [commit for commit in table.history() if "team" in commit.commit_info]
    dropped, rewritten = commits
    assert (dropped.operation, rewritten.operation) == ("DROP FEATURE", "DROP FEATURE")
    metrics = rewritten.operation_metrics
    assert (int(metrics["numRemovedFiles"]), int(metrics["numOutputRows"])) == (1, IDS.num_rows)


def test_the_feature_is_dropped_by_sql(store: MemoryStore) -> None:
    table = table_of(store, IDS)
    table.add_column("c", "INT", default="7", existing_rows="lazy")
    table.alter(f"ALTER TABLE t DROP FEATURE '{EXISTING_DEFAULTS_FEATURE}'")
    assert stored_rows(table) == [{"id": 1, "c": 7}, {"id": 2, "c": 7}]
    assert not table.snapshot().configuration.supports(EXISTING_DEFAULTS_FEATURE)


def test_the_names_of_the_feature_may_stand_without_quotes(store: MemoryStore) -> None:
    table = table_of(store, IDS)
    table.add_column("c", "INT", default="7", existing_rows="lazy")
    table.alter("DROP FEATURE dagsterDelta.existingDefaults")
    assert not table.snapshot().configuration.supports(EXISTING_DEFAULTS_FEATURE)


@pytest.mark.usefixtures("one_file_a_batch")
def test_next_call_materializes_defaults_after_a_crash(store: MemoryStore) -> None:
    table = table_of(store, *[IDS] * 4)
    table.add_column("c", "INT", default="7", existing_rows="lazy")
    with crashing_at_third_batch(store) as (crashing, written):
        crashing.materialize_defaults()
    assert [row["c"] for row in stored_rows(table)] == [7] * 8
    table = DeltaTable("", store=store)
    table.append(MORE)
    table.materialize_defaults()
    assert len(written) == 3
    assert not written & paths(table)
    assert [row["c"] for row in stored_rows(table)] == [7] * 9


@pytest.mark.usefixtures("one_file_a_batch")
@pytest.mark.parametrize("kind", ["crash_before", "crash_after", "lose_reply", "refuse"])
@pytest.mark.parametrize("operation", ["put", "put_if_absent", "open_output"])
def test_whatever_happens_rows_stay_and_a_second_call_finishes(
    kind: Any, operation: Operation, store: MemoryStore
) -> None:
    table = table_of(store, IDS, MORE)
    table.add_column("c", "INT", default="7", existing_rows="lazy")
    expected = stored_rows(table)
    for occurrence in range(1, 12):
        faulty = FaultyStore(store, [Fault(kind, operation, occurrence=occurrence)])
        try:
            DeltaTable("", store=faulty).materialize_defaults()
        except (StorageFailure, CommitStateUnknown, SimulatedCrash):
            assert stored_rows(table) == expected
            continue
        break
    table = DeltaTable("", store=store)
    table.materialize_defaults()
    assert stored_rows(table) == expected
    assert not table.snapshot().configuration.supports(EXISTING_DEFAULTS_FEATURE)


# Equal to a rewrite, whatever is done


OPERATIONS: dict[str, Any] = {
    "append": lambda t: t.append(pa.table({"id": pa.array([5, 6], pa.int32())})),
    "append_values": lambda t: t.append(pa.table({"id": [8, 9], "c": [8, None]})),
    "delete_default": lambda t: t.delete("c = 7 AND id % 2 = 0"),
    "delete_others": lambda t: t.delete("c <> 7"),
    "delete_nulls": lambda t: t.delete("c IS NULL"),
    "update": lambda t: t.update(set={"c": "c + id"}, where="c = 7 AND id = 1"),
    "update_id": lambda t: t.update(set={"id": "id + 1"}, where="c >= 7"),
    "merge": lambda t: (
        t.merge(pa.table({"k": [7, 11]}), on="t.c = s.k")
        .when_not_matched_insert({"id": "s.k", "c": "s.k"})
        .execute()
    ),
    "optimize": lambda t: t.optimize(),
    "zorder": lambda t: t.optimize(zorder_by=["c", "id"]),
    "set_default": lambda t: t.set_default("c", "70"),
    "drop_default": lambda t: t.set_default("c", None),
    "widen": lambda t: t.widen_column("c", "BIGINT"),
    "overwrite_part": lambda t: t.overwrite(pa.table({"id": [3], "c": [3]}), where="c = 3"),
    "second": lambda t: t.add_column("e", "INT", if_not_exists=True),
    "materialize": lambda t: t.materialize_defaults(),
}
"""What may be done to a table; each leaves the rows of a lazy one equal to those of the other."""


@settings(max_examples=12)
@given(
    names=st.lists(st.sampled_from(sorted(OPERATIONS)), max_size=6),
    vectors=st.booleans(),
    mapped=st.booleans(),
)
def test_a_lazy_default_is_what_a_rewrite_would_have_written(
    names: list[str], vectors: bool, mapped: bool
) -> None:
    properties = {"delta.enableTypeWidening": "true"}
    if vectors:
        properties["delta.enableDeletionVectors"] = "true"
    if mapped:
        properties["delta.columnMapping.mode"] = "name"
    tables = []
    for existing in ("lazy", "rewrite"):
        table = table_of(MemoryStore(), IDS, MORE, properties=properties)
        table.alter("ADD COLUMN c INT DEFAULT 7", existing_rows=existing)
        tables.append(table)
    for name in names:
        for table in tables:
            OPERATIONS[name](table)
        for where in (None, "c = 7", "c <> 7", "c IS NULL"):
            lazy, written = (stored_rows(table, where=where) for table in tables)
            assert lazy == written


def test_defaults_that_another_process_materializes_meanwhile_are_done(store: MemoryStore) -> None:
    table_of(store, IDS).add_column("c", "INT", default="7", existing_rows="lazy")
    late = interrupted(store, lambda other: other.materialize_defaults())
    late.materialize_defaults()
    assert not late.snapshot().configuration.supports(EXISTING_DEFAULTS_FEATURE)
    assert [row["c"] for row in stored_rows(late)] == [7, 7]
