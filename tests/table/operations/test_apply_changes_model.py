"""Random logs of change events, cut into runs in random order, against a model in plain Python."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from itertools import chain, zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow as pa
import pytest

from dagster_delta import DeltaTable
from tests.sample_tables import VECTORS
from tests.table.change_event_model import (
    SCHEMA,
    Event,
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


class Log(NamedTuple):
    """A random log in runs, and how its table is made."""

    runs: list[list[Event]]
    choices: tuple[bool, ...]


def history_log(seed: int) -> Log:
    rng = random.Random(seed)
    events = random_events(rng)
    has_feed = rng.random() < 0.5
    return Log(random_runs(rng, events), (has_feed,))


def newest_log(seed: int) -> Log:
    rng = random.Random(seed)
    choices = (rng.random() < 0.5, rng.random() < 0.4)
    return Log(random_runs(rng, random_events(rng)), choices)


def tables_of(logs: Sequence[Log]) -> Iterator[Log]:
    """The logs of each choice as one log of their own keys. A run costs the same for one log as for
    ten, and events of other keys do not matter.
    """
    tables: dict[tuple[bool, ...], list[Log]] = {}
    for log in logs:
        tables.setdefault(log.choices, []).append(log)
    for choices, found in tables.items():
        moved = [
            [[{**event, "k": event["k"] + 10 * place} for event in run] for run in log.runs]
            for place, log in enumerate(found)
        ]
        joined = (chain.from_iterable(runs) for runs in zip_longest(*moved, fillvalue=[]))
        yield Log([list(run) for run in joined], choices)


def check_history(seeds: Sequence[int], where: Path, engine: str | None = None) -> None:
    for log in tables_of([history_log(seed) for seed in seeds]):
        (has_feed,) = log.choices
        table = DeltaTable(str(where / f"h{seeds[0]}{has_feed}"), must_exist=False)
        if has_feed:
            properties = {**VECTORS, "delta.enableChangeDataFeed": "true"}
            kept = [field for field in SCHEMA if field.name not in ("op", "seq")]
            bounds = [SCHEMA.field("seq").with_name(name) for name in ("__START_AT", "__END_AT")]
            DeltaTable.create(table.uri, pa.schema([*kept, *bounds]), properties=properties)
        applied: list[Event] = []
        for run in log.runs:
            applied += run
            table.apply_changes(event_rows(run), engine=engine, **HISTORY)
            found = rows_of(table, "k", "v", "u", "__START_AT", "__END_AT")
            assert found == replay_history(applied), (seeds, has_feed)
        assert table.apply_changes(event_rows(applied), engine=engine, **HISTORY).skipped, seeds


def check_newest(seeds: Sequence[int], where: Path, engine: str | None = None) -> None:
    for log in tables_of([newest_log(seed) for seed in seeds]):
        keeps_no_sequence, fills = log.choices
        table = DeltaTable(str(where / f"n{seeds[0]}{log.choices}"), must_exist=False)
        options = {**NEWEST, "ignore_null_updates": fills}
        if keeps_no_sequence:
            options["except_column_list"] = ["op", "seq"]
        applied: list[Event] = []
        for run in log.runs:
            applied += run
            table.apply_changes(event_rows(run), engine=engine, **options)
            found, expected = rows_of(table, "k", "v", "u"), replay_newest(applied, fills=fills)
            assert found == expected, (seeds, log.choices)
        assert table.apply_changes(event_rows(applied), engine=engine, **options).skipped, seeds


@pytest.mark.parametrize("seed", range(12))
def test_history_of_events_in_any_order_is_their_replay(tmp_path: Path, seed: int) -> None:
    check_history([seed], tmp_path)


@pytest.mark.parametrize("seed", range(12))
def test_newest_rows_of_events_in_any_order_are_their_replay(tmp_path: Path, seed: int) -> None:
    check_newest([seed], tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("seed", [100, 101])
def test_spark_replays_events_likewise(tmp_path: Path, spark: SparkSession, seed: int) -> None:
    del spark
    check_history([seed], tmp_path, engine="spark")
    check_newest([seed], tmp_path, engine="spark")


@pytest.mark.exhaustive
@pytest.mark.parametrize("part", range(100))
def test_two_thousand_logs_are_their_replay(tmp_path: Path, part: int) -> None:
    seeds = range(1000 + 20 * part, 1020 + 20 * part)
    check_history(seeds, tmp_path)
    check_newest(seeds, tmp_path)
