"""What a run shows of the Spark jobs that work for it."""

from __future__ import annotations

import http.server
import re
import threading
from functools import partial

import dagster as dg
import pytest

from dagster_delta import DeltaTable, SparkSessionResource
from dagster_delta.errors import InvalidArgument
from dagster_delta.orchestration.maintenance.operations import OptimizeConfig
from dagster_delta.orchestration.resources import HISTORY_SERVER_URL
from dagster_delta.orchestration.spark_progress import (
    MAX_PLAN_CHARACTERS,
    physical_plan,
    stage_totals,
    watch_spark,
    without_secrets,
)
from tests.orchestration.conftest import table_of

pytestmark = pytest.mark.spark

SLOW = "java_method('java.lang.Thread', 'sleep', 1500L)"


class Lines(list[str]):
    def info(self, msg: object) -> None:
        self.append(str(msg))


@pytest.mark.classic("Connect tells of stages alone")
def test_long_work_is_reported_while_it_lasts(spark):
    lines = Lines()
    frame = spark.range(0, 2, 1, 2).selectExpr("id", f"coalesce({SLOW}, '') AS slept")
    with watch_spark(frame, lines, every_seconds=0.1) as work:
        frame.collect()
    assert any(re.search(r"stage \d+ \(.*\): \d+ of 2 tasks done, \d+ running", x) for x in lines)
    assert len(lines) == len(set(lines))
    assert (work["spark/jobs"], work["spark/tasks"]) == (1, 2)
    assert work["spark/application_id"] == spark.sparkContext.applicationId


@pytest.mark.classic("Connect tells of stages alone")
def test_a_job_group_of_the_user_stays_and_its_older_jobs_do_not_count(spark):
    context = spark.sparkContext
    context.setJobGroup("mine", "what the user does")
    try:
        spark.range(3).collect()
        with watch_spark(spark.range(1), Lines()) as work:
            spark.range(0, 5, 1, 3).collect()
        assert work["spark/tasks"] == 3
        assert context.getLocalProperty("spark.jobGroup.id") == "mine"
    finally:
        context.setLocalProperty("spark.jobGroup.id", None)
    with watch_spark(spark.range(1), Lines()):
        pass
    assert context.getLocalProperty("spark.jobGroup.id") is None


def test_other_data_has_nothing_to_report(spark):
    with watch_spark([1], Lines()) as work:
        pass
    assert work == {}


@pytest.mark.classic("Connect tells of stages alone")
def test_a_materialization_of_a_frame_tells_what_spark_did(lake, events, spark):
    result = lake.materialize(events(spark.range(0, 4, 1, 2)))
    (materialization,) = result.asset_materializations_for_node("events")
    assert materialization.metadata["spark/tasks"].value >= 2
    assert materialization.metadata["spark/failed_tasks"] == dg.IntMetadataValue(0)
    plan = materialization.metadata["spark/plan"]
    assert isinstance(plan, dg.MarkdownMetadataValue)
    assert "Arguments: Range (0, 4, step=1" in plan.value
    # The session has no UI, which is what tells bytes.
    assert "spark/input_bytes" not in materialization.metadata
    other = lake.materialize(events(table_of([{"id": 1}])))
    (materialization,) = other.asset_materializations_for_node("events")
    assert not any(name.startswith("spark/") for name in materialization.metadata)


@pytest.mark.classic("Connect tells of stages alone")
def test_an_optimize_by_spark_reports_its_stages_and_its_bytes(spark, tmp_path, monkeypatch):
    table = DeltaTable(str(tmp_path), must_exist=False)
    for start in range(3):
        table.append(spark.range(start, start + 100_000, 1, 1))
    often = partial(watch_spark, every_seconds=0.01)
    monkeypatch.setattr("dagster_delta.orchestration.maintenance.operations.watch_spark", often)
    lines = Lines()
    _, metadata = OptimizeConfig(engine="spark").run(table, lines, {})
    assert any(re.search(r"Spark: stage \d+ \(.*\): \d of \d tasks done", x) for x in lines)
    assert metadata["spark/tasks"] >= 1
    assert metadata["spark/output_bytes"] == metadata["delta/optimize_bytes_added"]
    assert "spark/plan" not in metadata
    _, embedded = OptimizeConfig().run(table, Lines(), {})
    assert not any(name.startswith("spark/") for name in embedded)


