"""An archive of the classes that Spark's JVM loads, which makes it start in about half the time.

One session writes the archive when its JVM ends. Later sessions map it into memory instead of
reading, parsing and verifying ten thousand classes. A JVM ignores an archive that does not fit it
and its JARs.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from dagster_delta.errors import InvalidArgument

_JVM_OPTIONS = "SPARK_SUBMIT_OPTS"
"""Environment variable with options that Spark gives to a driver's JVM, before its settings."""

# With directories on the class path, a JVM writes no archive and prints a warning.
_CLASS_PATH_VARIABLES = (
    "HADOOP_CONF_DIR",
    "YARN_CONF_DIR",
    "SPARK_DIST_CLASSPATH",
    "SPARK_PREPEND_CLASSES",
)
_CLASS_PATH_SETTING = "spark.driver.extraClassPath"
_OPTION_VARIABLES = ("JAVA_TOOL_OPTIONS", "JDK_JAVA_OPTIONS", "PYSPARK_SUBMIT_ARGS", _JVM_OPTIONS)
_OPTION_SETTINGS = ("spark.driver.extraJavaOptions", "spark.driver.defaultJavaOptions")
_OTHER_ARCHIVE = re.compile(
    r"Archive|Shared|-Xshare|-XX:AOT|-javaagent|-agent|-Xboot|-XX:Flags|extraClassPath|class[-.]?path|-cp\b"
)
"""Options of users who have their own archive, or change classes while they are loaded."""

# Do not log failures to archive or map classes: everything works without.
_QUIETLY = "-Xshare:auto -Xlog:cds*=off"

_WHOLE = b"\xa8\xab\x0b\xf0"
"""The first bytes of an archive. A JVM writes them last."""

_UNQUOTABLE = re.compile(r'["\\\n]')
_LONGEST_OPTION = 100_000
"""Characters; Linux starts no process with an argument of more than 128 KiB."""

_ENVIRONMENT = threading.Lock()
_SECONDS_UNUSED = 60 * 24 * 3600
_SECONDS_OF_WRITING = 3600


@dataclass(frozen=True, slots=True)
class ClassArchive:
    """The location of the archive for one Java and one set of JARs."""

    directory: Path
    key: str
    class_path: str

    @property
    def file(self) -> Path | None:
        """The archive, or None if there is none yet.

        Its name has its size: a JVM that maps a truncated archive crashes.
        """
        for path in self.directory.glob(f"{self.key}-*.jsa"):
            size = path.stem.rpartition("-")[2]
            with suppress(OSError):
                if size == str(path.stat().st_size):
                    return path
        return None

    @contextmanager
    def in_use(self) -> Iterator[None]:
        """A JVM that Spark starts in this block maps the archive, or writes one when it ends."""
        with _ENVIRONMENT:
            before = os.environ.get(_JVM_OPTIONS)
            os.environ[_JVM_OPTIONS] = f"{before or ''} {self._options()}".strip()
            try:
                yield
            finally:
                if before is None:
                    del os.environ[_JVM_OPTIONS]
                else:
                    os.environ[_JVM_OPTIONS] = before

    def _options(self) -> str:
        path = self.adopt()
        options = f'{_QUIETLY} -cp "{self.class_path}"'
        if path is None:
            # Several JVMs may write at once, each to its own file.
            path = self.directory / f"{self.key}-{uuid.uuid4().hex}.part"
            return f'{options} "-XX:ArchiveClassesAtExit={path}"'
        with suppress(OSError):
            os.utime(path)
        return f'{options} "-XX:SharedArchiveFile={path}"'

    def adopt(self) -> Path | None:
        """The archive, which a JVM may have finished meanwhile; None if there is none."""
        found = self.file
        for path in self.directory.glob("*.part"):
            with suppress(OSError):
                if found is None and path.name.startswith(self.key) and _is_whole(path):
                    found = _published(path, self.directory, self.key)
                elif _is_older(path, _SECONDS_OF_WRITING):
                    path.unlink()
        for path in self.directory.glob("*.jsa"):
            with suppress(OSError):
                if _is_older(path, _SECONDS_UNUSED):
                    path.unlink()
        return found

    def discard(self) -> None:
        """Delete the archive: a JVM did not start with it."""
        for path in self.directory.glob(f"{self.key}-*.jsa"):
            with suppress(OSError):
                path.unlink()


def _is_whole(path: Path) -> bool:
    with path.open("rb") as file:
        return file.read(len(_WHOLE)) == _WHOLE


def _published(path: Path, directory: Path, key: str) -> Path:
    """Give the archive the name that others look for, after its bytes are synced to disk."""
    with path.open("rb") as file:
        os.fsync(file.fileno())
    target = directory / f"{key}-{path.stat().st_size}.jsa"
    return path.replace(target)


def _is_older(path: Path, seconds: float) -> bool:
    return time.time() - path.stat().st_mtime > seconds


