"""JARs that Maven fetches: of delta-spark, the reference implementation, and of Hadoop: S3A and ABFS,
and HDFS itself.
"""

from __future__ import annotations

import fcntl
import functools
import hashlib
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

import pyspark

POM = Path(__file__).with_name("pom.xml")
HADOOP_POM = Path(__file__).with_name("hadoop-pom.xml")
HDFS_POM = Path(__file__).with_name("hdfs-pom.xml")
CACHE = Path(__file__).parents[2] / ".cache" / "delta-spark-jars"


@functools.cache
def resolve_jars() -> tuple[tuple[str, ...], str]:
    """The JAR paths, and why there are none when there are none."""
    target = CACHE / hashlib.sha256(POM.read_bytes()).hexdigest()[:16]
    CACHE.mkdir(parents=True, exist_ok=True)
    with (CACHE / "lock").open("w") as lock:
        # Test workers ask at the same time.
        fcntl.flock(lock, fcntl.LOCK_EX)
        problem = "" if target.is_dir() else _download(target)
    return (() if problem else tuple(sorted(map(str, target.glob("*.jar"))))), problem


def delta_spark_settings(jars: tuple[str, ...]) -> dict[str, str]:
    """What a session is started with to have delta-spark."""
    return {
        "spark.jars": ",".join(jars),
        "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
        "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
    }


def _download(target: Path) -> str:
    """Fetch the JARs into `target`; what went wrong, or an empty text."""
    maven = shutil.which("mvn")
    if maven is None:
        return "delta-spark's JARs are absent: install Maven (mvn) to fetch them"
    partial = target.with_suffix(".partial")
    shutil.rmtree(partial, ignore_errors=True)
    command = [maven, "-B", "-q", "-f", str(POM), "dependency:copy-dependencies"]
    options = [
        "-DincludeScope=runtime",
        "-DincludeGroupIds=io.delta,io.unitycatalog",
        f"-DoutputDirectory={partial}",
    ]
    done = subprocess.run(command + options, capture_output=True, timeout=600, check=False)
    if done.returncode != 0 or not any(partial.glob("*.jar")):
        return "delta-spark's JARs are absent: Maven could not reach its repository"
    partial.rename(target)
    return ""


@functools.cache
def hadoop_class_path(pom: Path = HADOOP_POM) -> tuple[str | None, str]:
    """The class path of a part of the Hadoop of this Spark, and why there is none if there is none.

    The JARs stay in Maven's own repository: the SDK of AWS has 690 MB.
    """
    jars = Path(pyspark.__file__).parent / "jars"
    hadoop = next(jars.glob("hadoop-client-api-*.jar")).stem.rpartition("-")[2]
    part = hashlib.sha256(pom.read_bytes() + hadoop.encode()).hexdigest()[:16]
    # To ask Maven takes seconds, in each worker.
    known = CACHE / f"{part}.class-path"
    if known.is_file() and all(map(os.path.isfile, known.read_text().split(os.pathsep))):
        return known.read_text(), ""
    maven = shutil.which("mvn")
    if maven is None:
        return None, "JARs of Hadoop are absent: install Maven (mvn) to fetch them"
    with tempfile.TemporaryDirectory() as place:
        output = Path(place) / "class-path"
        command = [maven, "-B", "-q", "-f", str(pom), "dependency:build-classpath"]
        options = [f"-Dhadoop={hadoop}", f"-Dmdep.outputFile={output}"]
        try:
            done = subprocess.run(command + options, capture_output=True, timeout=540, check=False)
        except subprocess.TimeoutExpired:
            return None, "JARs of Hadoop are absent: Maven did not fetch them in nine minutes"
        if done.returncode != 0 or not output.is_file():
            return None, "JARs of Hadoop are absent: Maven could not reach its repository"
        CACHE.mkdir(parents=True, exist_ok=True)
        partial = CACHE / f"{part}.{os.getpid()}"
        partial.write_text(output.read_text().strip())
        partial.rename(known)
        return known.read_text(), ""
