"""Part `fuzz`: mutated inputs for every parser; only DeltaErrors may leave it."""

from __future__ import annotations

import json
import logging
import random
from pathlib import Path

from tests.soak.fuzz_targets import TARGETS
from tests.soak.fuzzer import Fuzzer, minimise
from tests.soak.hostile_tables import limit_resources
from tests.soak.part import Round
from tests.soak.processes import ended, preloaded_processes

INPUTS = 1500
SHORT_INPUTS = 150
PARSER_S = 60.0
IDLE_S = 300.0


def play_fuzz_round(round_: Round) -> None:
    """Give each parser some thousand inputs, in a process of its own."""
    inputs = SHORT_INPUTS if round_.short else INPUTS
    for name in round_.random.sample(list(TARGETS), len(TARGETS)):
        if round_.is_over:
            return
        current, report = round_.scratch / f"{name}.input", round_.scratch / f"{name}.report"
        seed, seconds = round_.random.randrange(1 << 30), min(PARSER_S, round_.seconds_left)
        arguments = (name, seed, inputs, seconds, str(current), str(report))
        process = preloaded_processes().Process(target=fuzz, args=arguments)
        process.start()
        ended(process, IDLE_S)
        if report.exists():
            found = json.loads(report.read_text())
            round_.result.operations += found["inputs"]
            round_.fault(f"inputs of {name} ({found['lines']} lines reached)", found["inputs"])
            for kind, place, message, data in found["findings"]:
                title = f"{name}: {kind} in {place}" if place else f"{name}: {kind}"
                shown = bytes.fromhex(data)
                round_.fail(title, f"{message}\n{shown[:300]!r}", save=shown)
        else:
            round_.fail(f"{name}: ended by {process.exitcode}", save=current)


def fuzz(name: str, seed: int, inputs: int, seconds: float, current: str, report: str) -> None:
    """Fuzz one parser; runs in its own process."""
    logging.disable(logging.CRITICAL)
    limit_resources(cpu_s=600)
    target = TARGETS[name]
    last = Path(current)
    fuzzer = Fuzzer(
        target.parse, target.seeds(), target.words, random.Random(seed), last.write_bytes
    )
    inputs = fuzzer.run(inputs, seconds)
    shortest = [minimise(target.parse, finding) for finding in fuzzer.findings.values()]
    findings = [(found.kind, found.place, found.message, found.data.hex()) for found in shortest]
    Path(report).write_text(
        json.dumps({"inputs": inputs, "lines": len(fuzzer.lines), "findings": findings})
    )
