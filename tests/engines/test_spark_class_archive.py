"""One session's JVM leaves an archive of its classes, the next maps it, and nothing depends on it."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from dagster_delta.engines.spark.class_archive import ClassArchive, find_class_archive
from dagster_delta.engines.spark.session.session import start_session

pytestmark = pytest.mark.skipif(os.name != "posix", reason="no archives there")

WHOLE = b"\xa8\xab\x0b\xf0"

SESSION = """
import sys
from dagster_delta.engines.spark.session.session import local_spark_session

options = "-XX:TieredStopAtLevel=1 -Xlog:class+load:file=" + sys.argv[1]
conf = {"spark.driver.extraJavaOptions": options}
session = local_spark_session("archived", conf, cores=1, class_archive=True)
print(session.conf.get("spark.master"))
"""


@pytest.fixture
def java(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A Java with an archive of its own classes, and a cache directory that is empty."""
    home = tmp_path / "java"
    (home / "bin").mkdir(parents=True)
    (home / "lib" / "server").mkdir(parents=True)
    (home / "bin" / "java").touch(mode=0o755)
    (home / "lib" / "server" / "classes.jsa").write_bytes(b"base")
    monkeypatch.setenv("JAVA_HOME", str(home))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return home


def archive_for(conf: dict[str, str] | None = None) -> ClassArchive:
    archive = find_class_archive(conf or {})
    assert archive is not None
    return archive


def options() -> str:
    return os.environ.get("SPARK_SUBMIT_OPTS", "")


