"""The table at the end of a run, and the failures above it."""

from __future__ import annotations

from collections.abc import Iterable

from tests.soak.part import Failure, PartResult

_HEADINGS = ("part", "seconds", "rounds", "operations", "attacks", "failures", "repeat")


def render_summary(results: Iterable[PartResult]) -> str:
    """One line per part: time, operations, attacks, failures, and how to repeat it."""
    rows = [_HEADINGS, *(_row(result) for result in results)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(_HEADINGS))]
    lines = [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    ]
    lines.insert(1, "  ".join("-" * width for width in widths))
    return "\n".join(lines)


def _row(result: PartResult) -> tuple[str, ...]:
    repeat = f"PARTS={result.part} SEED={result.seed}"
    if result.skipped:
        repeat = (
            f"skipped: {result.skipped}" if not result.rounds else f"{repeat} ({result.skipped})"
        )
    return (
        result.part,
        f"{result.seconds:.0f}",
        str(result.rounds),
        str(result.operations),
        f"{result.faults.total()} {result.unit}",
        str(len(result.failures)),
        repeat,
    )


def describe_failures(results: Iterable[PartResult]) -> str:
    """The attacks by kind, and all failures with their details."""
    blocks = []
    for result in results:
        kinds = ", ".join(f"{count} {kind}" for kind, count in sorted(result.faults.items()))
        blocks.append(f"{result.part}: {kinds or 'nothing'}")
    for result in results:
        blocks += [_describe(result, failure) for failure in result.failures]
    return "\n".join(blocks)


def _describe(result: PartResult, failure: Failure) -> str:
    repeat = f"make soak PARTS={result.part} SEED={result.seed} ROUND={failure.round}"
    lines = [f"FAILURE in {result.part}: {failure.title}", f"  repeat: {repeat}"]
    lines += [f"  {line}" for line in failure.detail.splitlines()[:25]]
    return "\n".join(lines)
