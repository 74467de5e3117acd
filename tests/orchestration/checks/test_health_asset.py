"""The health page: the state of all tables of a lake in one materialization."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import dagster as dg
import pyarrow as pa
import pytest

from dagster_delta.errors import InvalidArgument
from dagster_delta.orchestration.checks.health_asset import delta_health_asset
from dagster_delta.table.delta_table import DeltaTable
from tests.orchestration.conftest import Lake, plain


@dg.asset(key_prefix=["raw"], metadata={"mode": "append", "partition_by": ["day"]})
def flights() -> pa.Table:
    return pa.table({"id": [1, 2, 3], "day": ["a", "a", "b"]})


@dg.asset(key_prefix=["raw"])
def never_stored() -> pa.Table:
    return pa.table({"id": [1]})


def write_tables(root: Path, count: int) -> None:
    for number in range(count):
        table = DeltaTable(str(root / f"t{number:03}"), must_exist=False)
        for _ in range(1 + number % 3):
            table.append(pa.table({"id": list(range(10 + number))}))


def report(result: dg.ExecuteInProcessResult, name: str = "delta_health") -> dict[str, Any]:
    (event,) = result.asset_materializations_for_node(name)
    return plain(event.metadata)


def rows_of(shown: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {each.data["table"]: each.data for each in shown["delta/tables"].records}


def test_a_hundred_tables_are_one_page(lake: Lake) -> None:
    write_tables(lake.root, 100)
    result = lake.materialize(delta_health_asset(root=str(lake.root)))
    shown = report(result)
    rows = rows_of(shown)
    assert len(rows) == shown["delta/num_tables"] == 100
    assert {each["state"] for each in rows.values()} == {"ok"}
    assert rows["t002"]["files"] == 3
    assert rows["t002"]["rows"] == 36
    assert rows["t002"]["version"] == 2
    (check,) = result.get_asset_check_evaluations()
    assert check.passed
    assert check.description == "All 100 tables are within the thresholds"


def test_what_needs_attention_is_named_first_with_its_limit(lake: Lake) -> None:
    for _ in range(3):
        lake.materialize(flights)
    write_tables(lake.root / "other", 2)
    (lake.root / "other" / "t000" / "_delta_log" / f"{0:020}.json").write_text("no json")
    page = delta_health_asset(
        assets=[flights, never_stored],
        tables={"broken": str(lake.root / "other" / "t000"), "good": str(lake.root / "other/t001")},
        thresholds={"num_small_files": 5, "deleted_share": None},
    )
    result = lake.materialize(page)
    shown = report(result)
    rows = rows_of(shown)
    assert [(name, each["state"]) for name, each in rows.items()] == [
        ("broken", "unreadable"),
        ("raw/flights", "num_small_files"),
        ("good", "ok"),
        ("raw/never_stored", "no table yet"),
    ]
    assert shown["delta/num_due_tables"] == 2
    assert (
        "[raw/flights](/assets/raw/flights): num&#95;small&#95;files is 6; the limit is 5"
        in (shown["delta/health"])
    )
    assert "- broken: cannot be read: " in shown["delta/health"]
    (check,) = result.get_asset_check_evaluations()
    assert not check.passed
    assert check.severity is dg.AssetCheckSeverity.WARN
    assert check.description == (
        "Files and logs of 2 of 4 tables are beyond a threshold: raw/flights, broken"
    )


def test_a_time_that_no_calendar_has_is_left_out(lake: Lake) -> None:
    timed = {"delta.enableInCommitTimestamps": "true"}
    uri = str(lake.root / "t")
    DeltaTable.create(uri, pa.schema([("id", pa.int64())]), properties=timed)
    commit = Path(uri, "_delta_log", f"{0:020}.json")
    # Microseconds, as a writer may record them.
    text = re.sub(r'("inCommitTimestamp":\d+)', r"\g<1>000", commit.read_text())
    commit.write_text(re.sub(r',?"contentCrc32":"?\w+"?', "", text))
    commit.with_suffix(".crc").unlink(missing_ok=True)
    rows = rows_of(report(lake.materialize(delta_health_asset(root=str(lake.root)))))
    assert rows["t"]["last commit (UTC)"] == ""


def test_growth_since_the_last_report_is_shown(lake: Lake) -> None:
    page = delta_health_asset(root=str(lake.root), key_prefix="ops", group_name="ops")
    write_tables(lake.root, 2)
    first = report(lake.materialize(page), "ops__delta_health")
    assert rows_of(first)["t000"]["growth"] is None
    DeltaTable(str(lake.root / "t000")).append(pa.table({"id": list(range(1000))}))
    second = report(lake.materialize(page), "ops__delta_health")
    rows = rows_of(second)
    assert rows["t000"]["growth"].startswith("+")
    assert rows["t001"]["growth"] == "0"
    assert second["delta/size_bytes"] > first["delta/size_bytes"]


def test_a_root_without_tables_is_a_warning(lake: Lake) -> None:
    (lake.root / "empty").mkdir(parents=True)
    result = lake.materialize(delta_health_asset(root=str(lake.root / "empty")))
    (check,) = result.get_asset_check_evaluations()
    assert not check.passed
    assert check.description == "No table was found: is the root the right one?"


def test_names_from_outside_are_text_and_no_markup(lake: Lake) -> None:
    write_tables(lake.root / "a<b>&[x](y)", 1)
    page = delta_health_asset(root=str(lake.root), thresholds={"num_files": 0})
    shown = report(lake.materialize(page))
    assert "a&#60;b&#62;&#38;&#91;x&#93;(y)/t000: num&#95;files" in shown["delta/health"]


def test_a_page_without_tables_or_with_unknown_thresholds_is_refused() -> None:
    with pytest.raises(InvalidArgument, match="no tables"):
        delta_health_asset()
    with pytest.raises(InvalidArgument, match="no smallness"):
        delta_health_asset(root="x", thresholds={"smallness": 1})
