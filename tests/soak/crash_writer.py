"""One writer process of the crash workload: it journals each step before and after."""

from __future__ import annotations

import json
import logging
import os
import random
import signal
import time
import traceback
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from dagster_delta import DeltaTable
from dagster_delta.errors import DeltaError
from dagster_delta.storage import open_store
from dagster_delta.testing.faulty_store import FaultyStore, Operation
from tests.soak.crash_steps import Step, choose_step, perform

STEP_LIMIT_S = 5.0
"""A step that takes longer is killed: VACUUM may delete what it has written."""


@dataclass(frozen=True)
class WriterTask:
    """What a writer process is started with."""

    root: str
    journal: str
    writer: int
    incarnation: int
    """How many processes this writer has had before."""
    seed: int
    stop: str
    """Path of a file; once it exists the writer ends after its step."""


class Journal:
    """The steps of one writer, as JSON lines; each line is one `write`."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    def begin(self, step: Step) -> None:
        """Record a step before anything is done for it."""
        self._write({"begin": asdict(step), "at": time.monotonic()})

    def end(self, step: Step, outcome: str, version: int | None, detail: str = "") -> None:
        """Record what the library answered."""
        answer = {"outcome": outcome, "version": version, "detail": detail}
        self._write({"end": step.id, "at": time.monotonic(), **answer})

    def _write(self, line: dict[str, Any]) -> None:
        os.write(self._file, json.dumps(line).encode() + b"\n")

    def entries(self) -> Iterator[dict[str, Any]]:
        """The lines so far; a kill may have cut the last one."""
        for line in self._path.read_text().splitlines():
            try:
                yield json.loads(line)
            except ValueError:
                continue

    def unfinished(self) -> Step | None:
        """The last step, if its process was killed during it."""
        last = None
        for entry in self.entries():
            last = Step.from_json(entry["begin"]) if "begin" in entry else None
        return last


def run_writer(task: WriterTask) -> None:
    """Make steps until told to stop, or killed."""
    logging.disable(logging.CRITICAL)
    chance = random.Random(f"{task.seed}.{task.writer}.{task.incarnation}")
    journal = Journal(Path(task.journal))
    suicide = _Suicide(chance)
    # Half of the processes read local files directly, the other half can be killed at a store call.
    store = open_store(task.root)
    through_store = chance.random() < 0.5
    wrapped = FaultyStore(store, before_call=suicide.before_call) if through_store else store
    table = DeltaTable(task.root, store=wrapped)
    left_over = journal.unfinished()
    if left_over is not None and left_over.kind == "idempotent_append":
        _make(table, journal, left_over)
    count = 0
    while not os.path.exists(task.stop):
        first = ((task.writer * 1000 + task.incarnation) * 1000 + count) * 20
        new_ids = tuple(range(first, first + chance.randint(2, 10)))
        step_id = f"w{task.writer}-{task.incarnation}-{count}"
        try:
            step = choose_step(table, chance, step_id, new_ids, f"app-{task.writer}")
        except DeltaError as error:
            # Nothing that others do may stop a reader; and nothing more can be chosen here.
            reading = Step(step_id, "read")
            journal.begin(reading)
            journal.end(reading, type(error).__name__, error.version, str(error))
            return
        suicide.arm()
        _make(table, journal, step)
        suicide.disarm()
        count += 1


def _make(table: DeltaTable, journal: Journal, step: Step) -> None:
    journal.begin(step)
    # The default action of the signal ends the process, whatever it is doing.
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.setitimer(signal.ITIMER_REAL, STEP_LIMIT_S)
    try:
        version = perform(table, step)
    except DeltaError as error:
        journal.end(step, type(error).__name__, error.version, str(error))
    except Exception:  # noqa: BLE001 - reported by the checker
        journal.end(step, "raised", None, traceback.format_exc())
    else:
        journal.end(step, "done", version)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)


class _Suicide:
    """Kills its own process at a chosen call of the store."""

    def __init__(self, chance: random.Random) -> None:
        self._chance = chance
        self._calls_left = 0

    def arm(self) -> None:
        """Choose the call for the next step, if it is to die at all."""
        self._calls_left = self._chance.randint(1, 40) if self._chance.random() < 0.3 else 0

    def disarm(self) -> None:
        """Survive until the next step."""
        self._calls_left = 0

    def before_call(self, _operation: Operation, _path: str) -> None:
        """Count a call, and die at the chosen one."""
        if self._calls_left:
            self._calls_left -= 1
            if not self._calls_left:
                os.kill(os.getpid(), signal.SIGKILL)
