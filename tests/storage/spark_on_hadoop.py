"""A process with a Spark session of its own, which reads data files by file systems of Hadoop.

They need JARs that the session of the other tests is started without. The process does what it is
told line by line, each line a JSON object: the settings of the session, then operations on tables.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import IO, Any
from urllib.parse import urlsplit

import pytest
from pyspark.sql import DataFrame, SparkSession

from dagster_delta.errors import DeltaError
from dagster_delta.storage.cloud import client
from dagster_delta.table.delta_table import DeltaTable
from tests.reference.jars import hadoop_class_path
from tests.sessions import java_is_there
from tests.storage.impatience import make_impatient
from tests.table.fault_operations import frame

PROPERTIES = {"delta.enableDeletionVectors": "true"}
_ANSWER = "answer: "


@dataclass(frozen=True)
class Failure:
    """An error of an operation."""

    kind: str
    is_ours: bool
    text: str


@dataclass(frozen=True)
class Outcome:
    """The result of an operation."""

    result: Any = None
    failure: Failure | None = None


class SparkOnHadoop:
    """The process, as the tests see it."""

    def __init__(self, process: subprocess.Popen[str], errors: IO[str]) -> None:
        self._process, self._errors = process, errors
        self._output: list[str] = []

    def run(self, operation: str, uri: str, options: Mapping[str, str]) -> Outcome:
        """Run an operation of `OPERATIONS` on a table that is opened for it."""
        found = self.tell({"operation": operation, "uri": uri, "options": dict(options)})
        failure = found["failure"]
        return Outcome(found["result"], failure and Failure(**failure))

    def tell(self, order: dict[str, Any]) -> Any:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(order) + "\n")
        self._process.stdin.flush()
        for line in self._process.stdout:
            if line.startswith(_ANSWER):
                return json.loads(line.removeprefix(_ANSWER))
            self._output.append(line)
        pytest.fail(f"the process has ended: {self.printed()[-3000:]}")

    def printed(self) -> str:
        """What it has printed so far besides its answers."""
        self._errors.seek(0)
        return "".join(self._output) + self._errors.read()


@contextmanager
def spark_on_hadoop(
    settings: Mapping[str, str],
    *,
    is_impatient: bool = False,
    environment: Mapping[str, str] | None = None,
) -> Iterator[SparkOnHadoop]:
    """A process with a session of these settings. Skips the test without Java or Maven."""
    if not java_is_there():
        pytest.skip("Spark needs Java 17 or newer, and there is none")
    class_path, why = hadoop_class_path()
    if class_path is None:
        pytest.skip(why)
    with tempfile.TemporaryFile("w+") as errors:
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.storage.spark_on_hadoop"],
            env={**os.environ, "PYSPARK_PYTHON": sys.executable, **(environment or {})},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
        )
        try:
            told = SparkOnHadoop(process, errors)
            started = {"spark.driver.extraClassPath": class_path, **settings}
            told.tell({"settings": started, "is_impatient": is_impatient})
            yield told
        finally:
            try:
                process.communicate(timeout=60)
            finally:
                process.kill()


def abfs_of_azurite(endpoint: str) -> dict[str, str]:
    """Settings with which ABFS speaks with an emulator, which has no hierarchical namespace."""
    settings = {
        "always.use.https": "false",
        "abfs.endpoint": urlsplit(endpoint).netloc,
        "account.hns.enabled": "false",
        "fns.account.service.type": "BLOB",
        "networking.library": "JDK_HTTP_URL_CONNECTION",
    }
    return {f"spark.hadoop.fs.azure.{name}": value for name, value in settings.items()}


def _merge(table: DeltaTable, session: SparkSession) -> None:
    rows = _frame(session, 18, 5)
    merge = table.merge(rows, "t.id = s.id", source_alias="s", target_alias="t")
    merge.when_matched_update_all().when_not_matched_insert_all().execute()


def _frame(session: SparkSession, first: int, count: int) -> DataFrame:
    return session.createDataFrame(frame(first, count))


def _write_and_read(table: DeltaTable, session: SparkSession) -> dict[str, object]:
    """The schemes of the files, and the rows as Spark and as Arrow read them."""
    rows = session.range(100).selectExpr("id", "concat('d ', id % 3) AS day")
    table.append(rows, partition_by=["day"])
    table.set_properties(PROPERTIES)
    table.delete("id % 7 = 3", engine="spark")
    scan = table.snapshot().scan(where="id > 10")
    read = scan.to_spark(session)
    read.explain("extended")
    return {
        "schemes": sorted({file.partition(":")[0] for file in read.inputFiles()}),
        "spark": sorted(row["id"] for row in read.collect()),
        "arrow": sorted(scan.to_arrow()["id"].to_pylist()),
    }


def _read(table: DeltaTable, session: SparkSession) -> list[tuple[Any, ...]]:
    return sorted(map(tuple, table.snapshot().scan().to_spark(session).collect()))


OPERATIONS: Mapping[str, Callable[[DeltaTable, SparkSession], object]] = {
    "write and read": _write_and_read,
    "read": _read,
    "append": lambda table, session: table.append(_frame(session, 50, 3)),
    "overwrite": lambda table, session: table.overwrite(_frame(session, 50, 3)),
    "delete": lambda table, _: table.delete("id % 4 = 1", engine="spark"),
    "update": lambda table, _: table.update({"number": "'x'"}, where="id > 15", engine="spark"),
    "merge": _merge,
    "optimize": lambda table, _: table.optimize(max_deleted_share=0, engine="spark"),
}


def main() -> None:
    """Follow the lines of the standard input to their end."""
    started = json.loads(sys.stdin.readline())
    if started["is_impatient"]:
        make_impatient()
        started["settings"]["spark.python.daemon.module"] = "tests.storage.impatience"
    session = _session(started["settings"])
    _answer(None)
    for line in sys.stdin:
        _answer(asdict(_outcome(session, **json.loads(line))))
    session.stop()


def _outcome(
    session: SparkSession, *, operation: str, uri: str, options: Mapping[str, str]
) -> Outcome:
    # Creates a client, which probes the endpoint for conditional puts.
    client.connect.cache_clear()
    try:
        table = DeltaTable(uri, storage_options=options, must_exist=False)
        result = OPERATIONS[operation](table, session)
    except Exception as error:  # noqa: BLE001 - the tests check what it is
        text = str(error)
        return Outcome(failure=Failure(type(error).__name__, isinstance(error, DeltaError), text))
    return Outcome(result if operation in {"read", "write and read"} else None)


def _answer(value: object) -> None:
    sys.stdout.write(f"{_ANSWER}{json.dumps(value)}\n")
    sys.stdout.flush()


def _session(settings: Mapping[str, str]) -> SparkSession:
    defaults: dict[str, bool | float | int | str | None] = {
        "spark.master": "local[2]",
        "spark.driver.memory": "1g",
        "spark.driver.extraJavaOptions": "-XX:+UseSerialGC -XX:TieredStopAtLevel=1",
        "spark.sql.codegen.wholeStage": "false",
        "spark.sql.codegen.factoryMode": "NO_CODEGEN",
        "spark.sql.shuffle.partitions": "2",
        "spark.ui.enabled": "false",
    }
    return SparkSession.builder.config(map={**defaults, **settings}).getOrCreate()


if __name__ == "__main__":
    main()
