"""Expectations of written rows, against a model in plain Python, on every engine."""

from __future__ import annotations

import datetime as dt
import json
import random
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from dagster_delta import DeltaTable, Expectation
from dagster_delta.errors import ConstraintViolation, ExpectationFailed, InvalidArgument
from dagster_delta.orchestration.quarantine import Quarantine, WriteQuarantine
from tests.conformance.engines import Engine

Row = Mapping[str, Any]

_COLUMNS = pa.schema(
    [
        pa.field("id", pa.int64()),
        pa.field("amount", pa.float64()),
        pa.field("shop", pa.string()),
        pa.field("day", pa.date32()),
    ]
)

_CONDITIONS: Mapping[str, Callable[[Row], bool | None]] = {
    "amount > 0": lambda row: None if row["amount"] is None else row["amount"] > 0,
    "id IS NOT NULL": lambda row: row["id"] is not None,
    "shop IN ('a', 'b')": lambda row: None if row["shop"] is None else row["shop"] in ("a", "b"),
    "length(shop) < 3 OR id % 2 = 0": lambda row: _either(
        None if row["shop"] is None else len(row["shop"]) < 3,
        None if row["id"] is None else row["id"] % 2 == 0,
    ),
    "id > 0 AND amount < 50": lambda row: _both(
        None if row["id"] is None else row["id"] > 0,
        None if row["amount"] is None else row["amount"] < 50,
    ),
}
"""Conditions, and what they are for a row."""


def _either(left: bool | None, right: bool | None) -> bool | None:
    if left or right:
        return True
    return None if left is None or right is None else False


def _both(left: bool | None, right: bool | None) -> bool | None:
    if left is False or right is False:
        return False
    return None if left is None or right is None else True


def _random_rows(chance: random.Random, count: int) -> list[dict[str, Any]]:
    return [
        {
            "id": chance.choice([None, *range(-3, 40)]),
            "amount": chance.choice([None, -1.5, 0.0, 0.5, 20.25, 99.0]),
            "shop": chance.choice([None, "a", "b", "long", "c"]),
            "day": None,
        }
        for _ in range(count)
    ]


def _random_rules(chance: random.Random, *, fails: bool) -> list[Expectation]:
    deeds = ["warn", "drop", "quarantine", *(["fail"] if fails else [])]
    names = chance.sample(sorted(_CONDITIONS), chance.randint(1, 4))
    return [
        Expectation(f"rule_{number}", sql, chance.choice(deeds))  # type: ignore[arg-type]
        for number, sql in enumerate(names)
    ]


def _quarantine_of(table: DeltaTable, run: str) -> WriteQuarantine:
    beside = Quarantine.beside(table.uri, "orders", {}, {"dagsterRunId": run})
    return WriteQuarantine.of_write(beside, (run, 1), ())


def _rows_aside(table: DeltaTable) -> list[tuple[str, tuple[str, ...]]]:
    uri = f"{table.uri}_quarantine"
    if not DeltaTable.is_delta_table(uri):
        return []
    rows = DeltaTable(uri).snapshot().scan().to_arrow().to_pylist()
    return sorted((row["row"], tuple(row["reasons"])) for row in rows)


