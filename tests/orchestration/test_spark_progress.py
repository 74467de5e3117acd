"""What a run shows of the Spark jobs that work for it."""

from __future__ import annotations

import re

import dagster as dg
import pytest

from dagster_delta.orchestration.spark_progress import watch_spark
from tests.orchestration.conftest import table_of

pytestmark = pytest.mark.spark

SLOW = "java_method('java.lang.Thread', 'sleep', 1500L)"


class Lines(list[str]):
    def info(self, msg: object) -> None:
        self.append(str(msg))


def test_long_work_is_reported_while_it_lasts(spark):
    lines = Lines()
    frame = spark.range(0, 2, 1, 2).selectExpr("id", f"coalesce({SLOW}, '') AS slept")
    with watch_spark(frame, lines, every_seconds=0.1) as work:
        frame.collect()
    assert any(re.search(r"stage \d+ \(.*\): \d+ of 2 tasks done, \d+ running", x) for x in lines)
    assert len(lines) == len(set(lines))
    assert (work.metadata["spark/jobs"], work.metadata["spark/tasks"]) == (1, 2)
    assert work.metadata["spark/application_id"] == spark.sparkContext.applicationId


def test_a_job_group_of_the_user_stays_and_its_older_jobs_do_not_count(spark):
    context = spark.sparkContext
    context.setJobGroup("mine", "what the user does")
    try:
        spark.range(3).collect()
        with watch_spark(spark.range(1), Lines()) as work:
            spark.range(0, 5, 1, 3).collect()
        assert work.metadata["spark/tasks"] == 3
        assert context.getLocalProperty("spark.jobGroup.id") == "mine"
    finally:
        context.setLocalProperty("spark.jobGroup.id", None)
    with watch_spark(spark.range(1), Lines()):
        pass
    assert context.getLocalProperty("spark.jobGroup.id") is None


def test_other_data_has_nothing_to_report(spark):
    with watch_spark([1], Lines()) as work:
        pass
    assert work.metadata == {}


def test_a_materialisation_of_a_frame_tells_what_spark_did(lake, events, spark):
    result = lake.materialize(events(spark.range(0, 4, 1, 2)))
    (materialisation,) = result.asset_materializations_for_node("events")
    assert materialisation.metadata["spark/tasks"].value >= 2
    assert materialisation.metadata["spark/failed_tasks"] == dg.IntMetadataValue(0)
    other = lake.materialize(events(table_of([{"id": 1}])))
    (materialisation,) = other.asset_materializations_for_node("events")
    assert not any(name.startswith("spark/") for name in materialisation.metadata)
