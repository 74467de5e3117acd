"""Spark's Parquet source, with options that make the result independent of the session."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

from dagster_delta.engines.spark.read.file_list import list_directory, list_files, takes_lists
from dagster_delta.engines.spark.read.hadoop_settings import hadoop_settings
from dagster_delta.engines.spark.session.errors import (
    is_missing_file_system,
    missing_data_file,
    read_failure,
)
from dagster_delta.engines.spark.session.server import is_apache_spark
from dagster_delta.engines.spark.session.session import is_connect, session_conf
from dagster_delta.storage.locations import scheme_of
from dagster_delta.storage.object_store import StoreLocation

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, DataFrameReader, SparkSession
    from pyspark.sql import types as spark_types

__all__ = ["can_open", "open_parquet"]

MAX_LOOKED_UP = 32
"""More files than this, and all files of an object store, are passed to a classic session as a
list: looking up a file costs Spark a call, or three requests to an object store."""

_DISCOVERY_THRESHOLD = "spark.sql.sources.parallelPartitionDiscovery.threshold"

_V1_SOURCES = "spark.sql.sources.useV1SourceList"
_V1_PARQUET = "org.apache.spark.sql.execution.datasources.parquet.ParquetFileFormat"

_READ_OPTIONS = {
    # Paths are literal names, never patterns.
    "__globPaths__": "false",
    "mergeSchema": "false",
    "recursiveFileLookup": "false",
    # A missing or damaged file is an error, even if the session is set to skip it.
    "ignoreMissingFiles": "false",
    "ignoreCorruptFiles": "false",
    # Spec: dates and timestamps follow the proleptic Gregorian calendar, for every writer.
    "datetimeRebaseMode": "CORRECTED",
    "int96RebaseMode": "CORRECTED",
}

_VERIFY_PAGES = "parquet.page.verify-checksum.enabled"
_BUILT_IN_SCHEMES = frozenset({"file", "hdfs", "viewfs"})

_discovery_lock = threading.Lock()

_opened: WeakKeyDictionary[SparkSession, set[str | None]] = WeakKeyDictionary()
"""The schemes that each session was found to have a file system for."""

_first_settings: dict[str, Mapping[str, str]] = {}
"""Settings of Hadoop that a bucket was first opened with in this process, by scheme and bucket."""


def open_parquet(
    session: SparkSession,
    paths: Sequence[str],
    schema: spark_types.StructType,
    *,
    location: StoreLocation,
    version: int,
    sizes: Sequence[int] | None = None,
    times_ms: Sequence[int | None] | None = None,
    base_path: str | None = None,
    verifies_pages: bool = True,
) -> DataFrame:
    """The rows of Parquet files under one schema.

    Args:
        session: a classic or Connect session.
        paths: see `spark_path`; each once.
        schema: physical schema.
        location: location of the table.
        version: version of the table that is read, for errors.
        sizes: size of each file in bytes, if the log has it: many files then need no lookup.
        times_ms: creation time of each file, likewise, for queries of `_metadata`.
        base_path: where partition directories begin, if columns of the schema are read from them.
        verifies_pages: whether to verify Parquet page checksums; if not, the session decides.

    Raises:
        DataFileMissing: a file does not exist. A classic session checks this at once, except in
            an object store; Connect checks it when it reads the rows.
    """
    reader = session.read.schema(schema)
    for name, value in {**_READ_OPTIONS, **(hadoop_settings(location) or {})}.items():
        reader = reader.option(name, value)
    if verifies_pages:
        reader = reader.option(_VERIFY_PAGES, "true")
    reader = reader.format(_parquet_source(session))
    looked_up = MAX_LOOKED_UP if scheme_of(paths[0]) in _BUILT_IN_SCHEMES else 0
    if sizes is not None and len(paths) > looked_up and _can_list(session, sizes, base_path):
        try:
            files = list_files(paths, sizes, times_ms or [None] * len(paths))
        except FileNotFoundError as error:
            raise missing_data_file(error.filename, table=location.uri, version=version) from error
        except OSError:
            # This process may not access the file: Spark can, or reports the error.
            listed = None
        else:
            listed = _load_list(reader, files, has_partitions=base_path is not None)
        if listed is not None:
            return listed
    reader = reader.option("recursiveFileLookup", "false")
    if base_path is not None:
        reader = reader.option("basePath", base_path)
    try:
        with _serial_discovery(session, paths):
            return reader.load(list(paths))
    except Exception as error:
        failure = read_failure(error, table=location.uri, version=version)
        if failure is None:
            raise
        raise failure from error


def _can_list(session: SparkSession, sizes: Sequence[int], base_path: str | None) -> bool:
    # Spark silently skips a listed file of zero bytes.
    if min(sizes) <= 0 or not takes_lists(session):
        return False
    # Spark reads every directory above a file as a partition, up to the first without a value.
    return base_path is None or "=" not in base_path.rpartition("/")[2]


def _load_list(reader: DataFrameReader, files: bytes, *, has_partitions: bool) -> DataFrame | None:
    """The rows of files by their list; None if Spark must look the files up."""
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException

    try:
        with list_directory(files) as directory:
            # Without partitions Spark reads no directory name.
            reader = reader.option("recursiveFileLookup", not has_partitions)
            # A single path would be kept as an option, if the session is set so.
            return reader.load([directory])
    except (OSError, PySparkException, Py4JError):
        # Temporary files cannot be written, or the driver does not see those of this process.
        return None


def _parquet_source(session: SparkSession) -> str:
    """The name of the source that has the position of a row in its file; Spark's second
    implementation does not have it.
    """
    first = session_conf(session, _V1_SOURCES) or ""
    is_first = "parquet" in {each.strip().casefold() for each in first.split(",")}
    return "parquet" if is_first else _V1_PARQUET


@contextmanager
def _serial_discovery(session: SparkSession, paths: Sequence[str]) -> Iterator[None]:
    """Look up many local files on the driver instead of in a Spark job with a task for each.

    A classic session looks them up when it gets the paths, so the setting is changed only for that
    time. A Connect server looks them up each time it reads the rows, and keeps its own setting.
    """
    if is_connect(session) or scheme_of(paths[0]) not in _BUILT_IN_SCHEMES:
        yield
        return
    # The lock keeps two of our own reads from restoring each other's value.
    with _discovery_lock:
        before = session_conf(session, _DISCOVERY_THRESHOLD)
        if before is None or len(paths) <= int(before):
            yield
            return
        chosen = session.conf.get(_DISCOVERY_THRESHOLD, None)
        session.conf.set(_DISCOVERY_THRESHOLD, str(len(paths)))
        try:
            yield
        finally:
            if chosen is None:
                # Setting the default by name would look like a choice of the user.
                session.conf.unset(_DISCOVERY_THRESHOLD)
            else:
                session.conf.set(_DISCOVERY_THRESHOLD, chosen)


def can_open(session: SparkSession, path: str, *, location: StoreLocation) -> bool:
    """Whether Spark reads the session's files, and has a file system for a data file.

    Object stores need JARs that Spark does not include; without them, and on Connect servers that
    are not Spark, the Arrow engine reads. It also reads where Hadoop has no setting for the storage
    options, and from a bucket that was opened with others before: Hadoop would go on using those.
    """
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException
    from pyspark.sql import types

    if not is_apache_spark(session):
        return False
    scheme = scheme_of(path)
    if scheme in _BUILT_IN_SCHEMES:
        return True
    settings = hadoop_settings(location)
    if settings is None:
        return False
    bucket = "/".join(path.split("/", 3)[:3])
    if _first_settings.setdefault(bucket, settings) != settings:
        return False
    if scheme in _opened.get(session, ()):
        return True
    reader = session.read.schema(types.StructType([types.StructField("a", types.LongType())]))
    for name, value in {**_READ_OPTIONS, **settings}.items():
        reader = reader.option(name, value)
    try:
        _ = reader.format(_parquet_source(session)).load(path).schema
    except (PySparkException, Py4JError) as error:
        # Anything else (a missing file, a refused login) is for the read itself to report.
        return not is_missing_file_system(error)
    _opened.setdefault(session, set()).add(scheme)
    return True
