"""What the log tells about the shape of a table."""

from __future__ import annotations

import pytest

from dagster_delta.table.delta_table import DeltaTable
from tests.sample_tables import VECTORS, numbered_with_nulls
from tests.table.operations.test_optimize import make


def test_small_files_count_where_they_have_company() -> None:
    table = make(4, partition_by=("p",))
    table.delete("p IS NULL AND id > 10")
    health = table.health()
    assert health.num_files == 9
    # The partition of null is down to one file.
    assert health.num_small_files == 8
    assert health.num_partitions == 3
    assert health.small_file_share == pytest.approx(8 / 9)
    assert table.health(small_file_size=1).num_small_files == 0


def test_deleted_rows_are_counted_until_they_are_purged() -> None:
    table = make(2, VECTORS)
    table.delete("id % 4 = 0")
    health = table.health()
    assert health.num_files_with_deletions == 2
    assert health.num_deleted_records == 5
    assert health.deleted_share == 0.25
    table.optimize()
    assert table.health().deleted_share == 0


def test_commits_are_counted_from_the_last_checkpoint() -> None:
    table = make(3)
    assert table.health().commits_since_checkpoint == 3
    assert table.health().checkpoint_version is None
    table.checkpoint()
    table.append(numbered_with_nulls(1))
    refreshed = DeltaTable("", store=table.store).health()
    assert refreshed.checkpoint_version == 2
    assert refreshed.commits_since_checkpoint == 1


def test_skew_is_the_largest_partition_against_the_mean() -> None:
    table = make(1, partition_by=("p",))
    health = table.health()
    assert health.partition_skew == pytest.approx(
        health.largest_partition_bytes * 3 / health.size_bytes
    )
    assert health.average_file_bytes == pytest.approx(health.size_bytes / 3)


def test_an_empty_table_is_in_perfect_health() -> None:
    table = make(1)
    table.delete()
    health = table.health()
    assert (health.num_files, health.small_file_share, health.partition_skew) == (0, 0, 1)
    assert health.deleted_share == 0
    assert health.average_file_bytes == 0


def test_a_handle_that_wrote_all_along_knows_the_checkpoints_of_its_own_commits() -> None:
    table = make(13)
    assert table.health().checkpoint_version == 10
    assert table.health().commits_since_checkpoint == table.version() - 10
