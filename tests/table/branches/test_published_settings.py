"""What a publication takes over besides rows: properties, features, clustering and positions."""

from __future__ import annotations

from pathlib import Path

import pytest

from dagster_delta import Column, Identity
from dagster_delta.errors import CommitConflict, InvalidArgument, VersionNotFound
from dagster_delta.table.branches.branch import Branch
from dagster_delta.table.delta_table import DeltaTable
from dagster_delta.table.transaction.commit_result import FOLLOWED_TABLE_PREFIX
from tests.table.branches.conftest import begin, digest, ids, rows


def test_switches_of_the_branch_are_published(root: str, production: DeltaTable) -> None:
    production.set_properties({"dagsterDelta.readers": "polars"})
    branch = Branch(root, "dev")
    table = begin(branch, production)
    asked = {"dagsterDelta.readers": "deltalake", "delta.enableInCommitTimestamps": "true"}
    table.set_properties(asked)
    difference = branch.diff(production.uri).to_markdown()
    assert "`dagsterDelta.readers = deltalake`" in difference
    assert "`delta.enableInCommitTimestamps = true`" in difference
    [result] = branch.publish().values()
    found = production.refresh().metadata.configuration
    assert {key: found[key] for key in asked} == asked
    # The log of the branch has other versions.
    assert found["delta.inCommitTimestampEnablementVersion"] == str(result.version)
    production.append(rows(7))
    begin(branch, production).alter("UNSET TBLPROPERTIES ('dagsterDelta.readers')")
    branch.publish()
    assert "dagsterDelta.readers" not in production.refresh().metadata.configuration


def test_switches_that_production_got_before_a_rebase_stay(
    root: str, production: DeltaTable
) -> None:
    branch = Branch(root, "dev")
    begin(branch, production)
    asked = {"dagsterDelta.readers": "deltalake", "delta.enableInCommitTimestamps": "true"}
    production.set_properties(asked)
    branch.rebase(production.uri).append(rows(7))
    branch.publish()
    found = production.refresh().metadata.configuration
    assert {key: found[key] for key in asked} == asked


def test_dropped_feature_is_not_published(root: str, production: DeltaTable) -> None:
    branch = Branch(root, "dev")
    table = begin(branch, production)
    table.set_properties({"delta.enableDeletionVectors": "false"})
    table.drop_feature("deletionVectors")
    before = digest(f"{root}/raw")
    for call in (branch.publish, lambda: branch.diff(production.uri)):
        with pytest.raises(InvalidArgument, match="dropped the table feature deletionVectors"):
            call()
    assert digest(f"{root}/raw") == before
    table.set_properties({"delta.feature.deletionVectors": "supported"})
    branch.publish()
    assert ids(production) == [1, 2, 3, 4, 6]


def test_clustering_that_production_got_is_not_replaced(root: str) -> None:
    production = DeltaTable(f"{root}/t", must_exist=False)
    production.append(rows(1, 2))
    production.alter("CLUSTER BY (id)")
    branch = Branch(root, "dev")
    begin(branch, production).alter("CLUSTER BY (v)")
    production.alter("CLUSTER BY NONE")
    before = digest(f"{root}/t")
    with pytest.raises(CommitConflict, match="since the branch 'dev' began"):
        branch.publish()
    assert digest(f"{root}/t") == before


@pytest.mark.parametrize("has_followed", [False, True])
def test_position_that_production_reached_is_not_taken_back(
    root: str, production: DeltaTable, has_followed: bool
) -> None:
    app_id = f"{FOLLOWED_TABLE_PREFIX}upstream"
    branch = Branch(root, "dev")
    table = begin(branch, production)
    for one in (production, table) if has_followed else (production,):
        transaction = one.transaction()
        transaction.record_application(app_id, 7)
        transaction.commit("WRITE")
    table.refresh()
    table.append(rows(7))
    with pytest.raises(CommitConflict, match="since the branch 'dev' began"):
        branch.publish()
    assert production.refresh().transaction_version(app_id) == 7


def test_numbers_of_an_identity_column_are_given_once(root: str) -> None:
    production = DeltaTable.create(
        f"{root}/t",
        [Column("n", "BIGINT", identity=Identity()), Column("id", "BIGINT"), Column("v", "STRING")],
    )
    production.append(rows(1, 2))
    branch = Branch(root, "dev")
    begin(branch, production).append(rows(3, 4))
    branch.publish()
    production.refresh()
    production.append(rows(5, 6))
    found = production.snapshot().scan().to_arrow()
    assert sorted(found["n"].to_pylist()) == [1, 2, 3, 4, 5, 6]


def test_partition_that_the_branch_overwrote_is_published(root: str) -> None:
    production = DeltaTable(f"{root}/t", must_exist=False)
    for value in ("a", "b"):
        production.append(rows(1, 2, value=value), partition_by=["v"])
    before = set(production.snapshot().files()["path"].to_pylist())
    branch = Branch(root, "dev")
    begin(branch, production).overwrite(rows(3, value="b"), where="v = 'b'")
    [result] = branch.publish().values()
    assert ids(production) == [1, 2, 3]
    # The other partition has the same file.
    assert len(before & set(result.snapshot.files()["path"].to_pylist())) == 1


def test_restore_of_production_is_a_change_even_to_the_version_of_the_branch(root: str) -> None:
    production = DeltaTable(f"{root}/t", must_exist=False)
    production.append(rows(1))
    version = production.version()
    branch = Branch(root, "dev")
    begin(branch, production).append(rows(2))
    production.append(rows(3))
    production.restore(version)
    before = digest(f"{root}/t")
    with pytest.raises(CommitConflict, match="rebase"):
        branch.publish()
    assert digest(f"{root}/t") == before


def test_clean_up_of_productions_log_is_no_change_but_hides_later_ones(root: str) -> None:
    production = DeltaTable(f"{root}/t", must_exist=False)
    production.append(rows(1))
    production.append(rows(2))
    clean(production)
    branch = Branch(root, "dev")
    begin(branch, production).append(rows(3))
    clean(production)
    branch.publish()
    assert ids(production) == [1, 2, 3]
    begin(branch, production).append(rows(4))
    production.append(rows(5))
    clean(production)
    with pytest.raises((CommitConflict, VersionNotFound), match="rebase"):
        branch.publish()
    assert ids(production) == [1, 2, 3, 5]


def clean(table: DeltaTable) -> None:
    """Delete all commits before a checkpoint of the newest version."""
    table.refresh()
    table.checkpoint()
    for commit in Path(table.uri, "_delta_log").glob("*.json"):
        if int(commit.stem) < table.version():
            commit.unlink()