@pytest.mark.parametrize("seed", range(6))
def test_rows_and_counts_are_those_of_the_model(
    table: DeltaTable, engine: Engine, seed: int
) -> None:
    chance = random.Random(seed)
    stored: list[dict[str, Any]] = []
    aside: list[tuple[str, tuple[str, ...]]] = []
    for number in range(3 if engine.name == "spark" else 12):
        rows = _random_rows(chance, chance.choice([0, 1, 7, 60]))
        rules = _random_rules(chance, fails=chance.random() < 0.2)
        given = pa.Table.from_pylist(rows, _COLUMNS)
        broken = [
            [rule for rule in rules if _CONDITIONS[rule.condition](row) is not True] for row in rows
        ]
        violations = {
            rule.name: count for rule in rules if (count := sum(rule in found for found in broken))
        }
        failed = [r for r in rules if r.on_violation == "fail" and r.name in violations]

        options: dict[str, Any] = {
            "partition_by": ["shop"] if seed % 2 else None,
            "expectations": rules,
            "quarantine": _quarantine_of(table, f"run {number}"),
        }
        if failed:
            existed, before = DeltaTable.is_delta_table(table.uri), _rows_aside(table)
            with pytest.raises(ExpectationFailed) as error:
                table.append(engine.rows(given), **options)
            assert error.value.violations == violations
            assert failed[0].name in str(error.value)
            assert f"{violations[failed[0].name]} of {len(rows)} rows" in str(error.value)
            assert error.value.examples
            assert _rows_aside(table) == before
            assert DeltaTable.is_delta_table(table.uri) == existed
            continue
        result = table.append(engine.rows(given), **options)
        assert result.observed is not None
        assert result.observed.violations == violations
        assert result.observed.num_rows == len(rows)
        moved = dropped = 0
        for row, found in zip(rows, broken, strict=True):
            deeds = {rule.on_violation for rule in found}
            if "quarantine" in deeds:
                moved += 1
                names = tuple(rule.name for rule in found)
                aside.append((json.dumps(row, separators=(",", ":")), names))
            elif "drop" in deeds:
                dropped += 1
            else:
                stored.append(row)
        assert (result.observed.num_set_aside, result.observed.num_dropped) == (moved, dropped)
    if DeltaTable.is_delta_table(table.uri):
        found_rows = DeltaTable(table.uri).snapshot().scan().to_arrow().to_pylist()
        assert Counter(map(repr, found_rows)) == Counter(map(repr, stored))
    assert _rows_aside(table) == sorted(aside)


def test_the_commit_says_how_rows_met_their_expectations(table: DeltaTable, engine: Engine) -> None:
    rows = pa.table({"id": [1, 2, None], "amount": [1.0, -1.0, None]})
    rules = [Expectation("positive", "amount > 0"), Expectation("known", "id > 0", "drop")]
    result = table.append(engine.rows(rows), expectations=rules)
    (commit,) = table.history()
    assert commit.commit_info["expectations"] == [
        {
            "name": "positive",
            "condition": "amount > 0",
            "onViolation": "warn",
            "passedRecords": 1,
            "failedRecords": 2,
        },
        {
            "name": "known",
            "condition": "id > 0",
            "onViolation": "drop",
            "passedRecords": 2,
            "failedRecords": 1,
        },
    ]
    assert result.metrics["numDroppedRows"] == 1
    assert result.metrics["numOutputRows"] == 2


def test_a_dropped_row_breaks_no_rule_of_the_table(table: DeltaTable, engine: Engine) -> None:
    made = DeltaTable.create(
        table.uri,
        pa.schema([pa.field("id", pa.int64(), nullable=False), pa.field("amount", pa.int32())]),
        properties={"delta.constraints.small": "amount < 100"},
    )
    rows = pa.table({"id": [1, None, 3], "amount": pa.array([5, 6, 2**40], pa.int64())})
    with pytest.raises(ConstraintViolation):
        made.append(engine.rows(rows.slice(0, 2)))
    rules = [
        Expectation("known", "id IS NOT NULL", "drop"),
        Expectation("small", "amount < 100", "drop"),
    ]
    result = made.append(engine.rows(rows), expectations=rules)
    assert result.observed is not None
    assert result.observed.num_dropped == 2
    assert made.snapshot().scan().to_arrow().to_pylist() == [{"id": 1, "amount": 5}]


def test_a_condition_that_is_no_condition_is_refused(table: DeltaTable, engine: Engine) -> None:
    rows = pa.table({"id": [1]})
    with pytest.raises(InvalidArgument, match="condition"):
        table.append(engine.rows(rows), expectations=[Expectation("sum", "id + 1")])
    rules = [Expectation("a", "id > 0"), Expectation("a", "id > 1")]
    with pytest.raises(InvalidArgument, match="two expectations"):
        table.append(engine.rows(rows), expectations=rules)
    with pytest.raises(InvalidArgument, match="pass quarantine"):
        table.append(engine.rows(rows), expectations=[Expectation("a", "id > 0", "quarantine")])


