"""A retried write happens once; a write somebody asks for again happens again."""

from __future__ import annotations

from typing import Any

import dagster as dg
import pytest

from dagster_delta.orchestration.io.run_facts import RunFacts
from tests.orchestration.conftest import table_of

ROWS = table_of([{"id": 1}, {"id": 2}])


class Crash:
    """Fails the step as often as told, after its output was stored."""

    def __init__(self, times: int) -> None:
        self.left = times

    def __call__(self) -> None:
        if self.left:
            self.left -= 1
            raise RuntimeError("the step died after its commit")


def crashing_asset(crash: Crash, **options: Any) -> dg.AssetsDefinition:
    """An asset that crashes between storing its table and the end of its step."""

    @dg.multi_asset(
        outs={
            "events": dg.AssetOut(is_required=False, **options),
            "late": dg.AssetOut(is_required=False),
        },
        retry_policy=dg.RetryPolicy(max_retries=3),
        can_subset=True,
    )
    def both():
        yield dg.Output(ROWS, output_name="events")
        crash()
        yield dg.Output(ROWS, output_name="late")

    return both


@pytest.mark.parametrize("crashes", [1, 3])
def test_a_retried_step_appends_once(lake, crashes):
    result = lake.materialize(crashing_asset(Crash(crashes)), mode="append")
    assert result.success
    assert lake.column("id") == [1, 2]
    assert lake.table().version() == 0
    skipped = lake.metadata_of_last("events")["delta/skipped"]
    assert "earlier attempt" in skipped


def test_a_retried_step_creates_once_under_mode_error(lake):
    assert lake.materialize(crashing_asset(Crash(2)), mode="error").success
    assert lake.column("id") == [1, 2]


def test_a_retried_step_overwrites_to_the_same_rows(lake):
    assert lake.materialize(crashing_asset(Crash(2)), mode="overwrite").success
    assert lake.column("id") == [1, 2]


def test_another_run_appends_anew(stored_lake, events):
    for _ in range(3):
        stored_lake.materialize(events(ROWS), mode="append")
    assert stored_lake.column("id") == [1, 1, 1, 2, 2, 2]


def test_every_partition_of_a_run_is_its_own_transaction(lake, events):
    colors = dg.StaticPartitionsDefinition(["red", "blue"])

    def produce(context):
        return table_of([{"p": key} for key in context.partition_keys])

    asset = events(produce, partitions_def=colors, metadata={"partition_expr": "p"})
    for key in ("red", "blue", "red"):
        lake.materialize(asset, partition=key, mode="append")
    assert lake.column("p") == ["blue", "red", "red"]


def test_overwrites_leave_no_transaction_in_the_log(lake, events):
    lake.materialize(events(ROWS))
    assert not lake.table().snapshot().transactions()


def test_a_new_table_forgets_the_runs_after_a_time(lake, events):
    lake.materialize(events(ROWS), mode="append")
    properties = lake.table().snapshot().configuration.properties
    assert properties.set_transaction_retention_ms == 90 * 24 * 3600 * 1000
    assert len(lake.table().snapshot().transactions()) == 1


def test_a_new_table_keeps_the_retention_that_is_configured(lake, events):
    key = "delta.setTransactionRetentionDuration"
    lake.materialize(events(ROWS), mode="append", table_properties={key: "interval 1 week"})
    assert lake.table().metadata().configuration[key] == "interval 1 week"


# ---- a run that Dagster retries by itself


def test_an_automatic_retry_of_a_run_appends_once(lake):
    crash = Crash(times=8)
    asset = crashing_asset(crash)
    first = lake.materialize(asset, mode="append", raise_on_error=False)
    assert not first.success
    retried = lake.materialize(
        asset,
        mode="append",
        tags={"dagster/retry_number": "1", "dagster/parent_run_id": first.run_id},
        raise_on_error=False,
    )
    again = lake.materialize(
        asset,
        mode="append",
        tags={"dagster/retry_number": "2", "dagster/parent_run_id": retried.run_id},
    )
    assert again.success
    assert lake.column("id") == [1, 2]


@pytest.mark.parametrize(
    "mark", ["dagster/is_resume_retry", "dagster/is_asset_resume_retry", "dagster/retry_number"]
)
def test_a_re_execution_from_failure_appends_once(lake, mark):
    """An operator, or the daemon, starts it for a run that was killed, maybe after its commit."""
    asset = crashing_asset(Crash(times=4))
    failed = lake.materialize(asset, mode="append", raise_on_error=False)
    assert not failed.success
    tags = {mark: "1" if mark.endswith("number") else "true"}
    tags["dagster/parent_run_id"] = failed.run_id
    assert lake.materialize(asset, mode="append", tags=tags).success
    assert lake.column("id") == [1, 2]


