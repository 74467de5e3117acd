"""Run every benchmark: `python -m benchmarks`, or one: `python -m benchmarks.scan`."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

for path in sorted(Path(__file__).parent.glob("[a-z]*.py")):
    if path.stem != "harness":
        print(f"\n## {path.stem}\n", flush=True)
        subprocess.run([sys.executable, "-m", f"benchmarks.{path.stem}", *sys.argv[1:]], check=True)
