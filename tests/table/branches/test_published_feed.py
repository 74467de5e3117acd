"""The change data feed of a publication: what the branch has changed in its rows, and no more."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest

from dagster_delta.errors import ChangeDataNotRecorded
from dagster_delta.protocol.log.commit_file import CommitActions, decode_commit
from dagster_delta.table.branches.branch import Branch
from dagster_delta.table.delta_table import DeltaTable
from dagster_delta.table.log.reader import read_commit
from tests.table.branches.conftest import begin, check_feed, digest, feed_of, rows

TRACKED = {"delta.enableRowTracking": "true"}
VECTORS = {"delta.enableDeletionVectors": "true"}
SHAPES = {
    "files": {},
    "vectors": VECTORS,
    "tracked": TRACKED,
    "tracked vectors": {**TRACKED, **VECTORS},
    "mapped": {"delta.columnMapping.mode": "name"},
    "tracked mapped": {**TRACKED, **VECTORS, "delta.columnMapping.mode": "name"},
}

every_shape = pytest.mark.parametrize("shape", SHAPES)
tracked_and_not = pytest.mark.parametrize("shape", ["files", "vectors", "tracked"])


def create(root: str, shape: str, *, partitioned: bool = False) -> DeltaTable:
    """A table of two files, with the ids 1 to 6."""
    table = DeltaTable(f"{root}/t", must_exist=False)
    properties = {"delta.enableChangeDataFeed": "true", **SHAPES[shape]}
    partition_by = ["v"] if partitioned else None
    table.append(rows(1, 2, 3), properties=properties, partition_by=partition_by)
    table.append(rows(4, 5, 6))
    return table


def publish(root: str, table: DeltaTable, *changes: Callable[[DeltaTable], object]) -> int:
    """The version of production with the changes of a branch."""
    branch = Branch(root, "dev")
    for change in changes:
        own = begin(branch, table)
        change(own)
    [result] = branch.publish().values()
    table.refresh()
    return result.version


def update(value: str, where: str) -> Callable[[DeltaTable], object]:
    return lambda table: table.update(set={"v": f"'{value}'"}, where=where)


def delete(where: str) -> Callable[[DeltaTable], object]:
    return lambda table: table.delete(where)


def compact(table: DeltaTable) -> None:
    table.optimize(target_file_size=1 << 30)


def actions_of(table: DeltaTable, version: int) -> CommitActions:
    return decode_commit(read_commit(table.store, version), version=version)


@every_shape
@pytest.mark.parametrize("partitioned", [False, True])
def test_feed_has_each_changed_row_once(root: str, shape: str, partitioned: bool) -> None:
    table = create(root, shape, partitioned=partitioned)
    version = publish(
        root,
        table,
        lambda own: own.append(rows(7, 8)),
        update("b", "id = 2"),
        delete("id in (1, 8)"),
        compact,
    )
    assert feed_of(table, version) == [
        ("delete", 1, "a"),
        ("insert", 7, "a"),
        ("update_postimage", 2, "b"),
        ("update_preimage", 2, "a"),
    ]
    check_feed(table, version)


@every_shape
def test_compaction_of_the_branch_is_no_change(root: str, shape: str) -> None:
    table = create(root, shape)
    version = publish(root, table, compact)
    assert feed_of(table, version) == []
    actions = actions_of(table, version)
    assert len(actions.removes) == 2
    assert not actions.removes_data
    assert not any(add.data_change for add in actions.adds)


def test_compaction_is_no_change_without_a_feed(root: str) -> None:
    table = DeltaTable(f"{root}/t", must_exist=False)
    table.append(rows(1), properties={"delta.appendOnly": "true"})
    table.append(rows(2))
    version = publish(root, table, compact)
    actions = actions_of(table, version)
    assert not actions.removes_data
    assert not any(add.data_change for add in actions.adds)


@every_shape
def test_rows_that_are_as_before_are_no_change(root: str, shape: str) -> None:
    table = create(root, shape)
    version = publish(
        root,
        table,
        update("b", "id = 2"),
        update("a", "id = 2"),
        lambda own: own.append(rows(7)),
        compact,
        delete("id = 7"),
    )
    assert feed_of(table, version) == []
    assert not any(add.data_change for add in actions_of(table, version).adds)


@tracked_and_not
def test_overwrite_with_equal_rows_changes_those_that_differ(root: str, shape: str) -> None:
    table = create(root, shape)
    version = publish(root, table, lambda own: own.overwrite(rows(1, 2, 3, 4, 5, 7)))
    assert feed_of(table, version) == [("delete", 6, "a"), ("insert", 7, "a")]


@tracked_and_not
def test_row_that_was_updated_twice_is_one_change(root: str, shape: str) -> None:
    table = create(root, shape)
    version = publish(root, table, update("b", "id = 2"), update("c", "id = 2"))
    kinds = ["update_postimage", "update_preimage"] if shape == "tracked" else ["insert", "delete"]
    assert feed_of(table, version) == sorted([(kinds[0], 2, "c"), (kinds[1], 2, "a")])


@tracked_and_not
def test_row_that_was_updated_and_deleted_is_deleted(root: str, shape: str) -> None:
    table = create(root, shape)
    version = publish(root, table, update("b", "id < 3"), delete("id = 2"))
    deleted = ("delete", 2, "a")
    kinds = ["update_postimage", "update_preimage"] if shape == "tracked" else ["insert", "delete"]
    # Without ids of rows, it is not known which images belong together.
    assert feed_of(table, version) == sorted([(kinds[0], 1, "b"), (kinds[1], 1, "a"), deleted])


@tracked_and_not
def test_new_row_that_was_updated_is_inserted(root: str, shape: str) -> None:
    table = create(root, shape)
    version = publish(root, table, lambda own: own.append(rows(7)), update("b", "id = 7"))
    assert feed_of(table, version) == [("insert", 7, "b")]


@tracked_and_not
def test_equal_rows_are_counted(root: str, shape: str) -> None:
    table = create(root, shape)
    table.append(rows(1, 1))
    version = publish(root, table, delete("id = 1"), lambda own: own.append(rows(1)))
    assert feed_of(table, version) == [("delete", 1, "a")] * 2
    check_feed(table, version)


@pytest.mark.parametrize("shape", ["mapped", "tracked mapped"])
def test_feed_has_the_columns_that_the_branch_renamed_and_added(root: str, shape: str) -> None:
    table = create(root, shape)
    version = publish(
        root,
        table,
        update("b", "id = 2"),
        lambda own: own.rename_column("id", "key"),
        lambda own: own.add_column("n", "INT"),
        lambda own: own.update(set={"n": "7"}, where="key = 3"),
        lambda own: own.drop_column("v"),
        compact,
    )
    feed = table.changes(version, ending_version=version).to_arrow()
    found = [tuple(row.values())[:3] for row in feed.to_pylist()]
    # A value of a column that was dropped is no change. The changes of the versions before it
    # cannot be shown, so without ids of rows, the files are compared.
    tracked = shape.startswith("tracked")
    kinds = ["update_postimage", "update_preimage"] if tracked else ["insert", "delete"]
    assert sorted(found, key=str) == [(3, 7, kinds[0]), (3, None, kinds[1])]


@every_shape
def test_feed_of_a_branch_whose_log_was_cleaned_has_the_net(root: str, shape: str) -> None:
    table = create(root, shape)

    def clean(own: DeltaTable) -> None:
        for commit in sorted(Path(own.uri, "_delta_log").glob("*.json"))[:2]:
            commit.unlink()

    version = publish(
        root, table, update("b", "id = 2"), compact, lambda own: own.checkpoint(), clean
    )
    assert {row[1:] for row in feed_of(table, version)} == {(2, "a"), (2, "b")}
    check_feed(table, version)


@tracked_and_not
def test_too_many_bytes_to_compare_are_refused(root: str, shape: str) -> None:
    table = create(root, shape)
    branch = Branch(root, "dev")
    own = begin(branch, table)
    update("b", "id = 2")(own)
    before = digest(table.uri)
    assert "are compared at most" in branch.diff(table.uri).to_markdown()
    with pytest.raises(ChangeDataNotRecorded, match="max_bytes is 100: pass a larger one"):
        branch.publish(max_bytes=100)
    assert digest(table.uri) == before
    [result] = branch.publish(max_bytes=None).values()
    assert len(feed_of(table, result.version)) == 2


def test_rows_that_only_came_or_only_left_are_not_compared(root: str) -> None:
    table = create(root, "vectors")
    branch = Branch(root, "dev")
    for change in (
        lambda own: own.append(rows(7)),
        delete("id = 1"),
        lambda own: (own.append(rows(8)), own.delete("id = 2")),
    ):
        change(begin(branch, table))
        [result] = branch.publish(max_bytes=1 << 20).values()
        assert not actions_of(table, result.version).cdc
        check_feed(table, result.version)


def test_rows_of_nested_types_are_compared(root: str) -> None:
    table = DeltaTable(f"{root}/t", must_exist=False)
    nested = [{"a": [1, 2], "m": {"x": 1}}, {"a": [3], "m": None}, None]
    kind = pa.struct({"a": pa.list_(pa.int64()), "m": pa.struct({"x": pa.int64()})})
    data = pa.table({"id": [1, 2, 3], "s": pa.array(nested, kind)})
    table.append(data, properties={"delta.enableChangeDataFeed": "true"})
    version = publish(
        root, table, lambda own: own.update(set={"s": "NULL"}, where="id = 2"), compact
    )
    feed = table.changes(version, ending_version=version).to_arrow()
    assert sorted(zip(feed["_change_type"].to_pylist(), feed["id"].to_pylist(), strict=True)) == [
        ("update_postimage", 2),
        ("update_preimage", 2),
    ]


def test_feed_of_a_replaced_schema_is_that_of_an_overwrite(root: str) -> None:
    table = create(root, "files")
    other = pa.table({"id": ["x"], "v": ["a"]})
    version = publish(root, table, lambda own: own.overwrite(other, schema_mode="overwrite"))
    assert not actions_of(table, version).cdc
    assert table.snapshot().scan().to_arrow()["id"].to_pylist() == ["x"]
