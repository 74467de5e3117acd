"""Part `crash`: writer processes on one local table, killed at random.

Each round has a new table with other properties. While the writers run, this process links every
file it sees into an archive, so that the checker still has the commits that log clean-up deletes
and the data files that VACUUM deletes. It also makes the oldest commits look 40 days old, so that
log clean-up has something to delete.
"""

from __future__ import annotations

import json
import os
import random
import signal
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from multiprocessing.context import ForkServerContext, ForkServerProcess
from pathlib import Path

from dagster_delta import DeltaTable
from tests.soak.crash_checker import check_round
from tests.soak.crash_steps import SCHEMA
from tests.soak.crash_writer import WriterTask, run_writer
from tests.soak.part import Round
from tests.soak.processes import preloaded_processes

WRITERS = 3
ROUND_S = 25.0
CROWD = 8
CROWD_STEPS = CROWD * 300
"""Every third long round has a crowd of writers, and ends after that many steps."""
CROWD_S = 1800.0
"""Limit of such a round on a slow machine."""
SHORT_ROUND_S = 9.0
KEPT_YOUNG = 20
"""How many of the latest commits keep their modification time."""
AGE_S = 40 * 86_400


def _properties(chance: random.Random) -> dict[str, str]:
    def tossed() -> str:
        return str(chance.random() < 0.5).lower()

    v2 = {"delta.feature.v2Checkpoint": "supported", "delta.checkpointPolicy": "v2"}
    return {
        "dagsterDelta.enableColumnChange": "true",
        "delta.columnMapping.mode": chance.choice(["name", "id"]),
        "delta.feature.allowColumnDefaults": "supported",
        "delta.checkpointInterval": str(chance.choice([3, 5, 10])),
        "delta.isolationLevel": chance.choice(["Serializable", "WriteSerializable"]),
        "delta.enableDeletionVectors": tossed(),
        "delta.enableChangeDataFeed": tossed(),
        "delta.enableRowTracking": tossed(),
        **(v2 if chance.random() < 0.3 else {}),
    }


@dataclass
class _Archive:
    """Hard links to the commits and data files of the table."""

    root: Path
    target: Path
    seen: set[str] = field(default_factory=set)
    latest: int = -1
    aged: int = 0

    def collect(self) -> None:
        """Link what is new. Files that are still being written grow in the archive as well."""
        for path in _files(self.root):
            relative = os.path.relpath(path, self.root)
            in_log = relative.startswith("_delta_log")
            if relative in self.seen or (in_log and not _is_commit(relative)):
                continue
            link = self.target / relative
            link.parent.mkdir(parents=True, exist_ok=True)
            with suppress(FileNotFoundError):
                os.link(path, link)
                self.seen.add(relative)
                if in_log:
                    self.latest = max(self.latest, int(Path(relative).stem))

    def age_old_commits(self) -> None:
        """Give old commits a modification time beyond the retention of the log."""
        while self.aged < self.latest - KEPT_YOUNG:
            moment = time.time() - AGE_S + self.aged
            for path in (self.root / "_delta_log").glob(f"{self.aged:020}.*"):
                with suppress(FileNotFoundError):
                    os.utime(path, (moment, moment))
            self.aged += 1


def _files(root: Path) -> Iterator[str]:
    for directory, _, files in os.walk(root):
        for name in files:
            if not name.startswith("."):
                yield os.path.join(directory, name)


def _is_commit(relative: str) -> bool:
    name = os.path.basename(relative)
    return len(name) == 25 and name.endswith(".json") and name[:20].isdigit()


@dataclass
class _Writers:
    """The writer processes, started again whenever one is gone."""

    round: Round
    root: Path
    directory: Path
    seed: int
    count: int
    context: ForkServerContext = field(default_factory=preloaded_processes)
    processes: dict[int, ForkServerProcess] = field(default_factory=dict)
    incarnations: dict[int, int] = field(default_factory=dict)

    def keep_running(self) -> None:
        """Start what is not running."""
        for writer in range(self.count):
            process = self.processes.get(writer)
            if process is not None and process.is_alive():
                continue
            if process is not None:
                self._note_end(process)
            incarnation = self.incarnations[writer] = self.incarnations.get(writer, -1) + 1
            task = WriterTask(
                str(self.root), str(self.directory / f"writer-{writer}.jsonl"),
                writer, incarnation, self.seed, str(self.directory / "stop"),
            )  # fmt: skip
            self.processes[writer] = self.context.Process(target=run_writer, args=(task,))
            self.processes[writer].start()

    def kill_one(self) -> None:
        """Send SIGKILL to a random writer."""
        alive = [process for process in self.processes.values() if process.is_alive()]
        if alive:
            self.round.random.choice(alive).kill()

    def finished_steps(self) -> int:
        """How many steps were journalled, about."""
        journals = self.directory.glob("*.jsonl")
        return sum(path.read_bytes().count(b"\n") for path in journals) // 2

    def stop(self) -> None:
        """Let each writer finish its step."""
        (self.directory / "stop").touch()
        for process in self.processes.values():
            process.join(20)
            if process.is_alive():
                self.round.fail("a writer did not stop", f"process {process.pid}")
                process.kill()
                process.join()
            self._note_end(process)

    def _note_end(self, process: ForkServerProcess) -> None:
        code = process.exitcode
        if code == -signal.SIGKILL:
            self.round.fault("kills")
        elif code == -signal.SIGALRM:
            self.round.fault("steps over the time limit")
        elif code:
            self.round.fail(f"a writer ended with exit code {code}")


def play_crash_round(round_: Round) -> None:
    """Create a table, let writers at it for a while, and check what they left."""
    root, directory = round_.scratch / "table", round_.scratch / "journals"
    archive = _Archive(root, round_.scratch / "archive")
    directory.mkdir()
    properties = _properties(round_.random)
    (directory / "properties.json").write_text(json.dumps(properties))
    DeltaTable.create(str(root), SCHEMA, properties=properties)
    is_crowded = not round_.short and round_.number % 3 == 2
    count = CROWD if is_crowded else WRITERS
    writers = _Writers(round_, root, directory, round_.random.randrange(1 << 30), count)
    began = time.monotonic()
    # The other half of the time is for the check of what they left.
    lasting = min(CROWD_S if is_crowded else ROUND_S, round_.seconds_left / 2)
    if round_.short:
        lasting = SHORT_ROUND_S
    next_kill = 10
    try:
        finished = 0
        while time.monotonic() - began < lasting and not (is_crowded and finished >= CROWD_STEPS):
            writers.keep_running()
            archive.collect()
            archive.age_old_commits()
            # Counted in steps, so that a slow machine does not only start processes.
            finished = writers.finished_steps()
            if finished >= next_kill:
                writers.kill_one()
                next_kill = finished + round_.random.randint(1, 12)
            time.sleep(0.03)
    finally:
        writers.stop()
    archive.collect()
    check_round(round_, root, archive.target, directory)
