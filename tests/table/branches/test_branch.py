"""Branches: production's tables stay as they are until a branch is published, in one commit."""

from __future__ import annotations

import os
import random
import time
from pathlib import Path
from typing import Any

import deltalake
import pyarrow as pa
import pytest

from dagster_delta import clock
from dagster_delta.clock import DAY_MS
from dagster_delta.errors import (
    CommitConflict,
    DataFileMissing,
    InvalidArgument,
    TableNotFound,
)
from dagster_delta.protocol.table_properties import BRANCH_BASE_PROPERTY, BRANCH_PROPERTY
from dagster_delta.table.branches import branch as branch_module
from dagster_delta.table.branches import publish
from dagster_delta.table.branches.branch import Branch, find_branches
from dagster_delta.table.delta_table import DeltaTable
from dagster_delta.table.operations.clone import clone_table, copy_files
from dagster_delta.table.table_discovery import find_tables
from tests.table.branches.conftest import PROPERTIES, begin, digest, ids, rows
from tests.table.branches.history import History


def test_branch_reads_production_until_it_writes(root: str, production: DeltaTable) -> None:
    branch = Branch(root, "dev")
    table = branch.open(production.uri)
    assert table.uri == production.uri
    production.append(rows(7))
    assert ids(table) == ids(production)


def test_table_of_production_refuses_writes_of_branch(root: str, production: DeltaTable) -> None:
    table = Branch(root, "dev").open(production.uri)
    before = digest(root)
    for write in (
        lambda: table.append(rows(9)),
        lambda: table.overwrite(rows(9)),
        lambda: table.delete("id = 1"),
        lambda: table.add_column("n", "INT"),
        table.optimize,
        table.vacuum,
        table.transaction,
        lambda: table.restore(0),
        table.clean_log,
        table.checkpoint,
    ):
        with pytest.raises(InvalidArgument, match="branch 'dev' has no table of its own"):
            write()
    table.refresh()
    with pytest.raises(InvalidArgument, match="branch 'dev'"):
        table.append(rows(9))
    assert digest(root) == before


def test_first_write_clones_without_copying_data(root: str, production: DeltaTable) -> None:
    before = digest(f"{root}/raw")
    table = begin(Branch(root, "dev"), production)
    assert ids(table) == ids(production)
    assert not list(Path(table.uri).rglob("*.parquet"))
    table.append(rows(7))
    table.delete("id = 1")
    assert ids(table) == [2, 3, 4, 6, 7]
    assert digest(f"{root}/raw") == before


def test_publish_moves_production_by_one_commit(root: str, production: DeltaTable) -> None:
    version, branch = production.version(), Branch(root, "dev")
    table = begin(branch, production)
    table.append(rows(7))
    table.delete("id = 1")
    table.update(set={"v": "'changed'"}, where="id = 4")
    table.add_column("n", "INT")
    [result] = branch.publish().values()
    assert result.version == version + 1
    expected = table.refresh().scan().to_arrow().sort_by("id")
    assert production.refresh().scan().to_arrow().sort_by("id").equals(expected)
    properties = production.metadata().configuration
    assert {key: properties[key] for key in PROPERTIES} == PROPERTIES
    assert BRANCH_PROPERTY not in properties
    assert BRANCH_BASE_PROPERTY not in properties
    read = deltalake.QueryBuilder().register("t", deltalake.DeltaTable(production.uri))
    assert pa.table(read.execute("select count(*) from t").read_all())[0][0].as_py() == 5
    # All that production needs is in it.
    branch.drop(dry_run=False)
    assert production.refresh().scan().to_arrow().sort_by("id").equals(expected)


def test_difference_has_the_rows_that_the_branch_changed(root: str, production: DeltaTable) -> None:
    branch = Branch(root, "dev")
    table = begin(branch, production)
    assert branch.diff(production.uri).changes().to_arrow().num_rows == 0
    table.append(rows(7))
    table.delete("id = 1")
    feed = branch.diff(production.uri).changes().to_arrow()
    found = zip(feed["_change_type"].to_pylist(), feed["id"].to_pylist(), strict=True)
    assert sorted(found) == [("delete", 1), ("insert", 7)]
    branch.publish()
    assert branch.diff(production.uri).changes().to_arrow().num_rows == 0


