"""A local Spark session that works from any Python process, the session that already runs,
properties of a given session, and this package sent to its workers.
"""

from __future__ import annotations

import atexit
import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary, WeakSet

from py4j.protocol import Py4JError, Py4JJavaError, Py4JNetworkError
from pyspark import SparkContext
from pyspark.errors import AnalysisException, PySparkException, UnsupportedOperationException
from pyspark.sql import DataFrame, SparkSession, functions, types

from dagster_delta import errors
from dagster_delta.errors import InvalidArgument, SparkSessionLost

if TYPE_CHECKING:
    import pyarrow as pa

MINIMUM_JAVA = 17


FIELD_ID_READ = "spark.sql.parquet.fieldId.read.enabled"
"""The session setting under which Spark resolves Parquet columns by field id."""

MAX_RECORDS = "spark.sql.execution.arrow.maxRecordsPerBatch"
"""The session setting that bounds the rows of an Arrow batch."""

_MAX_BATCH_ROWS = 2**31 - 1
lending_lock = threading.RLock()
"""Held while `MAX_RECORDS` is changed: stops two threads from restoring each other's value."""

_SQL_SETTINGS = ("spark.sql.", "spark.databricks.", "spark.hadoop.")
_JAVA_VERSION = re.compile(r'version "(\d+)(?:\.(\d+))?')


def local_spark_session(
    app_name: str,
    conf: Mapping[str, str] | None = None,
    *,
    cores: int | str = "*",
) -> SparkSession:
    """The Spark session of this process, started here with few resources if there is none yet.

    The zone of the session is UTC, its Python workers run this very interpreter, and it listens
    on the loopback address only, without a web UI.

    Args:
        app_name: name of the application.
        conf: settings that override the defaults here; those of a running session's JVM
            (memory, master, JARs) have no effect.
        cores: worker threads, `*` for one per processor.

    Raises:
        InvalidArgument: no Java, or one that Spark cannot run on.
    """
    settings = {**local_settings(cores), **(conf or {})}
    # Without it the workers would run the first `python3` on the PATH; if the virtual
    # environment is not activated, that Python lacks our package.
    os.environ.setdefault("PYSPARK_PYTHON", settings.get("spark.pyspark.python", sys.executable))
    if not has_jvm():
        check_java()
    builder = SparkSession.builder.appName(app_name)
    for name, value in settings.items():
        builder = builder.config(name, value)
    return builder.getOrCreate()


def has_jvm() -> bool:
    """Whether this process has started the JVM of a classic session, stopped or not."""
    return getattr(SparkContext, "_gateway", None) is not None


def local_settings(cores: int | str) -> dict[str, str]:
    """The defaults of a session with a local master."""
    workers = os.cpu_count() or 1 if cores == "*" else int(cores)
    return {
        "spark.master": f"local[{cores}]",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.log.level": "ERROR",
        "spark.sql.session.timeZone": "UTC",
        # Other readers ignore statistics of the default, INT96.
        "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
        FIELD_ID_READ: "true",
        # Spark's default is for a cluster's file system: it makes a task of each 32 small files.
        "spark.sql.files.openCostInBytes": "65536",
        # The overhead of 200 shuffle tasks on a few cores exceeds their work.
        "spark.sql.shuffle.partitions": str(max(4, 2 * workers)),
        "spark.sql.execution.arrow.pyspark.enabled": "true",
        "spark.sql.execution.arrow.maxRecordsPerBatch": "65536",
    }


def check_java() -> None:
    """Check that Spark finds a suitable Java."""
    home = os.environ.get("JAVA_HOME")
    java = str(Path(home) / "bin" / "java") if home else shutil.which("java")
    mend = (
        f"install a Java runtime, version {MINIMUM_JAVA} or newer (the package is called "
        f"openjdk-{MINIMUM_JAVA}-jre-headless on Debian, openjdk@{MINIMUM_JAVA} in Homebrew), and "
        "set JAVA_HOME to it if it is not the first one on the PATH"
    )
    version = None if java is None else _java_version(java)
    if version is None:
        where = f"JAVA_HOME is {home}, where no Java runs" if home else "there is none on the PATH"
        raise InvalidArgument(f"Spark needs Java, and {where}: {mend}")
    if version < MINIMUM_JAVA:
        raise InvalidArgument(f"Spark needs Java {MINIMUM_JAVA}, and {java} is {version}: {mend}")


