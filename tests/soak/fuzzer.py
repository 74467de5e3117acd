"""A mutating fuzzer that is guided by the lines of the library that an input reaches.

Own code rather than Atheris, whose wheels are for Linux on x86-64 only and not for each Python; the
parsers are small, and `sys.settrace` is fast enough for them.
"""

from __future__ import annotations

import random
import signal
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from types import CodeType, FrameType
from typing import Any

from dagster_delta.errors import DeltaError

MAX_BYTES = 60_000
CPU_S = 5.0
NUMBERS = (0, 1, 127, 128, 255, 65_535, 2**31 - 1, 2**31, 2**62, 2**63 - 1)


class _TooSlow(BaseException):
    """The input took more than `CPU_S` seconds of processor time."""


@dataclass(frozen=True)
class Finding:
    """An input for which something else than a DeltaError left the parser."""

    kind: str
    """Type of the exception."""
    place: str
    """Innermost function of the library on its way: equal places are one finding."""
    message: str
    data: bytes


@dataclass
class Fuzzer:
    """Mutates seeds, and keeps the mutants that reach new lines as further seeds."""

    parse: Callable[[bytes], object]
    seeds: list[bytes]
    words: tuple[bytes, ...]
    chance: random.Random
    before_input: Callable[[bytes], object]
    """Called with each input before it is parsed, which may crash the process."""
    lines: set[tuple[CodeType, int]] = field(default_factory=set)
    findings: dict[tuple[str, str], Finding] = field(default_factory=dict)

    def run(self, inputs: int, seconds: float = 3600.0) -> int:
        """Parse the seeds and up to so many mutants; how many there was time for."""
        deadline = time.monotonic() + seconds
        for seed in list(self.seeds):
            self._try(seed)
        for count in range(inputs):
            if time.monotonic() > deadline:
                return count
            mutant = self._mutate(self.chance.choice(self.seeds))
            if self._try(mutant):
                self.seeds.append(mutant)
        return inputs

    def _try(self, data: bytes) -> bool:
        """Whether the input reached new lines."""
        self.before_input(data)
        known = len(self.lines)
        sys.settrace(self._trace)
        try:
            finding = find(self.parse, data)
        finally:
            sys.settrace(None)
        if finding is not None:
            self.findings.setdefault((finding.kind, finding.place), finding)
        return len(self.lines) > known

    def _trace(self, frame: FrameType, _event: str, _argument: Any) -> Any:
        code = frame.f_code
        if "dagster_delta" not in code.co_filename:
            return None
        self.lines.add((code, frame.f_lineno))
        return self._trace_lines

    def _trace_lines(self, frame: FrameType, event: str, _argument: Any) -> Any:
        if event == "line":
            self.lines.add((frame.f_code, frame.f_lineno))
        return self._trace_lines

    def _mutate(self, data: bytes) -> bytes:
        for _ in range(self.chance.choice((1, 1, 2, 4))):
            data = self.chance.choice(_MUTATIONS)(self, data)
        return data[:MAX_BYTES]

    def _span(self, data: bytes) -> tuple[int, int]:
        start = self.chance.randint(0, len(data))
        return start, min(len(data), start + self.chance.choice((1, 2, 4, 8, 32, 128)))

    def _flip(self, data: bytes) -> bytes:
        if not data:
            return data
        at = self.chance.randrange(len(data))
        return data[:at] + bytes([data[at] ^ 1 << self.chance.randrange(8)]) + data[at + 1 :]

    def _cut(self, data: bytes) -> bytes:
        start, end = self._span(data)
        return data[:start] + data[end:]

    def _repeat(self, data: bytes) -> bytes:
        """Repeat a piece, often enough to nest deeply."""
        start, end = self._span(data)
        times = self.chance.choice((2, 3, 50, 2000))
        return data[:start] + data[start:end] * times + data[end:]

    def _insert(self, data: bytes) -> bytes:
        start, _ = self._span(data)
        word = self.chance.choice(self.words) if self.words else self.chance.randbytes(2)
        return data[:start] + word + data[start:]

    def _splice(self, data: bytes) -> bytes:
        other = self.chance.choice(self.seeds)
        (start, end), (from_, to) = self._span(data), self._span(other)
        return data[:start] + other[from_:to] + data[end:]

    def _number(self, data: bytes) -> bytes:
        """Put a number at a limit in place of a digit, or of bytes."""
        number = self.chance.choice(NUMBERS)
        digits = [at for at, byte in enumerate(data) if 48 <= byte <= 57]
        if digits and self.chance.random() < 0.8:
            at = self.chance.choice(digits)
            return (
                data[:at] + str(number * self.chance.choice((1, -1, 4))).encode() + data[at + 1 :]
            )
        start, _ = self._span(data)
        packed = number.to_bytes(8, self.chance.choice(("little", "big")))
        size = self.chance.choice((1, 4, 8))
        return data[:start] + packed[:size] + data[start + size :]


_MUTATIONS = (Fuzzer._flip, Fuzzer._cut, Fuzzer._repeat, Fuzzer._insert, Fuzzer._splice, Fuzzer._number)  # fmt: skip


def _too_slow(*_: object) -> None:
    raise _TooSlow


def find(parse: Callable[[bytes], object], data: bytes) -> Finding | None:
    """The finding that an input makes, if any."""
    signal.signal(signal.SIGVTALRM, _too_slow)
    signal.setitimer(signal.ITIMER_VIRTUAL, CPU_S)
    try:
        parse(data)
    except DeltaError:
        return None
    except _TooSlow:
        return Finding("too slow", "", f"more than {CPU_S} seconds", data)
    except Exception as error:  # noqa: BLE001 - it is what is looked for
        frames = traceback.extract_tb(error.__traceback__)
        own = [frame for frame in frames if "dagster_delta" in frame.filename]
        kind = type(error).__name__
        place = own[-1].name if own and kind != "RecursionError" else ""
        return Finding(kind, place, str(error)[:200], data)
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
    return None


def minimise(parse: Callable[[bytes], object], finding: Finding, tries: int = 300) -> Finding:
    """A finding of the same kind and place with a shorter input."""
    best, size = finding, max(1, len(finding.data) // 2)
    while size and tries:
        at = 0
        while at < len(best.data) and tries:
            tries -= 1
            shorter = find(parse, best.data[:at] + best.data[at + size :])
            if shorter and (shorter.kind, shorter.place) == (finding.kind, finding.place):
                best = shorter
            else:
                at += size
        size //= 2
    return best
