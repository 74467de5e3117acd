"""Side-by-side measurement: fresh processes, interleaved, medians, time and peak memory.

A benchmark module declares `CASES` and ends with `main(__name__, __spec__.name, CASES)`. Each case
names a `prepare` function, run once, and one function per peer, each run in a process of its own;
a peer function does its imports first and returns a callable, and only that call is timed.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dagster_delta import DeltaTable

Prepare = Callable[[Path, int], None]
Peer = Callable[[Path, int], Callable[[], object]]


@dataclass(frozen=True)
class Case:
    """One workload and the libraries that run it. The first peer is ours."""

    title: str
    size: int
    """Rows, files or commits: what `prepare` and the peers are given."""
    prepare: Prepare
    peers: Mapping[str, Peer]
    rounds: int = 3


@dataclass(frozen=True)
class Measurement:
    seconds: float
    peak_mb: float
    result: str
    phases: dict[str, float]


_phases: defaultdict[str, float] = defaultdict(float)


@contextmanager
def phase(name: str) -> Iterator[None]:
    """Adds the seconds of the block to a phase of the measured call."""
    start = time.perf_counter()
    yield
    _phases[name] += time.perf_counter() - start


def linked_copy(table: Path, target: Path | None = None) -> str:
    """A copy of a table for one run; data files are never changed, so links to them do."""

    def link(source: str, destination: str) -> str:
        copy = shutil.copy2 if "_delta_log" in source else os.link
        copy(source, destination)
        return destination

    target = target or Path(tempfile.mkdtemp(dir=table.parent))
    shutil.copytree(table, target, copy_function=link, dirs_exist_ok=True)
    return str(target)


def _location(directory: Path, name: str, *, copied: bool) -> str:
    return linked_copy(directory / name) if copied else str(directory / name)


def ours(run: Callable[[DeltaTable], object], name: str = "table", *, copied: bool = False) -> Peer:
    """A peer that opens a table of the directory, or a copy of it, by this library."""

    def start(directory: Path, size: int) -> Callable[[], object]:
        from dagster_delta import DeltaTable

        uri = _location(directory, name, copied=copied)
        return lambda: run(DeltaTable(uri))

    return start


def theirs(run: Callable[[Any], object], name: str = "table", *, copied: bool = False) -> Peer:
    """As `ours`, by the package `deltalake`."""

    def start(directory: Path, size: int) -> Callable[[], object]:
        import deltalake

        uri = _location(directory, name, copied=copied)
        return lambda: run(deltalake.DeltaTable(uri))

    return start


def main(name: str, module: str, cases: Mapping[str, Case]) -> None:
    """Run the cases of a module as a script; with `--child`, one peer once."""
    if name != "__main__":
        return
    parser = argparse.ArgumentParser()
    parser.add_argument("cases", nargs="*", help=f"some of: {', '.join(cases)}")
    parser.add_argument("--scale", type=float, default=1.0, help="multiplies every size")
    parser.add_argument("--rounds", type=int)
    parser.add_argument("--child", nargs=4, metavar=("CASE", "PEER", "DIR", "SIZE"))
    arguments = parser.parse_args()
    if arguments.child:
        case, peer, directory, size = arguments.child
        _measure_here(cases[case].peers[peer], Path(directory), int(size))
        return
    print("| workload | " + "time, ours | time, peer | speed | memory, ours | peer | ratio |")
    print("|---|---|---|---|---|---|---|")
    for key in arguments.cases or cases:
        case = cases[key]
        size = max(1, int(case.size * arguments.scale))
        _run(module, key, case, size, arguments.rounds or case.rounds)


def _run(module: str, key: str, case: Case, size: int, rounds: int) -> None:
    with tempfile.TemporaryDirectory() as directory:
        case.prepare(Path(directory), size)
        samples: dict[str, list[Measurement]] = {peer: [] for peer in case.peers}
        for _ in range(rounds):
            for peer, taken in samples.items():
                taken.append(_measure_child(module, key, peer, directory, size))
    _print_phases(samples)
    ours, *others = samples
    for other in others:
        results = {sample.result for peer in (ours, other) for sample in samples[peer]}
        if len(results) > 1:
            print(f"  {key}: the peers disagree: {sorted(results)}", file=sys.stderr)
        mine, theirs = _median(samples[ours]), _median(samples[other])
        print(
            f"| {case.title.format(size=f'{size:,}')} against {other} | {mine[0]:.3f} s "
            f"| {theirs[0]:.3f} s | **{theirs[0] / mine[0]:.1f}×** | {mine[1]:.0f} MB "
            f"| {theirs[1]:.0f} MB | {mine[1] / theirs[1]:.2f} |",
            flush=True,
        )


def _print_phases(samples: Mapping[str, list[Measurement]]) -> None:
    for peer, taken in samples.items():
        for name in taken[0].phases:
            seconds = statistics.median(sample.phases[name] for sample in taken)
            print(f"  {peer}, {name}: {seconds:.2f} s", file=sys.stderr)


def _median(samples: list[Measurement]) -> tuple[float, float]:
    return (
        statistics.median(sample.seconds for sample in samples),
        statistics.median(sample.peak_mb for sample in samples),
    )


def _measure_child(module: str, key: str, peer: str, directory: str, size: int) -> Measurement:
    command = [sys.executable, "-m", module, "--child", key, peer, directory, str(size)]
    # As where packages are installed: what is imported late is not compiled again each time.
    environment = {
        **os.environ,
        "PYTHONPYCACHEPREFIX": str(Path(tempfile.gettempdir()) / "delta-benchmark-bytecode"),
    }
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    if done.returncode != 0:
        raise SystemExit(f"{key} by {peer} failed:\n{done.stderr[-4000:]}")
    return Measurement(**json.loads(done.stdout.splitlines()[-1]))


def _measure_here(peer: Peer, directory: Path, size: int) -> None:
    run = peer(directory, size)
    start, start_cpu = time.perf_counter(), time.process_time()
    result = run()
    seconds = time.perf_counter() - start
    _phases["CPU time"] = time.process_time() - start_cpu
    measured = Measurement(seconds, _peak_mb(), str(result), dict(_phases))
    print(json.dumps(asdict(measured)), flush=True)
    # Threads of a peer now and then abort the interpreter on its way out, when all is measured.
    os._exit(0)


def _peak_mb() -> float:
    status = Path("/proc/self/status")
    if status.exists():
        # ru_maxrss begins at what the parent took before it started this process.
        found = re.search(r"VmHWM:\s+(\d+) kB", status.read_text())
        if found is not None:
            return int(found[1]) / 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
