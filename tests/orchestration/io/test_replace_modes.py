"""The modes `replace_using` and `replace_on`: what is replaced, what is refused, retries."""

from __future__ import annotations

import dagster as dg
import pyarrow as pa
import pytest

from dagster_delta.errors import InvalidArgument, PartitionMismatch
from tests.orchestration.conftest import table_of

OLD = table_of([{"day": 1, "v": "old"}, {"day": 2, "v": "old"}, {"day": None, "v": "old"}])
NEW = table_of([{"day": 2, "v": "new"}, {"day": 3, "v": "new"}, {"day": None, "v": "new"}])
USING = {"mode": "replace_using", "replace_using": ["day"]}
ON = {"mode": "replace_on", "replace_on": "t.day <=> s.day"}


def found(lake):
    return sorted(((row["day"], row["v"]) for row in lake.rows()), key=str)


def test_rows_of_the_same_day_are_replaced(lake, events):
    lake.materialize(events(OLD, metadata=USING))
    result = lake.materialize(events(NEW, metadata=USING))
    both = [(None, "new"), (None, "old")]
    assert found(lake) == sorted([(1, "old"), (2, "new"), (3, "new"), *both], key=str)
    metadata = lake.metadata(result)
    assert metadata["delta/mode"] == "replace_using"
    assert metadata["delta/rows_written"] == 3
    assert metadata["delta/rows_deleted"] == 1


def test_a_condition_says_that_null_equals_null(lake, events):
    lake.materialize(events(OLD, metadata=ON))
    lake.materialize(events(NEW, metadata=ON))
    assert found(lake) == sorted([(1, "old"), (2, "new"), (3, "new"), (None, "new")], key=str)


@pytest.mark.parametrize(
    "metadata",
    [
        {"mode": "replace_using"},
        {"mode": "overwrite", "replace_using": ["day"]},
        {"mode": "replace_on", "replace_using": ["day"]},
        {**USING, "schema_mode": "overwrite"},
        {**USING, "shared_table": True},
    ],
)
def test_a_mode_and_its_option_belong_together(lake, events, metadata):
    lake.materialize(events(OLD))
    assert isinstance(lake.fail(events(NEW, metadata=metadata)), InvalidArgument)
    assert len(lake.rows()) == 3


def test_a_run_replaces_rows_of_its_partition_alone(lake):
    def asset(value: pa.Table) -> dg.AssetsDefinition:
        @dg.asset(
            partitions_def=dg.StaticPartitionsDefinition(["de", "fr"]),
            metadata={**USING, "partition_expr": "land"},
        )
        def events() -> pa.Table:
            return value

        return events

    def rows(land: str, *values: tuple[int, str]) -> pa.Table:
        return table_of([{"land": land, "day": day, "v": v} for day, v in values])

    lake.materialize(asset(rows("de", (1, "old"), (2, "old"))), partition="de")
    lake.materialize(asset(rows("fr", (1, "old"))), partition="fr")
    lake.materialize(asset(rows("de", (1, "new"))), partition="de")
    assert sorted((row["land"], row["day"], row["v"]) for row in lake.rows()) == [
        ("de", 1, "new"),
        ("de", 2, "old"),
        ("fr", 1, "old"),
    ]
    error = lake.fail(asset(rows("fr", (1, "new"))), partition="de")
    assert isinstance(error, PartitionMismatch)


def test_a_retried_step_adds_rows_with_a_null_key_once(lake, monkeypatch):
    from dagster_delta.orchestration.io import asset_writer

    attempts = []
    describe = asset_writer._describe_result

    def fail_once(*arguments):
        attempts.append(1)
        if len(attempts) == 1:
            raise OSError("the worker died after the commit")
        return describe(*arguments)

    monkeypatch.setattr(asset_writer, "_describe_result", fail_once)

    @dg.asset(metadata=USING, retry_policy=dg.RetryPolicy(max_retries=1))
    def events() -> pa.Table:
        return table_of([{"day": None, "v": "once"}, {"day": 1, "v": "once"}])

    lake.materialize(events)
    assert len(attempts) == 2
    assert found(lake) == [(1, "once"), (None, "once")]