@pytest.mark.usefixtures("java")
def test_an_archive_that_a_jvm_has_finished_is_mapped_by_the_next(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("SPARK_SUBMIT_OPTS", "-Dmine=1")
    archive = archive_for()
    with archive.in_use():
        left = Path(options().partition("-XX:ArchiveClassesAtExit=")[2].rstrip('"'))
        assert options().startswith("-Dmine=1 ")
    assert options() == "-Dmine=1"
    with archive.in_use():
        assert str(left) not in options(), "two JVMs must not write the same file"
    left.write_bytes(b"\0" * 100)
    assert archive.adopt() is None, "a JVM is still writing it"
    left.write_bytes(WHOLE + b"\0" * 96)
    with archive.in_use():
        assert f"-XX:SharedArchiveFile={archive.file}" in options()
        assert "ArchiveClassesAtExit" not in options()


@pytest.mark.usefixtures("java")
def test_an_archive_that_was_cut_short_is_never_mapped() -> None:
    archive = archive_for()
    (archive.directory / f"{archive.key}-a.part").write_bytes(WHOLE + b"\0" * 96)
    path = archive.adopt()
    assert path is not None
    path.write_bytes(WHOLE)
    assert archive.file is None
    archive.discard()
    assert list(archive.directory.iterdir()) == []


@pytest.mark.usefixtures("java")
def test_what_nobody_has_used_for_long_is_deleted() -> None:
    archive = archive_for()
    kept, started = archive.directory / "other-3.jsa", archive.directory / "other-b.part"
    unused, given_up = archive.directory / "older-3.jsa", archive.directory / "older-b.part"
    for path in (kept, started, unused, given_up):
        path.write_bytes(b"abc")
    for path in (unused, given_up):
        os.utime(path, times=(time.time(), time.time() - 100 * 24 * 3600))
    archive.adopt()
    assert sorted(archive.directory.iterdir()) == sorted([kept, started])


def test_another_java_has_another_archive(java: Path) -> None:
    before = archive_for()
    (java / "lib" / "server" / "classes.jsa").write_bytes(b"another")
    assert archive_for().key != before.key
    (java / "lib" / "server" / "classes.jsa").unlink()
    assert find_class_archive({}) is None


@pytest.mark.usefixtures("java")
def test_a_jvm_gets_every_jar_once_and_in_the_same_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else an archive does not fit: Java 21 refuses JARs that are named twice."""
    jars = tmp_path / "spark" / "jars"
    jars.mkdir(parents=True)
    for name in ("b.jar", "slf4j-api-2.jar", "a.jar", "notes.txt"):
        (jars / name).touch()
    monkeypatch.setenv("SPARK_HOME", str(tmp_path / "spark"))
    with archive_for().in_use():
        expected = f"{jars}/slf4j-api-2.jar:{jars}/a.jar:{jars}/b.jar"
        assert f' -cp "{expected}" ' in options()


def test_the_archive_of_an_image_fits_the_files_of_its_layers(java: Path) -> None:
    base = java / "lib" / "server" / "classes.jsa"
    os.utime(base, ns=(1_700_000_000_987_654_321, 1_700_000_000_987_654_321))
    before = archive_for()
    os.utime(base, ns=(1_700_000_000_000_000_000, 1_700_000_000_000_000_000))
    assert archive_for().key == before.key


@pytest.mark.usefixtures("java")
def test_a_read_only_cache_is_used_if_it_has_the_archive(monkeypatch: pytest.MonkeyPatch) -> None:
    archive = archive_for()
    monkeypatch.setattr(os, "access", lambda _path, mode: mode != os.W_OK)  # root writes all
    assert find_class_archive({}) is None
    (archive.directory / f"{archive.key}-4.jsa").write_bytes(WHOLE)
    with archive_for().in_use():
        assert f"-XX:SharedArchiveFile={archive.file}" in options()


@pytest.mark.usefixtures("java")
@pytest.mark.parametrize(
    ("conf", "environment"),
    [
        ({"spark.driver.extraClassPath": "/opt/jars"}, {}),
        ({"spark.driver.extraJavaOptions": "-XX:SharedArchiveFile=/own"}, {}),
        ({"spark.driver.defaultJavaOptions": "-javaagent:/agent.jar"}, {}),
        ({}, {"JAVA_TOOL_OPTIONS": "-Xshare:off"}),
        ({}, {"HADOOP_CONF_DIR": "/etc/hadoop"}),
        ({}, {"PYSPARK_SUBMIT_ARGS": "--driver-class-path /opt/jars pyspark-shell"}),
        ({}, {"PYSPARK_GATEWAY_PORT": "1"}),
        ({}, {"SPARK_CONF_DIR": "{tmp_path}"}),
    ],
)
def test_there_is_none_where_it_could_be_in_the_way(
    conf: dict[str, str],
    environment: dict[str, str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert find_class_archive({}) is not None
    for name, value in environment.items():
        monkeypatch.setenv(name, value.format(tmp_path=tmp_path))
    assert find_class_archive(conf) is None


@pytest.mark.usefixtures("java")
def test_a_cache_that_others_may_write_to_is_not_used(tmp_path: Path) -> None:
    directory = archive_for().directory
    directory.chmod(0o777)
    assert find_class_archive({}) is None
    directory.chmod(0o700)
    assert find_class_archive({}) is not None


@pytest.mark.usefixtures("java")
def test_a_jvm_that_an_archive_kills_is_started_without(monkeypatch: pytest.MonkeyPatch) -> None:
    from pyspark.errors import PySparkRuntimeError

    monkeypatch.setattr("dagster_delta.engines.spark.session.session.has_jvm", lambda: False)
    archive = archive_for()
    (archive.directory / f"{archive.key}-a.part").write_bytes(WHOLE)

    class Builder:
        def getOrCreate(self) -> str:  # noqa: N802 - Spark's name
            if "SharedArchiveFile" in options():
                raise PySparkRuntimeError(errorClass="JAVA_GATEWAY_EXITED", messageParameters={})
            return "a session"

    builder: Any = Builder()
    session: object = start_session(builder, {}, class_archive=True)
    assert session == "a session"
    assert archive.file is None


@pytest.mark.spark
@pytest.mark.exhaustive
def test_a_session_leaves_an_archive_and_the_next_starts_from_it(tmp_path: Path) -> None:
    cache = tmp_path / "cache"

    def classes_of_session(name: str) -> tuple[str, subprocess.CompletedProcess[str]]:
        log = tmp_path / name
        # The pipes stay open until the JVM has ended, which is after it has written the archive.
        done = subprocess.run(
            [sys.executable, "-c", SESSION, str(log)],
            env={**os.environ, "XDG_CACHE_HOME": str(cache)},
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        assert done.stdout.splitlines()[-1:] == ["local[1]"], done.stderr[-2000:]
        return log.read_text(), done

    def mapped(classes: str) -> int:
        return classes.count("org.apache.spark") and sum(
            "shared objects file (top)" in line
            for line in classes.splitlines()
            if "] org.apache.spark." in line
        )

    first, leaving = classes_of_session("first")
    second, mapping = classes_of_session("second")
    assert mapped(first) == 0
    assert mapped(second) > 1000
    for done in (leaving, mapping):
        said = (done.stdout + done.stderr).lower()
        assert "archive" not in said
        assert "[warning][cds" not in said
