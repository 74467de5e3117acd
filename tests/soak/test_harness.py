"""The harness itself: it finds what it is meant to find."""

from __future__ import annotations

import json
import math
import random
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from threading import Event
from typing import Any

import pytest

from dagster_delta import DeltaTable
from tests.soak.crash_checker import check_round
from tests.soak.crash_steps import SCHEMA, Step, perform
from tests.soak.crash_writer import Journal
from tests.soak.fuzzer import Fuzzer, minimise
from tests.soak.part import Part, PartResult, Round, Unavailable, run_part
from tests.soak.parts import PARTS
from tests.soak.processes import ended, is_runnable, preloaded_processes
from tests.soak.summary import render_summary

pytestmark = pytest.mark.slow

STEPS = (
    Step("w0-0-0", "append", new_ids=(1, 2, 3), number=5),
    Step("w0-0-1", "update", ids=(1,), number=7),
    Step("w0-0-2", "idempotent_append", new_ids=(4,), number=4, name="app-0"),
    Step("w0-0-3", "delete", ids=(2,)),
)


@pytest.fixture
def crashed(tmp_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Round:
    """A round whose table, archive and journal agree."""
    result = PartResult("crash", 0, "kills")
    findings = tmp_path_factory.mktemp("findings")
    round_ = Round(0, random.Random(0), tmp_path, math.inf, True, result, findings)
    (tmp_path / "journals").mkdir()
    journal = Journal(tmp_path / "journals" / "writer-0.jsonl")
    for name in ("table", "archive"):
        DeltaTable.create(str(tmp_path / name), SCHEMA)
    table = DeltaTable(str(tmp_path / "table"))
    for step in STEPS:
        journal.begin(step)
        journal.end(step, "done", perform(table, step))
    return round_


def _titles(round_: Round) -> list[str]:
    root, archive = round_.scratch / "table", round_.scratch / "archive"
    for path in root.rglob("*"):
        if path.is_file():
            target = archive / path.relative_to(root)
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(path.read_bytes())
    check_round(round_, root, archive, round_.scratch / "journals")
    return [failure.title for failure in round_.result.failures]


def test_a_round_without_faults_passes_the_checker(crashed: Round) -> None:
    assert _titles(crashed) == []
    assert crashed.result.operations == len(STEPS)


def test_an_acknowledged_step_that_is_not_in_the_log_is_found(crashed: Round) -> None:
    journal = Journal(crashed.scratch / "journals" / "writer-1.jsonl")
    step = Step("w1-0-0", "append", new_ids=(9,))
    journal.begin(step)
    journal.end(step, "done", 3)
    assert _titles(crashed) == ["an acknowledged append is not in the log"]


def test_rows_that_no_step_wrote_are_found(crashed: Round) -> None:
    table = DeltaTable(str(crashed.scratch / "table"))
    table.delete("id = 3", commit_info={"operationId": "w0-0-0"})
    assert "rows lost" in _titles(crashed)


def test_a_step_that_was_committed_twice_is_found(crashed: Round) -> None:
    perform(DeltaTable(str(crashed.scratch / "table")), STEPS[0])
    assert {"append was committed twice", "rows doubled"} <= set(_titles(crashed))


def test_a_data_file_that_is_gone_is_found(crashed: Round) -> None:
    for path in (crashed.scratch / "table").rglob("*.parquet"):
        path.unlink()
    titles = _titles(crashed)
    assert titles
    assert "DataFileMissing" in titles[0]


def test_an_exception_outside_of_the_tree_is_found(crashed: Round) -> None:
    path = crashed.scratch / "journals" / "writer-0.jsonl"
    path.write_text(path.read_text().replace('"outcome": "done"', '"outcome": "raised"'))
    assert "delete on a sound table: raised" in _titles(crashed)


def test_versions_against_the_order_of_the_steps_are_found(crashed: Round) -> None:
    path = crashed.scratch / "journals" / "writer-0.jsonl"
    entries = [json.loads(line) for line in path.read_text().splitlines()]
    # The first step is said to have begun when all the others were over.
    entries[0]["at"] = entries[-1]["at"] + 1
    path.write_text("".join(json.dumps(each) + "\n" for each in entries))
    assert _titles(crashed) == ["the versions contradict the order of the steps"]


def _wait(began: Any) -> None:
    began.set()
    Event().wait()


def _spin(began: Any) -> None:
    began.set()
    while True:
        pass


@pytest.fixture
def start() -> Iterator[Callable[[Callable[[Any], None]], Any]]:
    """Starts a function in a process, and waits until it has begun."""
    started: list[Any] = []

    def begin(target: Callable[[Any], None]) -> Any:
        context = preloaded_processes()
        began = context.Event()
        process = context.Process(target=target, args=(began,))
        started.append(process)
        process.start()
        # Only a test that fails waits that long.
        assert began.wait(120)
        return process

    yield begin
    for process in started:
        process.kill()
        process.join()


def test_a_process_that_waits_for_ever_is_killed(start: Callable[[Any], Any]) -> None:
    process = start(_wait)
    assert not ended(process, idle_s=0.5)
    assert process.exitcode == -signal.SIGKILL


def test_a_process_that_ends_is_left_alone() -> None:
    process = preloaded_processes().Process(target=int)
    process.start()
    assert ended(process, idle_s=120)
    assert process.exitcode == 0


def test_a_busy_process_is_not_taken_for_one_that_hangs(start: Callable[[Any], Any]) -> None:
    # It can run at any time, however long a busy machine lets it wait.
    process = start(_spin)
    assert all(is_runnable(process.pid) for _ in range(100))


def _parse(data: bytes) -> object:
    return json.loads(data.decode("utf-8", "replace"))


def test_the_fuzzer_finds_an_exception_and_shortens_its_input() -> None:
    seen: list[bytes] = []
    fuzzer = Fuzzer(_parse, [b'{"a": [1, 2, 3]}'], (), random.Random(1), seen.append)
    fuzzer.run(50)
    finding = next(iter(fuzzer.findings.values()))
    assert finding.kind == "JSONDecodeError"
    assert len(minimise(_parse, finding).data) <= len(finding.data)
    assert len(seen) == 51


def _run(play: Callable[[Round], None], directory: Path) -> PartResult:
    return run_part(Part("p", "faults", play), seconds=0, seed=1, findings=directory)


def test_a_round_that_breaks_off_is_a_failure(tmp_path: Path) -> None:
    def play(_: Round) -> None:
        raise ValueError("broken")

    result = _run(play, tmp_path)
    assert [failure.title for failure in result.failures] == ["the round broke off: ValueError"]
    assert "PARTS=p SEED=1" in render_summary([result])


def test_the_input_of_a_failure_is_saved(tmp_path: Path) -> None:
    result = _run(lambda round_: round_.fail("a title", save=b"input"), tmp_path)
    (saved,) = tmp_path.iterdir()
    assert saved.read_bytes() == b"input"
    assert str(saved) in result.failures[0].detail


@pytest.mark.parametrize("name", list(PARTS))
@pytest.mark.examples(4)
def test_a_round_begins_nothing_after_its_time(name: str, tmp_path: Path) -> None:
    result = PartResult(name, 0, "attacks")
    round_ = Round(1, random.Random(0), tmp_path, 0.0, False, result, tmp_path / "findings")
    try:
        PARTS[name].play(round_)
    except Unavailable as missing:
        pytest.skip(str(missing))
    assert result.operations == 0
    assert not result.failures


def test_an_only_round_that_its_time_ended_says_so(tmp_path: Path) -> None:
    part = Part("p", "faults", lambda _: None, max_rounds=1)
    assert "time ended" in run_part(part, seconds=0, seed=1, findings=tmp_path).skipped
    whole = run_part(part, seconds=0, seed=1, findings=tmp_path, short=True)
    assert not whole.skipped
