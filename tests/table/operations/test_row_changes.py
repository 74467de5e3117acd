"""Deleting and updating rows: what stays, what the log says, and who may do it at once."""

from __future__ import annotations

import datetime as dt
import io
import json
from decimal import Decimal
from typing import Any, Literal

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyroaring import BitMap64

from dagster_delta.engines.arrow.engine import ArrowEngine
from dagster_delta.errors import (
    CommitConflict,
    ConcurrentAppend,
    ConcurrentDeleteRead,
    ConstraintViolation,
    InvalidArgument,
    InvalidCast,
    InvalidTable,
    SchemaMismatch,
    StorageFailure,
    TableNotFound,
    UnsupportedExpression,
)
from dagster_delta.parquet.deletion_vectors import DeletionVectorLoader
from dagster_delta.protocol.log.paths import commit_path
from dagster_delta.storage.memory_store import MemoryStore
from dagster_delta.table.delta_table import DeltaTable
from dagster_delta.table.operations.change_rows import change_rows
from dagster_delta.table.read.file_planner import select_rows
from dagster_delta.table.transaction.file_actions import added_again, store_deletion_vectors
from dagster_delta.testing.faulty_store import Fault, FaultyStore
from tests.sample_tables import FEED, VECTORS, numbered
from tests.table.handles import data_files, reopened
from tests.table.logs import actions
from tests.table_rows import ids_of

both_ways = pytest.mark.parametrize("properties", [{}, VECTORS], ids=["rewrite", "vectors"])


def make(
    properties: dict[str, str] | None = None,
    *,
    parts: tuple[range, ...] = (range(10), range(10, 20)),
    partition_by: tuple[str, ...] = (),
    store: MemoryStore | None = None,
) -> DeltaTable:
    """A table with one file per part, or one per part and partition."""
    table = DeltaTable("", store=store or MemoryStore(), must_exist=False)
    for part in parts:
        table.append(numbered(*part), partition_by=partition_by, properties=properties)
    return table


def values(table: DeltaTable, column: str = "v") -> dict[int, Any]:
    found = table.snapshot().scan().to_arrow()
    return dict(zip(found["id"].to_pylist(), found[column].to_pylist(), strict=True))


def changes(table: DeltaTable) -> list[tuple[int, str, str]]:
    """Id, value and change type of every row in the change data files of the last commit."""
    found = []
    for action in actions(table)["cdc"]:
        assert action["path"].startswith("_change_data/")
        assert action["dataChange"] is False
        data = pq.read_table(io.BytesIO(table.store.read(action["path"])), partitioning=None)
        found += [(row["id"], row["v"], row["_change_type"]) for row in data.to_pylist()]
    return sorted(found)


def test_deletion_vectors_leave_the_data_files_alone() -> None:
    table = make(VECTORS)
    before = data_files(table)
    table.delete("id = 3")
    (vector,) = data_files(table) - before
    assert vector.startswith("deletion_vector_")
    found = actions(table)
    (add,), (remove,) = found["add"], found["remove"]
    assert add["path"] == remove["path"]
    assert "deletionVector" not in remove
    assert add["deletionVector"]["storageType"] == "u"
    assert add["deletionVector"]["cardinality"] == 1
    statistics = json.loads(add["stats"])
    assert statistics["numRecords"] == 10
    assert statistics["tightBounds"] is False
    assert statistics["minValues"]["id"] == 0
    assert add["dataChange"] is remove["dataChange"] is True


@pytest.mark.parametrize(
    "change",
    [
        lambda table: table.delete("id = 3"),
        lambda table: table.update({"v": "0"}, "id = 3"),
        lambda table: table.update({"v": "0"}),
        lambda table: table.merge(numbered(3), "t.id = s.id").when_matched_update_all().execute(),
    ],
)
def test_a_file_with_other_rows_than_the_log_counts_is_not_rewritten(change: Any) -> None:
    table = make()
    sound, transaction = table.version(), table.transaction()
    first, _ = added_again(table.snapshot().live_files(), data_change=False)
    transaction.stage_readded([msgspec.structs.replace(first, stats='{"numRecords":12}')])
    transaction.commit("COMPUTE STATS")
    files = data_files(table)
    for act in (change, ids_of):
        with pytest.raises(InvalidTable, match=r"footer counts 10, .*the log counts 12"):
            act(reopened(table))
    assert data_files(table) == files
    assert ids_of(reopened(table), sound) == list(range(20))


