"""Commits as datasets of OpenLineage, and the events that the client of its users sends."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import dagster as dg
import deltalake
import pyarrow as pa
import pytest

from dagster_delta import (
    DeltaIOManager,
    DeltaTable,
    delta_sql_asset,
    openlineage_dataset,
)
from dagster_delta.orchestration.io.openlineage import _name_dataset


def test_a_commit_of_another_writer_is_a_dataset(tmp_path: Path) -> None:
    uri = str(tmp_path / "flights")
    deltalake.write_deltalake(uri, pa.table({"id": [1, 2], "day": ["a", "b"]}))
    deltalake.write_deltalake(uri, pa.table({"id": [3], "day": ["c"]}), mode="append")
    dataset = openlineage_dataset(
        DeltaTable(uri).snapshot(), {"id": [("s3://lake/raw/flights", "number")]}
    )
    json.dumps(dataset)
    assert (dataset["namespace"], dataset["name"]) == ("file", uri)
    facets = dataset["facets"]
    assert [column["name"] for column in facets["schema"]["fields"]] == ["id", "day"]
    assert facets["version"]["datasetVersion"] == "1"
    assert facets["columnLineage"]["fields"]["id"]["inputFields"] == [
        {"namespace": "s3://lake", "name": "raw/flights", "field": "number"}
    ]
    assert all(each["_schemaURL"].startswith("https://openlineage.io/") for each in facets.values())


def test_statistics_are_those_of_the_commit(tmp_path: Path) -> None:
    table = DeltaTable.create(str(tmp_path / "t"), pa.schema([("id", pa.int64())]))
    assert "rowCount" not in openlineage_dataset(table.snapshot())["outputFacets"]
    table.append(pa.table({"id": [1, 2, 3]}))
    snapshot = table.snapshot()
    statistics = openlineage_dataset(snapshot)["outputFacets"]["outputStatistics"]
    assert (statistics["rowCount"], statistics["fileCount"]) == (3, 1)
    assert statistics["size"] == snapshot.size_bytes


@pytest.mark.parametrize(
    ("uri", "namespace", "name"),
    [
        ("s3a://lake/raw/x", "s3://lake", "raw/x"),
        ("s3n://lake/x", "s3://lake", "x"),
        ("gs://lake/x/", "gs://lake", "x"),
        ("gcs://lake/x", "gs://lake", "x"),
        ("abfss://c@a.dfs.core.windows.net/x", "abfss://c@a.dfs.core.windows.net", "x"),
        ("/lake/x", "file", "/lake/x"),
        ("file:///lake/x", "file", "/lake/x"),
    ],
)
def test_names_follow_the_convention(uri: str, namespace: str, name: str) -> None:
    assert _name_dataset(uri) == {"namespace": namespace, "name": name}


@dg.asset
def flights() -> pa.Table:
    return pa.table({"id": [1, 2], "delay": [5, 7]})


totals = delta_sql_asset(
    "totals", "SELECT sum(delay) AS total FROM {flights}", {"flights": flights}
)


def materialize(tmp_path: Path) -> dg.ExecuteInProcessResult:
    manager = DeltaIOManager(root_uri=str(tmp_path / "lake"), openlineage=True)
    return dg.materialize([flights, totals], resources={"io_manager": manager})


def test_each_write_is_an_event_with_inputs_and_lineage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("openlineage.client", reason="events need openlineage-python")
    sent = tmp_path / "events"
    monkeypatch.setenv("OPENLINEAGE__TRANSPORT__TYPE", "file")
    monkeypatch.setenv("OPENLINEAGE__TRANSPORT__LOG_FILE_PATH", str(sent))
    monkeypatch.setenv("OPENLINEAGE__TRANSPORT__APPEND", "true")
    run_id = materialize(tmp_path).run_id
    events: list[dict[str, Any]] = [json.loads(line) for line in sent.read_text().splitlines()]
    assert [(each["eventType"], each["job"]["name"]) for each in events] == [
        ("START", "flights"),
        ("COMPLETE", "flights"),
        ("START", "totals"),
        ("COMPLETE", "totals"),
    ]
    last = events[-1]
    assert last["run"]["runId"] == events[-2]["run"]["runId"] != events[0]["run"]["runId"]
    assert last["run"]["facets"]["parent"]["run"]["runId"] == run_id
    upstream = {"namespace": "file", "name": f"{tmp_path}/lake/public/flights"}
    (loaded,) = last["inputs"]
    assert {key: loaded[key] for key in upstream} == upstream
    assert loaded["facets"]["version"]["datasetVersion"] == "0"
    (output,) = last["outputs"]
    assert output["name"] == f"{tmp_path}/lake/public/totals"
    assert output["outputFacets"]["outputStatistics"]["rowCount"] == 1
    lineage = output["facets"]["columnLineage"]["fields"]["total"]["inputFields"]
    assert lineage == [{**upstream, "field": "delay"}]


def test_a_run_does_not_fail_for_its_events(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("openlineage.client", reason="events need openlineage-python")
    monkeypatch.setenv("OPENLINEAGE__TRANSPORT__TYPE", "file")
    monkeypatch.setenv("OPENLINEAGE__TRANSPORT__LOG_FILE_PATH", "/no/such/directory/events")
    monkeypatch.setenv("OPENLINEAGE__TRANSPORT__APPEND", "true")
    assert materialize(tmp_path).success


def test_nothing_is_written_without_the_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run that fails after its commit would be repeated, and append its rows twice."""
    monkeypatch.setitem(sys.modules, "openlineage.client", None)

    @dg.asset(metadata={"mode": "append"})
    def flights() -> pa.Table:
        return pa.table({"id": [1]})

    manager = DeltaIOManager(root_uri=str(tmp_path), openlineage=True)
    run = dg.materialize([flights], resources={"io_manager": manager}, raise_on_error=False)
    failure = run.failure_data_for_node("flights")
    assert failure is not None
    assert "pip install" in str(failure.error)
    assert not DeltaTable.is_delta_table(str(tmp_path / "public/flights"))