def test_rows_keep_their_ids_when_published(root: str, production: DeltaTable) -> None:
    branch = Branch(root, "dev")
    table = begin(branch, production)
    before = row_ids(production)
    table.append(rows(7, 8))
    table.optimize(target_file_size=1 << 30)
    expected = row_ids(table)
    [result] = branch.publish().values()
    assert row_ids(production) == expected
    assert {key: expected[key] for key in before} == before
    production.append(rows(9))
    assert len(set(row_ids(production).values())) == 8
    assert production.history(2)[1].commit_info["tags"]["delta.rowTracking.preserved"] == "true"
    assert result.version == production.version() - 1


def row_ids(table: DeltaTable) -> dict[int, int]:
    found = table.refresh().scan(["id"], row_ids=True).to_arrow()
    return dict(zip(found[0].to_pylist(), found[1].to_pylist(), strict=True))


def test_repeated_publication_changes_nothing(root: str, production: DeltaTable) -> None:
    branch = Branch(root, "dev")
    table = begin(branch, production)
    table.append(rows(7))
    [first] = branch.publish().values()
    before = digest(f"{root}/raw")
    [second] = Branch(root, "dev").publish().values()
    assert (second.version, second.skipped) == (first.version, True)
    assert digest(f"{root}/raw") == before