def test_a_repeated_write_doubles_no_row_set_aside(
    table: DeltaTable, engine: Engine, tmp_path: Path
) -> None:
    rows = pa.table({"id": [1, -2, -3]})
    rules = [Expectation("positive", "id > 0", "quarantine")]
    for _ in range(2):
        table.append(
            engine.rows(rows),
            idempotency=("run", 1),
            expectations=rules,
            quarantine=_quarantine_of(table, "run"),
        )
    assert [row for row, _ in _rows_aside(table)] == ['{"id":-2}', '{"id":-3}']
    # The process ended between the two commits: the table beside is there, the table is not.
    other = DeltaTable(str(tmp_path / "other"), must_exist=False)
    quarantine = _quarantine_of(other, "run")
    other.append(engine.rows(rows), expectations=rules, quarantine=quarantine)
    for file in (tmp_path / "other" / "_delta_log").iterdir():
        file.unlink()
    other = DeltaTable(str(tmp_path / "other"), must_exist=False)
    other.append(engine.rows(rows), expectations=rules, quarantine=quarantine)
    assert [row for row, _ in _rows_aside(other)] == ['{"id":-2}', '{"id":-3}']


def test_a_merge_takes_the_rows_that_are_as_expected(table: DeltaTable, engine: Engine) -> None:
    made = DeltaTable.create(table.uri, pa.schema({"id": pa.int64(), "amount": pa.float64()}))
    made.append(pa.table({"id": [1, 2, 3], "amount": [10.0, 20.0, 30.0]}))
    rows = pa.table({"id": [1, 2, None, 4, 5], "amount": [11.0, -2.0, 0.0, 40.0, None]})
    rules = [
        Expectation("positive", "amount > 0", "quarantine"),
        Expectation("known", "id IS NOT NULL", "drop"),
        Expectation("small", "amount < 40"),
    ]

    def merged(*given: Expectation) -> Any:
        merge = made.merge(
            engine.rows(rows),
            "t.id = s.id",
            expectations=given,
            quarantine=_quarantine_of(table, "run"),
        )
        return merge.when_matched_update_all().when_not_matched_insert_all().execute()

    with pytest.raises(ExpectationFailed, match="3 of 5 rows violate 'all'"):
        merged(*rules, Expectation("all", "id > 0 AND amount > 0", "fail"))
    assert made.refresh().version == 1
    assert _rows_aside(table) == []
    result = merged(*rules)
    assert result.observed.violations == {"positive": 3, "known": 1, "small": 2}
    assert (result.observed.num_set_aside, result.observed.num_dropped) == (3, 0)
    assert result.metrics["numQuarantinedRows"] == 3
    found = made.snapshot().scan().to_arrow().to_pylist()
    assert sorted((row["id"], row["amount"]) for row in found) == [
        (1, 11.0),
        (2, 20.0),
        (3, 30.0),
        (4, 40.0),
    ]
    assert _rows_aside(table) == [
        ('{"id":2,"amount":-2.0}', ("positive",)),
        ('{"id":5,"amount":null}', ("positive", "small")),
        ('{"id":null,"amount":0.0}', ("positive", "known")),
    ]
    # Nothing changes, and what is set aside is kept all the same.
    rows = rows.slice(1, 1)
    assert merged(rules[0]).skipped
    assert _rows_aside(table) == [('{"id":2,"amount":-2.0}', ("positive",))]


def test_condition_may_ask_the_clock(engine: Engine, table: DeltaTable) -> None:
    days = [dt.date(2020, 1, 1), dt.date(2199, 1, 1), None]
    at = [None if day is None else dt.datetime(day.year, 1, 1, tzinfo=dt.UTC) for day in days]
    given = pa.table({"day": days, "at": pa.array(at, pa.timestamp("us", "UTC"))})
    expectations = [
        Expectation("past_day", "day <= current_date()", on_violation="drop"),
        Expectation("past", "at IS NULL OR at <= current_timestamp()"),
    ]
    result = table.append(engine.rows(given), expectations=expectations)
    assert result.observed is not None
    assert result.observed.violations == {"past_day": 2, "past": 1}
    assert table.snapshot().scan().to_arrow()["day"].to_pylist() == days[:1]
