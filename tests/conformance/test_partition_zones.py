"""Timestamps as partition values without an offset: they are in the zone of the session."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from dagster_delta import DeltaTable
from tests.conformance.engines import Engine

AT = dt.datetime(2020, 5, 4, 21, tzinfo=dt.UTC)  # 2020-05-05 00:00 in Vilnius
WHERE = "part = TIMESTAMP '2020-05-04T21:00:00Z'"


@pytest.fixture
def written_in_vilnius(
    engine: Engine, table: DeltaTable, monkeypatch: pytest.MonkeyPatch
) -> Iterator[DeltaTable]:
    """One instant, by a writer without offsets and by one with them, and a later one."""
    monkeypatch.setattr("dagster_delta.engines.session_time_zone", lambda: "Europe/Vilnius")
    times = pa.array([AT, AT + dt.timedelta(hours=1), AT + dt.timedelta(days=1)], pa.timestamp("us", "UTC"))  # fmt: skip
    table.append(pa.table({"id": [0, 1, 2], "part": times}), partition_by=["part"])
    log = Path(table.uri, "_delta_log")
    lines = (log / f"{0:020}.json").read_text().splitlines(keepends=True)
    text = "".join(line for line in lines if "commitInfo" not in line)
    text = text.replace('"2020-05-04T21:00:00.000000Z"', '"2020-05-05 00:00:00"')
    text = text.replace('"2020-05-04T22:00:00.000000Z"', '"2020-05-04T21:00:00.000000Z"')
    for checksum in log.glob("*.crc"):
        checksum.unlink()
    (log / f"{0:020}.json").write_text(text)
    if engine.session is not None:
        before = engine.session.conf.get("spark.sql.session.timeZone")
        engine.session.conf.set("spark.sql.session.timeZone", "Europe/Vilnius")
    yield DeltaTable(table.uri)
    if engine.session is not None:
        engine.session.conf.set("spark.sql.session.timeZone", str(before))


def test_both_spellings_are_read_and_found_as_one_instant(
    engine: Engine, written_in_vilnius: DeltaTable
) -> None:
    rows = engine.read(written_in_vilnius).to_pylist()
    assert sorted(row["id"] for row in rows if row["part"] == AT) == [0, 1]
    assert engine.count(written_in_vilnius.snapshot().scan(where=WHERE)) == 2


def test_a_delete_of_an_instant_removes_both_spellings(
    engine: Engine, written_in_vilnius: DeltaTable
) -> None:
    written_in_vilnius.delete(WHERE, engine=engine.name)
    assert engine.read(written_in_vilnius)["id"].to_pylist() == [2]


def test_a_dynamic_overwrite_replaces_both_spellings(
    engine: Engine, written_in_vilnius: DeltaTable
) -> None:
    data = pa.table({"id": [9], "part": pa.array([AT], pa.timestamp("us", "UTC"))})
    written_in_vilnius.overwrite(engine.rows(data), where="dynamic")
    assert sorted(engine.read(written_in_vilnius)["id"].to_pylist()) == [2, 9]


def test_a_checkpoint_keeps_the_meaning_of_both_spellings(
    engine: Engine, written_in_vilnius: DeltaTable
) -> None:
    written_in_vilnius.checkpoint()
    read = engine.read(DeltaTable(written_in_vilnius.uri))
    assert sorted(row["id"] for row in read.to_pylist() if row["part"] == AT) == [0, 1]
