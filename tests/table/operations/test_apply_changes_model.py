"""Random logs of change events, cut into runs in random order, against a model in plain Python."""

from __future__ import annotations

import random
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from dagster_delta import DeltaTable
from tests.sample_tables import VECTORS
from tests.table.change_event_model import (
    SCHEMA,
    event_rows,
    random_events,
    random_runs,
    replay_history,
    replay_newest,
    rows_of,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

HISTORY: dict[str, Any] = {
    "keys": ["k"],
    "sequence_by": "seq",
    "stored_as_scd_type": 2,
    "apply_as_deletes": "op = 'D'",
    "except_column_list": ["op", "seq"],
    "track_history_column_list": ["v"],
}
NEWEST: dict[str, Any] = {
    "keys": ["k"],
    "sequence_by": "seq",
    "apply_as_deletes": "op = 'D'",
    "except_column_list": ["op"],
}


def check_history(seed: int, where: Path, engine: str | None = None) -> None:
    rng = random.Random(seed)
    table = DeltaTable(str(where / f"h{seed}"), must_exist=False)
    events = random_events(rng)
    if rng.random() < 0.5:
        properties = {**VECTORS, "delta.enableChangeDataFeed": "true"}
        kept = [field for field in SCHEMA if field.name not in ("op", "seq")]
        bounds = [SCHEMA.field("seq").with_name(name) for name in ("__START_AT", "__END_AT")]
        DeltaTable.create(table.uri, pa.schema([*kept, *bounds]), properties=properties)
    applied = []
    for run in random_runs(rng, events):
        applied += run
        table.apply_changes(event_rows(run), engine=engine, **HISTORY)
        assert rows_of(table, "k", "v", "u", "__START_AT", "__END_AT") == replay_history(applied), (
            seed
        )
    done = table.apply_changes(event_rows(events), engine=engine, **HISTORY)
    assert done.skipped, seed


def check_newest(seed: int, where: Path, engine: str | None = None) -> None:
    rng = random.Random(seed)
    table = DeltaTable(str(where / f"n{seed}"), must_exist=False)
    options = dict(NEWEST)
    if keeps_no_sequence := rng.random() < 0.5:
        options["except_column_list"] = ["op", "seq"]
    if fills := rng.random() < 0.4:
        options["ignore_null_updates"] = True
    events, applied = random_events(rng), []
    for run in random_runs(rng, events):
        applied += run
        table.apply_changes(event_rows(run), engine=engine, **options)
        found, expected = rows_of(table, "k", "v", "u"), replay_newest(applied, fills=fills)
        assert found == expected, (seed, keeps_no_sequence, fills)
    assert table.apply_changes(event_rows(events), engine=engine, **options).skipped, seed


@pytest.mark.parametrize("seed", range(12))
def test_history_of_events_in_any_order_is_their_replay(tmp_path: Path, seed: int) -> None:
    check_history(seed, tmp_path)


@pytest.mark.parametrize("seed", range(12))
def test_newest_rows_of_events_in_any_order_are_their_replay(tmp_path: Path, seed: int) -> None:
    check_newest(seed, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("seed", [100, 101])
def test_spark_replays_events_likewise(tmp_path: Path, spark: SparkSession, seed: int) -> None:
    del spark
    check_history(seed, tmp_path, engine="spark")
    check_newest(seed, tmp_path, engine="spark")


@pytest.mark.exhaustive
@pytest.mark.parametrize("part", range(100))
def test_two_thousand_logs_are_their_replay(tmp_path: Path, part: int) -> None:
    for seed in range(1000 + 20 * part, 1020 + 20 * part):
        check_history(seed, tmp_path)
        check_newest(seed, tmp_path)