def _java_version(java: str) -> int | None:
    """Major version of a Java executable; None if it does not run."""
    try:
        answer = subprocess.run(  # noqa: S603 - the user's own Java, as Spark would start it
            [java, "-version"], capture_output=True, text=True, check=False, timeout=60
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    match = _JAVA_VERSION.search(answer.stderr + answer.stdout)
    if match is None:
        return None
    # Java 8 calls itself 1.8.
    return int(match[2] or 1) if match[1] == "1" else int(match[1])


def is_connect(value: object) -> bool:
    """Whether a session or a DataFrame talks to a Spark Connect server."""
    return type(value).__module__.startswith("pyspark.sql.connect")


def frame_of(session: SparkSession, rows: pa.Table, schema: types.StructType | str) -> DataFrame:
    """A DataFrame of the rows of a `pyarrow.Table`, all of them.

    By default Spark silently stops at the first empty chunk.

    `rows`: `pyarrow.Table`; it is copied where it has several chunks.
    """
    # PySpark reads the first chunk of nested columns, so an empty table gets one.
    whole = rows.combine_chunks() if rows.num_rows else rows.schema.empty_table()
    with _bounded_batches(session):
        return session.createDataFrame(whole, schema)


def with_nullable_parts(frame: DataFrame) -> DataFrame:
    """The frame with every field of a struct, element and value nullable, for `toArrow`: that of
    pyspark 4.2 refuses a null struct with a field that is not.
    """
    nullable = types.StructType([_as_nullable(field) for field in frame.schema])
    return frame if nullable == frame.schema else frame.to(nullable)


def _as_nullable(field: types.StructField) -> types.StructField:
    """The field with the same nullability, and every part of its type nullable."""
    return types.StructField(
        field.name, _with_nullable_parts(field.dataType), field.nullable, field.metadata
    )


def _with_nullable_parts(kind: types.DataType) -> types.DataType:
    match kind:
        case types.StructType():
            parts = [(field.name, _with_nullable_parts(field.dataType)) for field in kind]
            return types.StructType([types.StructField(name, part) for name, part in parts])
        case types.ArrayType():
            return types.ArrayType(_with_nullable_parts(kind.elementType))
        case types.MapType():
            key, value = map(_with_nullable_parts, (kind.keyType, kind.valueType))
            return types.MapType(key, value)
    return kind


@contextmanager
def _bounded_batches(session: SparkSession) -> Iterator[None]:
    """Set a batch size while the block runs, if the session has no limit.

    Spark accepts zero as no limit, but its Python part fails on it.
    """
    if is_connect(session) or int(session_conf(session, MAX_RECORDS) or 1) > 0:
        yield
        return
    with lending_lock:
        before = session_conf(session, MAX_RECORDS)
        session.conf.set(MAX_RECORDS, str(_MAX_BATCH_ROWS))
        try:
            yield
        finally:
            session.conf.set(MAX_RECORDS, before or "0")


def functions_of(value: object) -> ModuleType:
    """The module of SQL functions for a session or a DataFrame.

    `pyspark.sql.functions` has one mode for the whole process, which may have sessions of both
    kinds.
    """
    if is_connect(value):
        from pyspark.sql.connect import functions as connect_functions

        return connect_functions
    return functions


def session_conf(session: SparkSession, name: str) -> str | None:
    """The value of a setting, Spark's own default included; None if it has none."""
    try:
        # If the caller passes a default, Spark does not return its own.
        value = session.conf.get(name)
    except (Py4JJavaError, PySparkException):
        return None
    return None if value is None else str(value)


def settings_without_effect(
    session: SparkSession, wanted: Mapping[str, str]
) -> dict[str, str | None]:
    """The settings that the JVM of a session was started without, with what it has instead."""
    in_force = {name: _setting_in_force(session, name) for name in wanted}
    # Other than static SQL settings, these were just set in the session.
    return {
        name: in_force[name]
        for name, value in wanted.items()
        if in_force[name] != value and not session.conf.isModifiable(name)
    }


def _setting_in_force(session: SparkSession, name: str) -> str | None:
    if not is_connect(session) and not name.startswith(_SQL_SETTINGS):
        # Some platforms do not give access to the context.
        with suppress(Py4JError, PySparkException):
            return session.sparkContext.getConf().get(name)
    return session_conf(session, name)


apache_spark_sessions: WeakKeyDictionary[SparkSession, bool] = WeakKeyDictionary()
"""Answers of `is_apache_spark` for Connect sessions."""


def is_apache_spark(session: SparkSession) -> bool:
    """Whether Spark itself, including a vendor's, reads the files of a session.

    Other servers lack the hidden column `_metadata`, and may return no rows for a missing file. A
    Connect server is asked once per session, without a job.
    """
    if not is_connect(session):
        return True
    if session not in apache_spark_sessions:
        apache_spark_sessions[session] = _knows_metadata_columns(session) and _has_version_of_spark(
            session
        )
    return apache_spark_sessions[session]


def _knows_metadata_columns(session: SparkSession) -> bool:
    rows = session.range(0)
    try:
        # Spark has the column, and reports that these rows do not.
        with suppress(AnalysisException):
            _ = rows.select(rows.metadataColumn("_metadata")).schema
    except UnsupportedOperationException:
        return False
    return True


def _has_version_of_spark(session: SparkSession) -> bool:
    """Whether SQL and the protocol report the same version: other servers report their own."""
    try:
        (row,) = session.sql("SELECT version()").collect()
    except PySparkException:
        # Some platforms restrict which functions a user may call.
        return True
    return str(row[0]).startswith(session.version)


def running_session() -> SparkSession | None:
    """The session of this process, classic or Connect; None if it has none.

    Raises:
        SparkSessionLost: its JVM has ended.
    """
    return _classic_session() or _connect_session()


@contextmanager
def naming_lost_session() -> Iterator[None]:
    """Raise SparkSessionLost if the block fails because the JVM has ended: Spark itself reports a
    refused connection.

    Raises:
        SparkSessionLost: the block failed, and the JVM has ended.
    """
    try:
        yield
    except SparkSessionLost:
        raise
    except Exception as error:
        if _is_jvm_gone():
            raise _make_lost_error() from error
        raise


def _classic_session() -> SparkSession | None:
    if not has_jvm():
        return None
    try:
        session = SparkSession.active()
        # A session whose context was stopped has no context to ask.
        session.sparkContext.statusTracker()
    except (ConnectionError, Py4JNetworkError) as error:
        raise _make_lost_error() from error
    except Py4JError:
        # Some platforms do not give access to the context.
        return session
    except (AttributeError, PySparkException):
        return None
    return session


def _connect_session() -> SparkSession | None:
    module = sys.modules.get("pyspark.sql.connect.session")
    if module is None:
        return None
    with suppress(PySparkException):
        session: SparkSession = module.SparkSession.active()
        return session if is_connect(session) else None
    return None


def _is_jvm_gone() -> bool:
    """Whether the JVM that this process has started does not answer any more."""
    if not has_jvm():
        return False
    with suppress(Py4JError):
        try:
            SparkSession.getActiveSession()
        except (ConnectionError, Py4JNetworkError):
            return True
    return False


def _make_lost_error() -> SparkSessionLost:
    return SparkSessionLost(
        "the JVM of this process's Spark session is gone, and Spark starts no other one in the "
        "same process: somebody or the lack of memory killed it (spark.driver.memory says how much "
        "it takes). Run the step in a process of its own (multiprocess_executor), or launch the "
        "run again; what was not committed is not in the table"
    )


_SHIPPED: WeakSet[SparkSession] = WeakSet()


def ship_package(spark: SparkSession) -> None:
    """Send this package to the Python workers of a session.

    Its dependencies have compiled parts and must already be in their Python: pyarrow, pandas,
    msgspec and pyroaring, and for tables in object stores fsspec and the store's client. For
    streams from the log the driver of a Connect server needs the package too, installed.

    Args:
        spark: classic or Connect. Sending to the same session again does nothing.

    Raises:
        InvalidArgument: the session does not accept files.
    """
    if spark in _SHIPPED:
        return
    try:
        spark.addArtifacts(str(_package_file()), pyfile=True)
    except PySparkException as error:
        raise InvalidArgument(
            f"the session cannot send files to its workers ({error}): install "
            "dagster-delta-protocol into their Python instead"
        ) from error
    _SHIPPED.add(spark)


@cache
def _package_file() -> Path:
    """A ZIP file with the modules of the package and the data they read. It stays until this
    process ends, because executors that are started later fetch it from here.
    """
    package = Path(errors.__file__).parent
    directory = Path(tempfile.mkdtemp(prefix="dagster-delta-"))
    atexit.register(shutil.rmtree, directory, ignore_errors=True)
    shipped = sorted((*package.rglob("*.py"), *package.rglob("*.json")))
    content = hashlib.sha256()
    for each in shipped:
        content.update(each.read_bytes())
    # The session would refuse another version of the package under the same name.
    target = directory / f"dagster_delta-{content.hexdigest()[:16]}.zip"
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as file:
        for each in shipped:
            file.write(each, each.relative_to(package.parent).as_posix())
    return target