def test_every_re_execution_from_failure_of_a_chain_appends_nothing_again(lake):
    asset = crashing_asset(Crash(times=8))
    last = lake.materialize(asset, mode="append", raise_on_error=False)
    for is_last in (False, True):
        assert not last.success
        tags = {"dagster/is_resume_retry": "true", "dagster/parent_run_id": last.run_id}
        last = lake.materialize(asset, mode="append", tags=tags, raise_on_error=is_last)
    assert last.success
    assert lake.column("id") == [1, 2]


@pytest.mark.parametrize(
    "copied", [{"dagster/retry_number": "1"}, {"dagster/is_asset_resume_retry": "true"}]
)
def test_a_re_execution_with_the_tags_of_its_parent_appends_anew(lake, copied):
    """Re-execute selected and all steps, in the UI, keep them."""
    asset = crashing_asset(Crash(times=8))
    first = lake.materialize(asset, mode="append", raise_on_error=False)
    tags = {"dagster/parent_run_id": first.run_id, **copied}
    retried = lake.materialize(asset, mode="append", tags=tags, raise_on_error=False)
    tags = {"dagster/parent_run_id": retried.run_id, **copied}
    assert lake.materialize(asset, mode="append", tags=tags).success
    assert lake.column("id") == [1, 1, 2, 2]


def test_a_run_beside_the_retry_that_dagster_started_appends_anew(lake):
    asset = crashing_asset(Crash(times=8))
    first = lake.materialize(asset, mode="append", raise_on_error=False)
    tags = {"dagster/parent_run_id": first.run_id, "dagster/retry_number": "1"}
    retry = lake.materialize(asset, mode="append", tags=tags, raise_on_error=False)
    assert lake.column("id") == [1, 2]
    lake.instance.add_run_tags(first.run_id, {"dagster/auto_retry_run_id": retry.run_id})
    assert lake.materialize(asset, mode="append", tags=tags).success
    assert lake.column("id") == [1, 1, 2, 2]


def test_a_copied_resume_tag_after_a_success_appends_anew(lake, events):
    first = lake.materialize(events(ROWS), mode="append")
    tags = {"dagster/parent_run_id": first.run_id, "dagster/is_resume_retry": "true"}
    lake.materialize(events(ROWS), mode="append", tags=tags)
    assert lake.column("id") == [1, 1, 2, 2]


def test_a_re_execution_that_somebody_asked_for_appends_anew(lake, events):
    first = lake.materialize(events(ROWS), mode="append")
    lake.materialize(events(ROWS), mode="append", tags={"dagster/parent_run_id": first.run_id})
    assert lake.column("id") == [1, 1, 2, 2]


# ---- what a write says about its run


def idempotency(of: RunFacts) -> tuple[str, int] | None:
    return of.transaction_id


def facts(**changes: Any) -> RunFacts:
    values = {
        "output": "raw/events",
        "partition_keys": (),
        "run_id": "run",
        "attempt_id": "run",
        "job_name": "job",
        "step_key": "step",
    }
    return RunFacts(**{**values, **changes})


def test_the_id_names_asset_run_and_partition():
    assert idempotency(facts(partition_keys=("2013-01-01",))) == (
        "dagster/run/raw/events//2013-01-01",
        1,
    )


def test_the_id_of_many_partitions_does_not_depend_on_their_order():
    assert idempotency(facts(partition_keys=("a", "b"))) == idempotency(
        facts(partition_keys=("b", "a"))
    )
    assert idempotency(facts(partition_keys=("a", "b"))) != idempotency(
        facts(partition_keys=("a", "c"))
    )


def test_outside_of_a_run_there_is_no_id():
    assert idempotency(facts(run_id=None, attempt_id=None)) is None


def test_a_commit_names_run_asset_partitions_and_what_the_user_adds():
    info = facts(partition_keys=("a", "b")).commit_info({"team": "x"})
    assert info == {
        "team": "x",
        "dagsterRunId": "run",
        "dagsterJob": "job",
        "dagsterStep": "step",
        "dagsterAsset": "raw/events",
        "dagsterPartitions": "a, b",
    }


def test_a_backfill_of_many_partitions_does_not_swell_the_log():
    info = facts(partition_keys=tuple(map(str, range(1000)))).commit_info({})
    assert str(info["dagsterPartitions"]).startswith("1000 partitions: ")
