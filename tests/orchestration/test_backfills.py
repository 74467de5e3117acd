"""Backfills of merging and incremental assets, each step in a process of its own."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import dagster as dg
import pytest

from tests.orchestration import backfilled_lake
from tests.orchestration.conftest import QUIET


@pytest.mark.exhaustive
def test_a_backfill_in_many_processes_loses_and_doubles_nothing(stored_lake, monkeypatch):
    """Its first run makes the tables; then the others merge into them at the same time."""
    monkeypatch.setenv("LAKE_ROOT", str(stored_lake.root))
    job = dg.reconstructable(backfilled_lake.make_job)

    def run(day: str) -> bool:
        with dg.execute_job(
            job,
            instance=stored_lake.instance,
            run_config=QUIET,
            tags={"dagster/partition": day, "dagster/backfill": "all"},
        ) as result:
            return result.success

    first, *others = backfilled_lake.DAYS.get_partition_keys()
    assert run(first)
    with ThreadPoolExecutor(len(others)) as pool:
        assert all(pool.map(run, others))
    assert stored_lake.column("id", "copied") == [10, 11, 20, 21, 30, 31]
    assert run(first)
    assert stored_lake.column("id", "source") == [10, 11, 20, 21, 30, 31]
    assert stored_lake.column("id", "copied") == [10, 11, 20, 21, 30, 31]
