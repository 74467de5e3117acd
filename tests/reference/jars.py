"""The JARs of delta-spark, the reference implementation, for tests that judge by it."""

from __future__ import annotations

import functools
import shutil
import subprocess
from pathlib import Path

POM = Path(__file__).with_name("pom.xml")
CACHE = Path(__file__).parents[2] / ".cache" / "delta-spark-jars"


@functools.cache
def resolve_jars() -> tuple[tuple[str, ...], str]:
    """The JAR paths, and why there are none when there are none."""
    stamp = CACHE / POM.stat().st_mtime_ns.__str__()
    if not stamp.exists():
        maven = shutil.which("mvn")
        if maven is None:
            return (), "delta-spark's JARs are absent: install Maven (mvn) to fetch them"
        shutil.rmtree(CACHE, ignore_errors=True)
        done = subprocess.run(
            [
                maven,
                "-B",
                "-q",
                "-f",
                str(POM),
                "dependency:copy-dependencies",
                "-DincludeScope=runtime",
                "-DincludeGroupIds=io.delta,io.unitycatalog",
                f"-DoutputDirectory={CACHE}",
            ],
            capture_output=True,
            text=True,
            timeout=600,
            check=False,
        )
        if done.returncode != 0 or not any(CACHE.glob("*.jar")):
            return (), "delta-spark's JARs are absent: Maven could not reach its repository"
        stamp.touch()
    return tuple(sorted(str(path) for path in CACHE.glob("*.jar"))), ""
