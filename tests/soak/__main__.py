"""`python -m tests.soak`: run the parts, print what was found and the summary.

The exit code is 1 if anything failed.
"""

from __future__ import annotations

import argparse
import logging
import secrets
import sys
import time
from pathlib import Path

from tests.soak.part import PartResult, run_part
from tests.soak.parts import PARTS
from tests.soak.summary import describe_failures, render_summary


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.soak", description=__doc__)
    parser.add_argument("--minutes", type=float, default=60.0, help="for all parts together")
    parser.add_argument("--parts", default="", help=f"some of: {','.join(PARTS)}")
    parser.add_argument("--seed", type=int, default=None, help="default: a new one")
    parser.add_argument("--round", type=int, default=None, help="repeat this round only")
    parser.add_argument("--short", action="store_true", help="one round of a sample, as in tests")
    parser.add_argument("--findings", type=Path, default=Path(".soak"), help="saved inputs")
    return parser.parse_args()


def main() -> int:
    """Run the parts that were asked for."""
    arguments = _arguments()
    logging.disable(logging.CRITICAL)
    names = [name for name in arguments.parts.split(",") if name] or list(PARTS)
    seed = secrets.randbelow(1_000_000) if arguments.seed is None else arguments.seed
    deadline = time.monotonic() + arguments.minutes * 60
    results: list[PartResult] = []
    for position, name in enumerate(names):
        # What a part leaves of its share goes to the parts after it.
        share = max(1.0, deadline - time.monotonic()) / (len(names) - position)
        sys.stdout.write(f"{name}: seed {seed}, up to {share:.0f} seconds\n")
        sys.stdout.flush()
        result = run_part(
            PARTS[name],
            seconds=share,
            seed=seed,
            findings=arguments.findings,
            short=arguments.short,
            only_round=arguments.round,
        )
        results.append(result)
    sys.stdout.write(f"\n{describe_failures(results)}\n\n{render_summary(results)}\n")
    return 1 if any(result.failures for result in results) else 0


if __name__ == "__main__":
    sys.exit(main())
