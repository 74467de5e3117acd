"""Spark's Parquet source, with options that make the result independent of the session.

Files are listed as Spark's streaming file sink does: a reader of its directory gets the files in
its log with the sizes there. A directory with only such a log can list files at any location, in
one call instead of one per file, and without a request to the store for each.

Storage options become settings of Hadoop's file systems (S3A, ABFS, Google's connector) for one
read. But Hadoop keeps one client per bucket, with the first credentials that the process uses for
it. So vended credentials, which expire, do not become settings.

Spark: `FileStreamSinkLog`, version 1; `MetadataLogFileIndex`.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

import msgspec
import pyarrow as pa
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import types

import dagster_delta.arrow_compute as pc
from dagster_delta.engines.spark.session.errors import (
    is_missing_file_system,
    read_failure,
)
from dagster_delta.engines.spark.session.session import is_apache_spark, is_connect, session_conf
from dagster_delta.errors import FILE_MISSING, DataFileMissing
from dagster_delta.protocol.values.partition_values import encode_uri
from dagster_delta.storage import is_of_catalog
from dagster_delta.storage.cloud.clouds import CLOUDS
from dagster_delta.storage.locations import scheme_of, spark_path
from dagster_delta.storage.object_store import StoreLocation

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, DataFrameReader, SparkSession
    from pyspark.sql import types as spark_types

SPARK_PATH = "spark_path"
"""Column of a table of files: see `spark_path`."""

_IGNORES_LISTS = "spark.sql.streaming.fileStreamSink.ignoreMetadata"
_ENCODER = msgspec.json.Encoder()
_GUARD = "spark-did-not-take-the-list-of-files.parquet"


def list_files(files: pa.Table) -> bytes:
    """A list of files. Local files get their actual size: Spark reads no row group that begins
    beyond the listed size; a missing one raises FileNotFoundError.

    `files`: as for `open_parquet`.
    """
    columns = [files[SPARK_PATH].to_pylist(), files["size_bytes"].to_pylist()]
    # Files with changed rows have no such column.
    has_times = "modification_time_ms" in files.column_names
    times_ms = files["modification_time_ms"].to_pylist() if has_times else [None] * len(files)
    return b"\n".join([b"v1", *map(_encode_entry, *columns, times_ms)])


@contextmanager
def list_directory(listed: bytes) -> Iterator[str]:
    """The path of a directory that reads as the files of a list (see `list_files`); it must exist
    until Spark has loaded it.
    """
    with tempfile.TemporaryDirectory(prefix="delta-files-", ignore_cleanup_errors=True) as made:
        log = Path(made, "_spark_metadata")
        log.mkdir()
        # This name is found with any compaction interval of the session.
        Path(log, "0.compact").write_bytes(listed)
        # If Spark ignored the log, the directory would read as no rows; this makes it an error.
        Path(made, _GUARD).write_bytes(b"no Parquet file")
        yield spark_path(made)


def _encode_entry(path: str, size: int, time_ms: int | None) -> bytes:
    scheme, _, location = path.partition(":")
    if scheme == "file":
        # Tables have many files, and creating a `Path` costs as much as the lookup.
        found = os.stat(location)  # noqa: PTH116
        size, time_ms = found.st_size, found.st_mtime_ns // 1_000_000
    return _ENCODER.encode(
        {
            "path": encode_uri(path),
            "size": size,
            "isDir": False,
            "modificationTime": time_ms or 0,
            "blockReplication": 1,
            "blockSize": 128 * 1024 * 1024,
            "action": "add",
        }
    )


def hadoop_settings(location: StoreLocation) -> Mapping[str, str] | None:
    """The settings for the storage options of a table; empty outside of the clouds and HDFS.

    What Hadoop finds itself, as in the environment, needs no setting.

    Returns:
        None if Hadoop would reach the storage in another way, or as another identity.
    """
    if is_of_catalog(location.options):
        # Of the clouds only: others need no settings.
        return {} if scheme_of(location.uri) in _BUILT_IN_SCHEMES | {None} else None
    scheme = scheme_of(location.uri)
    if scheme == "hdfs":
        # It needs obstore, which Spark on local disks may lack.
        from dagster_delta.storage.hdfs_store import hadoop_properties

        return hadoop_properties(location.options)
    cloud = CLOUDS.get(scheme or "")
    return (
        {} if cloud is None else cloud.hadoop_settings(cloud.parse(location.options), location.uri)
    )


def settings_of_read(session: SparkSession, location: StoreLocation) -> dict[str, str]:
    """Settings of Hadoop for a read; what the user has set in the session has precedence."""
    cloud = CLOUDS.get(scheme_of(location.uri) or "")
    found = dict(hadoop_settings(location) or {})
    if cloud is not None and cloud.hadoop_patience:
        # All at once: on Connect each question is a call.
        chosen = session.conf.getAll
        for name, value in cloud.hadoop_patience.items():
            if not {name, f"spark.hadoop.{name}"} & chosen.keys():
                found.setdefault(name, value)
    return found


MAX_LOOKED_UP = 32
"""More files than this, and all files of an object store, are passed to a classic session as a
list: looking up a file costs Spark a call, or three requests to an object store."""

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

_opened: WeakKeyDictionary[SparkSession, set[str | None]] = WeakKeyDictionary()
"""The schemes that each session was found to have a file system for."""

_first_settings: dict[str, Mapping[str, str]] = {}
"""Settings of Hadoop that a bucket was first opened with in this process, by scheme and bucket."""


def open_parquet(
    session: SparkSession,
    files: pa.Table,
    schema: spark_types.StructType,
    *,
    location: StoreLocation,
    version: int,
    base_path: str | None = None,
    verifies_pages: bool = True,
) -> DataFrame:
    """The rows of Parquet files under one schema.

    `files`: `pa.Table` with the column `SPARK_PATH`, each path once, and with the size of each file
    and, if the log has it, its modification time: many files then need no lookup.
    `base_path`: where partition directories begin, if columns of the schema are read from them.
    `verifies_pages`: whether to verify Parquet page checksums; if not, the session decides.

    A classic session finds at once that a file is missing, except in an object store; Connect finds
    it when it reads the rows.
    """
    reader = _make_reader(session, schema, location)
    if verifies_pages:
        reader = reader.option(_VERIFY_PAGES, "true")
    paths = files[SPARK_PATH].to_pylist()
    looked_up = MAX_LOOKED_UP if scheme_of(paths[0]) in _BUILT_IN_SCHEMES else 0
    if len(paths) > looked_up and _can_list(session, files, base_path):
        try:
            entries = list_files(files)
        except FileNotFoundError as error:
            raise DataFileMissing(
                FILE_MISSING, table=location.uri, version=version, file=error.filename
            ) from error
        except OSError:
            # This process may not access the file: Spark can, or reports the error.
            listed = None
        else:
            listed = _load_list(reader, entries, has_partitions=base_path is not None)
        if listed is not None:
            return listed
    reader = reader.option("recursiveFileLookup", "false")
    if base_path is not None:
        reader = reader.option("basePath", base_path)
    try:
        return reader.load(paths)
    except Exception as error:
        failure = read_failure(error, table=location.uri, version=version)
        if failure is None:
            raise
        raise failure from error


def _make_reader(
    session: SparkSession, schema: spark_types.StructType, location: StoreLocation
) -> DataFrameReader:
    reader = session.read.schema(schema).format(_parquet_source(session))
    for name, value in {**_READ_OPTIONS, **settings_of_read(session, location)}.items():
        reader = reader.option(name, value)
    return reader


def _can_list(session: SparkSession, files: pa.Table, base_path: str | None) -> bool:
    # The list is written on this machine. Spark silently skips a listed file of zero bytes.
    if is_connect(session) or pc.min(files["size_bytes"]).as_py() <= 0:
        return False
    if (session_conf(session, _IGNORES_LISTS) or "").strip().casefold() == "true":
        return False
    # Spark reads every directory above a file as a partition, up to the first without a value.
    return base_path is None or "=" not in base_path.rpartition("/")[2]


def _load_list(reader: DataFrameReader, files: bytes, *, has_partitions: bool) -> DataFrame | None:
    """The rows of files by their list; None if Spark must look the files up."""
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
    is_first = "parquet" in {name.strip().casefold() for name in first.split(",")}
    return "parquet" if is_first else _V1_PARQUET


def can_open(session: SparkSession, path: str, *, location: StoreLocation) -> bool:
    """Whether Spark reads the session's files, and has a file system for a data file.

    Object stores need JARs that Spark does not include; without them, and on Connect servers that
    are not Spark, the Arrow engine reads. It also reads where Hadoop has no setting for the storage
    options, and from a bucket that was opened with others before: Hadoop would go on using those.
    """
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
    schema = types.StructType([types.StructField("a", types.LongType())])
    try:
        _ = _make_reader(session, schema, location).load(path).schema
    except (PySparkException, Py4JError) as error:
        # Anything else (a missing file, a refused login) is for the read itself to report.
        return not is_missing_file_system(error)
    _opened.setdefault(session, set()).add(scheme)
    return True
