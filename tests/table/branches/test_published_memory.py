"""AUTO CDC in a branch: what it remembers of change events begins and is published with the rows."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from dagster_delta.errors import CommitConflict
from dagster_delta.table.branches import publish
from dagster_delta.table.branches.branch import Branch
from dagster_delta.table.delta_table import DeltaTable
from dagster_delta.table.operations.clone import copy_files
from tests.table.branches.conftest import digest
from tests.table.change_event_model import (
    Event,
    event_rows,
    random_events,
    random_runs,
    replay_history,
    replay_newest,
    rows_of,
)

COLUMNS = {1: ("k", "v", "u"), 2: ("k", "v", "u", "__START_AT", "__END_AT")}
MODELS: dict[int, Any] = {1: replay_newest, 2: replay_history}

types = pytest.mark.parametrize("scd_type", [1, 2])


def apply(table: DeltaTable, events: list[Event], scd_type: int) -> None:
    """Apply events by the rules of all tests here."""
    rules: dict[str, Any] = {"track_history_column_list": ["v"]} if scd_type == 2 else {}
    table.apply_changes(
        event_rows(events),
        keys=["k"],
        sequence_by="seq",
        stored_as_scd_type=scd_type,
        apply_as_deletes="op = 'D'",
        except_column_list=["op", "seq"] if scd_type == 2 else ["op"],
        **rules,
    )


def event(key: int, seq: int, op: str, v: str = "a") -> Event:
    return {"k": key, "seq": seq, "op": op, "v": v, "u": 1}


def create(root: str, scd_type: int, *events: Event) -> DeltaTable:
    table = DeltaTable(f"{root}/t", must_exist=False)
    apply(table, [event(9, 1, "U"), *events], scd_type)
    return table


@types
def test_late_events_after_a_publication_find_what_the_branch_remembers(
    root: str, scd_type: int
) -> None:
    table = create(root, scd_type, event(1, 10, "D"))
    branch = Branch(root, "dev")
    own = branch.begin(table.uri)
    assert own is not None
    # Production has deleted key 1 at 10, the branch deletes key 2 at 20: earlier rows stay away.
    apply(own, [event(1, 5, "U"), event(2, 20, "D")], scd_type)
    assert "what AUTO CDC remembers" in branch.diff(table.uri).to_markdown()
    branch.publish()
    branch.drop(dry_run=False)
    apply(table, [event(2, 15, "U")], scd_type)
    events = [event(9, 1, "U"), event(1, 10, "D"), event(1, 5, "U")]
    events += [event(2, 20, "D"), event(2, 15, "U")]
    table.refresh()
    assert rows_of(table, *COLUMNS[scd_type]) == MODELS[scd_type](events)


@types
def test_random_events_in_branches_give_the_rows_of_all_events(root: str, scd_type: int) -> None:
    for seed in range(12):
        rng = random.Random(seed)
        first = event(9, 1, "U")
        table = create(f"{root}{seed}", scd_type)
        branch = Branch(f"{root}{seed}", "dev")
        applied, waiting, has_begun = [first], list[Event](), False
        for run in random_runs(rng, random_events(rng)):
            if rng.random() < 0.3 and not has_begun:
                apply(table, run, scd_type)
                applied += run
            else:
                own = branch.begin(table.uri)
                assert own is not None
                apply(own, run, scd_type)
                waiting, has_begun = waiting + run, True
                assert rows_of(own, *COLUMNS[scd_type]) == MODELS[scd_type](applied + waiting)
            if rng.random() < 0.4:
                has_begun &= all(result.skipped for result in branch.publish().values())
                applied, waiting = applied + waiting, []
            elif rng.random() < 0.2 and has_begun:
                branch.rebase(table.uri)
                waiting = []
            table.refresh()
            assert rows_of(table, *COLUMNS[scd_type]) == MODELS[scd_type](applied)


def test_memories_of_equal_versions_are_not_taken_for_each_other(root: str) -> None:
    for number in range(4):
        seen = [event(20 + key, 30, "D") for key in range(number)]
        table = create(f"{root}{number}", 1, event(1, 10, "D"))
        for one in seen:
            apply(table, [one], 1)
        branch = Branch(f"{root}{number}", "dev")
        own = branch.begin(table.uri)
        assert own is not None
        apply(own, [event(2, 20, "D")], 1)
        branch.publish()
        apply(table, [event(2, 15, "U")], 1)
        table.refresh()
        assert rows_of(table, "k") == [(9,)]


def test_new_table_is_published_with_what_it_remembers(root: str) -> None:
    branch, uri = Branch(root, "dev"), f"{root}/t"
    assert branch.begin(uri) is None
    own = DeltaTable(branch.table_uri(uri), must_exist=False)
    new = event_rows([event(9, 1, "U")]).drop(["op"])
    own.append(new, properties=branch.new_table_properties(uri))
    apply(own, [event(1, 10, "D")], 1)
    branch.publish()
    branch.drop(dry_run=False)
    table = DeltaTable(uri)
    apply(table, [event(1, 5, "U")], 1)
    table.refresh()
    assert [row[0] for row in rows_of(table, "k")] == [9]


def test_table_that_was_overwritten_in_the_branch_remembers_nothing(root: str) -> None:
    table = create(root, 1, event(1, 10, "D"))
    branch = Branch(root, "dev")
    own = branch.begin(table.uri)
    assert own is not None
    own.overwrite(own.snapshot().scan().to_arrow())
    branch.publish()
    apply(table, [event(1, 5, "U")], 1)
    table.refresh()
    assert sorted(rows_of(table, "k")) == [(1,), (9,)]


def test_event_that_production_remembers_meanwhile_is_a_conflict(root: str) -> None:
    table = create(root, 1, event(1, 10, "D"))
    branch = Branch(root, "dev")
    own = branch.begin(table.uri)
    assert own is not None
    apply(own, [event(2, 20, "D")], 1)
    # It changes no row.
    apply(table, [event(3, 30, "D")], 1)
    before = digest(root)
    with pytest.raises(CommitConflict, match="since the branch 'dev' began"):
        branch.publish()
    assert digest(root) == before


def test_publication_that_lost_to_another_leaves_what_production_remembers(
    root: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = create(root, 1, event(1, 10, "D"))
    branch = Branch(root, "dev")
    own = branch.begin(table.uri)
    assert own is not None
    apply(own, [event(2, 20, "D"), event(4, 1, "U")], 1)

    def apply_meanwhile(*arguments: Any, **options: Any) -> None:
        apply(table, [event(3, 30, "D")], 1)
        copy_files(*arguments, **options)

    monkeypatch.setattr(publish, "copy_files", apply_meanwhile)
    with pytest.raises(CommitConflict):
        branch.publish()
    apply(table, [event(key, 5, "U") for key in (1, 2, 3)], 1)
    table.refresh()
    assert rows_of(table, "k") == [(2,), (9,)]


def test_publication_that_another_call_made_meanwhile_is_skipped(
    root: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = create(root, 1, event(1, 10, "D"))
    branch = Branch(root, "dev")
    own = branch.begin(table.uri)
    assert own is not None
    apply(own, [event(2, 20, "D"), event(4, 1, "U")], 1)

    def publish_meanwhile(*arguments: Any, **options: Any) -> None:
        monkeypatch.setattr(publish, "copy_files", copy_files)
        Branch(root, "dev").publish()
        copy_files(*arguments, **options)

    monkeypatch.setattr(publish, "copy_files", publish_meanwhile)
    assert [result.skipped for result in branch.publish().values()] == [True]
    branch.drop(dry_run=False)
    apply(table, [event(key, 5, "U") for key in (1, 2, 3)], 1)
    table.refresh()
    assert rows_of(table, "k") == [(3,), (4,), (9,)]


def test_memory_is_no_table_of_the_branch(root: str) -> None:
    table = create(root, 1, event(1, 10, "D"))
    branch = Branch(root, "dev")
    branch.begin(table.uri)
    assert branch.tables() == [table.uri]
    assert Path(f"{branch.table_uri(table.uri)}_auto_cdc").is_dir()