def test_vectors_of_one_statement_are_packed_into_one_file() -> None:
    table = make(VECTORS, parts=(range(700), range(700, 1400), range(1400, 2100)))
    table.delete("id % 7 = 1 OR id = 250")
    table.delete("id = 0")
    vectors = [each for each in data_files(table) if each.endswith(".bin")]
    assert len(vectors) == 2
    assert all(each.startswith("deletion_vector_") for each in vectors)
    (add,), (remove,) = actions(table)["add"], actions(table)["remove"]
    assert add["deletionVector"]["cardinality"] == remove["deletionVector"]["cardinality"] + 1
    assert remove["deletionVector"]["offset"] == 1
    gone = {each for each in range(2100) if each % 7 == 1} | {250, 0}
    assert ids_of(table) == sorted(set(range(2100)) - gone)


def test_vectors_are_spread_over_files_once_they_are_large() -> None:
    table = make(VECTORS)
    vectors = [BitMap64(range(start, 1000, 3)) for start in range(5)]
    made = store_deletion_vectors(
        table.store, table.snapshot().configuration, vectors, file_bytes=1800
    )
    assert len(made.paths) == 3
    assert set(made.paths) <= data_files(table)
    loader = DeletionVectorLoader(table.store, made.descriptors)
    loaded = [loader.load(each, data_file="f", num_rows=1000) for each in made.descriptors]
    assert loaded == vectors


@both_ways
def test_what_the_log_proves_is_deleted_without_reading(properties: dict[str, str]) -> None:
    store = MemoryStore()
    table = make(properties, partition_by=("p",), store=store)
    for path in data_files(table):
        store.delete([path])
    result = table.delete("p = 1")
    assert result.metrics["numDeletedRows"] == 10
    assert table.delete("id >= 10 AND p = 0").metrics["numDeletedRows"] == 5
    assert table.snapshot().num_records == 5
    assert table.delete().metrics["numDeletedRows"] == 5
    assert table.snapshot().num_files == 0


