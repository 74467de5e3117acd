"""The history of a table in the UI: who did what in which run."""

from __future__ import annotations

import dagster as dg
import deltalake
import pyarrow as pa

from dagster_delta.errors import StorageFailure
from dagster_delta.orchestration.sensors.observations import observable_delta_asset
from dagster_delta.orchestration.table_metadata import history_markdown
from dagster_delta.table.read.history import HistoryEntry
from tests.orchestration.conftest import QUIET, plain


def rows_of(markdown: str) -> list[list[str]]:
    return [[cell.strip() for cell in line.split("|")[1:-1]] for line in markdown.split("\n")[2:]]


def entry(**info: object) -> HistoryEntry:
    return HistoryEntry(7, 1_700_000_000_000, info)


def test_every_commit_links_to_the_run_that_made_it(lake, events) -> None:
    asset = events(pa.table({"id": [1, 2]}), metadata={"show_history": 10, "mode": "append"})
    first = lake.materialize(asset)
    deltalake.write_deltalake(lake.table().uri, pa.table({"id": [3]}), mode="append")
    second = lake.materialize(asset)
    mine, theirs, oldest = rows_of(lake.metadata(second)["delta/history"])
    assert [mine[0], theirs[0], oldest[0]] == ["2", "1", "0"]
    link = "[{0}](/runs/{1}) events"
    assert mine[4] == link.format(second.run_id[:8], second.run_id)
    assert oldest[4] == link.format(first.run_id[:8], first.run_id)
    assert "/runs/" not in theirs[4]
    assert theirs[4].startswith("delta-rs")
    assert (mine[2], mine[3]) == ("WRITE", "2 written")
    assert (theirs[2], theirs[3]) == ("WRITE", "1 written")


def test_an_observation_shows_the_runs_that_wrote_the_table(lake, events) -> None:
    written = lake.materialize(events(pa.table({"id": [1]})))
    key = dg.AssetKey(["seen", "events"])
    asset = observable_delta_asset(key, lake.table().uri, show_history=5)
    job = dg.Definitions(assets=[asset]).resolve_implicit_global_asset_job_def()
    result = job.execute_in_process(instance=lake.instance, run_config=QUIET)
    (seen,) = result.asset_observations_for_node("seen__events")
    (row,) = rows_of(plain(seen.metadata)["delta/history"])
    assert f"/runs/{written.run_id}" in row[4]


def test_history_is_shown_by_default_and_may_be_left_out(lake, events) -> None:
    rows = pa.table({"id": [1]})
    for _ in range(7):
        result = lake.materialize(events(rows))
    shown = rows_of(lake.metadata(result)["delta/history"])
    assert [each[0] for each in shown] == ["6", "5", "4", "3", "2"]
    assert "delta/history" not in lake.metadata(lake.materialize(events(rows), show_history=0))
    silent = events(rows, metadata={"show_history": 0})
    assert "delta/history" not in lake.metadata(lake.materialize(silent))


def test_a_history_that_cannot_be_read_does_not_fail_the_run(lake, events, monkeypatch) -> None:
    def fail(*_):
        raise StorageFailure("the storage is away")

    monkeypatch.setattr("dagster_delta.orchestration.table_metadata.latest_commits", fail)
    result = lake.materialize(events(pa.table({"id": [1]})))
    assert result.success
    assert "delta/history" not in lake.metadata(result)


def test_the_history_ends_where_the_log_was_cleaned_up(lake, events) -> None:
    asset = events(pa.table({"id": [1]}), metadata={"mode": "append"})
    for _ in range(4):
        lake.materialize(asset)
    lake.table().checkpoint()
    (lake.root / "public/events/_delta_log/00000000000000000001.json").unlink()
    shown = rows_of(lake.metadata(lake.materialize(asset, show_history=9))["delta/history"])
    assert [each[0] for each in shown] == ["4", "3", "2"]


def test_the_history_shows_no_more_commits_than_asked_for(lake, events) -> None:
    asset = events(pa.table({"id": [1]}), metadata={"delta/show_history": 2, "mode": "append"})
    for _ in range(3):
        result = lake.materialize(asset)
    assert [each[0] for each in rows_of(lake.metadata(result)["delta/history"])] == ["2", "1"]


def test_a_merge_tells_its_rows_without_those_it_copied() -> None:
    metrics = {
        "numOutputRows": "1000",
        "numTargetRowsInserted": "2",
        "numTargetRowsUpdated": "0",
        "numTargetRowsDeleted": "1500",
    }
    (row,) = rows_of(history_markdown([entry(operation="MERGE", operationMetrics=metrics)]))
    assert row[:4] == ["7", "2023-11-14 22:13:20", "MERGE", "2 inserted, 1,500 deleted"]


def test_what_a_commit_says_is_text_and_never_markup() -> None:
    hostile = "a | b\n[click](javascript:x) <script> `x` ![](y)"
    markdown = history_markdown([entry(operation=hostile, userMetadata=hostile, dagsterRunId="..")])
    (row,) = rows_of(markdown)
    assert len(row) == 6
    assert not set("<[]`!") & set(row[2] + row[5])
    assert row[4] == ""