def test_publication_that_another_call_made_meanwhile_is_skipped(
    root: str, production: DeltaTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    branch = Branch(root, "dev")
    begin(branch, production).append(rows(7))
    published: list[dict[str, str]] = []

    def publish_meanwhile(*arguments: Any, **options: Any) -> None:
        monkeypatch.setattr(publish, "copy_files", copy_files)
        Branch(root, "dev").publish()
        published.append(digest(f"{root}/raw"))
        copy_files(*arguments, **options)

    monkeypatch.setattr(publish, "copy_files", publish_meanwhile)
    [result] = branch.publish().values()
    assert (result.version, result.skipped) == (production.refresh().version, True)
    # The files that were copied in vain are gone.
    assert [digest(f"{root}/raw")] == published
    assert ids(production) == [1, 2, 3, 4, 6, 7]


def test_branch_goes_on_after_it_was_published(root: str, production: DeltaTable) -> None:
    branch = Branch(root, "dev")
    for new in (7, 8, 9):
        table = begin(branch, production)
        table.append(rows(new))
        branch.publish()
        production.append(rows(new * 10))
    assert ids(production) == [1, 2, 3, 4, 6, 7, 8, 9, 70, 80, 90]


@pytest.mark.parametrize(
    "move", ["append", "delete", "schema", "property", "another table", "gone"]
)
def test_publication_is_refused_if_production_moved_on(
    root: str, production: DeltaTable, move: str
) -> None:
    branch = Branch(root, "dev")
    table = begin(branch, production)
    table.append(rows(7))
    if move == "append":
        production.append(rows(8))
    elif move == "delete":
        production.delete("id = 1")
    elif move == "schema":
        production.add_column("n", "INT")
    elif move == "property":
        production.set_properties({"team": "sales"})
    else:
        for path in sorted(Path(production.uri).rglob("*"), reverse=True):
            path.rmdir() if path.is_dir() else path.unlink()
        if move == "another table":
            DeltaTable(production.uri, must_exist=False).append(rows(1))
    before = digest(f"{root}/raw")
    with pytest.raises(CommitConflict, match="since the branch 'dev' began"):
        branch.publish()
    assert digest(f"{root}/raw") == before
    if move != "gone":
        assert ids(branch.rebase(production.uri)) == ids(DeltaTable(production.uri))
        again = begin(branch, production)
        again.append(pa.table({"id": [7], "v": ["a"]}))
        branch.publish()
        assert 7 in ids(DeltaTable(production.uri))


def test_table_that_the_branch_has_not_changed_blocks_no_publication(
    root: str, production: DeltaTable
) -> None:
    branch = Branch(root, "dev")
    begin(branch, production)
    # A step that fails after the clone leaves such a table.
    changed = DeltaTable(f"{root}/raw/customers", must_exist=False)
    changed.append(rows(1))
    begin(branch, changed).append(rows(2))
    production.append(rows(7))
    assert branch.diff(production.uri).to_markdown() == "The branch has not changed the table.\n"
    done = branch.publish()
    assert {uri: result.skipped for uri, result in done.items()} == {
        production.uri: True,
        changed.uri: False,
    }
    assert ids(production) == [1, 2, 3, 4, 6, 7]
    assert ids(changed) == [1, 2]


def test_maintenance_of_production_leaves_branch_publishable(
    root: str,
) -> None:
    production = DeltaTable(f"{root}/t", must_exist=False)
    for key in (1, 2, 3):
        production.append(rows(key))
    branch = Branch(root, "dev")
    table = begin(branch, production)
    table.append(rows(7))
    production.optimize(target_file_size=1 << 30)
    production.vacuum(dry_run=False)
    production.checkpoint()
    branch.publish()
    assert ids(production) == [1, 2, 3, 7]


def test_files_that_both_rewrote_are_a_conflict(root: str, production: DeltaTable) -> None:
    branch = Branch(root, "dev")
    table = begin(branch, production)
    table.delete("id = 1")
    production.optimize(target_file_size=1 << 30)
    before = ids(production)
    with pytest.raises(CommitConflict, match="let the branch begin again"):
        branch.publish()
    assert ids(production) == before
    assert production.unreferenced_files().files.num_rows == 0


def test_new_table_is_published_whole(root: str) -> None:
    branch, uri = Branch(root, "dev"), f"{root}/raw/new"
    assert branch.begin(uri) is None
    table = DeltaTable(branch.table_uri(uri), must_exist=False)
    table.append(rows(1, 2), properties=branch.new_table_properties(uri))
    [result] = branch.publish().values()
    assert result.version == 0
    branch.drop(dry_run=False)
    assert ids(DeltaTable(uri)) == [1, 2]
    assert DeltaTable(uri).metadata().id != table.metadata().id


def test_new_table_that_production_got_meanwhile_is_a_conflict(root: str) -> None:
    branch, uri = Branch(root, "dev"), f"{root}/raw/new"
    branch.begin(uri)
    table = DeltaTable(branch.table_uri(uri), must_exist=False)
    table.append(rows(1, 2), properties=branch.new_table_properties(uri))
    DeltaTable(uri, must_exist=False).append(rows(9))
    with pytest.raises(CommitConflict, match="another table was created"):
        branch.publish()
    assert ids(DeltaTable(uri)) == [9]


def test_pinned_branch_reads_its_beginning(root: str, production: DeltaTable) -> None:
    now = production.history(1)[0].timestamp_ms + 1
    branch = Branch(root, "dev", pinned=True, clock=lambda: now)
    branch.declare()
    before = ids(production)
    production.append(rows(7))
    later = DeltaTable(f"{root}/raw/later", must_exist=False)
    later.append(rows(1))
    assert sorted(branch.open(production.uri).snapshot().scan().to_arrow()["id"].to_pylist()) == (
        before
    )
    table = begin(branch, production)
    assert ids(table) == before
    with pytest.raises(TableNotFound, match="pinned branch 'dev' began"):
        branch.open(later.uri)


def test_branch_is_pinned_as_it_was_declared(root: str, production: DeltaTable) -> None:
    now = production.history(1)[0].timestamp_ms + 1
    Branch(root, "then", pinned=True, clock=lambda: now).declare()
    Branch(root, "now", clock=lambda: now).declare()
    before = ids(production)
    production.append(rows(7))
    for name, expected in (("then", before), ("now", [*before, 7])):
        for pinned in (False, True):
            branch = Branch(root, name, pinned=pinned)
            assert branch.pinned == (name == "then")
            assert ids(branch.open(production.uri)) == expected


def test_drop_deletes_the_branch_and_nothing_else(root: str, production: DeltaTable) -> None:
    branch, other = Branch(root, "dev"), Branch(root, "other")
    for each in (branch, other):
        table = begin(each, production)
        table.append(rows(7))
    kept = digest(f"{root}/raw"), digest(other.uri)
    found = branch.drop()
    assert Path(branch.uri).is_dir()
    assert branch.drop(dry_run=False) == found
    assert not Path(branch.uri).exists()
    assert (digest(f"{root}/raw"), digest(other.uri)) == kept
    assert [each.name for each in find_branches(root)] == ["other"]
    # As after a call that was killed and is repeated.
    assert branch.drop() == branch.drop(dry_run=False) == ()


def test_tables_of_branches_are_not_tables_of_the_root(root: str, production: DeltaTable) -> None:
    branch = Branch(root, "feature/x")
    branch.begin(production.uri)
    assert find_tables(root) == [production.uri]
    assert branch.tables() == [production.uri]


def test_names_of_branches_have_their_own_directories(root: str, production: DeltaTable) -> None:
    names = ["a/b", "a-b", "a b", "ä", "..", "x" * 300]
    uris = {Branch(root, name).uri for name in names}
    assert len(uris) == len(names)
    for name in names:
        Branch(root, name).begin(production.uri)
    assert [branch.name for branch in find_branches(root)] == sorted(names)
    with pytest.raises(InvalidArgument, match="needs a name"):
        Branch(root, " ")


def test_table_outside_the_root_is_refused(root: str, tmp_path: Path) -> None:
    other = DeltaTable(str(tmp_path / "lake2" / "t"), must_exist=False)
    other.append(rows(1))
    with pytest.raises(InvalidArgument, match="is not below"):
        Branch(root, "dev").begin(other.uri)


def test_relative_root_is_the_same_as_an_absolute_one(
    root: str, production: DeltaTable, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    branch = Branch("lake", "dev")
    table = branch.begin("lake/raw/orders")
    assert table is not None
    table.append(rows(7))
    assert branch.tables() == Branch(root, "dev").tables() == [production.uri]
    assert [found.name for found in find_branches("lake")] == ["dev"]
    production.overwrite(rows(100))
    now = clock.now_ms()
    monkeypatch.setattr("dagster_delta.table.operations.vacuum.now_ms", lambda: now + 8 * DAY_MS)
    assert production.vacuum().kept_for_branches == {"dev": 3}
    branch.rebase("lake/raw/orders").append(rows(8))
    assert list(branch.publish(["lake/raw/orders"])) == [production.uri]
    assert ids(production) == [8, 100]


def test_branch_elsewhere_is_of_one_root(root: str, production: DeltaTable, tmp_path: Path) -> None:
    elsewhere = str(tmp_path / "branches")
    branch = Branch(root, "dev", branch_root_uri=elsewhere)
    table = begin(branch, production)
    assert table.uri.startswith(elsewhere)
    table.append(rows(7))
    with pytest.raises(InvalidArgument, match="is the branch 'dev' of the tables below"):
        Branch(str(tmp_path / "other"), "dev", branch_root_uri=elsewhere).declare()
    branch.publish()
    assert ids(production) == [1, 2, 3, 4, 6, 7]


def test_vacuum_keeps_what_young_branches_read(
    root: str, production: DeltaTable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    near, far = Branch(root, "near"), Branch(root, "far", branch_root_uri=str(tmp_path / "far"))
    tables = [branch.begin(production.uri) for branch in (near, far)]
    production.overwrite(rows(100))
    now = clock.now_ms()
    monkeypatch.setattr("dagster_delta.table.operations.vacuum.now_ms", lambda: now + 8 * DAY_MS)
    result = production.vacuum(branch_roots=[str(tmp_path / "far")])
    assert result.num_files == 0
    assert result.kept_for_branches == {"far": 3, "near": 3}
    result = production.vacuum(dry_run=False)
    assert set(result.kept_for_branches) == {"near"}
    for table in tables:
        assert table is not None
        assert ids(table) == [1, 2, 3, 4, 6]
    monkeypatch.setattr("dagster_delta.table.operations.vacuum.now_ms", lambda: now + 15 * DAY_MS)
    result = production.vacuum(dry_run=False)
    assert result.kept_for_branches == {}
    assert result.num_files > 0
    with pytest.raises(DataFileMissing):
        ids(tables[0])  # type: ignore[arg-type]
    assert ids(near.rebase(production.uri)) == [100]


def test_pinned_branch_creates_new_tables(root: str, production: DeltaTable) -> None:
    branch = Branch(root, "dev", pinned=True)
    for uri in (f"{root}/raw/new", f"{root}/raw/later"):
        assert branch.begin(uri) is None
        DeltaTable(f"{root}/raw/later", must_exist=False).append(rows(1))
        # The clock of the file system is some milliseconds behind.
        for commit in Path(f"{root}/raw/later/_delta_log").glob("*.json"):
            os.utime(commit, (time.time() + 60,) * 2)
    assert ids(branch.open(production.uri)) == ids(production)


def test_compaction_beside_new_row_ids_doubles_no_row(root: str) -> None:
    production = DeltaTable(f"{root}/t", must_exist=False)
    for key in (1, 2, 3):
        production.append(rows(key))
    branch = Branch(root, "dev")
    table = begin(branch, production)
    table.set_properties({"delta.enableRowTracking": "true"})
    production.optimize(target_file_size=1 << 30)
    with pytest.raises(CommitConflict, match="rebase"):
        branch.publish()
    assert ids(production) == [1, 2, 3]
    branch.rebase(production.uri).set_properties({"delta.enableRowTracking": "true"})
    branch.publish()
    assert sorted(row_ids(production)) == [1, 2, 3]


def test_step_that_begins_again_keeps_rows_of_another_one(
    root: str, production: DeltaTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish_rows(root, production, 7)
    begin_again, others = clone_table, [Branch(root, "dev")]

    def clone_after_another(*arguments: Any, **options: Any) -> Any:
        if others:
            table = begin(others.pop(), production)
            table.append(rows(8))
        return begin_again(*arguments, **options)

    monkeypatch.setattr(branch_module, "clone_table", clone_after_another)
    branch = Branch(root, "dev")
    table = begin(branch, production)
    table.append(rows(9))
    branch.publish()
    assert ids(production) == [1, 2, 3, 4, 6, 7, 8, 9]


def publish_rows(root: str, production: DeltaTable, *new: int) -> Branch:
    branch = Branch(root, "dev")
    table = begin(branch, production)
    table.append(rows(*new))
    branch.publish()
    production.refresh()
    return branch


def test_table_that_begins_again_repeats_no_change(root: str, production: DeltaTable) -> None:
    branch = publish_rows(root, production, 7)
    before = branch.open(production.uri).version()
    production.append(rows(8))
    table = begin(branch, production)
    assert ids(table) == [1, 2, 3, 4, 6, 7, 8]
    feed = table.changes(before + 1).to_arrow()
    assert feed.select(["_change_type", "id"]).to_pylist() == [{"_change_type": "insert", "id": 8}]


def test_table_begins_again_without_files_of_its_publication(
    root: str, production: DeltaTable
) -> None:
    branch = publish_rows(root, production, 7)
    production.append(rows(8))
    production.optimize(target_file_size=1 << 30)
    production.vacuum(0, enforce_retention=False, dry_run=False)
    table = begin(branch, production)
    assert ids(table) == ids(production)
    assert table.changes(table.version()).to_arrow().num_rows


def test_replaced_table_is_still_of_its_branch(root: str, production: DeltaTable) -> None:
    branch = Branch(root, "dev")
    table = begin(branch, production)
    DeltaTable.create(table.uri, pa.schema([("id", pa.int64())]), mode="replace")
    table.refresh()
    table.append(pa.table({"id": [9]}))
    assert branch.tables() == [production.uri]
    branch.publish()
    assert ids(production) == [9]
    assert BRANCH_PROPERTY not in production.metadata().configuration


def test_new_table_has_no_properties_of_the_branchs_log(root: str) -> None:
    branch, uri = Branch(root, "dev"), f"{root}/t"
    assert branch.begin(uri) is None
    table = DeltaTable(branch.table_uri(uri), must_exist=False)
    table.append(rows(1), properties=branch.new_table_properties(uri))
    table.set_properties({"delta.enableInCommitTimestamps": "true"})
    branch.publish()
    assert DeltaTable(uri).metadata().configuration == {"delta.enableInCommitTimestamps": "true"}


def test_delete_during_a_publication_is_a_conflict(
    root: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    production = DeltaTable(f"{root}/t", must_exist=False)
    production.append(rows(1))
    production.append(rows(2))
    branch = Branch(root, "dev")
    table = begin(branch, production)
    table.append(rows(3))

    def delete_meanwhile(*arguments: Any, **options: Any) -> None:
        production.delete("id = 1")
        copy_files(*arguments, **options)

    monkeypatch.setattr(publish, "copy_files", delete_meanwhile)
    with pytest.raises(CommitConflict, match="rebase"):
        branch.publish()
    assert ids(production) == [2]


def test_branch_of_another_root_is_neither_read_nor_dropped(
    root: str, production: DeltaTable, tmp_path: Path
) -> None:
    elsewhere = str(tmp_path / "elsewhere")
    table = Branch(root, "dev", branch_root_uri=elsewhere).begin(production.uri)
    assert table is not None
    other = Branch(str(tmp_path / "other"), "dev", branch_root_uri=elsewhere)
    for use in (
        other.tables,
        other.publish,
        lambda: other.drop(dry_run=False),
        lambda: other.open(f"{tmp_path}/other/raw/orders"),
    ):
        with pytest.raises(InvalidArgument, match=r"another name or branch_root_uri"):
            use()
    assert ids(table) == ids(production)


def test_branch_whose_first_write_failed_has_no_tables(root: str, production: DeltaTable) -> None:
    branch = Branch(root, "dev")
    assert branch.begin(f"{root}/raw/new") is None
    assert branch.tables() == []
    assert branch.publish() == {}
    branch.drop(dry_run=False)
    assert find_branches(root) == []


def test_branch_has_no_branches(root: str, production: DeltaTable) -> None:
    branch = Branch(root, "dev")
    branch.begin(production.uri)
    with pytest.raises(InvalidArgument, match="no branches of its own"):
        Branch(branch.uri, "inner")


def test_name_of_a_declaration_is_another_directory(root: str, production: DeltaTable) -> None:
    for name in ("dev", "dev.json", "dev.JSON"):
        table = Branch(root, name).begin(production.uri)
        assert table is not None
        assert ids(table) == ids(production)
    assert [branch.name for branch in find_branches(root)] == ["dev", "dev.JSON", "dev.json"]


def test_vacuum_finds_branches_of_deep_tables(root: str) -> None:
    production = DeltaTable(f"{root}/a/b/c/d/t", must_exist=False)
    production.append(rows(1))
    table = begin(Branch(root, "dev"), production)
    production.overwrite(rows(2))
    result = production.vacuum(0, enforce_retention=False, dry_run=False)
    assert result.kept_for_branches == {"dev": 1}
    assert ids(table) == [1]


def test_random_histories_match_the_model(root: str) -> None:
    """Production is byte for byte the same until a publication, and then has the branch's rows."""
    for seed in range(25):
        History(f"{root}{seed}", random.Random(seed)).run(14)