@both_ways
def test_only_the_columns_of_the_predicate_are_read(
    properties: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from dagster_delta.parquet.opened_file import OpenedFile

    decoded: list[list[int]] = []
    decode = OpenedFile.decode

    def spy(self: OpenedFile, group: int, parquet_columns: list[int]) -> Any:
        decoded.append(parquet_columns)
        return decode(self, group, parquet_columns)

    table = make(properties)
    monkeypatch.setattr(OpenedFile, "decode", spy)
    table.delete("v LIKE '%5' AND v <> 'v15'")
    assert decoded[:2] == [[1], [1]]
    assert decoded[2:] == ([] if properties else [[0, 1, 2]])


def test_deleting_everything_reads_no_file() -> None:
    store = MemoryStore()
    table = make(store=store)
    store.delete(list(data_files(table)))
    result = table.delete()
    assert result.metrics["numDeletedRows"] == 20
    assert actions(table)["commitInfo"][0]["operationParameters"] == {"predicate": '["true"]'}


def test_files_without_statistics_are_counted_by_their_footer() -> None:
    table = make({**VECTORS, "delta.dataSkippingNumIndexedCols": "0"})
    snapshot = table.snapshot()
    log = commit_path(0)
    lines = []
    for line in table.store.read(log).splitlines():
        action = json.loads(line)
        if "add" in action:
            del action["add"]["stats"]
        lines.append(json.dumps(action).encode())
    store = MemoryStore()
    for each in table.store.list_recursive(""):
        if not each.path.endswith(".crc"):
            store.put(each.path, table.store.read(each.path))
    store.put(log, b"\n".join(lines))
    bare = DeltaTable("", store=store)
    assert bare.snapshot().num_records is None
    assert bare.delete("id = 3").metrics["numDeletedRows"] == 1
    (add,) = actions(bare)["add"]
    assert json.loads(add["stats"]) == {"numRecords": 10, "tightBounds": False}
    assert bare.delete("id < 10").metrics["numDeletedRows"] == 9
    assert actions(bare)["add"] == []
    assert snapshot.num_records == 20


def test_statistics_keep_every_digit_when_bounds_become_wide() -> None:
    precise = pa.table(
        {"d": pa.array([1, 2], pa.decimal128(38, 0)), "x": [1e300, 0.1 + 0.2]},
    ).set_column(0, "d", pa.array([10**37 + 1, 10**37 + 3], pa.decimal128(38, 0)))
    table = DeltaTable("", store=MemoryStore(), must_exist=False)
    table.append(precise, properties=VECTORS)
    before = json.loads(actions(table)["add"][0]["stats"], parse_int=str, parse_float=str)
    table.delete("x < 1")
    after = json.loads(actions(table)["add"][0]["stats"], parse_int=str, parse_float=str)
    assert after == {**before, "tightBounds": False}
    assert after["maxValues"]["d"] == str(10**37 + 3)


@both_ways
def test_update_without_predicate_changes_every_row(properties: dict[str, str]) -> None:
    table = make(properties)
    table.delete("id = 5")
    table.update({"id": "id + 100"})
    assert ids_of(table) == [each + 100 for each in range(20) if each != 5]
    assert actions(table)["commitInfo"][0]["operationParameters"] == {"predicate": "[]"}


@both_ways
def test_values_are_computed_from_the_row_as_it_was(properties: dict[str, str]) -> None:
    table = make(properties, parts=(range(3),))
    table.update({"id": "CAST(p AS BIGINT)", "p": "CAST(id AS INT)"}, "id = 2")
    assert values(table, "p") == {0: 2, 1: 1} or ids_of(table) == [0, 0, 1]


@both_ways
def test_rows_move_to_the_partition_they_now_belong_to(properties: dict[str, str]) -> None:
    table = make(properties, partition_by=("p",))
    table.update({"p": "NULL"}, "id = 4")
    table.update({"p": "p + 1"}, "p IS NOT NULL AND id > 10")
    partitions = {
        each["partitionValues"]["p"]: json.loads(each["stats"])["numRecords"]
        for each in actions(table)["add"]
        if "deletionVector" not in each
    }
    assert partitions["1"] + partitions["2"] >= 9
    found = values(table, "p")
    assert found[4] is None
    assert found[11] == 2
    assert found[12] == 1
    assert found[3] == 1
    assert table.snapshot().scan(where="p IS NULL").to_arrow()["id"].to_pylist() == [4]


def test_copy_on_write_keeps_the_rows_in_their_order() -> None:
    table = make(parts=(range(20),))
    table.update({"v": "'x'"}, "id % 3 = 0")
    assert table.snapshot().scan().to_arrow()["id"].to_pylist() == list(range(20))


@pytest.mark.parametrize(
    ("column", "sql", "expected"),
    [
        ("i", "'5'", 5),
        ("i", "7.9D", 7),
        ("t", "i + 1", 2),
        ("d", "'2021-05-05'", dt.date(2021, 5, 5)),
        ("s", "i", "1"),
        ("s", "NULL", None),
        ("s", "d", "2020-01-01"),
        ("n", "12.345", 12.35),
    ],
)
def test_values_are_cast_to_the_type_of_their_column(
    column: str, sql: str, expected: object
) -> None:
    data = pa.table(
        {
            "i": pa.array([1], pa.int32()),
            "t": pa.array([1], pa.int8()),
            "d": [dt.date(2020, 1, 1)],
            "s": ["a"],
            "n": pa.array([Decimal(1)], pa.decimal128(20, 2)),
        }
    )
    table = DeltaTable("", store=MemoryStore(), must_exist=False)
    table.append(data)
    table.update({column: sql})
    (found,) = table.snapshot().scan().to_arrow()[column].to_pylist()
    assert (float(found) if column == "n" else found) == expected


@both_ways
@pytest.mark.parametrize(
    ("values", "where", "error"),
    [
        ({}, None, InvalidArgument),
        ({"nothing": "1"}, None, SchemaMismatch),
        ({"v": "nothing"}, None, SchemaMismatch),
        ({"v": "v +"}, None, InvalidArgument),
        ({"v": 5}, None, InvalidArgument),
        ({"v": "'a'", "V": "'b'"}, None, InvalidArgument),
        ({"id + 1": "1"}, None, InvalidArgument),
        ({"p": "CAST(id AS BIGINT) * 10000000000"}, "id > 0", InvalidCast),
        ({"id": "v"}, "id = 3", InvalidCast),
        ({"id": "1 / 0"}, "id = 3", InvalidArgument),
        ({"v": "'x'"}, "v", InvalidArgument),
        ({"v": "'x'"}, "java_method(v, v) = 1", UnsupportedExpression),
        ({"v": "array_join(sequence(1, 3), v)"}, None, UnsupportedExpression),
    ],
)
def test_an_update_that_makes_no_sense_leaves_nothing_behind(
    properties: dict[str, str], values: dict[str, Any], where: str | None, error: type[Exception]
) -> None:
    table = make(properties)
    before = data_files(table)
    with pytest.raises(error):
        table.update(values, where)
    assert data_files(table) == before
    assert table.refresh().version == 1


@both_ways
def test_constraints_bind_the_new_rows_alone(properties: dict[str, str]) -> None:
    schema = pa.schema([pa.field("id", pa.int64(), nullable=False), pa.field("v", pa.string())])
    store = MemoryStore()
    table = DeltaTable.create(
        "", schema, properties={**properties, "delta.constraints.small": "id < 100"}, store=store
    )
    table.append(pa.table({"id": [1, 2], "v": ["a", "b"]}))
    before = data_files(table)
    with pytest.raises(ConstraintViolation, match="small"):
        table.update({"id": "id + 99"}, "id = 1")
    with pytest.raises(ConstraintViolation, match="NOT NULL"):
        table.update({"id": "NULL"}, "v = 'b'")
    assert data_files(table) == before
    table.update({"id": "id + 97"})
    assert ids_of(table) == [98, 99]


def test_a_table_that_is_not_there_is_not_changed() -> None:
    table = DeltaTable("", store=MemoryStore(), must_exist=False)
    with pytest.raises(TableNotFound):
        table.delete()
    with pytest.raises(TableNotFound):
        table.update({"v": "1"})


def test_deletion_vectors_that_are_switched_off_again_are_honoured() -> None:
    table = make(VECTORS)
    table.delete("id IN (3, 4)")
    off = dict(table.metadata().configuration) | {"delta.enableDeletionVectors": "false"}
    transaction = table.transaction()
    current = table.snapshot().configuration
    transaction.stage_configuration(
        type(current)(
            current.protocol, msgspec.structs.replace(current.metadata, configuration=off)
        )
    )
    transaction.commit("SET TBLPROPERTIES")
    result = table.delete("id = 5")
    assert result.metrics["numDeletedRows"] == 1
    assert result.metrics["numCopiedRows"] == 7
    assert result.metrics["numDeletionVectorsRemoved"] == 1
    assert ids_of(table) == [each for each in range(20) if each not in (3, 4, 5)]


def test_predicates_never_see_deleted_rows() -> None:
    table = make(VECTORS, parts=(range(5),))
    table.delete("id = 0")
    table.delete("10 / id > 4")
    assert ids_of(table) == [3, 4]
    table.update({"p": "CAST(10 / id AS INT)"})
    assert values(table, "p") == {3: 3, 4: 2}


def test_metrics_of_deletion_vectors_are_counted_as_the_reference_does() -> None:
    table = make(VECTORS)
    names = ("Added", "Updated", "Removed")
    expected = [("id = 3", (1, 0, 0)), ("id % 10 = 4", (2, 1, 1)), ("id < 10", (0, 0, 1))]
    for where, counts in expected:
        metrics = table.delete(where).metrics
        assert tuple(metrics[f"numDeletionVectors{each}"] for each in names) == counts
    assert metrics["numRemovedFiles"] == 1
    assert metrics["numDeletedRows"] == 8


# The change data feed


def test_deletes_by_vectors_need_no_change_data() -> None:
    table = make({**VECTORS, **FEED})
    table.delete("id IN (3, 13)")
    assert actions(table)["cdc"] == []


def test_whole_files_need_no_change_data() -> None:
    table = make(FEED)
    table.delete("id < 10")
    assert actions(table)["cdc"] == []


def test_copy_on_write_records_all_deleted_rows_whole_files_included() -> None:
    table = make(FEED)
    result = table.delete("id < 11")
    assert changes(table) == sorted((each, f"v{each}", "delete") for each in range(11))
    assert result.metrics["numAddedChangeFiles"] == len(actions(table)["cdc"])


@both_ways
def test_updates_record_rows_as_they_were_and_as_they_are(properties: dict[str, str]) -> None:
    table = make({**properties, **FEED})
    table.update({"v": "'new'"}, "id IN (3, 14)")
    assert changes(table) == [
        (3, "new", "update_postimage"),
        (3, "v3", "update_preimage"),
        (14, "new", "update_postimage"),
        (14, "v14", "update_preimage"),
    ]


def test_change_data_lies_in_the_partition_of_each_image() -> None:
    table = make(FEED, partition_by=("p",))
    table.update({"p": "7"}, "id = 4")
    cdc = sorted(actions(table)["cdc"], key=lambda each: each["path"])
    assert [each["partitionValues"] for each in cdc] == [{"p": "0"}, {"p": "7"}]
    assert cdc[0]["path"].startswith("_change_data/p=0/cdc-")


@pytest.mark.parametrize("mode", ["name", "id"])
def test_change_data_has_physical_names(mode: str) -> None:
    table = make({**FEED, "delta.columnMapping.mode": mode})
    table.update({"v": "'new'"}, "id = 4")
    (cdc,) = actions(table)["cdc"]
    assert cdc["path"].startswith("_change_data/")
    schema = pq.read_schema(io.BytesIO(table.store.read(cdc["path"])))
    physical = [table.snapshot().configuration.physical_name(each) for each in ("id", "v", "p")]
    assert schema.names == [*physical, "_change_type"]


# Concurrent writers


class Meanwhile(ArrowEngine):
    """An engine beside which something else happens, between planning and commit."""

    def __init__(self, happens: Any) -> None:
        super().__init__()
        self._happens = happens

    def find_matches(self, plan: Any) -> Any:
        found = list(super().find_matches(plan))
        self._happens()
        return iter(found)


def delete_meanwhile(table: DeltaTable, where: str, happens: Any) -> None:
    from dagster_delta.sql.expressions import parse_expression

    transaction = table.transaction()
    assert transaction.snapshot is not None
    engine = Meanwhile(happens)
    expression = parse_expression(where, table.schema())
    selected = select_rows(transaction.snapshot, expression, engine)
    change_rows(transaction, selected, engine, where=expression)
    transaction.commit("DELETE")


@both_ways
def test_deletes_in_different_partitions_both_land(properties: dict[str, str]) -> None:
    table = make(properties, partition_by=("p",))
    other = reopened(table)
    delete_meanwhile(
        table, "p = 0 AND id = 4 + 0 * id", lambda: other.delete("p = 1 AND id % 5 = 3 + 0 * id")
    )
    assert 4 not in ids_of(reopened(table))
    assert 3 not in ids_of(reopened(table))
    assert reopened(table).version() == 3


@pytest.mark.parametrize(
    ("properties", "theirs"),
    [(VECTORS, "id IN (4, 5)"), ({}, "id IN (4, 5)"), ({}, "id = 5")],
)
def test_deletes_of_one_row_or_one_rewritten_file_conflict(
    properties: dict[str, str], theirs: str
) -> None:
    table = make(properties)
    before_mine = data_files(table)
    other = reopened(table)
    with pytest.raises(CommitConflict) as caught:
        delete_meanwhile(table, "v = 'v4'", lambda: other.delete(theirs))
    assert caught.type in (ConcurrentAppend, ConcurrentDeleteRead)
    gone = {4, 5} if "4" in theirs else {5}
    assert ids_of(reopened(table)) == [each for each in range(20) if each not in gone]
    live = set(reopened(table).snapshot().live_files(["path"])["path"].to_pylist())
    # What the loser wrote is gone: any vector is the winner's.
    written = data_files(table) - before_mine - live
    assert len(written) == bool(properties)


@both_ways
def test_deletes_of_files_with_other_statistics_both_land(properties: dict[str, str]) -> None:
    table = make(properties)
    other = reopened(table)
    delete_meanwhile(table, "id = 4", lambda: other.delete("id = 14"))
    assert ids_of(reopened(table)) == [each for each in range(20) if each not in (4, 14)]


@both_ways
def test_a_blind_append_meanwhile_is_no_conflict(properties: dict[str, str]) -> None:
    table = make(properties)
    other = reopened(table)
    delete_meanwhile(table, "id = 4", lambda: other.append(numbered(4, 40)))
    assert ids_of(reopened(table)) == [*range(20), 40]


def test_a_blind_append_that_may_match_conflicts_when_serializable() -> None:
    table = make({**VECTORS, "delta.isolationLevel": "Serializable"})
    other = reopened(table)
    with pytest.raises(ConcurrentAppend):
        delete_meanwhile(table, "id = 4", lambda: other.append(numbered(4)))
    delete_meanwhile(reopened(table), "id = 5", lambda: other.append(numbered(50)))
    assert 5 not in ids_of(reopened(table))


@pytest.mark.parametrize("operation", ["put", "open_output"])
def test_a_failing_store_leaves_the_table_as_it_was(
    operation: Literal["put", "open_output"],
) -> None:
    table = make({**VECTORS, **FEED}, parts=(range(300),))
    before, files = ids_of(table), data_files(table)
    faulty = FaultyStore(table.store, [Fault(kind="refuse", operation=operation)])
    with pytest.raises(StorageFailure):
        DeltaTable("", store=faulty).update({"v": "'new'"}, "id % 3 = 0")
    assert not faulty.unstruck
    assert data_files(table) == files
    assert ids_of(reopened(table)) == before


@pytest.mark.parametrize(
    "where",
    [
        "\"name\" = 'x'",
        "'NAME' IN ('x', 'y')",
        "\"name\" LIKE 'x%'",
        '"name" IS NOT NULL',
        'NOT ("name" IS NULL)',
        'length("name") > 2',
        "trim(\"name\") <> 'a'",
        "name = 'x' OR \"name\" = 'y'",
    ],
)
def test_a_text_that_is_the_name_of_a_column_is_not_compared_with_texts(where: str) -> None:
    table = DeltaTable("", store=MemoryStore(), must_exist=False)
    table.append(pa.table({"name": ["x"]}))
    for act in (
        lambda: table.delete(where),
        lambda: table.update({"name": "'z'"}, where),
        lambda: table.snapshot().scan(where=where),
        lambda: table.overwrite(pa.table({"name": ["x"]}), where=where),
    ):
        with pytest.raises(InvalidArgument, match="is a text here and not the column name"):
            act()
    assert table.delete("'x' = 'y'").skipped
    assert table.delete("name = 'name'").skipped


@pytest.mark.parametrize(
    "condition", ["\"name\" <> 'a'", '"name" IS NOT NULL', "s.name = 'x' AND \"name\" = 'x'"]
)
def test_a_merge_does_not_compare_texts_that_are_names_of_columns(condition: str) -> None:
    table = DeltaTable("", store=MemoryStore(), must_exist=False)
    table.append(pa.table({"name": ["x", "y"]}))

    def merge(on: str) -> Any:
        source = pa.table({"name": ["x"]})
        return table.merge(source, on, source_alias="s", target_alias="t")

    with pytest.raises(InvalidArgument, match="is a text here and not the column name"):
        merge(f"t.name = s.name AND {condition}").when_matched_delete().execute()
    with pytest.raises(InvalidArgument, match="is a text here and not the column name"):
        merge("t.name = s.name").when_matched_delete(condition).execute()
    assert table.version() == 0


def test_wrong_sql_is_called_wrong_on_an_empty_table_too() -> None:
    table = DeltaTable.create("", pa.schema([("a", pa.int64())]), store=MemoryStore())
    with pytest.raises(InvalidArgument, match="expected the end, found banana"):
        table.delete("a = 1 banana")