def test_the_bytes_written_are_those_of_the_files(lake, events, spark):
    rows = spark.range(0, 1000, 1, 2).selectExpr("id", "id % 3 AS p")
    result = lake.materialize(events(rows, metadata={"partition_by": ["p"]}))
    (materialization,) = result.asset_materializations_for_node("events")
    files = lake.table("events").snapshot().files()
    written = sum(files["size_bytes"].to_pylist())
    assert materialization.metadata["spark/output_bytes"].value == written


def test_a_link_leads_to_the_history_server_and_none_to_a_ui_that_ends(lake, events, spark):
    url = "http://history:18080/history/{application_id}/jobs"
    try:
        session = SparkSessionResource(history_server_url=url).session
        result = lake.materialize(events(session.range(3)))
    finally:
        spark.conf.unset(HISTORY_SERVER_URL)
    (materialization,) = result.asset_materializations_for_node("events")
    found = materialization.metadata["spark/history_server"].value
    assert found == url.replace("{application_id}", spark.conf.get("spark.app.id"))
    assert "spark/ui" not in materialization.metadata
    again = lake.materialize(events(spark.range(3)))
    (materialization,) = again.asset_materializations_for_node("events")
    assert "spark/history_server" not in materialization.metadata


@pytest.mark.parametrize(
    "url", ["http://host:18080/", "history/{application_id}", "http://me:hush@h/{application_id}"]
)
def test_a_history_server_that_makes_no_link_is_refused(url):
    with pytest.raises(InvalidArgument, match="history_server_url is an http or https URL") as told:
        _ = SparkSessionResource(history_server_url=url).session
    assert "hush" not in str(told.value)


def test_a_plan_shows_what_is_read_and_neither_secrets_nor_everything(spark, tmp_path):
    path = str(tmp_path / "rows")
    spark.range(3).selectExpr("id", "'x' AS token").write.parquet(path)
    frame = spark.read.parquet(path).where("token = 'hush' AND id > 1")
    plan = physical_plan(frame)
    assert "Scan parquet" in plan
    assert "id#" in plan
    assert "hush" not in plan
    assert "struct<id:bigint,token:string>" in plan
    wide = physical_plan(spark.range(1).selectExpr(*(f"id AS column_{n}" for n in range(2000))))
    assert len(wide) < MAX_PLAN_CHARACTERS + 100
    assert wide.endswith("characters")


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("s3a://user:hush@bucket/t", "s3a://***@bucket/t"),
        ("abfss://container@a.dfs/t", "abfss://container@a.dfs/t"),
        ("jdbc:postgresql://h/d?user=me&password=hush&ssl=1", "password=***&ssl=1"),
        ("abfss://c@a.dfs?sv=2024&sig=hush%2B&se=1", "sig=***&se=1"),
        ("[fs.s3a.secret.key=hush,fs.s3a.endpoint=e]", "secret.key=***,fs.s3a.endpoint=e]"),
        ("(api_token#7 = hush)", "(api_token#7 = ***)"),
        ("[EqualTo(token,hush), GreaterThan(id,1)]", "[EqualTo(token,***), GreaterThan(id,1)]"),
        ("id AKIAABCDEFGHIJKLMNOP", "id ***"),
        ("password: 'hush hush', a: 1", "password: ***, a: 1"),
    ],
)
def test_secrets_are_hidden_in_a_plan(text, shown):
    hidden = without_secrets(text)
    assert shown in hidden
    assert "hush" not in hidden


class Context:
    applicationId = "app/1"  # noqa: N815 - Spark's name

    def __init__(self, port: int) -> None:
        self.uiWebUrl = f"http://127.0.0.1:{port}"


def test_totals_are_of_the_stages_alone_and_a_ui_that_refuses_has_none():
    asked, answers = [], [b'[{"stageId": 1, "executorRunTime": 1500}, {"stageId": 2}]', b""]

    class Ui(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            asked.append(self.path)
            if answer := answers.pop(0):
                self.send_response(200)
                self.end_headers()
                self.wfile.write(answer)
            else:
                self.send_error(403)

        def log_message(self, *arguments):
            pass

    with http.server.HTTPServer(("127.0.0.1", 0), Ui) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        found = [stage_totals(Context(server.server_port), frozenset([1])) for _ in range(2)]
        server.shutdown()
    assert found[0]["spark/task_seconds"] == 1.5
    assert found[1] == {}
    assert asked == ["/api/v1/applications/app%2F1/stages"] * 2
