"""What a part of the soak run is: rounds with a seed each, counted and checked."""

from __future__ import annotations

import math
import random
import shutil
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path


class Unavailable(Exception):
    """The part cannot run on this machine; the message says what is missing."""


@dataclass(frozen=True)
class Failure:
    """One violated guarantee."""

    round: int
    title: str
    """What happened, without values that differ between runs: equal titles count as one failure."""
    detail: str


@dataclass
class PartResult:
    """What the rounds of one part counted and found."""

    part: str
    seed: int
    unit: str
    seconds: float = 0.0
    rounds: int = 0
    operations: int = 0
    faults: Counter[str] = field(default_factory=Counter)
    failures: list[Failure] = field(default_factory=list)
    skipped: str = ""
    """Why the part, or a piece of it, did not run."""


@dataclass
class Round:
    """One round of a part: its source of chance, its directory, and where it reports to."""

    number: int
    random: random.Random
    scratch: Path
    """An empty directory, deleted after the round."""
    deadline: float
    """The moment of the monotonic clock at which the round ends, whatever it has left to do."""
    short: bool
    """Whether to take a sample only, as the tests do."""
    result: PartResult
    findings: Path
    """Directory for the inputs of failures."""

    @property
    def seconds_left(self) -> float:
        """Time until the deadline."""
        return self.deadline - time.monotonic()

    @property
    def is_over(self) -> bool:
        """Whether the deadline has passed. Asked before each operation, or each attack."""
        return self.seconds_left <= 0

    def fault(self, kind: str, count: int = 1) -> None:
        """Count faults, kills or inputs by kind."""
        self.result.faults[kind] += count

    def fail(self, title: str, detail: str = "", *, save: Path | bytes | None = None) -> None:
        """Record a failure, and keep the file, directory or bytes that caused it.

        Only the first failure of each title is kept.
        """
        if any(failure.title == title for failure in self.result.failures):
            return
        if save is not None:
            detail = f"{detail}\nsaved: {self._save(save)}"
        self.result.failures.append(Failure(self.number, title, detail))

    def _save(self, source: Path | bytes) -> Path:
        count = len(self.result.failures)
        target = self.findings / f"{self.result.part}-{self.result.seed}-{self.number}-{count}"
        self.findings.mkdir(parents=True, exist_ok=True)
        if isinstance(source, bytes):
            target.write_bytes(source)
        elif source.is_dir():
            shutil.rmtree(target, ignore_errors=True)
            # FIFOs and links to devices are part of hostile tables.
            shutil.copytree(source, target, symlinks=True, ignore=_special_files)
        elif source.is_file():
            shutil.copyfile(source, target)
        return target


def _special_files(directory: str, names: list[str]) -> set[str]:
    paths = ((name, Path(directory, name)) for name in names)
    return {name for name, path in paths if not (path.is_file() or path.is_dir())}


@dataclass(frozen=True)
class Part:
    """A part of the harness."""

    name: str
    unit: str
    """What `Round.fault` counts: kills, faults, tables, inputs."""
    play: Callable[[Round], None]
    """Run one round. Raises Unavailable if the machine lacks something."""
    max_rounds: int | None = None
    """How many rounds differ from each other; None if every seed gives another one."""


def run_part(
    part: Part,
    *,
    seconds: float,
    seed: int,
    findings: Path,
    short: bool = False,
    only_round: int | None = None,
) -> PartResult:
    """The result of running rounds until the time is used up; at least one is run.

    Args:
        part: what to run.
        seconds: after that many seconds no round begins, and the one that runs begins nothing
            more. A round that is repeated, or takes a sample, runs to its end.
        seed: with the number of a round it decides everything that chance decides in it.
        findings: where inputs of failures are saved.
        short: whether to run one round that takes a sample.
        only_round: the one round to repeat.
    """
    result = PartResult(part.name, seed, part.unit)
    began = time.monotonic()
    deadline = began + seconds
    if short or only_round is not None:
        deadline = math.inf
    numbers = (
        iter(range(part.max_rounds or 1_000_000)) if only_round is None else iter([only_round])
    )
    for number in numbers:
        if result.rounds and (short or time.monotonic() >= deadline):
            break
        with tempfile.TemporaryDirectory(prefix=f"soak-{part.name}-") as scratch:
            chance = random.Random(f"{part.name}.{seed}.{number}")
            round_ = Round(
                number, chance, Path(scratch).resolve(), deadline, short, result, findings
            )
            try:
                part.play(round_)
            except Unavailable as missing:
                result.skipped = str(missing)
                break
            except Exception as error:  # noqa: BLE001 - a round that breaks off has failed
                title = f"the round broke off: {type(error).__name__}"
                round_.fail(title, traceback.format_exc(), save=round_.scratch)
        result.rounds += 1
        if part.max_rounds is not None and round_.is_over:
            result.skipped = result.skipped or "its time ended before its only round did"
    result.seconds = time.monotonic() - began
    return result