_TYPICAL_WORK = """
import sys
import pyarrow as pa
from dagster_delta.engines.spark.session.session import local_spark_session

path, = sys.argv[1:]
spark = local_spark_session("classes", {"spark.ui.enabled": "true", "spark.ui.port": "0"},
                            cores=2, class_archive=True)
frame = spark.createDataFrame(pa.table({"k": ["a", "b"], "v": [1, 2]}))
rows = spark.range(0, 1000, 1, 2).selectExpr("id AS v", "CAST(id AS STRING) AS k", "id % 3 AS p")
rows = rows.repartition("p").mapInArrow(lambda batches: batches, "v long, k string, p long")
rows.write.partitionBy("p").parquet(path)
stored = spark.read.parquet(path).where("v > 3").join(frame.hint("broadcast"), "v", "left")
stored.groupBy("p").count().orderBy("p").toArrow()
spark.stop()
"""


def make_class_archive() -> Path | None:
    """The archive, made now if there is none yet: for images with short-lived containers. None if
    `find_class_archive` gives none.

    Raises:
        InvalidArgument: no session starts, or its JVM writes no archive.
    """
    archive = find_class_archive({})
    if archive is None or archive.adopt() is not None:
        return None if archive is None else archive.file
    with tempfile.TemporaryDirectory() as directory:
        # The JVM writes after Python has ended, and keeps its end of the pipe open until done.
        done = subprocess.run(  # noqa: S603 - this very interpreter
            [sys.executable, "-c", _TYPICAL_WORK, f"{directory}/rows"],
            capture_output=True,
            text=True,
            check=False,
        )
    path = archive.adopt()
    if path is None:
        raise InvalidArgument(
            f"Spark's JVM left no archive in {archive.directory}: {done.stderr[-1000:]}"
        )
    return path


def find_class_archive(conf: Mapping[str, str]) -> ClassArchive | None:
    """The archive for the JVM that Spark would start, None if it should not use one.

    That is: not on Windows, not for a Java without class archives, not beside options that concern
    them, not where directories are on the class path, and not without a cache directory that only
    this user may write to. It may be read-only if it has the archive.
    """
    if os.name != "posix" or "PYSPARK_GATEWAY_PORT" in os.environ or _is_set_otherwise(conf):
        return None
    try:
        base, jars = _base_archive(), _jars()
        if base is None or not jars:
            return None
        directory = _cache_directory()
        # Whole seconds, like the JVM: layers of container images keep no more.
        facts = [
            (str(path), path.stat().st_size, int(path.stat().st_mtime)) for path in (base, *jars)
        ]
    except (OSError, RuntimeError):
        return None
    class_path = os.pathsep.join(map(str, jars))
    if directory is None or len(class_path) > _LONGEST_OPTION or _UNQUOTABLE.search(class_path):
        return None
    key = hashlib.sha256(repr(facts).encode()).hexdigest()[:20]
    archive = ClassArchive(directory, key, class_path)
    return archive if os.access(directory, os.W_OK) or archive.file else None


def _is_set_otherwise(conf: Mapping[str, str]) -> bool:
    options = [conf.get(name, "") for name in _OPTION_SETTINGS]
    options += [os.environ.get(name, "") for name in _OPTION_VARIABLES]
    return (
        any(os.environ.get(name) for name in _CLASS_PATH_VARIABLES)
        or _CLASS_PATH_SETTING in conf
        or any(_OTHER_ARCHIVE.search(option) for option in options)
    )


def _base_archive() -> Path | None:
    """The archive of Java's own classes, on which that of Spark's is built."""
    home = os.environ.get("JAVA_HOME")
    java = str(Path(home) / "bin" / "java") if home else shutil.which("java")
    if java is None:
        return None
    path = Path(java).resolve().parent.parent / "lib" / "server" / "classes.jsa"
    return path if path.is_file() else None


def _jars() -> list[Path]:
    """The JARs on Spark's class path; none if it has other entries too.

    Spark names the API for logging twice, so that the JVM of Java 21 ignores every archive, and
    the others in the order of the directory, which a copy of an image may change.
    """
    import pyspark

    home = Path(os.environ.get("SPARK_HOME") or Path(pyspark.__file__).parent).resolve()
    settings = Path(os.environ.get("SPARK_CONF_DIR") or home / "conf")
    if settings.is_dir() and any(settings.iterdir()):
        return []
    jars = (home / "jars").glob("*.jar")
    return sorted(jars, key=lambda jar: (not jar.name.startswith("slf4j-api-"), jar.name))


def _cache_directory() -> Path | None:
    """A directory that no other user can write to, since the JVM runs its content."""
    given = os.environ.get("XDG_CACHE_HOME", "")
    root = Path(given) if Path(given).is_absolute() else Path.home() / ".cache"
    directory = root / "dagster-delta" / "spark-classes"
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    found = directory.stat()
    is_private = found.st_uid == os.geteuid() and not found.st_mode & 0o022
    is_plain = not _UNQUOTABLE.search(str(directory))
    return directory if is_private and is_plain else None


if __name__ == "__main__":
    sys.stdout.write(f"{make_class_archive()}\n")
